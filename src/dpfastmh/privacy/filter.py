"""The Rényi filter: the one place where privacy is spent, so that a run never costs more than its budget.

**Theorem** (Rényi filter; Feldman and Zrnic 2021, *Individual Privacy Accounting via a Rényi Filter*, in the case that
every unit is charged the same). Fix α > 1 and a limit τ. Let releases be made one after another, each chosen freely
from the earlier outputs, together with a cost r_t, itself a function of the earlier outputs, such that given those
outputs D_α between any two neighbouring tables is at most r_t. If a release is made only while Σ_{s≤t} r_s ≤ τ, then
all the outputs together have D_α ≤ τ.

*Proof.* Let ℓ_t be the ratio of the probabilities of output t under the two tables, given the earlier outputs, and Q
the law under the second table. E_Q[ℓ_t^α | earlier] = exp((α−1)·D_α) ≤ exp((α−1) r_t), and r_t is known given the
earlier outputs, so M_t = Π_{s≤t} ℓ_s^α e^{−(α−1) r_s} satisfies E_Q[M_t | earlier] ≤ M_{t−1}: E_Q[M_T] ≤ 1. After the
filter has closed, set r = 0 and ℓ = 1. Since Σ r_s ≤ τ on every path, E_Q[Π ℓ_s^α] ≤ e^{(α−1)τ}, which is D_α ≤ τ. ∎

`dpfastmh.budget` turns τ into (ε, δ). What the proof needs of its caller:

- α and the budget are fixed before the first release of any kind (a filter is created once and never changed);
- the cost of a release is known, and charged, **before** it is made, and depends on released quantities only;
- whether a step is made at all depends on released quantities only. Several chains therefore get fixed shares
  (`reserve`) before their threads start, and shares are settled after the threads have ended: who spends first would
  otherwise depend on timing. The outputs of chains on fixed shares are those of the same chains run one after another.

**Further orders.** A filter may be told of other orders a (`also`). Whoever charges it then promises, with every cost
r_t, that D_a ≤ (a/α)·r_t as well: Gaussian releases have it by themselves (D_a = aρ), accept bits by the way their
tables are made (`dpfastmh.privacy.accept_bit.cost_table`). The theorem at order a then says D_a ≤ (a/α)·Σ r_t for
everything together, which is what a ledger of order a needs to know.

Costs are kept as exact fractions, so that no rounding is ever in anybody's favour, n charges equal one charge of count
n, and the order of charges makes no difference. Filters hold a lock, and on purpose cannot be pickled or copied: two
copies of one budget would be two budgets.
"""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass
from fractions import Fraction

from dpfastmh.budget import (
    Budget,
    best_alpha,
    checked_cost,
    checked_count,
    checked_order,
    epsilon_from_rdp,
    rdp_budget,
)

__all__ = ["BudgetExceeded", "Charge", "RenyiFilter", "Share"]


class BudgetExceeded(RuntimeError):
    """A charge would pass the limit. Nothing was charged, and what asked for it must not be released."""


@dataclass(frozen=True)
class Charge:
    """What has been spent under one name: `rdp` at the filter's order (rounded up) for `count` releases."""

    what: str
    rdp: float
    count: int


def compose(rdp: float, count: int) -> Fraction:
    """The cost of `count` releases of cost `rdp` each, exactly: Rényi divergences of one order add up."""
    return Fraction(checked_cost(rdp, "the cost of a release")) * checked_count(count, "the count of releases")


def running_sum_bound(total: float, terms: int) -> Fraction:
    """An upper bound on the exact sum of `terms` costs ≥ 0 whose sum, added up in floating point, came to `total`.

    Adding n numbers ≥ 0 one by one makes n−1 roundings, each of relative size at most u = 2⁻⁵³ (sums of floats do not
    underflow), so the exact sum is at most total·(1−u)^{−(n−1)} ≤ total·(1 + 2nu) while 2nu ≤ 1.
    """
    count = checked_count(terms, "the number of terms")
    if count > 2**52:
        raise ValueError(f"a running sum of {count} costs is too long to bound: charge it in parts")
    return Fraction(checked_cost(total, "the sum of costs")) * (1 + Fraction(count, 2**52))


def _rounded_up(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def _rounded_down(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)


def _checked_name(what: str) -> str:
    if not isinstance(what, str) or not what.strip():
        raise ValueError(f"every charge needs a name that says what is released, got {what!r}")
    return what


class Share:
    """A fixed allowance of Rényi divergence and of steps: handed to a chain, or the whole filter itself.

    Every method is safe to call from several threads.
    """

    def __init__(
        self,
        what: str,
        alpha: float,
        limit: Fraction,
        steps_cap: int,
        coin_bits: int = 64,
        also: tuple[float, ...] = (),
    ) -> None:
        self.what = _checked_name(what)
        self.alpha = alpha
        self.also = also  # orders a at which a charge r is known to bound the divergence by (a/α)·r
        self.coin_bits = coin_bits  # random bits that decide an accept bit, as paid for out of δ
        self.steps_cap = steps_cap
        self._limit = limit
        self._spent = Fraction(0)
        self._steps = 0
        self._charges: dict[str, tuple[Fraction, int]] = {}
        self._open_shares: list[Share] = []
        self._settled = False
        self._process = os.getpid()
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.what!r}: {self.spent:.4g} of {self.limit:.4g} at order {self.alpha:g}>"

    @property
    def limit(self) -> float:
        """The Rényi divergence of order `alpha` that this share may reach."""
        return _rounded_down(self._limit)

    @property
    def spent(self) -> float:
        """What has been charged so far, rounded up; a share handed on counts in full until it is settled."""
        with self._lock:
            return _rounded_up(self._spent)

    @property
    def charged(self) -> float:
        """What has been paid for so far, here and in shares still open: for displays, which may run behind."""
        with self._lock:
            return max(0.0, self.spent - sum(share.limit - share.charged for share in self._open_shares))

    @property
    def left(self) -> float:
        """What can still be charged, rounded down: `charge(what, share.left)` always succeeds while steps last."""
        with self._lock:
            return _rounded_down(self._limit - self._spent)

    @property
    def steps(self) -> int:
        """How many releases have been charged, those of shares handed on counted in full until settled."""
        with self._lock:
            return self._steps

    @property
    def releases(self) -> list[Charge]:
        """What was paid for, by name in the order of first mention; shares still open are listed in full."""
        with self._lock:
            paid = [Charge(what, _rounded_up(rdp), count) for what, (rdp, count) in self._charges.items()]
            held = [Charge(f"{share.what} (reserved)", share.limit, share.steps_cap) for share in self._open_shares]
        return paid + held

    def charge(self, what: str, rdp: float, count: int = 1) -> None:
        """Pay for `count` releases of cost `rdp` each, **before** they are made; BudgetExceeded if it is too much."""
        self._pay(_checked_name(what), compose(rdp, count), int(count))

    def charge_sum(self, what: str, total: float, terms: int) -> None:
        """Pay for `terms` releases whose costs a compiled loop has added up to `total` in plain floating point.

        Such a loop must itself check before every step: it makes a step only if its running sum, this step included,
        stays at or below `running_limit(terms)`; then this charge cannot fail. Hand the loop its own share, so that
        if it breaks off half-way, unsettled, the share counts as spent in full.
        """
        self._pay(_checked_name(what), running_sum_bound(total, terms), int(terms))

    def running_limit(self, terms: int) -> float:
        """The largest floating-point sum of at most `terms` costs that `charge_sum` will accept now."""
        with self._lock:
            return _rounded_down((self._limit - self._spent) / running_sum_bound(1.0, terms))

    def reserve(self, what: str, rdp: float, steps: int) -> Share:
        """Set aside `rdp` and `steps` as a share of its own; they count as spent here until `settle`."""
        amount, cap = compose(rdp, 1), checked_count(steps, "the steps of a share")
        with self._lock:
            self._check(_checked_name(what), amount, cap)
            share = Share(what, self.alpha, amount, cap, self.coin_bits, self.also)
            self._spent += amount
            self._steps += cap
            self._open_shares.append(share)
        return share

    def settle(self, share: Share) -> None:
        """Close a share got from `reserve` here: its charges become ours, and what it did not spend comes back.

        Only sound once all that ran on the share has ended, and at a moment that no private timing decides. What the
        share itself has handed on and not settled counts as spent.
        """
        with self._lock, share._lock:
            if not any(share is mine for mine in self._open_shares):
                raise ValueError(f"share {share.what!r} is not open here: settle a share once, where it was reserved")
            charges = {what: (rdp, count) for what, (rdp, count) in share._charges.items()}
            for held in share._open_shares:
                _add(charges, f"{held.what} (reserved)", held._limit, held.steps_cap)
            share._settled = True
            self._open_shares = [mine for mine in self._open_shares if mine is not share]
            self._spent -= share._limit - share._spent
            self._steps -= share.steps_cap - share._steps
            for what, (rdp, count) in charges.items():
                _add(self._charges, what, rdp, count)

    def state(self) -> list[tuple[str, Fraction, int]]:
        """What was paid for here, exactly: names, costs and counts, without what open shares hold. For checkpoints.

        It is a record, not a budget: only ``restore`` turns it into spending again, and only on an untouched share.
        """
        with self._lock:
            return [(what, rdp, count) for what, (rdp, count) in self._charges.items()]

    def restore(self, state: list[tuple[str, Fraction, int]]) -> None:
        """Enter the charges of a ``state`` into a share that has none: a run goes on where its checkpoint was.

        They are paid like any others, so that no state passes the limit.
        """
        with self._lock:
            if self._spent or self._steps or self._open_shares:
                raise ValueError(f"{self.what!r} has been used: charges are restored before anything is charged")
            for what, rdp, count in state:
                if rdp < 0:
                    raise ValueError(f"{what!r} was charged {float(rdp):.4g}: a cost is never negative")
                self._pay(_checked_name(what), rdp, checked_count(count, "the count of releases"))

    def check_process(self) -> None:
        """Refuse to go on in a forked copy: two copies of one budget, and of the coins, would be two budgets."""
        if os.getpid() != self._process:
            raise ValueError(f"{self.what!r} was copied into another process by a fork: run it where it was made")

    def _check(self, what: str, cost: Fraction, count: int) -> None:
        self.check_process()
        if self._settled:
            raise ValueError(f"share {self.what!r} is settled: {what!r} cannot be charged to it any more")
        if self._spent + cost > self._limit:
            raise BudgetExceeded(
                f"{what!r} costs {float(cost):.4g} at order {self.alpha:g}, but only {self.left:.4g} of "
                f"{self.limit:.4g} is left in {self.what!r}"
            )
        if self._steps + count > self.steps_cap:
            raise BudgetExceeded(
                f"{what!r} makes {count} releases, but only {self.steps_cap - self._steps} of "
                f"{self.steps_cap} are left in {self.what!r}"
            )

    def _pay(self, what: str, cost: Fraction, count: int) -> None:
        with self._lock:
            self._check(what, cost, count)
            self._spent += cost
            self._steps += count
            _add(self._charges, what, cost, count)


def _add(charges: dict[str, tuple[Fraction, int]], what: str, rdp: Fraction, count: int) -> None:
    before, already = charges.get(what, (Fraction(0), 0))
    charges[what] = (before + rdp, already + count)


class RenyiFilter(Share):
    """The filter of a whole run: everything released is charged to it or to a share of it.

    Parameters
    ----------
    budget
        The total (ε, δ) of the run.
    steps_cap
        A public cap on the number of releases, accept bits above all. It is enforced, and pays for coins of
        `coin_bits` random bits out of δ (`dpfastmh.budget.float_reserve`).
    alpha
        The Rényi order, fixed for good. By default the best one for near-Gaussian costs.
    also
        Further orders that every charge must cover, pro rata: a ledger's.
    ceiling
        A divergence of order alpha that must not be passed, even where the budget would allow it.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        steps_cap: int,
        alpha: float | None = None,
        coin_bits: int = 64,
        also: tuple[float, ...] = (),
        ceiling: Fraction | None = None,
    ) -> None:
        cap = checked_count(steps_cap, "steps_cap")
        if not isinstance(budget, Budget):
            raise ValueError(f"the filter needs a Budget(epsilon, delta), got {budget!r}")
        self.budget = budget
        self._exact_budget = budget.minus_float_reserve(cap, coin_bits)
        order = best_alpha(self._exact_budget) if alpha is None else checked_order(alpha)
        limit = rdp_budget(self._exact_budget.epsilon, self._exact_budget.delta, order)
        if limit <= 0:
            raise ValueError(
                f"order alpha={order:g} leaves nothing to spend at epsilon={budget.epsilon:g}, "
                f"delta={budget.delta:g}; take a larger alpha, or none for the best"
            )
        if ceiling is not None and not ceiling > 0:
            raise ValueError(f"the ceiling must be above 0, got {float(ceiling):g}")
        most = Fraction(limit) if ceiling is None else min(Fraction(limit), ceiling)
        others = tuple(checked_order(a) for a in also if a != order)
        super().__init__("the budget", order, most, cap, coin_bits, others)

    @property
    def exact_limit(self) -> Fraction:
        """``limit`` to the last digit."""
        return self._limit

    @property
    def exact_spent(self) -> Fraction:
        """``spent`` to the last digit: an upper bound at any moment, because open shares count in full."""
        with self._lock:
            return self._spent

    def epsilon_spent(self) -> float:
        """The ε, at the budget's δ, of everything charged so far; 0 as long as nothing has been. Never above ε."""
        return self.epsilon_at(self.spent)

    def epsilon_at(self, rdp: float) -> float:
        """The ε, at the budget's δ, of this much Rényi divergence."""
        return epsilon_from_rdp(rdp, self._exact_budget.delta, self.alpha)

    def delta_spent(self) -> float:
        """The δ that goes with `epsilon_spent`: all of it, rounding's part included, or 0 at the start."""
        return self.budget.delta if self.steps > 0 else 0.0
