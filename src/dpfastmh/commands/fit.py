"""Draw from the posterior of a model of a private table, at a total privacy cost of at most (epsilon, delta).

DATA is a CSV file (also compressed), a Parquet file or a folder of them, an Arrow or Feather file, - for CSV on
standard input, or a folder made by dpfastmh ingest. With --dask the workers of a cluster read it: Parquet, by a path or
URL that they can reach. The schema says what is publicly known about it. OUT is a new folder that gets posterior.nc,
summary.csv, privacy.json and report.html: what is in it may be published at the stated cost. What is printed while the
run goes on is for the custodian of the data alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfastmh.checkpoint import Checkpoint
    from dpfastmh.ledger import Ledger
    from dpfastmh.posterior import Posterior
    from dpfastmh.schema import Schema

EXAMPLES = """examples:
  dpfastmh fit patients.parquet --schema patients.toml --epsilon 1 --delta 1e-6 -o out
  dpfastmh fit visits.csv.gz --schema visits.toml --unit patient --max-rows-per-unit 3 --epsilon 2 --delta 1e-7 -o out
  dpfastmh fit patients.csv --schema patients.toml --epsilon 1 --delta 1e-6 -o out \\
    --ledger sqlite:///ledger.db --dataset patients
  dpfastmh fit rows --schema visits.toml --engine mapped --epsilon 1 --delta 1e-9 -o out
  dpfastmh fit s3://bucket/visits --dask tcp://scheduler:8786 --schema visits.toml --epsilon 1 --delta 1e-9 -o out
  cat table.csv | dpfastmh fit - --schema table.toml --epsilon 1 --delta 1e-6 -o out --json
  dpfastmh fit big.parquet --schema big.toml --epsilon 1 --delta 1e-9 -o out --checkpoint big.checkpoint

Every run spends its own budget: running it twice costs twice. Ctrl-C ends a run with what was drawn so far, and what
that cost; with --checkpoint it stops the run (SIGTERM too), and "dpfastmh resume FILE" goes on at no further cost,
after a crash as well. A checkpoint is as secret as the table. Exit codes: 0 done, 1 refused or failed with one line, 2
wrong usage.
"""


ROOM = 8_000_000  # bytes that must be free before a budget is spent; results are rarely larger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="the private table")
    parser.add_argument("--schema", required=True, metavar="FILE", type=Path, help="what is public about it (TOML)")
    add_budget(parser)
    parser.add_argument("-o", "--output", required=True, metavar="OUT", type=Path, help="a new folder for the results")
    add_choices(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--engine",
        choices=["auto", "memory", "mapped"],
        default="auto",
        help="where the rows of an ingested table are: in memory (unless given: if it is twice as large) or in files",
    )
    where.add_argument("--dask", metavar="ADDRESS", help="use the cluster of the Dask scheduler at this address")
    parser.add_argument("--draws", type=int, metavar="N", help="end after so many kept draws of all chains together")
    parser.add_argument("--threads", type=int, metavar="N", help="threads for sums over the table (default: all)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="keep the run's state in a new, SECRET file")
    add_every(parser, default=60.0)
    add_display(parser)
    parser.add_argument("--seed", type=int, metavar="N", help="for tests: the results are then NOT PRIVATE")
    parser.add_argument("--force", action="store_true", help="allow delta above 1/units")
    add_ledger(parser)


def add_ledger(parser: argparse.ArgumentParser) -> None:
    """What ``fit`` and ``resume`` are told of a ledger."""
    parser.add_argument("--ledger", metavar="URL", help="take the budget from a ledger (see dpfastmh ledger --help)")
    parser.add_argument("--dataset", metavar="NAME", help="the data set's name in the ledger")


def add_every(parser: argparse.ArgumentParser, *, default: float | None) -> None:
    text = "between two checkpoints " + ("(default: as before)" if default is None else f"(default {default:g})")
    parser.add_argument("--every", type=float, default=default, metavar="SECONDS", help=text)


def add_display(parser: argparse.ArgumentParser) -> None:
    """What ``fit`` and ``resume`` show."""
    parser.add_argument("--json", action="store_true", help="print the privacy statement and summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epsilon", required=True, type=float, metavar="E", help="total privacy budget")
    parser.add_argument("--delta", required=True, type=float, metavar="D", help="total; well below 1/units")


def add_choices(parser: argparse.ArgumentParser) -> None:
    """What ``fit`` and ``plan`` share."""
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="temper the likelihood (default 1)")
    parser.add_argument("--chains", type=int, default=2, metavar="N", help="share the budget (default 2)")
    parser.add_argument(
        "--method", default="dp-fast-mh", choices=["dp-fast-mh", "dp-fast-mh-full"], help="(default dp-fast-mh)"
    )
    parser.add_argument("--laziness", type=float, metavar="K", help="probability of a real step (default: planned)")
    parser.add_argument("--max-time", type=float, metavar="SECONDS", help="end after about so much sampling")
    parser.add_argument("--unit", metavar="COLUMN", help="whose row it is (overrides the schema)")
    parser.add_argument("--max-rows-per-unit", type=int, metavar="N", help="rows of a unit that count")


def run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked for free, sample, write, print."""
    from dpfastmh.checkpoint import check_new
    from dpfastmh.outputs import check_new_folder, check_room
    from dpfastmh.schema import Schema
    from dpfastmh.signals import uninterrupted

    check_new_folder(arguments.output)
    if arguments.checkpoint is not None:
        check_new(arguments.checkpoint)
    schema = Schema.load(arguments.schema)
    check_room(arguments.output, ROOM)
    if schema.hint and not arguments.quiet:
        print(f"dpfastmh fit: {schema.hint}", file=sys.stderr)
    ledger = ledger_of(arguments)
    posterior = replace(fitted(arguments, schema, ledger), missing=schema.missing)
    with uninterrupted():
        where = written(posterior, arguments.output)
    show(posterior, where, as_json=arguments.json)
    if ledger is not None:
        print(f"ledger: {after(ledger, posterior)}", file=sys.stderr)
    return 0


def ledger_of(arguments: argparse.Namespace) -> Ledger | None:
    """The ledger that was asked for."""
    if (arguments.ledger is None) != (arguments.dataset is None):
        raise ValueError("--ledger URL and --dataset NAME belong together: give both, or neither")
    if arguments.ledger is None:
        return None
    from dpfastmh.ledger import Ledger

    return Ledger(arguments.ledger, arguments.dataset)


def after(ledger: Ledger, posterior: Posterior) -> str:
    """What is left of a data set's budget; the results are written by now, whatever has become of the ledger."""
    from dpfastmh.ledger import LedgerError

    try:
        left = ledger.largest(posterior.privacy.delta)
    except LedgerError as error:
        return str(error)
    return f"{ledger.dataset!r} has room for one more fit of epsilon = {left:.3g} at the same delta"


def fitted(arguments: argparse.Namespace, schema: Schema, ledger: Ledger | None) -> Posterior:
    """``sample`` with a display."""
    from dpfastmh.budget import Budget
    from dpfastmh.data.mapped import is_row_folder
    from dpfastmh.display import Display
    from dpfastmh.report import load_libraries
    from dpfastmh.sampling import sample
    from dpfastmh.steps import ahead

    unit, most = unit_of(arguments, schema)
    budget = Budget(arguments.epsilon, arguments.delta)
    model = schema.build(arguments.temperature)
    columns: dict[str, Any] = {
        "target": schema.target,
        "unit": unit,
        "max_rows_per_unit": most,
        "missing": schema.missing,
    }
    rows: dict[str, Any] = {"x": arguments.data, "engine": arguments.engine, **columns}
    if arguments.dask is None and not is_row_folder(arguments.data):
        rows["x"] = table_of(arguments, schema, unit)
        ahead.begin(model)
    with ExitStack() as stack:
        stack.enter_context(warnings_in_one_line("fit"))
        display = stack.enter_context(Display(quiet=arguments.quiet or arguments.json))
        Thread(target=load_libraries, daemon=True).start()  # while LLVM works, outside the interpreter's lock
        if arguments.dask is not None:
            rows = {"engine": on_cluster(stack, arguments, model, columns)}
        return sample(
            model,
            **rows,
            budget=budget,
            method=arguments.method,
            laziness=arguments.laziness,
            chains=arguments.chains,
            draws=arguments.draws,
            max_time=arguments.max_time,
            seed=arguments.seed,
            force=arguments.force,
            threads=arguments.threads,
            progress=display.update,
            ledger=ledger,
            checkpoint=checkpoint_of(arguments),
        )


def checkpoint_of(arguments: argparse.Namespace) -> Checkpoint | None:
    """The checkpoint asked for, with what ``dpfastmh resume`` wants to know beside the run itself."""
    from dpfastmh.checkpoint import Checkpoint

    if arguments.checkpoint is None:
        return None
    notes = {"schema": str(arguments.schema.absolute()), "output": str(arguments.output.absolute())}
    return Checkpoint(arguments.checkpoint, arguments.every, notes)


def table_of(arguments: argparse.Namespace, schema: Schema, unit: str | None) -> Any:
    """The table, opened; columns that nobody asked for are named."""
    from dpfastmh.data.tables import open_table

    table = open_table(arguments.data)
    needed = [*(column.name for column in schema.features), schema.target, *([] if unit is None else [unit])]
    table.check(needed)
    if not arguments.quiet:
        tell_ignored([name for name in dict.fromkeys(table.names) if name not in needed])
    return table


def tell_ignored(names: list[str], most: int = 8) -> None:
    """Columns that the schema does not name are no mistake, but a misspelt one should be seen."""
    if names:
        more = f" and {len(names) - most} more" if len(names) > most else ""
        shown = ", ".join(map(repr, names[:most]))
        print(f"dpfastmh fit: columns that the schema does not name are ignored: {shown}{more}", file=sys.stderr)


@contextmanager
def warnings_in_one_line(command: str) -> Iterator[None]:
    """Warnings as a user reads them: without the place in our source."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"dpfastmh {command}: {' '.join(str(message).split())}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def on_cluster(stack: ExitStack, arguments: argparse.Namespace, model: Any, columns: dict[str, Any]) -> Any:
    """The rows on a cluster, until the stack is left."""
    from dpfastmh.data.cluster import DaskRows, connect

    silence_cluster()
    client = stack.enter_context(closing(connect(arguments.dask)))
    return DaskRows(client, arguments.data, model, **columns)


def silence_cluster() -> None:
    """A lost connection is one line of ours."""
    import logging

    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def unit_of(arguments: argparse.Namespace, schema: Schema) -> tuple[str | None, int]:
    unit = arguments.unit or schema.unit
    if unit is None and arguments.max_rows_per_unit is not None:
        raise ValueError("--max-rows-per-unit needs --unit or a unit in the schema: whose rows are they?")
    return unit, arguments.max_rows_per_unit or schema.max_rows_per_unit


def written(posterior: Posterior, folder: Path) -> Path:
    """Write the results; where that fails now that the budget is spent, into a new folder for temporary files."""
    from dpfastmh.outputs import OutputError
    from dpfastmh.report import write_outputs

    try:
        return write_outputs(posterior, folder)
    except OutputError as error:
        rescue = Path(tempfile.mkdtemp(prefix="dpfastmh-")) / folder.name
        try:
            write_outputs(posterior, rescue)
        except OutputError:
            print(posterior.summary())  # all that can be saved of what was paid for
            spent = posterior.privacy.epsilon_spent
            raise OutputError(
                f"{error}. Draws and report are lost, epsilon = {spent:.3g} was spent: keep the summary above"
            ) from None
        print(f"dpfastmh fit: {error}. The results are in {rescue}", file=sys.stderr)
        return rescue


def show(posterior: Posterior, where: Path, *, as_json: bool) -> None:
    """The summary on standard output, where the report is on standard error."""
    if as_json:
        print(json.dumps(as_record(posterior, where), allow_nan=False))
        return
    print(posterior.summary())
    print(f"\nreport: {where / 'report.html'}", file=sys.stderr)


def as_record(posterior: Posterior, where: Path) -> dict[str, Any]:
    from dpfastmh.netcdf import privacy_record

    def number(value: float) -> float | None:
        return value if value == value and abs(value) != float("inf") else None

    rows = [
        {key: value if isinstance(value, str) else number(float(value)) for key, value in row._asdict().items()}
        for row in posterior.summary()
    ]
    findings = [str(finding) for finding in posterior.findings()]
    return {"output": str(where), "privacy": privacy_record(posterior), "summary": rows, "warnings": findings}
