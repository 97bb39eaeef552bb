"""PRIVATE. Rows in files: projected once by ``dpfastmh ingest``, then read a stretch or a handful at a time.

A folder holds ``x.bin`` (the scaled features, row after row), ``y.bin`` (the targets) and ``manifest.json``. All three
are for the data's custodian alone: the rows are the records themselves, and where a unit holds several rows their
number is private too. The folder is made with mode 0700 and its files with 0600.

The files are read, not mapped into memory: a file that is cut short under a mapping kills the process, a short read is
an error like any other, and what the process holds stays small.

**Changed data.** The manifest has a checksum of every ``BLOCK`` rows and the files' sizes and times. When the rows are
opened the sizes must agree; if the times do too, ``SAMPLED`` blocks, chosen at random, are compared with their
checksums, otherwise all of them (``verify=True`` compares all of them anyway). A change that keeps size and time and
misses the sampled blocks is found only so.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfastmh.data import memory
from dpfastmh.data.engine import Integers, RowEngine, RowsLost
from dpfastmh.data.tables import TableError

if TYPE_CHECKING:
    from dpfastmh.data.fingerprint import Fingerprint, Sums
    from dpfastmh.models import Model
    from dpfastmh.schema import Value
    from dpfastmh.steps.likelihood import Rows

__all__ = ["Manifest", "MappedRows", "is_row_folder", "load_rows", "projection_of"]

FORMAT = "dpfastmh rows"
VERSION = 2
BLOCK = 1 << 18  # rows with one checksum
STRETCH = 1 << 14  # rows summed at a time,
PIECE = 1 << 18  # and bytes, in the compiled loop: they fit into a processor's own cache
AHEAD = 8 << 20  # bytes that a thread asks the disk for at a time
SAMPLED = 16  # blocks compared with their checksums when nothing speaks for a change
READERS = 8  # threads that read random rows: a disk answers several questions at once
FEATURES, TARGETS, MANIFEST = "x.bin", "y.bin", "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """PRIVATE. What a folder of rows holds."""

    rows: int
    features: tuple[str, ...]
    dtype: str
    targets: bool
    units: int
    rows_per_unit: int
    projection: str  # see ``projection_of``
    checksums: tuple[tuple[int, int], ...]  # of each block of features and targets
    times: tuple[int, int]  # of last change, in nanoseconds
    byteorder: str
    cells: dict[str, tuple[int, int, int]]  # sums of the table's, for ledgers: see ``dpfastmh.data.fingerprint``
    unit: str | None = None  # the column that says whose rows they are
    outcome: str | None = None  # the target's column
    block: int = BLOCK
    version: int = VERSION
    format: str = FORMAT
    notice: str = "private: for the data's custodian only"

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        where = folder / MANIFEST
        try:
            found = json.loads(where.read_bytes())
            if found["format"] != FORMAT:
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise TableError(f"{where}: damaged, or not a manifest of rows: ingest the table again") from None
        except OSError as error:
            raise OSError(f"{where}: cannot be read: {error.strerror}") from None
        if found.get("version") != VERSION:
            raise TableError(f"{where}: of version {found.get('version')!r}, not {VERSION}: ingest the table again")
        try:
            fields: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in found.items()
            }
            made = cls(**fields)
            made._check()
        except (TypeError, ValueError, AttributeError):
            raise TableError(f"{where}: damaged: ingest the table again") from None
        return made

    def _check(self) -> None:
        counts = (self.rows, self.units, self.rows_per_unit, self.block)
        if not all(isinstance(count, int) and count >= 1 for count in counts) or self.rows < 2:
            raise ValueError
        if self.dtype not in ("float32", "float64") or len(self.checksums) != -(-self.rows // self.block):
            raise ValueError
        if len(self.times) != 2 or not all(len(pair) == 2 for pair in self.checksums):
            raise ValueError
        if not all(isinstance(name, str | None) for name in (self.unit, self.outcome)):
            raise ValueError
        for sums in self.cells.values():
            if len(sums) != 3 or not all(isinstance(one, int) and 0 <= one < 2**64 for one in sums):
                raise ValueError

    @property
    def bytes(self) -> int:
        return self.rows * (len(self.features) + self.targets) * np.dtype(self.dtype).itemsize


def is_row_folder(source: object) -> bool:
    """Whether a path is a folder made by ``dpfastmh ingest``."""
    try:
        return isinstance(source, str | os.PathLike) and (Path(source) / MANIFEST).is_file()
    except (OSError, ValueError):
        return False


def projection_of(
    model: Model,
    target: str | None = None,
    unit: str | None = None,
    max_rows_per_unit: int = 1,
    missing: Mapping[str, Value] | None = None,
) -> str:
    """A hash of everything that decides which rows are kept and how they are projected; priors have no part in it."""
    declared = [model.projection, target, unit, max_rows_per_unit if unit else 1, sorted((missing or {}).items())]
    return hashlib.sha256(json.dumps(declared, default=str, sort_keys=True).encode()).hexdigest()


def load_rows(
    folder: str | os.PathLike[str],
    model: Model,
    projection: str,
    *,
    engine: str = "auto",
    fingerprint: Fingerprint | None = None,
) -> tuple[Rows | MappedRows, int, int]:
    """The rows of a folder, units and most rows of a unit. "auto": in memory where they take up less than half of what
    is free, a question about their size alone. A ledger's ``fingerprint`` is shown the sums of the table's cells."""
    mapped = MappedRows(folder, model, projection)
    if fingerprint is not None:
        fingerprint.merge(mapped.cells(model))
    held: Rows | MappedRows = mapped
    if engine == "memory" or (engine == "auto" and 2 * mapped.manifest.bytes < available_memory()):
        held = mapped.in_memory()
        model.check(held)
    return held, mapped.units, mapped.rows_per_unit


def available_memory() -> float:
    """Bytes that can be had without swapping, as far as the system says."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return 1024.0 * int(line.split()[1])
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return 4e9


class MappedRows(RowEngine):
    """The rows of a folder made by ``dpfastmh ingest``, for the model that they were projected for."""

    name = "mapped"

    def __init__(self, folder: str | os.PathLike[str], model: Model, projection: str, *, verify: bool = False) -> None:
        self.folder = Path(folder)
        self.manifest = found = Manifest.load(self.folder)
        if found.projection != projection:
            raise TableError(
                f"{self.folder}: the rows were ingested with another schema, target, unit or missing values: "
                "give the same ones, or ingest the table again"
            )
        if found.byteorder != _byteorder():
            raise TableError(f"{self.folder}: the rows were ingested on another kind of processor: ingest them here")
        self.count, self.features, self.targets = found.rows, len(found.features), found.targets
        self.units, self.rows_per_unit = found.units, found.rows_per_unit
        self.unit, self.outcome = found.unit, found.outcome
        self.dtype = np.dtype(found.dtype)
        self._classes = model.target_classes
        self._files = [_File(self.folder / FEATURES, self.features * self.dtype.itemsize, self.count)]
        if self.targets:
            self._files.append(_File(self.folder / TARGETS, self.dtype.itemsize, self.count))
        self._pool: ThreadPoolExecutor | None = None
        self.check(model)
        self._verify(every=verify)

    def __repr__(self) -> str:
        return f"<MappedRows: {self.folder}>"

    def __reduce__(self) -> Any:
        raise TypeError("rows in files cannot be pickled or copied: open their folder again")

    def whereabouts(self) -> dict[str, Any]:
        return {"name": self.name, "source": str(self.folder.absolute()), "projection": self.manifest.projection}

    def cells(self, model: Model) -> Sums:
        return self.manifest.cells

    def identity(self, key: bytes) -> bytes:
        """Of the manifest, which has a checksum of every block: the files are compared with it when they are opened."""
        facts = {name: value for name, value in asdict(self.manifest).items() if name != "times"}
        return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), key=key, digest_size=32).digest()

    # -- the two verbs -----------------------------------------------------------------------------------------------
    def total(self, part: Callable[[Rows], Integers], threads: int | None = None) -> Integers:
        found: list[Integers] = []
        for one in self._in_threads(part, threads):
            found = [one if not found else found[0] + one]
        return found[0]

    def read(self, index: Integers, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """In the order of the file, several threads at once."""
        from dpfastmh.steps.compiled import SHIPPED

        order = np.argsort(index)
        self._pool = self._pool or ThreadPoolExecutor(READERS, thread_name_prefix="rows")
        edges = [len(index) * k // READERS for k in range(READERS + 1)]

        def piece(first: int, last: int) -> bool:
            return all(
                SHIPPED.read(file.number, file.width, order, index, first, last, out.ctypes.data)
                for file, out in zip(self._files, (x, y), strict=False)
            )

        if not all(list(self._pool.map(piece, edges[:-1], edges[1:]))):
            raise self._cut_short()
        self._check_targets(y)

    # -- all rows ----------------------------------------------------------------------------------------------------
    def in_memory(self) -> Rows:
        """All rows in this process's memory."""
        try:
            x = np.empty((self.count, self.features), self.dtype)
            y = np.empty(self.count if self.targets else 0, self.dtype)
        except MemoryError:
            raise TableError(f'{self.folder}: the rows do not fit into memory: use the engine "mapped"') from None
        for first in range(0, self.count, BLOCK):
            self._stretch(first, min(self.count, first + BLOCK), x[first : first + BLOCK], y[first : first + BLOCK])
        return memory.rows(x, y if self.targets else None)

    def _in_threads(self, part: Callable[[Rows], Integers], threads: int | None) -> Iterator[Integers]:
        """``part`` of every stretch: while one thread waits for the disk another adds up."""
        ahead = max(STRETCH, AHEAD // (self.features * self.dtype.itemsize) // STRETCH * STRETCH)
        firsts = iter(range(0, self.count, ahead))
        lock = threading.Lock()
        workers = 2 * (threads or os.cpu_count() or 1)

        def work(_: int) -> Integers | None:
            sums = self._sums_of(part)
            total: Integers | None = None
            while True:
                with lock:
                    start = next(firsts, None)
                if start is None:
                    return total
                for file in self._files:
                    file.will_need(start + workers * ahead, ahead)
                for found in sums(start, min(self.count, start + ahead)):
                    total = found if total is None else total + found

        with ThreadPoolExecutor(workers) as pool:
            yield from (one for one in pool.map(work, range(workers)) if one is not None)

    def _sums_of(self, part: Callable[[Rows], Integers]) -> Callable[[int, int], Iterator[Integers]]:
        """A function of a stretch, with buffers of its own. G and H are read and summed in one compiled loop, which
        needs nothing of Python between two pieces."""
        from dpfastmh.steps.reference import CUT_SHORT, NO_CLASS, DerivativeSums

        compiled = isinstance(part, DerivativeSums)
        count = max(1, PIECE // (self.features * self.dtype.itemsize)) if compiled else STRETCH
        x = np.empty((count, self.features), self.dtype)
        y = np.empty(count if self.targets else 0, self.dtype)
        buffers = memory.rows(x, y if self.targets else None)
        numbers = np.array([file.number for file in self._files], np.int64)

        def pieces(first: int, last: int) -> Iterator[Integers]:
            for start in range(first, last, count):
                end = min(last, start + count)
                self._stretch(start, end, x, y)
                held = end - start
                yield part(buffers if held == count else memory.rows(x[:held], y[:held] if self.targets else None))

        def whole(first: int, last: int) -> Iterator[Integers]:
            assert isinstance(part, DerivativeSums)
            found, end = part.of_files(numbers, buffers, self._classes, first, last)
            if end == CUT_SHORT:
                raise self._cut_short()
            if end == NO_CLASS:
                raise self._not_a_class()
            yield found

        return whole if compiled else pieces

    def _stretch(self, first: int, last: int, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        for file, out in zip(self._files, (x, y), strict=False):
            if not file.read(first, out[: last - first]):
                raise self._cut_short()
        self._check_targets(y[: last - first])

    def _check_targets(self, y: npt.NDArray[Any]) -> None:
        """Class numbers index arrays in compiled code: they are never taken on trust."""
        if self._classes and y.size and not (y.min() >= 0 and y.max() < self._classes):
            raise self._not_a_class()

    def _not_a_class(self) -> RowsLost:
        return RowsLost(f"{self.folder}: {TARGETS} holds what is no class: it has changed; ingest the table again")

    def _cut_short(self) -> RowsLost:
        return RowsLost(f"{self.folder}: a file of rows is shorter than its manifest says: ingest the table again")

    # -- changed data ------------------------------------------------------------------------------------------------
    def _verify(self, *, every: bool) -> None:
        blocks = range(len(self.manifest.checksums))
        unchanged = all(file.time == time for file, time in zip(self._files, self.manifest.times, strict=False))
        if not every and unchanged and len(blocks) > SAMPLED:
            blocks = random.SystemRandom().sample(blocks, SAMPLED)  # type: ignore[assignment]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            if not all(pool.map(self._block_as_written, blocks)):
                raise TableError(
                    f"{self.folder}: the rows are not those that were ingested, their checksums differ: "
                    "ingest the table again"
                )

    def _block_as_written(self, block: int) -> bool:
        first, last = block * self.manifest.block, min(self.count, (block + 1) * self.manifest.block)
        for file, wanted in zip(self._files, self.manifest.checksums[block], strict=False):
            found = 0
            for start in range(first, last, STRETCH):
                held = np.empty((min(last, start + STRETCH) - start) * file.width, np.uint8)
                if not file.read(start, held):
                    raise self._cut_short()
                found = zlib.crc32(held.data, found)
            if found != wanted:
                return False
        return True


class _File:
    """A file of rows of one width, open for reading."""

    def __init__(self, path: Path, width: int, rows: int) -> None:
        self.width, self.number = width, -1
        try:
            self.number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise OSError(f"{path}: cannot be read: {error.strerror}") from None
        status = os.fstat(self.number)
        self.time = status.st_mtime_ns
        if status.st_size != width * rows:
            what = "shorter" if status.st_size < width * rows else "longer"
            raise TableError(f"{path}: the file is {what} than its manifest says: ingest the table again")

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)

    def read(self, first: int, out: npt.NDArray[Any]) -> bool:
        """Rows from ``first`` on into ``out``; False where the file ends before it is full."""
        view, at = out.data.cast("B"), first * self.width
        while len(view):
            got = os.preadv(self.number, [view], at)
            if got <= 0:
                return False
            view, at = view[got:], at + got
        return True

    def will_need(self, first: int, rows: int) -> None:
        """Ask the disk for rows that will be read soon, unless the system seems to have them in memory: asked for what
        it has, it takes a seventh of the time of a pass."""
        begin, size = first * self.width, rows * self.width
        if hasattr(os, "posix_fadvise") and not (self._at_hand(begin) and self._at_hand(begin + size - 1)):
            os.posix_fadvise(self.number, begin, size, os.POSIX_FADV_WILLNEED)

    def _at_hand(self, place: int) -> bool:
        """Can this byte be read without waiting for a disk? At the end of the file there is nothing to wait for."""
        try:
            return os.preadv(self.number, [bytearray(1)], place, os.RWF_NOWAIT) >= 0
        except (OSError, AttributeError):  # it would have to wait, or this system cannot tell
            return False


def _byteorder() -> str:
    import sys

    return sys.byteorder
