"""Runs that are killed, at random moments and at each named point, and resumed: the same run every time."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crashing
from dpfastmh.checkpoint import BEGUN, CheckpointError, recorded
from dpfastmh.data.ingest import ingest_arrays
from dpfastmh.resuming import resume

POINTS = ["done"]
for phase in ("begun", "opened", "main", "finished"):
    POINTS += [f"{phase} before", f"{phase} half", f"{phase} written", f"{phase} after"]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    return crashing.written(crashing.fit(None))


class Trial:
    """One run in a folder of its own, through any number of deaths."""

    def __init__(self, folder: Path, rows: Path | None = None) -> None:
        self.context, self.rows = crashing.server(), rows
        self.checkpoint, self.result = folder / "run.checkpoint", folder / "result.json"

    def go(self, deadly: str = "", after: float | None = None, seed: int | None = 17) -> float:
        """Fit or resume, to the end, to the point ``deadly``, or killed ``after`` seconds; how long it took."""
        if self.checkpoint.exists() and recorded(self.checkpoint).phase == BEGUN:
            with pytest.raises(CheckpointError, match="released nothing"):
                resume(self.checkpoint, crashing.X, crashing.Y)
            self.checkpoint.unlink()  # what the message says: begin a new run
        ours, theirs = self.context.Pipe()
        process = self.context.Process(
            target=crashing.work, args=(str(self.checkpoint), str(self.result), deadly, theirs, seed, self.rows)
        )
        process.start()
        ours.recv()
        began = time.monotonic()
        if after is not None:
            time.sleep(after)
            process.kill()
        code = crashing.finish(process)
        assert code in (0, -9), code
        assert code == -9 or self.result.exists()  # it may be killed with all its work done
        return time.monotonic() - began

    def outcome(self) -> dict[str, Any]:
        while not self.result.exists():
            self.go()
        found = recorded(self.checkpoint)
        assert found.finished
        assert not list(self.checkpoint.parent.glob(".run.checkpoint*"))  # no lock, and nothing half-written
        return json.loads(self.result.read_text())


def survives(
    folder: Path, undisturbed: dict[str, Any], dice: random.Random, length: float, rows: Path | None = None
) -> bool:
    """Kill a run at a random moment, perhaps its resumption too; did it leave a checkpoint to go on from?"""
    folder.mkdir()
    trial = Trial(folder, rows)
    trial.go(after=dice.uniform(0.0, 1.05 * length))
    useful = trial.checkpoint.exists() and recorded(trial.checkpoint).phase != BEGUN
    if dice.random() < 0.5 and not trial.result.exists():
        trial.go(after=dice.uniform(0.0, length))
    assert trial.outcome() == undisturbed
    shutil.rmtree(folder)
    return useful


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_named_point(point: str, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    trial = Trial(tmp_path)
    trial.go(deadly=point)
    assert not trial.result.exists(), "the run never came to that point"
    assert trial.outcome() == undisturbed


def test_killed_at_random_moments(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    dice = random.Random(5)
    (tmp_path / "whole").mkdir()
    length = Trial(tmp_path / "whole").go()
    useful = [survives(tmp_path / str(number), undisturbed, dice, length) for number in range(10)]
    assert any(useful)


@pytest.mark.slow
def test_killed_at_two_hundred_random_moments(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    dice = random.Random(6)
    (tmp_path / "whole").mkdir()
    length = Trial(tmp_path / "whole").go()
    useful = [survives(tmp_path / str(number), undisturbed, dice, length) for number in range(220)]
    assert sum(useful) > 100
    print(f"220 runs killed, {sum(useful)} of them with a checkpoint to go on from")


# -- rows in files -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ingested") / "rows"
    return ingest_arrays(crashing.MODEL, [(crashing.X, crashing.Y)], folder)


@pytest.mark.parametrize("point", ["opened after", "main half", "main after", "finished before"])
def test_killed_over_rows_in_files(point: str, rows: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """Rows that were read ahead are gone with the process; their numbers are not. The same run as from memory."""
    trial = Trial(tmp_path, rows)
    trial.go(deadly=point)
    assert not trial.result.exists(), "the run never came to that point"
    assert trial.outcome() == undisturbed


@pytest.mark.slow
def test_killed_over_rows_in_files_at_random_moments(rows: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    dice = random.Random(7)
    (tmp_path / "whole").mkdir()
    length = Trial(tmp_path / "whole", rows).go()
    useful = [survives(tmp_path / str(number), undisturbed, dice, length, rows) for number in range(40)]
    assert sum(useful) > 15


def test_without_a_seed_every_resumption_is_the_same_run(tmp_path: Path) -> None:
    """Secure streams: two copies of one checkpoint lead to the same draws, so that they cost what one does."""
    trial = Trial(tmp_path)
    trial.go(deadly="main after", seed=None)
    before = recorded(trial.checkpoint)
    copy = shutil.copy(trial.checkpoint, tmp_path / "copy")
    one, other = (resume(path, crashing.X, crashing.Y) for path in (trial.checkpoint, copy))
    assert one.privacy.private
    assert crashing.written(one) == crashing.written(other)
    assert recorded(copy).charged > before.charged > 0
    assert one.privacy.rdp_spent == pytest.approx(float(recorded(copy).charged), rel=1e-12)
    another = crashing.fit(None, seed=None)
    assert not np.array_equal(one.draws[0, :5], another.draws[0, :5])


def test_a_run_that_is_not_the_same_is_caught(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """Negative control: a resumption that forgets the rows drawn ahead, or draws another seed, shows."""
    other = crashing.written(crashing.fit(None, seed=18))
    assert other["arrays"] != undisturbed["arrays"]
