"""What has to be measured in a process of its own: peak memory, and the time to import and to start."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from measure import Row, spread

HERE = Path(__file__).parent


def memory_results(quick: bool) -> Iterator[Row]:
    n = 1_000_000 if quick else 10_000_000
    _peak(1_000)  # fills the disk cache of compiled code: what compiling takes is not what sampling takes
    small, large = _peak(1_000), _peak(n)
    note = (
        f"of which libraries and compiled code {small['above']:.0f} MB (as with 1,000 rows); "
        f"highest while loading {large['loaded']:.0f} MB"
    )
    what = f"N=1e{len(str(n)) - 1} d=10 float32: peak above bare interpreter and rows"
    yield Row("memory", what, large["above"], "MB", "<= 200", note)
    yield Row("memory", "rows on the domain are used without a copy", float(large["shared"]), "1 = yes", ">= 1")


def _peak(n: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, str(HERE / "peak_memory.py"), str(n)], check=True, capture_output=True, text=True
    )
    return dict(json.loads(done.stdout))


def start_results(quick: bool) -> Iterator[Row]:
    repeats = 5 if quick else 11
    imports = [_import_seconds() for _ in range(repeats + 1)][1:]
    yield Row("import", 'python -X importtime -c "import dpfastmh"', median(imports), "s", "<= 0.4", spread(imports))
    command = Path(sys.executable).parent / "dpfastmh"
    helps = [_help_seconds(command) for _ in range(repeats + 1)][1:]
    note = spread(helps) if all(map(math.isfinite, helps)) else "the command fails"
    yield Row("import", "dpfastmh --help", median(helps), "s", "<= 0.5", note)


def _import_seconds() -> float:
    """What the interpreter reports for the package and all that it imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import dpfastmh"], check=True, capture_output=True, text=True
    )
    line = next(line for line in reversed(done.stderr.splitlines()) if line.split("|")[-1].strip() == "dpfastmh")
    return int(line.split("|")[1]) / 1e6


def _help_seconds(command: Path) -> float:
    """Wall-clock time of the command; not a number when it fails."""
    start = time.perf_counter()
    try:
        done = subprocess.run([command, "--help"], capture_output=True, env=os.environ | {"COLUMNS": "100"})
    except OSError:
        return math.nan
    return time.perf_counter() - start if done.returncode == 0 else math.nan
