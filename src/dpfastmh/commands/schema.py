"""Draft a schema from the names and types of a table's columns. No cell is read: bounds and categories are public
knowledge, which a person fills in, and must not come from the data.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

EXAMPLES = """examples:
  dpfastmh schema patients.parquet -o patients.toml
  dpfastmh schema patients.csv.gz > patients.toml
"""

HEAD = """\
# What is publicly known about {where}, drafted from the names and types of its columns: no cell was read.
#
# Fill in every blank from what anyone may know without this table: a questionnaire, a code book, the range of a device,
# the law. Do NOT look the bounds or categories up in the data: a smallest or largest value, or a category that few
# people have, is somebody's record, and no privacy budget would pay for publishing it. Too wide costs some precision;
# numbers outside the bounds are moved to the nearest one.
# Remove the sections of columns that the model shall not use (an id, free text). Of a date make a number first, such as
# days since a public day. Missing cells are refused, unless a section has a public value for them: missing = VALUE.

# classes: logistic, softmax; numbers: student-t, huber, logistic-error; counts: poisson, with cap = ...
model = ""
target = ""  # the column to explain; logistic: the second of its categories is the event; poisson: needs no section
# unit = ""  # the column that says whose row it is, where people have several; remove its section
# max_rows_per_unit = 1
# prior_scale = 2.5  # Normal priors on the coefficients of the features, scaled to [-1, 1] by their bounds
# intercept_scale = 5.0  # these two are for classes and counts; for numbers they follow from the target's bounds
# scale = ...  # numbers: the usual size of an error, in units of the target; a twentieth of its bounds unless given
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", metavar="DATA", help="CSV, Parquet or Arrow file, folder of Parquet files, or - for CSV"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write here (a new file) instead of standard output")


def run(arguments: argparse.Namespace) -> int:
    from dpfastmh.data.tables import open_table

    text = draft(open_table(arguments.data))
    if arguments.output is None:
        sys.stdout.write(text)
        return 0
    try:
        with open(arguments.output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FileExistsError(f"{arguments.output}: exists already: choose another name, or remove it") from None
    except OSError as error:
        raise OSError(f"{arguments.output}: cannot be written: {error.strerror}") from None
    return 0


def draft(table: Any) -> str:
    """The schema with blanks, which ``Schema.load`` refuses until they are filled in."""
    from dpfastmh.schema import toml_key

    parts = [HEAD.format(where=table.where if table.where.isprintable() else repr(table.where))]
    types = table.types or (None,) * len(table.names)
    for name, kind in dict(zip(table.names, types, strict=True)).items():
        if name:
            parts.append(f"\n[columns.{toml_key(name)}]{_comment(kind)}\n" + "".join(_blanks(kind)))
    return "".join(parts)


def _comment(kind: Any) -> str:
    return "" if kind is None else f"  # {kind}"


def _blanks(kind: Any) -> list[str]:
    """What a column of this type can be declared as; CSV has no types, so that either is possible."""
    bounds, categories = (
        "bounds = []  # [low, high]\n",
        "categories = []  # the first is what others are compared with\n",
    )
    if kind is None:
        return [bounds, f"# {categories}"]
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner):
        return [categories]
    if pa.types.is_boolean(inner):
        return ["categories = [false, true]  # the two values of this type\n"]
    if pa.types.is_integer(inner):
        return [bounds, f"# {categories}"]
    if pa.types.is_floating(inner) or pa.types.is_decimal(inner):
        return [bounds]
    return ["# a column of this type can be a unit only: remove the section\n"]
