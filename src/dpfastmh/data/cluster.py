"""PRIVATE. Rows on a Dask cluster: partitioned Parquet, read and projected once by the workers, held in their memory.

``DaskRows(client, "folder or URL", model, target=...)`` takes the place of a table. Sums over all rows are one graph
with a tree of additions, whatever the number of partitions. Random rows are asked for in bulk, ahead of the chain: the
private stream says which, they are grouped by partition (so each partition's number is multinomial and every row
equally likely), and one task for each worker picks them from its partitions. No step sends a message.

A partition is the result of a task that reads its part of a file. Where a worker is lost Dask runs that task again
elsewhere, with the same result; sums are of whole numbers and picks of given rows, so nothing depends on it.

Workers, scheduler and the lines between them are on the private side: they see records, and which rows a chain looks
at. They must belong to the data's custodian; across machines give Dask's own TLS.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh.data import memory
from dpfastmh.data.engine import Integers, RowEngine, RowsLost, raw
from dpfastmh.data.fingerprint import Cells, Sums
from dpfastmh.data.mapped import projection_of
from dpfastmh.data.tables import BATCH, Batch, TableError, readable

if TYPE_CHECKING:
    from dpfastmh.models import Model
    from dpfastmh.schema import Value
    from dpfastmh.steps.likelihood import Rows

__all__ = ["DaskRows", "connect"]

PARTITION = 1 << 20  # rows of a partition, as far as a file's row groups allow it
FAN_IN = 8  # of the tree of additions, and partitions that one task adds up
TOGETHER = 1 << 29  # bytes of rows that one task needs at a time
BULK = 1 << 25  # bytes of the largest bulk of random rows
PLACED = 10.0  # seconds for which it is taken as known which worker holds which partition
DIRECT = 3.0  # seconds for a worker to answer this process
CONNECT = 20.0  # seconds for a scheduler to answer
PATIENCE = 600.0  # seconds for it to answer one question
ATTEMPTS = 3

Block = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def connect(address: str, timeout: float = CONNECT) -> Any:
    """A client of the scheduler at ``address``, or one line."""
    distributed, began = _distributed(), time.monotonic()

    async def identity() -> None:
        """Ask who is there. A client would wait for ever on a line that is open and silent."""
        arguments = distributed.Security().get_connection_args("client")
        async with distributed.rpc(address, connection_args=arguments) as scheduler:
            await asyncio.wait_for(scheduler.identity(), timeout)

    try:
        with ThreadPoolExecutor(1) as apart:  # a notebook has a loop of its own
            apart.submit(asyncio.run, identity()).result()
        client = distributed.Client(address, timeout=timeout)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise RowsLost(
            f"no Dask scheduler answers at {address} within {timeout:g} s ({reason}); nothing was spent"
        ) from None
    try:
        client.wait_for_workers(1, timeout=max(1.0, timeout - (time.monotonic() - began)))
    except TimeoutError:
        client.close()
        raise RowsLost(f"the Dask scheduler at {address} has no workers: start some; nothing was spent") from None
    return client


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise ValueError('rows on a cluster need Dask: install "dpfastmh[dask]"') from None
    return distributed


class Source(NamedTuple):
    """A stretch of row groups of one Parquet file, and which of its rows count (packed bits; None: all)."""

    url: str
    groups: tuple[int, ...]
    rows: int
    kept: bytes | None = None


class DaskRows(RowEngine):
    """The rows of a model on a cluster.

    ``source`` is a Parquet file, a folder of them, a URL of either that fsspec knows, or a list of such files, which
    the workers must be able to read; then ``target``, ``unit``, ``max_rows_per_unit`` and ``missing`` are those of
    ``sample``. Or it is a list of arrays (or pairs of x and y, or Dask futures of either), records as ``sample`` takes
    them, one partition each; for models without columns there is no other way.
    """

    name = "dask"
    first = 1 << 12
    most = 1 << 19

    def __init__(
        self,
        client: Any,
        source: Any,
        model: Model,
        *,
        target: str | None = None,
        unit: str | None = None,
        max_rows_per_unit: int = 1,
        missing: Mapping[str, Value] | None = None,
        dtype: npt.DTypeLike = np.float32,
        patience: float = PATIENCE,
    ) -> None:
        _distributed()
        self._client, self._patience = client, patience
        self._direct, self._placed_until = False, -math.inf
        self._projection = projection_of(model, target, unit, max_rows_per_unit, missing)
        self._declared = (target, unit, max_rows_per_unit, missing)
        self._where: dict[str, Any] = {"name": self.name, "address": client.scheduler.address}
        self.unit, self.outcome = unit, target
        self.rows_per_unit = 1 if unit is None else max_rows_per_unit
        if isinstance(source, str | os.PathLike) or all(isinstance(one, str | os.PathLike) for one in source):
            counts = self._read_files(source, model, target, unit, max_rows_per_unit, missing, dtype)
            self._where |= {"source": _absolute(source), "dtype": np.dtype(dtype).name}
        else:
            if target is not None or unit is not None or missing:
                raise ValueError("target, unit and missing name columns of Parquet files: arrays have none")
            counts = self._load_arrays(source, model)
        self._ends = np.cumsum(np.array(counts, np.int64))
        self.count = int(self._ends[-1]) if counts else 0
        if unit is None:
            self.units = self.count
        if self.units < 2:
            raise TableError(f"the cluster holds {self.units} records: at least two are needed")
        shape = self._ask(lambda run: run(_shape, self._parts[0]))
        self.features, self.targets, self.dtype = shape[0], shape[1], np.dtype(shape[2])
        self._width = (self.features + self.targets) * self.dtype.itemsize
        while self.most > self.first and self.most * self._width > BULK:
            self.most //= 2
        self._direct = self._workers_answer()

    def __repr__(self) -> str:
        return f"<DaskRows: {len(self._parts)} partitions>"

    def __reduce__(self) -> Any:
        raise TypeError("rows on a cluster cannot be pickled or copied: make another DaskRows")

    def check(self, model: Model) -> None:
        if projection_of(model, *self._declared) != self._projection:
            raise TableError("the rows on the cluster were projected for another model: make a DaskRows for this one")
        model.check_shape(self.features, self.targets)

    def whereabouts(self) -> dict[str, Any]:
        return self._where | {"missing": self._declared[3]}

    def cells(self, model: Model) -> Sums:
        """Added up where they are: of files, which are read for it once more, or of arrays while they were loaded."""
        found = Cells()
        for part in self._all(*self._adding):
            found.merge(part)
        return found.sums

    def identity(self, key: bytes) -> bytes:
        """Of every partition in turn, hashed where it is: how the rows are parted counts as well."""
        return b"".join(self._all(_digest, [(key, block) for block in self._parts]))

    # -- the two verbs -----------------------------------------------------------------------------------------------
    def total(self, part: Callable[[Rows], Integers], threads: int | None = None) -> Integers:
        blob = _dumps(part)

        def graph(run: Callable[..., Any]) -> Any:
            groups = [group for held in self._placed() for group in self._groups(held)]
            level = [run(_sum_part, blob, *[self._parts[k] for k in group]) for group in groups]
            while len(level) > FAN_IN:
                level = [run(_add, *level[k : k + FAN_IN]) for k in range(0, len(level), FAN_IN)]
            return level

        return _add(*self._ask(graph))

    def read(self, index: Integers, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        order = np.argsort(index)
        ordered = index[order]
        edges = np.searchsorted(ordered, np.concatenate([[0], self._ends]))
        begins = np.concatenate([[0], self._ends[:-1]])
        short = np.uint32 if np.diff(self._ends, prepend=0).max() < 1 << 32 else np.int64
        asked: list[list[int]] = []

        def graph(run: Callable[..., Any]) -> Any:
            held = [[k for k in parts if edges[k + 1] > edges[k]] for parts in self._placed()]
            asked[:] = [group for parts in held for group in self._together(parts)]
            return [run(_pick, *_paired(parts)) for parts in asked]

        def _paired(parts: list[int]) -> Any:
            within = [(ordered[edges[k] : edges[k + 1]] - begins[k]).astype(short) for k in parts]
            return within, *[self._parts[k] for k in parts]

        for parts, found in zip(asked, self._ask(graph), strict=True):
            places = np.concatenate([order[edges[k] : edges[k + 1]] for k in parts])
            _as_items(x)[places] = _as_items(found[0])
            if self.targets:
                y[places] = found[1]

    # -- where partitions are ----------------------------------------------------------------------------------------
    def _placed(self) -> list[list[int]]:
        """The partitions that each worker holds, as of a moment ago: a task that needs several of them finds them all
        in one place. Where this is out of date Dask moves or remakes what is missing, and the result is the same."""
        if time.monotonic() > self._placed_until:
            scheduler = self._client.scheduler
            holders = self._answer(partial(scheduler.who_has, keys=[part.key for part in self._parts]))
            workers: dict[str, list[int]] = {}
            for k, part in enumerate(self._parts):
                workers.setdefault(min(holders.get(part.key) or ("",)), []).append(k)
            self._held, self._threads = [workers[name] for name in sorted(workers)], self._answer(scheduler.ncores)
            self._placed_until = time.monotonic() + PLACED
        return self._held

    def _groups(self, held: list[int]) -> list[list[int]]:
        """The tasks of one worker: some for each of its threads, of ``FAN_IN`` partitions at most."""
        threads = max(self._threads.values(), default=1)
        each = max(1, min(FAN_IN, -(-len(held) // threads)))
        return [one for k in range(0, len(held), each) for one in self._together(held[k : k + each])]

    def _together(self, parts: list[int]) -> list[list[int]]:
        """Split where partitions are so large that a worker should not need them all at once."""
        begins = np.concatenate([[0], self._ends])
        groups: list[list[int]] = []
        size = 0
        for k in parts:
            more = int(begins[k + 1] - begins[k]) * self._width
            if not groups or size + more > TOGETHER:
                groups.append([])
                size = 0
            groups[-1].append(k)
            size += more
        return groups

    def _workers_answer(self) -> bool:
        """Can this process speak to the workers? Then rows come from them, and not by way of the scheduler."""

        async def ask() -> None:
            address = next(iter(await self._client.scheduler.ncores()))
            await asyncio.wait_for(self._client.rpc(address).identity(), DIRECT)

        try:
            self._answer(ask)
        except (OSError, TimeoutError, StopIteration):
            return False
        return True

    # -- asking ------------------------------------------------------------------------------------------------------
    def _ask(self, graph: Callable[[Callable[..., Any]], Any]) -> Any:
        """The result of one graph. What a lost worker had begun is begun again elsewhere, by Dask or by us."""
        import dask
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker

        def run(function: Callable[..., Any], *arguments: Any) -> Any:
            return dask.delayed(function, pure=False, traverse=False)(*arguments)

        for attempt in range(ATTEMPTS):
            try:
                with dask.config.set({"optimization.fuse.active": False}):
                    asked = self._client.compute(graph(run), optimize_graph=False)
                return self._answer(partial(self._client.gather, asked, direct=self._direct, asynchronous=True))
            except (KilledWorker, CommClosedError, FutureCancelledError) as error:
                reason = " ".join(str(error).split())[:200]
                if attempt == ATTEMPTS - 1:
                    raise RowsLost(f"the cluster lost its workers {ATTEMPTS} times: {reason}") from None
                self._client.retry([one for one in self._parts if one.status in ("error", "lost")])
            except TimeoutError:
                raise RowsLost(f"the cluster did not answer for {self._patience:g} s: is it still there?") from None
        raise AssertionError

    def _answer(self, question: Callable[[], Any]) -> Any:
        """What a coroutine of Dask's own thread comes to."""
        return self._client.sync(question, callback_timeout=self._patience)

    def _all(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return list(self._ask(lambda run: run(_list, *[run(function, *one) for one in arguments])))

    # -- making partitions -------------------------------------------------------------------------------------------
    def _read_files(
        self,
        source: Any,
        model: Model,
        target: str | None,
        unit: str | None,
        most: int,
        missing: Mapping[str, Value] | None,
        dtype: npt.DTypeLike,
    ) -> list[int]:
        from dpfastmh.data.loading import Projection
        from dpfastmh.models import GLM

        if not isinstance(model, GLM) or target is None:
            raise ValueError("Parquet files have columns: give a regression model and the target's name as target")
        reading = Projection(model, target, unit, most, missing, dtype)
        urls = _files(source)
        described = self._all(_describe, [(url, tuple(reading.needed)) for url in urls])
        _check_alike(urls, reading.needed, described)
        sources = [one for url, (groups, _) in zip(urls, described, strict=True) for one in _partitions(url, groups)]
        if unit is not None:
            sources = self._of_units(sources, reading, unit)
        blob = _dumps(reading)
        self._parts = [self._client.submit(_load, blob, one, pure=False) for one in sources]
        self._wait()
        self._adding: tuple[Any, list[tuple[Any, ...]]] = (_cells_of_file, [(blob, one) for one in sources])
        return [one.rows for one in sources]

    def _of_units(self, sources: list[Source], reading: Any, unit: str) -> list[Source]:
        """Which rows are among the first of their unit: their ids go by here once, in the order of the table."""
        from dpfastmh.data.units import Units

        people, marked = Units(unit, reading.rows_per_unit, text=False), []
        for one in sources:
            bits = []
            for ids in self._ask(lambda run, one=one: run(_ids, one, unit)):  # type: ignore[misc]
                bits.append(people.keep(Batch(one.url, 0, len(ids), {unit: ids})))
            kept = np.concatenate(bits) if bits else np.zeros(0, bool)
            marked.append(one._replace(rows=int(kept.sum()), kept=np.packbits(kept).tobytes()))
        self.units = people.count
        return marked

    def _load_arrays(self, parts: Sequence[Any], model: Model) -> list[int]:
        blob = _dumps(model)
        held = [one if hasattr(one, "key") else self._client.scatter(one) for one in map(_unlisted, parts)]
        self._parts = [self._client.submit(_load_array, blob, one, pure=False) for one in held]
        sums = [self._client.submit(_cells_of_array, blob, one, pure=False) for one in held]
        self._adding = (_same, [(one,) for one in sums])
        self._wait()
        return self._all(_length, [(one,) for one in self._parts])

    def _wait(self) -> None:
        """Until every partition is there; a mistake in one of them is raised here, before anything is spent."""
        from distributed import wait

        try:
            wait(self._parts, timeout=self._patience)
        except TimeoutError:
            raise RowsLost(f"the cluster has not read its rows in {self._patience:g} s; nothing was spent") from None
        for one in self._parts:
            if one.status == "error":
                one.result(timeout=self._patience)


# -- what workers run --------------------------------------------------------------------------------------------------
def _sum_part(blob: bytes, *blocks: Block) -> Integers:
    part: Callable[[Rows], Integers] = _loads(blob)
    return _add(*[part(_rows(block)) for block in blocks])


def _add(*parts: Integers) -> Integers:
    return np.asarray(np.sum(parts, axis=0, dtype=np.int64))


def _pick(wanted: list[Integers], *blocks: Block) -> Block:
    """Rows of several partitions, one after another. ``take`` copies whole rows, indexing number by number."""
    counts = np.cumsum([0, *map(len, wanted)])
    x, y = blocks[0]
    xs = np.empty((counts[-1], x.shape[1]), x.dtype)
    ys = np.empty(counts[-1] if len(y) else 0, y.dtype)
    for index, (x, y), first, last in zip(wanted, blocks, counts[:-1], counts[1:], strict=True):
        np.take(x, index, axis=0, out=xs[first:last], mode="clip")
        if len(y):
            np.take(y, index, out=ys[first:last], mode="clip")
    return xs, ys


def _list(*items: Any) -> list[Any]:
    return list(items)


def _digest(key: bytes, block: Block) -> bytes:
    x, y = block
    found = hashlib.blake2b(repr((x.shape, y.shape)).encode(), key=key, digest_size=32)
    found.update(raw(x))
    found.update(raw(y))
    return found.digest()


def _length(block: Block) -> int:
    return len(block[0])


def _shape(block: Block) -> tuple[int, bool, str]:
    x, y = block
    return x.shape[1], len(y) == len(x), x.dtype.name


def _rows(block: Block) -> Rows:
    x, y = block
    return memory.rows(x, y if len(y) else None)


def _load_array(blob: bytes, part: Any) -> Block:
    model: Model = _loads(blob)
    rows = model.load(*part) if isinstance(part, tuple) else model.load(part)
    return rows.x, rows.y


def _load(blob: bytes, source: Source) -> Block:
    """One partition, projected."""
    reading = _loads(blob)
    parts = []
    at = 0
    for cells in _batches(source, tuple(dict.fromkeys(reading.needed))):
        batch = Batch(f"{source.url}, row group {source.groups[0]} on", at, cells.num_rows, _named(cells))
        parts.append(reading.rows(batch, text=False))
        at += cells.num_rows
    width, dtype = len(reading.model.domain), reading.dtype
    x = np.concatenate([np.zeros((0, width), dtype), *(x for x, _ in parts)])
    y = np.concatenate([np.zeros(0, dtype), *(y for _, y in parts)])
    if source.kept is not None:
        kept = np.unpackbits(np.frombuffer(source.kept, np.uint8), count=at).astype(bool)
        x, y = x[kept], y[kept]
    if len(x) != source.rows:
        raise TableError(f"{source.url}: the file has changed while it was read: start again")
    return np.ascontiguousarray(x), np.ascontiguousarray(y)


def _cells_of_file(blob: bytes, source: Source) -> Sums:
    reading, found = _loads(blob), Cells()
    for cells in _batches(source, tuple(dict.fromkeys(reading.needed))):
        reading.cells(Batch(source.url, 0, cells.num_rows, _named(cells)), False, found)
    return found.sums


def _cells_of_array(blob: bytes, part: Any) -> Sums:
    model, found = _loads(blob), Cells()
    x, y = part if isinstance(part, tuple) else (part, None)
    found.add_arrays(x, y, model.columns)
    return found.sums


def _same(thing: Any) -> Any:
    return thing


def _ids(source: Source, unit: str) -> list[Any]:
    return [_named(cells)[unit] for cells in _batches(source, (unit,))]


def _named(cells: Any) -> dict[str, Any]:
    return dict(zip(cells.schema.names, cells.columns, strict=True))


def _batches(source: Source, columns: tuple[str, ...]) -> Any:
    import fsspec
    import pyarrow.parquet as pq

    with readable(source.url), fsspec.open(source.url, "rb") as file, pq.ParquetFile(file) as table:
        yield from table.iter_batches(BATCH, row_groups=list(source.groups), columns=list(columns), use_threads=False)


def _describe(url: str, needed: tuple[str, ...]) -> tuple[list[int], dict[str, str]]:
    """Rows of each row group, and what kind of cells the needed columns hold (those that are there)."""
    import fsspec
    import pyarrow.parquet as pq

    from dpfastmh.data.cells import kind_of

    with readable(url), fsspec.open(url, "rb") as file, pq.ParquetFile(file) as table:
        schema, metadata = table.schema_arrow, table.metadata
        groups = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        kinds = {name: kind_of(schema.field(name).type) for name in needed if schema.names.count(name) == 1}
    return groups, kinds


# -- which files -------------------------------------------------------------------------------------------------------
def _files(source: Any) -> list[str]:
    """Parquet files in the order of their names, those of a folder as ``sample`` would read them."""
    if not isinstance(source, str | os.PathLike):
        return [one for each in source for one in _files(each)]
    where = os.fspath(source)
    import fsspec

    if "://" not in where:
        from dpfastmh.data.tables import parquet_files

        path = Path(where)
        if not path.exists():
            raise FileNotFoundError(f"{where}: no such file")
        return [str(one.absolute()) for one in (parquet_files(path) if path.is_dir() else [path])]
    try:
        system, inside = fsspec.core.url_to_fs(where)
        found = [inside] if system.isfile(inside) else sorted(system.glob(inside.rstrip("/") + "/**/*.parquet"))
    except (ImportError, ValueError, OSError) as error:
        raise TableError(f"{where}: cannot be listed: {' '.join(str(error).split())[:200]}") from None
    if not found:
        raise TableError(f"{where}: no Parquet files there: their names must end in .parquet")
    return [system.unstrip_protocol(one) for one in found]


def _absolute(source: Any) -> str | list[str]:
    """The same source, wherever it is asked for from."""
    if not isinstance(source, str | os.PathLike):
        return [str(_absolute(one)) for one in source]
    where = os.fspath(source)
    return where if "://" in where else os.path.abspath(where)


def _partitions(url: str, groups: Sequence[int]) -> list[Source]:
    """Neighbouring row groups together, up to about ``PARTITION`` rows."""
    found: list[Source] = []
    start, rows = 0, 0
    for k, count in enumerate(groups):
        if rows and rows + count > PARTITION:
            found.append(Source(url, tuple(range(start, k)), rows))
            start, rows = k, 0
        rows += count
    return [*found, Source(url, tuple(range(start, len(groups))), rows)] if rows else found


def _check_alike(urls: list[str], needed: list[str], described: list[tuple[list[int], dict[str, str]]]) -> None:
    """Every file has the columns, with cells of the kind that the first file has."""
    first = described[0][1]
    for url, (_, kinds) in zip(urls, described, strict=True):
        for name in needed:
            if name not in kinds:
                raise TableError(f"{url}: column {name!r} is missing, or there twice: write all files alike")
            if kinds[name] != first[name]:
                raise TableError(
                    f"{url}: column {name!r} holds {kinds[name]}, and {first[name]} in {urls[0]}: write all files alike"
                )


def _as_items(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows of a matrix as items that are copied whole."""
    return x.view(np.dtype((np.void, x.shape[1] * x.itemsize))).reshape(-1)


def _unlisted(part: Any) -> Any:
    return tuple(part) if isinstance(part, list) else part


def _dumps(thing: Any) -> bytes:
    from distributed.protocol import pickle

    return bytes(pickle.dumps(thing))


def _loads(blob: bytes) -> Any:
    from distributed.protocol import pickle

    return pickle.loads(blob)
