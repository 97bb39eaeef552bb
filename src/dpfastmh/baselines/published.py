# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
"""DP-Fast MH as published (Zhang & Zhang, ICML 2023, Algorithm 2) and its full-batch version. **Its claim fails.**

With |U_i(θ′) − U_i(θ)| ≤ c_i M, M = ‖θ′ − θ‖₂ and C = Σc_i, a step compares the batch with an upper bound K.

*Minibatch*: B ~ Poisson(λ + CM) rows drawn with probabilities c_i/C and thinned give TunaMH's log-ratio ℓ₁, whose
sensitivity is taken as Δ₁ = 2 log(1 + CM/λ). With ε′ = εC/(6K max c) and δ′ = δC/(2K max c): no noise where Δ₁ < ε′
("privacy for free"), else N(0, σ₁²Δ₁²), σ₁ = √(2 log(1.25/δ′))/ε′ = 6K max c √(2 log(2.5K max c/(δC)))/(εC).

*Full batch*: ℓ₂ with Δ₂ = 2 max c·M; no noise where Δ₂ < ε, else N(0, σ₂²Δ₂²), σ₂ = √(2 log(1.25/δ))/ε.

Accepted with min(1, e^{ℓ + ξ − σ²Δ²/2}), Metropolis. Claimed: (ε, δ) for each step.

**Where the printed text can be followed or mended**, each by a named option:

* ``correction``: "with-noise" subtracts σ²Δ²/2 where there is noise; "printed" always, which breaks detailed balance.
* ``branch``: "mean" takes the minibatch where λ + CM < K, which is exact (the authors' program does it too); "drawn"
  where the drawn B < K, as printed, which is not: B depends on the same Poisson counts as ℓ₁.
* ``record_bounds``: "private" computes c_i, C and max c from the records, as published: a leak, and Δ₁ holds C fixed;
  "public" takes the public maximum for every record.
* ``calibration``: "classic", proven for ε < 1 while the minibatch branch runs it at ε′ ≈ 4 on the authors' mixture; or
  "analytic", right at every ε.
* ``noise``, ``sensitivity``: "gaussian" and "text"; or "uniform" on [0, σΔ] and "code", 2 log(1 + 1/(λCM)), as in the
  released programs.

**Why the claim fails whatever the options.** min(1, r) protects acceptance only. Where one table has r = 1 and its
neighbour r = e^{−Δ}, *rejection* has probability 0 against 1 − e^{−Δ}, so a step without noise needs δ ≥ 1 − e^{−Δ},
at any ε: at Δ = ε = .05 that is .0488. Over T steps nothing short of δ = 1 − e^{−ΣΔ} holds. The library's own method
has Barker acceptance, whose two outcomes are both protected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numba import njit

from dpfastmh.baselines.common import (
    BaselineSampler,
    RandomWalkBaseline,
    chosen,
    editions,
    noisy_metropolis,
    positive,
    public_constant,
    record_constants,
)
from dpfastmh.baselines.composition import (
    Claim,
    advanced,
    analytic_sigma,
    basic,
    classic_sigma,
    epsilon_of,
    gaussian_epsilon,
    gaussian_rdp,
    gaussian_rho,
)
from dpfastmh.budget import Budget
from dpfastmh.data.memory import rows as put_together
from dpfastmh.methods import MethodError
from dpfastmh.models import Model
from dpfastmh.priors import log_prior_change
from dpfastmh.steps.chain import (
    EVALUATED,
    FULL,
    FULLS,
    GROUP,
    MINIBATCH,
    STEPS,
    TOUCHED,
    WEIGHT_CELL,
    _keep_move,
    _weigh,
    draw_move,
    full_ratio,
    inside,
    take_rows,
)
from dpfastmh.steps.elementary import compiled, inlined
from dpfastmh.steps.likelihood import TILE, Rows, changes, gather
from dpfastmh.steps.memory import borrow, uniform


class PublishedRule(NamedTuple):
    """Public as far as c_i are."""

    lam: float
    total: float  # C
    largest: float  # max c
    upper: float  # K; 0: always the full batch
    free1: float  # ε′: below it the minibatch ratio gets no noise
    free2: float  # ε
    sigma1: float
    sigma2: float
    always_corrected: bool
    by_drawn: bool
    uniform: bool
    inverted: bool


# -- the compiled step -----------------------------------------------------------------------------------------------
@compiled
def step_noise(rule, minibatch, length):
    """(sd of the noise, what is subtracted for it) of a move of this length."""
    if minibatch:
        ratio = rule.total * length / rule.lam
        if rule.inverted:
            ratio = 1.0 / (rule.lam * rule.total * length)
        sensitivity, free, sigma = 2.0 * math.log1p(ratio), rule.free1, rule.sigma1
    else:
        sensitivity, free, sigma = 2.0 * rule.largest * length, rule.free2, rule.sigma2
    sd = sigma * sensitivity
    noisy = not sensitivity < free
    correction = 0.5 * sd * sd if noisy or rule.always_corrected else 0.0
    return (sd if noisy else 0.0), correction


@compiled
def chance(rule, ratio, sd, correction):
    """E min(1, e^{ℓ + ξ − correction}), ξ normal or uniform on [0, sd]."""
    level = ratio - correction
    if not rule.uniform or sd == 0.0:
        return noisy_metropolis(level, sd * sd)
    if level >= 0.0:
        return 1.0
    below = min(sd, -level)
    return (math.exp(level + below) - math.exp(level) + sd - below) / sd


@inlined
def move_length(place):
    total = 0.0
    for j in range(place.delta.size):
        total += place.delta[j] * place.delta[j]
    return math.sqrt(total)


@compiled
def batch_ratio(model, rows, work, streams, place, bound, rate, count):
    """ℓ₁ from ``count`` rows already decided on, summed in two words as in ``chain.minibatch_ratio``."""
    upper, lower, done = 0, 0, 0
    while done < count:
        n = min(TILE, count - done)
        for start in range(0, n, GROUP):
            stop = min(n, start + GROUP)
            take_rows(rows, streams.rows, work, start, stop)
            gather(model, rows, work, start, stop, place, -1)
        changes(model, rows, work, n, place)
        lower += _weigh(rows, work, n, bound, rate)
        upper += lower >> 32
        lower &= 0xFFFFFFFF
        done += n
    return upper * (WEIGHT_CELL * 2.0**32) + lower * WEIGHT_CELL


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
                memory.integers[EVALUATED] += 1
                length = move_length(place)
                bound, rate = rule.largest * length, rule.lam * rule.largest / rule.total
                mean = rows.weight * (rate + bound)  # λ + CM
                count, batch, following = 0, FULL, 0
                if rule.by_drawn:
                    count = streams.counts.poisson(mean)
                    if count < rule.upper:
                        batch = MINIBATCH
                elif mean < rule.upper:
                    count, batch = streams.counts.poisson(mean), MINIBATCH
                if batch == MINIBATCH:
                    ratio = batch_ratio(model, rows, work, streams, place, bound, rate, count)
                    memory.integers[TOUCHED] += count
                else:
                    ratio, following = full_ratio(rows, model, work, place, memory, bound)
                    memory.integers[FULLS] += 1
                ratio += log_prior_change(prior, place.theta, place.proposal)
                sd, correction = step_noise(rule, batch == MINIBATCH, length)
                if uniform(streams.acceptance) < chance(rule, ratio, sd, correction):
                    memory.accepted[0] += 1
                    _keep_move(model, reference, place, memory, -1, -1, batch, following)
            if (step + 1) % thin == 0:
                for j in range(place.theta.size):
                    draws[(step + 1) // thin - 1, j] = place.theta[j]

    return advance


LOOP = editions(_build)


# -- the methods -----------------------------------------------------------------------------------------------------
OPTIONS = {
    "correction": ("with-noise", "printed"),
    "branch": ("mean", "drawn"),
    "record_bounds": ("private", "public"),
    "calibration": ("classic", "analytic"),
    "noise": ("gaussian", "uniform"),
    "sensitivity": ("text", "code"),
}
WHY = (
    "the claim protects acceptance only: a neighbour can turn a sure acceptance into a rejection with probability "
    "1 − e^−Δ, which needs a δ of that size at any ε"
)


class Constants(NamedTuple):
    """Σc_i and max c_i, with the rows weighted by them."""

    total: float
    largest: float
    rows: Rows


@dataclass(frozen=True, kw_only=True)
class PublishedFull(RandomWalkBaseline):
    """DP-Fast MH on the full batch, as published; (ε, δ) is what is claimed for each step."""

    epsilon: float
    delta: float
    correction: str = "with-noise"
    record_bounds: str = "private"
    calibration: str = "classic"
    noise: str = "gaussian"
    name: ClassVar[str] = "published-full"
    claim_holds: ClassVar[bool] = False
    why: ClassVar[str] = WHY

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        for option, choices in OPTIONS.items():
            if hasattr(self, option):
                chosen(option, getattr(self, option), choices)

    @property
    def exact(self) -> bool:
        return self.correction == "with-noise" and self.noise == "gaussian"

    def constants(self, model: Model, rows: Rows) -> Constants:
        """PRIVATE with ``record_bounds="private"``."""
        largest, size = public_constant(model), rows.x.shape[0]
        y = rows.y if rows.y.size else None
        if self.record_bounds == "public":
            return Constants(size * largest, largest, put_together(rows.x, y))
        own = record_constants(model, rows)
        weighted = put_together(rows.x, y, share=own / own.max(), per_record="alias")
        return Constants(float(own.sum()), float(own.max()), weighted)

    def rule(self, constants: Constants) -> PublishedRule:
        sigma = analytic_sigma if self.calibration == "analytic" else classic_sigma
        return PublishedRule(
            lam=1.0,
            total=constants.total,
            largest=constants.largest,
            upper=0.0,
            free1=0.0,
            free2=self.epsilon,
            sigma1=0.0,
            sigma2=sigma(self.epsilon, self.delta),
            always_corrected=self.correction == "printed",
            by_drawn=False,
            uniform=self.noise == "uniform",
            inverted=False,
        )

    def bind(self, model: Model, rows: Rows, proposal: Any, streams: Any) -> BaselineSampler:
        constants = self.constants(model, rows)
        return BaselineSampler(model, constants.rows, self.rule(constants), LOOP, proposal, streams)

    def claimed(self, steps: int, *, accounting: str = "advanced", slack: float | None = None) -> Claim:
        """What the claim would come to over ``steps`` steps, **if it held**.

        "basic"; "advanced", (√(2T log(1/δ))ε + Tε(e^ε − 1), (T+1)δ); "gaussian" and "moments", which see each step as
        the classical Gaussian mechanism of that (ε, δ) and compose it exactly or by Rényi divergence, at the same δ.
        """
        chosen("accounting", accounting, ("basic", "advanced", "gaussian", "moments"))
        if accounting == "basic":
            return basic(self.epsilon, self.delta, steps)
        if accounting == "advanced":
            return advanced(self.epsilon, self.delta, steps, slack)
        sigma = classic_sigma(self.epsilon, self.delta)
        if accounting == "gaussian":
            return Claim(gaussian_epsilon(gaussian_rho(sigma, steps), self.delta), self.delta)
        return Claim(epsilon_of(gaussian_rdp(sigma), steps, self.delta), self.delta)

    def delta_needed(self, steps: int = 1) -> float:
        """The δ that ``steps`` noiseless full-batch steps of sensitivity up to ε can need, at any ε: 1 − e^{−TΔ}."""
        return -math.expm1(-steps * self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Published(PublishedFull):
    """DP-Fast MH as published: minibatches while λ + CM < K, the full batch beyond."""

    lam: float
    upper: float
    branch: str = "mean"
    sensitivity: str = "text"
    name: ClassVar[str] = "published"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("lam", self.lam)
        positive("upper", self.upper)

    @property
    def exact(self) -> bool:
        return super().exact and self.branch == "mean"

    def rule(self, constants: Constants) -> PublishedRule:
        share = constants.total / (self.upper * constants.largest)
        epsilon, delta = self.epsilon * share / 6.0, self.delta * share / 2.0
        if not delta < 1.0:
            raise MethodError(f"upper={self.upper:g} is so small that δ′ = δC/(2K max c) is {delta:.3g}: raise it")
        sigma = analytic_sigma if self.calibration == "analytic" else classic_sigma
        return (
            super()
            .rule(constants)
            ._replace(
                lam=float(self.lam),
                upper=float(self.upper),
                free1=epsilon,
                sigma1=sigma(epsilon, delta),
                by_drawn=self.branch == "drawn",
                inverted=self.sensitivity == "code",
            )
        )


# -- the formulas of its proof ---------------------------------------------------------------------------------------
class BatchBounds(NamedTuple):
    """The three readings of the upper batch bound K."""

    text: float
    appendix: float
    released: float


def batch_bounds(epsilon: float, total: float, largest: float, released: float = 60.0) -> BatchBounds:
    """K = εC/(6 max c) in the main text, εC/max c in the appendix, and the number in the released mixture program."""
    return BatchBounds(epsilon * total / (6.0 * largest), epsilon * total / largest, released)


def draw_amplification(draws: float, chance: float, epsilon: float) -> float:
    """K log((1 − p + pe^ε)/(1 − p + pe^{−ε})): the ε of K draws, each hitting a record with probability p = max c/C.

    The proof bounds it by 6Kpε, which holds while sinh(ε) ≤ 3ε, that is ε ≤ 2.84.
    """
    return draws * (math.log1p(chance * math.expm1(epsilon)) - math.log1p(chance * math.expm1(-epsilon)))


def draw_delta(draws: float, chance: float, delta: float) -> float:
    """2Kpδ: the δ of the same K draws."""
    return 2.0 * draws * chance * delta


def thinning(change: float, bound: float, constant: float, total: float, lam: float) -> float:
    """β = (λc/C + φ)/(λc/C + b) with φ = (dU + b)/2 and b = cM: the chance that a drawn record is kept.

    It lies in [λ/(λ + CM), 1] and depends on the record itself, beside the probability c/C of being drawn.
    """
    rate = lam * constant / total
    return (rate + 0.5 * (change + bound)) / (rate + bound)


def largest_move(model: Model) -> float:
    """Assumption 2's A, sup M(θ, θ′): the diameter of the parameter box; ∞ without one."""
    if model.parameter_box is None:
        return math.inf
    low, high = model.parameter_box
    return float(np.linalg.norm(np.asarray(high) - np.asarray(low)))
