"""The published algorithm: exact where mended, biased where printed, and its claim refuted, all by enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm, poisson

import finite
from dpfastmh import models, priors, theory
from dpfastmh.baselines import published as pub
from dpfastmh.baselines.common import noisy_metropolis
from dpfastmh.baselines.published import Published, PublishedFull
from dpfastmh.domain import Box
from dpfastmh.methods import Coordinates, MethodError, RandomWalk
from test_kernel_matches_enumeration import RARE, surprise

EXACT = 1e-12
X = np.array([[0.3], [-0.8], [1.0]])
Y = np.array([0, 1, 1])
PRIOR = priors.Normal(1.0, loc=0.5)
STATES = finite.lattice([-1.0, -0.5, 0.0, 0.5, 1.0])
MOVE = 0.5
WALK = RandomWalk(finite.scale_for(MOVE))
MODEL = models.LogisticRegression(Box(a=(-1, 1)), PRIOR, intercept=False)
LAM = 1.2

# noisy and free settings of the two branches: with C = 2.1, M = ½ and λ = 1.2, λ + CM = 2.25
MINI_NOISY = Published(WALK, lam=LAM, upper=4.0, epsilon=12.0, delta=0.1)
MINI_FREE = replace(MINI_NOISY, epsilon=20.0)
FULL_NOISY = PublishedFull(WALK, epsilon=0.9, delta=0.1)
FULL_FREE = replace(FULL_NOISY, epsilon=1.1)


# -- the algorithm restated ------------------------------------------------------------------------------------------
def differences(theta: float, proposal: float) -> np.ndarray:
    def energy(at: float) -> np.ndarray:
        eta = X[:, 0] * at
        return np.log1p(np.exp(eta)) - Y * eta

    return energy(proposal) - energy(theta)


def constants_of(method: PublishedFull) -> np.ndarray:
    return np.abs(X[:, 0]) if method.record_bounds == "private" else np.ones(3)


def acceptance(method: PublishedFull, law: theory.RatioLaw, minibatch: bool) -> float:
    """E min(1, e^{ℓ+ξ−correction}) with everything computed from the formulas of the paper."""
    c = constants_of(method)
    total, largest = c.sum(), c.max()
    if minibatch:
        assert isinstance(method, Published)
        epsilon = method.epsilon * total / (6 * method.upper * largest)
        delta = method.delta * total / (2 * method.upper * largest)
        x = total * MOVE / method.lam if method.sensitivity == "text" else 1 / (method.lam * total * MOVE)
        sensitivity = 2 * math.log(1 + x)
    else:
        epsilon, delta, sensitivity = method.epsilon, method.delta, 2 * largest * MOVE
    sd = math.sqrt(2 * math.log(1.25 / delta)) / epsilon * sensitivity
    noisy = sensitivity >= epsilon
    correction = sd**2 / 2 if noisy or method.correction == "printed" else 0.0

    def chance(ratio: np.ndarray) -> np.ndarray:
        level = ratio - correction
        if not noisy:
            return np.exp(np.minimum(level, 0.0))
        if method.noise == "gaussian":
            return norm.cdf(level / sd) + np.exp(level + sd**2 / 2) * norm.cdf(-(level + sd**2) / sd)
        return np.array([quad(lambda t, at=at: min(1.0, math.exp(at + t)), 0.0, sd, limit=200)[0] for at in level]) / sd

    return law.acceptance(chance)


def drawn_law(dU: np.ndarray, c: np.ndarray, lam: float, move: float, counts: range) -> list[theory.RatioLaw]:
    """The law of ℓ₁ given that B rows were drawn, for every B in ``counts``."""
    total = c.sum()
    rate, bound = lam * c / total, c * move
    keep = (rate + (dU + bound) / 2) / (rate + bound)
    weight = np.log((2 * rate + bound - dU) / (2 * rate + bound + dU))
    chances = np.append(c / total * keep, 1 - (c / total * keep).sum())
    values = np.append(weight, 0.0)
    laws = []
    for count in counts:
        outcomes = list(itertools.product(range(len(values)), repeat=count))
        laws.append(
            theory.RatioLaw(
                np.array([values[list(o)].sum() for o in outcomes]),
                np.array([chances[list(o)].prod() for o in outcomes]),
            )
        )
    return laws


def accepted(method: PublishedFull, theta: float, proposal: float) -> float:
    dU, c = differences(theta, proposal), constants_of(method)
    prior = float(PRIOR.log_density(proposal) - PRIOR.log_density(theta))
    full = theory.certain(-dU.sum()).shifted(prior)
    if not isinstance(method, Published):
        return acceptance(method, full, False)
    mean = method.lam + c.sum() * MOVE
    if method.branch == "mean":
        if mean >= method.upper:
            return acceptance(method, full, False)
        law = theory.minibatch_law(dU, c * MOVE, method.lam * c / c.sum())
        return acceptance(method, law.shifted(prior), True)
    counts = range(math.ceil(method.upper))
    small = drawn_law(dU, c, method.lam, MOVE, counts)
    chance = sum(
        poisson.pmf(n, mean) * acceptance(method, law.shifted(prior), True)
        for n, law in zip(counts, small, strict=True)
    )
    return float(chance + poisson.sf(counts[-1], mean) * acceptance(method, full, False))


def matrix(method: PublishedFull) -> np.ndarray:
    n = len(STATES)
    chances = np.zeros((n, n))
    for i, j in itertools.product(range(n), repeat=2):
        if abs(i - j) == 1:
            chances[i, j] = accepted(method, STATES[i, 0], STATES[j, 0])
    return theory.transition_matrix(np.full((n, n), 0.5), chances)


def target() -> np.ndarray:
    density = [PRIOR.log_density(s[0]) - differences(0.0, s[0]).sum() for s in STATES]
    weight = np.exp(np.array(density, dtype=float))
    return weight / weight.sum()


MENDED = {
    "minibatch, noisy": MINI_NOISY,
    "minibatch, free": MINI_FREE,
    "minibatch, public c": replace(MINI_NOISY, record_bounds="public"),
    "minibatch, sensitivity of the program": replace(MINI_NOISY, sensitivity="code"),
    "mean beyond K": replace(MINI_NOISY, upper=2.0),
    "full, noisy": FULL_NOISY,
    "full, free": FULL_FREE,
}
PRINTED = {
    "correction without noise": replace(MINI_FREE, correction="printed"),
    "correction without noise, full": replace(FULL_FREE, correction="printed"),
    "branch on the drawn batch": replace(MINI_FREE, branch="drawn", upper=3.0),
    "uniform noise": replace(FULL_NOISY, noise="uniform"),
}


# -- exactness -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MENDED)
def test_mended_it_is_exact(name: str) -> None:
    assert MENDED[name].exact
    assert theory.invariance_defect(target(), matrix(MENDED[name])) < EXACT
    assert theory.flow_defect(target(), matrix(MENDED[name])) < EXACT


@pytest.mark.parametrize("name", PRINTED)
def test_as_printed_it_is_not(name: str) -> None:
    """Each of these breaks detailed balance, and the law that is sampled instead is another one."""
    assert not PRINTED[name].exact
    transitions = matrix(PRINTED[name])
    assert theory.flow_defect(target(), transitions) > 1e-3
    assert theory.total_variation(theory.stationary(transitions), target()) > 1e-3


@pytest.mark.parametrize("name", [*MENDED, *PRINTED])
def test_the_loop_makes_the_enumerated_moves(name: str) -> None:
    method = {**MENDED, **PRINTED}[name]
    sampler = finite.on_lattice(method.on(MODEL, X, Y, seed=3), [-1.0], [1.0], 11)
    assert surprise(finite.visits(sampler, STATES, 200_000), matrix(method)) > RARE


def test_a_mended_loop_does_not_pass_for_a_printed_one() -> None:
    """The control of the comparison above."""
    sampler = finite.on_lattice(MINI_FREE.on(MODEL, X, Y, seed=3), [-1.0], [1.0], 11)
    seen = finite.visits(sampler, STATES, 200_000)
    assert surprise(seen, matrix(PRINTED["correction without noise"])) < 1e-12


@pytest.mark.parametrize(("upper", "ratio"), [(3, 0.728), (4, 0.654)])
def test_branching_on_the_drawn_batch_by_hand(upper: int, ratio: float) -> None:
    """Two records, dU = (.9, −.3), b = 1, λ = 1: given B < K, flows have the ratio .728 or .654 and not e^{−.6}."""
    dU, c = np.array([0.9, -0.3]), np.ones(2)

    def flow(change: np.ndarray) -> float:
        laws = drawn_law(change, c, 1.0, 1.0, range(upper))
        return sum(poisson.pmf(n, 3.0) * law.acceptance(theory.metropolis) for n, law in enumerate(laws))

    assert flow(dU) / flow(-dU) == pytest.approx(ratio, abs=5e-4)
    whole = [law.acceptance(theory.metropolis) for law in (theory.minibatch_law(s * dU, 1.0, 0.5) for s in (1, -1))]
    assert whole[0] / whole[1] == pytest.approx(math.exp(-0.6), rel=1e-9)


def test_acceptance_under_noise_at_every_size() -> None:
    """Φ(a/√v) + e^{a+v/2}Φ(−(a+v)/√v) against log-space evaluation, where the plain one over- and underflows too."""
    for level, variance in itertools.product(
        (-900.0, -30.0, -1.0, 0.0, 2.0, 400.0), (0.0, 1e-4, 0.5, 30.0, 900.0, 1e6)
    ):
        if variance == 0.0:
            expected = min(1.0, math.exp(level)) if level < 0 else 1.0
        else:
            root = math.sqrt(variance)
            tail = math.exp(min(level + variance / 2 + norm.logcdf(-(level + variance) / root), 0.0))
            expected = norm.cdf(level / root) + tail
        assert noisy_metropolis(level, variance) == pytest.approx(min(expected, 1.0), rel=2e-3, abs=1e-300)


# -- its constants and the formulas of its proof ---------------------------------------------------------------------
def authors_constants(truncated: bool) -> tuple[pub.PublishedRule, Published]:
    rng = np.random.default_rng(1)
    x = rng.normal(0.0, math.sqrt(2.0), 200_000) + rng.integers(0, 2, 200_000)
    x = (x[np.abs(x) <= 3.0] if truncated else x)[:50_000]
    method = Published(RandomWalk(0.06), lam=10.0, upper=60.0, epsilon=0.05, delta=1e-5)
    model = models.Mixture(bound="paper", half_width=3.0 if truncated else 20.0)
    return method.rule(method.constants(model, model.load(x))), method


def test_the_authors_mixture_constants() -> None:
    """ε′ = 5.3 on truncated data and about 3.6 on the data as drawn; max c = 8.75/500 on |x| ≤ 3."""
    rule, _ = authors_constants(truncated=True)
    assert rule.free1 == pytest.approx(5.28, abs=0.02)
    assert rule.largest == pytest.approx(8.746 / 500, rel=1e-3)
    assert rule.sigma2 == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 0.05)
    k, share = 60.0, 60.0 * rule.largest / rule.total
    assert rule.sigma1 == pytest.approx(6 * share * math.sqrt(2 * math.log(2.5 * share / 1e-5)) / 0.05)
    loose, _ = authors_constants(truncated=False)
    assert loose.free1 == pytest.approx(3.6, abs=0.3)
    bounds = pub.batch_bounds(1.0, rule.total, rule.largest)
    assert bounds.appendix == pytest.approx(6 * bounds.text)
    assert bounds.released == k


def test_public_constants_do_not_depend_on_the_records() -> None:
    method = replace(MINI_NOISY, record_bounds="public")
    rules = [method.rule(method.constants(MODEL, MODEL.load(x, Y))) for x in (X, np.zeros((3, 1)))]
    assert rules[0] == rules[1]
    leaking = [MINI_NOISY.rule(MINI_NOISY.constants(MODEL, MODEL.load(x, Y))) for x in (X, 0.5 * X)]
    assert leaking[0].total != leaking[1].total


def test_the_analytic_calibration_is_right_where_the_classic_is_not() -> None:
    """At ε′ = 5.3 the classical noise falls short of its δ; the analytic one meets it exactly."""
    from dpfastmh.baselines.composition import analytic_sigma, classic_sigma
    from dpfastmh.budget import gaussian_delta

    def delta_of(sigma: float, epsilon: float) -> float:
        return gaussian_delta(epsilon, 1 / (2 * sigma**2))

    assert delta_of(classic_sigma(12.0, 0.01), 12.0) > 0.01
    assert delta_of(analytic_sigma(12.0, 0.01), 12.0) == pytest.approx(0.01, rel=1e-6)
    analytic = replace(MINI_NOISY, calibration="analytic")
    constants = analytic.constants(MODEL, MODEL.load(X, Y))
    assert analytic.rule(constants).sigma1 != MINI_NOISY.rule(constants).sigma1


def test_amplification_by_drawing_is_below_six_k_p_epsilon_up_to_2_84_only() -> None:
    assert pub.draw_amplification(60, 1e-4, 2.83) <= 6 * 60 * 1e-4 * 2.83
    assert pub.draw_amplification(60, 1e-4, 2.9) > 6 * 60 * 1e-4 * 2.9
    assert pub.draw_amplification(60, 0.01, 1.0) == pytest.approx(
        60 * math.log((0.99 + 0.01 * math.e) / (0.99 + 0.01 / math.e))
    )
    assert pub.draw_delta(60, 0.01, 1e-6) == pytest.approx(1.2e-6)


def test_thinning_depends_on_the_record() -> None:
    """β runs from λ/(λ + CM) to 1."""
    c, total, lam, move = 2.0, 10.0, 3.0, 0.4
    assert pub.thinning(-c * move, c * move, c, total, lam) == pytest.approx(lam / (lam + total * move))
    assert pub.thinning(c * move, c * move, c, total, lam) == pytest.approx(1.0)


def test_assumption_2() -> None:
    assert pub.largest_move(models.Mixture()) == pytest.approx(math.sqrt(72.0))
    assert math.isinf(pub.largest_move(MODEL))


# -- the claim -------------------------------------------------------------------------------------------------------
def test_the_claim_fails_on_the_reject_side() -> None:
    """Neighbours with ℓ = 0 and ℓ = −Δ at Δ = ε = .05: rejecting has probability 0 and .0488, so δ ≥ .0488 at any ε."""
    method = PublishedFull(RandomWalk(0.1), epsilon=0.05, delta=1e-5)
    assert not method.claim_holds
    assert "rejection" in method.why
    assert method.delta_needed() == pytest.approx(0.0488, abs=1e-4)
    rule = method.rule(pub.Constants(100.0, 1.0, None))  # type: ignore[arg-type]
    move = 0.0249  # Δ₂ = 2·max c·M just below ε: no noise
    sd, correction = pub.step_noise(rule, False, move)
    assert (sd, correction) == (0.0, 0.0)
    reject = [1.0 - pub.chance(rule, ratio, sd, correction) for ratio in (0.0, -2 * move)]
    assert reject[0] == 0.0
    assert reject[1] > 0.048
    for epsilon in (0.05, 5.0, 50.0):
        assert reject[1] - math.exp(epsilon) * reject[0] > 1000 * method.delta
    accept = [1.0 - r for r in reject]
    assert accept[0] <= math.exp(0.05) * accept[1], "what the proof does show"
    barker = theory.barker(np.array([0.0, -2 * move]))
    for one, other in itertools.permutations((0, 1)):
        for outcome in (barker, 1 - barker):
            assert outcome[one] <= math.exp(0.05) * outcome[other], "the library's replacement passes"


def test_claimed_totals() -> None:
    method = PublishedFull(RandomWalk(0.1), epsilon=0.05, delta=1e-5)
    claims = {
        kind: method.claimed(10_000, accounting=kind).epsilon for kind in ("basic", "advanced", "gaussian", "moments")
    }
    assert claims == pytest.approx({"basic": 500.0, "advanced": 49.63, "gaussian": 4.54, "moments": 4.90}, abs=0.01)
    assert math.isinf(method.total_epsilon(1, 0.04, size=100))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PublishedFull(WALK, epsilon=0.0, delta=1e-5), "epsilon"),
        (lambda: PublishedFull(WALK, epsilon=1.0, delta=1e-5, noise="laplace"), "noise is 'laplace'"),
        (lambda: Published(WALK, lam=0.0, upper=60.0, epsilon=1.0, delta=1e-5), "lam is 0.0"),
        (lambda: Published(WALK, lam=1.0, upper=1e-9, epsilon=1.0, delta=0.5).on(MODEL, X, Y), "raise it"),
        (lambda: PublishedFull(Coordinates(0.1), epsilon=1.0, delta=1e-5).on(MODEL, X, Y), "use RandomWalk"),
    ],
)
def test_refusals(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build()  # type: ignore[operator]
    assert isinstance(caught.value, MethodError | ValueError)
