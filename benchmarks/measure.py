"""What every benchmark needs: rows of results, timing on a shared machine, test data, effective sample sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from arviz_stats.base import array_stats

from dpfastmh.domain import Box
from dpfastmh.models import GLM, LogisticRegression
from dpfastmh.steps.likelihood import Rows

FloatArray = npt.NDArray[np.float64]
CHUNK = 1 << 18
T = TypeVar("T")


class Row(NamedTuple):
    """One line of the table. Without a target it is there for information."""

    part: str
    what: str
    figure: float
    unit: str
    target: str = ""  # "<= 1.5" or ">= 20000"
    note: str = ""

    @property
    def verdict(self) -> str:
        if not self.target:
            return ""
        sign, limit = self.target.split()
        if not math.isfinite(self.figure):
            return "MISS"
        return "ok" if (self.figure <= float(limit) if sign == "<=" else self.figure >= float(limit)) else "MISS"


def cpu_microseconds(work: Callable[[], T], steps: int) -> tuple[float, T]:
    """The result, and the time of this thread on a processor per step: what others run meanwhile is left out."""
    start = time.thread_time()
    result = work()
    return (time.thread_time() - start) / steps * 1e6, result


def wall_seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(jobs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Every job once, then every job again: a change in the machine's load meets them all."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            found[name].append(job())
    return found


def spread(values: list[float]) -> str:
    return f"{median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"


def logistic_data(n: int, d: int, seed: int = 1) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], FloatArray]:
    """Rows uniform on [−1, 1]^d, y from logistic regression with coefficients from −½ to ½; made in chunks, float32."""
    rng = np.random.default_rng(seed)
    theta = np.linspace(-0.5, 0.5, d)
    x, y = np.empty((n, d), np.float32), np.empty(n, np.float32)
    for start in range(0, n, CHUNK):
        part = x[start : start + CHUNK]
        rng.random(out=part, dtype=np.float32)
        part *= 2.0
        part -= 1.0
        chance = 1.0 / (1.0 + np.exp(-(part @ theta.astype(np.float32))))
        y[start : start + CHUNK] = rng.random(len(part), dtype=np.float32) < chance
    return x, y, theta


def logistic_problem(n: int, d: int) -> tuple[GLM, Rows, FloatArray]:
    """Logistic regression with a Normal(0, 2.5) prior on such rows."""
    x, y, theta = logistic_data(n, d)
    model = LogisticRegression(Box.unit(d), intercept=False)
    return model, model.load(x, y), theta


def small_move(theta: FloatArray, n: int, batch: int) -> tuple[float, float]:
    """(scale, λ) with N·E[b] = λ = batch/2 near ``theta``, b = σ(Σ|θ_j|)·Σ|δ_j| and E|δ_j| = scale·√(2/π)."""
    half = 0.5 * batch
    reach = 1.0 / (1.0 + math.exp(-float(np.abs(theta).sum())))
    return half / (n * reach * theta.size * math.sqrt(2.0 / math.pi)), half


def effective_draws(chains: FloatArray) -> float:
    """Smallest bulk effective sample size over the parameters of draws (chain, draw, parameter)."""
    return min(float(array_stats.ess(chains[..., j])) for j in range(chains.shape[-1]))
