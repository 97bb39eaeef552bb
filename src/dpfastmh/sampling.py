"""Private sampling: a noisy Newton start, a chain that runs until its share of the budget is spent, and what it yields.

Everything in this file is on the public side: it sees a model, public numbers, and what ``PrivateRecords`` releases.

**What a step costs, and what it buys.** For small moves of one coordinate j with standard deviation s_j, Barker
acceptance and laziness κ, a step costs ρ = 2J(κ)·E[b²] with b = L1 β_j |δ_j|/τ, and the chain is a diffusion with the
mobility matrix M = diag(m), m_j ∝ s_j². The error covariance of its time averages is ∝ Σ M⁻¹ Σ, Σ the posterior
covariance, so that with D = diag(Σ) and W = Σ D⁻¹ Σ

    (sum of squared errors in posterior sd) × (ρ spent)  ∝  (Σ_j m_j β_j²)·(Σ_j W_jj/m_j),

least at m_j ∝ √W_jj/β_j, where it is (Σ_j β_j √W_jj)². No other directions do better on a box: the best mobility puts
its weight where vᵀM⁻¹WM⁻¹v/s(v)² is largest, a convex function over the ball of s, whose corners are the coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfastmh import __version__, losses
from dpfastmh.budget import Budget, epsilon_from_rdp
from dpfastmh.methods import Coordinates, DPFastMH, Method
from dpfastmh.models import GLM, Model
from dpfastmh.posterior import Posterior, Privacy
from dpfastmh.priors import energy_derivatives
from dpfastmh.privacy.boundary import PrivateRecords, PrivateSteps, Released
from dpfastmh.privacy.filter import RenyiFilter, Share
from dpfastmh.privacy.releases import newton_direction

FloatArray = npt.NDArray[np.float64]


class BudgetTooSmall(ValueError):
    """The budget cannot buy what was asked. One line, with the temperature, ε or number of units at which it would."""


# -- what a Barker chain yields --------------------------------------------------------------------------------------
# Effective draws per evaluated step of a random walk on N(0, 1) with Barker acceptance, by its scale in sd; computed
# from the transition operator on a fine grid (tests repeat it). ESS/step → scale²/8 for small scales.
SCALES = np.array([0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.3, 1.6, 2.0])
YIELD = np.array([0.00125, 0.0049, 0.0107, 0.0272, 0.0478, 0.0801, 0.1082, 0.1289, 0.1445])


def lazy_price(laziness: float) -> float:
    """J(κ) = sup over σ of κσ(1−σ)²/(1−κσ), at σ = 2/(3 + √(9 − 8κ)): ρ of a small step is 2J b²."""
    s = 2.0 / (3.0 + math.sqrt(9.0 - 8.0 * laziness))
    return laziness * s * (1.0 - s) ** 2 / (1.0 - laziness * s)


@dataclass(frozen=True)
class Settings:
    """The planner's choices; every one may be set by hand in ``sample``."""

    warm_share: float = 0.25  # of the budget, for the start
    hessian_share: float = 0.35  # of the start's budget
    gradient_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 2.0, 4.0, 4.0)  # one Newton step each
    hessian_rounds: tuple[int, ...] = (0, 1, 2)
    laziness: float | None = None
    scale: float | None = None  # of a move, in conditional standard deviations
    dispersion: float = 0.3  # of the chains' starts, in posterior standard deviations
    thrift: float = 0.1


@dataclass(frozen=True)
class Start:
    """PUBLIC. What the warm start released: a point, a precision matrix, and how far off they may be."""

    point: FloatArray
    precision: FloatArray
    error: FloatArray  # standard deviation of the point's error, in posterior sd

    @property
    def covariance(self) -> FloatArray:
        return np.asarray(np.linalg.inv(self.precision))


def warm_start(records: PrivateRecords, account: Share, settings: Settings) -> Start:
    """Noisy Newton steps from the prior's centre, all charged to ``account``.

    Each round releases G at the current point; some release H too. Near the mode every round's θ_t − P⁻¹(G_t + prior)
    estimates the mode with an error of P⁻¹·noise, so the last rounds are averaged with weights ∝ their ρ.
    """
    model = records.model
    assert isinstance(model, GLM)
    prior = model.prior_table
    p = len(model.parameters)
    rho = account.left / account.alpha * (1.0 - 1e-9)
    weights = np.array(settings.gradient_weights)
    gradient_rho = rho * (1.0 - settings.hessian_share) * weights / weights.sum()
    hessian_rho = rho * settings.hessian_share / len(settings.hessian_rounds)
    point, precision = np.zeros(p), np.eye(p)
    estimates, trust = [], []
    for round_number in range(len(settings.gradient_weights)):
        slope, curvature = energy_derivatives(prior, point)
        if round_number in settings.hessian_rounds:
            hessian, spread = records.noisy_hessian(point, hessian_rho, account)
            # noise has eigenvalues up to about √(2p)·sd: raise what lies below its scale
            precision = _floored(hessian, 0.5 * spread * math.sqrt(2.0 * p))
        whole = precision + np.diag(curvature)
        gradient, noise = records.noisy_gradient(point, gradient_rho[round_number], account)
        cap = 4.0 * math.sqrt(p)
        move = newton_direction(gradient + slope, whole, 1e-9 * float(np.trace(whole)) / p, cap)
        estimates.append(point + move)
        trust.append(gradient_rho[round_number])
        point = point + move
    last = max(settings.hessian_rounds) + 1
    kept = np.array(trust[last:])
    point = np.average(np.array(estimates[last:]), axis=0, weights=kept)
    whole = precision + np.diag(energy_derivatives(prior, point)[1])
    covariance = np.linalg.inv(whole)
    noise_of_mean = noise * math.sqrt(trust[-1] / kept.sum())
    error = noise_of_mean * np.sqrt(np.diag(covariance @ covariance)) / np.sqrt(np.diag(covariance))
    return Start(point, whole, error)


def _floored(matrix: FloatArray, floor: float) -> FloatArray:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)


@dataclass(frozen=True)
class Moves:
    """PUBLIC. How a chain moves: scales by coordinate and laziness, with what they are expected to do."""

    scales: FloatArray
    laziness: float
    steps: float  # until ``rho`` is spent
    errors: FloatArray  # of posterior means, in posterior sd, without the start's
    seconds: float

    @property
    def effective(self) -> float:
        return float(1.0 / np.max(self.errors) ** 2)


def choose_moves(model: GLM, start: Start, rho: float, rows: float, settings: Settings, *, seconds: float) -> Moves:
    """The scales and laziness that buy the most from ``rho`` within about ``seconds`` of work."""
    candidates = []
    for laziness in (0.05, 0.1, 0.25, 0.5, 1.0) if settings.laziness is None else (settings.laziness,):
        for scale in (0.2, 0.3, 0.5, 0.7, 1.0, 1.4) if settings.scale is None else (settings.scale,):
            candidates.append(_moves(model, start, rho, rows, scale, laziness))
    affordable = [moves for moves in candidates if moves.seconds <= seconds]
    if not affordable:
        return min(candidates, key=lambda moves: moves.seconds)
    return min(affordable, key=lambda moves: float(np.square(moves.errors).sum()))


def _moves(model: GLM, start: Start, rho: float, rows: float, scale: float, laziness: float) -> Moves:
    covariance = start.covariance
    variances = np.diag(covariance)
    p = variances.size
    unit = np.tile(model.domain.table().half, model.predictors)
    w = np.diag(covariance / variances @ covariance)
    mobility = np.sqrt(w) / unit
    conditional = 1.0 / np.sqrt(np.diag(start.precision))
    scales = np.sqrt(mobility)
    scales *= scale * float(np.min(conditional / scales))
    reach = float(np.sum(unit * np.abs(start.point))) if model.predictors == 1 else math.inf
    steepest = _steepest(model, reach)
    bound = steepest * unit * scales / model.temperature
    price = 2.0 * lazy_price(laziness) * float(np.mean(bound**2))
    # a scale above a small one wastes: efficiency relative to the diffusion limit, coordinate by coordinate
    own = np.minimum(scales / conditional, SCALES[-1])
    efficiency = np.interp(own, SCALES, YIELD / (SCALES**2 / 8.0))
    steps = rho / price
    rate = laziness * efficiency * scales**2 / p  # mobility per step; the diffusion's ESS per step is mobility/(8 var)
    error = np.sqrt(8.0 * np.diag(covariance @ np.diag(1.0 / rate) @ covariance) / variances / steps)
    third = model.loss.constants[2]
    far = float(np.sum(unit * np.sqrt(variances))) * (0.8 + float(np.mean(start.error)))
    remainder = 0.5 * third * float(np.mean(unit * scales)) * 0.8 * far**2 / model.temperature
    first = float(np.mean(bound)) * 0.8
    ratio = min(1.0, 0.1 * first / remainder)
    touched = rows * remainder * (1.0 + 1.0 / ratio)
    seconds = steps * (1e-7 + laziness * (5e-7 + 3e-8 * touched))
    return Moves(scales, laziness, steps, error, seconds)


def _steepest(model: GLM, reach: float) -> float:
    """The slope bound the chain will mostly pay for: σ(s(θ)) for the logistic loss."""
    if isinstance(model.loss, losses.Logistic):
        return 1.0 / (1.0 + math.exp(-reach)) if math.isfinite(reach) else 1.0
    return float(model.loss.constants[0])


MOST_DRAWS = 2_000  # kept of each chain


def sample(
    model: Model,
    x: Any,
    y: Any = None,
    *,
    budget: Budget,
    chains: int = 2,
    settings: Settings | None = None,
    seconds: float = 0.6,
    most_steps: int = 5_000_000,
    seed: int | None = None,
    force: bool = False,
    threads: int | None = None,
) -> Posterior:
    """Draws from the posterior at a total privacy cost of at most ``budget``, everything counted."""
    settings = settings or Settings()
    rows = model.load(x, y)
    units = rows.x.shape[0]
    budget.check_rows(units, force=force)
    records = PrivateRecords(model, rows, units=units, seed=seed, threads=threads)
    account = RenyiFilter(budget, steps_cap=chains * most_steps + 100)
    warm = account.reserve("warm start", account.limit * settings.warm_share, 100)
    start = warm_start(records, warm, settings)
    account.settle(warm)
    rho_left = account.left / account.alpha
    moves = choose_moves(model, start, rho_left / chains, units, settings, seconds=seconds)
    method = DPFastMH(Coordinates(moves.scales), laziness=moves.laziness, thrift=settings.thrift)
    shares = [account.reserve(f"chain {k + 1}", account.left / (chains - k), most_steps) for k in range(chains)]
    starts = _dispersed(start, chains, settings.dispersion, seed)
    thin = max(1, math.ceil(min(1.3 * moves.steps, most_steps) / MOST_DRAWS))
    running = [records.chain(method, starts[k], shares[k], reference=start.point, number=k) for k in range(chains)]
    with ThreadPoolExecutor(chains) as pool:
        results = list(pool.map(lambda chain: _until_closed(chain, most_steps, thin), running))
    for share in shares:
        account.settle(share)
    return _posterior(model, budget, account, records, method, results)


def _until_closed(chain: PrivateSteps, most_steps: int, thin: int) -> Released:
    return chain.run(most_steps, thin=thin)


def _dispersed(start: Start, chains: int, dispersion: float, seed: int | None) -> list[FloatArray]:
    """Starts around the released point, in mirrored pairs, so that their mean is the point; the noise is public."""
    rng = np.random.default_rng(None if seed is None else [seed, 7])
    root = np.linalg.cholesky(start.covariance)
    starts = []
    for k in range(chains):
        if k % 2 == 0:
            shift = dispersion * (root @ rng.standard_normal(start.point.size))
        starts.append(start.point + (shift if k % 2 == 0 else -shift))
    return starts if chains > 1 else [start.point]


def _posterior(
    model: Model,
    budget: Budget,
    account: RenyiFilter,
    records: PrivateRecords,
    method: Method,
    results: list[Released],
) -> Posterior:
    kept = min(result.draws.shape[0] for result in results)
    draws = np.stack([result.draws[:kept] for result in results])
    steps = sum(result.steps for result in results)
    privacy = Privacy(
        epsilon=budget.epsilon,
        delta=budget.delta,
        epsilon_spent=account.epsilon_spent(),
        delta_spent=account.delta_spent(),
        alpha=account.alpha,
        rdp_spent=account.spent,
        units=records.units,
        unit="row",
        max_rows_per_unit=records.rows_per_unit,
        method=method.name,
        exact_target="posterior" if model.temperature == 1.0 else "tempered",
        private=records.private,
        temperature=model.temperature,
        chains=len(results),
        steps=steps,
        draws=int(draws.shape[0] * draws.shape[1]),
        releases=tuple({"what": c.what, "rdp": c.rdp, "count": c.count} for c in account.releases),
        library_version=__version__,
    )
    before = account.spent - sum(result.spent for result in results)
    return Posterior(
        names=model.parameters,
        draws=draws,
        accepted=np.array([result.accepted for result in results]),
        tried=np.array([result.tried for result in results]),
        spending=np.array(
            [
                [0.0, epsilon_from_rdp(before, budget.delta, account.alpha)],
                [float(steps), privacy.epsilon_spent],
            ]
        ),
        privacy=privacy,
        model=model if isinstance(model, GLM) else None,
    )
