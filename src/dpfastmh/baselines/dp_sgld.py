# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
"""DP-SGLD: stochastic gradient Langevin dynamics, whose own noise gives privacy (Li, Chen, Liu & Carin 2019).

    θ ← θ − η(∇(−log prior)(θ) + Σ_{i in batch} ḡ_i(θ)/q) + N(0, v I),    v = max(2η, (η z clip/q)²)

Every record enters the batch with probability q, by itself; ḡ_i is its gradient clipped to norm ``clip``. The step
releases Σ ḡ_i with noise of z·clip or more. Langevin noise alone, v = 2η, suffices up to η = 2(q/(z clip))², the step
taken unless another is given; a longer step needs more noise and samples at a higher temperature.

**Biased**: discretisation, minibatch noise and clipping all change the law that is sampled; there is no acceptance.
Bounded parameters are kept in their box by reflection.

**Cost**: T steps of the Poisson-sampled Gaussian, a record *replaced*: ``sampled_gaussian_replaced_rdp(q, z)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

from numba import njit

from dpfastmh.baselines.common import Baseline, BaselineSampler, editions, positive, public_constant, whole
from dpfastmh.baselines.composition import WHOLE_ORDERS, epsilon_of, least_noise, sampled_gaussian_replaced_rdp
from dpfastmh.baselines.gradient import add_clipped_gradient, add_prior_gradient
from dpfastmh.budget import Budget
from dpfastmh.methods import MethodError
from dpfastmh.models import Energy, Model
from dpfastmh.steps.chain import EVALUATED, STEPS, TOUCHED
from dpfastmh.steps.elementary import compiled
from dpfastmh.steps.likelihood import Rows
from dpfastmh.steps.memory import borrow, uniform


class LangevinRule(NamedTuple):
    """Public."""

    rate: float  # q
    clip: float
    step: float  # η
    sd: float  # √v


@compiled
def reflected(value, low, high):
    """The point of [low, high] that ``value`` falls on when the line is folded at both ends."""
    width = high - low
    at = (value - low) % (2.0 * width)
    return low + (at if at <= width else 2.0 * width - at)


def _build(cache: bool, stamp: int) -> Any:
    @njit(cache=cache, nogil=True, error_model="numpy")
    def advance(
        model, rows, rule, proposal, prior, reference, place, memory, work, scratch, streams, steps, thin, draws
    ):
        stamp  # noqa: B018
        model, rows, rule, proposal = borrow(model), borrow(rows), borrow(rule), borrow(proposal)
        prior, reference, place, memory = borrow(prior), borrow(reference), borrow(place), borrow(memory)
        work, streams, draws = borrow(work), borrow(streams), borrow(draws)
        gradient, size = place.delta, rows.x.shape[0]
        for step in range(steps):
            gradient[:] = 0.0
            i, count = -1, 0
            while True:  # Bernoulli(q) for every record: the gaps between those drawn are geometric
                if rule.rate < 1.0:
                    gap = math.log(1.0 - uniform(streams.rows)) / math.log1p(-rule.rate)
                    i += 1 + int(min(gap, float(size)))
                else:
                    i += 1
                if i >= size:
                    break
                add_clipped_gradient(model, rows, work, i, place.theta, rule.clip, gradient)
                count += 1
            for j in range(gradient.size):
                gradient[j] /= rule.rate
            add_prior_gradient(prior, place.theta, gradient)
            for j in range(gradient.size):
                noise = rule.sd * streams.acceptance.standard_normal()
                place.theta[j] += noise - rule.step * gradient[j]
                if proposal.low.size > 0:
                    place.theta[j] = reflected(place.theta[j], proposal.low[j], proposal.high[j])
            memory.integers[STEPS] += 1
            memory.integers[EVALUATED] += 1
            memory.integers[TOUCHED] += count
            memory.tried[0] += 1
            memory.accepted[0] += 1
            if (step + 1) % thin == 0:
                for j in range(place.theta.size):
                    draws[(step + 1) // thin - 1, j] = place.theta[j]

    return advance


LOOP = editions(_build)


@dataclass(frozen=True, kw_only=True)
class DPSGLD(Baseline):
    """``batch`` is the expected size qN, ``noise`` the multiplier z; ``clip`` the public gradient bound unless given.

    ``step`` is η, the longest that Langevin noise alone pays for unless given.
    """

    batch: float
    noise: float
    clip: float | None = None
    step: float | None = None
    name: ClassVar[str] = "dp-sgld"
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("batch", self.batch)
        positive("noise", self.noise)
        for name in ("clip", "step"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))

    @property
    def exact(self) -> bool:
        return False

    def rule(self, model: Model, size: int) -> LangevinRule:
        rate = self._rate(size)
        clip = float(public_constant(model) if self.clip is None else self.clip)
        step = 2.0 * (rate / (self.noise * clip)) ** 2 if self.step is None else float(self.step)
        return LangevinRule(rate, clip, step, max(math.sqrt(2.0 * step), step * self.noise * clip / rate))

    def _rate(self, size: int) -> float:
        if self.batch > size:
            raise MethodError(f"batch={self.batch:g} is more than the {size} rows")
        return float(self.batch) / size

    def bind(self, model: Model, rows: Rows, proposal: Any, streams: Any) -> BaselineSampler:
        if isinstance(model, Energy):
            raise MethodError(f"{self.name} needs gradients, which an Energy does not give: use a model that has them")
        return BaselineSampler(model, rows, self.rule(model, rows.x.shape[0]), LOOP, proposal, streams)

    def total_epsilon(self, steps: int, delta: float, *, size: int) -> float:
        whole("steps", steps)
        curve = sampled_gaussian_replaced_rdp(self._rate(size), float(self.noise))
        return epsilon_of(curve, steps, delta, orders=WHOLE_ORDERS)

    def within(self, budget: Budget, steps: int, *, size: int) -> Self:
        def cost(noise: float) -> float:
            return replace(self, noise=noise).total_epsilon(steps, budget.delta, size=size)

        return replace(self, noise=least_noise(cost, budget, low=0.1, high=1e6))
