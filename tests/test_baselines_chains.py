"""The compared chains: exact where they should be, biased where known to be, and the same as their formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numba import njit
from scipy.special import expit
from scipy.stats import chi2, kstest, norm

import finite
from dpfastmh import LogisticRegression, Mixture, models, priors, theory
from dpfastmh.baselines import (
    BASELINES,
    DPHMC,
    DPSGLD,
    Barker,
    Baseline,
    DPBarker,
    DPPenalty,
    ExactPosterior,
    Penalty,
    Published,
    PublishedFull,
    barker,
)
from dpfastmh.baselines.common import BaselineSampler, public_constant
from dpfastmh.baselines.dp_sgld import reflected
from dpfastmh.baselines.gradient import add_clipped_gradient
from dpfastmh.datasets import mnist79
from dpfastmh.domain import Box
from dpfastmh.methods import Coordinates, MethodError, RandomWalk
from test_baselines_published import EXACT, MODEL, PRIOR, STATES, WALK, X, Y, differences, target
from test_exactness import own_model
from test_kernel_matches_enumeration import RARE, surprise

STEPS = 200_000


def matrix(chance) -> np.ndarray:
    """The chain that accepts a move from θ to θ′ with chance(θ, θ′)."""
    n = len(STATES)
    chances = np.zeros((n, n))
    for i, j in itertools.product(range(n), repeat=2):
        if abs(i - j) == 1:
            chances[i, j] = chance(STATES[i, 0], STATES[j, 0])
    return theory.transition_matrix(np.full((n, n), 0.5), chances)


def prior_change(theta: float, proposal: float) -> float:
    return float(PRIOR.log_density(proposal) - PRIOR.log_density(theta))


def full_ratio(theta: float, proposal: float) -> float:
    return prior_change(theta, proposal) - differences(theta, proposal).sum()


def on_lattice(method: Baseline, seed: int = 5) -> BaselineSampler:
    return finite.on_lattice(method.on(MODEL, X, Y, seed=seed), [-1.0], [1.0], seed)


# -- penalty ---------------------------------------------------------------------------------------------------------
def noise_of(method: Penalty | DPPenalty, theta: float, proposal: float) -> float:
    if isinstance(method, Penalty):
        return method.variance
    bound = expit(max(abs(theta), abs(proposal))) * 0.5  # σ(s)·s(δ) for x in [−1, 1]
    return (method.sigma * 2 * bound) ** 2


PENALTIES = {"penalty": Penalty(WALK, variance=1.5), "dp-penalty": DPPenalty(WALK, sigma=2.0)}


@pytest.mark.parametrize("name", PENALTIES)
def test_penalty_is_exact_and_the_loop_is_it(name: str) -> None:
    method = PENALTIES[name]
    exact = matrix(lambda a, b: float(theory.penalty(noise_of(method, a, b))(np.array([full_ratio(a, b)]))[0]))
    assert theory.invariance_defect(target(), exact) < EXACT
    seen = finite.visits(on_lattice(method), STATES, STEPS)
    assert surprise(seen, exact) > RARE
    half = matrix(lambda a, b: float(theory.penalty(noise_of(method, a, b) / 4)(np.array([full_ratio(a, b)]))[0]))
    assert surprise(seen, half) < 1e-12, "half the sensitivity is caught"


def test_noise_without_its_penalty_is_biased() -> None:
    wrong = matrix(lambda a, b: norm.expect(lambda z: math.exp(min(0.0, full_ratio(a, b) + 1.5 * z))))
    assert theory.total_variation(theory.stationary(wrong), target()) > 1e-3


def test_penalty_per_step_calibration() -> None:
    method = DPPenalty.per_step(WALK, 0.05, 1e-5)
    assert method.sigma == pytest.approx(96.9, abs=0.05)


# -- Barker ----------------------------------------------------------------------------------------------------------
def test_the_shipped_correction_is_the_fitted_one() -> None:
    assert np.allclose(barker.correction_weights(), barker.fit_correction(), atol=1e-7)
    assert barker.correction_weights().size == 50
    assert math.fsum(barker.WEIGHTS.values()) == pytest.approx(1.0, abs=1e-8)


def test_the_fit_of_the_correction() -> None:
    """log density within .016 on [−10, 10], acceptance within .0021 everywhere; ten times that without it."""
    x = np.linspace(-10.0, 10.0, 2001)
    spread = math.sqrt(barker.VARIANCE + barker.WIDTH**2)
    pairs = [(w / 2, sign * barker.CENTRES[k]) for k, w in barker.WEIGHTS.items() for sign in (1, -1)]
    density = sum(w * norm.pdf(x, c, spread) for w, c in pairs)
    logistic = np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))) ** 2
    assert np.abs(np.log(density / logistic)).max() < 0.016
    wide = np.linspace(-30.0, 30.0, 3001)
    assert np.abs(barker.approximate_barker(wide) - expit(wide)).max() < 0.0021
    assert np.abs(norm.cdf(wide, scale=math.sqrt(2.0)) - expit(wide)).max() > 0.02


def batch_chance(batch: int, clip: float, theta: float, proposal: float) -> float:
    dU = np.clip(differences(theta, proposal), -clip, clip)
    chances = []
    for rows in itertools.combinations(range(3), batch):
        part = dU[list(rows)]
        ratio = prior_change(theta, proposal) - 3.0 * part.mean()
        chances.append(float(barker.approximate_barker(np.array(ratio), 9.0 / batch * part.var())))
    return float(np.mean(chances))


BATCHES = {
    "one row, clipped": (DPBarker(WALK, batch=1), lambda a, b: batch_chance(1, 0.33, a, b)),
    "two rows": (DPBarker(WALK, batch=2), lambda a, b: batch_chance(2, 0.99 * math.sqrt(2) / 3, a, b)),
    "all rows as a batch": (DPBarker(WALK, batch=3), lambda a, b: batch_chance(3, 0.99 * math.sqrt(3) / 3, a, b)),
    "all rows": (
        DPBarker(WALK, reach=1.0),
        lambda a, b: float(barker.approximate_barker(np.array(full_ratio(a, b)))),
    ),
    "not private": (
        Barker(WALK, batch=3),
        lambda a, b: float(barker.approximate_barker(np.array(full_ratio(a, b)))),
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_barker_loops_make_the_enumerated_moves(name: str) -> None:
    method, chance = BATCHES[name]
    assert surprise(finite.visits(on_lattice(method), STATES, STEPS), matrix(chance)) > RARE


def test_the_bias_of_barker() -> None:
    """Exact Barker is exact; the fitted correction is off a little; batches more, and clipping most."""
    off = {
        name: theory.total_variation(theory.stationary(matrix(chance)), target())
        for name, (_, chance) in BATCHES.items()
    }
    exact = matrix(lambda a, b: float(expit(full_ratio(a, b))))
    assert theory.total_variation(theory.stationary(exact), target()) < EXACT
    assert 1e-4 < off["all rows"] < 3e-3
    assert off["one row, clipped"] > 2e-3
    assert off["one row, clipped"] > off["all rows"]
    uncorrected = matrix(lambda a, b: float(norm.cdf(full_ratio(a, b) / math.sqrt(2.0))))
    assert theory.total_variation(theory.stationary(uncorrected), target()) > 5 * off["all rows"]


def test_batches_grow_until_their_error_is_small() -> None:
    rng = np.random.default_rng(2)
    model, x = Mixture(temperature=20.0), rng.normal(0.5, 1.4, 3000)
    touched = []
    for scale in (0.01, 0.3):
        sampler = Barker(RandomWalk(scale), batch=50).on(model, x, seed=1)
        _, _, info = sampler.run(sampler.init([0.0, 1.0]), 400)
        touched.append(info.rows / info.evaluated)
    assert touched[0] == pytest.approx(50.0)
    assert 100.0 < touched[1] <= 3000.0


def test_a_reach_shuts_long_moves_out() -> None:
    bound = max(expit(max(abs(a), abs(b))) * 0.5 for a, b in ((-1, -0.5), (0, 0.5)))
    sampler = on_lattice(DPBarker(WALK, reach=0.99 * expit(0.5) * 0.5))
    _, _, info = sampler.run(sampler.init([0.0]), 1000)
    assert bound > 0.99 * expit(0.5) * 0.5
    assert (info.accepted, info.evaluated) == (0, 0)


# -- gradients -------------------------------------------------------------------------------------------------------
@njit
def _gradient(model, rows, work, i, theta, clip, out):
    add_clipped_gradient(model, rows, work, i, theta, clip, out)


def gradient(sampler: BaselineSampler, i: int, theta: np.ndarray, clip: float) -> np.ndarray:
    out = np.zeros(theta.size)
    _gradient(sampler._table, sampler._rows, sampler._work, i, theta, clip, out)
    return out


def tasks() -> dict[str, tuple]:
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, (40, 2))
    box = Box(a=(-1, 1), b=(-1, 1))
    return {
        "logistic": (LogisticRegression(box, PRIOR, temperature=2.0), x, (rng.random(40) < 0.6).astype(int), 3),
        "softmax": (models.SoftmaxRegression(box, PRIOR, classes=3), x, rng.integers(0, 3, 40), 6),
        "student-t": (models.StudentTRegression(box, PRIOR), x, rng.normal(size=40), 3),
        "mixture": (Mixture(temperature=5.0), rng.normal(0.5, 1.2, 40), None, 2),
    }


@pytest.mark.parametrize("name", ["logistic", "softmax", "student-t", "mixture"])
def test_gradients_against_differences_of_energies(name: str) -> None:
    model, x, y, p = tasks()[name]
    clip = 0.05
    sampler = DPSGLD(batch=5, noise=1.0, clip=clip).on(model, x, y, seed=1)
    theta = np.linspace(-0.5, 0.7, p)
    from dpfastmh.steps.likelihood import energies

    @njit
    def energy(table, rows, work, i, at):
        energies(table, rows, work, i, 1, at)
        return work.change[0]

    clipped = 0
    for i in (0, 7, 39):
        steps = 1e-6 * np.eye(p)
        pieces = (sampler._table, sampler._rows, sampler._work, i)
        expected = [(energy(*pieces, theta + e) - energy(*pieces, theta - e)) / 2e-6 for e in steps]
        assert np.allclose(gradient(sampler, i, theta, math.inf), expected, atol=1e-8)
        short = gradient(sampler, i, theta, clip)
        size = np.linalg.norm(expected)
        clipped += size > clip
        assert np.allclose(short, np.array(expected) * min(1.0, clip / size), atol=1e-8)
        if name != "softmax":
            assert size <= public_constant(model)
    assert clipped


# -- DP-SGLD ---------------------------------------------------------------------------------------------------------
def logistic_gradient(theta: np.ndarray, clip: float) -> np.ndarray:
    """Σ ḡ_i + ∇(−log prior) at many points, for the three records of the lattice model."""
    each = (expit(theta[:, None] * X[:, 0]) - Y) * X[:, 0]
    return np.clip(each, -clip, clip).sum(axis=1) + (theta - 0.5)


@pytest.mark.parametrize("noise", [0.5, 30.0])
def test_a_langevin_step_has_the_stated_law(noise: float) -> None:
    """Batch = everybody: what is left of a step after its drift is N(0, v), v = max(2η, (η z clip/q)²)."""
    method = DPSGLD(batch=3, noise=noise, clip=0.3, step=0.1)
    _, draws, info = (sampler := method.on(MODEL, X, Y, seed=9)).run(sampler.init([0.2]), 50_000)
    path = np.append(0.2, draws[:, 0])
    sd = max(math.sqrt(0.2), 0.1 * noise * 0.3)
    left = (np.diff(path) + 0.1 * logistic_gradient(path[:-1], 0.3)) / sd
    assert kstest(left, "norm").pvalue > RARE
    assert info.rows == 150_000
    assert kstest(1.05 * left, "norm").pvalue < RARE, "noise off by 5% is caught"
    short, whole = logistic_gradient(path[:-1], 0.3), logistic_gradient(path[:-1], 9.0)
    lost = 0.1 * (whole - short) / sd  # what the residuals would hold had the loop not clipped
    assert abs(lost @ left) / np.linalg.norm(lost) < 5.0
    if noise < 1.0:
        assert np.linalg.norm(lost) > 10.0, "and that would have been seen"


def test_records_are_sampled_one_by_one() -> None:
    """Binomial numbers of rows; and the mean step is that of everybody's gradient."""
    model, x, y, _ = tasks()["logistic"]
    method = DPSGLD(batch=10, noise=1.0, clip=0.4, step=1e-4)
    sampler = method.on(model, x, y, seed=3)
    state, rows = sampler.init([0.0, 0.1, -0.2]), []
    for _ in range(400):
        state, _, info = sampler.run(state, 1)
        rows.append(info.rows)
    assert abs(np.mean(rows) - 10.0) < 5 * math.sqrt(40 * 0.25 * 0.75 / 400)
    assert np.var(rows) == pytest.approx(7.5, rel=0.4)


def test_a_small_step_samples_nearly_the_posterior() -> None:
    sampler = DPSGLD(batch=3, noise=1e-3, clip=1.0, step=0.02).on(MODEL, X, Y, seed=2)
    _, draws, _ = sampler.run(sampler.init([0.5]), 400_000)
    grid = np.linspace(-6, 7, 4001)
    log_density = PRIOR.log_density(grid) - (np.log1p(np.exp(X * grid)) - Y[:, None] * X * grid).sum(axis=0)
    weight = np.exp(log_density - log_density.max())
    mean = (grid * weight).sum() / weight.sum()
    sd = math.sqrt(((grid - mean) ** 2 * weight).sum() / weight.sum())
    assert draws.mean() == pytest.approx(mean, abs=0.08 * sd)
    assert draws.std() == pytest.approx(sd, rel=0.05)


def test_the_longest_free_step_and_reflection() -> None:
    method = DPSGLD(batch=10, noise=4.0, clip=0.5)
    rule = method.rule(MODEL, 100)
    assert rule.step == pytest.approx(2 * (0.1 / (4.0 * 0.5)) ** 2)
    assert rule.sd == pytest.approx(math.sqrt(2 * rule.step))
    assert [reflected(v, -3.0, 3.0) for v in (2.0, 4.0, -3.5, 9.5, 15.25)] == pytest.approx(
        [2.0, 2.0, -2.5, -2.5, 2.25 + 0.5]
    )
    sampler = DPSGLD(batch=20, noise=1.0, step=5.0).on(*tasks()["mixture"][:2], seed=1)
    _, draws, _ = sampler.run(sampler.init([0.0, 0.0]), 2000)
    assert np.abs(draws).max() <= 3.0


# -- DP-HMC ----------------------------------------------------------------------------------------------------------
EDGES = np.array([-np.inf, -0.9, -0.3, 0.1, 0.5, 0.9, 1.3, 1.9, np.inf])


def bins_of_posterior() -> np.ndarray:
    grid = np.linspace(-8, 9, 100_001)
    log_density = PRIOR.log_density(grid) - (np.log1p(np.exp(X * grid)) - Y[:, None] * X * grid).sum(axis=0)
    weight = np.exp(log_density - log_density.max())
    return np.histogram(grid, np.clip(EDGES, -9, 10), weights=weight / weight.sum())[0]


def bin_surprise(draws: np.ndarray, expected: np.ndarray, blocks: int = 200) -> float:
    """p-value of the bins' frequencies, their covariance estimated over blocks of the chain."""
    indicators = (np.digitize(draws, EDGES[1:-1])[:, None] == np.arange(len(expected) - 1)).astype(float)
    means = indicators[: len(draws) // blocks * blocks].reshape(blocks, -1, len(expected) - 1).mean(axis=1)
    gap = means.mean(axis=0) - expected[:-1]
    statistic = gap @ np.linalg.solve(np.cov(means.T) / blocks, gap)
    return float(chi2.sf(statistic * (blocks - len(gap)) / blocks, len(gap)))


@pytest.mark.parametrize("clip", [1.0, 0.15])
def test_hamiltonian_moves_with_noise_and_clipping_are_exact(clip: float) -> None:
    method = DPHMC(leaps=3, step=0.6, gradient_noise=1.0, sigma=0.4, clip=clip)
    sampler = method.on(MODEL, X, Y, seed=6)
    _, draws, info = sampler.run(sampler.init([0.5]), 300_000)
    assert 0.2 < info.acceptance < 0.97
    expected = bins_of_posterior()
    assert bin_surprise(draws[:, 0], expected) > RARE
    assert bin_surprise(1.05 * draws[:, 0], expected) < RARE, "a scale wrong by 5% is caught"


def test_cost_of_a_hamiltonian_step() -> None:
    method = DPHMC(leaps=5, step=0.1, gradient_noise=10.0, sigma=4.0)
    assert method.rho() == pytest.approx(6 / 200 + 1 / 32)


# -- exact sampling --------------------------------------------------------------------------------------------------
def test_exact_draws_and_their_cost() -> None:
    method = ExactPosterior(STATES)
    probability = method.probabilities(MODEL, X, Y)
    assert np.allclose(probability, target(), atol=1e-8)
    draws = method.draw(MODEL, X, Y, draws=20_000, seed=1)
    seen = np.array([(draws[:, 0] == s).sum() for s in STATES[:, 0]])
    assert chi2.sf(((seen - 20_000 * probability) ** 2 / (20_000 * probability)).sum(), 4) > RARE
    epsilon = method.epsilon(MODEL)
    assert epsilon == pytest.approx(2 * expit(1.0) * 2.0)
    worst = 0.0
    for x, y in itertools.product((-1.0, -0.4, 0.0, 0.7, 1.0), (0, 1)):
        other = method.probabilities(MODEL, np.vstack([X[:2], [[x]]]), np.append(Y[:2], y))
        worst = max(worst, np.abs(np.log(other / probability)).max())
    assert 0.3 * epsilon < worst <= epsilon
    assert method.epsilon(MODEL, 5) == pytest.approx(5 * epsilon)


# -- all of them -----------------------------------------------------------------------------------------------------
ALL = {
    "published": lambda w: Published(w, lam=10.0, upper=60.0, epsilon=0.05, delta=1e-5),
    "published-full": lambda w: PublishedFull(w, epsilon=0.05, delta=1e-5),
    "penalty": lambda w: Penalty(w, variance=1.0),
    "dp-penalty": lambda w: DPPenalty(w, sigma=5.0),
    "barker": lambda w: Barker(w),
    "dp-barker": lambda w: DPBarker(w, batch=200),
    "dp-sgld": lambda w: DPSGLD(batch=200, noise=2.0),
    "dp-hmc": lambda w: DPHMC(leaps=2, step=1e-3, gradient_noise=2.0, sigma=2.0),
}


def both_tasks():
    digits = mnist79()
    yield LogisticRegression(digits.domain, priors.Flat(), intercept=False), digits.x[:1000], digits.y[:1000], 1e-3
    yield Mixture(bound="paper"), np.random.default_rng(0).normal(0.5, 1.4, 2000), None, 0.1


@pytest.mark.parametrize("name", BASELINES)
def test_every_method_runs_on_both_tasks_and_steps_as_it_runs(name: str) -> None:
    for model, x, y, scale in both_tasks():
        method = ALL[name](RandomWalk(scale))
        one, other = (method.on(model, x, y, seed=8) for _ in range(2))
        start = np.zeros(len(model.parameters))
        _, draws, info = one.run(one.init(start), 6, thin=2)
        state = other.init(start)
        for _ in range(6):
            state, _ = other.step(state)
        assert np.array_equal(draws[-1], state.position)
        assert draws.shape == (3, start.size)
        assert info.steps == 6
        assert method.name == name
        assert method.exact == (name not in ("barker", "dp-barker", "dp-sgld"))
    secure = [method.on(model, x, y) for _ in range(2)]
    finals = [sampler.run(sampler.init(start), 50)[0].position for sampler in secure]
    assert not np.array_equal(*finals), "without a seed every run is its own"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DPBarker(WALK), "either batch"),
        (lambda: DPBarker(WALK, batch=4).on(MODEL, X, Y), "more than the 3 rows"),
        (lambda: Barker(WALK, variance=2.0), "room below 2"),
        (lambda: Penalty(WALK, variance=math.nan), "variance is nan"),
        (lambda: DPPenalty(Coordinates(0.1), sigma=1.0).on(MODEL, X, Y), "use RandomWalk"),
        (lambda: DPSGLD(batch=4, noise=1.0).on(MODEL, X, Y), "more than the 3 rows"),
        (lambda: DPHMC(leaps=0, step=0.1, gradient_noise=1.0, sigma=1.0), "leaps is 0"),
        (lambda: DPSGLD(batch=1, noise=1.0).on(own_model(1.0), np.zeros((3, 1))), "needs gradients"),
        (lambda: Published(WALK, lam=1.0, upper=9.0, epsilon=1.0, delta=0.1).on(own_model(1.0), X), "no constants"),
        (lambda: ExactPosterior([[9.0, 0.0], [0.0, 0.0]]).epsilon(Mixture()), "beyond the parameter box"),
    ],
)
def test_refusals(build, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        build()


@pytest.mark.slow  # a user's model compiles anew in every process
def test_own_energies_run_where_no_gradient_is_needed() -> None:
    own = np.array([0.4, 7.0, -0.9])
    for method in (Penalty(RandomWalk(0.3), variance=1.0), DPBarker(RandomWalk(0.3), batch=2)):
        sampler = method.on(own_model(1.0), own, seed=1)
        _, draws, info = sampler.run(sampler.init([0.0]), 200)
        assert info.accepted > 0
        assert np.isfinite(draws).all()
