"""Rows that live elsewhere: the same draws as in memory, ingesting, and what is refused."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfastmh as mh
from dpfastmh.cli import main
from dpfastmh.data import mapped
from dpfastmh.data.engine import Feed, Integers, RowEngine, RowsLost
from dpfastmh.data.ingest import ingest, ingest_arrays
from dpfastmh.data.mapped import MappedRows, projection_of
from dpfastmh.data.tables import TableError
from dpfastmh.outputs import OutputError
from dpfastmh.randomness import insecure_streams
from dpfastmh.steps.likelihood import Rows
from dpfastmh.steps.reference import integer_sums, total_energy
from energies import boxed_mean

BUDGET = mh.Budget(2.0, 1e-6)
N = 30_000
RNG = np.random.default_rng(4)
TABLE = {
    "a": RNG.uniform(-1.2, 1.2, N).astype(np.float32),  # some are clipped
    "b": RNG.uniform(-1, 1, N).astype(np.float32),
    "who": np.arange(N) // 3,
}
TABLE["y"] = (RNG.random(N) < 1 / (1 + np.exp(-TABLE["a"]))).astype(int)
MODEL = mh.LogisticRegression(mh.Box(a=(-1, 1), b=(-1, 1)))
ROWS = MODEL.load(np.column_stack([TABLE["a"], TABLE["b"]]), TABLE["y"])
PLACE = np.array([0.0, 1.0, 0.0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ingest(MODEL, TABLE, tmp_path_factory.mktemp("rows") / "rows", target="y")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MappedRows, "first", 128)
    monkeypatch.setattr(MappedRows, "most", 1024)


def opened(folder: Path, model: Any = MODEL, **options: Any) -> MappedRows:
    return MappedRows(folder, model, projection_of(model, "y"), **options)


class Watched(RowEngine):
    """Rows in memory behind the two verbs; ``failing`` reads go wrong."""

    name = "watched"
    units, rows_per_unit = N, 1
    first, most = 64, 512

    def __init__(self, rows: Rows, failing: Callable[[int], bool] = lambda number: False, most: int = 512) -> None:
        self.held, self.failing, self.most = rows, failing, most
        self.count, self.features = rows.x.shape
        self.dtype, self.targets = rows.x.dtype, rows.y.size > 0
        self.asked: list[int] = []
        self.sums = 0

    def total(self, part: Callable[[Rows], Integers], threads: int | None = None) -> Integers:
        self.sums += 1
        cut = self.count // 3
        return np.asarray(sum(part(self._slice(s)) for s in (slice(0, cut), slice(cut, None))))

    def _slice(self, part: slice) -> Rows:
        return self.held._replace(x=self.held.x[part], y=self.held.y[part])

    def read(self, index: Integers, x: Any, y: Any) -> None:
        self.asked.append(len(index))
        if self.failing(len(self.asked)):
            raise RowsLost("the disk is gone")
        x[:] = self.held.x[index]
        if self.targets:
            y[:] = self.held.y[index]

    def check(self, model: Any) -> None:
        model.check(self.held)


# -- the same draws ----------------------------------------------------------------------------------------------------
METHODS = {
    "minibatch": (mh.TunaMH(mh.RandomWalk(0.01), lam=40.0), None, 1500),
    "large minibatch": (mh.TunaMH(mh.RandomWalk(0.01), lam=3000.0), None, 60),
    "first order": (mh.DPFastMH(mh.Coordinates(0.03), full_batch=False), 1, 3000),
    "second order": (mh.DPFastMH(mh.Coordinates(0.05), laziness=0.5), 2, 6000),
    "directions": (mh.TunaMH(mh.Directions([[1.0, 1.0, 0.0], [0.0, 1.0, -1.0]], 0.03), lam=1.0), 2, 3000),
    "full batch": (mh.MetropolisHastings(mh.RandomWalk(0.02)), None, 60),
}


@pytest.mark.parametrize("name", METHODS)
def test_draws_are_those_of_rows_in_memory(name: str, folder: Path) -> None:
    method, order, steps = METHODS[name]
    options: dict[str, Any] = {"seed": 5} | ({} if order is None else {"reference": PLACE, "order": order})
    found = []
    for rows in (ROWS, opened(folder), Watched(ROWS)):
        sampler = method.on(MODEL, rows, **options)
        state, first, _ = sampler.run(sampler.init(PLACE), steps // 3)
        _, rest, info = sampler.run(state, steps - steps // 3)  # a second run goes on where the first ended
        found.append((np.concatenate([first, rest]), info.rows, info.accepted))
    assert found[0][2] > 0
    for other in found[1:]:
        assert np.array_equal(found[0][0], other[0])
        assert found[0][1:] == other[1:]


def test_control_a_stream_taken_out_of_order_is_noticed() -> None:
    """Rows handed out in the order in which they lie in the file, not in the stream's."""

    class Sorted(Watched):
        def read(self, index: Integers, x: Any, y: Any) -> None:
            super().read(np.sort(index), x, y)

    method = METHODS["minibatch"][0]
    draws = [s.run(s.init(PLACE), 500)[1] for s in (method.on(MODEL, r, seed=5) for r in (ROWS, Sorted(ROWS)))]
    assert not np.array_equal(*draws)


def test_private_runs_are_the_same_and_cost_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = mh.sample(MODEL, TABLE, target="y", budget=BUDGET, seed=2)
    monkeypatch.setattr(mapped, "available_memory", lambda: 0.0)
    for options in ({"engine": "memory"}, {"engine": "mapped"}, {"engine": "auto"}):
        other = mh.sample(MODEL, folder, target="y", budget=BUDGET, seed=2, **options)
        assert np.array_equal(here.draws, other.draws)
        assert here.privacy == other.privacy
    other = mh.sample(MODEL, engine=Watched(ROWS), budget=BUDGET, seed=2)
    assert np.array_equal(here.draws, other.draws)


def test_a_run_passes_over_all_rows_seven_times() -> None:
    """What ``plan`` says: G and H at one point, and the expansions of both chains, share a pass."""
    rows = Watched(ROWS)
    mh.sample(MODEL, engine=rows, budget=BUDGET, seed=2)
    assert rows.sums == mh.plan(MODEL, units=N, budget=BUDGET).passes == 7


@pytest.mark.parametrize(
    ("make", "place", "scale"),
    [(mh.Mixture, [0.2, 0.4], 0.2), pytest.param(boxed_mean, [0.5], 0.02, marks=pytest.mark.slow)],
)
def test_models_without_columns(make: Callable[[], Any], place: list[float], scale: float, tmp_path: Path) -> None:
    """The user's energy has differences only, and its loop is compiled in each process: half a minute."""
    model, x = make(), RNG.normal(0.5, 1.2, 5_000)
    rows = MappedRows(ingest_arrays(model, [x[:2_000], x[2_000:]], tmp_path / "rows"), model, projection_of(model))
    for method, steps in (
        (mh.TunaMH(mh.RandomWalk(scale), lam=50.0), 400),
        (mh.DPFastMHFull(mh.RandomWalk(scale)), 40),
    ):
        samplers = [method.on(model, source, seed=1) for source in (model.load(x), rows, Watched(model.load(x)))]
        draws = [sampler.run(sampler.init(place), steps)[1] for sampler in samplers]
        assert np.array_equal(draws[0], draws[1])
        assert np.array_equal(draws[0], draws[2])
    options: dict[str, Any] = {"budget": mh.Budget(1.0, 1e-5), "seed": 1, "draws": 20}
    held = mh.sample(model, x, **options)
    there = mh.sample(model, tmp_path / "rows", engine="mapped", **options)
    assert np.array_equal(held.draws, there.draws)


def test_sums_are_the_same_whatever_the_stretches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradient, hessian, *_ = integer_sums(MODEL, ROWS, PLACE)
    energy = total_energy(MODEL, ROWS, PLACE)
    for stretch, piece in ((1 << 14, 1 << 18), (1000, 12 * 999), (1 << 14, 1)):
        monkeypatch.setattr(mapped, "STRETCH", stretch)
        monkeypatch.setattr(mapped, "PIECE", piece)
        rows = opened(folder)
        for threads in (1, 3):
            g, h, *_ = integer_sums(MODEL, rows, PLACE, threads=threads)
            assert np.array_equal(g, gradient)
            assert np.array_equal(h, hessian)
            assert total_energy(MODEL, rows, PLACE, threads=threads) == energy


@pytest.mark.parametrize("d", [1, 7, 8, 19, 30, 70])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_any_number_of_columns_are_those_of_single_records(d: int, dtype: type) -> None:
    """Tiles of 256, 128 and 64 rows, whole and in part; odd and even numbers of columns. And against NumPy."""
    model = mh.LogisticRegression(mh.Box.unit(d), intercept=False)
    point, n = RNG.normal(size=d), 301
    rows = model.load(RNG.uniform(-1, 1, (n, d)).astype(dtype), RNG.integers(0, 2, n))
    g, h, g_cell, h_cell = integer_sums(model, rows, point)
    alone = [
        integer_sums(model, rows._replace(x=rows.x[k : k + 1], y=rows.y[k : k + 1]), point, public_rows=n)
        for k in range(n)
    ]
    assert np.array_equal(g, sum(one[0] for one in alone))
    assert np.array_equal(h, sum(one[1] for one in alone))
    x = rows.x.astype(float)
    chance = 1 / (1 + np.exp(-x @ point))
    near = n * (0.5 + 2.0**-50 / np.array([g_cell, h_cell]))
    assert np.abs(g - x.T @ (chance - rows.y) / g_cell).max() <= near[0]
    assert np.abs(h - (x.T * (chance * (1 - chance))) @ x / h_cell).max() <= near[1]
    assert np.array_equal(g, integer_sums(model, rows, point, order=1)[0])


# -- the feed ----------------------------------------------------------------------------------------------------------
def test_what_was_read_ahead_can_be_taken_up(folder: Path) -> None:
    """``unread`` and the stream decide what comes next: another sampler goes on with the same draws."""
    method = METHODS["minibatch"][0]
    whole = method.on(MODEL, ROWS, seed=9)
    state, first, _ = whole.run(whole.init(PLACE), 300)
    _, expected, _ = whole.run(state, 300)
    one = method.on(MODEL, opened(folder), seed=9)
    state, begun, _ = one.run(one.init(PLACE), 300)
    assert np.array_equal(begun, first)
    assert one._feed is not None
    index, keep = one._feed.unread()
    assert 0 < index.size < 3 * MappedRows.most
    other = method.on(MODEL, Watched(ROWS), seed=9)
    other._streams = one._streams
    other._feed = Feed(other_engine := Watched(ROWS), MODEL, one._streams)
    other._rows = other._feed.rows
    other._feed.resume(index, keep)
    _, rest, _ = other.run(state, 300)
    assert np.array_equal(rest, expected)
    assert other_engine.asked


def test_reading_ahead_begins_small_and_doubles() -> None:
    rows = Watched(ROWS)
    sampler = METHODS["minibatch"][0].on(MODEL, rows, seed=1)
    sampler.run(sampler.init(PLACE), 300)
    assert rows.asked[:5] == [64, 128, 256, 512, 512]


@pytest.mark.parametrize("kind", ["minibatch", "full batch"])
def test_lost_rows_end_the_run_before_the_step(kind: str) -> None:
    class Broken(Watched):
        def total(self, part: Any, threads: int | None = None) -> Integers:
            if self.sums > 20:
                raise RowsLost("the disk is gone")
            return super().total(part, threads)

    sampler = METHODS[kind][0].on(MODEL, Broken(ROWS, lambda number: number > 8), seed=1)
    with pytest.raises(RowsLost, match="the disk is gone"):
        sampler.run(sampler.init(PLACE), 10_000)
    with pytest.raises(RowsLost, match="the disk is gone"):  # nor does it go on afterwards
        sampler.run(sampler.init(PLACE), 1)


def test_what_was_spent_when_rows_were_lost_is_charged_and_said() -> None:
    rows = Watched(ROWS, lambda number: number > 6)
    with pytest.raises(RowsLost, match=r"the disk is gone. The run ended; spent: epsilon = (0\.[1-9]|[1-9])"):
        mh.sample(MODEL, engine=rows, budget=BUDGET, seed=2)
    lost = Watched(ROWS)
    lost.total = lambda part, threads=None: (_ for _ in ()).throw(RowsLost("no disk"))  # type: ignore[method-assign]
    with pytest.raises(RowsLost, match=r"spent: epsilon = 0\."):
        mh.sample(MODEL, engine=lost, budget=BUDGET, seed=2)


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupted(Watched):
        def total(self, part: Any, threads: int | None = None) -> Integers:
            if threading.current_thread() is threading.main_thread() and self.sums > 3:
                raise KeyboardInterrupt
            return super().total(part, threads)

    sampler = METHODS["full batch"][0].on(MODEL, Interrupted(ROWS), seed=1)
    with pytest.raises(KeyboardInterrupt):
        sampler.run(sampler.init(PLACE), 100)


def test_stream_pairs_are_the_loops_own() -> None:
    """The bulk draw is what the loop draws from memory, word for word."""
    from dpfastmh.steps.compiled import SHIPPED

    words = insecure_streams(3).rows.bit_generator.random_raw(1000)
    index, keep = np.zeros(1000, np.int64), np.zeros(1000)
    SHIPPED.draw(insecure_streams(3).rows, N, index, keep)
    wide = [int(word) * N for word in words]
    assert index.tolist() == [product >> 64 for product in wide]
    assert keep.tolist() == [((product & (2**64 - 1)) >> 11) * 2.0**-53 for product in wide]


# -- ingesting ---------------------------------------------------------------------------------------------------------
def test_rows_are_those_of_the_table_and_for_the_custodian_alone(folder: Path) -> None:
    rows = opened(folder, verify=True).in_memory()
    assert np.array_equal(rows.x, ROWS.x)
    assert np.array_equal(rows.y, ROWS.y)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {"x.bin", "y.bin", "manifest.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_units_keep_their_first_rows(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target": "y", "unit": "who", "max_rows_per_unit": 2}
    where = ingest(MODEL, TABLE, tmp_path / "rows", **options)
    here = mh.sample(MODEL, TABLE, budget=BUDGET, seed=2, **options)
    there = mh.sample(MODEL, where, engine="mapped", budget=BUDGET, seed=2, **options)
    assert there.privacy == here.privacy
    assert there.privacy.units == N // 3
    assert np.array_equal(here.draws, there.draws)
    with pytest.raises(TableError, match="another schema, target, unit"):
        mh.sample(MODEL, where, budget=BUDGET, target="y")


@pytest.mark.parametrize("unit", [None, "who"])
def test_interrupted_work_is_taken_up(unit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfastmh.data.ingest.BLOCK", 4_000)
    monkeypatch.setattr(mapped, "BLOCK", 4_000)
    monkeypatch.setattr("dpfastmh.data.tables.BATCH", 1_000)
    options: dict[str, Any] = {"target": "y", "unit": unit, "max_rows_per_unit": 2 if unit else 1}
    table = tmp_path / "table.csv"
    np.savetxt(
        table, np.column_stack([TABLE[n] for n in TABLE]), delimiter=",", header="a,b,who,y", comments="", fmt="%.9g"
    )
    whole = ingest(MODEL, table, tmp_path / "whole", **options)

    def stop(rows: int) -> None:
        if rows >= 9_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(MODEL, table, tmp_path / "rows", progress=stop, **options)
    assert not (tmp_path / "rows").exists()
    with open(tmp_path / ".rows.ingest" / "x.bin", "ab") as file:
        file.write(b"half a block that was not finished")
    seen: list[int] = []
    ingest(MODEL, table, tmp_path / "rows", progress=seen.append, **options)
    assert seen[0] == 12_000  # not from the beginning
    for name in ("x.bin", "y.bin"):
        assert (tmp_path / "rows" / name).read_bytes() == (whole / name).read_bytes()
    manifests = [json.loads((where / "manifest.json").read_text()) for where in (whole, tmp_path / "rows")]
    assert [{**one, "times": None} for one in manifests] == [{**manifests[0], "times": None}] * 2
    assert not list(tmp_path.glob(".*"))


def test_work_on_another_table_or_damaged_work_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfastmh.data.ingest.BLOCK", 4_000)
    table = tmp_path / "table.csv"
    np.savetxt(
        table, np.column_stack([TABLE[n] for n in TABLE]), delimiter=",", header="a,b,who,y", comments="", fmt="%.9g"
    )

    def stop(rows: int) -> None:
        if rows >= 9_000:
            raise KeyboardInterrupt

    def begun_at(change: Callable[[], object]) -> int:
        with pytest.raises(KeyboardInterrupt):
            ingest(MODEL, table, tmp_path / "rows", target="y", progress=stop)
        change()
        seen: list[int] = []
        ingest(MODEL, table, tmp_path / "rows", target="y", progress=seen.append)
        for path in (tmp_path / "rows").iterdir():
            path.unlink()
        (tmp_path / "rows").rmdir()
        return seen[0]

    def damage() -> None:
        with open(tmp_path / ".rows.ingest" / "x.bin", "r+b") as file:
            file.seek(100)
            file.write(b"\0\1\2\3")

    assert begun_at(lambda: None) == 12_000
    assert begun_at(damage) == 4_000
    assert begun_at(lambda: os.utime(table, (1, 1))) == 4_000


def test_a_table_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    bad = {**TABLE, "y": np.where(np.arange(N) == N - 1, 7, TABLE["y"])}
    with pytest.raises(TableError, match="row 30000"):
        ingest(MODEL, bad, tmp_path / "rows", target="y")
    with pytest.raises(TableError, match="column 'b' is missing"):
        ingest(MODEL, {"a": TABLE["a"], "y": TABLE["y"]}, tmp_path / "rows", target="y")
    with pytest.raises(TableError, match="at least two"):
        ingest(MODEL, {k: v[:1] for k, v in TABLE.items()}, tmp_path / "rows", target="y")
    assert not list(tmp_path.iterdir())
    (tmp_path / "rows").mkdir()
    with pytest.raises(OutputError, match="exists already"):
        ingest(MODEL, TABLE, tmp_path / "rows", target="y")


def test_a_partition_with_another_schema_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "parts").mkdir()
    pq.write_table(pa.table(TABLE), tmp_path / "parts" / "1.parquet")
    pq.write_table(pa.table({"a": TABLE["a"], "y": TABLE["y"]}), tmp_path / "parts" / "2.parquet")
    with pytest.raises(TableError, match=r"2.parquet: column 'b' is missing"):
        ingest(MODEL, tmp_path / "parts", tmp_path / "rows", target="y")
    pq.write_table(pa.table({**TABLE, "b": TABLE["b"].astype(str)}), tmp_path / "parts" / "2.parquet")
    with pytest.raises(TableError, match=r"2.parquet: column 'b' is of type string"):
        ingest(MODEL, tmp_path / "parts", tmp_path / "rows", target="y")
    assert {path.name for path in tmp_path.iterdir()} == {"parts"}


# -- changed data ------------------------------------------------------------------------------------------------------
def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
        os.utime(to / path.name, ns=(0, path.stat().st_mtime_ns))
    return to


def changed(path: Path, at: int, keep_time: bool = False) -> None:
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (lambda f: os.truncate(f / "x.bin", 1000), "shorter than its manifest says"),
    "longer": (lambda f: os.truncate(f / "y.bin", 10**6), "longer than its manifest says"),
    "a bit of x": (lambda f: changed(f / "x.bin", 1000), "checksums differ"),
    "a bit of y": (lambda f: changed(f / "y.bin", 9999), "checksums differ"),
    "a bit, time kept": (lambda f: changed(f / "x.bin", 1000, keep_time=True), "checksums differ"),
    "no x": (lambda f: (f / "x.bin").unlink(), "cannot be read"),
    "no manifest's rows": (lambda f: _edit(f, rows=5), "damaged|longer"),
    "manifest of text": (lambda f: (f / "manifest.json").write_text("{"), "damaged, or not a manifest"),
    "version": (lambda f: _edit(f, version=9), "version 9"),
    "byte order": (lambda f: _edit(f, byteorder="other"), "another kind of processor"),
    "projection": (lambda f: _edit(f, projection="0"), "another schema"),
    "dtype": (lambda f: _edit(f, dtype="int8"), "damaged"),
}


def _edit(folder: Path, **fields: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_changed_is_refused_and_nothing_is_spent(
    what: str, folder: Path, tmp_path: Path, schema: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = REFUSED[what]
    where = copied(folder, tmp_path / "rows")
    change(where)
    with pytest.raises((TableError, OSError), match=message):
        mh.sample(MODEL, where, target="y", budget=BUDGET)
    budget = ["--epsilon", "1", "--delta", "1e-6"]
    assert main(["fit", str(where), "--schema", str(schema), *budget, "-o", str(tmp_path / "out")]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_change_that_keeps_size_and_time_is_found_by_a_sample_or_by_check(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfastmh.data.ingest.BLOCK", 1000)
    monkeypatch.setattr(mapped.Manifest, "block", 1000)
    monkeypatch.setattr(mapped, "SAMPLED", 1)
    where = ingest_in_blocks(tmp_path, 1000)
    changed(where / "x.bin", 1000, keep_time=True)
    found = 0
    for _ in range(200):
        try:
            opened(where)
        except TableError:
            found += 1
    assert 0 < found < 40  # one block of 30, 200 times
    with pytest.raises(TableError, match="checksums differ"):
        opened(where, verify=True)


def ingest_in_blocks(tmp_path: Path, block: int) -> Path:
    """A folder whose manifest says that its blocks are of this size."""
    import zlib

    where = ingest(MODEL, TABLE, tmp_path / "blocks", target="y")
    x, y = ((where / name).read_bytes() for name in ("x.bin", "y.bin"))
    sums = [
        [zlib.crc32(x[12 * k : 12 * (k + block)]), zlib.crc32(y[4 * k : 4 * (k + block)])] for k in range(0, N, block)
    ]
    _edit(where, block=block, checksums=sums)
    return where


def test_a_file_cut_short_while_it_is_used_ends_the_run(folder: Path, tmp_path: Path) -> None:
    where = copied(folder, tmp_path / "rows")
    rows = opened(where)
    os.truncate(where / "x.bin", 1000)
    with pytest.raises(RowsLost, match="shorter than its manifest"):
        integer_sums(MODEL, rows, PLACE)
    sampler = METHODS["minibatch"][0].on(MODEL, rows, seed=1)
    with pytest.raises(RowsLost, match="shorter than its manifest"):
        sampler.run(sampler.init(PLACE), 100)


def test_class_numbers_are_never_taken_on_trust(folder: Path, tmp_path: Path) -> None:
    where = copied(folder, tmp_path / "rows")
    rows = opened(where)
    for bad in (9.0, 2.0, -1.0, np.nan):  # the last one of all is enough
        y = np.zeros(N, np.float32)
        y[-1] = bad
        y.tofile(where / "y.bin")
        for sums in (integer_sums, total_energy):
            with pytest.raises(RowsLost, match="no class"):
                sums(MODEL, rows, PLACE)


def test_rows_of_another_model_are_refused(folder: Path) -> None:
    wider = mh.LogisticRegression(mh.Box(a=(-2, 1), b=(-1, 1)))
    with pytest.raises(TableError, match="another schema"):
        mh.sample(wider, folder, target="y", budget=BUDGET)
    other_prior = mh.LogisticRegression(mh.Box(a=(-1, 1), b=(-1, 1)), mh.Normal(scale=9.0), temperature=3.0)
    assert mh.sample(other_prior, folder, target="y", budget=BUDGET, seed=1, draws=10).draws.size


def test_arguments_that_do_not_go_together(folder: Path) -> None:
    with pytest.raises(ValueError, match="engine holds the rows already"):
        mh.sample(MODEL, TABLE, engine=Watched(ROWS), budget=BUDGET)
    mixture = mh.Mixture()
    held = Watched(mixture.load(RNG.normal(0, 1, N)))
    for kind in ("thinned", "alias"):
        with pytest.raises(ValueError, match=rf"per_record is '{kind}', and bounds that differ by record are kept for"):
            mh.TunaMH(mh.RandomWalk(0.1), lam=40.0).on(mixture, held, per_record=kind)
    with pytest.raises(ValueError, match="choose one of"):
        mh.sample(MODEL, folder, target="y", engine="disk", budget=BUDGET)
    with pytest.raises(ValueError, match="dpfastmh ingest"):
        mh.sample(MODEL, TABLE, target="y", engine="mapped", budget=BUDGET)
    with pytest.raises(ValueError, match="no records"):
        mh.sample(MODEL, budget=BUDGET)
    with pytest.raises(ValueError, match="engine is"):
        mh.plan(MODEL, units=N, budget=BUDGET, engine="tape")


# -- the commands ------------------------------------------------------------------------------------------------------
@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.toml"
    path.write_text(
        'model = "logistic"\ntarget = "y"\n[columns.a]\nbounds = [-1, 1]\n[columns.b]\nbounds = [-1, 1]\n'
        "[columns.y]\ncategories = [0, 1]\n"
    )
    return path


def test_ingest_check_fit(tmp_path: Path, schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(TABLE), tmp_path / "table.parquet")
    rows, told = str(tmp_path / "rows"), ["--schema", str(schema)]
    assert main(["ingest", str(tmp_path / "table.parquet"), *told, "-o", rows]) == 0
    assert capsys.readouterr().out == ""
    assert main(["check", rows, *told]) == 0
    assert "30,000 rows" in capsys.readouterr().out
    budget = ["--epsilon", "2", "--delta", "1e-6", "--seed", "1", "--json"]
    outputs = []
    for data, engine in ((str(tmp_path / "table.parquet"), "auto"), (rows, "mapped")):
        out = str(tmp_path / f"out-{engine}")
        assert main(["fit", data, *told, *budget, "--engine", engine, "-o", out]) == 0
        found = json.loads(capsys.readouterr().out)
        outputs.append((found["privacy"], found["summary"]))
    assert outputs[0] == outputs[1]
    assert main(["ingest", str(tmp_path / "table.parquet"), *told, "-o", rows]) == 1
    assert "exists already" in capsys.readouterr().err


def test_plan_says_what_reading_takes(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["plan", "--schema", str(schema), "--rows", "100000000", "--epsilon", "1", "--delta", "1e-9", "--json"]
    seconds = {}
    for engine in ("memory", "mapped", "dask"):
        assert main([*told, "--engine", engine]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["passes"] == 7
        seconds[engine] = found["reading_seconds"]
    assert seconds["memory"] < seconds["mapped"]


def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    held = tmp_path / ".rows.ingest"
    held.mkdir()
    code = (
        "import fcntl, os, sys, time\n"
        f"lock = os.open({str(held / 'lock')!r}, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OutputError, match="another process is ingesting"):
            ingest(MODEL, TABLE, tmp_path / "rows", target="y")
        assert other.stdin is not None
        other.stdin.close()
