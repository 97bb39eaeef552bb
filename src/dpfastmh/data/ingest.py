"""PRIVATE. From a table to a folder of rows, once: read, check and project everything, and write it down.

``ingest`` streams, so that a table may be of any length. What is written of a table in files is kept when the work is
interrupted, and taken up where it was: the rows are read again to see whose they are, but not projected and written
again. The folder appears under its name only when it is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfastmh.data.fingerprint import Cells
from dpfastmh.data.mapped import BLOCK, FEATURES, MANIFEST, TARGETS, Manifest, projection_of
from dpfastmh.data.tables import TableError, open_table
from dpfastmh.models import GLM
from dpfastmh.outputs import OutputError, check_new_folder, replace_file, sync_folder

if TYPE_CHECKING:
    from dpfastmh.models import Model
    from dpfastmh.schema import Value

__all__ = ["ingest", "ingest_arrays"]

PROGRESS = "progress.json"

Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]
Watcher = Callable[[int], None]


def ingest(
    model: Model,
    source: Any,
    folder: str | os.PathLike[str],
    *,
    target: str,
    unit: str | None = None,
    max_rows_per_unit: int = 1,
    missing: Mapping[str, Value] | None = None,
    dtype: npt.DTypeLike = np.float32,
    progress: Watcher = lambda rows: None,
) -> Path:
    """A new folder with the projected rows of a table, for ``fit`` and ``sample`` to read.

    The arguments are those of ``sample``; the same ones must be given to it. ``progress`` is called with the number of
    rows written so far, which is for the custodian's eyes.
    """
    from dpfastmh.data.loading import Projection

    if not isinstance(model, GLM):
        raise ValueError(f"{type(model).__name__} has no columns: give its records as arrays, to ingest_arrays")
    reading = Projection(model, target, unit, max_rows_per_unit, missing, dtype)
    projection = projection_of(model, target, unit, max_rows_per_unit, missing)
    table = open_table(source)
    table.check(reading.needed)
    with _Writer(folder, len(model.domain), reading.dtype, projection, _signature(source), progress) as writer:
        people = reading.people(table)
        for scaled, targets in reading.batches(table, people, writer.rows, writer.cells):
            writer.append(scaled, targets)
        units = reading.units(table, people, writer.size)
        return writer.finish(model.domain.features, units, reading.rows_per_unit, unit, target)


def ingest_arrays(
    model: Model,
    parts: Iterable[Any],
    folder: str | os.PathLike[str],
    *,
    progress: Watcher = lambda rows: None,
) -> Path:
    """The same from arrays: ``parts`` are records as ``sample`` takes them, x or pairs (x, y), a stretch at a time."""
    writer: _Writer | None = None
    try:
        for part in parts:
            rows = model.load(*part) if isinstance(part, tuple) else model.load(part)
            if writer is None:
                width = rows.x.shape[1]
                writer = _Writer(folder, width, rows.x.dtype, projection_of(model), None, progress, rows.y.size > 0)
                writer.__enter__()
            if rows.x.shape[1] != writer.width or rows.x.dtype != writer.dtype:
                raise TableError(
                    f"a part has {rows.x.shape[1]} columns of {rows.x.dtype}, the first one {writer.width} of "
                    f"{writer.dtype}: make them alike"
                )
            x, y = part if isinstance(part, tuple) else (part, None)
            writer.cells.add_arrays(x, y, model.columns)
            writer.append(rows.x, rows.y)
        if writer is None:
            raise TableError("no parts: at least two records are needed")
        return writer.finish(tuple(f"x{j}" for j in range(writer.width)), writer.size, 1)
    finally:
        if writer is not None:
            writer.__exit__(*sys.exc_info())


def _signature(source: Any) -> list[Any] | None:
    """Which files these are, so that work is taken up only over the same ones; None for what can be read once."""
    if not isinstance(source, str | os.PathLike) or os.fspath(source) == "-":
        return None
    path = Path(source)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []
    found = [[str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return found or None


class _Writer:
    """Rows on their way into a folder: whole blocks are written, with their checksums, the rest is held."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        width: int,
        dtype: np.dtype[Any],
        projection: str,
        source: list[Any] | None,
        progress: Watcher,
        targets: bool = True,
    ) -> None:
        self.folder = check_new_folder(folder)
        self.building = self.folder.with_name(f".{self.folder.name}.ingest")
        self.width, self.dtype, self.targets = width, np.dtype(dtype), targets
        self._facts = {"projection": projection, "dtype": self.dtype.name, "source": source, "width": width}
        self._projection, self._progress, self._resumable = projection, progress, source is not None
        self.rows, self.cells = 0, Cells()
        self.checksums: list[tuple[int, int]] = []
        self._held: list[Arrays] = []
        self._waiting = 0
        self._finished = False

    def __enter__(self) -> _Writer:
        try:
            self.building.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.building / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise OutputError(f"{self.building} cannot be made: {error.strerror}") from None
        try:
            self._alone()
            if not self._take_up():
                self.rows, self.checksums = 0, []
            self._files = [self._opened(name) for name in (FEATURES, TARGETS)[: 1 + self.targets]]
        except BaseException:
            os.close(self._lock)
            raise
        if self.rows:
            self._progress(self.rows)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for file in getattr(self, "_files", []):
            file.close()
        os.close(self._lock)
        if not self._finished and (not self._resumable or not self.rows or isinstance(error, TableError)):
            shutil.rmtree(self.building, ignore_errors=True)  # nothing that could be taken up

    @property
    def size(self) -> int:
        """Rows so far, written or held."""
        return self.rows + self._waiting

    def append(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        self._held.append((x, y))
        self._waiting += len(x)
        if self._waiting >= BLOCK:
            x, y = self._joined()
            whole = len(x) // BLOCK * BLOCK
            for start in range(0, whole, BLOCK):
                self._write(x[start : start + BLOCK], y[start : start + BLOCK])
            self._held, self._waiting = [(x[whole:], y[whole:])], len(x) - whole

    def finish(
        self,
        features: tuple[str, ...],
        units: int,
        rows_per_unit: int,
        unit: str | None = None,
        outcome: str | None = None,
    ) -> Path:
        """Write what is left and the manifest, and put the folder in place."""
        if self._waiting:
            self._write(*self._joined())
        try:
            for file in self._files:
                file.flush()
                os.fsync(file.fileno())
            times = [os.fstat(file.fileno()).st_mtime_ns for file in self._files]
            manifest = Manifest(
                rows=self.rows,
                features=features,
                dtype=self.dtype.name,
                targets=self.targets,
                units=units,
                rows_per_unit=rows_per_unit,
                projection=self._projection,
                checksums=tuple(self.checksums),
                times=(times[0], times[-1]),
                byteorder=sys.byteorder,
                cells=self.cells.sums,
                unit=unit,
                outcome=outcome,
            )
            replace_file(self.building / MANIFEST, manifest.to_json(), mode=0o600)
            for name in (PROGRESS, "lock"):
                (self.building / name).unlink(missing_ok=True)
            check_new_folder(self.folder)
            os.rename(self.building, self.folder)
            sync_folder(self.folder.absolute().parent)
        except OutputError:
            raise
        except OSError as error:
            raise OutputError(f"{self.folder} cannot be written ({error.strerror})") from None
        self._finished = True
        return self.folder

    # -- blocks ------------------------------------------------------------------------------------------------------
    def _joined(self) -> Arrays:
        xs, ys = zip(*self._held, strict=True)
        return np.ascontiguousarray(np.concatenate(xs)), np.ascontiguousarray(np.concatenate(ys))

    def _write(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        parts = (x, y)[: 1 + self.targets]
        try:
            for file, part in zip(self._files, parts, strict=True):
                file.write(part.data.cast("B"))
                file.flush()
        except OSError as error:
            raise OutputError(f"{self.building} cannot be written ({error.strerror}): make room") from None
        sums = [zlib.crc32(part.data) for part in parts]
        self.checksums.append((sums[0], sums[-1]))
        self.rows += len(x)
        if self._resumable and len(x) == BLOCK:
            record = self._facts | {"checksums": self.checksums}
            replace_file(self.building / PROGRESS, json.dumps(record).encode(), mode=0o600)
        self._progress(self.rows)

    # -- taking up ---------------------------------------------------------------------------------------------------
    def _alone(self) -> None:
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass
        except OSError:
            raise OutputError(f"{self.folder}: another process is ingesting into it") from None

    def _take_up(self) -> bool:
        """Whether whole blocks of the same table are there, as they were written."""
        try:
            found = json.loads((self.building / PROGRESS).read_bytes())
            self.checksums = [(int(one), int(other)) for one, other in found.pop("checksums")]
        except (OSError, ValueError, TypeError, KeyError):
            return False
        self.rows = len(self.checksums) * BLOCK
        if found != json.loads(json.dumps(self._facts)) or not self._resumable:
            return False
        widths = (self.width * self.dtype.itemsize, self.dtype.itemsize)
        for place, (name, width) in enumerate(zip((FEATURES, TARGETS), widths, strict=True)):
            try:
                with open(self.building / name, "rb") as file:
                    for pair in self.checksums:
                        part = file.read(BLOCK * width)
                        if len(part) != BLOCK * width or zlib.crc32(part) != pair[place]:
                            return False
            except OSError:
                return False
        return True

    def _opened(self, name: str) -> Any:
        width = (self.width if name == FEATURES else 1) * self.dtype.itemsize
        number = os.open(self.building / name, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(number, self.rows * width)
        os.lseek(number, 0, os.SEEK_END)
        return os.fdopen(number, "wb")
