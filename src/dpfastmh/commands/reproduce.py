"""Run the experiments of the DP-Fast MH paper again, and compare private methods at equal total (epsilon, delta).

Writes figures (SVG and PNG), their numbers (CSV) and index.html, a page that puts each claim of the paper beside what
was measured. What is finished is kept in the folder: the same command goes on after an interrupt. All chains are
seeded so that they can be repeated; their draws are not private.
"""

from __future__ import annotations

import argparse
import sys

EXAMPLES = """examples:
  dpfastmh reproduce all -o paper                everything, up to 40 minutes on two cores
  dpfastmh reproduce all -o look --quick         the same in small, under three minutes
  dpfastmh reproduce scoreboard -o paper         private methods at equal totals
"""
PARTS = ("mixture", "mnist", "choice-of-k", "theory", "scoreboard")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", choices=(*PARTS, "all"), help="which experiments")
    parser.add_argument("-o", "--output", default="reproduction", metavar="DIR", help="folder (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works")


def run(arguments: argparse.Namespace) -> int:
    """Run and say where the page is."""
    from dpfastmh import reproduce

    parts = PARTS if arguments.part == "all" else (arguments.part,)
    page = reproduce.run(parts, arguments.output, quick=arguments.quick, tell=_tell)
    print(page)
    return 0


def _tell(text: str) -> None:
    print(f"dpfastmh reproduce: {text}", file=sys.stderr, flush=True)
