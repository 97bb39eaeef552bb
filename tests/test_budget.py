"""Budgets and conversions: refusals, agreement with independent accountants, rounding against ourselves."""

from __future__ import annotations

import math
import subprocess
import sys
from decimal import Decimal
from typing import Any

import mpmath
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given
from hypothesis import strategies as st

from dpfastmh.budget import (
    Budget,
    best_alpha,
    epsilon_from_rdp,
    float_reserve,
    gaussian_delta,
    gaussian_limit_rho,
    rdp_budget,
)

EPSILONS = st.floats(1e-3, 50)
DELTAS = st.floats(1e-15, 0.1)
ORDERS = st.floats(1.02, 1e4)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, True, "1", None, 10**400, Decimal(1), 1j])
def test_bad_epsilon_is_refused_in_one_line(epsilon: Any) -> None:
    with pytest.raises(ValueError, match=r"^epsilon must be a finite number above 0, got [^\n]*$"):
        Budget(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0, 1, -1e-9, 1.5, math.nan, math.inf, True, "1e-6", None])
def test_bad_delta_is_refused_in_one_line(delta: Any) -> None:
    with pytest.raises(ValueError, match=r"^delta must be a number strictly between 0 and 1, got [^\n]*$"):
        Budget(1.0, delta)


def test_delta_has_no_default_and_budgets_are_frozen() -> None:
    with pytest.raises(TypeError, match="delta"):
        Budget(1.0)  # type: ignore[call-arg]
    budget = Budget(1, 1e-6)
    assert type(budget.epsilon) is float
    with pytest.raises(AttributeError):
        budget.epsilon = 2.0  # type: ignore[misc]


def test_delta_above_one_over_n_needs_force() -> None:
    budget = Budget(1.0, 1e-3)
    budget.check_rows(1000)
    with pytest.raises(ValueError, match=r"delta=0\.001 is above 1/1001"):
        budget.check_rows(1001)
    budget.check_rows(1001, force=True)
    for units in (0, -5, 2.5, True, math.nan):
        with pytest.raises(ValueError, match="number of units"):
            budget.check_rows(units, force=True)  # type: ignore[arg-type]


def exact_offset(delta: float, alpha: float) -> mpmath.mpf:
    """ε − r of the conversion, in 50 digits."""
    a, d = mpmath.mpf(alpha), mpmath.mpf(delta)
    return (mpmath.log(1 / d) + (a - 1) * mpmath.log(1 - 1 / a) - mpmath.log(a)) / (a - 1)


@given(EPSILONS, DELTAS, st.floats(1.0001, 1e6))
def test_rounding_is_against_us_and_small(epsilon: float, delta: float, alpha: float) -> None:
    with mpmath.workdps(50):
        offset = exact_offset(delta, alpha)
        allowed, exact = rdp_budget(epsilon, delta, alpha), epsilon - offset
        assert allowed <= exact
        assert exact - allowed <= 1e-12 * (epsilon + 3 * abs(math.log(delta)) / (alpha - 1) + 20)
        spent = epsilon_from_rdp(epsilon, delta, alpha)
        indistinct = 1 - mpmath.exp(-mpmath.mpf(epsilon)) <= mpmath.mpf(delta) ** 2
        assert spent >= epsilon + offset or (spent == 0 and indistinct)
        if allowed > 0:
            assert epsilon_from_rdp(allowed, delta, alpha) <= epsilon


@given(st.one_of(st.floats(1e-3, 30), st.floats(0, 1e-12)), DELTAS, ORDERS)
def test_conversion_agrees_with_dp_accounting(rdp: float, delta: float, alpha: float) -> None:
    theirs, _ = compute_epsilon([alpha], [rdp], delta)
    assert epsilon_from_rdp(rdp, delta, alpha) == pytest.approx(theirs, abs=1e-9, rel=1e-9)


@pytest.mark.parametrize("rdp", [-1e-300, math.nan, math.inf, True, "0"])
def test_unknown_divergence_is_refused(rdp: Any) -> None:
    with pytest.raises(ValueError, match="Rényi divergence must be a finite number"):
        epsilon_from_rdp(rdp, 1e-6, 8.0)


@pytest.mark.parametrize("alpha", [1, 0.5, math.nan, math.inf, True])
def test_bad_order_is_refused(alpha: Any) -> None:
    for conversion in (rdp_budget, epsilon_from_rdp):
        with pytest.raises(ValueError, match="order alpha must be"):
            conversion(1.0, 1e-6, alpha)


def test_next_to_nothing_spent_is_zero_epsilon() -> None:
    assert epsilon_from_rdp(0.0, 1e-6, 8.0) == 0.0
    assert epsilon_from_rdp(0.9e-12, 1e-6, 8.0) == 0.0
    assert epsilon_from_rdp(1.1e-12, 1e-6, 8.0) > 0.5


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
@pytest.mark.parametrize("power", [1.0, 0.3])
def test_best_alpha_beats_a_fine_grid(epsilon: float, delta: float, power: float) -> None:
    budget = Budget(epsilon, delta)
    alpha = best_alpha(budget, lambda a: a**power)
    best = rdp_budget(epsilon, delta, alpha) / alpha**power
    centre = -math.log(delta) / epsilon
    grid = [1 + centre * 2.0 ** (j / 50) for j in range(-150, 501)]
    assert best >= 0.999 * max(rdp_budget(epsilon, delta, a) / a**power for a in grid)
    assert alpha == best_alpha(budget, lambda a: a**power)


def test_best_alpha_respects_orders_of_infinite_cost_and_refuses_bad_costs() -> None:
    budget = Budget(1.0, 1e-6)
    assert best_alpha(budget) > 20
    assert best_alpha(budget, lambda a: a if a < 18 else math.inf) < 18
    with pytest.raises(ValueError, match="no Rényi order has a finite unit_cost"):
        best_alpha(budget, lambda a: math.inf)
    for bad in (math.nan, 0.0, -1.0):
        with pytest.raises(ValueError, match="unit_cost"):
            best_alpha(budget, lambda a, bad=bad: bad)  # type: ignore[misc]


@pytest.mark.parametrize(("epsilon", "rho"), [(0.5, 0.01), (1.0, 0.03), (4.0, 0.35), (30.0, 1.5), (1000.0, 900.0)])
def test_gaussian_delta_is_the_exact_formula(epsilon: float, rho: float) -> None:
    with mpmath.workdps(60):
        mu = mpmath.sqrt(2 * mpmath.mpf(rho))
        exact = mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    assert gaussian_delta(epsilon, rho) == pytest.approx(float(exact), rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta", "at_most"), [(0.1, 1e-6, 1.10), (1.0, 1e-6, 1.08), (2.0, 1e-6, 1.08), (4.0, 1e-6, 1.08)]
)
def test_distance_from_the_gaussian_limit(epsilon: float, delta: float, at_most: float) -> None:
    """What one order buys, ρ = τ(α)/α, has by exact Gaussian accounting an ε between 1/at_most and 1 times ours."""
    budget = Budget(epsilon, delta)
    alpha = best_alpha(budget)
    rho = rdp_budget(epsilon, delta, alpha) / alpha
    assert rho < gaussian_limit_rho(budget)
    assert gaussian_delta(epsilon, rho) < delta < gaussian_delta(epsilon / at_most, rho)
    assert gaussian_delta(epsilon, gaussian_limit_rho(budget)) == pytest.approx(delta, rel=1e-6)


def test_float_reserve_value_and_refusals() -> None:
    assert float_reserve(10**9, 1.0) == pytest.approx((1 + math.e) * 1e9 * 2**-63, rel=1e-12)
    assert float_reserve(10**9, 1.0) >= (1 + math.e) * 1e9 * 2**-63
    assert float_reserve(10, 1e4) == math.inf
    left = Budget(1.0, 1e-6).minus_float_reserve(10**9)
    assert left.epsilon == 1.0
    assert left.delta == pytest.approx(1e-6 - float_reserve(10**9, 1.0), rel=1e-12)
    reserve = float_reserve(10**9, 1.0)
    Budget(1.0, 2.01 * reserve).minus_float_reserve(10**9)
    for budget in (Budget(1.0, 1.99 * reserve), Budget(1.0, 1e-10), Budget(800.0, 0.1)):
        with pytest.raises(ValueError, match=r"more than half; lower steps_cap or epsilon, or raise delta$"):
            budget.minus_float_reserve(10**9)
    for cap in (0, -1, 1.5, math.nan):
        with pytest.raises(ValueError, match="steps_cap"):
            float_reserve(cap, 1.0)  # type: ignore[arg-type]


def test_most_steps_cost_a_hundredth_of_delta() -> None:
    for epsilon, delta in ((0.1, 1e-9), (1.0, 1e-6), (8.0, 1e-5), (20.0, 1e-3)):
        budget = Budget(epsilon, delta)
        steps = budget.most_steps()
        assert float_reserve(steps, epsilon) <= 0.0101 * delta
        assert float_reserve(2 * steps + 2, epsilon) > 0.01 * delta
    assert Budget(60.0, 1e-9).most_steps() == 1


def test_importing_budgets_is_light() -> None:
    code = "import sys, dpfastmh.budget; print(sorted({'scipy', 'numba', 'opendp'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
