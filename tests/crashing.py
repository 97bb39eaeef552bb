"""A run in a process of its own, to be killed: ``work`` fits or resumes, and writes down what came out.

Processes are forked from a server that has everything compiled, so that a run begins at once.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

import dpfastmh as mh
from dpfastmh import outputs
from dpfastmh.checkpoint import Keeper
from dpfastmh.posterior import Posterior
from dpfastmh.resuming import resume
from dpfastmh.sampling import sample

ROWS = 3_000
RNG = np.random.default_rng(61)
X = RNG.uniform(-1, 1, (ROWS, 2))
Y = (RNG.random(ROWS) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
MODEL = mh.LogisticRegression(mh.Box.unit(2), temperature=20.0)
BUDGET = mh.Budget(4.0, 1e-6)
EVERY = 0.005
SETTINGS = mh.Settings(patience=0.1)  # a short run


def fit(checkpoint: Path | None, seed: int | None = 17, rows: Path | None = None, **options: Any) -> Posterior:
    """A run over the table in memory, or over the folder ``rows`` with the same rows."""
    table: dict[str, Any] = {"x": X, "y": Y} if rows is None else {"x": rows, "engine": "mapped"}
    options = {"budget": BUDGET, "every": EVERY, "settings": SETTINGS} | options
    return sample(MODEL, **table, seed=seed, checkpoint=checkpoint, **options)


def written(found: Posterior) -> dict[str, Any]:
    """Everything that a run gives out, as text."""
    arrays = (found.draws, found.accepted, found.tried, found.spending)
    return {
        "arrays": hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest(),
        "privacy": repr(found.privacy),
        "start": repr(found.start),
        "warnings": repr(found.warnings),
    }


def work(
    checkpoint: str, result: str, deadly: str, started: Any, seed: int | None = 17, rows: Path | None = None
) -> None:
    """Fit, or resume where there is a checkpoint; die at the point called ``deadly``."""
    arm(deadly)
    started.send("go")
    path = Path(checkpoint)
    table = (X, Y) if rows is None else ()  # a folder is where it was
    found = resume(path, *table) if path.exists() else fit(path, seed, rows)
    die_at("done", deadly)
    outputs.replace_file(result, json.dumps(written(found)).encode())


def die_at(point: str, deadly: str) -> None:
    if point == deadly:
        os.kill(os.getpid(), signal.SIGKILL)


def arm(deadly: str) -> None:
    """Make this process die at a point: "PHASE before", "PHASE half", "PHASE written" or "PHASE after" a save."""
    phase = deadly.split(" ")[0]
    save, write = Keeper.save, outputs._write

    def saving(self: Keeper, now: str, *rest: Any) -> None:
        if now != phase:
            return save(self, now, *rest)

        def half(path: Path, content: bytes, mode: int = 0o666) -> None:
            if deadly == f"{phase} half":
                write(path, content[: len(content) // 2], mode)
                die_at(f"{phase} half", deadly)
            write(path, content, mode)
            die_at(f"{phase} written", deadly)

        die_at(f"{phase} before", deadly)
        outputs._write = half
        save(self, now, *rest)
        die_at(f"{phase} after", deadly)
        outputs._write = write

    Keeper.save = saving  # type: ignore[method-assign]


def server() -> Any:
    """The context that processes come from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crashing_warm"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where the server, a fresh program, finds what to preload
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


def finish(process: BaseProcess, seconds: float = 60.0) -> int | None:
    """Its exit code, whatever becomes of it."""
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("the run did not end")
    return process.exitcode
