"""Control variates of order 2, logistic regression with N = 10⁶ rows and 10 coefficients, reference at the mode.

Coordinate moves give the cost of a step that looks at data and of one that does not (κ < 1); moves in all coefficients
at once, shaped by the posterior covariance, give effective draws per second. The settings come from a search over scale
and λ: ESS per second is flat between 1.6 and 2.4 and between λ = .003 and .1, and falls from λ = 1 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

import numpy as np

from dpfastmh.methods import Coordinates, DPFastMH, Method, RandomWalk, Sampler, TunaMH
from dpfastmh.models import GLM
from dpfastmh.steps.likelihood import Rows
from dpfastmh.steps.reference import mode
from measure import FloatArray, Row, cpu_microseconds, effective_draws, interleaved, logistic_problem, spread

PART = "control-variates"
JOINT_SCALE, JOINT_LAMBDA = 2.0, 0.02  # scale·(posterior sd)/√d
COORDINATE_SCALE, COORDINATE_LAMBDA = 2.4, 0.01  # scale·(conditional sd)


def results(quick: bool) -> Iterator[Row]:
    n, d = (100_000 if quick else 1_000_000), 10
    model, rows, _ = logistic_problem(n, d)
    centre, hessian = mode(model, rows)
    yield from _step_costs(model, rows, centre, 1.0 / np.sqrt(np.diag(hessian)), 5 if quick else 11)
    joint, coordinate = joint_moves(hessian), Coordinates(COORDINATE_SCALE / np.sqrt(np.diag(hessian)))
    steps = 200_000 if quick else 500_000
    for method, what, target in (
        (TunaMH(joint, lam=JOINT_LAMBDA), f"joint moves, scale {JOINT_SCALE}, λ={JOINT_LAMBDA}", ">= 20000"),
        (
            TunaMH(coordinate, lam=COORDINATE_LAMBDA),
            f"coordinates, scale {COORDINATE_SCALE}, λ={COORDINATE_LAMBDA}",
            "",
        ),
    ):
        yield _effective_draws_per_second(model, rows, centre, method, what, "" if quick else target, steps)


def joint_moves(hessian: FloatArray) -> RandomWalk:
    """Moves with covariance scale²/d times the posterior's: rows of the basis are columns of its Cholesky factor."""
    factor = np.linalg.cholesky(np.linalg.inv(hessian))
    return RandomWalk(JOINT_SCALE / np.sqrt(len(hessian)), basis=factor.T)


def _step_costs(model: GLM, rows: Rows, centre: FloatArray, sd: FloatArray, repeats: int) -> Iterator[Row]:
    samplers: dict[float, Sampler] = {
        kappa: DPFastMH(Coordinates(sd), laziness=kappa, full_batch=False).on(model, rows, reference=centre)
        for kappa in (1.0, 0.1, 1e-6)
    }

    def timed(kappa: float) -> float:
        sampler, steps = samplers[kappa], 200_000 if kappa == 1.0 else 1_000_000
        state = sampler.init(centre)
        return cpu_microseconds(lambda: sampler.run(state, steps, thin=100), steps)[0]

    for sampler in samplers.values():
        sampler.run(sampler.init(centre), 100)
    times = interleaved({str(kappa): partial(timed, kappa) for kappa in samplers}, repeats)
    every, tenth, none = (median(times[str(kappa)]) for kappa in samplers)
    info = samplers[1.0].run(samplers[1.0].init(centre), 100_000)[2]
    note = f"{spread(times['1.0'])}; {info.rows / info.steps:.2f} rows a step, acceptance {info.acceptance:.2f}"
    yield Row(PART, "coordinate move, Barker: evaluated step", every, "µs", "<= 1.5", note)
    lazy = (tenth - 0.1 * every) / 0.9 * 1e3
    yield Row(PART, "the same: lazy step, from κ=.1 and κ=1", lazy, "ns", "<= 80", f"κ=.1: {spread(times['0.1'])} µs")
    yield Row(PART, "the same: lazy step, from κ=1e-6", none * 1e3, "ns", "<= 80")


def _effective_draws_per_second(
    model: GLM, rows: Rows, centre: FloatArray, method: Method, what: str, target: str, steps: int, chains: int = 5
) -> Row:
    """Smallest bulk ESS over the coefficients, every draw kept, per second of processor time; median of the chains."""
    rates, shares, times = [], [], []
    for _ in range(chains):
        sampler = method.on(model, rows, reference=centre)
        state, _, _ = sampler.run(sampler.init(centre), 5_000)
        micro, (_, draws, _) = cpu_microseconds(partial(sampler.run, state, steps), steps)
        share = effective_draws(draws[None]) / steps
        rates.append(share / micro * 1e6)
        shares.append(share)
        times.append(micro)
    note = f"{spread(rates)}; {median(times):.2f} µs a step, ESS/step {median(shares):.4f}, {chains} × {steps} steps"
    return Row(PART, f"{what}: minimum ESS per second", median(rates), "1/s", target, note)
