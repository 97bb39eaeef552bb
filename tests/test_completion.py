"""Shell completion: every script knows every command and option, and the shells on this machine complete with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dpfastmh.cli import main, parser
from dpfastmh.commands import COMMANDS
from dpfastmh.commands.completion import SHELLS, options


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    paths = {}
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        paths[shell] = tmp_path / f"completion.{shell}"
        paths[shell].write_text(capsys.readouterr().out)
    return paths


def answer(shell: str, *arguments: str) -> list[str]:
    program = shutil.which(shell)
    assert program is not None
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")


def test_every_command_and_option_is_in_every_script(scripts: dict[str, Path]) -> None:
    for shell, path in scripts.items():
        text = path.read_text()
        for command in COMMANDS:
            assert command in text
            for option in options(command):
                for name in option.names:
                    assert (f"-l {name[2:]} " if shell == "fish" and name.startswith("--") else name[1:]) in text
                assert all(choice in text for choice in option.choices)


def test_options_are_those_of_the_parser() -> None:
    for command in COMMANDS:
        usage = parser(command)._subparsers._group_actions[0].choices[command].format_usage()  # type: ignore[union-attr,index]
        assert all(any(name in usage for name in option.names) for option in options(command) if option.names)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["dpfastmh", "f"], "fit"),
        (["dpfastmh", "fit", "--met"], "--method"),
        (["dpfastmh", "fit", "--method", ""], "dp-fast-mh dp-fast-mh-full"),
        (["dpfastmh", "plan", "--over", "r"], "rows"),
        (["dpfastmh", "completion", ""], "bash zsh fish"),
        (["dpfastmh", "fit", ""], ""),  # files, by the shell
    ],
)
def test_bash_completes(scripts: dict[str, Path], words: list[str], found: str) -> None:
    script = f'source {scripts["bash"]}; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _dpfastmh; echo "${{COMPREPLY[*]}}"'
    assert answer("bash", "-c", script, "bash", *words)[0] == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_scripts_without_a_word(scripts: dict[str, Path], shell: str) -> None:
    if shutil.which(shell) is None:
        text = scripts[shell].read_text()  # what can be said without the shell: quotes and brackets are in pairs
        assert text.count("'") % 2 == 0
        assert text.count("(") == text.count(")")
        return
    assert answer(shell, "-n", str(scripts[shell])) == [""]
    if shell == "fish":
        lines = answer("fish", "-c", f'source {scripts["fish"]}; complete -C"dpfastmh fit --method "')
        assert [line.split("\t")[0] for line in lines if line] == ["dp-fast-mh", "dp-fast-mh-full"]
    else:
        loaded = f"autoload -U compinit; compinit -D -u; source {scripts['zsh']}; print $_comps[dpfastmh]"
        assert answer("zsh", "-f", "-c", loaded)[0] == "_dpfastmh"


def test_an_unknown_shell_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["completion", "tcsh"])
    assert caught.value.code == 2
    assert "choose from" in capsys.readouterr().err
