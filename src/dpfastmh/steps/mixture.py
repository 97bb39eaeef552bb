"""The paper's Gaussian mixture, compiled. The model and the proofs of its bounds are in ``dpfastmh.models.Mixture``."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpfastmh.steps.elementary import softplus, softplus_change
from dpfastmh.steps.likelihood import (
    Bounds,
    bounds,
    changes,
    charged_for,
    energies,
    gather,
    gather_reference,
    locate,
    padded,
    remainders,
)


class MixtureTable(NamedTuple):
    variance: float
    half_width: float
    sharp: bool
    lipschitz: float
    inverse_temperature: float


@gather.of(MixtureTable)
def _gather(model, rows, work, start, stop, place, coordinate):
    for t in range(start, stop):
        work.eta[0, t] = rows.x[work.index[t], 0]


@changes.of(MixtureTable)
def _changes(model, rows, work, n, place):
    """A(θ′) − A(θ) less the change of softplus(−D); A and D are polynomials in x, so their changes are exact."""
    first, second = place.theta[0], place.theta[1]
    d1, d2 = place.proposal[0] - first, place.proposal[1] - second
    scale = 1.0 / model.variance
    slope, level = -second * scale, second * (first + 0.5 * second) * scale
    slope_change = -d2 * scale
    level_change = (d2 * (first + d1) + second * d1 + d2 * (second + 0.5 * d2)) * scale
    for t in range(padded(n)):
        x = work.eta[0, t]
        gap = level + slope * x
        gap_change = level_change + slope_change * x
        square_change = d1 * (first - x + 0.5 * d1) * scale
        work.change[t] = (square_change - softplus_change(-gap, -gap_change)) * model.inverse_temperature


@energies.of(MixtureTable)
def _energies(model, rows, work, first, n, theta):
    centre, scale = theta[0], 1.0 / model.variance
    slope, level = -theta[1] * scale, theta[1] * (centre + 0.5 * theta[1]) * scale
    for t in range(n):
        x = float(rows.x[np.uint64(first + t), 0])  # unsigned: an index that may be negative stops vectorisation
        away = x - centre
        work.change[t] = (0.5 * away * away * scale - softplus(-(level + slope * x))) * model.inverse_temperature


@bounds.of(MixtureTable)
def _bounds(model, place, coordinate, reference):
    theta, following = place.theta, place.proposal
    d1, d2 = following[0] - theta[0], following[1] - theta[1]
    if model.sharp:
        near = max(abs(theta[0]), abs(following[0]))
        far = max(abs(theta[0] + theta[1]), abs(following[0] + following[1]))
        first = max((model.half_width + near) * abs(d1), (model.half_width + far) * abs(d1 + d2)) / model.variance
    else:
        first = model.lipschitz * math.sqrt(d1 * d1 + d2 * d2)
    return Bounds(first * model.inverse_temperature, np.inf, np.inf)


@charged_for.of(MixtureTable)
def _charged_for(model, place, coordinate):
    """Records and parameters are bounded, and so are energies: below 2¹⁶ they are known to 2⁻³³."""
    reach = model.half_width + 3.0
    largest = (0.5 * reach * reach + 3.0 * (reach + 1.5)) / model.variance
    return largest * model.inverse_temperature <= 65536.0, True, True


@locate.of(MixtureTable)
def _locate(model, place):
    pass


@gather_reference.of(MixtureTable)
def _gather_reference(model, rows, work, start, stop, place, coordinate, reference):
    pass  # no expansion: ``bounds`` is infinite for it, so the loop never asks


@remainders.of(MixtureTable)
def _remainders(model, rows, work, n, place, coordinate, reference, order):
    pass
