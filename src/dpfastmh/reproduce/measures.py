"""How far draws are from the posterior they are meant to come from.

**W1** is the sliced Wasserstein-1 distance: the mean over 32 evenly spread directions of the area between the two
distribution functions of the projected draws. For parameters of more than two dimensions it is not used.

**Symmetric KL** is the paper's: histograms with 100 edges on each axis over the range of the reference's draws, empty
cells counted as 1e-13, the mean of both directions. It mostly counts filled cells, so that even independent exact
draws score far from 0 unless there are many: read it beside ``kl_floor`` of the same number of draws.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

DIRECTIONS = 32
LEVELS = (np.arange(2000) + 0.5) / 2000
EDGES = 100
EMPTY = 1e-13


class Reference:
    """Independent draws from the truth in the plane, and distances of other draws from them."""

    def __init__(self, draws: FloatArray, others: FloatArray) -> None:
        """``others`` are as many independent draws again: what ``kl_floor`` is measured with."""
        angle = np.pi * np.arange(DIRECTIONS) / DIRECTIONS
        self.draws, self._others = draws, others
        self._axes = np.array([np.cos(angle), np.sin(angle)])
        self._quantiles = np.quantile(draws @ self._axes, LEVELS, axis=0)
        self._edges = [np.linspace(*ends, EDGES) for ends in zip(draws.min(axis=0), draws.max(axis=0), strict=True)]
        self._cells = self._histogram(draws)
        self.mean, self.sd = draws.mean(axis=0), draws.std(axis=0)

    def w1(self, draws: FloatArray) -> float:
        found = np.quantile(draws @ self._axes, LEVELS, axis=0, method="inverted_cdf")
        return float(np.abs(found - self._quantiles).mean())

    def kl(self, draws: FloatArray) -> float:
        p, q = self._histogram(draws), self._cells
        return float(0.5 * ((p - q) * np.log(p / q)).sum())

    def kl_floor(self, count: int) -> float:
        """Median over five sets of ``count`` independent draws from the truth."""
        rng = np.random.default_rng(count)
        return float(np.median([self.kl(self._others[rng.choice(len(self._others), count)]) for _ in range(5)]))

    def w1_floor(self, count: int) -> float:
        rng = np.random.default_rng(count)
        return float(np.median([self.w1(self._others[rng.choice(len(self._others), count)]) for _ in range(5)]))

    def mean_error(self, draws: FloatArray) -> float:
        return mean_error(draws, self.mean, self.sd)

    def sd_error(self, draws: FloatArray) -> float:
        return sd_error(draws, self.sd)

    def _histogram(self, draws: FloatArray) -> FloatArray:
        counts, _, _ = np.histogram2d(draws[:, 0], draws[:, 1], bins=self._edges)
        return np.asarray(np.maximum(counts / max(counts.sum(), 1.0), EMPTY))


def mean_error(draws: FloatArray, mean: FloatArray, sd: FloatArray) -> float:
    """Root mean square error of the means, in posterior standard deviations."""
    return float(np.sqrt(np.mean(((draws.mean(axis=0) - mean) / sd) ** 2)))


def sd_error(draws: FloatArray, sd: FloatArray) -> float:
    """Root mean square of (sd of the draws)/(posterior sd) − 1."""
    return float(np.sqrt(np.mean((draws.std(axis=0) / sd - 1.0) ** 2)))


def accuracy(theta: FloatArray, x: FloatArray, y: npt.NDArray[np.int64]) -> float:
    return float(np.mean((x @ theta > 0.0) == y))


def log_loss(draws: FloatArray, x: FloatArray, y: npt.NDArray[np.int64], most: int = 400) -> float:
    """−mean log of the averaged predicted probabilities of what happened, from up to ``most`` evenly spaced draws."""
    from scipy.special import expit

    some = draws[np.unique(np.linspace(0, len(draws) - 1, most).astype(int))]
    chance = expit(x @ some.T).mean(axis=1)
    return float(-np.mean(np.log(np.clip(np.where(y == 1, chance, 1.0 - chance), 1e-12, None))))
