"""Predict new records: for each row of NEW.csv the probability of the event (with several classes, of each) or the mean
outcome, with an interval. Only released draws are used, so predictions cost no privacy budget."""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfastmh.posterior import Posterior

EXAMPLES = """examples:
  dpfastmh predict out new.csv                      to the screen
  dpfastmh predict out new.csv -o predictions.csv
  dpfastmh predict out new.csv --interval 0.5
  dpfastmh predict out new.csv --id customer        each line begins with the row's cell of this column
  dpfastmh predict out new.csv --outcome            intervals of the outcome itself, not of its mean

The columns are those of the schema; others are ignored. Numbers outside their public bounds count as the bound, and
missing cells as the public values that the schema of the fit gave them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="OUT", type=Path, help="a folder that dpfastmh fit wrote")
    parser.add_argument(
        "table", metavar="NEW.csv", help="the records to predict (CSV, Parquet, Arrow; - is standard input)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there instead of to the screen")
    parser.add_argument("--interval", type=float, default=0.9, help="probability of the interval (default 0.9)")
    parser.add_argument("--id", metavar="COLUMN", help="put this column of NEW.csv in front of every prediction")
    parser.add_argument("--outcome", action="store_true", help="intervals of the outcome instead of its mean")


def run(arguments: argparse.Namespace) -> int:
    """Load, read, predict, write."""
    from dpfastmh.outputs import replace_file

    posterior = saved(arguments.folder)
    text = predictions(posterior, arguments.table, arguments.interval, arguments.outcome, arguments.id)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        replace_file(arguments.output, text.encode())
    if not posterior.privacy.private:
        print("dpfastmh predict: NOT PRIVATE: these draws were made with a known seed", file=sys.stderr)
    if (temperature := posterior.privacy.temperature) != 1.0 and not arguments.outcome:
        print(
            f"dpfastmh predict: fitted at temperature {temperature:g}: the intervals are about "
            f"{math.sqrt(temperature):.2g} times as wide as the posterior's",
            file=sys.stderr,
        )
    return 0


def saved(folder: Path) -> Posterior:
    """The posterior in a folder that ``dpfastmh fit`` wrote."""
    from dpfastmh.posterior import Posterior

    if not (folder / "posterior.nc").is_file():
        raise FileNotFoundError(f"{folder} has no posterior.nc: give a folder that dpfastmh fit wrote")
    return Posterior.load(folder / "posterior.nc")


def predictions(posterior: Posterior, source: str, interval: float, outcome: bool, key: str | None = None) -> str:
    """A CSV of predictions, one line for each record in the order they came; the table is read in batches.

    ``key`` is a column of the records that is written in front of them.
    """
    from dpfastmh.data.cells import declared, read
    from dpfastmh.data.loading import declared_columns
    from dpfastmh.data.tables import open_table
    from dpfastmh.schema import Column

    if posterior.model is None:
        raise ValueError("these draws belong to no regression: predictions cannot be made from them")
    table = open_table(source)
    columns = [
        Column(name, categories=categories, missing=posterior.missing.get(name))
        for name, categories in declared_columns(posterior.model.domain)
    ]
    needed = [*(column.name for column in columns), *([] if key is None else [key])]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for batch in table.batches(list(dict.fromkeys(needed)) or table.names[:1]):
        x: dict[str, Any] = {
            column.name: declared(column, batch, read(column, batch, table.text)) for column in columns
        }
        found = posterior.predict(x or batch.cells, interval=interval, predictive=outcome).columns()
        if not out.tell():
            writer.writerow([*([] if key is None else [key]), *found])
        rows = zip(*found.values(), strict=True)
        keys = [[]] * batch.rows if key is None else [[_plain(cell)] for cell in batch.cells[key].to_pylist()]
        writer.writerows([*mark, *(f"{value:.6g}" for value in row)] for mark, row in zip(keys, rows, strict=True))
    return out.getvalue()


def _plain(cell: Any) -> Any:
    """A cell as it is written: what a CSV holds is bytes."""
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell
