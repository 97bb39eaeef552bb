"""Gaussian releases: sensitivities by brute force, the noise itself, and planted bugs that these tests must catch."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from dpfastmh.budget import Budget
from dpfastmh.privacy.filter import BudgetExceeded, Charge, RenyiFilter
from dpfastmh.privacy.releases import (
    GaussianSum,
    _discrete_gaussian,
    gradient_sensitivity,
    hessian_sensitivity,
    newton_direction,
    public_grid,
    softmax_curvature_norm,
    softmax_slope_norm,
    triangle_from_matrix,
    triangle_multiplicity,
    triangle_to_matrix,
)

P_VALUE = 1e-6


def rich_filter() -> RenyiFilter:
    """A filter with room for the releases of a test, ρ of about 7."""
    return RenyiFilter(Budget(20, 1e-3), steps_cap=99)


def gaussian_sum(p: int = 3, sensitivity: float = 2.0, rho: float = 0.1, **changes: Any) -> GaussianSum:
    settings_ = {"grid": 2.0**-12, "units": 1000, "multiplicity": np.ones(p), **changes}
    return GaussianSum("G", sensitivity, rho=rho, **settings_)


# The release ---------------------------------------------------------------------------------------------------------


def test_release_charges_alpha_rho_and_returns_multiples_of_the_grid() -> None:
    account, release = rich_filter(), gaussian_sum()
    sums = np.array([10**6, -(10**6), 0], dtype=np.int64)
    noisy = release.release(sums, account)
    assert account.releases == [Charge("G", release.rdp(account.alpha), 1)]
    assert release.rdp(account.alpha) == pytest.approx(account.alpha * 0.1, rel=1e-12)
    assert noisy.dtype == np.float64
    cells = noisy / release.grid
    assert np.array_equal(cells, np.rint(cells))
    assert np.all(np.abs(cells - sums) < 10 * release.integer_scale)
    assert not np.array_equal(cells, sums)


class UnreadableSums(np.ndarray):  # type: ignore[type-arg]
    """Sums that must not be looked at."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("the sums were read")

    def tolist(self) -> Any:
        raise AssertionError("the sums were read")


def test_the_charge_comes_before_the_sums_are_read() -> None:
    account, release = RenyiFilter(Budget(1.0, 1e-6), steps_cap=99), gaussian_sum()
    sums = np.zeros(3, dtype=np.int64).view(UnreadableSums)
    with pytest.raises(BudgetExceeded):
        release.release(sums, account)
    assert account.releases == []
    with pytest.raises(AssertionError, match="were read"):
        release.release(sums, rich_filter())


@pytest.mark.parametrize(
    "sums",
    [
        np.zeros(3),
        np.zeros(2, dtype=np.int64),
        np.zeros((3, 1), dtype=np.int64),
        np.zeros(3, dtype=np.int32),
        np.zeros(3, dtype=object),
        [0, 0, 0],
    ],
)
def test_wrong_sums_are_refused_uncharged(sums: Any) -> None:
    account = rich_filter()
    with pytest.raises(ValueError, match=r"^G: the sums must be 3 numbers of int64, got [^\n]*$"):
        gaussian_sum().release(sums, account)
    assert account.spent == 0


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, True, "1"])
@pytest.mark.parametrize("name", ["sensitivity", "grid", "rho"])
def test_bad_parameters_are_refused(name: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"must be a finite number above 0, got [^\n]*$"):
        gaussian_sum(**{name: bad})


@pytest.mark.parametrize("bad", [[], [[1.0]], [0.5], [1.5], [0], [-1], [math.nan], [math.inf], [2.0**40]])
def test_bad_multiplicities_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="multiplicity must be"):
        gaussian_sum(multiplicity=bad)


def test_sums_that_could_overflow_are_refused_from_public_figures() -> None:
    gaussian_sum(units=2**40)
    for changes in ({"units": 2**60}, {"rho": 1e-34}, {"grid": 1e-300}, {"sensitivity": 1e300}):
        with pytest.raises(ValueError, match="beyond 64-bit integers"):
            gaussian_sum(**changes)
    with pytest.raises(ValueError, match="the scale of the noise"):
        gaussian_sum(rho=1e308)
    for name in ("units", "rows_per_unit"):
        with pytest.raises(ValueError, match=name):
            gaussian_sum(**{name: 0})


def test_extreme_but_admitted_sums_do_not_wrap() -> None:
    release = gaussian_sum(units=2**47)
    sums = np.array([2**62, -(2**62), 0], dtype=np.int64)
    noisy = release.release(sums, rich_filter()) / release.grid
    assert np.allclose(noisy, sums.astype(float), atol=20 * release.integer_scale)


# Cost ----------------------------------------------------------------------------------------------------------------


def claim_holds(release: GaussianSum, worst: np.ndarray[Any, Any]) -> bool:
    """Is the zCDP that OpenDP itself gives for moving the sums by `worst`, group by group, within the claim?"""
    bought = 0.0
    for where, mechanism in release._mechanisms():
        bought += mechanism.map(float(np.linalg.norm(worst[where])))
    return bought <= release.rho


@pytest.mark.parametrize("multiplicity", [np.ones(4), triangle_multiplicity(3), triangle_multiplicity(2, 2)])
@pytest.mark.parametrize("rho", [1e-4, 0.05, 3.0])
def test_opendp_confirms_the_claimed_cost(multiplicity: np.ndarray[Any, Any], rho: float) -> None:
    """Any split of Δ_int over the groups costs ρ by OpenDP's own map, to within rounding."""
    release = gaussian_sum(multiplicity=multiplicity, rho=rho)
    rng = np.random.default_rng(1)
    for _ in range(20):
        move = rng.normal(size=multiplicity.size) * (rng.random(multiplicity.size) < 0.5)
        move[rng.integers(move.size)] += 1
        move *= release.integer_sensitivity / math.sqrt(float(np.sum(multiplicity * move**2)))
        assert claim_holds(release, move * (1 - 1e-12))
        assert not claim_holds(release, move * (1 + 1e-9))


def test_half_the_sensitivity_is_caught() -> None:
    """Negative control: noise for half the sensitivity does not hold the claim on two worst-case records."""
    honest, halved = gaussian_sum(sensitivity=2.0), gaussian_sum(sensitivity=1.0)
    move = np.array([2.0 / honest.grid, 0, 0])
    assert claim_holds(honest, move)
    assert not claim_holds(halved, move)


@given(st.integers(1, 6), st.integers(1, 4), st.floats(1e-3, 1e3), st.integers(-20, 8), st.integers(0, 2**32 - 1))
@settings(max_examples=200)
def test_quantised_sums_keep_their_sensitivity(p: int, k: int, size: float, power: int, seed: int) -> None:
    """Replace a unit of k rows of norm ≤ size by another: the integer sums move by at most Δ_int, coarse grids too."""
    rng = np.random.default_rng(seed)
    grid = size * 2.0**power / math.sqrt(p)
    release = gaussian_sum(p, 2 * k * size, grid=grid, units=10, rows_per_unit=k)
    directions = rng.normal(size=p)
    rows = [directions + rng.normal(size=(k, p)) * rng.choice([0.0, 0.1, 1.0]) for _ in range(2)]
    rows = [size * r / np.linalg.norm(r, axis=1, keepdims=True) for r in rows]
    before, after = np.rint(rows[0] / grid).sum(axis=0), np.rint(-rows[1] / grid).sum(axis=0)
    assert np.linalg.norm(before - after) <= release.integer_sensitivity


def test_rounding_needs_its_share_of_the_sensitivity() -> None:
    """Negative control: without √p a coarse grid would move the sums further than Δ/γ."""
    p, tiny = 9, 1e-9
    before, after = np.full(p, 0.5 + tiny), np.full(p, -0.5 - tiny)
    moved = np.linalg.norm(np.rint(before) - np.rint(after))
    exact = float(np.linalg.norm(before - after))
    assert moved > 1.9 * exact
    assert moved <= gaussian_sum(p, exact, grid=1.0, units=10).integer_sensitivity


@given(st.floats(1e-6, 1e6), st.integers(1, 2000), st.integers(1, 50))
def test_public_grid_is_a_power_of_two_and_fine(sensitivity: float, entries: int, rows: int) -> None:
    grid = public_grid(sensitivity, entries, rows)
    assert math.frexp(grid)[0] == 0.5
    widened = rows * grid * math.sqrt(entries) / sensitivity
    assert 2**-22 < widened <= 2**-20


def test_public_grid_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="too small for floating point"):
        public_grid(1e-320, 4)
    with pytest.raises(ValueError, match="number of entries"):
        public_grid(1.0, 0)


# Noise ---------------------------------------------------------------------------------------------------------------


def cell_probabilities(edges: np.ndarray[Any, Any], scale: float) -> np.ndarray[Any, Any]:
    """Chances of a discrete Gaussian to fall in (−∞,e₀], (e₀,e₁], …, (e_last,∞), integer edges."""
    reach = np.arange(-int(12 * scale) - 2, int(12 * scale) + 3)
    weights = np.exp(-(reach**2) / (2 * scale**2))
    cumulated = np.concatenate([[0.0], np.cumsum(weights / weights.sum())])
    inner = cumulated[np.searchsorted(reach, edges, side="right")]
    return np.diff(np.concatenate([[0.0], inner, [1.0]]))


def noise_p_value(noise: np.ndarray[Any, Any], scale: float) -> float:
    """The smallest of three p-values, times three: chi-square over 24 cells, the mean, the variance."""
    n, reach = noise.size, np.arange(-int(12 * scale) - 2, int(12 * scale) + 3)
    weights = np.exp(-(reach**2) / (2 * scale**2))
    z = noise.ravel() / math.sqrt(float(np.sum(reach**2 * weights) / weights.sum()))
    edges = np.unique(np.rint(scale * norm.ppf(np.arange(1, 24) / 24)))
    chances = cell_probabilities(edges, scale)
    counts = np.bincount(np.searchsorted(edges, noise.ravel(), side="left"), minlength=chances.size)
    shape = chi2.sf(float(np.sum((counts - n * chances) ** 2 / (n * chances))), chances.size - 1)
    mean = 2 * norm.sf(abs(float(z.sum())) / math.sqrt(n))
    square = float(np.sum(z**2))
    variance = 2 * min(chi2.sf(square, n), chi2.cdf(square, n))
    return 3 * min(float(shape), float(mean), float(variance))


@pytest.fixture(scope="module")
def triangle_noise() -> tuple[GaussianSum, np.ndarray[Any, Any]]:
    """20 releases of a 50×50 Hessian of zeros, in cells of the grid."""
    release = GaussianSum("H", 1.0, public_grid(1.0, 2500), 0.05, 1000, triangle_multiplicity(50))
    account = rich_filter()
    zeros = np.zeros(1275, dtype=np.int64)
    draws = np.stack([release.release(zeros, account) for _ in range(20)])
    return release, draws / release.grid


def test_noise_is_the_claimed_discrete_gaussian(triangle_noise: tuple[GaussianSum, np.ndarray[Any, Any]]) -> None:
    release, noise = triangle_noise
    assert np.array_equal(noise, np.rint(noise))
    diagonal = release.multiplicity == 1
    for where, scale in ((diagonal, release.integer_scale), (~diagonal, release.integer_scale / math.sqrt(2))):
        assert noise_p_value(np.rint(noise[:, where] / scale * 1000), 1000.0) > P_VALUE


def test_small_noise_is_discrete_gaussian_too() -> None:
    """At a scale of a cell or two the noise differs visibly from a rounded normal, and the test can tell them apart."""
    noise = np.array(_discrete_gaussian(1.0)([0] * 20_000))
    assert noise_p_value(noise, 1.0) > P_VALUE
    assert noise_p_value(np.array(_discrete_gaussian(1.7)([0] * 20_000)), 1.7) > P_VALUE
    rounded = np.rint(np.random.default_rng(2).normal(size=20_000))
    assert noise_p_value(rounded, 1.0) < P_VALUE


def test_noise_coordinates_are_uncorrelated(triangle_noise: tuple[GaussianSum, np.ndarray[Any, Any]]) -> None:
    release, noise = triangle_noise
    z = noise / (release.integer_scale / np.sqrt(release.multiplicity))
    for lagged in (z[:, 1:] * z[:, :-1], z[1:] * z[:-1]):
        assert abs(lagged.sum()) / math.sqrt(lagged.size) < norm.isf(P_VALUE / 2)


def test_uniform_noise_and_wrong_scales_are_caught() -> None:
    """Negative controls: the noise test sees uniform noise of the same variance, 5% less scale, and a shift."""
    rng = np.random.default_rng(7)
    scale, n = 1000.0, 25_000
    assert noise_p_value(np.rint(rng.normal(size=n) * scale), scale) > P_VALUE
    assert noise_p_value(np.rint(rng.uniform(-1, 1, n) * math.sqrt(3) * scale), scale) < P_VALUE
    assert noise_p_value(np.rint(rng.normal(size=n) * scale * 0.95), scale) < P_VALUE
    assert noise_p_value(np.rint(rng.normal(size=n) * scale + 50), scale) < P_VALUE


def test_insecure_noise_repeats_and_is_charged() -> None:
    release, sums = gaussian_sum(), np.array([5, 6, 7], dtype=np.int64)
    account = rich_filter()
    first, second = (release.release(sums, account, insecure_rng=np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, release.release(sums, account))
    assert account.releases[0].count == 3
    draws = gaussian_sum(20_000).release(
        np.zeros(20_000, dtype=np.int64), rich_filter(), insecure_rng=np.random.default_rng(4)
    )
    scale = gaussian_sum(20_000).integer_scale
    assert noise_p_value(np.rint(draws / gaussian_sum().grid / scale * 1000), 1000.0) > P_VALUE


def test_a_large_release_is_fast() -> None:
    release = GaussianSum("H", 1.0, public_grid(1.0, 2500), 0.5, 10**6, triangle_multiplicity(50))
    zeros = np.zeros(1275, dtype=np.int64)
    release.release(zeros, rich_filter())
    start = time.perf_counter()
    release.release(zeros, rich_filter())
    assert time.perf_counter() - start < 1.0


# Sensitivities, by brute force ---------------------------------------------------------------------------------------


def ball_rows(rng: np.random.Generator, n: int, d: int, radius: float) -> np.ndarray[Any, Any]:
    x = rng.normal(size=(n, d))
    x *= rng.choice([1.0, 1.0, 0.5], size=(n, 1)) * radius / np.linalg.norm(x, axis=1, keepdims=True)
    return x


def pairs_from(rng: np.random.Generator, d: int) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Pairs of rows in the ball of radius 2: random, opposite, equal and orthogonal."""
    x, y = ball_rows(rng, 200, d, 2.0), ball_rows(rng, 200, d, 2.0)
    basis = 2.0 * np.eye(d)
    special = [(basis[0], -basis[0]), (basis[0], basis[0]), (basis[0], basis[1])]
    return special + list(zip(x, y, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 7.0])
@pytest.mark.parametrize("k", [1, 3])
def test_gradient_sensitivity_is_never_passed_and_attained(temperature: float, k: int) -> None:
    rng, slope, claim = np.random.default_rng(5), 0.7, gradient_sensitivity(0.7, 2.0, temperature, k)
    moved = 0.0
    for x, y in pairs_from(rng, 4):
        for a in (-slope, 0.0, slope):
            for b in (-slope, rng.uniform(-slope, slope)):
                moved = max(moved, float(np.linalg.norm(k * (a * x - b * y) / temperature)))
    assert 0.99 * claim < moved <= claim
    assert gradient_sensitivity(0.7 / 2, 2.0, temperature, k) < moved


def test_logistic_slopes_at_a_public_point_are_bounded_by_the_sigmoid() -> None:
    """At θ the slope σ(η)−y is at most σ(s(θ)): ½ at θ = 0, half the sensitivity of L1 = 1, and attained."""
    rng, theta = np.random.default_rng(6), np.array([0.3, -0.2, 0.1])
    for scale in (0.0, 1.0, 10.0):
        point = scale * theta
        slope = 1 / (1 + math.exp(-2.0 * float(np.linalg.norm(point))))
        x = np.vstack([ball_rows(rng, 500, 3, 2.0), 2.0 * theta / np.linalg.norm(theta)])
        slopes = [1 / (1 + np.exp(-x @ point)) - y for y in (0, 1)]
        largest = max(float(np.max(np.abs(s))) for s in slopes)
        assert 0.999 * slope < largest <= slope * (1 + 1e-15)
    assert gradient_sensitivity(0.5, 2.0) == gradient_sensitivity(1.0, 2.0) / 2


@pytest.mark.parametrize("convex", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 7.0])
def test_hessian_sensitivity_is_never_passed_and_attained(convex: bool, temperature: float) -> None:
    rng, curvature = np.random.default_rng(8), 0.25
    claim = hessian_sensitivity(curvature, 2.0, temperature, convex=convex)
    multiplicity = triangle_multiplicity(4)
    moved = 0.0
    for x, y in pairs_from(rng, 4):
        for a in (curvature, rng.uniform(0, curvature)):
            for b in (curvature, 0.0) if convex else (-curvature, curvature):
                difference = (a * np.outer(x, x) - b * np.outer(y, y)) / temperature
                numbers = triangle_from_matrix(difference, 4)
                weighted = math.sqrt(float(np.sum(multiplicity * numbers**2)))
                assert weighted == pytest.approx(float(np.linalg.norm(difference)), rel=1e-12, abs=1e-12)
                moved = max(moved, weighted)
    assert 0.99 * claim < moved <= claim


def test_units_of_several_rows_are_covered() -> None:
    rng, k = np.random.default_rng(9), 4
    claim = hessian_sensitivity(0.25, 2.0, convex=True, rows_per_unit=k)
    moved = 0.0
    for spread in (0.0, 0.1, 1.0):
        for _ in range(200):
            units = []
            for corner in np.eye(3)[:2]:
                rows = corner + spread * rng.normal(size=(k, 3))
                rows *= 2.0 / np.linalg.norm(rows, axis=1, keepdims=True)
                held = rng.integers(1, k + 1) if spread else k
                units.append(sum(0.25 * np.outer(r, r) for r in rows[:held]))
            moved = max(moved, float(np.linalg.norm(units[0] - units[1])))
    assert 0.99 * claim < moved <= claim


def test_off_diagonals_twice_is_the_best_weight() -> None:
    """For any weight t² off the diagonal, neither the diagonal's noise nor the off-diagonal's is below that of 2."""
    rng = np.random.default_rng(10)
    rows = [r / np.linalg.norm(r) for r in rng.normal(size=(60, 3))]
    rows += [np.array(r) / np.linalg.norm(r) for r in ([1, 0, 0], [0, 1, 0], [1, 1, 0], [1, -1, 0])]
    best = math.sqrt(2)
    for weight in (1.0, 1.5, 2.0, 3.0, 4.0):
        worst = 0.0
        for x in rows:
            for y in rows:
                difference = np.outer(x, x) - np.outer(y, y)
                numbers = triangle_from_matrix(difference, 3)
                weights = np.where(triangle_multiplicity(3) == 1, 1.0, weight)
                worst = max(worst, math.sqrt(float(np.sum(weights * numbers**2))))
        noise_on, noise_off = worst, worst / math.sqrt(weight)
        assert noise_on >= best - 1e-12
        assert noise_off >= best / math.sqrt(2) - 1e-12


def softmax(eta: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Probabilities of K classes, the first with predictor 0."""
    full = np.concatenate([[0.0], eta])
    weights = np.exp(full - full.max())
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("classes", [2, 3, 4, 7])
def test_softmax_norms_are_never_passed_and_attained(classes: int) -> None:
    rng = np.random.default_rng(classes)
    slope, curvature = softmax_slope_norm(classes), softmax_curvature_norm(classes)
    points = [rng.normal(size=classes - 1) * rng.choice([0.0, 1.0, 30.0], size=classes - 1) for _ in range(3000)]
    wrong, even = np.full(classes - 1, -50.0), np.full(classes - 1, -50.0)
    wrong[0] = 50.0
    even[:2] = 50.0 if classes > 2 else 0.0
    largest_slope = largest_curvature = 0.0
    for eta in [*points, wrong, even]:
        p = softmax(eta)[1:]
        matrix = np.diag(p) - np.outer(p, p)
        assert np.linalg.eigvalsh(matrix)[0] > -1e-12
        largest_curvature = max(largest_curvature, float(np.linalg.norm(matrix)))
        for y in range(classes):
            slopes = p - (np.arange(1, classes) == y)
            largest_slope = max(largest_slope, float(np.linalg.norm(slopes)))
    assert 0.99 * slope < largest_slope <= slope
    assert 0.99 * curvature < largest_curvature <= curvature * (1 + 1e-15)


def test_softmax_sensitivities_cover_records_and_are_nearly_attained() -> None:
    """Random and extreme pairs (slopes ⊗ x, curvature ⊗ xxᵀ) in Frobenius norm, K = 4, rows of norm 2."""
    rng, classes = np.random.default_rng(11), 4
    g_claim = gradient_sensitivity(softmax_slope_norm(classes), 2.0)
    h_claim = hessian_sensitivity(softmax_curvature_norm(classes), 2.0, convex=True)
    multiplicity = triangle_multiplicity(2, classes - 1)
    tops = [
        np.array([50.0, -50, -50]),
        np.array([-50.0, 50, -50]),
        np.array([50.0, 50, -50]),
        np.array([-50.0, 50, 50]),
    ]

    def record() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        x = (
            ball_rows(rng, 1, 2, 2.0)[0]
            if rng.random() < 0.3
            else 2.0 * np.eye(2)[rng.integers(2)] * rng.choice([-1, 1])
        )
        eta = tops[rng.integers(4)] if rng.random() < 0.7 else rng.normal(size=3) * 2
        p = softmax(eta)[1:]
        slopes = p - (np.arange(1, classes) == rng.integers(classes))
        return np.outer(slopes, x).ravel(), np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))

    g_moved = h_moved = 0.0
    for _ in range(5000):
        (g, h), (g2, h2) = record(), record()
        g_moved = max(g_moved, float(np.linalg.norm(g - g2)))
        numbers = triangle_from_matrix(h - h2, 2, classes - 1)
        h_moved = max(h_moved, math.sqrt(float(np.sum(multiplicity * numbers**2))))
    assert 0.98 * g_claim < g_moved <= g_claim
    assert 0.98 * h_claim < h_moved <= h_claim


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True])
def test_bad_bounds_are_refused(bad: Any) -> None:
    for position in range(3):
        arguments = [1.0, 1.0, 1.0]
        arguments[position] = bad
        with pytest.raises(ValueError, match="finite number above 0"):
            gradient_sensitivity(*arguments)
        with pytest.raises(ValueError, match="finite number above 0"):
            hessian_sensitivity(*arguments, convex=True)
    with pytest.raises(ValueError, match="rows_per_unit"):
        gradient_sensitivity(1.0, 1.0, rows_per_unit=0)
    for check in (softmax_slope_norm, softmax_curvature_norm):
        with pytest.raises(ValueError, match="at least 2 classes"):
            check(1)


# Symmetric matrices and Newton steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "predictors"), [(1, 1), (4, 1), (3, 2), (2, 4)])
def test_triangles_there_and_back(columns: int, predictors: int) -> None:
    rng = np.random.default_rng(12)
    matrix = np.zeros((columns * predictors,) * 2)
    for _ in range(5):
        s, x = rng.normal(size=(predictors, predictors)), rng.normal(size=columns)
        matrix += np.kron(s + s.T, np.outer(x, x))
    numbers = triangle_from_matrix(matrix, columns, predictors)
    multiplicity = triangle_multiplicity(columns, predictors)
    assert numbers.shape == multiplicity.shape
    assert multiplicity.sum() == matrix.size
    assert np.array_equal(triangle_to_matrix(numbers, columns, predictors), matrix)
    assert float(np.sum(multiplicity * numbers**2)) == pytest.approx(float(np.sum(matrix**2)), rel=1e-12)
    if predictors == 1:
        assert np.array_equal(numbers, matrix[np.triu_indices(columns)])
    with pytest.raises(ValueError, match="expected"):
        triangle_to_matrix(numbers[:-1], columns, predictors)
    with pytest.raises(ValueError, match="expected"):
        triangle_from_matrix(matrix[:-1], columns, predictors)


def test_hessian_noise_has_no_preferred_direction() -> None:
    """The largest eigenvalue of the noise is about σ√(2d), as `noise_sd` says."""
    release = GaussianSum("H", 1.0, public_grid(1.0, 3600), 0.05, 1000, triangle_multiplicity(60))
    noise = triangle_to_matrix(release.release(np.zeros(1830, dtype=np.int64), rich_filter()), 60)
    largest = float(np.max(np.abs(np.linalg.eigvalsh(noise))))
    assert 0.7 < largest / (release.noise_sd * math.sqrt(120)) < 1.3


def test_newton_direction_solves_floors_and_caps() -> None:
    rng = np.random.default_rng(13)
    a = rng.normal(size=(4, 4))
    hessian, gradient = a @ a.T + np.eye(4), rng.normal(size=4)
    exact = -np.linalg.solve(hessian, gradient)
    assert np.allclose(newton_direction(gradient, hessian, 1e-6, 1e6), exact)
    skewed = hessian + np.triu(np.ones((4, 4)), 1) - np.tril(np.ones((4, 4)), -1)
    assert np.allclose(newton_direction(gradient, skewed, 1e-6, 1e6), exact)
    length = float(np.linalg.norm(exact))
    capped = newton_direction(gradient, hessian, 1e-6, length / 3)
    assert np.allclose(capped, exact / 3)
    flat = newton_direction(np.array([1.0, 1.0]), np.diag([4.0, -5.0]), 2.0, 10.0)
    assert np.allclose(flat, [-0.25, -0.5])
    assert np.array_equal(newton_direction(np.zeros(2), np.eye(2), 1.0, 1.0), np.zeros(2))


@given(st.integers(1, 5), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
def test_newton_direction_always_descends_within_its_bounds(d: int, floor: float, cap: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gradient, hessian = rng.normal(size=d) * 100, rng.normal(size=(d, d)) * 10
    step = newton_direction(gradient, hessian, floor, cap)
    assert float(step @ gradient) < 0
    assert float(np.linalg.norm(step)) <= min(cap, float(np.linalg.norm(gradient)) / floor) * (1 + 1e-9)


def test_newton_direction_refuses_nonsense() -> None:
    good_g, good_h = np.ones(2), np.eye(2)
    for floor, cap in ((0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.inf)):
        with pytest.raises(ValueError, match="finite number above 0"):
            newton_direction(good_g, good_h, floor, cap)
    with pytest.raises(ValueError, match="do not match"):
        newton_direction(good_g, np.eye(3), 1.0, 1.0)
    with pytest.raises(ValueError, match="must be finite"):
        newton_direction(np.array([1.0, math.nan]), good_h, 1.0, 1.0)
    with pytest.raises(ValueError, match="must be finite"):
        newton_direction(good_g, np.full((2, 2), math.inf), 1.0, 1.0)
