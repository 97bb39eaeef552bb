"""Write OUT/report.html again from OUT/posterior.nc: after an update of dpfastmh, say. Costs no privacy budget."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """examples:
  dpfastmh report out
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="OUT", type=Path, help="a folder that dpfastmh fit wrote")


def run(arguments: argparse.Namespace) -> int:
    """Load, write, say where."""
    from dpfastmh.commands.predict import saved

    print(saved(arguments.folder).report(arguments.folder / "report.html"))
    return 0
