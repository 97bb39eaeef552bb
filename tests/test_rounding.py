"""Where rounding could pass what a step is charged for, the loop takes another batch: ``charged_for``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

import dpfastmh as mh
from dpfastmh.methods import Coordinates, DPFastMH, Method, RandomWalk, Sampler
from dpfastmh.privacy.boundary import make_meter
from dpfastmh.steps.chain import FULL, MINIBATCH, ORDER2, choose_batch
from dpfastmh.steps.likelihood import bounds, charged_for

RNG = np.random.default_rng(61)


@njit(error_model="numpy")
def ask(model, rule, place, memory, coordinate, reference):  # type: ignore[no-untyped-def]
    limit = bounds(model, place, coordinate, reference)
    energies, curvature = charged_for(model, place, memory, coordinate)
    return energies, curvature, choose_batch(rule, limit, energies, curvature), choose_batch(rule, limit)


def sampler(model: mh.GLM, method: Method, rows: int = 50) -> Sampler:
    d = len(model.domain) - 1
    x, y = RNG.uniform(-1, 1, (rows, d)), RNG.integers(0, 2, rows)
    meter = make_meter(model, method, 9.0, rows)
    return method.on(model, x, y, reference=np.zeros(d + 1), seed=1, meter=meter)


def asked(found: Sampler, theta: np.ndarray, delta: np.ndarray) -> tuple[bool, bool, int, int]:
    state = found.init(theta)
    place, memory = state.place, state.memory
    place.delta[:] = delta
    place.proposal[:] = theta + delta
    place.offset_next[:] = place.offset + delta
    moved = np.flatnonzero(delta)
    coordinate = int(moved[0]) if moved.size == 1 else -1
    answer: Any = ask(found._table, found.rule, place, memory, coordinate, found._reference)
    return answer


def test_curvature_is_used_only_near_the_reference() -> None:
    """On a box, for the logistic loss: Σ|θ − θ̂|, the move included, up to 4; for joint moves p + 1 times less."""
    model = mh.LogisticRegression(mh.Box.unit(3))
    one = sampler(model, DPFastMH(Coordinates(0.1)))
    joint = sampler(model, DPFastMH(RandomWalk(0.1)))
    step = np.array([0.0, 0.1, 0.0, 0.0])
    every = np.full(4, 0.025)
    for distance, alone, together in (
        (0.5, True, True),
        (0.69, True, True),
        (0.71, True, False),
        (3.89, True, False),
        (3.91, False, False),
        (50.0, False, False),
    ):
        theta = distance * np.array([0.5, 0.0, 0.25, -0.25])
        assert asked(one, theta, step)[1] is alone
        assert asked(joint, theta, every)[1] is together


def test_what_is_not_charged_for_is_not_used() -> None:
    model = mh.LogisticRegression(mh.Box.unit(3))
    near, far = np.full(4, 0.1), np.array([3.0, 0.0, 3.0, 0.0])
    step = np.array([0.0, 1e-3, 0.0, 0.0])
    found = sampler(model, DPFastMH(Coordinates(0.1)), rows=5_000)
    assert asked(found, near, step)[2:] == (ORDER2, ORDER2)
    held = found.rule._replace(allowed=np.array([True, True, False, True]))
    found.rule = held
    assert asked(found, far, step)[2] in (FULL, MINIBATCH)
    found.rule = held._replace(allowed=np.array([False, False, False, True]))
    assert asked(found, far, step)[2:] == (-1, ORDER2)


def test_the_farthest_point_counts_until_the_curvature_is_fresh() -> None:
    """Out and back within one stretch of increments: H(θ − θ̂) carries the rounding of the far point with it."""
    model = mh.LogisticRegression(mh.Box.unit(1), prior=mh.Flat())
    found = sampler(model, DPFastMH(Coordinates(0.1)))
    state = found.init(np.zeros(2))
    state.memory.farthest[0] = 30.0
    place, memory = state.place, state.memory
    place.delta[:] = place.proposal[:] = place.offset_next[:] = [0.1, 0.0]
    assert ask(found._table, found.rule, place, memory, 0, found._reference)[1] is False
    fresh = found.init(np.zeros(2))
    fresh.place.delta[:] = fresh.place.proposal[:] = fresh.place.offset_next[:] = [0.1, 0.0]
    assert ask(found._table, found.rule, fresh.place, fresh.memory, 0, found._reference)[1] is True


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        (mh.LogisticRegression(mh.Box.unit(1)), 2.0**16),
        (mh.StudentTRegression(mh.Box.unit(1), scale=0.25), 2.0**14),
        (mh.PoissonRegression(mh.Box.unit(1), cap=64), 2.0**10),
    ],
    ids=["logistic", "student-t", "poisson"],
)
def test_energies_are_used_only_where_their_digits_suffice(model: mh.GLM, limit: float) -> None:
    found = sampler(model, DPFastMH(Coordinates(0.1)))
    for share, known in ((0.99, True), (1.01, False)):
        assert asked(found, np.array([share * limit, 0.0]), np.array([1e-4, 0.0]))[0] is known
    # and there they do: beside an energy of 2¹⁷ one cell of 2⁻³³ is still above half a unit in the last place
    assert 2.0**17 * 2.0**-53 <= 2.0**-34
