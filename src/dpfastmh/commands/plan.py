"""Forecast what a budget buys, from the schema alone: no data is read, and nothing is spent.

The forecast is for a nominal table: features spread evenly over their bounds, no effects. Real tables give less.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfastmh.commands.fit import add_budget, add_choices, unit_of

if TYPE_CHECKING:
    from dpfastmh.planning import Plan
    from dpfastmh.schema import Schema

EXAMPLES = """examples:
  dpfastmh plan --schema patients.toml --rows 50000 --epsilon 1 --delta 1e-6
  dpfastmh plan --schema patients.toml --rows 50000 --epsilon 1 --delta 1e-6 --over temperature
  dpfastmh plan --schema patients.toml --rows 50000 --epsilon 1 --delta 1e-6 --over epsilon
  dpfastmh plan --schema patients.toml --rows 50000 --epsilon 1 --delta 1e-6 --over rows --json

With a unit in the schema, --rows is the number of units (people).
"""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
WARMER = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", required=True, metavar="FILE", type=Path, help="what is public (TOML)")
    parser.add_argument("--rows", required=True, type=int, metavar="N", help="how many rows (units) there are")
    add_budget(parser)
    add_choices(parser)
    parser.add_argument(
        "--engine", choices=["memory", "mapped", "dask"], default="memory", help="where the rows will be (memory)"
    )
    parser.add_argument(
        "--over",
        choices=["epsilon", "rows", "temperature"],
        help="a table over a quarter to four times of it; up to 32 times of the temperature",
    )
    parser.add_argument("--json", action="store_true", help="print the forecasts as JSON")


def run(arguments: argparse.Namespace) -> int:
    """One forecast, or several side by side."""
    from dpfastmh.planning import plan_table
    from dpfastmh.schema import Schema

    schema = Schema.load(arguments.schema)
    plans = forecasts(arguments, schema)
    if schema.hint:
        print(f"dpfastmh plan: {schema.hint}", file=sys.stderr)
    if arguments.json:
        print(json.dumps([as_record(found) for found in plans], allow_nan=False))
    elif arguments.over is None:
        print(plans[0].summary())
    else:
        print(plan_table(plans))
    return 0


def forecasts(arguments: argparse.Namespace, schema: Schema) -> list[Plan]:
    from dpfastmh.budget import Budget
    from dpfastmh.planning import plan

    _, most = unit_of(arguments, schema)
    found = []
    for factor in {None: (1.0,), "temperature": WARMER}.get(arguments.over, FACTORS):
        epsilon = arguments.epsilon * (factor if arguments.over == "epsilon" else 1.0)
        units = round(arguments.rows * factor) if arguments.over == "rows" else arguments.rows
        found.append(
            plan(
                schema.build(arguments.temperature * (factor if arguments.over == "temperature" else 1.0)),
                units=units,
                budget=Budget(epsilon, arguments.delta),
                max_rows_per_unit=most,
                chains=arguments.chains,
                max_time=arguments.max_time,
                laziness=arguments.laziness,
                method=arguments.method,
                engine=arguments.engine,
            )
        )
    return found


def as_record(found: Plan) -> dict[str, Any]:
    return {
        "epsilon": found.budget.epsilon,
        "delta": found.budget.delta,
        "units": found.units,
        "max_rows_per_unit": found.rows_per_unit,
        "temperature": found.temperature,
        "chains": found.chains,
        "laziness": found.laziness,
        "steps": round(found.steps),
        "effective_draws": dict(zip(found.names, map(float, found.effective), strict=True)),
        "errors_in_sd": dict(zip(found.names, map(float, found.errors), strict=True)),
        "start_errors_in_sd": dict(zip(found.names, map(float, found.start_errors), strict=True)),
        "seconds": found.seconds,
        "engine": found.engine,
        "passes": found.passes,
        "rows_read": found.rows_read,
        "reading_seconds": found.reading,
        "enough": found.enough,
        "advice": found.advice,
        "comfortable_temperature": found.comfortable if math.isfinite(found.comfortable) else None,
    }
