"""A run as a checkpoint holds it: when it is written down, what is written, and standing there again.

``dpfastmh.checkpoint`` knows files and what may be in them, ``dpfastmh.sampling`` knows how a run goes; this file knows
which parts of a run decide all the rest of it. Private parts pass through here sealed.

A chain is written down as it stood between two of its chunks. It says where that is itself (a ``Mark``), when it next
comes by; the main thread writes once every chain has: nothing waits for anything.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpfastmh.checkpoint import (
    BEGUN,
    FINISHED,
    MAIN,
    Arrays,
    Charges,
    CheckpointWarning,
    Contents,
    Keeper,
    charges_in,
    charges_out,
    from_plain,
    model_mark,
    plain,
    secret_in,
    secret_out,
)
from dpfastmh.description import describe
from dpfastmh.methods import Coordinates, Directions, ProposalLike, RandomWalk
from dpfastmh.models import GLM
from dpfastmh.outputs import OutputError
from dpfastmh.planning import Moves
from dpfastmh.privacy.boundary import Released, Secret

if TYPE_CHECKING:
    from dpfastmh.sampling import Run

__all__ = ["Mark", "Recorder", "restore"]

PROPOSALS: dict[str, Callable[..., ProposalLike]] = {
    kind.__name__: kind for kind in (RandomWalk, Coordinates, Directions)
}
PACKED = ("draws", "steps", "spent", "tried", "accepted")  # of what a chain has released


class Mark(NamedTuple):
    """Where a chain stood between two chunks, and what had been paid and released by then."""

    secret: Secret
    charges: Charges
    parts: int


class Recorder:
    """Writes a run down in its checkpoint while it goes on; does nothing for a run that has none."""

    def __init__(self, run: Run, keeper: Keeper | None) -> None:
        self.run, self.keeper = run, keeper
        self.identity: Secret | None = None  # of the table
        self.marks: list[Mark] = []
        self._wanted = [False] * run.chains  # marks, of the chains that have not noticed yet
        self._asked = False  # for marks that are not written yet
        self._ended = [False] * run.chains
        self._saved = time.monotonic()

    # -- what chains say ---------------------------------------------------------------------------------------------
    def mark_all(self) -> None:
        """All chains stand still: note where."""
        self.marks = [self._mark(k) for k in range(self.run.chains)]

    def mark_if_wanted(self, number: int) -> None:
        """A chain comes by between two chunks."""
        if self._wanted[number]:
            self.marks[number], self._wanted[number] = self._mark(number), False

    def mark_end(self, number: int) -> None:
        """A chain has come to its end."""
        self.marks[number], self._ended[number] = self._mark(number), True

    def _mark(self, number: int) -> Mark:
        run = self.run
        secret = run.running[number].snapshot() if self.keeper else Secret({})
        return Mark(secret, run.shares[number].state(), len(run.parts[number]))

    # -- writing -----------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Before anything is spent: is there a place for it? An OutputError says that there is none."""
        if self.keeper is not None and self.keeper.phase == BEGUN and self.run.records is not None:
            self.identity = self.run.records.snapshot()
            self.keeper.save(BEGUN, *self._picture(BEGUN))

    def save_in_time(self) -> None:
        """Ask the chains for marks when it is time, and write them once all are there."""
        if self.keeper is None:
            return
        if self._asked:
            if not any(wanted and not ended for wanted, ended in zip(self._wanted, self._ended, strict=True)):
                self._wanted, self._asked = [False] * self.run.chains, False
                self.save(MAIN)
        elif time.monotonic() - self._saved >= self.keeper.checkpoint.every:
            self._wanted, self._asked = [True] * self.run.chains, True

    def save(self, phase: str) -> None:
        """Write the checkpoint. Where that fails the run goes on, with a warning: the file is what it was."""
        if self.keeper is None:
            return
        troubled = bool(self.keeper.trouble)
        try:
            self.keeper.save(phase, *self._picture(phase))
        except OutputError as error:
            if not troubled:
                warnings.warn(f"checkpoint: {error}. The run goes on", CheckpointWarning, stacklevel=2)
        self._saved = time.monotonic()

    def _picture(self, phase: str) -> tuple[dict[str, Any], Arrays]:
        """The run as a checkpoint holds it; a finished one holds released numbers only."""
        run = self.run
        head: dict[str, Any] = {
            "request": _request(run),
            "table": run.table if phase != FINISHED else run.table | {"engine": None},  # its size may have decided that
            "model": {
                "described": describe(run.model) if isinstance(run.model, GLM) else None,
                "mark": model_mark(run.model),
            },
            "dataset": run.dataset,
            "filter": {"alpha": run.account.alpha, "charges": charges_out(run.account.state())},
            "chains": [],
        }
        arrays: Arrays = {}
        if phase != BEGUN:
            head["course"] = _course(run)
            for k, mark in enumerate(self.marks):
                parts = run.parts[k][: mark.parts]
                closed = bool(parts and parts[-1].closed)
                charges = [] if phase == FINISHED else charges_out(mark.charges)
                head["chains"].append({"charges": charges, "closed": closed})
                arrays |= {f"chain {k} {name}": value for name, value in _packed(run, parts).items()}
                if phase != FINISHED:
                    arrays |= secret_out(mark.secret, f"chain {k} secret")
        if phase != FINISHED and self.identity is not None:
            arrays |= secret_out(self.identity, "table")
        return head, arrays


# -- public parts ----------------------------------------------------------------------------------------------------
def _request(run: Run) -> dict[str, Any]:
    """What was asked for."""
    return {
        "epsilon": run.budget.epsilon,
        "delta": run.budget.delta,
        "method": run.method.name,
        "chains": run.chains,
        "cap": run.cap,
        "steps_cap": run.account.steps_cap,
        "draws": run.draws,
        "max_time": run.max_time,
        "settings": plain(run.settings),
        "seed": run.seed,
        "unit": run.unit,
        "units": run.units,
        "max_rows_per_unit": run.rows_per_unit,
    }


def _course(run: Run) -> dict[str, Any]:
    """What has been decided, from released numbers."""
    proposal = run.rule.proposal
    return {
        "proposal": {"kind": type(proposal).__name__, "values": plain(proposal)},
        "laziness": run.rule.laziness,
        "reference": None if run.reference is None else run.reference.tolist(),
        "limits": [share.limit for share in run.shares],
        "moves": None if run.moves is None else plain(run.moves),
        "width": None if run.width is None else run.width.tolist(),
        "most": run.most,
        "thin": run.thin,
        "base": run.base,
        "facts": run.facts,
    }


def _packed(run: Run, parts: Sequence[Released]) -> Arrays:
    """What a chain has released, as arrays."""
    draws = np.concatenate([np.empty((0, len(run.model.parameters))), *(part.draws for part in parts)])
    steps = np.array([part.steps for part in parts], np.int64)
    spent = np.array([part.spent for part in parts], np.float64)
    counts = [np.sum([getattr(part, name) for part in parts], axis=0, dtype=np.int64) for name in PACKED[3:]]
    return dict(zip(PACKED, [draws, steps, spent, *(np.atleast_1d(count) for count in counts)], strict=True))


def _unpacked(arrays: Arrays, closed: bool) -> list[Released]:
    """``_packed`` backwards; draws and counts, which are added up anyway, all with the first part."""
    parts = []
    for number, (steps, spent) in enumerate(zip(arrays["steps"].tolist(), arrays["spent"].tolist(), strict=True)):
        first, last = number == 0, number == arrays["steps"].size - 1
        draws = arrays["draws"] if first else arrays["draws"][:0]
        tried, accepted = (arrays[name] if first else np.zeros_like(arrays[name]) for name in PACKED[3:])
        parts.append(Released(draws, arrays["draws"][-1:], steps, tried, accepted, spent, closed and last))
    return parts


# -- standing there again --------------------------------------------------------------------------------------------
def restore(run: Run, contents: Contents) -> None:
    """Let a new ``run`` stand where a checkpoint stands."""
    head, arrays, course = contents.head, contents.arrays, contents.head["course"]
    proposal = from_plain(PROPOSALS[course["proposal"]["kind"]], course["proposal"]["values"])
    run.rule = run.method(proposal, laziness=course["laziness"], **run.method_options())
    run.reference = None if course["reference"] is None else np.array(course["reference"])
    run.moves = None if course["moves"] is None else from_plain(Moves, course["moves"])
    run.width = None if course["width"] is None else np.array(course["width"])
    run.most, run.thin, run.base, run.facts = (course[name] for name in ("most", "thin", "base", "facts"))
    run.units, run.rows_per_unit = head["request"]["units"], head["request"]["max_rows_per_unit"]
    run.parts = [
        _unpacked({name: arrays[f"chain {k} {name}"] for name in PACKED}, chain["closed"])
        for k, chain in enumerate(head["chains"])
    ]
    if len(run.parts) != run.chains:
        raise ValueError("it has another number of chains")
    if run.records is not None:
        run.recorder.identity = secret_in(arrays, "table")
        _reopen_chains(run, head, arrays)


def _reopen_chains(run: Run, head: dict[str, Any], arrays: Arrays) -> None:
    """The chains again, on shares of the same size, each where it was."""
    assert run.records is not None
    run.shares, run.running = [], []
    for k, (limit, chain) in enumerate(zip(head["course"]["limits"], head["chains"], strict=True)):
        secret = secret_in(arrays, f"chain {k} secret")
        share = run.account.reserve(f"chain {k + 1}", limit, run.cap)
        running = run.records.reopen(run.rule, secret, share, reference=run.reference, number=k)
        share.restore(charges_in(chain["charges"]))
        run.shares.append(share)
        run.running.append(running)
    run.recorder.mark_all()
