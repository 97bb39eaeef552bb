# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
"""Barker's test from a minibatch (Seita et al. 2017), and its private form (Heikkilä et al. 2019). **Approximate.**

Barker's rule accepts where ℓ + V > 0, V logistic. Estimate ℓ by ℓ̂ = −(N/n) Σ dU_i over n rows drawn without
replacement; its error is nearly normal with variance s² = (N²/n)·Var(dU). If V ≈ N(0, 2) + V_corr, then the error may
stand in for part of the normal: accept where

    ℓ̂ + N(0, 2 − s²) + V_corr > 0.

V_corr is a mirrored mixture of 2×50 normals fitted so that its sum with N(0, 2) has the logistic density on [−10, 10]
(``fit_correction``; no mixture fits exactly, the logistic law not being divisible by N(0, 2)). The chain is biased by
the error of this fit, up to .0021 in an acceptance probability, and by whatever of the batch error is not normal.

**Not private**: the batch doubles until s² is at most ``variance``; the whole data have no error.

**Private**: every dU_i is clipped to ±.99√n/N, so that s² < 1; then a step without subsampling has the Rényi cost
ε′(α) = 5/(2n) + log(2n/(n−5α))/(2(α−1)) + 2α/(n−5α), α < n/5, and is amplified at q = n/N. (Their tempering to N₀
records is the model's temperature N/N₀; their condition |log-likelihood ratio| ≤ √n/N₀ is then the one above.) Where
clipping binds, another posterior is sampled. On the whole data, with moves of public bound b ≤ B only, ℓ + N(0, 2) is
a Gaussian release of sensitivity 2B: ρ = B² a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numba import njit

from dpfastmh.baselines.common import (
    Baseline,
    BaselineSampler,
    FloatArray,
    RandomWalkBaseline,
    editions,
    positive,
    whole,
)
from dpfastmh.baselines.composition import Curve, epsilon_of, gaussian_epsilon, gaussian_rho_for, subsampled_rdp
from dpfastmh.budget import Budget
from dpfastmh.methods import MethodError
from dpfastmh.models import Model
from dpfastmh.priors import log_prior_change
from dpfastmh.steps.chain import (
    EVALUATED,
    FULL,
    FULLS,
    MINIBATCH,
    STEPS,
    TOUCHED,
    _keep_move,
    draw_move,
    full_ratio,
    inside,
)
from dpfastmh.steps.elementary import compiled
from dpfastmh.steps.likelihood import TILE, Rows, bounds, changes, gather
from dpfastmh.steps.memory import borrow, pick, prefetch_row, uniform

# -- V_corr ----------------------------------------------------------------------------------------------------------
CENTRES = 0.2 * np.arange(50)  # and their mirror images
WIDTH = 0.05  # standard deviation of every component
VARIANCE = 2.0  # of the normal part
# what ``fit_correction`` returns, where it is not 0: {component: weight}
WEIGHTS = {
    0: 0.8461654639,
    12: 0.01274212366,
    13: 0.1290879728,
    25: 0.005075757538,
    26: 0.005920048838,
    37: 0.0002756005159,
    38: 0.0006439459316,
    49: 8.908686835e-05,
}


def fit_correction() -> FloatArray:
    """Weights of V_corr: Gauss-Newton on the mean squared error of the log density, each step a non-negative least
    squares problem, so that the fit does not depend on a starting point."""
    from scipy.optimize import nnls

    x = np.linspace(0.0, 10.0, 501)
    heights = np.array([_mirrored_density(x, centre) for centre in CENTRES]).T / _logistic_density(x)[:, None]
    total = 1e3 * np.ones((1, CENTRES.size))  # holds Σ weights to 1
    density = np.ones(x.size)
    weights = np.zeros(CENTRES.size)
    for _ in range(20):
        rest = density * (1.0 - np.log(density))
        weights, _ = nnls(np.vstack([heights / density[:, None], total]), np.append(rest / density, 1e3))
        density = heights @ weights
    return np.asarray(weights / weights.sum())


def correction_weights() -> FloatArray:
    """The shipped weights, one for each pair of components."""
    weights = np.zeros(CENTRES.size)
    weights[list(WEIGHTS)] = list(WEIGHTS.values())
    return weights


def _mirrored_density(x: FloatArray, centre: float) -> FloatArray:
    spread = VARIANCE + WIDTH**2
    near, far = (np.exp(-((x - c) ** 2) / (2.0 * spread)) for c in (centre, -centre))
    return np.asarray((near + far) / (2.0 * math.sqrt(2.0 * math.pi * spread)))


def _logistic_density(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-x) / (1.0 + np.exp(-x)) ** 2)


def approximate_barker(ratio: FloatArray, batch_variance: float = 0.0) -> FloatArray:
    """P(ℓ̂ + N(0, 2 − s²) + V_corr > 0) given ℓ̂: at s² = 0 nearly 1/(1 + e^−ℓ)."""
    from scipy.special import ndtr

    spread = math.sqrt(VARIANCE - batch_variance + WIDTH**2)
    total = np.zeros(np.shape(ratio))
    for k, weight in WEIGHTS.items():
        total += 0.5 * weight * (ndtr((ratio + CENTRES[k]) / spread) + ndtr((ratio - CENTRES[k]) / spread))
    return total


# -- the compiled step -----------------------------------------------------------------------------------------------
class BarkerRule(NamedTuple):
    """Public."""

    batch: int  # rows to begin with; 0: the whole data
    clip: float  # every dU_i is held to ± this
    variance: float  # the batch doubles while s² is above this
    reach: float  # moves with a larger bound are never made
    cumulative: np.ndarray  # Σ weights of V_corr
    centres: np.ndarray


@compiled
def correction(rule, stream):
    """A draw of V_corr."""
    u, k = uniform(stream) * rule.cumulative[-1], 0
    while k < rule.cumulative.size - 1 and u >= rule.cumulative[k]:
        k += 1
    centre = rule.centres[k] if uniform(stream) < 0.5 else -rule.centres[k]
    return centre + WIDTH * stream.standard_normal()


@compiled
def draw_without_replacement(order, stream, first, last):
    """Positions first, ..., last−1 of a uniform permutation, continued from wherever it stands."""
    for k in range(first, last):
        other = k + pick(stream, order.size - k)
        order[k], order[other] = order[other], order[k]


@compiled
def estimate(model, rows, rule, work, order, streams, place):
    """(ℓ̂ without the prior, s², n)."""
    size, done, target = rows.x.shape[0], 0, min(rule.batch, rows.x.shape[0])
    total, squares = 0.0, 0.0
    while True:
        draw_without_replacement(order, streams.rows, done, target)
        for start in range(done, target, TILE):
            n = min(TILE, target - start)
            for t in range(n):
                work.index[t] = order[start + t]
                prefetch_row(rows.x, work.index[t])
            gather(model, rows, work, 0, n, place, -1)
            changes(model, rows, work, n, place)
            for t in range(n):
                change = min(max(work.change[t], -rule.clip), rule.clip)
                total += change
                squares += change * change
        done = target
        mean = total / done
        variance = size * (size / done) * max(squares / done - mean * mean, 0.0)
        if done == size and rule.variance < np.inf:
            variance = 0.0  # every record was read: no error
        if variance <= rule.variance:
            return -size * mean, variance, done
        target = min(2 * done, size)


def _build(cache: bool, stamp: int) -> Any:
    @njit(cache=cache, nogil=True, error_model="numpy")
    def advance(
        model, rows, rule, proposal, prior, reference, place, memory, work, scratch, streams, steps, thin, draws
    ):
        stamp  # noqa: B018
        model, rows, rule, proposal = borrow(model), borrow(rows), borrow(rule), borrow(proposal)
        prior, reference, place, memory = borrow(prior), borrow(reference), borrow(place), borrow(memory)
        work, streams, draws, order = borrow(work), borrow(streams), borrow(draws), borrow(scratch[0])
        for step in range(steps):
            draw_move(proposal, streams.proposals, memory.normal, place)
            memory.integers[STEPS] += 1
            memory.tried[0] += 1
            if inside(proposal, place, -1):
                bound = bounds(model, place, -1, reference).first
                if bound <= rule.reach:
                    memory.integers[EVALUATED] += 1
                    variance, following, batch = 0.0, 0, FULL
                    if rule.batch == 0:
                        ratio, following = full_ratio(rows, model, work, place, memory, bound)
                        memory.integers[FULLS] += 1
                    else:
                        ratio, variance, count = estimate(model, rows, rule, work, order, streams, place)
                        memory.integers[TOUCHED] += count
                        batch = MINIBATCH
                    ratio += log_prior_change(prior, place.theta, place.proposal)
                    noise = math.sqrt(max(VARIANCE - variance, 0.0)) * streams.acceptance.standard_normal()
                    if ratio + noise + correction(rule, streams.acceptance) > 0.0:
                        memory.accepted[0] += 1
                        _keep_move(model, reference, place, memory, -1, -1, batch, following)
            if (step + 1) % thin == 0:
                for j in range(place.theta.size):
                    draws[(step + 1) // thin - 1, j] = place.theta[j]

    return advance


LOOP = editions(_build)


# -- the methods -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Barker(RandomWalkBaseline):
    """The batch starts at ``batch`` rows and doubles until s² ≤ ``variance`` (below 2)."""

    batch: int = 100
    variance: float = 1.0
    name: ClassVar[str] = "barker"

    def __post_init__(self) -> None:
        whole("batch", self.batch)
        positive("variance", self.variance)
        if self.variance >= VARIANCE:
            raise MethodError(f"variance is {self.variance!r}: the batch error must leave room below {VARIANCE:g}")

    @property
    def exact(self) -> bool:
        return False

    def bind(self, model: Model, rows: Rows, proposal: Any, streams: Any) -> BaselineSampler:
        rule = _rule(batch=int(self.batch), variance=float(self.variance))
        return _sampler(self, rule, model, rows, proposal, streams)


@dataclass(frozen=True, kw_only=True)
class DPBarker(RandomWalkBaseline):
    """``batch`` rows a step with clipped differences; or, with ``reach`` B, all rows and moves of b ≤ B only."""

    batch: int | None = None
    reach: float | None = None
    name: ClassVar[str] = "dp-barker"
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.batch is None) == (self.reach is None):
            raise MethodError("give dp-barker either batch (minibatches) or reach (the whole data)")
        if self.batch is not None:
            whole("batch", self.batch)
        if self.reach is not None:
            positive("reach", self.reach)

    @property
    def exact(self) -> bool:
        return False

    def bind(self, model: Model, rows: Rows, proposal: Any, streams: Any) -> BaselineSampler:
        size = rows.x.shape[0]
        if self.batch is None:
            rule = _rule(batch=0, reach=float(self.reach or 0.0))
        else:
            if self.batch > size:
                raise MethodError(f"batch={self.batch} is more than the {size} rows")
            rule = _rule(batch=int(self.batch), clip=0.99 * math.sqrt(self.batch) / size)
        return _sampler(self, rule, model, rows, proposal, streams)

    def total_epsilon(self, steps: int, delta: float, *, size: int) -> float:
        if self.batch is None:
            return gaussian_epsilon(steps * float(self.reach or 0.0) ** 2, delta)
        curve = subsampled_rdp(barker_rdp(self.batch), self.batch / size)
        return epsilon_of(curve, steps, delta, orders=_orders(self.batch))

    def within(self, budget: Budget, steps: int, *, size: int) -> Self:
        """The largest batch, or reach, that the budget allows."""
        if self.batch is None:
            return replace(self, reach=math.sqrt(gaussian_rho_for(budget) / steps))

        def allowed(batch: int) -> bool:
            return replace(self, batch=batch).total_epsilon(steps, budget.delta, size=size) <= budget.epsilon

        # the cost falls from its pole at n = 5α and then rises with q: search the rising side from above
        candidates = sorted({round(size * 1.25**-k) for k in range(90)} - set(range(MOST_ORDERS)))
        fitting = [batch for batch in candidates if allowed(batch)]
        if not fitting:
            raise MethodError(f"no batch of dp-barker keeps to {budget} in {steps} steps: take fewer steps")
        low, high = fitting[-1], min(size + 1, math.ceil(fitting[-1] * 1.26) + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if allowed(middle) else (low, middle)
        return replace(self, batch=low)


MOST_ORDERS = 20  # batches below this leave too few orders α < n/5


def barker_rdp(batch: int) -> Curve:
    """ε′(α) = 5/(2n) + log(2n/(n−5α))/(2(α−1)) + 2α/(n−5α) of a step whose batch is not secret."""

    def curve(alpha: float) -> float:
        left = batch - 5.0 * alpha
        if left <= 0.0:
            return math.inf
        return 2.5 / batch + math.log(2.0 * batch / left) / (2.0 * (alpha - 1.0)) + 2.0 * alpha / left

    return curve


def _orders(batch: int) -> list[int]:
    return [alpha for alpha in range(2, 400) if 5 * alpha < batch][:200]


def _rule(*, batch: int, clip: float = math.inf, variance: float = math.inf, reach: float = math.inf) -> BarkerRule:
    cumulative = np.cumsum(list(WEIGHTS.values()))
    return BarkerRule(batch, clip, variance, min(reach, 1e300), cumulative, CENTRES[list(WEIGHTS)].copy())


def _sampler(
    method: Baseline, rule: BarkerRule, model: Model, rows: Rows, proposal: Any, streams: Any
) -> BaselineSampler:
    order = np.arange(rows.x.shape[0] if rule.batch else 0)
    return BaselineSampler(model, rows, rule, LOOP, proposal, streams, (order,))
