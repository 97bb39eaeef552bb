"""What a schema makes of a table, cell by cell: for the custodian of the data, who may see them anyway. What is printed
here comes from the data and is covered by no guarantee: do not publish it, and do not tune the schema to it.

Of a folder made by dpfastmh ingest, every row is compared with its checksum.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

EXAMPLES = """examples:
  dpfastmh check patients.parquet --schema patients.toml
  zcat patients.csv.gz | dpfastmh check - --schema patients.toml --json
"""

NOTICE = "for the data's custodian only: not private, do not publish"
SHOWN = 5  # cells of a column that are listed

Refused = dict[tuple[str, str, str], list[int]]  # file, column, reason: rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", metavar="DATA", help="CSV, Parquet or Arrow file, folder of Parquet files, - for CSV, or ingested rows"
    )
    parser.add_argument("--schema", metavar="FILE", required=True, help="the schema, a TOML file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from dpfastmh.data.mapped import is_row_folder
    from dpfastmh.data.tables import TableError, open_table
    from dpfastmh.schema import Schema

    schema = Schema.load(arguments.schema)
    if is_row_folder(arguments.data):
        return _check_rows(arguments, schema)
    found = examine(schema, open_table(arguments.data))
    if arguments.json:
        json.dump(asdict(found), sys.stdout, indent=2)
        print()
    else:
        print("\n".join(_lines(found)))
    if found.refused:
        raise TableError(f"{arguments.data}: the table would be refused, {len(found.refused)} reasons listed")
    return 0


def _check_rows(arguments: argparse.Namespace, schema: Any) -> int:
    """Every row of an ingested table against its checksum."""
    from dpfastmh.data.mapped import MappedRows, projection_of

    model = schema.build()
    projection = projection_of(model, schema.target, schema.unit, schema.max_rows_per_unit, schema.missing)
    rows = MappedRows(arguments.data, model, projection, verify=True)
    found = {"notice": NOTICE, "rows": rows.count, "units": rows.units, "bytes": rows.manifest.bytes}
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{NOTICE.upper()}\n\n{rows.count:,} rows of {rows.units:,} units, as they were ingested with this schema"
        )
    return 0


@dataclass
class ColumnFound:
    """What one column holds, seen through its declaration."""

    name: str
    below: int = 0  # cells moved up to the lower bound
    above: int = 0  # cells moved down to the upper bound, or to the cap of counts
    missing: int = 0
    unreadable: int = 0  # neither missing nor what is declared
    classes: dict[str, int] | None = None  # cells of each category
    fill: Any = None  # the public value of missing cells


@dataclass
class Found:
    """What ``check`` prints."""

    notice: str = NOTICE
    rows: int = 0
    units: int | None = None
    rows_past_the_limit: int | None = None  # of units that have more than max_rows_per_unit
    target: str = ""
    columns: list[ColumnFound] = field(default_factory=list)
    extra_columns: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def examine(schema: Any, table: Any) -> Found:
    """Read the whole table once and count."""
    from dpfastmh.data.tables import TableError
    from dpfastmh.data.units import Units

    declared = [*schema.features, schema.outcome]
    found = Found(target=schema.target, columns=[ColumnFound(column.name, fill=column.missing) for column in declared])
    found.extra_columns = [name for name in table.names if name not in schema.columns]
    people = None if schema.unit is None else Units(schema.unit, schema.max_rows_per_unit, table.text)
    broken: set[str] = set()
    cells: Refused = {}
    kept = 0
    try:
        for batch in table.batches(schema.columns):
            found.rows += batch.rows
            for column, seen in zip(declared, found.columns, strict=True):
                if column.name not in broken:
                    try:
                        _count(column, seen, batch, table.text, schema.cap, cells)
                    except TableError as error:  # the column as a whole cannot be read
                        broken.add(column.name)
                        found.refused.append(str(error))
            if people is not None:
                try:
                    kept += int(people.keep(batch).sum())
                except TableError as error:
                    people = None
                    found.refused.append(str(error))
    except (TableError, OSError) as error:  # the table ends here
        if not found.rows:
            raise
        found.refused.append(str(error))
    found.refused = [*_by_reason(cells), *found.refused]
    if people is not None:
        found.units, found.rows_past_the_limit = people.count, found.rows - kept
    if (found.rows if people is None else people.count) < 2:
        found.refused.append(f"{table.where}: fewer than two {'rows' if schema.unit is None else 'units'}")
    return found


def _count(column: Any, seen: ColumnFound, batch: Any, text: bool, cap: int | None, refused: Refused) -> None:
    from dpfastmh.data import cells

    found = cells.read(column, batch, text)
    good = ~(found.bad | found.missing)
    wrong = np.flatnonzero(found.bad | (found.missing & (column.missing is None)))
    listed = seen.unreadable + (0 if column.missing is not None else seen.missing)
    for row in wrong[: max(0, SHOWN - listed)]:
        why = cells.reason(column, batch, found, int(row))
        refused.setdefault((batch.where, column.name, why), []).append(batch.first + int(row) + 1)
    seen.missing += int(found.missing.sum())
    seen.unreadable += int(found.bad.sum())
    if column.categories is not None:
        seen.classes = seen.classes or dict.fromkeys(map(str, column.categories), 0)
        counts = np.bincount(found.values[good], minlength=len(column.categories))
        for name, count in zip(seen.classes, counts, strict=True):
            seen.classes[name] += int(count)
        return
    low, high = column.bounds if column.bounds is not None else (0, cap)
    seen.below += int((found.values[good] < low).sum())
    seen.above += int((found.values[good] > high).sum())


def _by_reason(cells: Refused) -> list[str]:
    """One line for all listed cells of a column that are refused for the same reason."""
    return [
        f"{where}: column {column!r}, row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))}"
        f"{', ...' if len(rows) == SHOWN else ''}: {why}"
        for (where, column, why), rows in cells.items()
    ]


def _lines(found: Found) -> list[str]:
    lines = [found.notice.upper(), "", f"{found.rows:,} rows"]
    if found.units is not None:
        lines[-1] += (
            f" of {found.units:,} units; {found.rows_past_the_limit:,} rows past max_rows_per_unit are left out"
        )
    width = max(len(column.name) for column in found.columns) + 2
    lines += ["", f"{'column':<{width}}{'below':>10}{'above':>10}{'missing':>10}{'unreadable':>12}"]
    for column in found.columns:
        counts = f"{column.below:>10,}{column.above:>10,}{column.missing:>10,}{column.unreadable:>12,}"
        lines.append(f"{column.name:<{width}}{counts}" + (" (target)" if column.name == found.target else ""))
    lines.append("below, above: numbers outside the declared bounds, which are moved to the nearest bound")
    for column in found.columns:
        if column.classes is not None:
            shown = ", ".join(f"{name}: {count:,}" for name, count in column.classes.items())
            if column.missing and column.fill is not None:
                shown += f"; the {column.missing:,} missing count as {column.fill}"
            lines.append(
                f"{'classes of the target' if column.name == found.target else 'categories of'} {column.name}: {shown}"
            )
    if found.extra_columns:
        lines += ["", f"ignored, not in the schema: {', '.join(found.extra_columns)}"]
    if found.refused:
        lines += ["", f"would be refused (first {SHOWN} cells of a column):", *(f"  {line}" for line in found.refused)]
    return lines
