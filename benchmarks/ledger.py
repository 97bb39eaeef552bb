"""What a ledger adds to a fit: reserving and settling, opening a long history, knowing the table again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from statistics import median
from time import perf_counter

import numpy as np

from dpfastmh.budget import Budget
from dpfastmh.data.fingerprint import Fingerprint
from dpfastmh.ledger import Ledger
from measure import Row, cpu_microseconds, wall_seconds

RUN = Budget(0.01, 1e-6)


def results(quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/ledger.db"
        ledger = Ledger.create(url, "benchmark", Budget(4.0, 1e-6))
        times = [_run(ledger) for _ in range(200 if quick else 1_000)]
        first, last = sorted(times[:100]), sorted(times[-100:])
        note = f"wall clock, of 100 runs 90 within {first[90]:.1f} ms"
        yield Row("ledger", "SQLite: reserve and settle, a new ledger", median(first), "ms", "<= 20", note)
        what = f"SQLite: reserve and settle after {len(times) - 100:,} runs"
        yield Row("ledger", what, median(last), "ms", "<= 20")
        opening = min(wall_seconds(lambda: Ledger(url, "benchmark")) for _ in range(5)) * 1e3
        yield Row("ledger", f"SQLite: open and check a ledger of {len(times):,} runs", opening, "ms")
    cells = np.random.default_rng(0).random(10**6 if quick else 10**8, dtype=np.float32)
    mark = Fingerprint(b"k" * 32)
    microseconds, _ = cpu_microseconds(lambda: mark.add("x", cells), cells.nbytes)
    note = "processor time, beside that of reading the table"
    yield Row("ledger", "fingerprint of a table in single precision", microseconds * 1e3, "s/GB", "<= 1", note)


def _run(ledger: Ledger) -> float:
    """Milliseconds for all that a run asks of its ledger."""
    begun = perf_counter()
    ledger.reserve(RUN, steps=1_000, units=1_000).settle()
    return (perf_counter() - begun) * 1e3
