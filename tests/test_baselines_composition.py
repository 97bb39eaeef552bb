"""Accountants against published figures, quadrature, brute force and dp_accounting."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from dpfastmh.baselines import BASELINES, DPHMC, DPSGLD, Barker, DPBarker, DPPenalty, Published
from dpfastmh.baselines import composition as c
from dpfastmh.baselines.barker import barker_rdp
from dpfastmh.budget import Budget, gaussian_delta
from dpfastmh.methods import MethodError, RandomWalk

WALK = RandomWalk(0.1)


# -- published figures -----------------------------------------------------------------------------------------------
def test_the_published_per_step_claim_composes_to_49_6() -> None:
    found = c.advanced(0.05, 1e-5, 10_000)
    assert found.epsilon == pytest.approx(49.63, abs=0.01)
    assert found.delta == pytest.approx(10_001 * 1e-5)
    assert c.basic(0.05, 1e-5, 10_000) == pytest.approx((500.0, 0.1))


def test_the_classical_gaussian_mechanism_composes_to_4_90() -> None:
    sigma = c.classic_sigma(0.05, 1e-5)
    assert c.epsilon_of(c.gaussian_rdp(sigma), 10_000, 1e-5) == pytest.approx(4.90, abs=0.005)
    exact = c.gaussian_epsilon(c.gaussian_rho(sigma, 10_000), 1e-5)
    root = brentq(lambda e: gaussian_delta(e, c.gaussian_rho(sigma, 10_000)) - 1e-5, 0.1, 20.0, xtol=1e-12)
    assert exact == pytest.approx(root, abs=1e-9)
    assert exact == pytest.approx(4.54, abs=0.005)


def test_the_published_total_of_private_barker() -> None:
    """n = 1000, N = 10⁶, T = 20,000, δ = 1e-6: ε = 1.00; less by the better conversion."""
    curve = c.subsampled_rdp(barker_rdp(1000), 1e-3)
    assert c.epsilon_of(curve, 20_000, 1e-6, classic=True, orders=range(2, 200)) == pytest.approx(1.00, abs=0.001)
    method = DPBarker(WALK, batch=1000)
    assert 0.83 < method.total_epsilon(20_000, 1e-6, size=10**6) < 0.846
    assert math.isinf(barker_rdp(1000)(200))


# -- against dp_accounting -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.05, 2.0), (0.3, 4.0), (1.0, 3.0), (0.001, 0.8)])
def test_sampled_gaussian_of_a_record_removed(rate: float, sigma: float) -> None:
    from dp_accounting import dp_event, rdp

    orders = [2, 3, 5, 8, 16, 32]
    theirs = rdp.RdpAccountant(orders)
    theirs.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)), 1)
    ours = [c.sampled_gaussian_rdp(rate, sigma)(alpha) for alpha in orders]
    assert ours == pytest.approx(list(theirs._rdp), rel=1e-6)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.05, 2.0), (0.2, 4.0)])
def test_sampling_without_replacement_is_no_tighter_than_the_same_bound_elsewhere(rate: float, sigma: float) -> None:
    """Theirs refines the terms j ≥ 3 of the same theorem; at order 2 the two are one formula."""
    from dp_accounting import dp_event, rdp

    orders = [2, 3, 5, 8]
    theirs = rdp.RdpAccountant(orders, rdp.rdp_privacy_accountant.NeighborRel.REPLACE_ONE)
    size = 100_000
    event = dp_event.SampledWithoutReplacementDpEvent(size, round(rate * size), dp_event.GaussianDpEvent(sigma))
    theirs.compose(event, 1)
    ours = [c.subsampled_rdp(c.gaussian_rdp(sigma), rate)(alpha) for alpha in orders]
    assert ours[0] == pytest.approx(theirs._rdp[0], rel=1e-6)
    assert all(mine >= their * (1 - 1e-9) for mine, their in zip(ours, theirs._rdp, strict=True))


def test_gaussian_composition_against_privacy_loss_distributions() -> None:
    from dp_accounting import dp_event, pld

    theirs = pld.PLDAccountant()
    theirs.compose(dp_event.GaussianDpEvent(20.0), 500)
    assert c.gaussian_epsilon(c.gaussian_rho(20.0, 500), 1e-6) == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-3)


# -- a record replaced ------------------------------------------------------------------------------------------------
def divergence(rate: float, sigma: float, alpha: int, one: float, other: float) -> float:
    """D_α by quadrature of the mixtures with shifts ``one`` and ``other``."""
    reach = (alpha + 8.0) * 1.1 + 14.0 * sigma
    x = np.linspace(-reach, reach, 200_001)

    def log_density(shift: float) -> np.ndarray:
        still, moved = -(x**2) / (2 * sigma**2), -((x - shift) ** 2) / (2 * sigma**2)
        return np.logaddexp(math.log1p(-rate) + still, math.log(rate) + moved) - math.log(
            sigma * math.sqrt(2 * math.pi)
        )

    exponent = alpha * log_density(one) + (1 - alpha) * log_density(other)
    top = exponent.max()
    return (top + math.log(np.exp(exponent - top).sum() * (x[1] - x[0]))) / (alpha - 1)


REPLACED = list(itertools.product([(0.01, 1.0), (0.05, 2.0), (0.3, 4.0), (0.1, 1.5), (0.01, 5.0)], [2, 3, 6, 12]))


@pytest.mark.parametrize(("setting", "alpha"), REPLACED)
def test_the_bound_for_a_record_replaced_holds(setting: tuple[float, float], alpha: int) -> None:
    rate, sigma = setting
    bound = c.sampled_gaussian_replaced_rdp(rate, sigma)(alpha)
    worst = max(
        divergence(rate, sigma, alpha, u, v) for u, v in itertools.product((1.0, 0.6, 0.0, -0.7, -1.0), repeat=2)
    )
    assert worst <= bound * (1 + 1e-6)
    assert bound <= 2.0 * alpha / sigma**2
    if rate * alpha < 0.1 and sigma >= 2.0:
        assert bound < 1.15 * worst, "sharp where costs are small"


def test_counting_a_replaced_record_as_removed_would_undercharge() -> None:
    """The control: the true divergence of a replacement is four times what a removal costs."""
    removed, replaced = c.sampled_gaussian_rdp(0.01, 5.0)(4), divergence(0.01, 5.0, 4, 1.0, -1.0)
    assert replaced > 3.9 * removed


# -- composition and its inverse -------------------------------------------------------------------------------------
def test_whole_orders_bound_those_between() -> None:
    known = c.between_whole_orders(c.gaussian_rdp(3.0))
    for alpha in (1.2, 1.9, 2.0, 2.5, 7.3):
        assert known(alpha) >= alpha / 18.0 * (1 - 1e-12)
        assert known(alpha) <= (alpha + 1.0) / 18.0


def test_unknown_and_negative_costs_are_refused() -> None:
    for value in (math.nan, -1.0):
        with pytest.raises(ValueError, match="Rényi cost"):
            c.epsilon_of(lambda alpha, value=value: value, 3, 1e-5)
    assert math.isinf(c.epsilon_of(lambda alpha: math.inf, 1, 1e-5))
    with pytest.raises(ValueError, match="whole orders"):
        c.sampled_gaussian_rdp(0.1, 1.0)(2.5)


METHODS = {
    "dp-penalty": DPPenalty(WALK, sigma=1.0),
    "dp-barker, all rows": DPBarker(WALK, reach=1.0),
    "dp-barker": DPBarker(WALK, batch=100),
    "dp-sgld": DPSGLD(batch=500, noise=1.0),
    "dp-hmc": DPHMC(leaps=5, step=0.1, gradient_noise=2.0, sigma=1.0),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_method_set_for_a_budget_uses_it_and_no_more(name: str, epsilon: float) -> None:
    steps, size = 200 if name == "dp-barker" else 2000, 50_000
    budget = Budget(epsilon, 1e-5)
    if name == "dp-barker" and epsilon < 1.0:
        with pytest.raises(MethodError, match="take fewer steps"):
            METHODS[name].within(budget, 10_000, size=size)
        return
    method = METHODS[name].within(budget, steps, size=size)
    spent = method.total_epsilon(steps, 1e-5, size=size)
    assert spent <= epsilon
    assert spent > 0.97 * epsilon
    assert method.total_epsilon(2 * steps, 1e-5, size=size) > epsilon


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.2, 50.0),
    st.integers(1, 10**6),
    st.floats(1e-9, 1e-2),
)
def test_gaussian_totals_are_consistent(sigma: float, steps: int, delta: float) -> None:
    rho = c.gaussian_rho(sigma, steps)
    epsilon = c.gaussian_epsilon(rho, delta)
    assert gaussian_delta(epsilon, rho) <= delta * (1 + 1e-9)
    assert epsilon <= c.epsilon_of(c.gaussian_rdp(sigma), steps, delta) * (1 + 1e-9) + 1e-9


def test_what_has_no_total_says_so() -> None:
    for method in (Published(WALK, lam=10.0, upper=60.0, epsilon=0.05, delta=1e-5), Barker(WALK)):
        assert math.isinf(method.total_epsilon(1, 1e-5, size=1000))
        with pytest.raises(MethodError, match="no total privacy guarantee"):
            method.within(Budget(1.0, 1e-5), 10, size=1000)
    assert {name for name, method in BASELINES.items() if method.private} == {
        "dp-penalty",
        "dp-barker",
        "dp-sgld",
        "dp-hmc",
    }


def test_a_cost_of_next_to_nothing_is_not_negative() -> None:
    """Logarithms of sums near 1 round to either side of 0."""
    for noise in (1e6, 1e9):
        curve = c.sampled_gaussian_replaced_rdp(0.01, noise)
        costs = [curve(alpha) for alpha in (2, 5, 64, 700)]
        assert min(costs) >= 0.0
        assert max(costs) < 1e-9
