"""Going on with a run from its checkpoint: the same run, at no further cost.

What a checkpoint needs from outside (the table, a model of one's own, a ledger) is asked for and compared with what it
says; then the run stands where it stood (``dpfastmh.run_state``) and goes on as any other (``dpfastmh.sampling``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfastmh.budget import Budget
from dpfastmh.checkpoint import (
    BEGUN,
    FINISHED,
    CheckpointError,
    Contents,
    Keeper,
    charges_in,
    check_built,
    damage_is_one_line,
    from_plain,
    model_mark,
    secret_in,
)
from dpfastmh.data.cluster import DaskRows, connect
from dpfastmh.data.engine import RowEngine
from dpfastmh.data.mapped import MappedRows
from dpfastmh.description import model_from
from dpfastmh.planning import Settings
from dpfastmh.privacy.filter import RenyiFilter
from dpfastmh.run_state import restore
from dpfastmh.sampling import METHODS, Run, Watcher, records_of

if TYPE_CHECKING:
    from dpfastmh.ledger import Ledger, Reservation
    from dpfastmh.models import Model
    from dpfastmh.posterior import Posterior
    from dpfastmh.privacy.boundary import PrivateRecords

__all__ = ["resume"]


def resume(
    path: str | os.PathLike[str],
    x: Any = None,
    y: Any = None,
    *,
    engine: RowEngine | str | None = None,
    model: Model | None = None,
    ledger: Ledger | None = None,
    every: float | None = None,
    threads: int | None = None,
    progress: Watcher | None = None,
) -> Posterior:
    """Go on with the run of a checkpoint. It is the same run: same draws, same cost, whenever and how often it stopped.

    Parameters
    ----------
    path
        The checkpoint, which is kept up to date. Two programs cannot go on with one at the same time.
    x, y
        The run's table, as it was given to ``sample``; nothing where that was a file that is still there. Another
        table is refused. The checkpoint of a finished run needs none.
    engine
        Rows that live elsewhere, as they were given to ``sample``; nothing where they are in a folder made by
        ``dpfastmh ingest``, or in files that a Dask scheduler at the same address has read. The address of another
        scheduler is an engine, too.
    model
        The run's model, where it is not one of the library's regressions.
    ledger
        The ledger that the run's budget was set aside in, where it was: the run ends there, too.
    every
        Other seconds between checkpoints than before.
    threads, progress
        As for ``sample``.
    """
    keeper, contents = Keeper.reopen(path, every)
    with ExitStack() as stack:
        stack.callback(keeper.close)
        run = _reopened(stack, keeper, contents, (x, y, engine), model, ledger, threads, progress)
        return run.through(lambda: None)


def _reopened(
    stack: ExitStack,
    keeper: Keeper,
    contents: Contents,
    given: tuple[Any, Any, RowEngine | str | None],
    model: Model | None,
    ledger: Ledger | None,
    threads: Any,
    progress: Watcher | None,
) -> Run:
    """The run of a checkpoint, as it was when the checkpoint was written."""
    head, arrays, what = contents.head, contents.arrays, str(keeper.path)
    if keeper.phase == BEGUN:
        raise CheckpointError(
            f"{what} has nothing to go on from: the run ended before its start was found, and released nothing. "
            "Remove the file and begin a new run"
        )
    with damage_is_one_line(what):
        check_built(head["built"], what)
        request, table = head["request"], head["table"]
        if model is None and head["model"]["described"] is None:
            raise CheckpointError(f"{what} is of a model of your own: give it as model")
        found = model_from(head["model"]["described"]) if model is None else model
        if model_mark(found) != head["model"]["mark"]:
            raise CheckpointError(f"{what} is the run of another model: give the model, or schema, that it began with")
        budget = Budget(request["epsilon"], request["delta"])
        alpha, paid = float(head["filter"]["alpha"]), charges_in(head["filter"]["charges"])
        dataset = head["dataset"]
    hold = _held_again(keeper, dataset, sum((cost for _, cost, _ in paid), Fraction(0)), ledger, what)
    with damage_is_one_line(what):
        account = RenyiFilter(budget, steps_cap=request["steps_cap"], alpha=alpha) if hold is None else hold.account
        account.restore(paid)
        identity = secret_in(arrays, "table")
    records = None
    if keeper.phase != FINISHED:
        records = _records_again(stack, found, given, head, threads, what)
        records.check(identity)
    with damage_is_one_line(what):
        run = Run(
            model=found,
            records=records,
            account=account,
            budget=budget,
            method=METHODS[request["method"]],
            chains=request["chains"],
            cap=request["cap"],
            draws=request["draws"],
            max_time=request["max_time"],
            settings=from_plain(Settings, request["settings"], tuple),
            seed=request["seed"],
            progress=progress,
            unit=request["unit"],
            outcome=table["target"],
            table=table,
            keeper=keeper,
            hold=hold,
            dataset=dataset,
        )
        restore(run, contents)
    return run


def _records_again(
    stack: ExitStack,
    model: Model,
    given: tuple[Any, Any, RowEngine | str | None],
    head: Mapping[str, Any],
    threads: Any,
    what: str,
) -> PrivateRecords:
    """The run's rows, given or where they were; those of a cluster until the stack is left."""
    x, y, engine = given
    with damage_is_one_line(what):
        table, request = head["table"], head["request"]
        where = dict(table["engine"])
        declared = (table["target"], table["unit"], request["max_rows_per_unit"], table["missing"])
        rest = (request["seed"], threads, None)
        source = where.get("source", table["data"]) if x is None else x
        in_memory = where["name"] == "memory"
    if not in_memory:
        if not isinstance(engine, RowEngine):
            x, engine = None, _engine_again(stack, model, source, engine, where, declared, what)
        return records_of(model, x, y, engine, None, None, 1, None, *rest)
    if engine is not None:
        raise CheckpointError(f"the run of {what} had its rows in memory: give the table, and no engine")
    if source is None:
        raise CheckpointError(f"{what} does not say where the table is: give it")
    return records_of(model, source, y, "memory", *declared, *rest)


def _engine_again(
    stack: ExitStack, model: Model, source: Any, address: str | None, where: dict[str, Any], declared: Any, what: str
) -> RowEngine:
    """Rows that live elsewhere, by what their engine has said of itself (``RowEngine.whereabouts``)."""
    kind = where["name"]
    if kind == MappedRows.name and isinstance(source, str | os.PathLike) and address is None:
        return MappedRows(source, model, str(where.get("projection")), verify=True)
    if kind == DaskRows.name and isinstance(source, str | os.PathLike | list):
        with damage_is_one_line(what):
            address, dtype = address or str(where["address"]), np.dtype(where["dtype"])
            target, unit, most, missing = declared
        client = stack.enter_context(closing(connect(address)))
        return DaskRows(
            client, source, model, target=target, unit=unit, max_rows_per_unit=most, missing=missing, dtype=dtype
        )
    raise CheckpointError(f"the run of {what} had {kind!r} rows, which are not to be found like that: give the engine")


def _held_again(
    keeper: Keeper, dataset: str | None, paid: Fraction, ledger: Ledger | None, what: str
) -> Reservation | None:
    """What a ledger still holds for the run; None where it never did, or where the run has settled already."""
    if dataset is None and ledger is None:
        return None
    if dataset is None or ledger is None or ledger.dataset != dataset:
        said = "has no ledger" if dataset is None else f"has its budget from the ledger's data set {dataset!r}"
        raise CheckpointError(f"the run of {what} {said}: resume it with the same")
    return ledger.resumed(keeper.run_id, paid if keeper.phase == FINISHED else None)
