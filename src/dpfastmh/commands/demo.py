"""A private fit of the Adult census table that ships with dpfastmh: who earned more than 50,000 dollars in 1994?

The same as ``dpfastmh fit`` with the shipped table and schema, at epsilon = 4 and delta = 1e-6. The likelihood is
tempered at 30, so that this budget buys enough draws of all eight coefficients. The results go to a new folder.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

EXAMPLES = """examples:
  dpfastmh demo              results in adult-demo, or adult-demo-2 where that exists
  dpfastmh demo -o my-demo   results in my-demo
"""

EPSILON, DELTA, TEMPERATURE = "4", "1e-6", "30"
FOLDER = "adult-demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, help="a new folder for the results")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def run(arguments: argparse.Namespace) -> int:
    """Say what is done, and do it as ``dpfastmh fit`` would."""
    from dpfastmh.cli import main
    from dpfastmh.datasets import ADULT_TABLE, DEMO_SCHEMA

    folder = arguments.output or new_folder()
    fit = ["fit", str(ADULT_TABLE), "--schema", str(DEMO_SCHEMA), "--epsilon", EPSILON, "--delta", DELTA]
    fit += ["--temperature", TEMPERATURE, "-o", str(folder)]
    print("48,842 people of the Adult census: who earned more than 50,000 dollars? Any one of them is protected.\n")
    print(f"  dpfastmh {' '.join(fit)}\n", flush=True)
    code = main([*fit, "--quiet"] if arguments.quiet else fit)
    if code == 0:
        print("\nA table of your own begins with: dpfastmh schema TABLE.csv -o TABLE.toml", file=sys.stderr)
    return code


def new_folder() -> Path:
    """``adult-demo``, or the first of ``adult-demo-2``, ``-3``, ... that is not there yet."""
    names = itertools.chain([FOLDER], (f"{FOLDER}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, names) if not path.exists() and not path.is_symlink())
