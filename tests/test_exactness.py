"""πP = π by enumeration: every log-ratio × acceptance × laziness, and the known failures as controls.

The states are a small lattice, the data two or three records, the target written down independently in NumPy. The
transition matrix comes from the library's own compiled functions (``finite``); nothing in this file is random.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import poisson

import finite
from dpfastmh import models, priors, theory
from dpfastmh.domain import Box
from dpfastmh.methods import Coordinates, Directions, DPFastMH, Method, MetropolisHastings, RandomWalk, Sampler, TunaMH
from dpfastmh.models import Model
from dpfastmh.steps import chain
from dpfastmh.steps.compiled import SHIPPED
from dpfastmh.steps.likelihood import Reference
from dpfastmh.steps.reference import integer_sums, make_reference, make_room

EXACT = 1e-12
ACCEPTANCES = {
    "metropolis": theory.metropolis,
    "barker": theory.barker,
    "penalty .5": theory.penalty(0.5),
    "penalty 4": theory.penalty(4.0),
}
LAZINESS = (1.0, 0.3)


# -- the cases -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Case:
    """A model with its records, a lattice, and the energy per record in plain NumPy, without the temperature."""

    build: Callable[[float], Model]
    x: np.ndarray
    y: np.ndarray | None
    energy: Callable[[np.ndarray], np.ndarray]
    prior: priors.Prior
    states: np.ndarray
    proposal: Directions | Coordinates | RandomWalk
    reference: tuple[float, ...] = ()

    @functools.cache  # noqa: B019 - a handful of cases, alive as long as the module
    def model(self, temperature: float) -> Model:
        return self.build(temperature)

    def target(self, temperature: float) -> np.ndarray:
        """π ∝ prior·exp(−ΣU/τ)."""
        log_density = [self.prior.log_density(s).sum() - self.energy(s).sum() / temperature for s in self.states]
        density = np.exp(np.array(log_density) - np.max(log_density))
        return density / density.sum()


X1 = np.array([[0.3], [-0.8], [1.0]])
BINARY = np.array([0, 1, 1])
REAL = np.array([-0.4, 1.7, 0.2])
CLASSES = np.array([0, 2, 1])
LEANING = priors.Normal(1.0, loc=0.5)
HEAVY = priors.StudentT(3.0, scale=0.7, loc=-0.3)
STEP = finite.scale_for(0.5)
LINE = finite.lattice([-1.0, -0.5, 0.0, 0.5, 1.0])
SQUARE = finite.lattice([-0.5, 0.0, 0.5], [-0.5, 0.0, 0.5])


def logistic_energy(theta: np.ndarray) -> np.ndarray:
    eta = X1[:, 0] * theta[0]
    return np.log1p(np.exp(eta)) - BINARY * eta


def student_energy(theta: np.ndarray) -> np.ndarray:
    residual = REAL - theta[0] - X1[:, 0] * theta[1]
    return 2.5 * np.log(1.0 + residual**2 / (4.0 * 0.8**2))


def softmax_energy(theta: np.ndarray) -> np.ndarray:
    eta = np.column_stack([np.zeros(3), X1 * theta])
    return np.log(np.exp(eta).sum(axis=1)) - eta[np.arange(3), CLASSES]


MIXED = np.array([0.2, 2.5, -1.4])


def mixture_energy(theta: np.ndarray) -> np.ndarray:
    halves = [np.exp(-((MIXED - centre) ** 2) / 4.0) for centre in (theta[0], theta[0] + theta[1])]
    return -np.log(halves[0] + halves[1])


def own_difference(row, theta, proposal):
    """A Cauchy location, y ~ θ + Cauchy."""
    return math.log1p((row[0] - proposal[0]) ** 2) - math.log1p((row[0] - theta[0]) ** 2)


def own_bound(theta, proposal):
    return abs(proposal[0] - theta[0])


def own_model(temperature: float) -> models.Energy:
    """|U′| = 2|t|/(1+t²) ≤ 1; on −1 ≤ θ ≤ 1 a record near the middle could be declared to need no less."""
    return models.Energy(
        ["theta"],
        own_difference,
        own_bound,
        prior=LEANING,
        temperature=temperature,
        record_bound=lambda rows: np.where(np.abs(rows[:, 0]) > 5.0, 0.6, 1.0),
    )


OWN = np.array([0.4, 7.0, -0.9])  # |U′| ≤ 2·6/37 = .325 for the record at 7


CASES = {
    "logistic": Case(
        lambda t: models.LogisticRegression(Box(a=(-1, 1)), LEANING, intercept=False, temperature=t),
        X1, BINARY, logistic_energy, LEANING, LINE, Directions([[1.0], [2.0]], STEP), (3.5,),
    ),
    "student-t": Case(
        lambda t: models.StudentTRegression(Box(a=(-1, 1)), HEAVY, df=4.0, scale=0.8, temperature=t),
        X1, REAL, student_energy, HEAVY, SQUARE, Coordinates(STEP), (0.3, -0.2),
    ),
    "softmax": Case(
        lambda t: models.SoftmaxRegression(Box(a=(-1, 1)), LEANING, classes=3, intercept=False, temperature=t),
        X1, CLASSES, softmax_energy, LEANING, SQUARE, RandomWalk(STEP, [[0.5, 0.5], [0.5, -0.5]]), (0.6, -0.2),
    ),
    "mixture": Case(
        lambda t: models.Mixture(temperature=t, prior=HEAVY),
        MIXED, None, mixture_energy, HEAVY, SQUARE, Coordinates(STEP),
    ),
    "mixture, published bound": Case(
        lambda t: models.Mixture(temperature=t, prior=HEAVY, bound="paper"),
        MIXED, None, mixture_energy, HEAVY, SQUARE, Directions([[1.0, 0.0], [0.0, 1.0]], STEP),
    ),
    "own energy": Case(
        own_model, OWN, None, lambda theta: np.log1p((OWN - theta[0]) ** 2), LEANING, LINE, RandomWalk(STEP)
    ),
}  # fmt: skip

FORCED = {"order 1": chain.ORDER1, "order 2": chain.ORDER2}
RECORD_BOUNDS = ("thinned", "alias")


def method_for(ratio: str, proposal, **options) -> Method:
    if ratio == "full":
        return MetropolisHastings(proposal, **options)
    if ratio.startswith("cheapest"):
        return DPFastMH(proposal, thrift=0.1 if ratio.endswith("thrifty") else 0.0, **options)
    if ratio == "minibatch, chi":
        return TunaMH(proposal, chi=0.4, **options)
    return TunaMH(proposal, lam=1.2, **options)


@functools.cache
def sampler_for(name: str, ratio: str, temperature: float) -> Sampler:
    """A sampler that uses this log-ratio and no other, or whichever is cheapest."""
    case = CASES[name]
    uses_reference = ratio in FORCED or ratio.startswith("cheapest")
    sampler = method_for(ratio, case.proposal).on(
        case.model(temperature),
        case.x,
        case.y,
        reference=case.reference if uses_reference and case.reference else None,
        order=1 if ratio.endswith("1") else 2,
        per_record=ratio if ratio in RECORD_BOUNDS else None,
        seed=1,
    )
    if ratio in FORCED:
        sampler.rule = sampler.rule._replace(allowed=np.arange(4) == FORCED[ratio])
    return sampler


@functools.cache
def laws_for(name: str, ratio: str, temperature: float) -> finite.Laws:
    return finite.laws_of(sampler_for(name, ratio, temperature), CASES[name].states)


CHEAPEST = ("cheapest", "cheapest with order 1", "cheapest, thrifty")
GLM_RATIOS = ("full", "minibatch", "minibatch, chi", "order 1", "order 2", *CHEAPEST)
RATIOS = {
    "logistic": GLM_RATIOS,
    "student-t": GLM_RATIOS,
    "softmax": GLM_RATIOS,
    "mixture": ("full", "minibatch", "thinned", "cheapest"),
    "mixture, published bound": ("minibatch", "thinned", "alias"),
    "own energy": ("full", "minibatch", "thinned", "alias", "cheapest"),
}
COMBINATIONS = [(name, ratio, t) for name, ratios in RATIOS.items() for ratio in ratios for t in (1.0, 3.0)]


# -- the guarantee ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "ratio", "temperature"), COMBINATIONS)
def test_the_target_is_invariant(name: str, ratio: str, temperature: float) -> None:
    target, laws = CASES[name].target(temperature), laws_for(name, ratio, temperature)
    for acceptance, laziness in itertools.product(ACCEPTANCES, LAZINESS):
        kind, _, variance = acceptance.partition(" ")
        rule = method_for(
            ratio, RandomWalk(1.0), acceptance=kind, variance=float(variance or 1), laziness=laziness
        ).rule(3, 0)
        matrix = laws.transitions(finite.compiled_balance(rule), rule.laziness)
        assert np.all(matrix >= 0.0)
        assert np.count_nonzero(matrix) > len(target)
        assert theory.invariance_defect(target, matrix) < EXACT, acceptance
        assert theory.flow_defect(target, matrix) < EXACT, acceptance


@pytest.mark.parametrize("name", ["logistic", "student-t", "softmax"])
def test_the_target_is_what_the_chain_converges_to(name: str) -> None:
    """Invariant and irreducible: the stationary law computed from the matrix alone is the target."""
    matrix = laws_for(name, "order 2", 1.0).transitions(theory.barker)
    assert theory.total_variation(theory.stationary(matrix), CASES[name].target(1.0)) < EXACT
    assert theory.spectral_gap(CASES[name].target(1.0), matrix) > 0.01


def test_the_choice_of_batch_is_exercised() -> None:
    """On these lattices the cheapest batch is not always the same one."""
    used = {
        (name, ratio): finite.batches_used(sampler_for(name, ratio, t), CASES[name].states)
        for name, ratio, t in COMBINATIONS
        if ratio.startswith("cheapest") and t == 1.0
    }
    assert used["logistic", "cheapest"] >= {chain.FULL, chain.ORDER2}
    assert len(used["logistic", "cheapest"]) == 3
    assert chain.ORDER1 in used["softmax", "cheapest with order 1"]
    assert {len(kinds) for kinds in used.values()} >= {1, 2, 3}


@pytest.mark.parametrize(("name", "ratio", "temperature"), COMBINATIONS)
def test_what_is_public_is_symmetric_and_bounds_what_is_private(name: str, ratio: str, temperature: float) -> None:
    """Batch, bound and rate are the same for a move and its reverse; differences and expansions change sign."""
    sampler, states = sampler_for(name, ratio, temperature), CASES[name].states
    inside = {tuple(s) for s in states}
    pairs = 0
    for state, move in itertools.product(states, finite.moves_of(sampler.proposal)):
        if tuple(state + move.delta) in inside:
            back = move._replace(delta=-move.delta, normal=-move.normal)
            there, again = finite.pieces(sampler, state, move), finite.pieces(sampler, state + move.delta, back)
            assert there.batch == again.batch
            assert np.allclose([there.bound, there.rate], [again.bound, again.rate], rtol=1e-14, atol=0)
            assert np.allclose(there.differences, -again.differences, rtol=0, atol=1e-15)
            assert abs(there.expansion + again.expansion) < 1e-14
            share = sampler._rows.share if sampler._rows.share.size else 1.0
            assert np.all(np.abs(there.differences) <= share * there.bound)
            pairs += 1
    assert pairs >= 8


@pytest.mark.parametrize("name", CASES)
def test_compiled_differences_are_those_of_the_energies(name: str) -> None:
    case, sampler = CASES[name], sampler_for(name, RATIOS[name][0], 3.0)
    for state, move in itertools.product(case.states, finite.moves_of(sampler.proposal)):
        expected = (case.energy(state + move.delta) - case.energy(state)) / 3.0
        assert np.allclose(finite.pieces(sampler, state, move).changes, expected, rtol=0, atol=4e-15)


@pytest.mark.parametrize("name", ["logistic", "student-t", "softmax", "mixture"])
def test_the_full_batch_in_whole_cells_is_exact_for_its_rounded_energies(name: str) -> None:
    """ℓ comes from one integer per state, so reversibility is exact for e^−(those integers); they err by N/2 cells."""
    case, sampler = CASES[name], sampler_for(name, "full", 3.0)
    laws = finite.laws_of(sampler, case.states, finite.integer_law)
    plain = laws_for(name, "full", 3.0)
    for (*_, rounded), (*_, unrounded) in zip(laws.entries, plain.entries, strict=True):
        assert abs(rounded.ratio[0] - unrounded.ratio[0]) <= 3 * chain.ENERGY_CELL
    cells = [finite.total_energy(sampler.model, sampler._rows, state) for state in case.states]
    prior = np.array([case.prior.log_density(state).sum() for state in case.states])
    target = np.exp(prior - chain.ENERGY_CELL * np.array(cells, float))
    target /= target.sum()
    assert theory.invariance_defect(target, laws.transitions(theory.barker)) < EXACT
    assert np.max(np.abs(target - case.target(3.0))) < 3 * chain.ENERGY_CELL


# -- quantised expansions --------------------------------------------------------------------------------------------
def coarse_reference(sampler: Sampler, point: np.ndarray, order: int, cell: float) -> Reference:
    """As ``make_reference``, on a grid so coarse that rounding moves the log-ratio by tenths."""
    p, n, table = point.size, sampler._rows.x.shape[0], sampler.model.table()
    gradient, hessian = np.zeros(p, np.int64), np.zeros((p, p), np.int64)
    room = make_room(p // sampler._rows.x.shape[1], sampler._rows.x.shape[1])
    SHIPPED.sum_contributions(table, sampler._rows, room, point, 0, n, 2, cell, cell, gradient, hessian)
    hessian = np.tril(hessian) + np.tril(hessian, -1).T
    scale = cell / sampler.model.temperature
    curvature = hessian * scale if order == 2 else np.zeros((0, 0))
    directions = sampler.proposal.directions
    image = curvature if directions.size == 0 or order < 2 else directions @ curvature
    return Reference(order, point, gradient * scale, curvature, image, cell, cell)


def with_reference(found: Sampler, reference: Reference) -> Sampler:
    return Sampler(found.model, found._rows, found.rule, found.proposal, reference, found._streams)


CELL = 2.0**-3


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ["logistic", "softmax", "student-t"])
def test_a_coarse_grid_costs_no_exactness(name: str, order: int) -> None:
    case = CASES[name]
    fine = sampler_for(name, f"order {order}", 1.0)
    coarse = coarse_reference(fine, np.array(case.reference), order, CELL)
    assert np.max(np.abs(coarse.gradient - fine._reference.gradient)) > 0.01
    sampler = with_reference(fine, coarse)
    matrix = finite.laws_of(sampler, case.states).transitions(theory.barker)
    assert theory.invariance_defect(case.target(1.0), matrix) < EXACT

    careless = with_reference(fine, coarse._replace(gradient_grid=2.0**-40, hessian_grid=2.0**-40))
    matrix = finite.laws_of(careless, case.states).transitions(theory.barker)
    assert theory.invariance_defect(case.target(1.0), matrix) > 1e-4, "remainders must use the rounded g_i and h_i"


@pytest.mark.parametrize("name", ["logistic", "softmax", "student-t"])
def test_integer_sums_are_the_derivatives_of_the_energy(name: str) -> None:
    """G and H against central differences of the NumPy energies."""
    case, sampler = CASES[name], sampler_for(name, "order 2", 1.0)
    point, p, h = np.array(case.reference), len(case.reference), 1e-4
    gradient, hessian, cell_g, cell_h = integer_sums(sampler.model, sampler._rows, point)

    def total(shift: np.ndarray) -> float:
        return float(case.energy(point + shift).sum())

    axes = h * np.eye(p)
    slopes = [(total(e) - total(-e)) / (2 * h) for e in axes]
    bends = [[(total(e + f) - total(e - f) - total(f - e) + total(-e - f)) / (4 * h * h) for f in axes] for e in axes]
    assert np.allclose(gradient * cell_g, slopes, atol=1e-7)
    assert np.allclose(hessian * cell_h, bends, atol=1e-6)


# -- the pieces of the kernel against the mathematics ----------------------------------------------------------------
def test_acceptance_is_balanced_and_is_what_it_says() -> None:
    ratios = np.concatenate([np.linspace(-40, 40, 4001), [-700.0, -300.0, 300.0, 700.0, 0.0]])
    for acceptance, expected in ACCEPTANCES.items():
        kind, _, variance = acceptance.partition(" ")
        rule = MetropolisHastings(RandomWalk(1.0), acceptance=kind, variance=float(variance or 1)).rule(3, 0)
        balance = finite.compiled_balance(rule)
        assert np.allclose(balance(ratios), expected(ratios), rtol=1e-12, atol=1e-16)
        assert np.allclose(balance(ratios), np.exp(ratios) * balance(-ratios), rtol=1e-11, atol=1e-290)
        assert np.all((balance(ratios) >= 0.0) & (balance(ratios) <= 1.0))


@pytest.mark.parametrize("per_record", [None, "thinned", "alias"])
def test_a_row_is_kept_with_its_rate_and_weighs_its_log_ratio(per_record: str | None) -> None:
    """Kept below u = (share of the rate) and nowhere above; differences beyond the bound are held to it, NaN as +b."""
    sampler = sampler_for("mixture, published bound", per_record or "minibatch", 1.0)
    rows, bound, rate = sampler._rows, 0.8, 0.35
    shares = rows.share if per_record else np.ones(3)
    for i, change in itertools.product(range(3), (-5.0, -0.3, 0.0, 0.25, 0.4, 9.0, math.nan)):
        b, r = shares[i] * bound, shares[i] * rate
        held = b if math.isnan(change) else min(max(change, -b), b)
        ceiling = r + b if per_record == "alias" else rate + bound
        threshold = (r + 0.5 * (held + b)) / ceiling
        keep = np.array([threshold - 1e-12, threshold + 1e-12])
        found = finite.weights(rows, sampler._work, np.full(2, i), keep, np.full(2, change), bound, rate)
        assert found[0] == pytest.approx(math.log((2 * r + b - held) / (2 * r + b + held)), abs=1e-14)
        assert found[1] == 0.0


def test_the_enumeration_is_complete() -> None:
    """Probabilities add up to 1, E[e^−ℓ g(ℓ)] does what the proof says, and nonsense is refused."""
    law = theory.minibatch_law([0.9, -0.3], 1.0, 0.5)
    assert law.probability.sum() == pytest.approx(1.0, abs=1e-15)
    back = theory.minibatch_law([-0.9, 0.3], 1.0, 0.5)
    for balance in ACCEPTANCES.values():
        assert law.acceptance(balance) == pytest.approx(math.exp(-0.6) * back.acceptance(balance), rel=1e-13)
    for differences, bounds, rates in [
        ([1.1], 1.0, 0.5),
        ([math.nan], 1.0, 0.5),
        ([0.1], math.inf, 1.0),
        ([0.1], 1, 0),
    ]:
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            theory.minibatch_law(differences, bounds, rates)


@pytest.mark.parametrize("chi", [0.5, 2.0, 10.0])
def test_tuna_keeps_its_share_of_the_spectral_gap(chi: float) -> None:
    """λ = χC²M² keeps at least exp(−1/χ − 2√(log 2/χ)) of full-batch Metropolis-Hastings' gap."""
    case, target = CASES["logistic"], CASES["logistic"].target(1.0)
    full = theory.spectral_gap(target, laws_for("logistic", "full", 1.0).transitions(theory.metropolis))
    sampler = TunaMH(case.proposal, chi=chi).on(case.model(1.0), case.x, case.y, seed=1)
    gap = theory.spectral_gap(target, finite.transitions(sampler, case.states))
    assert math.exp(-1 / chi - 2 * math.sqrt(math.log(2) / chi)) * full <= gap <= full


# -- negative controls -----------------------------------------------------------------------------------------------
def published_branch(differences: np.ndarray, bound: float, lam: float, limit: int) -> tuple[float, float]:
    """(P(B < K, accept), P(B < K)): B rows drawn of which s_i are kept records i and the rest are thrown away."""
    n = differences.size
    rate = lam / n
    weight = np.log((2 * rate + bound - differences) / (2 * rate + bound + differences))
    kept = rate + 0.5 * (differences + bound)
    thrown = float(np.sum(0.5 * (bound - differences)))
    counts = np.indices((limit,) * n).reshape(n, -1)
    counts = counts[:, counts.sum(axis=0) < limit]
    accept = np.exp(np.minimum(weight @ counts, 0.0))
    drawn = np.prod(poisson.pmf(counts, kept[:, None]), axis=0) * poisson.cdf(limit - 1 - counts.sum(axis=0), thrown)
    chance = float(accept @ drawn)
    return chance, float(poisson.cdf(limit - 1, lam + n * bound))


@pytest.mark.parametrize(("limit", "figure"), [(3, 0.728), (4, 0.654)])
def test_control_branching_on_the_drawn_batch_size(limit: int, figure: float) -> None:
    """As published: minibatch if B < K, else the full batch. Two records, dU = (.9, −.3), λ = 1, b = 1."""
    dU = np.array([0.9, -0.3])
    right = math.exp(-dU.sum())
    assert right == pytest.approx(0.549, abs=5e-4)
    (there, below), (back, _) = (published_branch(sign * dU, 1.0, 1.0, limit) for sign in (1.0, -1.0))
    assert there / back == pytest.approx(figure, abs=5e-4)
    full_there, full_back = (1 - below) * min(1.0, right), (1 - below) * min(1.0, 1 / right)
    assert (there + full_there) / (back + full_back) > 1.1 * right, "the whole chain is wrong, not only its branch"
    # branching on the mean batch instead leaves one branch, and that is exact
    unlimited = [theory.minibatch_law(sign * dU, 1.0, 0.5).acceptance(theory.metropolis) for sign in (1.0, -1.0)]
    assert unlimited[0] / unlimited[1] == pytest.approx(right, rel=1e-13)
    assert published_branch(dU, 1.0, 1.0, 40)[0] == pytest.approx(unlimited[0], rel=1e-13)


def branching_law(sampler: Sampler, limit: int) -> Callable[..., theory.RatioLaw]:
    """The published branch on a lattice, as a law of one degenerate ratio with the same acceptance probability."""

    def law(_: Sampler, theta: np.ndarray, move: finite.Move) -> theory.RatioLaw:
        found = finite.pieces(sampler, theta, move)
        chance, below = published_branch(found.differences, found.bound, 3 * found.rate, limit)
        chance += (1 - below) * min(1.0, math.exp(-found.changes.sum()))
        return theory.certain(math.log(chance))

    return law


def without_replacement(sampler: Sampler, theta: np.ndarray, move: finite.Move) -> theory.RatioLaw:
    """B distinct rows (at most N) instead of B independent ones; kept and weighed as before."""
    found = finite.pieces(sampler, theta, move)
    n, b, r = found.differences.size, found.bound, found.rate
    weight = np.log((2 * r + b - found.differences) / (2 * r + b + found.differences))
    keep = (r + 0.5 * (found.differences + b)) / (r + b)
    size = poisson.pmf(np.arange(n), n * (r + b))
    size = np.append(size, 1.0 - size.sum())
    ratios, chances = [], []
    for count in range(n + 1):
        for subset in itertools.combinations(range(n), count):
            for kept in itertools.product((0, 1), repeat=count):
                at = list(subset)
                ratios.append(float(np.dot(kept, weight[at])))
                chance = np.prod(np.where(kept, keep[at], 1 - keep[at])) / math.comb(n, count)
                chances.append(size[count] * float(chance))
    assert sum(chances) == pytest.approx(1.0)
    return theory.RatioLaw(np.array(ratios) + found.prior, np.array(chances))


def following_reference(sampler: Sampler, theta: np.ndarray, move: finite.Move) -> theory.RatioLaw:
    """θ̂ is the current state of every step."""
    reference = make_reference(
        sampler.model, sampler._rows, theta, sampler.proposal.directions, order=sampler._reference.order
    )
    return finite.ratio_law(with_reference(sampler, reference), theta, move)


def with_changed_ratio(change: Callable[[finite.Pieces], float]) -> Callable[..., theory.RatioLaw]:
    """The library's law with something added to ℓ by mistake."""

    def law(sampler: Sampler, theta: np.ndarray, move: finite.Move) -> theory.RatioLaw:
        return finite.ratio_law(sampler, theta, move).shifted(change(finite.pieces(sampler, theta, move)))

    return law


def defect(name: str, ratio: str, law: finite.Law, balance: theory.Balance = theory.barker) -> float:
    """By how much, in total variation, the chain misses its target."""
    matrix = finite.laws_of(sampler_for(name, ratio, 1.0), CASES[name].states, law).transitions(balance)
    return theory.total_variation(theory.stationary(matrix), CASES[name].target(1.0))


def test_control_branching_on_a_lattice() -> None:
    """Flat prior, the whole published chain: wrong at every K that still matters, right once K is out of reach."""
    case = CASES["logistic"]
    sampler = sampler_for("logistic", "minibatch", 1.0)
    likelihood = np.array([math.exp(-case.energy(s).sum()) for s in case.states])
    likelihood /= likelihood.sum()
    for limit in (3, 4, 5):
        matrix = finite.laws_of(sampler, case.states, branching_law(sampler, limit)).transitions(np.exp)
        assert theory.total_variation(theory.stationary(matrix), likelihood) > 5e-3
    matrix = finite.laws_of(sampler, case.states, branching_law(sampler, 35)).transitions(np.exp)
    assert theory.total_variation(theory.stationary(matrix), likelihood) < EXACT


@pytest.mark.parametrize("ratio", ["full", "minibatch"])
def test_control_the_noise_correction_without_noise(ratio: str) -> None:
    """min(1, e^{ℓ − v/2}) subtracts the correction where there is no ξ; noise without correction is as wrong."""
    uncorrected = defect("logistic", ratio, finite.ratio_law, lambda ell: theory.penalty(0.5)(ell + 0.25))
    assert defect("logistic", ratio, finite.ratio_law, theory.penalty(0.5)) < EXACT
    matrix = laws_for("logistic", ratio, 1.0).transitions(lambda ell: theory.metropolis(ell - 0.25))
    flow = theory.flow_defect(CASES["logistic"].target(1.0), matrix)
    assert uncorrected > 1e-3
    assert flow > 1e-3


def test_control_batches_without_replacement() -> None:
    assert defect("logistic", "minibatch", finite.ratio_law, theory.metropolis) < EXACT
    assert defect("logistic", "minibatch", without_replacement, theory.metropolis) > 5e-3
    assert defect("softmax", "minibatch", without_replacement, theory.barker) > 1e-3


@pytest.mark.parametrize(
    ("name", "order", "least"),
    [("logistic", 1, 1e-3), ("softmax", 1, 5e-4), ("student-t", 1, 3e-3), ("student-t", 2, 9e-5)],
)
def test_control_a_reference_that_follows_the_chain(name: str, order: int, least: float) -> None:
    """Total variation of about 1e-3: small enough to escape a glance, and wrong."""
    wrong = defect(name, f"order {order}", following_reference, theory.metropolis)
    assert defect(name, f"order {order}", finite.ratio_law, theory.metropolis) < EXACT
    assert least < wrong < 1e-2


def test_controls_planted_in_the_ratio() -> None:
    for name in ("logistic", "softmax", "student-t"):
        for order in ("order 1", "order 2"):
            dropped_prior = defect(name, order, with_changed_ratio(lambda at: -at.prior))
            wrong_sign = defect(name, order, with_changed_ratio(lambda at: -2.0 * at.expansion))
            no_expansion = defect(name, order, with_changed_ratio(lambda at: -at.expansion))
            assert min(dropped_prior, wrong_sign, no_expansion) > 5e-3, (name, order)


def at_another_rate(factor: float) -> finite.Law:
    """The counts at ``factor`` times their rates, the weights unchanged."""

    def law(sampler: Sampler, theta: np.ndarray, move: finite.Move) -> theory.RatioLaw:
        at = finite.pieces(sampler, theta, move)
        share = sampler._rows.share if sampler._rows.share.size else np.ones(3)
        b, r, d, counts = share * at.bound, share * at.rate, at.differences, np.arange(40)
        weights, means = np.log((2 * r + b - d) / (2 * r + b + d)), r + 0.5 * (d + b)
        laws = [
            theory.RatioLaw(counts * weight, poisson.pmf(counts, factor * mean))
            for weight, mean in zip(weights, means, strict=True)
        ]
        return functools.reduce(theory._combined, laws).shifted(at.prior)

    return law


def test_controls_in_the_rates() -> None:
    """Rates and weights that do not belong together; rows drawn by an alias table, but N(r + b) of them instead of
    Σc_i(r + b)."""
    for ratio in ("minibatch", "thinned", "alias"):
        assert defect("mixture, published bound", ratio, at_another_rate(1.0)) < EXACT
    share = sampler_for("mixture, published bound", "alias", 1.0)._rows.share
    assert defect("mixture, published bound", "alias", at_another_rate(3 / share.sum())) > 1e-2
    assert defect("logistic", "minibatch", at_another_rate(1.1)) > 1e-3
