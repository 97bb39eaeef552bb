"""Rows on a Dask cluster: the same draws as in memory, workers that die, partitions that do not fit, no answer."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

import dpfastmh as mh
from dpfastmh.cli import main
from dpfastmh.data import cluster
from dpfastmh.data.cluster import DaskRows, connect
from dpfastmh.data.engine import RowsLost
from dpfastmh.data.tables import TableError
from dpfastmh.steps.reference import integer_sums, total_energy
from energies import boxed_mean

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning:distributed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:distributed"),
]

BUDGET = mh.Budget(2.0, 1e-6)
N, FILES = 24_000, 3
RNG = np.random.default_rng(4)
TABLE = {
    "a": RNG.uniform(-1, 1, N).astype(np.float32),
    "b": RNG.uniform(-1, 1, N).astype(np.float32),
    "who": np.arange(N) // 3,
}
TABLE["y"] = (RNG.random(N) < 1 / (1 + np.exp(-TABLE["a"]))).astype(int)
MODEL = mh.LogisticRegression(mh.Box(a=(-1, 1), b=(-1, 1)))
PLACE = np.array([0.0, 1.0, 0.0])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as workers,
        Client(workers) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, of four row groups each; the second is empty."""
    folder = tmp_path_factory.mktemp("parts")
    table = pa.table(TABLE)
    for k, piece in enumerate((table[:9_000], table[:0], table[9_000:])):
        pq.write_table(piece, folder / f"{k}.parquet", row_group_size=2_500)
    return folder


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PARTITION", 5_000)
    monkeypatch.setattr(DaskRows, "first", 512)
    monkeypatch.setattr(DaskRows, "most", 8_192)


@pytest.fixture(scope="module")
def rows(client: Client, parts: Path) -> DaskRows:
    return DaskRows(client, parts, MODEL, target="y")


# -- the same ----------------------------------------------------------------------------------------------------------
def test_private_runs_are_those_of_rows_in_memory(rows: DaskRows, parts: Path) -> None:
    assert rows.count == rows.units == N
    here = mh.sample(MODEL, parts, target="y", budget=BUDGET, seed=2)
    there = mh.sample(MODEL, engine=rows, budget=BUDGET, seed=2)
    assert np.array_equal(here.draws, there.draws)
    assert here.privacy.rdp_spent == there.privacy.rdp_spent


@pytest.mark.parametrize(
    ("method", "steps"),
    [(mh.TunaMH(mh.RandomWalk(0.02), lam=40.0), 600), (mh.MetropolisHastings(mh.RandomWalk(0.02)), 8)],
)
def test_raw_methods_are_those_of_rows_in_memory(method: Any, steps: int, rows: DaskRows) -> None:
    held = MODEL.load(np.column_stack([TABLE["a"], TABLE["b"]]), TABLE["y"])
    draws = [s.run(s.init(PLACE), steps)[1] for s in (method.on(MODEL, r, seed=5) for r in (held, rows))]
    assert np.array_equal(*draws)
    assert np.array_equal(integer_sums(MODEL, held, PLACE)[1], integer_sums(MODEL, rows, PLACE)[1])
    assert total_energy(MODEL, held, PLACE) == total_energy(MODEL, rows, PLACE)


def test_units_keep_their_first_rows_across_partitions(client: Client, parts: Path) -> None:
    options: dict[str, Any] = {"target": "y", "unit": "who", "max_rows_per_unit": 2}
    here = mh.sample(MODEL, parts, budget=BUDGET, seed=2, **options)
    there = mh.sample(MODEL, engine=DaskRows(client, str(parts), MODEL, **options), budget=BUDGET, seed=2)
    assert np.array_equal(here.draws, there.draws)
    assert there.privacy == here.privacy
    assert (there.privacy.units, there.privacy.unit, there.outcome) == (N // 3, "who", "y")


@pytest.mark.parametrize(
    ("make", "place"), [(mh.Mixture, [0.2, 0.4]), pytest.param(boxed_mean, [0.5], marks=pytest.mark.slow)]
)
def test_models_without_columns(make: Any, place: list[float], client: Client) -> None:
    """A user's energy is compiled in every worker."""
    model, x = make(), RNG.normal(0.5, 1.2, 3_000)
    rows = DaskRows(client, [x[:1_000], client.scatter(x[1_000:])], model)
    for method, steps in ((mh.TunaMH(mh.RandomWalk(0.02), lam=50.0), 200), (mh.DPFastMHFull(mh.RandomWalk(0.02)), 6)):
        draws = [s.run(s.init(place), steps)[1] for s in (method.on(model, r, seed=1) for r in (model.load(x), rows))]
        assert np.array_equal(*draws)


def test_bulk_rows_are_uniform_over_rows_and_partitions(rows: DaskRows) -> None:
    """The numbers are the stream's; what comes back for each is its own row."""
    x, y = np.zeros((4_000, 3), np.float32), np.zeros(4_000, np.float32)
    index = RNG.integers(0, N, 4_000)
    index[:3] = 0, N - 1, 9_000
    rows.read(index, x, y)
    assert np.array_equal(x[:, 1], TABLE["a"][index])
    assert np.array_equal(y, TABLE["y"][index])


def test_sums_and_rows_do_not_depend_on_where_partitions_are(rows: DaskRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on how many of them a task has, nor on the way by which rows come; not even on what is out of date."""
    index = RNG.integers(0, N, 2_000)

    def everything() -> list[Any]:
        x, y = np.zeros((2_000, 3), np.float32), np.zeros(2_000, np.float32)
        rows.read(index, x, y)
        return [*integer_sums(MODEL, rows, PLACE)[:2], total_energy(MODEL, rows, PLACE), x, y]

    expected = everything()
    assert sorted(k for held in rows._placed() for k in held) == list(range(len(rows._parts)))
    assert rows._direct
    for name, value in (("_direct", False), ("_held", [[k] for k in range(len(rows._parts))])):
        monkeypatch.setattr(rows, name, value)
        assert all(np.array_equal(a, b) for a, b in zip(everything(), expected, strict=True))
    monkeypatch.setattr(rows, "_held", [list(range(len(rows._parts)))[::-1]])
    for together in (1, 1 << 17):
        monkeypatch.setattr(cluster, "TOGETHER", together)
        assert all(np.array_equal(a, b) for a, b in zip(everything(), expected, strict=True))


# -- workers that die --------------------------------------------------------------------------------------------------
def killed_in_passing(client: Client, seconds: float, done: threading.Event) -> int:
    """One worker, killed as if its machine had gone, unless the run ends first."""
    if done.wait(seconds):
        return 0
    pids = list(client.run(os.getpid).values())
    os.kill(pids[0], signal.SIGKILL)
    return 1


def run_with_a_death(client: Client, rows: DaskRows, after: float) -> tuple[Any, int]:
    done, killed = threading.Event(), []
    killer = threading.Thread(target=lambda: killed.append(killed_in_passing(client, after, done)))
    killer.start()
    try:
        found = mh.sample(MODEL, engine=rows, budget=BUDGET, seed=2)
    finally:
        done.set()
        killer.join()
    client.wait_for_workers(2, timeout=60)
    return found, killed[0]


def test_a_worker_that_dies_changes_nothing(client: Client, parts: Path) -> None:
    rows = DaskRows(client, parts, MODEL, target="y")
    began = time.monotonic()
    expected = mh.sample(MODEL, engine=rows, budget=BUDGET, seed=2)
    usual = time.monotonic() - began
    found, killed = run_with_a_death(client, rows, 0.4 * usual)
    assert np.array_equal(found.draws, expected.draws)
    assert found.privacy == expected.privacy
    assert killed == 1


@pytest.mark.slow
def test_deaths_at_twenty_moments_change_nothing(client: Client, parts: Path) -> None:
    rows = DaskRows(client, parts, MODEL, target="y")
    expected = mh.sample(MODEL, engine=rows, budget=BUDGET, seed=2)
    began = time.monotonic()
    mh.sample(MODEL, engine=rows, budget=BUDGET, seed=2)
    usual = time.monotonic() - began
    deaths = 0
    for moment in np.random.default_rng(8).uniform(0.0, 1.0, 20):
        found, killed = run_with_a_death(client, rows, moment * usual)
        deaths += killed
        assert np.array_equal(found.draws, expected.draws)
        assert found.privacy == expected.privacy
    assert deaths >= 15


# -- ledgers -----------------------------------------------------------------------------------------------------------
FLAT = mh.LogisticRegression(mh.Box(a=(-1, 1), b=(-1, 1)), temperature=20.0)


def test_a_ledger_knows_a_table_on_the_cluster(client: Client, parts: Path, tmp_path: Path) -> None:
    ledger = mh.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", "parts", mh.Budget(8.0, 1e-5))
    options: dict[str, Any] = {"budget": mh.Budget(0.5, 1e-6), "seed": 2, "ledger": ledger}
    mh.sample(FLAT, TABLE, target="y", **options)
    mh.sample(FLAT, engine=DaskRows(client, parts, FLAT, target="y"), **options)
    wider = mh.LogisticRegression(mh.Box(a=(-2, 2)), temperature=20.0)
    mh.sample(wider, engine=DaskRows(client, parts, wider, target="y"), **options)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({**TABLE, "b": np.where(np.arange(N) == 5, 0.5, TABLE["b"])}), other)
    with pytest.raises(mh.ledger.LedgerError, match="column 'b' differs"):
        mh.sample(FLAT, engine=DaskRows(client, other, FLAT, target="y"), **options)
    assert len(ledger.runs()) == 3


def test_a_ledger_knows_arrays_on_the_cluster(client: Client, tmp_path: Path) -> None:
    ledger = mh.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", "parts", mh.Budget(8.0, 1e-5))
    x, y = np.column_stack([TABLE["a"], TABLE["b"]]), TABLE["y"]
    options: dict[str, Any] = {"budget": mh.Budget(0.5, 1e-6), "seed": 2, "ledger": ledger}
    mh.sample(FLAT, x, y, **options)
    mh.sample(FLAT, engine=DaskRows(client, [(x[:9], y[:9]), (x[9:], y[9:])], FLAT), **options)
    with pytest.raises(mh.ledger.LedgerError, match="not the table of data set"):
        mh.sample(FLAT, engine=DaskRows(client, [(x, 1 - y)], FLAT), **options)


# -- checkpoints -------------------------------------------------------------------------------------------------------
def test_a_run_that_is_stopped_goes_on(client: Client, parts: Path, tmp_path: Path) -> None:
    """The rows are found again at the scheduler's address, or given; other rows are refused."""
    rows = DaskRows(client, parts, MODEL, target="y")
    expected = mh.sample(MODEL, engine=rows, budget=BUDGET, seed=2)

    def stop(progress: Any) -> None:
        if progress.phase == "main":
            os.kill(os.getpid(), signal.SIGINT)

    path = tmp_path / "run.checkpoint"
    with pytest.raises(KeyboardInterrupt, match="goes on"):
        mh.sample(MODEL, engine=rows, budget=BUDGET, seed=2, checkpoint=path, progress=stop)
    other = DaskRows(client, [str(parts / "2.parquet"), str(parts / "0.parquet")], MODEL, target="y")
    with pytest.raises(ValueError, match="its rows or their order have changed"):
        mh.resume(path, engine=other)
    with pytest.raises(RowsLost, match="no Dask scheduler answers at no-such-kind"):
        mh.resume(path, engine="no-such-kind://x")
    with pytest.raises(KeyboardInterrupt, match="goes on"):
        mh.resume(path, engine=rows, progress=stop)
    found = mh.resume(path)
    assert np.array_equal(found.draws, expected.draws)
    assert found.privacy == expected.privacy


# -- what is refused ---------------------------------------------------------------------------------------------------
def test_partitions_that_do_not_fit(client: Client, tmp_path: Path) -> None:
    pq.write_table(pa.table(TABLE), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": TABLE["a"], "y": TABLE["y"]}), tmp_path / "2.parquet")
    with pytest.raises(TableError, match=r"2.parquet: column 'b' is missing"):
        DaskRows(client, tmp_path, MODEL, target="y")
    pq.write_table(pa.table({**TABLE, "b": TABLE["b"].astype(str)}), tmp_path / "2.parquet")
    with pytest.raises(TableError, match=r"2.parquet: column 'b' holds text, and numbers in"):
        DaskRows(client, tmp_path, MODEL, target="y")
    pq.write_table(pa.table({**TABLE, "y": np.where(np.arange(N) == 20_000, 5, TABLE["y"])}), tmp_path / "2.parquet")
    with pytest.raises(TableError, match=r"2.parquet.*column 'y'.*unknown category 5"):
        DaskRows(client, tmp_path, MODEL, target="y")
    (tmp_path / "2.parquet").write_bytes((tmp_path / "1.parquet").read_bytes()[:-1000])
    with pytest.raises(TableError, match=r"2.parquet: cannot be read"):
        DaskRows(client, tmp_path, MODEL, target="y")


def test_arguments_that_do_not_go_together(client: Client, parts: Path, rows: DaskRows, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no Parquet files"):
        DaskRows(client, tmp_path, MODEL, target="y")
    with pytest.raises(FileNotFoundError, match="no such file"):
        DaskRows(client, tmp_path / "none", MODEL, target="y")
    with pytest.raises(ValueError, match="give a regression model and the target"):
        DaskRows(client, parts, MODEL)
    with pytest.raises(ValueError, match="arrays have none"):
        DaskRows(client, [np.zeros(3)], mh.Mixture(), target="y")
    with pytest.raises(TableError, match="projected for another model"):
        mh.sample(mh.LogisticRegression(mh.Box(a=(-2, 1), b=(-1, 1))), engine=rows, budget=BUDGET)


def test_a_scheduler_that_never_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:  # takes calls and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(RowsLost, match=rf"no Dask scheduler answers at {address}.*nothing was spent"):
            connect(address, timeout=2.0)
        assert time.monotonic() - began < 15.0
    (tmp_path / "schema.toml").write_text(
        'model = "logistic"\ntarget = "y"\n[columns.a]\nbounds = [-1, 1]\n[columns.y]\ncategories = [0, 1]\n'
    )
    told = ["fit", "nowhere", "--schema", str(tmp_path / "schema.toml"), "--epsilon", "1", "--delta", "1e-6"]
    assert main([*told, "--dask", "no-such-kind://x", "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "no Dask scheduler answers" in said[0]


def test_a_cluster_that_stops_answering_ends_the_run(client: Client, parts: Path) -> None:
    rows = DaskRows(client, parts, MODEL, target="y")
    rows._patience = 1e-4  # only now: what it read before it stopped answering may take as long as a busy machine needs
    with pytest.raises(RowsLost, match="did not answer for"):
        integer_sums(MODEL, rows, PLACE)


def test_the_command_fits_on_a_cluster(client: Client, parts: Path, tmp_path: Path) -> None:
    import json

    (tmp_path / "schema.toml").write_text(
        'model = "logistic"\ntarget = "y"\n[columns.a]\nbounds = [-1, 1]\n[columns.b]\nbounds = [-1, 1]\n'
        "[columns.y]\ncategories = [0, 1]\n"
    )
    told = ["fit", str(parts), "--schema", str(tmp_path / "schema.toml"), "--epsilon", "2", "--delta", "1e-6"]
    records = []
    for name, options in (("memory", []), ("dask", ["--dask", client.scheduler.address])):
        assert main([*told, "--seed", "1", "--quiet", *options, "-o", str(tmp_path / name)]) == 0
        records.append(json.loads((tmp_path / name / "privacy.json").read_text()))
        records[-1]["summary"] = (tmp_path / name / "summary.csv").read_text()
    assert records[0] == records[1]
