"""The command line: ``dpfastmh COMMAND``. Results go to standard output, progress and errors to standard error.

Exit codes: 0 done, 1 refused or failed with one clear line, 2 usage.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from dpfastmh import __version__
from dpfastmh.commands import COMMANDS


def module_of(command: str) -> ModuleType:
    return importlib.import_module(f"dpfastmh.commands.{command}")


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The whole parser, with the options of the ``chosen`` command only (None: of all)."""
    top = argparse.ArgumentParser(
        prog="dpfastmh",
        description="Private, exact, fast Bayesian inference under a total (epsilon, delta).",
        epilog="dpfastmh COMMAND --help shows a command's options, with examples.",
    )
    top.add_argument("--version", action="version", version=f"dpfastmh {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if chosen in (None, name):
            module = module_of(name)
            command.description, command.epilog = module.__doc__, getattr(module, "EXAMPLES", None)
            module.add_arguments(command)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and turn a user's mistake into one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in given if word in COMMANDS), "")
    chosen = parser(command).parse_args(given)
    try:
        return int(module_of(chosen.command).run(chosen))
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        return 1
    except (ValueError, OSError) as error:
        print(f"dpfastmh {chosen.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        print(f"dpfastmh {chosen.command}: {str(stopped) or 'stopped'}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
