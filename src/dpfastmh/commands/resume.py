"""Go on with a fit that was stopped or that crashed, from its checkpoint, at no further cost.

It is the same run: the same draws at the same total cost as if it had never stopped. DATA and the schema are read from
where they were; another table, schema or version of dpfastmh is refused. Results go where the fit would have put them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpfastmh.commands.fit import (
    add_display,
    add_every,
    add_ledger,
    after,
    ledger_of,
    show,
    silence_cluster,
    warnings_in_one_line,
    written,
)

if TYPE_CHECKING:
    from dpfastmh.checkpoint import Contents
    from dpfastmh.models import GLM

EXAMPLES = """examples:
  dpfastmh resume big.checkpoint
  dpfastmh resume big.checkpoint --data /mnt/elsewhere/big.parquet -o out2

A run's settings cannot be changed: its draws come from random streams that the checkpoint holds, and the same streams
used for another run would give more away than was paid for. Resuming a finished run writes its results again.
Exit codes: 0 done, 1 refused or failed with one line, 2 wrong usage.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="FILE", type=Path, help="the checkpoint of the run")
    parser.add_argument("--data", metavar="DATA", help="the private table, where it is somewhere else now")
    parser.add_argument("--dask", metavar="ADDRESS", help="another Dask scheduler, for a run on a cluster")
    parser.add_argument("--schema", metavar="FILE", type=Path, help="its schema, where it is somewhere else now")
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, help="another new folder for the results")
    add_ledger(parser)
    add_every(parser, default=None)
    parser.add_argument("--threads", type=int, metavar="N", help="threads for sums over the table (default: all)")
    add_display(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked for free, go on sampling, write, print."""
    from dpfastmh.checkpoint import CheckpointError, read
    from dpfastmh.display import Display
    from dpfastmh.outputs import check_new_folder
    from dpfastmh.resuming import resume
    from dpfastmh.signals import uninterrupted

    contents = read(arguments.checkpoint)
    notes = contents.head.get("notes", {})
    output = arguments.output or (Path(notes["output"]) if "output" in notes else None)
    if output is None:
        raise CheckpointError(f"{arguments.checkpoint} does not say where results go: give a folder with -o")
    check_new_folder(output)
    ledger = ledger_of(arguments)
    silence_cluster()
    model = model_of(arguments.schema, contents, str(arguments.checkpoint))
    with Display(quiet=arguments.quiet or arguments.json) as display, warnings_in_one_line("resume"):
        posterior = resume(
            arguments.checkpoint,
            arguments.data,
            engine=arguments.dask,
            model=model,
            ledger=ledger,
            every=arguments.every,
            threads=arguments.threads,
            progress=display.update,
        )
    posterior = replace(posterior, missing=dict(contents.head["table"]["missing"]))
    with uninterrupted():
        where = written(posterior, output)
    show(posterior, where, as_json=arguments.json)
    if ledger is not None:
        print(f"ledger: {after(ledger, posterior)}", file=sys.stderr)
    return 0


def model_of(given: Path | None, contents: Contents, what: str) -> GLM | None:
    """The model of the schema, given or still where it was, after a look at what else the schema says of the table."""
    from dpfastmh.checkpoint import CheckpointError, damage_is_one_line
    from dpfastmh.schema import Schema

    with damage_is_one_line(what):
        table, temperature = contents.head["table"], contents.head["model"]["described"]["temperature"]
        held, noted = (table["target"], dict(table["missing"])), contents.head["notes"].get("schema")
    if given is None and (noted is None or not Path(noted).exists()):
        return None  # the checkpoint knows the model as well
    path = given or Path(noted)
    schema = Schema.load(path)
    if (schema.target, dict(schema.missing)) != held:
        raise CheckpointError(f"{what} is the run of another schema than {path}: give the one that it began with")
    return schema.build(temperature)
