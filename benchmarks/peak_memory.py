"""Peak memory of one process that holds rows and samples from them; run on its own: ``peak_memory.py ROWS``.

Prints a JSON object, sizes in MB: ``above`` is the peak less the bare interpreter (with numpy) and the rows as given.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np


def status(key: str) -> float:
    """VmRSS (now) or VmHWM (highest) of this process in MB."""
    return int(re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024  # type: ignore[index]


def main(n: int, d: int = 10) -> None:
    bare = status("VmRSS")
    x, y = np.empty((n, d), np.float32), np.empty(n, np.float32)
    rng = np.random.default_rng(1)
    for start in range(0, n, 1 << 16):
        part = x[start : start + (1 << 16)]
        rng.random(out=part, dtype=np.float32)
        part *= 2.0
        part -= 1.0
        y[start : start + (1 << 16)] = rng.random(len(part), dtype=np.float32) < 0.5
    given = (x.nbytes + y.nbytes) / 2**20

    from dpfastmh.domain import Box
    from dpfastmh.methods import Coordinates, DPFastMH, RandomWalk, TunaMH
    from dpfastmh.models import LogisticRegression

    libraries = status("VmRSS") - bare - given
    model = LogisticRegression(Box.unit(d), intercept=False)
    rows = model.load(x, y)
    loaded = status("VmHWM") - bare - given
    plain = TunaMH(RandomWalk(1e-7), lam=60.0).on(model, rows)
    plain.run(plain.init(np.zeros(d)), 20_000, thin=10)
    expanded = DPFastMH(Coordinates(1e-3), full_batch=False).on(model, rows, reference=np.zeros(d))
    expanded.run(expanded.init(np.zeros(d)), 20_000, thin=10)
    above = status("VmHWM") - bare - given
    shared = bool(np.shares_memory(rows.x, x))
    print(json.dumps({"above": above, "libraries": libraries, "loaded": loaded, "bare": bare, "shared": shared}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
