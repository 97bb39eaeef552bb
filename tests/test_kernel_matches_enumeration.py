"""The compiled loop is the kernel that the enumeration describes, and its random streams behave.

``Sampler.run`` itself walks a small lattice (``finite``); how often it goes from each state to each other one is
compared with the exact transition matrix. On a continuous posterior, long runs are compared with quadrature. Seeds are
fixed, and a correct sampler fails one of these comparisons with probability of about 1e-6.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

import finite
from dpfastmh import models, priors
from dpfastmh.domain import Box
from dpfastmh.methods import (
    MOST_VARIANCE,
    Coordinates,
    Directions,
    DPFastMH,
    DPFastMHFull,
    Method,
    MethodError,
    MetropolisHastings,
    RandomWalk,
    Sampler,
    TunaMH,
)
from dpfastmh.steps import chain, reference
from dpfastmh.steps.likelihood import Rows
from dpfastmh.steps.reference import integer_sums, make_reference, total_energy
from dpfastmh.theory import penalty
from test_exactness import ACCEPTANCES, CASES, FORCED, RECORD_BOUNDS, coarse_reference, method_for, with_reference

STEPS = 1_000_000
RARE = 1e-6


# -- frequencies on the lattice --------------------------------------------------------------------------------------
def lattice_sampler(name: str, ratio: str, method: Method, temperature: float = 1.0, seed: int = 7) -> Sampler:
    """The method on the lattice of the case, restricted to one log-ratio where the ratio's name asks for one."""
    case = CASES[name]
    by_reference = ratio in FORCED or ratio.startswith("cheapest")
    sampler = method.on(
        case.model(temperature),
        case.x,
        case.y,
        reference=case.reference if by_reference and case.reference else None,
        order=1 if ratio.endswith("1") else 2,
        per_record=ratio if ratio in RECORD_BOUNDS else None,
        seed=seed,
    )
    if ratio in FORCED:
        sampler.rule = sampler.rule._replace(allowed=np.arange(4) == FORCED[ratio])
    return finite.on_lattice(sampler, case.states.min(axis=0), case.states.max(axis=0), seed)


def surprise(seen: np.ndarray, transitions: np.ndarray) -> float:
    """p-value of the transition counts, by Pearson's χ² over the rows of the matrix."""
    assert np.all(seen[transitions == 0.0] == 0), "a move that is not possible was made"
    expected = seen.sum(axis=1, keepdims=True) * transitions
    used = expected > 10.0
    assert expected[used].sum() > 0.999 * seen.sum()
    statistic = ((seen - expected)[used] ** 2 / expected[used]).sum()
    return float(chi2.sf(statistic, int(used.sum() - used.any(axis=1).sum())))


def options_for(acceptance: str, laziness: float = 1.0) -> dict[str, object]:
    kind, _, variance = acceptance.partition(" ")
    return {"acceptance": kind, "variance": float(variance or 1.0), "laziness": laziness}


# every log-ratio with every acceptance, a million steps each; then other models and rules, with fewer
LOOPS = [
    ("logistic", ratio, acceptance, STEPS)
    for ratio in ("full", "minibatch", "order 1", "order 2", "cheapest")
    for acceptance in ACCEPTANCES
]
LOOPS += [("mixture, published bound", ratio, a, STEPS) for ratio in RECORD_BOUNDS for a in ACCEPTANCES]
LOOPS += [("softmax", ratio, "barker", STEPS // 4) for ratio in ("minibatch", "order 1", "order 2")]
LOOPS += [("own energy", ratio, "barker", STEPS // 4) for ratio in ("full", "minibatch", "thinned", "alias")]
LOOPS += [("logistic", "cheapest, thrifty", "barker", STEPS // 4)]


@pytest.mark.parametrize(("name", "ratio", "acceptance", "steps"), LOOPS)
def test_the_loop_makes_the_enumerated_moves(name: str, ratio: str, acceptance: str, steps: int) -> None:
    case = CASES[name]
    sampler = lattice_sampler(name, ratio, method_for(ratio, case.proposal, **options_for(acceptance)))
    exact = finite.transitions(sampler, case.states)
    assert surprise(finite.visits(sampler, case.states, steps), exact) > RARE


@pytest.mark.parametrize("proposal", ["joint", "basis", "coordinate", "directions"])
@pytest.mark.parametrize("ratio", ["order 2", "cheapest"])
def test_every_proposal_makes_the_enumerated_moves(ratio: str, proposal: str) -> None:
    """Two parameters, tempered and lazy: increments of spreads and curvatures are kept differently for each kind."""
    step = finite.scale_for(0.5)
    chosen = {
        "joint": RandomWalk(step),
        "basis": RandomWalk([step, step], [[0.5, 0.5], [0.5, -0.5]]),
        "coordinate": Coordinates([step, step]),
        "directions": Directions([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], step),
    }[proposal]
    case = CASES["softmax"]
    sampler = lattice_sampler(
        "softmax", ratio, method_for(ratio, chosen, **options_for("barker", 0.3)), temperature=3.0
    )
    exact = finite.transitions(sampler, case.states)
    assert surprise(finite.visits(sampler, case.states, STEPS // 4), exact) > RARE


@pytest.mark.parametrize("order", [1, 2])
def test_the_loop_uses_the_rounded_expansion(order: int) -> None:
    """On a grid so coarse that rounding shows in the frequencies; the unrounded remainder is caught."""
    case = CASES["logistic"]
    plain = lattice_sampler("logistic", f"order {order}", method_for("order", case.proposal))
    coarse = coarse_reference(plain, np.array(case.reference), order, 2.0**-3)
    sampler = with_reference(plain, coarse)
    exact = finite.transitions(sampler, case.states)
    assert surprise(finite.visits(sampler, case.states, STEPS // 2), exact) > RARE
    careless = with_reference(plain, coarse._replace(gradient_grid=2.0**-40, hessian_grid=2.0**-40))
    assert surprise(finite.visits(careless, case.states, STEPS // 2), exact) < 1e-12


def test_controls_show_in_the_frequencies() -> None:
    """Each planted bug in the running chain is far outside what chance allows."""
    case = CASES["logistic"]
    method = TunaMH(case.proposal, lam=1.2, acceptance="barker", laziness=0.9)
    right = lattice_sampler("logistic", "order 1", method)
    exact = finite.transitions(right, case.states)
    assert surprise(finite.visits(right, case.states, STEPS // 4), exact) > RARE

    def planted(**changed: object) -> float:
        wrong = lattice_sampler("logistic", "order 1", method)
        for name, value in changed.items():
            setattr(wrong, name, value)
        return surprise(finite.visits(wrong, case.states, STEPS // 4), exact)

    known, rule = right._reference, right.rule
    flat = models.LogisticRegression(Box(a=(-1, 1)), priors.Flat(), intercept=False)
    assert planted(model=flat) < 1e-12, "dropped prior"
    assert planted(_reference=known._replace(gradient=-known.gradient)) < 1e-12, "sign of the expansion"
    assert planted(rule=rule._replace(acceptance=chain.METROPOLIS)) < 1e-12, "Metropolis for Barker"
    assert planted(rule=rule._replace(laziness=1.0)) < 1e-12, "laziness"
    assert planted(rule=rule._replace(rate=0.05 * rule.rate)) < 1e-12, "another rate, though as exact"


def test_control_a_wrong_alias_table_shows() -> None:
    """Rows drawn evenly where their rates say otherwise."""
    case = CASES["mixture, published bound"]
    sampler = lattice_sampler("mixture, published bound", "alias", TunaMH(case.proposal, lam=1.2))
    exact = finite.transitions(sampler, case.states)
    sampler._rows = sampler._rows._replace(threshold=np.ones(3))
    assert surprise(finite.visits(sampler, case.states, STEPS // 2), exact) < 1e-12


# -- a continuous posterior ------------------------------------------------------------------------------------------
SOURCE = np.random.default_rng(20)
X = SOURCE.uniform(-1, 1, (24, 1))
Y = (SOURCE.random(24) < 1 / (1 + np.exp(-0.4 - 1.5 * X[:, 0]))).astype(float)
PRIOR = priors.Normal(1.5, loc=0.2)


@functools.cache
def regression(temperature: float = 1.0) -> models.GLM:
    return models.LogisticRegression(Box(a=(-1, 1)), PRIOR, temperature=temperature)


def summaries(points: np.ndarray) -> np.ndarray:
    """What is compared: means, second moments, the mixed one and a tail."""
    a, b = points[:, 0], points[:, 1]
    return np.column_stack([a, b, a * a, b * b, a * b, a + b > 1.5])


@functools.cache
def by_quadrature(temperature: float) -> np.ndarray:
    axis = np.linspace(-8.0, 8.0, 641)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    eta = grid[:, :1] + grid[:, 1:] * X[:, 0]
    log_density = (Y * eta - np.logaddexp(0.0, eta)).sum(axis=1) / temperature + PRIOR.log_density(grid).sum(axis=1)
    weight = np.exp(log_density - log_density.max())
    return weight @ summaries(grid) / weight.sum()


def worst_z(draws: np.ndarray, expected: np.ndarray, batches: int = 50) -> float:
    """Largest |mean − expectation| in Monte Carlo standard errors, from batch means."""
    means = draws.reshape(batches, -1, draws.shape[1]).mean(axis=1)
    error = means.std(axis=0, ddof=1) / math.sqrt(batches)
    return float(np.max(np.abs(means.mean(axis=0) - expected) / error))


WALK = RandomWalk([0.7, 1.3])
LONG_RUNS: dict[str, tuple[Method, bool]] = {
    "metropolis-hastings": (MetropolisHastings(WALK), False),
    "penalty": (MetropolisHastings(WALK, acceptance="penalty", variance=1.0), False),
    "tuna": (TunaMH(Coordinates([0.6, 1.0]), lam=20.0), False),
    "tuna around a reference": (TunaMH(WALK, chi=0.01), True),
    "dp-fast-mh": (DPFastMH(Coordinates([0.9, 1.6]), laziness=0.5), True),
    "dp-fast-mh without reference": (DPFastMH(Directions([[1.0, 0.5], [0.0, 1.0], [1.0, -1.0]], 0.8)), False),
    "dp-fast-mh-full": (DPFastMHFull(WALK), False),
}


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("name", LONG_RUNS)
def test_long_runs_agree_with_quadrature(name: str, temperature: float) -> None:
    method, with_point = LONG_RUNS[name]
    sampler = method.on(regression(temperature), X, Y, reference=[0.4, 1.2] if with_point else None, seed=31)
    state, _, _ = sampler.run(sampler.init([0.4, 1.0]), 2_000)
    _, draws, info = sampler.run(state, 200_000)
    assert 0.05 < info.acceptance < 0.95
    assert worst_z(summaries(draws), by_quadrature(temperature)) < 5.5


def test_control_quadrature_catches_the_wrong_prior_and_temperature() -> None:
    other = models.LogisticRegression(Box(a=(-1, 1)), priors.Normal(1.5, loc=0.0))
    sampler = MetropolisHastings(WALK).on(other, X, Y, seed=31)
    _, draws, _ = sampler.run(sampler.init([0.4, 1.0]), 200_000)
    assert worst_z(summaries(draws), by_quadrature(1.0)) > 10.0
    assert worst_z(summaries(draws), by_quadrature(3.0)) > 10.0


def test_a_users_energy_agrees_with_quadrature() -> None:
    """One parameter, its own box, difference and bound only."""
    case = CASES["own energy"]
    axis = np.linspace(-12.0, 12.0, 20_001)[:, None]
    energy = np.log1p((np.array([0.4, 7.0, -0.9]) - axis) ** 2).sum(axis=1)
    weight = np.exp(-energy + case.prior.log_density(axis[:, 0]))
    expected = weight @ np.column_stack([axis, axis**2, axis > 1.0]) / weight.sum()
    for method, per_record in [
        (DPFastMH(RandomWalk(1.2)), "thinned"),
        (TunaMH(RandomWalk(1.2), lam=3.0), None),
        (MetropolisHastings(Coordinates(1.2)), None),
    ]:
        sampler = method.on(case.model(1.0), case.x, per_record=per_record, seed=4)
        # the declared share of the record at 7 holds for |θ| ≤ 1 only, so leave it out of long runs
        if per_record:
            sampler._rows.share[:] = 1.0
        _, draws, _ = sampler.run(sampler.init([0.3]), 200_000)
        assert worst_z(np.column_stack([draws, draws**2, draws > 1.0]), expected) < 5.5


# -- step and run ----------------------------------------------------------------------------------------------------
PROPOSALS = {
    "joint": RandomWalk([0.5, 0.9]),
    "basis": RandomWalk([0.5, 0.9], [[1.0, 0.3], [-0.2, 1.0]]),
    "coordinate": Coordinates([0.6, 1.0]),
    "directions": Directions([[1.0, 0.5], [0.0, 1.0], [1.0, -1.0]], 0.8),
}
WAYS: dict[str, tuple[type[Method], dict[str, object], int]] = {
    "full": (MetropolisHastings, {}, 0),
    "tuna": (TunaMH, {"lam": 8.0}, 0),
    "tuna, order 1": (TunaMH, {"chi": 0.02}, 1),
    "tuna, order 2": (TunaMH, {"chi": 0.02, "acceptance": "penalty"}, 2),
    "dp-fast-mh": (DPFastMH, {"laziness": 0.6}, 2),
}


def sampler_of(way: str, proposal: str, seed: int | None = 5, **more: object) -> Sampler:
    kind, options, order = WAYS[way]
    point = {"reference": [0.4, 1.2], "order": order} if order else {}
    return kind(PROPOSALS[proposal], **options).on(regression(), X, Y, seed=seed, **point, **more)


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_its_steps(way: str, proposal: str) -> None:
    """run(200) = 200 steps = run(70) + run(130), to the last bit, and states that were left behind do not change."""
    whole, single, split = (sampler_of(way, proposal) for _ in range(3))
    start = whole.init([0.1, 0.2])
    end, draws, info = whole.run(start, 200)
    assert np.array_equal(start.position, [0.1, 0.2])
    assert 0 < info.accepted < info.steps == 200

    state, steps, accepted = single.init([0.1, 0.2]), [], 0
    for _ in range(200):
        state, one = single.step(state)
        steps.append(state.position)
        accepted += one.accepted
    assert np.array_equal(draws, steps)
    assert accepted == info.accepted

    middle, first, _ = split.run(split.init([0.1, 0.2]), 70)
    last, second, _ = split.run(middle, 130)
    assert np.array_equal(draws, np.vstack([first, second]))
    for one, other in zip((*end.place, *end.memory), (*last.place, *last.memory), strict=True):
        assert np.array_equal(one, other)
    thinned = sampler_of(way, proposal)
    assert np.array_equal(thinned.run(thinned.init([0.1, 0.2]), 200, thin=7)[1], draws[6::7])


# -- sums in any order and on any number of threads ------------------------------------------------------------------
def many_rows(count: int = 1_000) -> Rows:
    source = np.random.default_rng(8)
    return regression().load(source.uniform(-1, 1, (count, 1)), source.integers(0, 2, count))


def test_sums_do_not_depend_on_threads_order_or_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows, point = regression(), many_rows(), np.array([0.4, 1.2])
    whole = integer_sums(model, rows, point, threads=1)
    energy = total_energy(model, rows, point, threads=1)
    monkeypatch.setattr(reference, "BLOCK", 64)  # or a table this small would be one part whatever is asked for
    for threads in (1, 2, 3, 7):
        parts = reference.in_parts(lambda first, last: last - first, 1_000, threads)
        assert len(parts) == threads
        assert sum(parts) == 1_000
        found = integer_sums(model, rows, point, threads=threads)
        assert all(np.array_equal(a, b) for a, b in zip(whole, found, strict=True))
        assert total_energy(model, rows, point, threads=threads) == energy

    shuffled = np.random.default_rng(9).permutation(1_000)
    gradient, hessian, energies = np.zeros(2, np.int64), np.zeros((2, 2), np.int64), 0
    for piece in np.split(shuffled, [10, 11, 400, 977]):
        part = rows._replace(x=rows.x[piece], y=rows.y[piece], weight=float(len(piece)))
        g, h, *cells = integer_sums(model, part, point, public_rows=1_000)
        assert tuple(cells) == whole[2:]
        gradient, hessian, energies = gradient + g, hessian + h, energies + total_energy(model, part, point)
    assert np.array_equal(gradient, whole[0])
    assert np.array_equal(hessian, whole[1])
    assert energies == energy


def test_control_floating_point_sums_do_depend_on_the_order() -> None:
    rows = many_rows()
    summands = 1 / (1 + np.exp(-rows.x @ [0.4, 1.2])) - rows.y
    assert functools.reduce(lambda a, b: a + b, summands) != functools.reduce(lambda a, b: a + b, summands[::-1])


@pytest.mark.parametrize("way", ["full", "tuna, order 1", "dp-fast-mh"])
def test_a_chain_is_the_same_whatever_the_threads(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK", 8)
    draws = []
    for threads in (1, 2, 3):
        sampler = sampler_of(way, "joint", threads=threads)
        draws.append(sampler.run(sampler.init([0.1, 0.2]), 300)[1])
    assert np.array_equal(draws[0], draws[1])
    assert np.array_equal(draws[0], draws[2])


def test_the_full_batch_does_not_depend_on_the_order_of_rows() -> None:
    """Nor a reference: the chains are equal to the last bit. A minibatch's chain is another one with the same law."""
    order = np.random.default_rng(2).permutation(24)
    model = regression()
    for method in (MetropolisHastings(WALK), DPFastMHFull(WALK)):
        one, other = method.on(model, X, Y, seed=5), method.on(model, X[order], Y[order], seed=5)
        assert np.array_equal(one.run(one.init([0, 0]), 500)[1], other.run(other.init([0, 0]), 500)[1])
    sums = [
        make_reference(model, model.load(x, y), np.array([0.4, 1.2]), np.zeros((0, 2)))
        for x, y in ((X, Y), (X[order], Y[order]))
    ]
    assert all(np.array_equal(a, b) for a, b in zip(*sums, strict=True))


# -- streams ---------------------------------------------------------------------------------------------------------
def test_seeds_reproduce_and_their_absence_does_not() -> None:
    def draws(**options: object) -> np.ndarray:
        sampler = sampler_of("dp-fast-mh", "joint", **options)
        return sampler.run(sampler.init([0.1, 0.2]), 100)[1]

    assert np.array_equal(draws(seed=5), draws(seed=5))
    assert not np.array_equal(draws(seed=5), draws(seed=6))
    assert not np.array_equal(draws(seed=5), draws(seed=5, chain_number=1))
    assert not np.array_equal(draws(seed=None), draws(seed=None))


@pytest.mark.parametrize("seed", [5, None])
def test_the_four_streams_are_different(seed: int | None) -> None:
    sampler = sampler_of("tuna", "joint", seed=seed)
    words = [stream.integers(0, 2**63, 8).tolist() for stream in sampler._streams]
    assert len({tuple(w) for w in words}) == 4


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_proposals_do_not_depend_on_what_is_accepted(proposal: str) -> None:
    """After as many steps the public stream is at the same place, whatever the data, batches or acceptance were."""
    places, accepted, tried = [], [], []
    for way in WAYS:
        sampler = sampler_of(way, proposal)
        _, _, info = sampler.run(sampler.init([0.1, 0.2]), 300)
        places.append(sampler._streams.proposals.integers(0, 2**63, 4).tolist())
        accepted.append(info.accepted)
        tried.append(info.tried_by_direction.tolist())
    assert len(set(accepted)) > 1
    assert all(place == places[0] for place in places)
    assert all(count == tried[0] for count in tried)


def test_lazy_steps_propose_but_touch_nothing() -> None:
    method = replace(MetropolisHastings(WALK), laziness=0.25)
    sampler = method.on(regression(), X, Y, seed=5)
    _, _, info = sampler.run(sampler.init([0.1, 0.2]), 20_000)
    assert info.steps == 20_000
    assert info.evaluated == info.full_batches
    assert abs(info.evaluated - 5_000) < 5 * math.sqrt(20_000 * 0.25 * 0.75)


# -- the ends of the range -------------------------------------------------------------------------------------------
def test_a_long_sum_of_weights_does_not_wrap_around() -> None:
    """200,000 records that agree: a move down by a half costs 50,000 nats, more than 64 bits of 2⁻⁴⁸ hold."""
    n = 200_000
    model = models.LogisticRegression(Box.unit(1), priors.Flat(), intercept=False)
    rows = model.load(np.ones((n, 1), np.float32), np.ones(n))
    steps = []
    for seed in range(30):
        sampler = DPFastMH(RandomWalk(1.0), full_batch=False).on(model, rows, seed=seed)
        state, info = sampler.step(sampler.init([0.0]))
        assert info.full_batches == 0
        steps.append((float(state.position[0]), info.accepted))
    assert any(accepted and place > 0.5 for place, accepted in steps)
    assert all(place > 0.0 for place, accepted in steps if accepted)


def test_penalty_noise_is_refused_beyond_what_the_kernel_can_compute() -> None:
    """At the largest variance 1 − g has vanished where the kernel switches to 1; at 1,250 it would be a half there."""
    switch = 25.0 * math.sqrt(2.0 * MOST_VARIANCE) - MOST_VARIANCE / 2.0
    assert penalty(MOST_VARIANCE)(np.array([switch]))[0] == 1.0
    wrong = 25.0 * math.sqrt(2.0 * 1250.0) - 1250.0 / 2.0
    assert penalty(1250.0)(np.array([wrong]))[0] < 0.6
    with pytest.raises(MethodError, match="variance is 1250"):
        DPFastMHFull(WALK, acceptance="penalty", variance=1250.0)
