# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
"""The penalty method: Metropolis on a log-ratio with Gaussian noise, exact all the same.

With ξ ~ N(0, v), v symmetric in (θ, θ′) and free of the data, accept with min(1, e^{ℓ + ξ − v/2}). The mean of this
chance is g(ℓ) = Φ((ℓ − v/2)/√v) + e^ℓ Φ(−(ℓ + v/2)/√v), and g(ℓ) = e^ℓ g(−ℓ): detailed balance holds
(Ceperley & Dewing 1999).

**Private** (Yıldırım & Ermiş 2019): one record moves ℓ by at most Δ = 2b, b the public bound of the move, and v = σ²Δ².
The accept bit is a function of ℓ + ξ, a Gaussian release with noise of σ sensitivities, whatever the move: T steps
together have ρ = T/(2σ²) exactly as Gaussian mechanisms do. Per step the literature chooses σ = √(2 log(1.25/δ))/ε.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numba import njit

from dpfastmh.baselines.common import (
    Baseline,
    BaselineSampler,
    RandomWalkBaseline,
    editions,
    noisy_metropolis,
    positive,
)
from dpfastmh.baselines.composition import classic_sigma, gaussian_epsilon, gaussian_rho, gaussian_sigma_for
from dpfastmh.budget import Budget
from dpfastmh.models import Model
from dpfastmh.priors import log_prior_change
from dpfastmh.steps.chain import EVALUATED, FULL, FULLS, STEPS, _keep_move, draw_move, full_ratio, inside
from dpfastmh.steps.likelihood import Rows, bounds
from dpfastmh.steps.memory import borrow, uniform


class PenaltyRule(NamedTuple):
    """Public: the variance of the noise is ``variance`` + (sigma·2b)²; one of the two is 0."""

    variance: float
    sigma: float


def _build(cache: bool, stamp: int) -> Any:
    @njit(cache=cache, nogil=True, error_model="numpy")
    def advance(
        model, rows, rule, proposal, prior, reference, place, memory, work, scratch, streams, steps, thin, draws
    ):
        stamp  # noqa: B018
        model, rows, rule, proposal = borrow(model), borrow(rows), borrow(rule), borrow(proposal)
        prior, reference, place, memory = borrow(prior), borrow(reference), borrow(place), borrow(memory)
        work, streams, draws = borrow(work), borrow(streams), borrow(draws)
        for step in range(steps):
            draw_move(proposal, streams.proposals, memory.normal, place)
            memory.integers[STEPS] += 1
            memory.tried[0] += 1
            if inside(proposal, place, -1):
                bound = bounds(model, place, -1, reference).first
                if bound < np.inf:
                    memory.integers[EVALUATED] += 1
                    memory.integers[FULLS] += 1
                    ratio, following = full_ratio(rows, model, work, place, memory, bound)
                    ratio += log_prior_change(prior, place.theta, place.proposal)
                    variance = rule.variance + (2.0 * rule.sigma * bound) ** 2
                    if uniform(streams.acceptance) < noisy_metropolis(ratio - 0.5 * variance, variance):
                        memory.accepted[0] += 1
                        _keep_move(model, reference, place, memory, -1, -1, FULL, following)
            if (step + 1) % thin == 0:
                for j in range(place.theta.size):
                    draws[(step + 1) // thin - 1, j] = place.theta[j]

    return advance


LOOP = editions(_build)


@dataclass(frozen=True, kw_only=True)
class Penalty(RandomWalkBaseline):
    """Noise of a ``variance`` that the user chooses; no privacy claim."""

    variance: float
    name: ClassVar[str] = "penalty"

    def __post_init__(self) -> None:
        positive("variance", self.variance)

    def bind(self, model: Model, rows: Rows, proposal: Any, streams: Any) -> BaselineSampler:
        return _sampler(self, PenaltyRule(float(self.variance), 0.0), model, rows, proposal, streams)


@dataclass(frozen=True, kw_only=True)
class DPPenalty(RandomWalkBaseline):
    """Noise of ``sigma`` sensitivities of each move."""

    sigma: float
    name: ClassVar[str] = "dp-penalty"
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)

    @classmethod
    def per_step(cls, proposal: Any, epsilon: float, delta: float) -> Self:
        """As published: every step the classical Gaussian mechanism of (ε, δ)."""
        return cls(proposal, sigma=classic_sigma(epsilon, delta))

    def bind(self, model: Model, rows: Rows, proposal: Any, streams: Any) -> BaselineSampler:
        return _sampler(self, PenaltyRule(0.0, float(self.sigma)), model, rows, proposal, streams)

    def total_epsilon(self, steps: int, delta: float, *, size: int) -> float:
        return gaussian_epsilon(gaussian_rho(self.sigma, steps), delta)

    def within(self, budget: Budget, steps: int, *, size: int) -> Self:
        return replace(self, sigma=gaussian_sigma_for(budget, steps))


def _sampler(
    method: Baseline, rule: PenaltyRule, model: Model, rows: Rows, proposal: Any, streams: Any
) -> BaselineSampler:
    return BaselineSampler(model, rows, rule, LOOP, proposal, streams)
