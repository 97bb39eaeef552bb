"""Ledgers that were damaged or whose writers were killed: refused with one line, or right; never wrong."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dpfastmh.budget import Budget
from dpfastmh.ledger import Ledger, LedgerError, Standing
from ledgers import script

TOTAL = Budget(4.0, 1e-6)
ONE = Budget(1.0, 1e-6)


def make(path: Path) -> Ledger:
    """A ledger with settled, open and recovered runs, and nothing left in its log."""
    ledger = Ledger.create(f"sqlite:///{path}", "patients", TOTAL)
    for share in (0.3, 0.8, 1.0, 0.1):
        hold = ledger.reserve(Budget(0.5, 1e-6), steps=1000, units=5, columns={"age": "ab" * 16, "sex": "cd" * 16})
        hold.account.charge("x", hold.account.left * share)
        hold.settle()
    hold = ledger.reserve(Budget(0.2, 1e-6), steps=1000, units=5)
    ledger.recover(hold.run_id, hold.account.exact_spent, hold.account.alpha)
    ledger.reserve(Budget(0.7, 1e-6), steps=1000, units=5)
    return ledger


# -- damage ----------------------------------------------------------------------------------------------------------
def flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.choice((rng.randrange(len(content)), 4096 * rng.randrange(len(content) // 4096)))]


def overwritten(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content))
    length = min(rng.randrange(1, 600), len(content) - start)
    filling = rng.choice((bytes(length), rng.randbytes(length), content[:length].ljust(length, b"x")))
    return content[:start] + filling[:length] + content[start + length :]


def pages_moved(content: bytes, rng: random.Random) -> bytes:
    pages = [content[k : k + 4096] for k in range(0, len(content), 4096)]
    i, j = rng.randrange(len(pages)), rng.randrange(len(pages))
    pages[i], pages[j] = pages[j], pages[i]
    return b"".join(pages)


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    flipped,
    flipped,
    flipped,
    truncated,
    overwritten,
    pages_moved,
]


def outcome(path: Path, truth: Standing) -> str:
    """Refused with one line, or right; anything else is an error."""
    said = ""
    try:
        ledger = Ledger(f"sqlite:///{path}", "patients")
        standing = ledger.standing()
        ledger.verify()
    except LedgerError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 500
    assert said or standing == truth
    return "refused" if said else "right"


def fuzz(count: int, seed: int) -> dict[str, int]:
    memory = Path("/dev/shm")  # thousands of small files: spare the disk where there is a way
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        return fuzzed(Path(folder), count, seed)


def fuzzed(tmp_path: Path, count: int, seed: int) -> dict[str, int]:
    whole = tmp_path / "whole.db"
    ledger = make(whole)
    truth = ledger.standing()
    ledger._store._engine.dispose()
    content = whole.read_bytes()
    rng = random.Random(seed)
    found = {"refused": 0, "right": 0}
    for number in range(count):
        damaged = rng.choice(DAMAGES)(content, rng)
        path = tmp_path / f"{number}.db"
        path.write_bytes(damaged)
        found["right" if damaged == content else outcome(path, truth)] += 1
        for left in tmp_path.glob(f"{number}.db*"):
            left.unlink()
    return found


def test_a_thousand_damaged_ledgers_are_refused_or_right() -> None:
    found = fuzz(1_000, 11)
    assert found["refused"] > 200, found  # the rest hit what is unused: SQLite leaves most of a page empty
    assert found["right"] > 50, found


@pytest.mark.slow
def test_ten_thousand_damaged_ledgers_are_refused_or_right() -> None:
    print(fuzz(10_000, 12))


def test_a_damage_that_nobody_looks_for_would_be_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the seals some damaged ledgers are read as if they were whole, and wrong."""
    monkeypatch.setattr("dpfastmh.ledger.hmac.compare_digest", lambda one, other: True)
    whole = tmp_path / "whole.db"
    ledger = make(whole)
    truth = ledger.standing()
    ledger._store._engine.dispose()
    content = whole.read_bytes()
    place = content.index(b'"points"') + 30
    digit = next(k for k in range(place, place + 60) if content[k : k + 1].isdigit() and content[k : k + 1] != b"1")
    whole.write_bytes(content[:digit] + b"1" + content[digit + 1 :])
    with pytest.raises(AssertionError):
        outcome(whole, truth)


def test_a_damaged_log_loses_no_more_than_what_was_never_confirmed(tmp_path: Path) -> None:
    """SQLite checks its log's frames: what follows a damaged one is gone, and the chain before it is whole."""
    path = tmp_path / "ledger.db"
    ledger = make(path)
    kept = {name: path.with_name(name).read_bytes() for name in ("ledger.db", "ledger.db-wal")}
    rng = random.Random(3)
    seen = set()
    for number in range(60):
        copy = tmp_path / f"copy{number}.db"
        copy.write_bytes(kept["ledger.db"])
        copy.with_name(f"copy{number}.db-wal").write_bytes(flipped(kept["ledger.db-wal"], rng))
        with suppress(LedgerError):
            seen.add(len(Ledger(f"sqlite:///{copy}", "patients").runs()))
    assert seen <= set(range(len(ledger.runs()) + 1))
    # that an earlier state came back is what --head is for
    head = ledger.standing().head
    copy = tmp_path / "back.db"
    copy.write_bytes(kept["ledger.db"])
    with pytest.raises(LedgerError):
        Ledger(f"sqlite:///{copy}", "patients").verify(head)


# -- kill -9 ---------------------------------------------------------------------------------------------------------
# A run without the sampling: announces each point before it passes it, so that the test can kill it there.
RUNNER = """
import os, signal, sys
from dpfastmh import ledger as module
from dpfastmh.budget import Budget
from dpfastmh.ledger_store import Transaction, Store

url, point = sys.argv[1], sys.argv[2]

def die(here):
    if here == point:
        os.kill(os.getpid(), signal.SIGKILL)

append = Transaction.append
def spied(self, dataset, entry):
    die(f"before {entry.kind} is written")
    append(self, dataset, entry)
    die(f"before {entry.kind} is committed")
Transaction.append = spied

ledger = module.Ledger(url, "patients")
while True:
    hold = ledger.reserve(Budget(1.0, 1e-6), steps=1000, units=5)
    die("between reservation and first release")
    print("released", flush=True)
    hold.account.charge("x", hold.account.left / 2)
    die("before settle")
    hold.settle()
    die("after settle")
    print("settled", flush=True)
    if point != "anywhere":
        break
"""

# what the ledger must say after a death at each point: runs, open ones
POINTS = {
    "before reserve is written": (0, 0),
    "before reserve is committed": (0, 0),
    "between reservation and first release": (1, 1),
    "before settle": (1, 1),
    "before settle is written": (1, 1),
    "before settle is committed": (1, 1),
    "after settle": (1, 0),
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point(tmp_path: Path, point: str) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger.create(url, "patients", TOTAL)
    whole = ledger.reserve(ONE, steps=1000, units=5)
    amount = ledger.standing().taken
    whole.settle()
    del ledger, whole
    running = script(RUNNER, url, point)
    out, err = running.communicate(timeout=100)
    assert running.returncode == -signal.SIGKILL, err
    after = Ledger(url, "patients")
    assert after.verify() == []
    standing = after.standing()
    assert (standing.runs - 1, standing.open_runs) == POINTS[point]
    assert "released" not in out or standing.runs == 2, "something was released that no entry knows of"
    expected = amount * (0.5 if point == "after settle" else standing.open_runs)
    assert standing.taken == pytest.approx(expected, rel=1e-9)


def killed_anywhere(url: str, moments: int, seed: int) -> None:
    """Kill the runner at random moments; whatever it had confirmed to us must be in the ledger."""
    ledger = Ledger.create(url, "patients", Budget(8.0, 1e-4))
    rng = random.Random(seed)
    known = 0
    for _ in range(moments):
        running = script(RUNNER.replace("Budget(1.0, 1e-6)", "Budget(0.05, 1e-4)"), url, "anywhere")
        assert running.stdout is not None
        first = running.stdout.readline()  # it is under way
        assert first == "released\n", running.stderr
        time.sleep(rng.random() * 0.15)
        running.kill()
        out = first + running.communicate(timeout=100)[0]
        standing = ledger.standing()
        assert ledger.verify() == []
        assert standing.runs - known >= out.count("released"), "released without a reservation"
        assert sum(run.status == "settled" for run in ledger.runs()[known:]) >= out.count("settled")
        assert sum(run.status == "open" for run in ledger.runs()[known:]) <= 1
        assert standing.taken <= standing.limit
        known = standing.runs
    print(f"{moments} moments, {known} runs")


def test_killed_at_random_moments(tmp_path: Path) -> None:
    killed_anywhere(f"sqlite:///{tmp_path}/ledger.db", 5, 1)


@pytest.mark.slow
def test_killed_at_two_hundred_random_moments(tmp_path: Path) -> None:
    killed_anywhere(f"sqlite:///{tmp_path}/ledger.db", 200, 2)
