# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
"""DP-HMC: Hamiltonian Monte Carlo with noisy gradients and penalty acceptance (Räisä, Koskela & Honkela 2021). Exact.

From (θ, p), p ~ N(0, I), make L leapfrog steps of size η with the gradients

    ĝ(θ_l) = ∇(−log prior)(θ_l) + Σ_i ḡ_i(θ_l) + ξ_l,   ξ_l ~ N(0, (2 clip z)² I),   l = 0, ..., L,

and accept (θ′, p′) as the penalty method does: ratio ℓ(θ, θ′) + (‖p‖² − ‖p′‖²)/2 + N(0, v) − v/2, v = (2bσ)² with b the
public bound of the move θ → θ′.

*Exact*: with the noise fixed, leapfrog preserves volume, and started at (θ′, −p′) with ξ_L, ..., ξ_0 it returns to
(θ, −p); the noise is as likely in one order as in the other, and v is symmetric. Clipping changes where proposals go
and nothing else: ĝ may be any function of θ. A move out of the parameter box is rejected.

*Cost* of a step: L+1 gradients with noise of z sensitivities 2·clip, and one ratio with σ sensitivities 2b:
ρ = (L+1)/(2z²) + 1/(2σ²), as one Gaussian mechanism.
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
    editions,
    noisy_metropolis,
    positive,
    public_constant,
    whole,
)
from dpfastmh.baselines.composition import gaussian_epsilon, gaussian_rho, gaussian_rho_for
from dpfastmh.baselines.gradient import add_clipped_gradient, add_prior_gradient
from dpfastmh.budget import Budget
from dpfastmh.methods import MethodError
from dpfastmh.models import Energy, Model
from dpfastmh.priors import log_prior_change
from dpfastmh.steps.chain import EVALUATED, FULL, FULLS, STEPS, _keep_move, full_ratio, inside
from dpfastmh.steps.elementary import compiled
from dpfastmh.steps.likelihood import Rows, bounds
from dpfastmh.steps.memory import borrow, uniform


class HamiltonianRule(NamedTuple):
    """Public."""

    leaps: int
    step: float  # η
    clip: float
    gradient_sd: float  # 2 clip z
    sigma: float


@compiled
def noisy_gradient(model, rows, rule, prior, work, streams, theta, out):
    """ĝ(θ)."""
    out[:] = 0.0
    for i in range(rows.x.shape[0]):
        add_clipped_gradient(model, rows, work, i, theta, rule.clip, out)
    add_prior_gradient(prior, theta, out)
    for j in range(out.size):
        out[j] += rule.gradient_sd * streams.acceptance.standard_normal()


@compiled
def leapfrog(model, rows, rule, prior, work, streams, theta, momentum, gradient):
    """Moves (θ, p) along: L+1 gradients, the first and the last with half a kick."""
    for leap in range(rule.leaps + 1):
        noisy_gradient(model, rows, rule, prior, work, streams, theta, gradient)
        kick = 0.5 * rule.step if leap in (0, rule.leaps) else rule.step
        for j in range(theta.size):
            momentum[j] -= kick * gradient[j]
        if leap < rule.leaps:
            for j in range(theta.size):
                theta[j] += rule.step * momentum[j]


def _build(cache: bool, stamp: int) -> Any:
    @njit(cache=cache, nogil=True, error_model="numpy")
    def advance(
        model, rows, rule, proposal, prior, reference, place, memory, work, scratch, streams, steps, thin, draws
    ):
        stamp  # noqa: B018
        model, rows, rule, proposal = borrow(model), borrow(rows), borrow(rule), borrow(proposal)
        prior, reference, place, memory = borrow(prior), borrow(reference), borrow(place), borrow(memory)
        work, streams, draws, scratch = borrow(work), borrow(streams), borrow(draws), borrow(scratch)
        momentum, gradient = scratch
        p = place.theta.size
        for step in range(steps):
            kinetic = 0.0
            for j in range(p):
                momentum[j] = streams.proposals.standard_normal()
                kinetic += 0.5 * momentum[j] ** 2
                place.proposal[j] = place.theta[j]
            leapfrog(model, rows, rule, prior, work, streams, place.proposal, momentum, gradient)
            for j in range(p):
                kinetic -= 0.5 * momentum[j] ** 2
                place.delta[j] = place.proposal[j] - place.theta[j]
                place.offset_next[j] = place.offset[j] + place.delta[j]
            memory.integers[STEPS] += 1
            memory.integers[FULLS] += rule.leaps + 1
            memory.tried[0] += 1
            if inside(proposal, place, -1):
                bound = bounds(model, place, -1, reference).first
                if bound < np.inf:
                    memory.integers[EVALUATED] += 1
                    memory.integers[FULLS] += 1
                    ratio, following = full_ratio(rows, model, work, place, memory, bound)
                    ratio += log_prior_change(prior, place.theta, place.proposal) + kinetic
                    variance = (2.0 * rule.sigma * bound) ** 2
                    if uniform(streams.acceptance) < noisy_metropolis(ratio - 0.5 * variance, variance):
                        memory.accepted[0] += 1
                        _keep_move(model, reference, place, memory, -1, -1, FULL, following)
            if (step + 1) % thin == 0:
                for j in range(p):
                    draws[(step + 1) // thin - 1, j] = place.theta[j]

    return advance


LOOP = editions(_build)


@dataclass(frozen=True, kw_only=True)
class DPHMC(Baseline):
    """``leaps`` L leapfrog steps of size ``step``; noise multipliers z of ``gradient_noise`` and σ of the ratio.

    ``clip`` is the public gradient bound unless given.
    """

    leaps: int
    step: float
    gradient_noise: float
    sigma: float
    clip: float | None = None
    name: ClassVar[str] = "dp-hmc"
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole("leaps", self.leaps)
        for name in ("step", "gradient_noise", "sigma"):
            positive(name, getattr(self, name))
        if self.clip is not None:
            positive("clip", self.clip)

    def bind(self, model: Model, rows: Rows, proposal: Any, streams: Any) -> BaselineSampler:
        if isinstance(model, Energy):
            raise MethodError(f"{self.name} needs gradients, which an Energy does not give: use a model that has them")
        clip = float(public_constant(model) if self.clip is None else self.clip)
        noise = 2.0 * clip * self.gradient_noise
        rule = HamiltonianRule(int(self.leaps), float(self.step), clip, noise, float(self.sigma))
        p = len(model.parameters)
        return BaselineSampler(model, rows, rule, LOOP, proposal, streams, (np.zeros(p), np.zeros(p)))

    def rho(self) -> float:
        """zCDP of one step."""
        return gaussian_rho(self.gradient_noise, self.leaps + 1) + gaussian_rho(self.sigma)

    def total_epsilon(self, steps: int, delta: float, *, size: int) -> float:
        whole("steps", steps)
        return gaussian_epsilon(steps * self.rho(), delta)

    def within(self, budget: Budget, steps: int, *, size: int) -> Self:
        """Both multipliers scaled by one factor: their ratio is the user's choice."""
        factor = math.sqrt(steps * self.rho() / gaussian_rho_for(budget))
        return replace(self, gradient_noise=self.gradient_noise * factor, sigma=self.sigma * factor)
