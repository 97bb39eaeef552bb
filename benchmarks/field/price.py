"""ρ per effective draw of every private method of the library, over what no exact sampler can beat.

Synthetic logistic regression, N = 20,000, from the mode, draws of the main phase only. The limit is ½·sup ‖g − g′‖²_Σ
over two records' gradients at the mode, Σ the posterior covariance: the price of one exact draw, for small ρ. ρ of the
compared methods is the Gaussian one of their total (for DP-SGLD: the ρ whose exact ε at δ = 10⁻⁶ is its total). Each
method's settings are searched a little and the cheapest are shown; ``sd`` is that of its draws over the posterior's,
the largest deviation over coefficients: far from 1 is bias, and then the price is that of draws from something else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

import dpfastmh as mh
from dpfastmh.baselines import DPHMC, DPSGLD, DPBarker, DPPenalty
from dpfastmh.baselines.composition import gaussian_rho_for
from dpfastmh.budget import best_alpha
from dpfastmh.methods import Coordinates, DPFastMH, DPFastMHFull, Method, RandomWalk
from dpfastmh.models import GLM
from dpfastmh.planning import Settings, Start, choose_moves, steepest_slope
from dpfastmh.privacy.boundary import make_meter
from dpfastmh.steps.likelihood import Rows
from dpfastmh.steps.reference import mode
from field.store import Entry, Store, significant
from measure import FloatArray, effective_draws, logistic_problem
from privacy import _limit

ROWS, DELTA = 20_000, 1e-6


class Problem(NamedTuple):
    model: GLM
    rows: Rows
    centre: FloatArray
    covariance: FloatArray
    quick: bool

    @property
    def sd(self) -> FloatArray:
        return np.sqrt(np.diag(self.covariance))

    def walk(self, scale: float) -> RandomWalk:
        """Joint moves, ``scale``/√d posterior sd in every direction of the posterior."""
        d = len(self.sd)
        return RandomWalk(scale / math.sqrt(d), basis=np.linalg.cholesky(self.covariance).T)

    def typical_bound(self, scale: float) -> float:
        """About the bound of a joint move: σ(s(θ))·Σ|δ_j| with E|δ_j| = .8 sd_j·scale/√d."""
        return steepest_slope(self.model, self.centre) * 0.8 * scale * float(self.sd.sum()) / math.sqrt(len(self.sd))


class Found(NamedTuple):
    rho: float  # of one effective draw
    sd: float  # of the draws over the posterior's, where it is farthest from 1
    settings: str


def run(columns: Iterable[int], store: Store, quick: bool) -> None:
    for d in columns:
        model, rows, _ = logistic_problem(ROWS, d)
        centre, hessian = mode(model, rows)
        problem = Problem(model, rows, centre, np.linalg.inv(hessian), quick)
        limit = _limit(problem.covariance, centre)
        for name, search in METHODS.items():
            found = min(search(problem), key=lambda each: each.rho)
            entry: Entry = {"columns": d, "method": name, "over_limit": significant(found.rho / limit)}
            entry |= {"rho": significant(found.rho), "sd": significant(found.sd), "settings": found.settings}
            store.put(entry)
            print(
                f"d={d:<4}{name:34}{found.rho / limit:>9.3g} × limit, sd {found.sd:.3f}, {found.settings}", flush=True
            )


def _judged(problem: Problem, draws: FloatArray, rho: float, settings: str) -> Found:
    """What ``draws``, of ``rho`` in all, cost each."""
    moved = np.ptp(draws, axis=0) > 0.0
    ratios = draws.std(axis=0) / problem.sd
    farthest = float(ratios[np.argmax(np.abs(np.log(np.maximum(ratios, 1e-9))))])
    return Found(rho / effective_draws(draws[None]) if moved.all() else math.inf, farthest, settings)


# -- ours ------------------------------------------------------------------------------------------------------------
def _metered(problem: Problem, method: Method, steps: int, settings: str) -> Found:
    alpha = best_alpha(mh.Budget(1.0, DELTA))
    meter = make_meter(problem.model, method, alpha, ROWS)
    sampler = method.on(problem.model, problem.rows, reference=problem.centre, seed=1, meter=meter)
    steps = steps // 10 if problem.quick else steps
    thin = max(1, steps // 20_000)
    _, draws, _, spent = sampler.run_metered(sampler.init(problem.centre), steps, thin=thin, limit=np.inf)
    return _judged(problem, draws, spent / alpha, settings)


def _planned(problem: Problem) -> Iterator[Found]:
    start = Start(problem.centre, np.linalg.inv(problem.covariance), np.zeros(len(problem.sd)))
    moves = choose_moves(problem.model, start, 1.0, ROWS, 1, Settings(), seconds=0.6)
    method = DPFastMH(Coordinates(moves.scales), laziness=moves.laziness, thrift=0.1)
    yield _metered(problem, method, 3_000_000, f"as planned: κ={moves.laziness:g}")


def _full(problem: Problem) -> Iterator[Found]:
    method = DPFastMHFull(Coordinates(problem.sd), laziness=1.0)
    yield _metered(problem, method, 20_000, "one coordinate, 1 sd, κ=1")


def _joint(problem: Problem) -> Iterator[Found]:
    for scale in (0.5, 1.0, 2.0):
        method = DPFastMH(problem.walk(scale), thrift=0.1)
        yield _metered(problem, method, 300_000, f"joint moves, {scale:g}/√d sd, κ=1")


# -- the compared methods --------------------------------------------------------------------------------------------
def _chain(problem: Problem, method: Any, steps: int, rho: Callable[[int], float], settings: str) -> Found:
    steps = steps // 10 if problem.quick else steps
    sampler = method.on(problem.model, problem.rows, seed=1)
    _, draws, _ = sampler.run(sampler.init(problem.centre), steps)
    return _judged(problem, draws, rho(steps), settings)


def _penalty(problem: Problem) -> Iterator[Found]:
    for scale, noise in itertools.product((0.5, 1.0, 2.0), (0.7, 1.4)):
        sigma = noise / (2.0 * problem.typical_bound(scale))
        method = DPPenalty(problem.walk(scale), sigma=sigma)
        settings = f"joint moves, {scale:g}/√d sd, σ={sigma:.2g}"
        yield _chain(problem, method, 10_000, lambda steps, s=sigma: steps / (2.0 * s * s), settings)


def _barker(problem: Problem) -> Iterator[Found]:
    for scale, room in itertools.product((0.25, 0.5, 1.0), (1.0, 1.5)):
        reach = room * problem.typical_bound(scale)
        method = DPBarker(problem.walk(scale), reach=reach)
        settings = f"joint moves, {scale:g}/√d sd, moves up to b={reach:.2g}"
        yield _chain(problem, method, 10_000, lambda steps, r=reach: steps * r * r, settings)


def _hmc(problem: Problem) -> Iterator[Found]:
    sd, clip = float(problem.sd.min()), problem.model.domain.norm2()
    for leaps, length, noise in itertools.product((2, 4), (0.3, 0.6), (0.3, 1.0)):
        gradient_noise = noise / (sd * 2.0 * clip)  # of the gradient's own spread at the posterior
        sigma = 1.0 / (2.0 * problem.typical_bound(length * leaps))
        method = DPHMC(leaps=leaps, step=length * sd, gradient_noise=gradient_noise, sigma=sigma)
        settings = f"{leaps} leaps of {length:g} sd, z={gradient_noise:.2g}, σ={sigma:.2g}"
        yield _chain(problem, method, 2_000, lambda steps, m=method: steps * m.rho(), settings)


def _sgld(problem: Problem) -> Iterator[Found]:
    """Full batches: Langevin noise pays for steps of 2(1/(z·clip))²."""
    sd, clip = float(problem.sd.min()), problem.model.domain.norm2()
    for share, rate in itertools.product((0.02, 0.1), (1.0, 0.1)):
        noise = math.sqrt(2.0) * rate / (clip * sd * math.sqrt(share))  # η = share·sd²
        method = DPSGLD(batch=rate * ROWS, noise=noise)

        def rho(steps: int, method: DPSGLD = method) -> float:
            return gaussian_rho_for(mh.Budget(method.total_epsilon(steps, DELTA, size=ROWS), DELTA))

        yield _chain(problem, method, 5_000, rho, f"q={rate:g}, η={share:g} sd²")


METHODS: dict[str, Callable[[Problem], Iterator[Found]]] = {
    "dp-fast-mh, as planned": _planned,
    "dp-fast-mh, joint moves": _joint,
    "dp-fast-mh-full, plain": _full,
    "dp-penalty": _penalty,
    "dp-barker, whole data": _barker,
    "dp-hmc": _hmc,
    "dp-sgld": _sgld,
}
