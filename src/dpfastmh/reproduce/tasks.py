"""The two tasks of the paper, each with a reference that owes nothing to the compared chains.

*Mixture*: 50,000 draws from ½N(0, 2) + ½N(1, 2) truncated to [−3, 3], temperature 500, flat prior on the box. The
reference is computed: the log density on a grid of 121² points, splined, and sampled cell by cell.

*MNIST*: is a digit a nine or a seven? 50 scores on principal components that count as public, shortened to a ball of
public radius R = 5 (nine in ten scores are longer than 4.9: the ball nearly normalises them), in units of R; no
intercept; prior N(0, 2.5²) on each coefficient for every method; temperature 1. The reference is importance sampling
from a Student law around the mode.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh.domain import Ball
from dpfastmh.models import GLM, LogisticRegression, Mixture, Model
from dpfastmh.priors import Normal
from dpfastmh.reproduce.measures import Reference
from dpfastmh.reproduce.work import FloatArray, Numbers, Work
from dpfastmh.steps.likelihood import Rows

TARGET = 0.6  # acceptance that steps are tuned to, as in the paper
BARKER_TARGET = 0.4  # of Barker's rule, which accepts half of all moves at most, so that 60% cannot be had
DELTA = 1e-5
PER_STEP = 0.05  # the paper's ε of a step


class Run(NamedTuple):
    """A chain's draws, and what they took."""

    draws: FloatArray
    seconds: float  # of processor time, so that other work on the machine does not count
    acceptance: float
    rows: float  # read in a step, on average


def run(method: Any, model: Model, rows: Rows, start: FloatArray, steps: int, seed: int, thin: int = 1) -> Run:
    """A chain of a compared method. Its numbers are seeded so that they can be repeated."""
    sampler = method.on(model, rows, seed=seed)
    state = sampler.init(start)
    began = time.thread_time()
    _, draws, info = sampler.run(state, steps, thin=thin)
    seconds = time.thread_time() - began
    read = (info.rows + info.full_batches * rows.x.shape[0]) / max(info.steps, 1)
    return Run(draws, seconds, info.acceptance, read)


def tuned(
    make: Callable[[float], Any],
    model: Model,
    rows: Rows,
    start: FloatArray,
    first: float,
    steps: int,
    target: float = TARGET,
) -> float:
    """The step size at which ``target`` of the moves are accepted: Robbins-Monro on its logarithm, on the task's data.

    Where noise alone rejects more than that, no step size will do: the search ends at a twentieth of ``first``.
    """
    scale, position = first, start
    for turn in range(12):
        sampler = make(scale).on(model, rows, seed=1000 + turn)
        state, _, info = sampler.run(sampler.init(position), steps)
        position = state.position
        scale = float(np.clip(scale * np.exp(4.0 / (1 + turn) ** 0.7 * (info.acceptance - target)), first / 20, 8.0))
    return scale


class MixtureTask:
    """Rows, models with the library's bounds and with the published ones, and the start that all chains share.

    On the truncated data the posterior at temperature 500 is a ridge with one summit near (.37, 0): x is spread little
    wider than one component alone, so the two modes at (0, 1) and (1, −1) that all the data would have have merged.
    """

    def __init__(self, work: Work, records: int = 50_000) -> None:
        rng = np.random.default_rng(1)
        x = rng.normal(0.0, np.sqrt(2.0), 4 * records) + rng.integers(0, 2, 4 * records)
        self.x = x[np.abs(x) <= 3.0][:records]
        self.work, self.size = work, records
        self.sharp, self.published = Mixture(bound="sharp"), Mixture(bound="paper")
        self.rows = self.sharp.load(self.x)
        self.start = np.array([0.0, 1.0])

    @cached_property
    def energy(self) -> FloatArray:
        """Σ U_i on the grid."""
        from dpfastmh.steps.chain import ENERGY_CELL
        from dpfastmh.steps.reference import total_energy

        def compute() -> dict[str, FloatArray]:
            axis = self.axis
            found = [
                [ENERGY_CELL * float(total_energy(self.sharp, self.rows, np.array([a, b]))) for b in axis] for a in axis
            ]
            return {"energy": np.array(found)}

        return self.work.piece("mixture-truth", compute)["energy"]

    @property
    def axis(self) -> FloatArray:
        return np.linspace(-3.0, 3.0, 121)

    @cached_property
    def reference(self) -> Reference:
        draws = sampled_density(self.axis, self.energy, 400_000, np.random.default_rng(2))
        return Reference(draws[::2], draws[1::2])


def sampled_density(axis: FloatArray, energy: FloatArray, count: int, rng: np.random.Generator) -> FloatArray:
    """Independent draws from e^{−energy}, splined between the points of the grid ``axis`` × ``axis``."""
    from scipy.interpolate import RectBivariateSpline

    cells = 600
    width = (axis[-1] - axis[0]) / cells
    fine = axis[0] + width * (np.arange(cells) + 0.5)
    level = -RectBivariateSpline(axis, axis, energy)(fine, fine)
    density = np.exp(level - level.max())
    chosen = rng.choice(density.size, count, p=(density / density.sum()).ravel())
    corner = np.column_stack([fine[chosen // cells], fine[chosen % cells]])
    return np.asarray(corner + rng.uniform(-0.5, 0.5, (count, 2)) * width)


RADIUS = 5.0
PRIOR_SD = 2.5
TAILS = 200.0  # degrees of freedom of the law that the reference is weighted from


class DigitsTask:
    """Training rows, test images, and the posterior's mean and sd."""

    def __init__(self, work: Work) -> None:
        from dpfastmh.datasets import mnist79

        digits = mnist79()
        domain = Ball(RADIUS, list(digits.domain.features))
        self.work = work
        self.model: GLM = LogisticRegression(domain, prior=Normal(PRIOR_SD), intercept=False)
        self.x, self.y = digits.x, digits.y
        self.rows = self.model.load(digits.x, digits.y)
        self.size = self.rows.x.shape[0]
        self.test_x, self.test_y = domain.project(digits.test_x), digits.test_y
        self.origin = np.zeros(len(self.model.parameters))

    @cached_property
    def truth(self) -> Numbers:
        """mode, mean and sd of the posterior, by importance sampling around the mode."""

        def compute() -> dict[str, Any]:
            from dpfastmh.steps.reference import mode

            centre, hessian = mode(self.model, self.rows)
            rng, count = np.random.default_rng(3), self.work.pick(2_000, 20_000)
            root = np.linalg.cholesky(np.linalg.inv(hessian))
            normal = rng.normal(size=(count, centre.size)) * np.sqrt(TAILS / rng.chisquare(TAILS, (count, 1)))
            draws = centre + normal @ root.T
            level = 0.5 * (TAILS + centre.size) * np.log1p((normal**2).sum(axis=1) / TAILS)
            for part in np.array_split(np.arange(count), max(1, count // 250)):
                level[part] += self._log_density(draws[part])
            weight = np.exp(level - level.max())
            weight /= weight.sum()
            mean = weight @ draws
            spread = np.sqrt(weight @ (draws - mean) ** 2)
            return {"mode": centre, "mean": mean, "sd": spread, "effective": 1.0 / (weight**2).sum()}

        return self.work.piece("mnist-truth", compute)

    def _log_density(self, draws: FloatArray) -> FloatArray:
        x = np.asarray(self.rows.x, dtype=np.float64)
        eta = x @ draws.T
        found = np.where(self.y == 1, 1.0, 0.0) @ eta - np.logaddexp(0.0, eta).sum(axis=0)
        return np.asarray(found - 0.5 * (draws**2).sum(axis=1) / PRIOR_SD**2)

    def accuracy(self, theta: npt.NDArray[np.float64]) -> float:
        from dpfastmh.reproduce.measures import accuracy

        return accuracy(theta, self.test_x, self.test_y)
