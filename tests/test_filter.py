"""The Rényi filter: conformance, exact divergences of whole transcripts, and planted bugs that tests must catch."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from dpfastmh.budget import Budget, epsilon_from_rdp, float_reserve, gaussian_delta, rdp_budget
from dpfastmh.privacy.filter import BudgetExceeded, Charge, RenyiFilter, running_sum_bound

BUDGET = Budget(1.0, 1e-6)
COSTS = st.floats(0, 0.5, allow_subnormal=True)


def new_filter(alpha: float | None = None, steps_cap: int = 100_000) -> RenyiFilter:
    return RenyiFilter(BUDGET, steps_cap=steps_cap, alpha=alpha)


# Conformance ---------------------------------------------------------------------------------------------------------


def test_a_new_filter_has_spent_nothing() -> None:
    account = new_filter()
    assert (account.spent, account.left, account.steps, account.releases) == (0.0, account.limit, 0, [])
    assert (account.epsilon_spent(), account.delta_spent()) == (0.0, 0.0)
    account.charge("G", 0.01)
    assert account.delta_spent() == BUDGET.delta


def test_exceeding_leaves_the_state_untouched_and_the_exact_rest_fits() -> None:
    account = new_filter()
    account.charge("G", account.limit / 3)
    before = (account.spent, account.left, account.steps, account.releases)
    too_much = math.nextafter(account.left, math.inf)
    with pytest.raises(BudgetExceeded, match=r"^'H' costs [^\n]* is left in 'the budget'$"):
        account.charge("H", too_much)
    with pytest.raises(BudgetExceeded):
        account.charge_sum("H", account.left, 2)
    with pytest.raises(BudgetExceeded):
        account.reserve("chain 1", too_much, 1)
    assert (account.spent, account.left, account.steps, account.releases) == before
    account.charge("H", account.left)
    with pytest.raises(BudgetExceeded):
        account.charge("one more bit", 1e-15)
    assert account.epsilon_spent() <= BUDGET.epsilon
    assert account.epsilon_spent() == pytest.approx(BUDGET.epsilon, rel=1e-9)


@pytest.mark.parametrize("cost", [math.nan, math.inf, -math.inf, -1e-300, True, None, "0.1", np.float64("nan")])
def test_unknown_costs_are_refused(cost: Any) -> None:
    account = new_filter()
    for attempt in (
        lambda: account.charge("G", cost),
        lambda: account.charge_sum("G", cost, 3),
        lambda: account.reserve("G", cost, 1),
    ):
        with pytest.raises(ValueError, match=r"must be a finite number, zero or more, got [^\n]*$"):
            attempt()
    assert (account.spent, account.steps) == (0.0, 0)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None, math.nan])
def test_unknown_counts_are_refused(count: Any) -> None:
    account = new_filter()
    for attempt in (
        lambda: account.charge("G", 0.001, count),
        lambda: account.charge_sum("G", 0.001, count),
        lambda: account.reserve("G", 0.001, count),
        lambda: account.running_limit(count),
        lambda: RenyiFilter(BUDGET, steps_cap=count),
    ):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            attempt()
    assert (account.spent, account.steps) == (0.0, 0)


def test_bad_construction_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves nothing to spend"):
        new_filter(alpha=2.0)
    with pytest.raises(ValueError, match="order alpha"):
        new_filter(alpha=math.nan)
    with pytest.raises(ValueError, match="needs a Budget"):
        RenyiFilter((1.0, 1e-6), steps_cap=10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a name"):
        new_filter().charge(" ", 0.001)


@given(COSTS.map(lambda c: c / 1000), st.integers(1, 200))
@settings(max_examples=50)
def test_composing_n_equals_n_compositions(cost: float, count: int) -> None:
    together, one_by_one = new_filter(), new_filter()
    together.charge("bits", cost, count)
    for _ in range(count):
        one_by_one.charge("bits", cost)
    assert together.spent == one_by_one.spent
    assert together.left == one_by_one.left
    assert together.releases == one_by_one.releases
    assert Fraction(together.spent) >= Fraction(cost) * count


@given(st.lists(COSTS.map(lambda c: c / 50), max_size=40), st.randoms())
@settings(max_examples=50)
def test_order_makes_no_difference(costs: list[float], random: Any) -> None:
    there, back = new_filter(), new_filter()
    for cost in costs:
        there.charge("bits", cost)
    shuffled = list(costs)
    random.shuffle(shuffled)
    for cost in shuffled:
        back.charge("bits", cost)
    assert there.spent == back.spent >= math.fsum(costs)


@given(
    st.floats(0.05, 8),
    st.floats(1e-8, 1e-3),
    st.floats(1.2, 6),
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50), st.booleans()), min_size=1, max_size=30),
)
@settings(max_examples=150)
def test_no_sequence_of_charges_passes_the_budget(
    epsilon: float, delta: float, factor: float, wishes: list[tuple[float, int, bool]]
) -> None:
    """What got through, added up and converted by an independent accountant, is within the budget."""
    budget = Budget(epsilon, delta)
    account = RenyiFilter(budget, steps_cap=1000, alpha=1 + factor * -math.log(delta) / epsilon)
    granted: list[float] = []
    for wish, count, as_sum in wishes:
        cost = wish * account.limit
        try:
            if as_sum:
                account.charge_sum("sum", cost, count)
                granted.append(cost)
            else:
                account.charge("bits", cost / count, count)
                granted += [cost / count] * count
        except BudgetExceeded:
            continue
    assert math.fsum(granted) <= account.spent <= account.limit
    assert account.epsilon_spent() <= epsilon
    theirs, _ = compute_epsilon([account.alpha], [math.fsum(granted)], delta)
    assert theirs <= epsilon
    if account.epsilon_spent() > 1e-3:
        exact, _ = compute_epsilon([account.alpha], [account.spent], delta)
        # The filter's ε also pays for the rounding of random numbers; the conversion at the full δ must agree.
        ours = epsilon_from_rdp(account.spent, delta, account.alpha)
        assert ours == pytest.approx(exact, abs=1e-9)
        assert account.epsilon_spent() >= ours


def test_steps_are_capped() -> None:
    account = new_filter(steps_cap=10)
    account.charge("bits", 0.0, 9)
    with pytest.raises(BudgetExceeded, match="makes 2 releases, but only 1 of 10 are left"):
        account.charge("bits", 0.0, 2)
    account.charge("bits", 0.0)
    with pytest.raises(BudgetExceeded):
        account.charge_sum("bits", 0.0, 1)


def test_the_limit_pays_for_rounding_out_of_delta() -> None:
    """The claim at δ minus the reserve: an enforced cap of T steps of 64-bit coins costs what the reserve says."""
    cap = 10**12
    account = RenyiFilter(BUDGET, steps_cap=cap, alpha=22.0)
    reduced = BUDGET.delta - float_reserve(cap, BUDGET.epsilon)
    assert account.limit == pytest.approx(rdp_budget(BUDGET.epsilon, reduced, 22.0), rel=1e-9)
    assert account.limit < rdp_budget(BUDGET.epsilon, BUDGET.delta, 22.0) - 1e-3
    account.charge("everything", account.limit)
    assert account.epsilon_spent() == pytest.approx(BUDGET.epsilon, rel=1e-9)


# Running sums --------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300))
def test_a_running_sum_is_bounded(costs: list[float]) -> None:
    total = 0.0
    for cost in costs:
        total += cost
    exact = sum(map(Fraction, costs), Fraction(0))
    bound = running_sum_bound(total, len(costs))
    assert exact <= bound <= exact * (1 + Fraction(2 * len(costs), 2**52))


def test_a_running_sum_without_its_margin_would_undercount() -> None:
    """The margin is needed: 1 followed by halves of an ulp adds up to 1 in floating point."""
    costs = [1.0] + [2.0**-53] * 1000
    total = 0.0
    for cost in costs:
        total += cost
    exact = sum(map(Fraction, costs), Fraction(0))
    assert Fraction(total) < exact <= running_sum_bound(total, len(costs))


@given(st.lists(st.floats(0, 0.02), min_size=1, max_size=200), st.floats(0, 0.4))
def test_a_loop_below_its_running_limit_can_always_be_charged(costs: list[float], spent: float) -> None:
    account = new_filter()
    account.charge("start", spent * account.limit)
    limit = account.running_limit(len(costs))
    total, made = 0.0, 0
    for cost in costs:
        if total + cost > limit:
            break
        total, made = total + cost, made + 1
    if made:
        account.charge_sum("bits", total, made)
    assert account.spent <= account.limit
    account.charge_sum("at the limit", account.running_limit(7), 7)


# Shares --------------------------------------------------------------------------------------------------------------


def test_shares_are_counted_in_full_until_settled() -> None:
    account = new_filter(steps_cap=1000)
    account.charge("G", 0.05)
    share = account.reserve("chain 1", 0.2, 100)
    assert (account.spent, account.steps) == (pytest.approx(0.25), 101)
    assert account.releases == [Charge("G", 0.05, 1), Charge("chain 1 (reserved)", 0.2, 100)]
    share.charge("accept bits", 0.01, 5)
    share.charge("G", 0.02)
    assert (account.spent, share.spent, share.limit) == (pytest.approx(0.25), pytest.approx(0.07), 0.2)
    with pytest.raises(BudgetExceeded, match="left in 'chain 1'"):
        share.charge("too much", 0.14)
    with pytest.raises(BudgetExceeded, match="left in 'chain 1'"):
        share.charge("too many", 0.0, 95)
    account.settle(share)
    assert (account.spent, account.steps) == (pytest.approx(0.12), 7)
    assert [(c.what, pytest.approx(c.rdp), c.count) for c in account.releases] == [
        ("G", 0.07, 2),
        ("accept bits", 0.05, 5),
    ]
    assert math.fsum(c.rdp for c in account.releases) >= account.spent * (1 - 1e-15)


def test_a_settled_share_is_closed_and_settles_once() -> None:
    account = new_filter()
    share = account.reserve("chain 1", 0.1, 10)
    account.settle(share)
    assert account.spent == 0.0
    with pytest.raises(ValueError, match="settled"):
        share.charge("late bit", 0.01)
    with pytest.raises(ValueError, match="settle a share once"):
        account.settle(share)
    with pytest.raises(ValueError, match="settle a share once"):
        account.settle(new_filter().reserve("foreign", 0.1, 10))


def test_a_loop_that_breaks_off_has_spent_its_share() -> None:
    """A chunk reserved inside a chain's share and never settled stays spent, also after the chain is settled."""
    account = new_filter()
    chain = account.reserve("chain 1", 0.2, 100)
    chunk = chain.reserve("chunk", 0.15, 50)
    chunk.charge("accept bits", 0.01)
    account.settle(chain)
    assert account.spent == pytest.approx(0.15)
    assert account.releases == [Charge("chunk (reserved)", 0.15, 50)]


def test_filters_cannot_be_copied() -> None:
    account = new_filter()
    for duplicate in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="pickle"):
            duplicate(account)


def test_a_forked_copy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    account = RenyiFilter(BUDGET, steps_cap=10)
    share = account.reserve("a share", 0.1, 5)
    monkeypatch.setattr("os.getpid", lambda: -1)
    for part in (account, share):
        with pytest.raises(ValueError, match="copied into another process by a fork"):
            part.charge("something", 0.01)
    monkeypatch.undo()
    share.charge("something", 0.01)


def test_threads_cannot_overspend_together() -> None:
    account = new_filter(steps_cap=10**6)
    cost, granted = account.limit / 1000, []

    def spend() -> None:
        mine = 0
        try:
            while True:
                account.charge("bits", cost)
                mine += 1
        except BudgetExceeded:
            granted.append(mine)

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 4
    assert sum(granted) in (999, 1000)
    assert account.steps == sum(granted)


# Exact divergence of adaptive transcripts ----------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def bernoulli_divergence(p: float, q: float, alpha: float) -> float:
    terms = p**alpha * q ** (1 - alpha) + (1 - p) ** alpha * (1 - q) ** (1 - alpha)
    return math.log(terms) / (alpha - 1)


def bound_of_cost(cost: float, alpha: float) -> float:
    """The bound b at which a bit σ(±b) has D_α = cost, to the last digits from below."""
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        cheap = bernoulli_divergence(sigmoid(-middle), sigmoid(middle), alpha) <= cost
        low, high = (middle, high) if cheap else (low, middle)
    return low


def transcript_divergence(account_of: Callable[[], Any], depth: int, block: int) -> tuple[float, float]:
    """Exact D_α of all that an adaptive chain of accept bits releases, and the limit that it should keep.

    A step accepts with probability σ(∓b), the sign by the table; b is such that the step costs an eighth or a quarter
    of the limit, by the parity of the bits before, and the small step is tried again where the large one is refused.
    So every path fills the limit, and one step too many shows. Bits are charged `block` at once. Every path is walked
    from scratch with a fresh filter.
    """
    limit, alpha = account_of().limit, account_of().alpha
    small, large = (bound_of_cost(limit * part * (1 - 1e-9), alpha) for part in (1 / 8, 1 / 4))
    total = 0.0
    done: set[tuple[int, ...]] = set()
    for path in itertools.product((0, 1), repeat=depth):
        account, p_path, q_path, made = account_of(), 1.0, 1.0, 0
        while made < depth:
            for b in (large, small) if sum(path[:made]) % 2 else (small,):
                p, q = sigmoid(-b), sigmoid(b)
                try:
                    account.charge("bit", bernoulli_divergence(p, q, alpha), block)
                except BudgetExceeded:
                    continue
                break
            else:
                break
            for bit in path[made : made + block]:
                p_path *= p if bit else 1 - p
                q_path *= q if bit else 1 - q
            made += block
        if path[:made] not in done:
            done.add(path[:made])
            total += p_path**alpha * q_path ** (1 - alpha)
    return math.log(total) / (alpha - 1), limit


class LateFilter(RenyiFilter):
    """Planted bug: releases first and looks at the limit afterwards, one step late."""

    def charge(self, what: str, rdp: float, count: int = 1) -> None:
        if self._spent > self._limit:
            raise BudgetExceeded("late")
        self._spent += Fraction(rdp) * count


class ForgetfulFilter(RenyiFilter):
    """Planted bug: drops every third charge."""

    calls = 0

    def charge(self, what: str, rdp: float, count: int = 1) -> None:
        self.calls += 1
        if self.calls % 3:
            super().charge(what, rdp, count)


class CountlessFilter(RenyiFilter):
    """Planted bug: ignores the count."""

    def charge(self, what: str, rdp: float, count: int = 1) -> None:
        super().charge(what, rdp)


def small_filter(kind: type[RenyiFilter]) -> Callable[[], RenyiFilter]:
    return lambda: kind(Budget(1.0, 1e-3), steps_cap=100, alpha=12.0)


@pytest.mark.parametrize("block", [1, 2])
def test_exact_divergence_of_an_adaptive_chain_fills_the_limit_and_keeps_it(block: int) -> None:
    divergence, limit = transcript_divergence(small_filter(RenyiFilter), 10, block)
    assert (1 - 1e-8) * limit < divergence <= limit


@pytest.mark.parametrize(("kind", "block"), [(LateFilter, 1), (ForgetfulFilter, 1), (CountlessFilter, 2)])
def test_planted_bugs_are_caught_by_the_exact_divergence(kind: type[RenyiFilter], block: int) -> None:
    divergence, limit = transcript_divergence(small_filter(kind), 10, block)
    assert divergence > 1.05 * limit


# Against numerically exact (ε, δ) ------------------------------------------------------------------------------------


def exact_epsilon(p: float, q: float, steps: int, delta: float) -> float:
    """The ε at δ of `steps` independent bits, P(1) = p against q, both directions, by enumerating the counts."""
    ones = np.arange(steps + 1)
    logs = [binom.logpmf(ones, steps, chance) for chance in (p, q)]

    def delta_at(epsilon: float) -> float:
        both = (logs, logs[::-1])
        return max(float(np.sum(np.maximum(0.0, np.exp(a) - np.exp(epsilon + b)))) for a, b in both)

    low, high = 0.0, 50.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def run_equal_bits(account: RenyiFilter, centre: float, bound: float) -> tuple[float, float, int]:
    """Charge equal bits σ(centre ± bound) until the filter closes."""
    p, q = sigmoid(centre - bound), sigmoid(centre + bound)
    cost = max(bernoulli_divergence(p, q, account.alpha), bernoulli_divergence(q, p, account.alpha))
    made = 0
    while True:
        try:
            account.charge("bits", cost)
        except BudgetExceeded:
            return p, q, made
        made += 1


@pytest.mark.parametrize(("centre", "bound"), [(0.0, 0.01), (0.0, 0.03), (1.5, 0.03), (-1.0, 0.02)])
def test_our_epsilon_covers_the_exact_one_closely(centre: float, bound: float) -> None:
    account = new_filter()
    p, q, made = run_equal_bits(account, centre, bound)
    exact = exact_epsilon(p, q, made, BUDGET.delta)
    ours = account.epsilon_spent()
    assert exact <= ours <= BUDGET.epsilon
    assert ours <= 1.10 * exact
    # The same comparison catches a filter that drops every third charge: half as many bits again are not covered.
    assert exact_epsilon(p, q, made + made // 2, BUDGET.delta) > BUDGET.epsilon


@pytest.mark.parametrize(("centre", "bound"), [(0.0, 0.15), (-1.0, 0.1), (3.0, 0.2), (-6.0, 0.15), (0.3, 0.2)])
def test_our_epsilon_covers_a_few_large_bits(centre: float, bound: float) -> None:
    account = new_filter()
    p, q, made = run_equal_bits(account, centre, bound)
    assert made >= 1
    assert exact_epsilon(p, q, made, BUDGET.delta) <= account.epsilon_spent() <= BUDGET.epsilon


def test_many_small_steps_come_within_a_tenth_of_the_gaussian_limit() -> None:
    """T steps of shift 2b at Barker's steepest point are nearly Gaussian with ρ = Tb²/2."""
    account, bound = new_filter(), 0.01
    _, _, made = run_equal_bits(account, 0.0, bound)
    rho = made * bound**2 / 2
    assert gaussian_delta(BUDGET.epsilon, rho) <= BUDGET.delta
    assert gaussian_delta(BUDGET.epsilon / 1.1, rho) > BUDGET.delta
