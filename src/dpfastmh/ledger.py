"""A budget that lasts: one total (ε, δ) for everything that is ever released about a data set, over years and people.

A ledger is a Rényi filter on disk (`dpfastmh.privacy.filter`), whose releases are whole runs. Its order α is fixed when
a data set is created; a run of its own smaller (ε, δ) has its own order a and charges what holds at both, pro rata
(docs/ledger.md has the theorem). So a run costs the ledger (α/a) times what it spent at its own order, and many runs
cost less than the sum of their ε.

*Reserve, run, settle.* All that a run may spend is in the ledger, on the disk, before the first release. When the run
has ended what it did not spend comes back. A run that dies comes back to nothing: its reservation stays spent, until
``recover`` is shown a checkpoint of it. Nothing is ordered or decided by a clock.

Costs are whole numbers of cells of 2⁻⁶⁴, rounded up; the limit is rounded down. Entries are only ever added. Each is
sealed with a keyed hash over itself and the one before, and every use of a ledger checks all seals that it has not seen
before it believes anything. `dpfastmh.ledger_store` keeps the rows.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import math
import secrets
import stat
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfastmh.budget import Budget, best_alpha, checked_count, epsilon_from_rdp, float_reserve, rdp_budget
from dpfastmh.ledger_store import Entry, Head, LedgerError, Store, Transaction
from dpfastmh.privacy.filter import RenyiFilter

if TYPE_CHECKING:
    from dpfastmh.data.fingerprint import Fingerprint

__all__ = ["Ledger", "LedgerError", "LedgerWarning", "Overdraft", "Reservation", "Run", "Standing"]

CELLS = 2**64  # of Rényi divergence in a nat
FORMAT = "dpfastmh ledger 1"
COIN_SHARE = 0.1  # of δ at most, for the rounding of coins
LEAST_STEPS = 10_000
MOST_STEPS = 10_000_000_000  # of all runs
ROW = "row"  # the unit of a table without a unit column
OPEN, SETTLED, RECOVERED = "open", "settled", "recovered"
Points = tuple[tuple[float, int], ...]  # (order, cells), the ledger's own order first


class LedgerDamaged(LedgerError):
    """The ledger is not what was written: somebody or something changed it."""


class Overdraft(LedgerError):
    """The data set's budget does not allow this run. Nothing was spent."""


class _NoRoom(Exception):
    """Turned into an ``Overdraft`` that says what would fit."""


class LedgerWarning(UserWarning):
    """A run has ended and its ledger could not be told: the whole reservation stays spent."""


@dataclass(frozen=True)
class Run:
    """A run as the ledger knows it."""

    run_id: str
    number: int  # of its reservation
    at: str
    by: str
    epsilon: float
    delta: float
    units: int
    private: bool
    model: str
    points: Points  # what counts: all that was reserved while it is open, then what was spent
    steps: int
    status: str = OPEN


class Standing(NamedTuple):
    """Where a data set's budget stands."""

    dataset: str
    unit: str
    epsilon: float
    delta: float
    alpha: float
    limit: float  # Rényi divergence at order alpha
    taken: float  # spent, and reserved by runs that have not ended
    reserved: float  # the latter alone
    epsilon_taken: float  # at delta, by the best order that all runs were charged at
    epsilon_left: float  # of the largest single run that would be admitted now, at this delta
    runs: int
    open_runs: int
    not_private: int  # runs with a seed
    closed: bool
    units: int | None
    head: str


def rounded_up(rdp: Fraction) -> int:
    """A divergence in cells."""
    return -((-rdp.numerator * CELLS) // rdp.denominator)


def at_orders(rdp: Fraction, order: float, ledger_order: float) -> Points:
    """What a run that was charged ``rdp`` at its order is known to cost at the ledger's order and at its own."""
    orders = (ledger_order,) if order == ledger_order else (ledger_order, order)
    return tuple((a, rounded_up(rdp * Fraction(a) / Fraction(order))) for a in orders)


def curve(points: Points, order: float) -> float:
    """A bound on the divergence of any order, from bounds at a few.

    D_α grows with α, and (α−1)·D_α is convex in α (it is the logarithm of a moment): below the lowest known order its
    value will do, and between two the chord of (α−1)·D_α. Above the highest nothing is known.
    """
    known = sorted((a, cells / CELLS) for a, cells in points)
    if order <= known[0][0]:
        return known[0][1]
    for (low, r), (high, q) in pairwise(known):
        if order <= high:
            part = (order - low) / (high - low)
            return min(q, ((1.0 - part) * (low - 1.0) * r + part * (high - 1.0) * q) / (order - 1.0))
    return math.inf


@dataclass
class State:
    """What the entries of one data set add up to."""

    name: str
    seq: int = -1
    digest: str = ""
    budget: Budget | None = None
    alpha: float = math.nan
    limit: int = 0  # cells
    steps_limit: int = 0
    unit: str = ROW
    runs: dict[str, Run] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    units: int | None = None
    taken: int = 0  # cells at the ledger's order
    steps: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.digest = self.digest or f"{FORMAT} {self.name}"

    def apply(self, entry: Entry) -> None:
        """One entry more, whose seal has been checked; ValueError and the like if it cannot be true."""
        body = json.loads(entry.body)
        if (entry.kind == "create") != (entry.seq == 0):
            raise ValueError("the first entry, and only that, creates a data set")
        getattr(self, f"_{_KINDS[entry.kind]}")(entry, **body)
        if self.taken > self.limit or self.steps > self.steps_limit or self.taken < 0 or self.steps < 0:
            raise ValueError("more was spent than there is")
        self.seq, self.digest = entry.seq, entry.digest

    def _created(self, entry: Entry, *, epsilon: float, delta: float, alpha: float, limit: int, **rest: Any) -> None:
        self.budget, self.alpha, self.limit = Budget(epsilon, delta), alpha, limit
        self.steps_limit, self.unit = rest["steps"], rest["unit"]
        exact = self.budget.minus_float_reserve(self.steps_limit)
        if not 0 < limit <= Fraction(rdp_budget(exact.epsilon, exact.delta, alpha)) * CELLS:
            raise ValueError("its limit is not one that its budget allows")

    def _reserved(
        self, entry: Entry, *, run: str, points: Any, columns: dict[str, str], units: int, **rest: Any
    ) -> None:
        if run in self.runs or self.closed:
            raise ValueError("a run was admitted twice, or after the end")
        known = _points(points, self.alpha)
        self.runs[run] = Run(run, entry.seq, entry.at, units=units, points=known, **rest)
        self.columns |= columns
        self.units = units
        self._count(known, rest["steps"])

    def _settled(self, entry: Entry, *, run: str, points: Any, steps: int) -> None:
        self._end(run, _points(points, self.alpha), steps, SETTLED)

    def _recovered(self, entry: Entry, *, run: str, points: Any, steps: int) -> None:
        self._end(run, _points(points, self.alpha), steps, RECOVERED)

    def _closed(self, entry: Entry) -> None:
        self.closed = True

    def _end(self, run: str, points: Points, steps: int, status: str) -> None:
        held = self.runs[run]
        if held.status != OPEN or points[0][1] > held.points[0][1] or steps > held.steps:
            raise ValueError("a run ended twice, or spent more than it had reserved")
        self.runs[run] = replace(held, points=points, steps=steps, status=status)
        self._count(points, steps)
        self._count(tuple((a, -cells) for a, cells in held.points), -held.steps)

    def _count(self, points: Points, steps: int) -> None:
        self.taken += points[0][1]
        self.steps += steps

    @property
    def left(self) -> int:
        return self.limit - self.taken

    @property
    def total(self) -> Budget:
        assert self.budget is not None
        return self.budget


_KINDS = {"create": "created", "reserve": "reserved", "settle": "settled", "recover": "recovered", "close": "closed"}


def _points(listed: Any, alpha: float) -> Points:
    found = tuple((float(order), int(cells)) for order, cells in listed)
    if found[0][0] != alpha or any(cells < 0 for _, cells in found):
        raise ValueError("a cost is not at the ledger's order, or negative")
    return found


def fixed(budget: Budget) -> tuple[float, int, int]:
    """What is fixed when a data set is created: the order, its limit in cells, and how many releases δ pays for.

    A tenth of δ at most pays for the rounding of coins (`dpfastmh.budget.float_reserve`), those of all runs together;
    the rest is turned into a limit at the order that buys the most near-Gaussian cost.
    """
    steps = int(min(COIN_SHARE * budget.delta / float_reserve(1, budget.epsilon), MOST_STEPS))
    if steps < LEAST_STEPS:
        raise LedgerError(
            f"epsilon={budget.epsilon:g} is too large for delta={budget.delta:g}: the rounding of random numbers would "
            f"end everything after {steps} steps; lower epsilon, or raise delta"
        )
    exact = budget.minus_float_reserve(steps)
    alpha = best_alpha(exact)
    limit = Fraction(rdp_budget(exact.epsilon, exact.delta, alpha))
    return alpha, (limit.numerator * CELLS) // limit.denominator, steps


def seal(secret: bytes, previous: str, seq: int, kind: str, at: str, body: str) -> str:
    """An entry's keyed hash over itself and the one before."""
    text = json.dumps([previous, seq, kind, at, body])
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def _sealed(secret: bytes, previous: str, seq: int, kind: str, body: Mapping[str, Any]) -> Entry:
    text = json.dumps(body, sort_keys=True, allow_nan=False, ensure_ascii=False)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return Entry(seq, kind, at, text, seal(secret, previous, seq, kind, at, text))


def _needed(budget: Budget, steps: int, alpha: float) -> tuple[float, int]:
    """A run's own order, and what it may cost at the ledger's, in cells."""
    own = RenyiFilter(budget, steps_cap=steps)
    return own.alpha, rounded_up(own.exact_limit * Fraction(alpha) / Fraction(own.alpha))


def _granted(needed: int, left: int) -> int | None:
    """All that a run needs; what there is, where that is less by a hundredth at most; otherwise None.

    Total and run set different parts of δ aside for rounding: a run of the whole ε would never quite fit.
    """
    if needed <= left:
        return needed
    return left if needed * 99 <= left * 100 else None


class Reservation:
    """A run's hold on the budget. ``account`` is the run's filter; ``settle`` when nothing runs on it any more."""

    def __init__(self, ledger: Ledger, run: Run, order: float) -> None:
        self._ledger, self.run_id = ledger, run.run_id
        alpha, cells = run.points[0]
        self.account = RenyiFilter(
            Budget(run.epsilon, run.delta),
            steps_cap=run.steps,
            alpha=order,
            also=(alpha,),
            ceiling=Fraction(cells, CELLS) * Fraction(order) / Fraction(alpha),
        )

    def settle(self) -> None:
        """Give back what the account has not been charged. A ledger that cannot be told is a warning, not an error:
        the run's results are worth keeping, and the reservation stays spent."""
        try:
            self._ledger._settle(self.run_id, self.account)
        except LedgerError as error:
            warnings.warn(
                f"run {self.run_id[:8]} ended, but {error}; all that it had reserved counts as spent, for good",
                LedgerWarning,
                stacklevel=2,
            )


class Ledger:
    """The budget of one data set, in an SQLite file (``sqlite:///FILE``) or a PostgreSQL database.

    Give it to ``dpfastmh.sample`` as ``ledger``, or to ``dpfastmh fit`` with ``--ledger`` and ``--dataset``. It may be
    used by several threads; every process opens its own.
    """

    def __init__(self, url: str, dataset: str) -> None:
        self._store, self.dataset = Store(url), dataset
        self._state = State(dataset)
        self._secret = b""
        self._lock = threading.RLock()
        self.refresh()

    def __repr__(self) -> str:
        total = self._state.total
        return f"<Ledger {self.dataset!r} in {self._store.where}: epsilon={total.epsilon:g}, delta={total.delta:g}>"

    def __reduce__(self) -> Any:
        raise TypeError("a ledger cannot be pickled: open it by its URL where it is needed")

    @classmethod
    def create(cls, url: str, dataset: str, budget: Budget, *, unit: str | None = None) -> Ledger:
        """A new data set with a total budget, which can never be raised. ``unit`` is the column that says who is
        protected, where people have several rows: every run has to name the same."""
        if not isinstance(dataset, str) or not dataset.strip() or not dataset.isprintable():
            raise LedgerError(f"{dataset!r} is no name for a data set: give it a short one that can be printed")
        alpha, limit, steps = fixed(budget)
        secret = secrets.token_bytes(32)
        body = {"epsilon": budget.epsilon, "delta": budget.delta, "alpha": alpha, "limit": limit, "steps": steps}
        first = _sealed(secret, State(dataset).digest, 0, "create", body | {"unit": unit or ROW})
        Store(url).create(dataset, secret.hex(), first)
        return cls(url, dataset)

    # -- what is known -----------------------------------------------------------------------------------------------
    @property
    def budget(self) -> Budget:
        """The total of everything that is ever released about the data set."""
        return self._state.total

    @property
    def alpha(self) -> float:
        """The Rényi order that everything is added up at."""
        return self._state.alpha

    @property
    def steps_left(self) -> int:
        """How many releases δ still pays for."""
        return self._state.steps_limit - self._state.steps

    def refresh(self) -> None:
        """Read and check what others have added."""
        with self._lock, self._store.transaction() as transaction:
            self._catch_up(transaction)

    def runs(self) -> tuple[Run, ...]:
        """All runs in the order of their reservations."""
        self.refresh()
        return tuple(self._state.runs.values())

    def standing(self) -> Standing:
        """Where the budget stands now."""
        self.refresh()
        state = self._state
        still = [run for run in state.runs.values() if run.status == OPEN]
        return Standing(
            dataset=self.dataset,
            unit=state.unit,
            epsilon=state.total.epsilon,
            delta=state.total.delta,
            alpha=state.alpha,
            limit=state.limit / CELLS,
            taken=state.taken / CELLS,
            reserved=sum(run.points[0][1] for run in still) / CELLS,
            epsilon_taken=self._epsilon_taken(),
            epsilon_left=self.largest(state.total.delta),
            runs=len(state.runs),
            open_runs=len(still),
            not_private=sum(not run.private for run in state.runs.values()),
            closed=state.closed,
            units=state.units,
            head=f"{state.seq}:{state.digest[:16]}",
        )

    def _epsilon_taken(self) -> float:
        """ε at the total's δ of what was taken so far: the least over all orders that some run was charged at."""
        runs = [run.points for run in self._state.runs.values()]
        if not runs:
            return 0.0
        exact = self._state.total.minus_float_reserve(self._state.steps_limit)
        sums = {a: math.fsum(curve(points, a) for points in runs) for a in {a for points in runs for a, _ in points}}
        found = [epsilon_from_rdp(rdp, exact.delta, a) for a, rdp in sums.items() if rdp < math.inf]
        return min(self._state.total.epsilon, *found)

    def largest(self, delta: float) -> float:
        """ε of the largest single run at this δ that would be admitted now; 0 if none."""
        state = self._state
        steps = min(1_000_000, self.steps_left)
        if state.closed or state.left <= 0 or steps < 1:
            return 0.0

        def fits(epsilon: float) -> bool:
            try:
                needed = _needed(Budget(epsilon, delta), steps, state.alpha)[1]
            except ValueError:  # δ does not pay for the coins of so large an ε
                return False
            return _granted(needed, state.left) is not None

        low, high = 0.0, state.total.epsilon
        if fits(high):
            return high
        for _ in range(15):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low if low > 1e-3 * state.total.epsilon else 0.0

    # -- a run -------------------------------------------------------------------------------------------------------
    def fingerprint(self) -> Fingerprint:
        """For the loader: known by this data set's key, so that the same table gives the same fingerprint."""
        from dpfastmh.data.fingerprint import Fingerprint

        return Fingerprint(hashlib.blake2b(b"fingerprint", key=self._secret, digest_size=32).digest())

    def check(self, budget: Budget, unit: str | None) -> None:
        """Refuse, before anything is read, a run that would be refused anyway."""
        self.refresh()
        with self._no_room(budget):
            self._admit(budget, 1_000, unit)

    def _admit(self, budget: Budget, steps: int, unit: str | None) -> tuple[float, int]:
        """A run's order and the cells that it gets, or why not."""
        state, name = self._state, self.dataset
        if state.closed:
            raise LedgerError(f"data set {name!r} is closed: nothing more can be spent on it")
        if (unit or ROW) != state.unit:
            said = f"unit {state.unit!r}" if state.unit != ROW else "every row by itself (no unit)"
            raise LedgerError(f"data set {name!r} protects {said}: a run with unit {unit or ROW!r} would not")
        if steps > self.steps_left:
            raise Overdraft(
                f"data set {name!r}: delta pays for {self.steps_left} more steps, and the run may need {steps}: "
                "wait for open runs to end, or use fewer chains. Nothing was spent"
            )
        order, needed = _needed(budget, steps, state.alpha)
        granted = _granted(needed, state.left)
        if granted is None:
            raise _NoRoom
        return order, granted

    @contextmanager
    def _no_room(self, budget: Budget) -> Iterator[None]:
        """Says what would fit, once the lock is let go: finding that out takes a while."""
        try:
            yield
        except _NoRoom:
            busy = sum(run.status == OPEN for run in self._state.runs.values())
            more = f"; {busy} open run{'s' * (busy != 1)} may give some back" if busy else ""
            raise Overdraft(
                f"data set {self.dataset!r} has room for one more run of epsilon = {self.largest(budget.delta):.3g} at "
                f"delta = {budget.delta:g}, not {budget.epsilon:g}{more}. Nothing was spent"
            ) from None

    def reserve(
        self,
        budget: Budget,
        *,
        steps: int,
        units: int,
        unit: str | None = None,
        columns: Mapping[str, str] | None = None,
        private: bool = True,
        model: str = "",
        run_id: str | None = None,
    ) -> Reservation:
        """Set aside all that a run of ``budget`` may cost; it is on the disk when this returns.

        ``steps`` is the cap on the run's releases, ``columns`` the fingerprint of what it reads of the table.
        """
        run = run_id or secrets.token_hex(16)
        seen = dict(columns or {})
        checked_count(units, "the number of units")
        with self._lock:
            with self._no_room(budget), self._store.transaction() as transaction:
                self._catch_up(transaction)
                self._recognise(seen, units)
                if run in self._state.runs:
                    raise LedgerError(f"run {run[:8]} is in the ledger already: resume it, or start another")
                order, cells = self._admit(budget, checked_count(steps, "steps"), unit)
                own = Fraction(cells, CELLS) * Fraction(order) / Fraction(self.alpha)
                others = () if order == self.alpha else ((order, rounded_up(own)),)
                body = {
                    "run": run,
                    "epsilon": budget.epsilon,
                    "delta": budget.delta,
                    "points": [[self.alpha, cells], *(list(point) for point in others)],
                    "steps": steps,
                    "units": units,
                    "columns": {name: mark for name, mark in seen.items() if name not in self._state.columns},
                    "private": private,
                    "model": model,
                    "by": _user(),
                }
                entry = self._append(transaction, "reserve", body)
            self._state.apply(entry)
            return Reservation(self, self._state.runs[run], order)

    def reservation(self, run_id: str) -> Reservation:
        """The hold of a run that has not ended, with an account that nothing has been charged to yet: for a run that
        goes on from its checkpoint, which restores what it had paid."""
        self.refresh()
        run = self._open_run(run_id)
        return Reservation(self, run, run.points[-1][0])

    def resumed(self, run_id: str, paid: Fraction | None) -> Reservation | None:
        """The hold of a run that goes on from its checkpoint.

        A finished run (``paid`` is all that it ever spent) may have settled before it died, and holds nothing then. One
        that was recovered from an older checkpoint, at less than it spent, must not come back with its results.
        """
        self.refresh()
        run = self._state.runs.get(run_id)
        if paid is None or run is None or run.status == OPEN:
            return self.reservation(run_id)
        if at_orders(paid, run.points[-1][0], self.alpha)[0][1] <= run.points[0][1]:
            return None
        raise LedgerError(f"run {run_id[:8]} was ended at less than it spent: its results cannot be had any more")

    def recover(self, run_id: str, charged: Fraction, alpha: float) -> Run:
        """End a run that died, at what its checkpoint says it had paid at its order; what it still held comes back.

        Sound only if nothing that the run released after that checkpoint ever left its process, and if nobody can go on
        from the checkpoint: call this while holding its lock, and remove it afterwards. From here on the ledger refuses
        to let the run go on (``reservation``), so that a copy of the checkpoint is worth nothing.
        """
        with self._lock:
            with self._store.transaction() as transaction:
                self._catch_up(transaction)
                run = self._open_run(run_id)
                order = run.points[-1][0]
                if alpha != order or charged < 0:
                    raise LedgerError(f"the checkpoint is not of run {run_id[:8]}: it counts at order {alpha:g}")
                points = at_orders(charged, order, self.alpha)
                if points[0][1] > run.points[0][1]:
                    raise LedgerError(f"the checkpoint is not of run {run_id[:8]}: it paid more than was reserved")
                # steps are kept in full: the checkpoint need not know how many followed
                entry = self._append(transaction, "recover", {"run": run_id, "points": points, "steps": run.steps})
            self._state.apply(entry)
            return self._state.runs[run_id]

    def close(self) -> None:
        """Admit no more runs, for good. Those under way may end."""
        with self._lock:
            with self._store.transaction() as transaction:
                self._catch_up(transaction)
                if self._state.closed:
                    raise LedgerError(f"data set {self.dataset!r} is closed already")
                entry = self._append(transaction, "close", {})
            self._state.apply(entry)

    def verify(self, head: str | None = None) -> list[str]:
        """Check every seal and every sum from the first entry on, and the database's file; what to worry about.

        ``head`` is what ``dpfastmh ledger show`` printed some time ago, NUMBER:SEAL. That it is still there proves that
        nothing up to then was changed, by whoever it might be, and that no old copy was put in the ledger's place.
        """
        with self._lock, self._store.transaction() as transaction:
            self._state, self._secret = State(self.dataset), b""
            self._catch_up(transaction)
            if found := transaction.trouble():
                raise LedgerDamaged(f"{self._store.where} is damaged: {found}")
            if head is not None:
                self._check_head(head, transaction)
        file = self._store.file
        if file is not None and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return [f"{file} can be read by others: it is as secret as the table (chmod 600 {file})"]
        return []

    # -- inside a transaction ----------------------------------------------------------------------------------------
    def _catch_up(self, transaction: Transaction) -> None:
        """Check and apply the entries that were added since the last time."""
        head = transaction.head(self.dataset)
        if head is None:
            names = ", ".join(sorted(map(repr, transaction.names()))[:20]) or "none"
            raise LedgerError(f"{self._store.where} has no data set {self.dataset!r} (there is {names})")
        try:
            self._follow(head, transaction.entries(self.dataset, self._state.seq))
        except LedgerDamaged:
            self._state, self._secret = State(self.dataset), b""  # believe nothing of it any more
            raise

    def _follow(self, head: Head, entries: list[Entry]) -> None:
        where, state = f"{self._store.where}: data set {self.dataset!r}", self._state
        try:
            secret = bytes.fromhex(head.secret)
        except (TypeError, ValueError):
            raise LedgerDamaged(f"{where} has lost its key: restore a copy") from None
        if self._secret not in (b"", secret):
            raise LedgerDamaged(f"{where} was replaced by another while it was in use")
        for entry in entries:
            if not all(isinstance(text, str) for text in (entry.kind, entry.at, entry.body, entry.digest)):
                raise LedgerDamaged(f"{where} was changed: entry {state.seq + 1} is not what was written")
            expected = seal(secret, state.digest, state.seq + 1, entry.kind, entry.at, entry.body)
            if entry.seq != state.seq + 1 or not hmac.compare_digest(expected.encode(), entry.digest.encode()):
                raise LedgerDamaged(f"{where} was changed: entry {state.seq + 1} is not what was written")
            try:
                state.apply(entry)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
                reason = " ".join(str(error).split())[:200]
                raise LedgerDamaged(f"{where} cannot be right: entry {entry.seq}: {reason}") from None
        if (state.seq, state.digest) != (head.seq, head.digest):
            raise LedgerDamaged(f"{where} was changed: its last entries are missing, or are not what was written")
        self._secret = secret

    def _append(self, transaction: Transaction, kind: str, body: Mapping[str, Any]) -> Entry:
        """An entry for the database; it counts here once the transaction has ended."""
        entry = _sealed(self._secret, self._state.digest, self._state.seq + 1, kind, body)
        transaction.append(self.dataset, entry)
        return entry

    def _recognise(self, columns: Mapping[str, str], units: int) -> None:
        """Refuse a table that is not the one whose columns are known."""
        known, name = self._state.columns, self.dataset
        other = [column for column, mark in columns.items() if known.get(column, mark) != mark]
        if other or self._state.units not in (None, units):
            what = f"column {other[0]!r} differs" if other else f"it has {units} units, not {self._state.units}"
            raise LedgerError(
                f"this is not the table of data set {name!r}: {what}. Another table, or another version of it, "
                "is another data set (ledger create). Nothing was spent"
            )

    def _open_run(self, run_id: str) -> Run:
        run = self._state.runs.get(run_id)
        if run is None:
            raise LedgerError(f"data set {self.dataset!r} knows no run {run_id[:8]}: is it another ledger's?")
        if run.status != OPEN:
            raise LedgerError(f"run {run_id[:8]} is {run.status} in the ledger: it cannot go on")
        return run

    def _settle(self, run_id: str, account: RenyiFilter) -> None:
        with self._lock:
            with self._store.transaction() as transaction:
                self._catch_up(transaction)
                run = self._open_run(run_id)
                points = at_orders(account.exact_spent, run.points[-1][0], self.alpha)
                body = {"run": run_id, "points": points, "steps": account.steps}
                entry = self._append(transaction, "settle", body)
            self._state.apply(entry)

    def _check_head(self, head: str, transaction: Transaction) -> None:
        number, _, mark = head.partition(":")
        if not number.isdecimal() or len(mark) < 8:
            raise LedgerError(f"{head!r} is no head: give what ledger show printed, NUMBER:SEAL")
        found = [entry for entry in transaction.entries(self.dataset, int(number) - 1) if entry.seq == int(number)]
        if not found or not found[0].digest.startswith(mark):
            raise LedgerDamaged(
                f"{self._store.where}: data set {self.dataset!r} is not the ledger that head {head} was seen in: "
                "an old copy was restored, or it was written anew"
            )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
