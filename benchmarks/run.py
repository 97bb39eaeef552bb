"""All benchmarks: a table on the screen and ``results/core.json`` beside this file.

    python benchmarks/run.py [--only PART] [--quick] [--rows N]

Times of single chains are processor time of their thread, medians of interleaved repetitions; the speed-up of two
threads, process starts and the part ``rows`` are wall-clock times. That part is run only when it is asked for.
``--quick`` is a smoke test: smaller data, fewer repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np

import checkpoints
import control_variates
import ledger
import minibatch
import mixture
import privacy
import processes
import rows
import threads
from measure import Row

PARTS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "control-variates": control_variates.results,
    "threads": threads.results,
    "mixture": mixture.results,
    "minibatch": minibatch.results,
    "memory": processes.memory_results,
    "import": processes.start_results,
    "privacy": privacy.results,
    "ledger": ledger.results,
    "checkpoints": checkpoints.results,
    "rows": rows.results,
}
ON_REQUEST = ("rows",)  # long, and large on the disk
OUTPUT = Path(__file__).parent / "results" / "core.json"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the compiled core and compare it with its targets.")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only; may be given several times")
    parser.add_argument("--quick", action="store_true", help="smaller data and fewer repetitions: a smoke test")
    parser.add_argument("--rows", type=int, default=rows.LARGEST, help="rows of the largest table of the part rows")
    options = parser.parse_args()
    rows.LARGEST = options.rows
    before, begun = os.getloadavg(), time.perf_counter()
    print(f"{_processor()}, {os.cpu_count()} processors, load {before[0]:.1f}")
    found: list[Row] = []
    for name, part in PARTS.items():
        if name in (options.only or [other for other in PARTS if other not in ON_REQUEST]):
            for row in part(options.quick):
                found.append(row)
                print(_line(row), flush=True)
    missed = sum(row.verdict == "MISS" for row in found)
    print(f"{missed} of {sum(bool(row.target) for row in found)} targets missed, {time.perf_counter() - begun:.0f} s")
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(_record(found, before, options.quick), indent=1, ensure_ascii=False) + "\n")


def _line(row: Row) -> str:
    figure = f"{row.figure:.0f}" if row.figure >= 1000 else f"{row.figure:.3g}"
    head = f"{row.part:17}{row.what:70}{figure:>9} {row.unit:8}{row.target:9}{row.verdict:5}"
    return f"{head.rstrip()}\n{'':17}  {row.note}" if row.note else head.rstrip()


def _record(rows: list[Row], before: tuple[float, float, float], quick: bool) -> dict[str, object]:
    return {
        "processor": _processor(),
        "processors": os.cpu_count(),
        "load_before": before,
        "load_after": os.getloadavg(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "quick": quick,
        "results": [row._asdict() | {"verdict": row.verdict} for row in rows],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
