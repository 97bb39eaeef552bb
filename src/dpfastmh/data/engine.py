"""PRIVATE. Rows that do not live in this process's memory: two verbs, and a feed that reads ahead for each chain.

An engine sums something over all its rows, and reads rows by their numbers, many at a time. Which rows a chain uses is
decided by its private row stream alone, never by what the chain does; so its ``Feed`` draws their numbers in bulk, in
exactly the order in which the loop draws them over rows in memory, and has them read while the chain uses up what was
read before. The draws are therefore those of the same rows in memory, whatever the engine.

How much is read ahead depends on how many rows the chain has used, which is private, and shows in nothing but timing.
"""

from __future__ import annotations

import ctypes
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dpfastmh.data.fingerprint import Sums
    from dpfastmh.models import Model
    from dpfastmh.steps.chain import Streams
    from dpfastmh.steps.likelihood import Rows

__all__ = ["Feed", "RowEngine", "RowsLost", "raw"]

Integers = npt.NDArray[np.int64]

SEGMENTS = 3  # of the ring: the one in use, the next, and the last one, which the present tile may still look at


class RowsLost(OSError):
    """Rows that could be had when a run began and cannot be had any more. One line: what, where, what to do."""


class RowEngine(ABC):
    """Rows that live elsewhere. ``count`` is private where units hold several rows; ``units`` is public."""

    name: str  # as ``plan`` and ``fit`` call it
    count: int
    features: int
    targets: bool  # whether rows have a target
    dtype: np.dtype[Any]
    units: int
    rows_per_unit: int
    unit: str | None = None  # whose rows they are, where units hold several
    outcome: str | None = None  # what the target is called
    first: int = 1 << 10  # rows of a chain's first bulk,
    most: int = 1 << 14  # which doubles until there are so many

    @abstractmethod
    def total(self, part: Callable[[Rows], Integers], threads: int | None = None) -> Integers:
        """The sum of ``part`` over stretches of all rows, modulo 2⁶⁴."""

    @abstractmethod
    def read(self, index: Integers, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """Rows of these numbers into x and y, in this order."""

    def check(self, model: Model) -> None:
        """Refuse a model that the rows were not projected for."""
        model.check_shape(self.features, self.targets)

    # -- for checkpoints and ledgers ---------------------------------------------------------------------------------
    def whereabouts(self) -> dict[str, Any]:
        """What the rows can be found again by, as JSON takes it: names and places, nothing of the rows themselves. By
        the name alone only whoever made the engine can make it again."""
        return {"name": self.name}

    def identity(self, key: bytes) -> bytes:
        """A keyed hash of all rows in their order: a run goes on over these rows and no others."""
        found = hashlib.blake2b(key=key, digest_size=32)
        for x, y in self.stretches():
            found.update(raw(x))
            found.update(raw(y))
        return found.digest()

    def cells(self, model: Model) -> Sums:
        """What the table's cells add up to, for a ledger (``dpfastmh.data.fingerprint``). An engine that has not seen
        them gives sums of its projected rows, which only rows projected alike are compared with."""
        from dpfastmh.data.fingerprint import Cells
        from dpfastmh.data.mapped import projection_of

        found, of = Cells(), f"of rows projected as {projection_of(model)[:16]}"
        for x, y in self.stretches():
            for j in range(self.features):
                found.add_numbers(f"feature {j + 1} {of}", x[:, j])
            if self.targets:
                found.add_numbers(f"target {of}", y)
        return found.sums

    def stretches(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """All rows in their order, some at a time, by the second verb."""
        for start in range(0, self.count, self.most):
            index = np.arange(start, min(self.count, start + self.most))
            x = np.zeros((index.size, self.features), self.dtype)
            y = np.zeros(index.size if self.targets else 0, self.dtype)
            self.read(index, x, y)
            yield x, y


class Feed:
    """The rows of one chain, read ahead: ``rows`` is what its loop is given."""

    def __init__(self, engine: RowEngine, model: Model, streams: Streams, threads: int | None = None) -> None:
        from dpfastmh.steps.feed import FarRows

        engine.check(model)
        self._engine, self._model, self._stream, self._threads = engine, model, streams.rows, threads
        self.error: BaseException | None = None
        self._segment, self._bulk = -1, engine.first
        self._index = np.zeros((SEGMENTS, engine.most), np.int64)
        self._filled = [0] * SEGMENTS
        self._pending: Future[None] | None = None
        self._waiting: tuple[Integers, npt.NDArray[np.float64]] = (np.zeros(0, np.int64), np.zeros(0))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rows ahead")
        # the loop calls these by address: they must live as long as it does
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64)
        self._calls = kind(self._guarded(self._refill)), kind(self._guarded(self._total))
        places, nothing = SEGMENTS * engine.most, np.zeros(0)
        self.rows = FarRows(
            x=np.zeros((places, engine.features), engine.dtype),
            y=np.zeros(places if engine.targets else 0, engine.dtype),
            share=nothing,
            alias=np.zeros(0, np.int64),
            threshold=nothing,
            weight=float(engine.count),
            keep=np.zeros(places),
            clock=np.zeros(3, np.int64),
            asked=np.zeros(2 * len(model.parameters) + 1),
            answer=np.zeros(2, np.int64),
            refill=_address(self._calls[0]),
            total=_address(self._calls[1]),
        )

    # -- what the loop calls -----------------------------------------------------------------------------------------
    def _guarded(self, work: Callable[[int], None]) -> Callable[[int], None]:
        """No exception can pass through compiled code: it is kept, and the loop told to end before this step."""

        def call(argument: int) -> None:
            from dpfastmh.steps.feed import BROKEN, END, NEXT

            try:
                if self.error is None:
                    work(argument)
            except BaseException as error:
                self.error = error
            if self.error is not None:  # the loop may take what it likes from the ring until it sees this
                clock = self.rows.clock
                clock[NEXT], clock[END], clock[BROKEN] = 0, len(self.rows.keep), 1

        return call

    def _refill(self, _: int) -> None:
        from dpfastmh.steps.feed import END, NEXT

        if self._pending is None:
            self._fill_next()
        assert self._pending is not None
        self._pending.result()
        self._segment = (self._segment + 1) % SEGMENTS
        start = self._segment * self._engine.most
        self.rows.clock[NEXT], self.rows.clock[END] = start, start + self._filled[self._segment]
        self._fill_next()

    def _fill_next(self) -> None:
        segment = (self._segment + 1) % SEGMENTS
        self._pending = self._pool.submit(self._fill, segment, self._bulk)
        self._bulk = min(2 * self._bulk, self._engine.most)

    def _fill(self, segment: int, bulk: int) -> None:
        """Draw the next row numbers and read their rows into a segment of the ring."""
        from dpfastmh.steps.compiled import SHIPPED

        start = segment * self._engine.most
        waiting = min(bulk, self._waiting[0].size)
        index, keep = self._index[segment, :bulk], self.rows.keep[start : start + bulk]
        index[:waiting], keep[:waiting] = self._waiting[0][:waiting], self._waiting[1][:waiting]
        self._waiting = self._waiting[0][waiting:], self._waiting[1][waiting:]
        SHIPPED.draw(self._stream, self._engine.count, index[waiting:], keep[waiting:])
        self._filled[segment] = bulk  # whatever becomes of reading: ``unread`` asks for the numbers
        y = self.rows.y[start : start + bulk] if self._engine.targets else self.rows.y
        self._engine.read(index, self.rows.x[start : start + bulk], y)

    def _total(self, what: int) -> None:
        from dpfastmh.steps.feed import DIFFERENCES
        from dpfastmh.steps.reference import DifferenceSum, EnergySum

        p, asked, model = len(self._model.parameters), self.rows.asked.copy(), self._model
        part: Any = EnergySum(model, asked[:p])
        if what == DIFFERENCES:
            part = DifferenceSum(model, asked[:p], asked[p : 2 * p], float(asked[2 * p]))
        elif not model.has_energies:  # nothing to sum: no need to ask all rows
            self.rows.answer[:] = 0
            return
        found = self._engine.total(part, self._threads)
        self.rows.answer[0], self.rows.answer[1] = found[0], model.has_energies

    # -- what the sampler asks -----------------------------------------------------------------------------------------
    def check(self) -> None:
        """Raise what kept the loop from its rows."""
        if self.error is not None:
            if isinstance(self.error, RowsLost | KeyboardInterrupt):
                raise self.error
            raise RowsLost(f"rows could not be read: {' '.join(str(self.error).split())}") from self.error

    def unread(self) -> tuple[Integers, npt.NDArray[np.float64]]:
        """SECRET. Row numbers and uniforms drawn from the stream and not used yet: with the stream, which stands still
        from here on, all that decides what rows come next. Not while the chain runs."""
        from dpfastmh.steps.feed import END, NEXT

        self.check()
        parts = []
        if self._segment >= 0:
            start = self._segment * self._engine.most
            first, last = (int(self.rows.clock[k]) for k in (NEXT, END))
            parts.append((self._index[self._segment, first - start : last - start], self.rows.keep[first:last]))
        if self._pending is not None:
            wait([self._pending])
            segment = (self._segment + 1) % SEGMENTS
            start, bulk = segment * self._engine.most, self._filled[segment]
            parts.append((self._index[segment, :bulk], self.rows.keep[start : start + bulk]))
        parts.append(self._waiting)
        return np.concatenate([index for index, _ in parts]), np.concatenate([keep for _, keep in parts])

    def resume(self, index: Integers, keep: npt.NDArray[np.float64]) -> None:
        """Use these row numbers before any new ones: what ``unread`` gave. Before the chain runs, or between runs."""
        from dpfastmh.steps.feed import END, NEXT

        good = index.dtype == np.int64 and keep.dtype == np.float64 and index.shape == keep.shape == (index.size,)
        if not (good and np.all((index >= 0) & (index < self._engine.count)) and np.all((keep >= 0) & (keep < 1))):
            raise ValueError("the rows drawn ahead are not rows of this table")
        if self._pending is not None:
            wait([self._pending])
        self._pending, self._segment, self._waiting = None, -1, (index.copy(), keep.copy())
        self.rows.clock[NEXT] = self.rows.clock[END] = 0


def raw(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of an array, of an empty one too."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found
