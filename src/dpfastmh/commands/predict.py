"""Predict new records: for each row of NEW.csv the probability of the event (with several classes, of each) or the mean
outcome, with an interval. Only released draws are used, so predictions cost no privacy budget."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfastmh.domain import Domain
    from dpfastmh.posterior import Posterior
    from dpfastmh.prediction import Prediction

EXAMPLES = """examples:
  dpfastmh predict out new.csv                      to the screen
  dpfastmh predict out new.csv -o predictions.csv
  dpfastmh predict out new.csv --interval 0.5
  dpfastmh predict out new.csv --outcome            intervals of the outcome itself, not of its mean

The columns are those of the schema; others are ignored. Numbers outside their public bounds count as the bound.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="OUT", type=Path, help="a folder that dpfastmh fit wrote")
    parser.add_argument("table", metavar="NEW.csv", type=Path, help="the records to predict, with a line of names")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there instead of to the screen")
    parser.add_argument("--interval", type=float, default=0.9, help="probability of the interval (default 0.9)")
    parser.add_argument("--outcome", action="store_true", help="intervals of the outcome instead of its mean")


def run(arguments: argparse.Namespace) -> int:
    """Load, read, predict, write."""
    from dpfastmh.outputs import replace_file

    posterior = saved(arguments.folder)
    if posterior.model is None:
        raise ValueError(f"{arguments.folder} holds no regression: predictions cannot be made from it")
    table = read_columns(arguments.table, posterior.model.domain)
    text = as_csv(posterior.predict(table, interval=arguments.interval, predictive=arguments.outcome))
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        replace_file(arguments.output, text.encode())
    if not posterior.privacy.private:
        print("dpfastmh predict: NOT PRIVATE: these draws were made with a known seed", file=sys.stderr)
    return 0


def saved(folder: Path) -> Posterior:
    """The posterior in a folder that ``dpfastmh fit`` wrote."""
    from dpfastmh.posterior import Posterior

    if not (folder / "posterior.nc").is_file():
        raise FileNotFoundError(f"{folder} has no posterior.nc: give a folder that dpfastmh fit wrote")
    return Posterior.load(folder / "posterior.nc")


def read_columns(path: Path, domain: Domain) -> dict[str, Any]:
    """The declared columns of a CSV file, categories in the type they were declared in."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    options = arrow_csv.ConvertOptions(column_types=_types(domain), include_columns=list(domain.columns))
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: give a CSV file with the columns {', '.join(domain.columns)}")
    try:
        table = arrow_csv.read_csv(path, convert_options=options)
    except KeyError as error:
        raise ValueError(f"{path}: {_first_line(error)}; the columns needed are {', '.join(domain.columns)}") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"{path}: {_first_line(error)}") from None
    return {name: table.column(name).to_numpy() for name in domain.columns}


def _types(domain: Domain) -> dict[str, Any]:
    """Arrow's type for each column: numbers, except where every category is a truth value or text is among them."""
    import pyarrow as pa

    from dpfastmh.description import parts
    from dpfastmh.domain import OneHot

    types = dict.fromkeys(domain.columns, pa.float64())
    for part in parts(domain):
        if isinstance(part, OneHot):
            kinds = {type(category) for category in part.categories}
            types[part.column] = pa.string() if str in kinds else pa.bool_() if kinds == {bool} else pa.int64()
    return types


def _first_line(error: Exception) -> str:
    return str(error.args[0] if error.args else error).strip().splitlines()[0].rstrip(".")


def as_csv(prediction: Prediction) -> str:
    """One line for each record, in the order they came."""
    columns = prediction.columns()
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([f"{value:.6g}" for value in row] for row in zip(*columns.values(), strict=True))
    return out.getvalue()
