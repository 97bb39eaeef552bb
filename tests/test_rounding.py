"""Where rounding could pass what a step is charged for, the loop takes another batch: ``charged_for``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from numba import njit

import dpfastmh as mh
from dpfastmh import losses
from dpfastmh.losses import value
from dpfastmh.methods import Coordinates, Directions, DPFastMH, DPFastMHFull, Method, RandomWalk, Sampler
from dpfastmh.privacy.accept_bit import bit_cost, look_up
from dpfastmh.privacy.boundary import CELLS, make_meter, widening
from dpfastmh.steps.chain import FULL, MINIBATCH, ORDER1, ORDER2, SINCE, Meter, choose_batch, step_cost
from dpfastmh.steps.likelihood import Bounds, Place, bounds, charged_for

RNG = np.random.default_rng(61)


def ask(model: Any, rule: Any, place: Any, coordinate: int, reference: Any) -> tuple[bool, bool, bool, int, int]:
    limit = bounds(model, place, coordinate, reference)
    known = tuple(bool(answer) for answer in charged_for(model, place, coordinate))
    return *known, int(choose_batch(rule, limit, *known)), int(choose_batch(rule, limit))


def sampler(model: mh.GLM, method: Method, rows: int = 50) -> Sampler:
    names = model.domain.columns
    x = {name: RNG.choice(["a", "b"], rows) if name == "site" else RNG.uniform(-1, 1, rows) for name in names}
    meter = make_meter(model, method, 9.0, rows)
    reference = np.zeros(len(model.parameters))
    return method.on(model, x, RNG.integers(0, 2, rows), reference=reference, seed=1, meter=meter)


def asked(found: Sampler, theta: np.ndarray, delta: np.ndarray) -> tuple[bool, bool, bool, int, int]:
    place = found.init(theta).place
    place.delta[:] = delta
    place.proposal[:] = theta + delta
    place.offset_next[:] = place.offset + delta
    moved = np.flatnonzero(delta)
    coordinate = int(moved[0]) if moved.size == 1 else -1
    return ask(found._table, found.rule, place, coordinate, found._reference)


def test_curvature_is_used_only_near_the_reference() -> None:
    """On a box, for the logistic loss: Σ|θ − θ̂| up to 4 at both ends of the move."""
    model = mh.LogisticRegression(mh.Box.unit(3))
    one = sampler(model, DPFastMH(Coordinates(0.1)))
    joint = sampler(model, DPFastMH(RandomWalk(0.1)))
    step = np.array([0.0, 0.1, 0.0, 0.0])
    every = np.full(4, 0.025)  # Σ|θ| grows by 0.05
    for distance, alone, together in ((0.5, True, True), (3.89, True, True), (3.91, False, True), (3.96, False, False)):
        theta = distance * np.array([0.5, 0.0, 0.25, -0.25])
        assert asked(one, theta, step)[2] is alone
        assert asked(joint, theta, every)[2] is together


def test_expansions_are_used_only_where_the_sums_over_rows_are_precise_enough() -> None:
    """One-hot features: a move of all categories at once is Ŝ = K − 1 times as long as any record can see."""
    wide = mh.LogisticRegression(mh.OneHot("site", ["a", "b", *(f"s{k}" for k in range(38))]))
    found = sampler(wide, DPFastMH(RandomWalk(0.1)))
    theta = np.zeros(40)
    for moving, known in ((29, True), (31, False)):
        delta = np.zeros(40)
        delta[1 : 1 + moving] = 0.01
        assert asked(found, theta, delta)[1] is known
    found.rule = found.rule._replace(allowed=np.array([False, False, True, True]))
    assert asked(found, theta, delta)[3] == -1


MODELS: list[mh.GLM] = [
    mh.LogisticRegression(mh.Box.unit(3)),
    mh.HuberRegression(mh.Box.unit(2) * mh.Ball(2.0, ["u", "v"])),
    mh.LogisticRegression(mh.Box.unit(1) * mh.OneHot("site", ["a", "b", "c"])),
]


def different_both_ways(choose: Callable[..., int], model: mh.GLM, method: Method, moves: int) -> int:
    """How many random moves would use another batch, or none, on the way back."""
    found = sampler(model, method, rows=5_000)
    p = len(model.parameters)
    unequal = 0
    for _ in range(moves):
        theta = RNG.normal(size=p) * RNG.choice([0.1, 0.5, 1.0, 2.0])
        delta = RNG.normal(size=p) * RNG.choice([0.05, 0.5])
        if isinstance(method.proposal, Coordinates):
            delta[np.arange(p) != RNG.integers(p)] = 0.0
        unequal += choose(found, theta, delta) != choose(found, theta + delta, -delta)
    return unequal


@pytest.mark.parametrize("proposal", [Coordinates(0.1), RandomWalk(0.1)], ids=["coordinates", "joint"])
@pytest.mark.parametrize("number", range(len(MODELS)))
def test_both_directions_of_a_move_choose_the_same_batch(number: int, proposal: Any) -> None:
    """Detailed balance: a move that used one batch and came back by another would be accepted unequally."""
    method = DPFastMH(proposal, thrift=10.0, full_batch=False)
    assert different_both_ways(lambda *move: asked(*move)[3], MODELS[number], method, 300) == 0


def test_a_choice_that_looks_at_one_end_is_caught() -> None:
    def one_end(found: Sampler, theta: np.ndarray, delta: np.ndarray) -> int:
        return int(asked(found, theta, 1e-9 * delta)[3])

    method = DPFastMH(Coordinates(0.1), thrift=10.0, full_batch=False)
    assert different_both_ways(one_end, MODELS[0], method, 300) > 0


def test_what_is_not_charged_for_is_not_used() -> None:
    model = mh.LogisticRegression(mh.Box.unit(3))
    near, far = np.full(4, 0.1), np.array([3.0, 0.0, 3.0, 0.0])
    step = np.array([0.0, 1e-3, 0.0, 0.0])
    found = sampler(model, DPFastMH(Coordinates(0.1)), rows=5_000)
    assert asked(found, near, step)[3:] == (ORDER2, ORDER2)
    held = found.rule._replace(allowed=np.array([True, True, False, True]))
    found.rule = held
    assert asked(found, far, step)[3] in (FULL, MINIBATCH)
    found.rule = held._replace(allowed=np.array([False, False, False, True]))
    assert asked(found, far, step)[3:] == (-1, ORDER2)


@pytest.mark.parametrize("proposal", [Coordinates(0.5), RandomWalk(0.2), Directions(np.eye(3), 0.5)])
def test_curvature_and_spreads_are_fresh_where_they_are_used(proposal: Any) -> None:
    """Far out and back: increments made out there leave nothing behind, whatever the way."""
    model = mh.LogisticRegression(mh.Box.unit(2), prior=mh.Normal(1.6), temperature=1e4)
    found = sampler(model, DPFastMH(proposal))
    reference, state = found._reference, found.init(np.array([3.0, -2.0, 1.0]))
    inside = 0
    for _ in range(400):
        state, info = found.step(state)
        place, memory = state.place, state.memory
        here = np.abs(place.offset).sum()
        if here > 4.0 or not info.accepted:
            continue
        inside += 1
        size = 2.0**-53 * np.abs(reference.hessian) @ np.full(3, 4.0)
        exact = reference.hessian @ (place.theta - reference.point)
        # six roundings of the sum itself; two of each increment since it was fresh
        made = memory.integers[SINCE]
        assert np.all(np.abs(memory.curvature - exact) <= (8 + 2 * made) * size)
        assert made == 0 or isinstance(proposal, Coordinates)
        now = np.abs(place.theta).sum()
        assert abs(place.spreads[0] - now) <= 2.0**-51 * now * (2 + made)
        assert memory.farthest[0] <= 2 * place.spreads[0]
    assert inside > 10


ENERGIES: list[tuple[mh.GLM, float]] = [
    (mh.LogisticRegression(mh.Box.unit(1)), 2.0**16 / (1 + 2 / 64)),
    (mh.LogisticRegression(mh.Box.unit(199)), 2.0**16 / (1 + 200 / 64)),
    (mh.StudentTRegression(mh.Box.unit(1), scale=0.25), 2.0**16 / 5 / (1 + 2 / 64)),
    (mh.PoissonRegression(mh.Box.unit(1), cap=64), 2.0**10 / (1 + 2 / 64)),
]


@pytest.mark.parametrize(("model", "limit"), ENERGIES, ids=["logistic", "wide", "student-t", "poisson"])
def test_energies_are_used_only_where_their_digits_suffice(model: mh.GLM, limit: float) -> None:
    found = sampler(model, DPFastMH(Coordinates(0.1)))
    theta, step = np.zeros(len(model.parameters)), np.zeros(len(model.parameters))
    step[0] = 1e-4
    for share, known in ((0.99, True), (1.01, False)):
        theta[0] = share * limit
        assert asked(found, theta, step)[0] is known


def worst_digit(loss: Any, farthest: float, targets: np.ndarray) -> float:
    """The largest error of an energy, its predictor up to ``farthest`` and known exactly, in units of 2⁻³³."""
    worst = 0.0
    for y in targets:
        for eta in farthest * np.array([-1.0, -0.37, -1e-3, 1e-5, 0.011, 0.73, 1.0]):
            found = mpmath.mpf(float(value(loss, float(eta), float(y))))
            worst = max(worst, float(abs(found - exact_energy(loss, mpmath.mpf(float(eta)), mpmath.mpf(float(y))))))
    return worst * 2.0**33


def exact_energy(loss: Any, eta: Any, y: Any) -> Any:
    log, exp = mpmath.log, mpmath.exp
    with mpmath.workdps(80):
        if isinstance(loss, losses.Logistic):
            return log(1 + exp(eta)) - y * eta
        if isinstance(loss, losses.Poisson):
            mean = mpmath.log1p(exp(eta))
            return mean - y * log(mean)
        spread = loss.df * mpmath.mpf(loss.scale) ** 2
        return (loss.df + mpmath.mpf(1)) / 2 * (log(1 + (y - eta) ** 2 / spread) - log(1 + y**2 / spread))


def test_energies_have_the_digits_they_are_used_for() -> None:
    """Half of the allowance is left to the dot product. Gaussian-like errors and huge caps never have the digits."""
    far = 2.0**16 * np.array([-1.0, -0.3, 0.01, 0.5, 0.77, 1.0])
    cases: list[tuple[mh.GLM, np.ndarray]] = [
        (mh.LogisticRegression(mh.Box.unit(1)), np.array([0.0, 1.0])),
        (mh.StudentTRegression(mh.Box.unit(1)), far),
        (mh.StudentTRegression(mh.Box.unit(1), df=1e5, scale=3.0), 3.0 * far),
        (mh.PoissonRegression(mh.Box.unit(1), cap=64), np.array([0.0, 3.0, 64.0])),
        (mh.PoissonRegression(mh.Box.unit(1), cap=6e4), np.array([0.0, 3.0, 6e4])),
    ]
    for model, targets in cases:
        assert worst_digit(model.loss, model.table().known, targets) < 0.5
    for hopeless, targets in (
        (mh.StudentTRegression(mh.Box.unit(1), df=1e9), far),
        (mh.PoissonRegression(mh.Box.unit(1), cap=1e9), np.array([1e9])),
    ):
        assert hopeless.table().known < 0
        assert worst_digit(hopeless.loss, 2.0**16 / max(1.0, getattr(hopeless.loss, "cap", 1.0)), targets) > 1.0


def test_a_narrow_mixture_has_no_full_batch() -> None:
    """Its energies are squares over the variance: 3·10⁸ at a variance of 10⁻⁷, known to 2⁻²⁵ only."""
    place = Place(*(np.zeros(2) for _ in range(5)), np.zeros(4))
    assert charged_for(mh.Mixture().table(), place, -1)[0]
    assert charged_for(mh.Mixture(variance=1e-2, temperature=1.0).table(), place, -1)[0]
    assert not charged_for(mh.Mixture(variance=1e-7, temperature=1.0).table(), place, -1)[0]


# -- what a step is charged --------------------------------------------------------------------------------------------
def cost(meter: Meter, rule: Any, batch: int, limit: Bounds) -> float:
    @njit(error_model="numpy")
    def ask_cost(meter, rule, batch, limit):  # type: ignore[no-untyped-def]
        return step_cost(meter, rule, batch, limit)

    return float(ask_cost(meter, rule, batch, limit))


def test_a_step_is_charged_for_its_batch_its_remainder_and_its_rounding() -> None:
    method = DPFastMH(Coordinates(0.1), laziness=0.5)
    model = mh.LogisticRegression(mh.Box.unit(3))
    rule = method.rule(1_000, 2)
    narrow = make_meter(model, method, 9.0, 1_000)
    meter = narrow._replace(widening=0.01)  # large enough to be seen beside a cell of the table
    limit = Bounds(0.2, 0.15, 0.1)
    options: dict[str, Any] = {"laziness": 0.5, "shift": CELLS}
    for batch, kind, first in ((FULL, "full", 0.2), (MINIBATCH, "minibatch", 0.2)):
        exact = bit_cost(9.0, 1.01 * first, batch=kind, **options)  # type: ignore[arg-type]
        assert exact * (1 - 1e-9) <= cost(meter, rule, batch, limit) <= 1.012 * exact
    for batch, left in ((ORDER1, 0.15), (ORDER2, 0.1)):
        ratio = 0.1 * 0.2 / left  # thrift lowers it until x·b_r is a tenth of b
        exact = bit_cost(9.0, 1.01 * 0.2, batch="control-variate", remainder=left, x=ratio, **options)
        assert exact * (1 - 1e-9) <= cost(meter, rule, batch, limit) <= 1.012 * exact


def test_a_move_of_no_length_costs_what_rounding_does() -> None:
    """A scale of 0 is a coordinate held fixed; 0/0 for its rate must not end the chain."""
    method = DPFastMH(Coordinates([0.1, 0.0, 0.1, 0.1]))
    model = mh.LogisticRegression(mh.Box.unit(3))
    meter, rule = make_meter(model, method, 9.0, 1_000), method.rule(1_000, 2)
    for batch in (FULL, MINIBATCH, ORDER1, ORDER2):
        assert 0.0 < cost(meter, rule, batch, Bounds(0.0, 0.0, 0.0)) < 1e-12
    assert cost(meter, rule, ORDER2, Bounds(0.0, 0.0, np.nan)) == np.inf


def test_the_meter_counts_rows_rounding_and_shift() -> None:
    method = DPFastMH(Coordinates(0.1))
    model = mh.LogisticRegression(mh.Box.unit(3))
    one, three = make_meter(model, method, 9.0, 999), make_meter(model, method, 9.0, 333, 3)
    for table in ("full", "minibatch", "expanded"):
        for meter, k in ((one, 1), (three, 3)):
            tables = getattr(meter, table)
            batch: Any = "control-variate" if table == "expanded" else table
            nothing = bit_cost(9.0, 0.0, batch=batch, rows_per_unit=k, shift=k * CELLS)
            # a move that changes nothing still rounds
            assert tables.offset**2 == pytest.approx(nothing, rel=0.02, abs=0.0)
            assert look_up(tables, 0.05, 0.0) >= bit_cost(9.0, 0.05, batch=batch, rows_per_unit=k)
    assert (one.reach, three.reach) == (8.0, 8.0 / 3.0)
    assert one.widening >= 4 * 999 * (1100 + 16 * 4) * 2.0**-52
    assert three.widening > one.widening


def test_private_numbers_of_rows_cost_more_rounding() -> None:
    """Every other row is picked with a probability off by 2n·2⁻⁶⁴ at most, and n is another number beside a neighbour.

    A row enters at most 2b times in the mean, with weights whose exponential is at most 2: both tables together move
    the log-ratio by up to 2·n·2b·2n·2⁻⁶⁴, of which S ≥ 2b pays a share of 4n²·2⁻⁶⁴.
    """
    for rows in (1e4, 1e7, 1e9):
        extra = widening(3, int(rows), 2) - widening(3, int(rows))
        assert extra == pytest.approx(4 * rows**2 * 2.0**-64, rel=1e-6)
    assert widening(3, 10**7) == widening(3, 10**7, 1)


def test_rates_and_coins_that_cannot_be_charged_for_are_refused() -> None:
    model = mh.LogisticRegression(mh.Box.unit(3))
    assert make_meter(model, DPFastMH(Coordinates(0.1), laziness=1e-6), 9.0, 100).active
    for method in (DPFastMH(Coordinates(0.1), laziness=1e-300), DPFastMHFull(Coordinates(0.1), laziness=9e-7)):
        with pytest.raises(ValueError, match="laziness is"):
            make_meter(model, method, 9.0, 100)
    with pytest.raises(ValueError, match="ratio is 1e-09"):
        make_meter(model, DPFastMH(Coordinates(0.1), ratio=1e-9), 9.0, 100)
