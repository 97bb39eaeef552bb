"""dpfastmh beside the field. From ``benchmarks/``: ``python -m field PART`` (``make bench-field`` runs everything).

    python -m field speed --rows 1000000 --columns 10             the row that the goals are about
    python -m field speed --rows 10000000 --sampler nutpie        one cell again
    python -m field speed --quick --rows 20000 --columns 5        a smoke test; figures are not kept

Figures are kept in ``benchmarks/results/field-PART.json``, entry by entry.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from field import page, price, quality, speed
from field.alternatives import RIVALS
from field.store import FOLDER, Store
from field.tables import TABLES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    fast = parts.add_parser("speed", help="effective draws per second beside NUTS")
    fast.add_argument("--rows", type=int, action="append")
    fast.add_argument("--columns", type=int, action="append")
    fast.add_argument("--sampler", choices=speed.SAMPLERS, action="append")
    fast.add_argument("--limit", type=float, default=600.0, help="seconds after which a peer is ended")
    good = parts.add_parser("quality", help="real tables at equal (ε, δ) beside what a user would pick instead")
    good.add_argument("--table", choices=TABLES, action="append")
    good.add_argument("--epsilon", type=float, action="append")
    good.add_argument("--method", choices=RIVALS, action="append")
    dear = parts.add_parser("price", help="ρ per effective draw of every private method")
    dear.add_argument("--columns", type=int, action="append")
    parts.add_parser("page", help="write the figures into docs/benchmarks.md")
    for part in parts.choices.values():
        part.add_argument("--quick", action="store_true", help="a smoke test, whose figures are not kept")
    options = parser.parse_args()
    if options.part == "page":
        page.write()
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.quick else FOLDER
        {"speed": _speed, "quality": _quality, "price": _price}[options.part](options, folder)


def _speed(options: argparse.Namespace, folder: Path) -> None:
    speed.run(
        options.rows or speed.SIZES,
        options.columns or speed.COLUMNS,
        options.sampler or speed.SAMPLERS,
        options.limit,
        Store("field-speed", ("rows", "columns", "sampler"), folder),
        options.quick,
    )


def _quality(options: argparse.Namespace, folder: Path) -> None:
    quality.run(
        options.table or TABLES,
        options.epsilon or quality.EPSILONS,
        options.method or RIVALS,
        Store("field-quality", ("table", "epsilon", "method"), folder),
        options.quick,
    )


def _price(options: argparse.Namespace, folder: Path) -> None:
    price.run(options.columns or (5, 10), Store("field-price", ("columns", "method"), folder), options.quick)


if __name__ == "__main__":
    main()
