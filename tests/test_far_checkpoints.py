"""Checkpoints of runs over rows that live elsewhere: going on, rows that come back, other rows, secrets."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crashing
import dpfastmh as mh
from dpfastmh.checkpoint import CheckpointError, Contents, encode, read, recorded
from dpfastmh.cli import main
from dpfastmh.data.engine import Integers, RowEngine, RowsLost
from dpfastmh.data.ingest import ingest, ingest_arrays
from dpfastmh.data.tables import TableError
from dpfastmh.posterior import Posterior
from dpfastmh.sampling import Progress
from dpfastmh.steps.likelihood import Rows

X, Y, MODEL, BUDGET = crashing.X, crashing.Y, crashing.MODEL, crashing.BUDGET
ROWS = MODEL.load(X, Y)


class Elsewhere(RowEngine):
    """An engine of one's own: the two verbs over arrays. Reads past ``last`` fail."""

    name = "elsewhere"
    units, rows_per_unit = crashing.ROWS, 1
    count, features, targets, dtype = crashing.ROWS, 3, True, ROWS.x.dtype
    first, most = 64, 512

    def __init__(self, rows: Rows = ROWS, last: int = 10**9) -> None:
        self.rows, self.last, self.reads = rows, last, 0

    def total(self, part: Callable[[Rows], Integers], threads: int | None = None) -> Integers:
        return part(self.rows)

    def read(self, index: Integers, x: Any, y: Any) -> None:
        self.reads += 1
        if self.reads > self.last:
            raise RowsLost("the disk is gone")
        x[:], y[:] = self.rows.x[index], self.rows.y[index]


def stop_at(number: int, phase: str = "main") -> Callable[[Progress], None]:
    seen = []

    def watch(progress: Progress) -> None:
        seen.append(progress.phase)
        if progress.phase == phase and seen.count(phase) == number:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def same(one: Posterior, other: Posterior) -> bool:
    return crashing.written(one) == crashing.written(other)


@pytest.fixture(scope="module")
def undisturbed() -> Posterior:
    return crashing.fit(None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ingest_arrays(MODEL, [(X, Y)], tmp_path_factory.mktemp("ingested") / "rows")


@pytest.fixture
def stopped(folder: Path, tmp_path: Path) -> Path:
    """The checkpoint of a run over mapped rows, stopped in its main phase."""
    path = tmp_path / "run.checkpoint"
    with pytest.raises(KeyboardInterrupt, match="goes on"):
        crashing.fit(path, rows=folder, progress=stop_at(4))
    return path


# -- the same run ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("phase", "number"), [("adapt", 1), ("main", 1), ("main", 9)])
def test_stopped_and_resumed(phase: str, number: int, folder: Path, tmp_path: Path, undisturbed: Posterior) -> None:
    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt, match="goes on"):
        crashing.fit(path, rows=folder, progress=stop_at(number, phase))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(KeyboardInterrupt):
        mh.resume(path, progress=stop_at(3))
    assert same(mh.resume(path), undisturbed)
    assert same(mh.resume(path), undisturbed)  # finished: no rows are asked for


def test_row_numbers_drawn_ahead_decide_what_follows(tmp_path: Path) -> None:
    """Negative control: without them, or with others, it is another run. (The mixture reads rows all along.)"""
    model, x = mh.Mixture(), np.random.default_rng(1).normal(0, 1, 3_000)
    rows = ingest_arrays(model, [x], tmp_path / "rows")
    options: dict[str, Any] = {"seed": 4, "budget": BUDGET, "proposal": mh.Coordinates(0.5), "max_time": 0.1}
    whole = mh.sample(model, x, **options)
    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        mh.sample(model, rows, engine="mapped", checkpoint=path, progress=stop_at(2), **options)
    held = read(path)
    names = [f"chain 0 secret unread {part}" for part in ("rows", "keep")]
    index, keep = (held.arrays[name] for name in names)
    assert index.size == keep.size > 100
    for changed in (
        dict(zip(names, (index[:0], keep[:0]), strict=True)),
        {names[0]: index[::-1]},
        {names[1]: 1 - keep},
    ):
        path.write_bytes(encode(Contents(held.head, held.arrays | changed)))
        assert not same(mh.resume(path, model=model), whole)
    path.write_bytes(encode(held))
    assert same(mh.resume(path, model=model), whole)


def test_rows_that_come_back(tmp_path: Path, undisturbed: Posterior) -> None:
    """A disk or a cluster that goes away ends nothing and costs nothing: the run waits in its checkpoint."""
    path, losses = tmp_path / "c", 0
    options: dict[str, Any] = {"budget": BUDGET, "every": 0.005, "seed": 17, "settings": crashing.SETTINGS}
    with pytest.raises(RowsLost, match=r"disk is gone. Once they can be had, dpfastmh resume \S+ goes on"):
        mh.sample(MODEL, engine=Elsewhere(last=20), checkpoint=path, **options)
    before = recorded(path)
    assert before.phase in ("opened", "main")
    with pytest.raises(CheckpointError, match="'elsewhere' rows, which are not to be found like that: give the engine"):
        mh.resume(path)
    for last in (12, 40, 10**9):
        engine = Elsewhere(last=last)
        try:
            found = mh.resume(path, engine=engine)
        except RowsLost:
            losses += 1
    assert losses
    assert same(found, undisturbed)
    assert found.privacy.rdp_spent == pytest.approx(float(recorded(path).charged), rel=1e-12)


def test_a_chain_at_its_end_needs_no_rows(tmp_path: Path) -> None:
    """What it read ahead and never used may fail to come."""
    feed = mh.TunaMH(mh.RandomWalk(0.01), lam=40.0).on(MODEL, Elsewhere(last=2), seed=1)._feed
    assert feed is not None
    feed._refill(0)  # the first two bulks; the third, read ahead, is lost
    feed._refill(0)
    index, keep = feed.unread()
    assert index.size == keep.size == 128 + 256
    with pytest.raises(RowsLost):
        feed._refill(0)


# -- other rows --------------------------------------------------------------------------------------------------------
def moved(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_folder_that_was_moved_is_the_same(
    folder: Path, stopped: Path, tmp_path: Path, undisturbed: Posterior
) -> None:
    assert same(mh.resume(stopped, moved(folder, tmp_path / "moved")), undisturbed)


def test_other_rows_are_refused(folder: Path, stopped: Path, tmp_path: Path) -> None:
    before = stopped.read_bytes()
    order = ingest_arrays(MODEL, [(X[::-1], Y[::-1])], tmp_path / "order")
    with pytest.raises(ValueError, match="not the one that this run began with: its rows or their order"):
        mh.resume(stopped, order)
    other = mh.LogisticRegression(mh.Box(a=(-2, 1), b=(-1, 1)))
    with pytest.raises(TableError, match="another schema"):
        mh.resume(stopped, ingest_arrays(other, [(X, Y)], tmp_path / "schema"))
    changed = moved(folder, tmp_path / "changed")
    content = bytearray((changed / "x.bin").read_bytes())
    content[1000] ^= 1
    (changed / "x.bin").write_bytes(content)
    with pytest.raises(TableError, match="checksums differ"):
        mh.resume(stopped, changed)
    edited = moved(folder, tmp_path / "edited")
    manifest = json.loads((edited / "manifest.json").read_text())
    (edited / "manifest.json").write_text(json.dumps(manifest | {"units": manifest["units"] + 1}))
    with pytest.raises(ValueError, match="not the one that this run began with"):
        mh.resume(stopped, edited)
    with pytest.raises(OSError, match=r"manifest\.json: cannot be read"):
        mh.resume(stopped, tmp_path / "nowhere")
    for given in ({"x": X, "y": Y}, {"engine": "tcp://127.0.0.1:1"}):
        with pytest.raises(CheckpointError, match="'mapped' rows, which are not to be found like that"):
            mh.resume(stopped, **given)
    with pytest.raises(ValueError, match="engine holds the rows already"):
        mh.resume(stopped, folder, engine=Elsewhere())
    with pytest.raises(ValueError, match="not the one that this run began with"):
        mh.resume(stopped, engine=Elsewhere(MODEL.load(X[::-1], Y[::-1])))
    assert stopped.read_bytes() == before


def test_rows_in_memory_stay_there(folder: Path, tmp_path: Path, undisturbed: Posterior) -> None:
    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        mh.sample(
            MODEL, folder, budget=BUDGET, seed=17, checkpoint=path, settings=crashing.SETTINGS, progress=stop_at(2)
        )
    with pytest.raises(CheckpointError, match="had its rows in memory"):
        mh.resume(path, engine=Elsewhere())
    assert same(mh.resume(path), undisturbed)


# -- secrets and damage ------------------------------------------------------------------------------------------------
def test_numbers_of_unread_rows_are_in_the_checkpoint_alone(stopped: Path) -> None:
    before = read(stopped).arrays
    unread = [value for name, value in before.items() if "unread" in name]
    assert len(unread) == 4
    found = mh.resume(stopped)
    raw = stopped.read_bytes() + repr(found).encode() + found.draws.tobytes()
    for value in unread:
        assert value.size
        assert value.tobytes()[:32] not in raw
    assert not [name for name in read(stopped).arrays if "secret" in name]
    assert read(stopped).head["table"]["engine"] is None  # what is chosen by the table's size is not told


def test_numbers_that_compiled_code_would_trip_over_are_refused(stopped: Path) -> None:
    held = read(stopped)
    damage: list[tuple[str, Callable[[Any], Any]]] = [
        ("rows", lambda a: a + 10**6),
        ("rows", lambda a: -a - 1),
        ("rows", lambda a: a[:-1]),
        ("rows", lambda a: a.astype(np.float64)),
        ("rows", lambda a: a[None]),
        ("keep", lambda a: a + 1),
        ("keep", lambda a: a * np.nan),
    ]
    for part, change in damage:
        name = f"chain 0 secret unread {part}"
        stopped.write_bytes(encode(Contents(held.head, held.arrays | {name: change(held.arrays[name])})))
        with pytest.raises(CheckpointError, match="the rows drawn ahead are not rows of this table"):
            mh.resume(stopped)
    without = {name: value for name, value in held.arrays.items() if "unread" not in name}
    stopped.write_bytes(encode(Contents(held.head, without)))
    with pytest.raises(CheckpointError, match="lacks a part"):
        mh.resume(stopped)
    for engine in (None, {}, {"name": "mapped"}, {"name": "dask"}, {"name": 7}, [], {"name": "dask", "source": "x"}):
        head = held.head | {"table": held.head["table"] | {"engine": engine}}
        stopped.write_bytes(encode(Contents(head, held.arrays)))
        with pytest.raises((ValueError, OSError)) as refused:
            mh.resume(stopped)
        assert "\n" not in str(refused.value)


# -- the commands ------------------------------------------------------------------------------------------------------
def test_fit_and_resume_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"a": X[:, 0], "b": X[:, 1], "y": Y.astype(int)}
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'model = "logistic"\ntarget = "y"\n[columns.a]\nbounds = [-1, 1]\n[columns.b]\nbounds = [-1, 1]\n'
        "[columns.y]\ncategories = [0, 1]\n"
    )
    rows = ingest(mh.LogisticRegression(mh.Box(a=(-1, 1), b=(-1, 1))), table, tmp_path / "rows", target="y")
    told = ["fit", str(rows), "--schema", str(schema), "--epsilon", "4", "--delta", "1e-6", "--seed", "1", "--quiet"]
    told += ["--temperature", "20", "--engine", "mapped", "--draws", "200"]
    assert main([*told, "-o", str(tmp_path / "whole")]) == 0
    monkeypatch.setattr("dpfastmh.display.Display.update", lambda self, progress: watch(progress))
    watch = stop_at(1)
    kept = ["--checkpoint", str(tmp_path / "c"), "-o", str(tmp_path / "out")]
    assert main([*told, *kept]) == 1
    assert "goes on" in capsys.readouterr().err
    watch = stop_at(10**6)
    assert main(["resume", str(tmp_path / "c"), "--dask", "tcp://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["resume", str(tmp_path / "c"), "--quiet"]) == 0
    for name in ("summary.csv", "privacy.json"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "whole" / name).read_text()


# -- ledgers -----------------------------------------------------------------------------------------------------------
def test_a_ledger_tells_rows_of_an_engine_of_ones_own_apart(tmp_path: Path) -> None:
    ledger = mh.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", "own", mh.Budget(8.0, 1e-5))
    flat = mh.LogisticRegression(mh.Box.unit(2), temperature=500.0)
    options: dict[str, Any] = {"budget": mh.Budget(0.1, 1e-6), "ledger": ledger, "draws": 20}
    mh.sample(flat, engine=Elsewhere(), **options)
    mh.sample(flat, engine=Elsewhere(MODEL.load(X[::-1], Y[::-1])), **options)
    with pytest.raises(mh.ledger.LedgerError, match="not the table of data set"):
        mh.sample(flat, engine=Elsewhere(MODEL.load(X, 1 - Y)), **options)


def test_a_ledger_waits_for_lost_rows(tmp_path: Path) -> None:
    """What a run may still spend stays reserved; the run that goes on settles it."""
    ledger = mh.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", "own", mh.Budget(8.0, 1e-5))
    options: dict[str, Any] = {"budget": BUDGET, "seed": 17, "settings": crashing.SETTINGS, "ledger": ledger}
    reads = Elsewhere()
    mh.sample(MODEL, engine=reads, **options)
    path = tmp_path / "c"
    lost = Elsewhere(last=reads.reads - 4)  # some are for the fingerprints
    with pytest.raises(RowsLost, match="goes on"):
        mh.sample(MODEL, engine=lost, checkpoint=path, every=0.005, **options)
    assert [run.status for run in ledger.runs()] == ["settled", "open"]
    mh.resume(path, engine=Elsewhere(), ledger=ledger)
    assert [run.status for run in ledger.runs()] == ["settled", "settled"]
