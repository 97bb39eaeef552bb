"""What privacy costs: ρ per effective draw in the main phase, and how good whole private runs are.

**Price.** Synthetic logistic regression, N = 10⁶, features uniform on a box. The planner's coordinate moves run from
the mode with the meter on; ρ is the charged Rényi divergence over its order. It is compared with 2·L1²·sup xᵀΣx (Σ the
posterior covariance, L1 = 1), with the limit ½·sup ‖g − g′‖²_Σ over two records' gradients at the mode, and with joint
moves at their best scale on the same posterior.

**Runs.** ``sample`` as a user calls it, everything charged, δ = 10⁻⁶: root mean square over coefficients of (posterior
mean − reference)/(posterior sd), median of nine; the draws' sd over the posterior's; seconds.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

import dpfastmh as mh
from dpfastmh import datasets
from dpfastmh.budget import best_alpha
from dpfastmh.methods import Coordinates, DPFastMH, Method, RandomWalk
from dpfastmh.models import GLM
from dpfastmh.planning import Settings, Start, choose_moves
from dpfastmh.privacy.boundary import make_meter
from dpfastmh.steps.likelihood import Rows
from dpfastmh.steps.reference import mode
from measure import FloatArray, Row, effective_draws, logistic_problem, spread

PART = "privacy"
REFERENCES = Path(__file__).resolve().parents[1] / "tests" / "data"
MOST = {5: 2.5, 10: 2.5, 30: 4.0}  # ρ per effective draw over 2·sup xᵀΣx
FEWER = {5: 8.0, 30: 30.0}  # times less than joint moves


def results(quick: bool) -> Iterator[Row]:
    n = 100_000 if quick else 1_000_000
    for d in MOST:
        yield from _prices(n, d, quick)
    yield from _runs(3 if quick else 9)


# -- the price of a draw ---------------------------------------------------------------------------------------------
def _prices(n: int, d: int, quick: bool) -> Iterator[Row]:
    model, rows, _ = logistic_problem(n, d)
    centre, hessian = mode(model, rows)
    covariance = np.linalg.inv(hessian)
    budget = mh.Budget(1.0, 1e-6)
    start = Start(centre, hessian, np.zeros(d))
    moves = choose_moves(model, start, 0.01, n, 1, Settings(), seconds=0.6)
    steps = 500_000 if quick else 6_000_000
    ours = _price(
        model, rows, centre, DPFastMH(Coordinates(moves.scales), laziness=moves.laziness, thrift=0.1), steps, budget
    )
    corner = 2.0 * _largest_quadratic(covariance)
    limit = _limit(covariance, centre)
    note = f"ρ {ours:.3g} per effective draw, laziness {moves.laziness:g}"
    yield Row(PART, f"d={d}: ρ per effective draw over 2·sup xᵀΣx", ours / corner, "×", f"<= {MOST[d]}", note)
    yield Row(PART, f"d={d}: the same over the limit", ours / limit, "×", "<= 6" if d == 5 else "")
    factor = np.linalg.cholesky(covariance)
    joint = min(
        _price(model, rows, centre, DPFastMH(RandomWalk(scale / np.sqrt(d), basis=factor.T)), steps // 20, budget)
        for scale in (1.0, 1.5, 2.4)
    )
    target = f">= {FEWER[d]:g}" if d in FEWER else ""
    yield Row(PART, f"d={d}: joint moves at their best scale over ours", joint / ours, "×", target)


def _price(model: GLM, rows: Rows, centre: FloatArray, method: Method, steps: int, budget: mh.Budget) -> float:
    """ρ per effective draw, least over coefficients."""
    alpha = best_alpha(budget)
    meter = make_meter(model, method, alpha, rows.x.shape[0])
    sampler = method.on(model, rows, reference=centre, seed=1, meter=meter)
    _, draws, _, spent = sampler.run_metered(sampler.init(centre), steps, thin=max(1, steps // 20_000), limit=np.inf)
    return spent / alpha / effective_draws(draws[None])


def _largest_quadratic(matrix: FloatArray) -> float:
    """sup xᵀΣx over the corners of the box: all of them up to 12 columns, else by steepest ascent from many."""
    d = len(matrix)
    if d <= 12:
        corners = np.array(list(itertools.product([-1.0, 1.0], repeat=d)))
        return float(np.einsum("ij,jk,ik->i", corners, matrix, corners).max())
    rng, best = np.random.default_rng(0), 0.0
    for _ in range(200):
        corner, changed = np.sign(rng.normal(size=d)), True
        while changed:
            changed = False
            for j in range(d):
                wanted = 1.0 if matrix[j] @ corner - matrix[j, j] * corner[j] >= 0.0 else -1.0
                changed |= wanted != corner[j]
                corner[j] = wanted
        best = max(best, float(corner @ matrix @ corner))
    return best


def _limit(covariance: FloatArray, theta: FloatArray) -> float:
    """½·sup ‖g − g′‖²_Σ: on a symmetric box every gradient is σ(w·θ)w for a point w of it, largest at corners."""
    d, rng = len(theta), np.random.default_rng(0)
    corners = np.sign(rng.normal(size=(2_000, d)))
    if d <= 10:
        corners = np.array(list(itertools.product([-1.0, 1.0], repeat=d)))
    gradients = (corners / (1.0 + np.exp(-corners @ theta))[:, None]) @ np.linalg.cholesky(covariance)
    norms = (gradients**2).sum(axis=1)
    return 0.5 * float((norms[:, None] + norms - 2.0 * gradients @ gradients.T).max())


# -- whole runs ------------------------------------------------------------------------------------------------------
def _runs(count: int) -> Iterator[Row]:
    adult = datasets.adult()
    for temperature, epsilon, most in ((10, 4, 0.40), (10, 2, 0.70), (50, 2, 0.33)):
        model = mh.LogisticRegression(adult.domain, mh.Normal(scale=2.5), temperature=temperature)
        held = json.loads((REFERENCES / f"adult_tempered_{temperature}.json").read_text())
        yield from _quality(
            f"adult, temperature {temperature}, ε={epsilon}",
            model,
            adult.x,
            adult.y,
            np.array(held["mean"]),
            np.array(held["sd"]),
            epsilon,
            most,
            count,
        )
    model, rows, _ = logistic_problem(1_000_000, 5)
    centre, hessian = mode(model, rows)
    sd = np.sqrt(np.diag(np.linalg.inv(hessian)))
    yield from _quality("synthetic, N=10⁶, d=5, ε=1", model, rows.x, rows.y, centre, sd, 1, 0.25, count)


def _quality(
    what: str,
    model: GLM,
    x: FloatArray,
    y: FloatArray,
    mean: FloatArray,
    sd: FloatArray,
    epsilon: float,
    most: float,
    count: int,
) -> Iterator[Row]:
    errors, widths, seconds = [], [], []
    mh.sample(model, x, y, budget=mh.Budget(epsilon, 1e-6))  # compiled and tabulated before the clock starts
    for _ in range(count):
        began = time.perf_counter()
        found = mh.sample(model, x, y, budget=mh.Budget(epsilon, 1e-6))
        seconds.append(time.perf_counter() - began)
        errors.append(float(np.sqrt((((found.means - mean) / sd) ** 2).mean())))
        widths.append(float(np.median(found.sds / sd)))
    note = f"{spread(errors)}; draws' sd over the posterior's {spread(widths)}"
    yield Row(PART, f"{what}: error of means", median(errors), "sd", f"<= {most}", note)
    yield Row(PART, f"{what}: time of a run", median(seconds), "s", "<= 1", spread(seconds))
