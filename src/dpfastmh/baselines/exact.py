# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
"""Exact posterior sampling on a finite parameter set (Dimitrakakis, Wang & Foulds): no chain, a draw at a price.

A draw θ ~ π ∝ prior·exp(−Σ U_i) is ε-private with ε = 2·sup b(θ, θ′), the supremum over pairs of grid points: replacing
record n by n′ multiplies the weights by e^{−D(θ)}, D = U_n′ − U_n, so that π(θ)/π′(θ) is e^{D(θ)} over a mean of e^{D},
at most exp(sup |D(θ) − D(θ′)|) ≤ exp(2 sup b). m draws cost mε. What a random walk pays step by step for *small* moves
this pays at once for the widest; it is a reference, exact where it can be computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numba import njit

from dpfastmh import randomness
from dpfastmh.baselines.common import FloatArray, editions
from dpfastmh.methods import MethodError
from dpfastmh.models import Energy, Model
from dpfastmh.priors import log_prior_change
from dpfastmh.steps.chain import ENERGY_CELL
from dpfastmh.steps.likelihood import Place, Rows, bounds, locate
from dpfastmh.steps.reference import no_reference, total_energy

MOST_POINTS = 5000


def _build_widest(cache: bool, stamp: int) -> Any:
    @njit(cache=cache, nogil=True, error_model="numpy")
    def widest(model, place, reference, grid):
        """The largest bound over pairs of points."""
        stamp  # noqa: B018
        largest = 0.0
        for i in range(grid.shape[0]):
            place.theta[:] = grid[i]
            locate(model, place)
            for k in range(i):
                place.proposal[:] = grid[k]
                place.delta[:] = place.proposal - place.theta
                largest = max(largest, bounds(model, place, -1, reference).first)
        return largest

    return widest


WIDEST = editions(_build_widest)


@dataclass(frozen=True)
class ExactPosterior:
    """Draws from the posterior restricted to the rows of ``grid``."""

    grid: npt.ArrayLike
    name: ClassVar[str] = "exact"

    def points(self, model: Model) -> FloatArray:
        found = np.ascontiguousarray(self.grid, dtype=np.float64)
        p = len(model.parameters)
        if found.ndim != 2 or found.shape[1] != p or not 2 <= found.shape[0] <= MOST_POINTS:
            raise MethodError(f"the grid has shape {found.shape}: give 2 to {MOST_POINTS} rows of {p} numbers")
        if not np.isfinite(found).all():
            raise MethodError("the grid has entries that are not finite")
        if model.parameter_box is not None and not (
            (found >= model.parameter_box[0]).all() and (found <= model.parameter_box[1]).all()
        ):
            raise MethodError("the grid reaches beyond the parameter box, where the model's bound does not hold")
        return found

    def epsilon(self, model: Model, draws: int = 1) -> float:
        """Pure ε of ``draws`` draws: public."""
        points, p = self.points(model), len(model.parameters)
        theta, proposal, delta, offset, following = np.zeros((5, p))
        place = Place(theta, proposal, delta, offset, following, np.zeros(4))
        widest = WIDEST.shipped if model.shipped else WIDEST.own
        return 2.0 * draws * float(widest(model.table(), place, no_reference(p), points))

    def probabilities(self, model: Model, x: Any, y: Any = None) -> FloatArray:
        """PRIVATE. π on the grid."""
        if isinstance(model, Energy):
            raise MethodError("exact sampling needs energies, and an Energy gives differences only")
        points, rows = self.points(model), x if isinstance(x, Rows) else model.load(x, y)
        energy = np.array([ENERGY_CELL * float(total_energy(model, rows, point)) for point in points])
        prior = model.prior_table
        log_weight = np.array([log_prior_change(prior, points[0], point) for point in points]) - (energy - energy.min())
        weight = np.exp(log_weight - log_weight.max())
        return np.asarray(weight / weight.sum())

    def draw(self, model: Model, x: Any, y: Any = None, *, draws: int = 1, seed: int | None = None) -> FloatArray:
        """``draws`` independent draws, an array (draw, parameter)."""
        cumulative = np.cumsum(self.probabilities(model, x, y))
        streams = randomness.secure_streams() if seed is None else randomness.insecure_streams(seed)
        found = np.searchsorted(cumulative, streams.acceptance.random(draws) * cumulative[-1], side="right")
        return np.asarray(self.points(model)[np.minimum(found, cumulative.size - 1)])
