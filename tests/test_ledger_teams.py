"""Many processes at one ledger: no overdraft, no lost entry, no deadlock; in SQLite and in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpfastmh.budget import Budget
from dpfastmh.ledger import Ledger, LedgerError
from ledgers import outputs, postgres, postgres_programs, script

TOTAL = Budget(2.0, 1e-6)
PROCESSES = 8

# Reserves a run of epsilon 0.1, spends a part of it, settles: as sample does, without the sampling. Where there is no
# room it says so. The last try of every process is left unsettled, as by a crash.
RESERVER = """
import json, random, sys, time
from dpfastmh.budget import Budget
from dpfastmh.ledger import Ledger, Overdraft
url, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
ledger = Ledger(url, "patients")
settled, refused, opened = {}, 0, time.time()
for turn in range(count):
    try:
        hold = ledger.reserve(Budget(0.1, 1e-6), steps=1000, units=5)
    except Overdraft:
        refused += 1
        continue
    hold.account.charge("x", hold.account.left * (0.8 + 0.2 * rng.random()))
    if turn < count - 1:
        hold.settle()
    settled[hold.run_id] = [hold.account.spent, hold.account.alpha]
print(json.dumps([settled, refused, opened, time.time()]))
"""

# The same with whole fits of a small table
FITTER = """
import json, sys, time
import numpy as np
import dpfastmh as mh
from dpfastmh.ledger import Overdraft
url, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (2000, 2))
y = (rng.random(2000) < 0.5).astype(float)
model = mh.LogisticRegression(mh.Box.unit(2), temperature=1000.0)
ledger = mh.Ledger(url, "patients")
settled, refused, opened = {}, 0, time.time()
for turn in range(count):
    try:
        found = mh.sample(model, x, y, budget=mh.Budget(0.1, 1e-6), draws=20, threads=1, ledger=ledger)
    except Overdraft:
        refused += 1
        continue
    settled[f"{seed}-{turn}"] = [found.privacy.rdp_spent, found.privacy.alpha]
print(json.dumps([settled, refused, opened, time.time()]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


def together(url: str, program: str, count: int, timeout: float) -> tuple[dict[str, list[float]], int, float]:
    """Run it in eight processes at once; what all of them say, and for how long they used the ledger."""
    told = [json.loads(out) for out in outputs([script(program, url, k, count) for k in range(PROCESSES)], timeout)]
    spent = {run: cost for settled, *_ in told for run, cost in settled.items()}
    assert sum(len(settled) for settled, *_ in told) == len(spent)
    took = max(ended for *_, ended in told) - min(opened for _, _, opened, _ in told)
    return spent, sum(refused for _, refused, *_ in told), took


def check_reserver(url: str, count: int) -> str:
    """Eight processes, and every number accounted for."""
    ledger = Ledger.create(url, "patients", TOTAL)
    spent, refused, took = together(url, RESERVER, count, 550)
    ledger.verify()
    runs = {run.run_id: run for run in ledger.runs()}
    standing = ledger.standing()
    assert set(runs) == set(spent)
    assert len(spent) + refused == PROCESSES * count
    assert standing.taken <= standing.limit
    assert sum(run.status == "open" for run in runs.values()) == standing.open_runs <= PROCESSES
    for run_id, (cost, alpha) in spent.items():
        if runs[run_id].status == "settled":
            assert runs[run_id].points[0][1] / 2**64 == pytest.approx(cost * ledger.alpha / alpha, rel=1e-9)
    if count == 50:  # 400 tries, and the total is enough for about 360 at what they spend
        assert refused > 0
        assert standing.taken > 0.98 * standing.limit
        with pytest.raises(LedgerError, match="room for"):
            ledger.reserve(Budget(0.1, 1e-6), steps=1000, units=5)
    return f"{len(spent)} reserved, {refused} refused, {(2 * len(spent) + refused) / took:.0f} transactions/s"


def test_eight_processes_at_one_sqlite_file(tmp_path: Path) -> None:
    print(check_reserver(f"sqlite:///{tmp_path}/ledger.db", 50))


if postgres_programs() is not None:  # the long tests below insist on it

    def test_eight_processes_at_one_postgresql_server(server: str) -> None:
        print(check_reserver(server, 5))


def check_fitter(url: str, tmp_path: Path) -> None:
    """8 × 50 whole fits."""
    first = f"sqlite:///{tmp_path}/first.db"  # one fit alone, so that the loops are compiled once and not eight times
    Ledger.create(first, "patients", TOTAL)
    outputs([script(FITTER, first, 0, 1)], 900)
    ledger = Ledger.create(url, "patients", Budget(0.7, 1e-6))  # not enough for all of them
    spent, refused, took = together(url, FITTER, 50, 3000)
    ledger.verify()
    standing = ledger.standing()
    assert len(spent) + refused == PROCESSES * 50
    assert refused > 0
    assert standing.runs == len(spent)
    assert standing.open_runs == 0
    assert standing.taken <= standing.limit
    total = sum(cost * ledger.alpha / alpha for cost, alpha in spent.values())
    assert standing.taken == pytest.approx(total, rel=1e-9)
    print(f"{len(spent)} fits, {refused} refused, {len(spent) / took:.1f} fits/s")


@pytest.mark.slow
def test_eight_processes_fit_fifty_times_with_one_sqlite_file(tmp_path: Path) -> None:
    check_fitter(f"sqlite:///{tmp_path}/ledger.db", tmp_path)


@pytest.mark.slow
def test_eight_processes_fit_fifty_times_with_one_postgresql_server(tmp_path: Path) -> None:
    with postgres() as url:
        check_fitter(url, tmp_path)


@pytest.mark.slow
def test_eight_processes_reserve_fifty_times_at_one_postgresql_server() -> None:
    with postgres() as url:
        print(check_reserver(url, 50))


@pytest.mark.slow
def test_a_server_that_dies_costs_nothing_but_the_reservation() -> None:
    """Stopped in the middle of a run: the results stay, the reservation stays spent, and the ledger is whole."""
    from dpfastmh.ledger import LedgerWarning

    with postgres() as url:
        ledger = Ledger.create(url, "patients", TOTAL)
        hold = ledger.reserve(Budget(0.1, 1e-6), steps=1000, units=5)
    with pytest.warns(LedgerWarning, match="counts as spent"):
        hold.settle()
    with pytest.raises(LedgerError) as error:
        ledger.refresh()
    assert "\n" not in str(error.value)
