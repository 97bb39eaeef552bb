"""What checkpoints cost: the same run without them and with one a second, and what one of them takes.

The runs are private fits of the fastest kind of chain, where a checkpoint weighs most. Times are processor time of the
whole process per step, so that neighbours on the machine count little; a checkpoint's waiting for the disk is no
processor time, and the chains do not wait for it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import dpfastmh as mh
from dpfastmh.checkpoint import Keeper
from measure import Row, interleaved

ROWS, COLUMNS = 100_000, 10


def results(quick: bool) -> Iterator[Row]:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (ROWS, COLUMNS))
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    model = mh.LogisticRegression(mh.Box.unit(COLUMNS), temperature=20.0)
    with tempfile.TemporaryDirectory() as folder:
        rows = mh.ingest_arrays(model, [(x, y)], Path(folder) / "rows")
        yield from cost("rows in memory", model, {"x": x, "y": y}, quick)
        yield from cost("rows in files", model, {"x": rows, "engine": "mapped"}, quick)


def cost(where: str, model: mh.GLM, table: dict[str, Any], quick: bool) -> Iterator[Row]:
    settings = mh.Settings(patience=60.0, laziness=0.25 if quick else 1.0)  # runs of some seconds, to the cap on steps
    taken: list[float] = []  # of each checkpoint: processor time of the thread that writes it

    def seconds_per_step(every: float | None) -> float:
        with tempfile.TemporaryDirectory() as folder:
            file = None if every is None else Path(folder) / "checkpoint"
            start = time.process_time()
            options: dict[str, Any] = {"budget": mh.Budget(6.0, 1e-6), "seed": 1, "settings": settings}
            found = mh.sample(model, **table, **options, checkpoint=file, every=every or 1.0)
            return (time.process_time() - start) / found.privacy.steps

    save = Keeper.save

    def timed(self: Keeper, *state: object) -> None:
        start = time.thread_time()
        save(self, *state)  # type: ignore[arg-type]
        taken.append(time.thread_time() - start)

    seconds_per_step(None)  # compile
    jobs = {"without": lambda: seconds_per_step(None), "with": lambda: seconds_per_step(1.0)}
    times = interleaved(jobs, 2 if quick else 5)
    Keeper.save = timed  # type: ignore[method-assign]
    try:
        seconds_per_step(0.02)
    finally:
        Keeper.save = save  # type: ignore[method-assign]
    plain = median(times["without"])
    yield Row("checkpoints", f"{where}: a step of the whole run without checkpoints", plain * 1e6, "us")
    excess = median(b / a for a, b in zip(times["without"], times["with"], strict=True)) - 1.0
    note = f"processor time, median of {len(times['with'])} pairs of runs"
    yield Row("checkpoints", f"{where}: more of it with a checkpoint every second", 100.0 * excess, "%", "<= 2", note)
    each = median(taken)
    note = f"{len(taken)} of them; the main thread's processor time, so {100 * each:.2g}% of one processor"
    yield Row("checkpoints", f"{where}: writing one checkpoint", each * 1e3, "ms", "<= 20", note)
