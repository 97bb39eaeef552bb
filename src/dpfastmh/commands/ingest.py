"""Read a private table once and keep its rows, checked and projected, in a folder that fit reads again and again.

For tables that do not fit into memory, and for tables that are fitted more than once. ROWS is a new folder for the
custodian of the data alone: it holds the records themselves, as the schema lets them be seen, and the number of rows,
which is private where people have several. An interrupted run is taken up where it was when the same command is given
again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

EXAMPLES = """examples:
  dpfastmh ingest visits.parquet --schema visits.toml -o rows
  dpfastmh fit rows --schema visits.toml --epsilon 1 --delta 1e-8 -o out
  dpfastmh check rows --schema visits.toml         compares every row with its checksum

The model's priors may change afterwards. Bounds, categories, target, unit and missing values may not.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", metavar="DATA", help="the private table: CSV, Parquet, a folder of Parquet, Arrow, or -"
    )
    parser.add_argument("--schema", required=True, metavar="FILE", type=Path, help="what is public about it (TOML)")
    parser.add_argument("-o", "--output", required=True, metavar="ROWS", type=Path, help="a new folder for the rows")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="(default float32)")
    parser.add_argument("--unit", metavar="COLUMN", help="whose row it is (overrides the schema)")
    parser.add_argument("--max-rows-per-unit", type=int, metavar="N", help="rows of a unit that count")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def run(arguments: argparse.Namespace) -> int:
    from dpfastmh.commands.fit import unit_of
    from dpfastmh.data.ingest import ingest
    from dpfastmh.schema import Schema

    schema = Schema.load(arguments.schema)
    unit, most = unit_of(arguments, schema)
    with _Display(quiet=arguments.quiet) as tell:
        where = ingest(
            schema.build(),
            arguments.data,
            arguments.output,
            target=schema.target,
            unit=unit,
            max_rows_per_unit=most,
            missing=schema.missing,
            dtype=arguments.dtype,
            progress=tell,
        )
    print(f"rows for the custodian's eyes only, to be given to fit: {where}", file=sys.stderr)
    return 0


class _Display:
    """Rows so far, on standard error: one changing line on a terminal, else nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr.isatty()
        self._began, self._last = time.monotonic(), 0.0

    def __enter__(self) -> _Display:
        return self

    def __call__(self, rows: int) -> None:
        now = time.monotonic()
        if self._shown and now - self._last > 0.2:
            self._last = now
            rate = rows / max(now - self._began, 1e-9)
            print(f"\r{rows:,} rows, {rate:,.0f} a second ", end="", file=sys.stderr, flush=True)

    def __exit__(self, *exception: object) -> None:
        if self._last:
            print(file=sys.stderr)
