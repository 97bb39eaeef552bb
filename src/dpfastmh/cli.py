"""The command line: ``dpfastmh COMMAND``. Results go to standard output, progress and errors to standard error.

Exit codes: 0 done, 1 refused or failed with one clear line, 2 usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dpfastmh import __version__


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="dpfastmh", description="Private, exact, fast Bayesian inference under a total (epsilon, delta)."
    )
    top.add_argument("--version", action="version", version=f"dpfastmh {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("demo", help="sample a posterior of the shipped Adult census data", description=DEMO)
    return top


DEMO = "Samples the logistic regression posterior of the shipped Adult census table with exact minibatch steps."


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and turn a user's mistake into one line."""
    chosen = parser().parse_args(arguments)
    try:
        from dpfastmh import commands

        return commands.run(chosen)
    except (ValueError, OSError) as error:
        print(f"dpfastmh {chosen.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"dpfastmh {chosen.command}: stopped", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
