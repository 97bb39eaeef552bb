"""The first fit on a machine compiles the loop for some ten seconds: a second process does it beside all the rest.

It is given the model, which is public, runs no step on two made-up rows, and leaves the machine code where Numba looks
for it (``NUMBA_CACHE_DIR`` or beside the source). Whatever goes wrong there, the loop is compiled when it is needed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dpfastmh.models import Model

LONGEST = 120.0  # seconds that a chain waits
_processes: list[subprocess.Popen[bytes]] = []


def begin(model: Model) -> bool:
    """Have the loop for ``model`` and rows in memory compiled elsewhere, if it never was here. True if it is."""
    from dpfastmh.steps.compiled import SHIPPED

    if not model.shipped or not sys.executable or processors() < 2 or known(SHIPPED.advance):
        return False
    # -P: no module of the present folder is taken for one of ours
    command = [sys.executable, "-P", "-c", "from dpfastmh.steps.ahead import main; main()"]
    silent = subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent)
    except OSError:
        return False  # the system has no room for one more
    _processes.append(process)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # where it has died already
        pickle.dump(model, process.stdin)
    return True


def wait() -> None:
    """Before the loop is first called. Chains in several threads may all wait."""
    for process in _processes:
        try:
            process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
    _processes.clear()


def known(loop: Callable[..., Any]) -> bool:
    """Has this function been compiled on this machine since it was last written?"""
    found: Any = loop
    folder, source = found.stats.cache_path, Path(found.py_func.__code__.co_filename)
    if folder is None:
        return True  # Numba has no place to keep anything: nothing can be left for us
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    name = found.py_func.__qualname__.translate({ord("<"): None, ord(">"): None})
    kept = Path(folder).glob(f"{source.stem}.{name}-*{version}.nbi")
    return any(index.stat().st_mtime >= source.stat().st_mtime for index in kept)


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """The second process: no steps with the model that comes in."""
    from dpfastmh.data import memory
    from dpfastmh.methods import DPFastMH, RandomWalk

    model: Model = pickle.load(sys.stdin.buffer)
    nothing = np.zeros((2, model.table().unit.size), np.float32)  # type: ignore[attr-defined]
    rows = memory.rows(nothing, np.zeros(2, np.float32))
    sampler = DPFastMH(RandomWalk(1.0)).on(model, rows, seed=0)
    sampler.run(sampler.init(np.zeros(len(model.parameters))), 0)
