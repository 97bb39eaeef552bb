"""Print a script that completes dpfastmh's commands, options and files in a shell: bash, zsh or fish."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

EXAMPLES = """examples:
  source <(dpfastmh completion bash)                                       now; put it into ~/.bashrc to keep it
  dpfastmh completion zsh > ~/.zfunc/_dpfastmh                             a folder of your $fpath
  dpfastmh completion fish > ~/.config/fish/completions/dpfastmh.fish
"""

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(arguments: argparse.Namespace) -> int:
    script = {"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell]
    print(script(), end="")
    return 0


class Option(NamedTuple):
    """An option, or with no names an argument that is one of ``choices``."""

    names: tuple[str, ...]
    help: str
    choices: tuple[str, ...]
    takes: bool  # a value


def options(command: str) -> Iterator[Option]:
    """What the command's own parser takes, so that scripts never disagree with it."""
    from dpfastmh.cli import module_of

    parser = argparse.ArgumentParser()
    module_of(command).add_arguments(parser)
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if action.option_strings or choices:
            text = " ".join((action.help or "").replace("%%", "%").split())
            yield Option(tuple(action.option_strings), text, choices, action.nargs != 0)


def bash() -> str:
    from dpfastmh.commands import COMMANDS

    flags, values = [], []
    for command in COMMANDS:
        found = list(options(command))
        words = " ".join(name for option in found for name in option.names)
        flags.append(f"    {command},*,-*) words={_quoted(words)} ;;")
        for option in found:
            if option.takes and option.choices:
                before = "|".join(f"{command},{name},*" for name in option.names) or f"{command},{command},*"
                values.append(f"    {before}) words={_quoted(' '.join(option.choices))} ;;")
    return f"""\
# completion of dpfastmh for bash: source it
_dpfastmh() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words={_quoted(" ".join([*COMMANDS, "--help", "--version"]))}
  else case "$command,$before,$word" in
{chr(10).join([*values, *flags])}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _dpfastmh dpfastmh
"""


def zsh() -> str:
    from dpfastmh.commands import COMMANDS

    described = "\n".join(f"    {_quoted(f'{name}:{text}')}" for name, text in COMMANDS.items())
    cases = []
    for command in COMMANDS:
        lines = [line for option in options(command) for line in _zsh_option(option)]
        cases.append(f"    {command}) _arguments {' '.join(lines)} '*:file:_files' ;;")
    return f"""\
#compdef dpfastmh
# completion of dpfastmh for zsh: a file _dpfastmh in a folder of $fpath
_dpfastmh() {{
  local -a commands
  commands=(
{described}
  )
  if (( CURRENT == 2 )); then
    _describe -t commands 'dpfastmh command' commands
    _arguments '(-h --help)'{{-h,--help}}'[show the help]' '(-V --version)'{{-V,--version}}'[show the version]'
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{chr(10).join(cases)}
  esac
}}
if [ "$funcstack[1]" = _dpfastmh ]; then _dpfastmh "$@"; else compdef _dpfastmh dpfastmh; fi
"""


def _zsh_option(option: Option) -> list[str]:
    if not option.names:
        return [_quoted(f"1:{option.help}:({' '.join(option.choices)})")]
    text = option.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
    value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files" if option.takes else ""
    return [_quoted(f"{name}[{text}]{value}") for name in option.names]


def fish() -> str:
    from dpfastmh.commands import COMMANDS

    first = "complete -c dpfastmh -n __fish_use_subcommand"
    lines = [
        "# completion of dpfastmh for fish: a file in ~/.config/fish/completions",
        *(f"{first} -f -a {name} -d {_fish(text)}" for name, text in COMMANDS.items()),
        f"{first} -s h -l help -d 'show the help'",
        f"{first} -s V -l version -d 'show the version'",
    ]
    for command in COMMANDS:
        when = f"complete -c dpfastmh -n '__fish_seen_subcommand_from {command}'"
        for option in options(command):
            if not option.names:
                lines.append(f"{when} -f -a {_fish(' '.join(option.choices))}")
                continue
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = f" -x -a {_fish(' '.join(option.choices))}" if option.choices else " -r" if option.takes else ""
            lines.append(f"{when} {names}{value} -d {_fish(option.help)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """One word of bash or zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
