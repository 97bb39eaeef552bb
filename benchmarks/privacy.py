"""What privacy costs: ρ per effective draw in the main phase, and how good whole private runs are.

**Price.** Synthetic logistic regression, N = 10⁶, features uniform on a box. The planner's coordinate moves run from
the mode with the meter on; ρ is the charged Rényi divergence over its order. It is compared with 2·L1²·sup xᵀΣx (Σ the
posterior covariance, L1 = 1), with the limit ½·sup ‖g − g′‖²_Σ over two records' gradients at the mode, and with moves
of all coordinates at once on the same posterior, shaped by its covariance and charged by the same bounds:

* *optimally scaled*: 2.38/√d, never lazy, as is best per step;
* *scaled for privacy*: lazy, and of the length that costs the least. Nobody offers this; it shows what coordinates gain
  on their own.

Every chain is as long as it takes for ``DRAWS`` effective draws of the slowest coefficient (planned for ours, at a rate
known for joint moves): the least of many noisy estimates of a small number would say little.

**Accounting.** ε of a run of so many equal steps as the budget pays for, over what the Gaussian limit of the same run
would be.

**Runs.** ``sample`` as a user calls it, everything charged, δ = 10⁻⁶: root mean square over coefficients of (posterior
mean − reference)/(posterior sd), median of nine; the draws' sd over the posterior's; seconds.

**Forecasts.** ``plan`` beside what ``sample`` does on the nominal design: steps, effective draws, error of means.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

import dpfastmh as mh
from dpfastmh import datasets
from dpfastmh.budget import best_alpha, gaussian_delta
from dpfastmh.methods import Coordinates, DPFastMH, Method, RandomWalk
from dpfastmh.models import GLM
from dpfastmh.planning import STEPS_CAP, Settings, Start, choose_moves, lazy_price
from dpfastmh.privacy.accept_bit import bit_cost
from dpfastmh.privacy.boundary import CELLS, make_meter
from dpfastmh.privacy.filter import RenyiFilter
from dpfastmh.steps.likelihood import Rows
from dpfastmh.steps.reference import mode
from measure import FloatArray, Row, effective_draws, logistic_problem, spread

PART = "privacy"
REFERENCES = Path(__file__).resolve().parents[1] / "tests" / "data"
MOST = {5: 2.5, 10: 2.5, 30: 4.0}  # ρ per effective draw over 2·sup xᵀΣx
FEWER = {5: 8.0, 30: 30.0}  # times less than joint moves as they are usually scaled
DRAWS = 1_000
BUDGET = mh.Budget(1.0, 1e-6)


def results(quick: bool) -> Iterator[Row]:
    n = 100_000 if quick else 1_000_000
    for d in MOST:
        yield from _prices(n, d, DRAWS // 5 if quick else DRAWS)
    yield _accounting()
    yield from _runs(3 if quick else 9)
    yield from _forecasts(2 if quick else 6)


# -- the price of a draw ---------------------------------------------------------------------------------------------
def _prices(n: int, d: int, wanted: int) -> Iterator[Row]:
    model, rows, _ = logistic_problem(n, d)
    centre, hessian = mode(model, rows)
    covariance = np.linalg.inv(hessian)
    moves = choose_moves(model, Start(centre, hessian, np.zeros(d)), 0.01, n, 1, Settings(), seconds=0.6)
    steps = int(wanted * moves.steps / moves.effective(1).min())
    ours, seen = _price(model, rows, centre, DPFastMH(Coordinates(moves.scales), laziness=moves.laziness), steps)
    corner = 2.0 * _largest_quadratic(covariance)
    limit = _limit(covariance, centre)
    length = float(moves.own.mean())
    note = f"ρ {ours:.3g} a draw; laziness {moves.laziness:g}, {length:.2g} conditional sd, {seen:.0f} effective draws"
    yield Row(PART, f"d={d}: ρ per effective draw over 2·sup xᵀΣx", ours / corner, "×", f"<= {MOST[d]}", note)
    yield Row(PART, f"d={d}: the same over the limit", ours / limit, "×", "<= 6" if d == 5 else "")
    basis = np.linalg.cholesky(covariance).T

    def joint(scale: float, laziness: float, pace: float) -> tuple[float, float, float]:
        """ρ per effective draw, how many were seen, and the scale. ``pace``: d × effective draws per evaluated step."""
        method = DPFastMH(RandomWalk(scale / np.sqrt(d), basis=basis), laziness=laziness)
        return *_price(model, rows, centre, method, int(wanted * d / (pace * laziness))), scale

    usual = joint(2.38, 1.0, 0.2)
    target = f">= {FEWER[d]:g}" if d in FEWER else ""
    note = f"{usual[0] / corner:.3g} × 2·sup xᵀΣx, {usual[1]:.0f} effective draws"
    yield Row(PART, f"d={d}: joint moves, optimally scaled, over ours", usual[0] / ours, "×", target, note)
    best = min(joint(0.5, 0.25, 0.027), joint(1.0, 0.25, 0.08))
    note = f"{best[0] / corner:.3g} × 2·sup xᵀΣx at laziness 0.25 and {best[2]:g}/√d, {best[1]:.0f} effective draws"
    yield Row(PART, f"d={d}: joint moves, scaled for privacy, over ours", best[0] / ours, "×", "", note)


def _price(model: GLM, rows: Rows, centre: FloatArray, method: Method, steps: int) -> tuple[float, float]:
    """ρ per effective draw of the slowest coefficient, and how many of them there were."""
    alpha = best_alpha(BUDGET)
    meter = make_meter(model, method, alpha, rows.x.shape[0])
    sampler = method.on(model, rows, reference=centre, seed=1, meter=meter)
    _, draws, _, spent = sampler.run_metered(sampler.init(centre), steps, thin=max(1, steps // 40_000), limit=np.inf)
    found = effective_draws(draws[None])
    return spent / alpha / found, found


def _accounting() -> Row:
    """T equal steps of bound b and laziness κ, as many as the filter allows; perfect accounting knows ρ = T·2J(κ)b²."""
    bound, laziness = 1e-3, 0.05
    account = RenyiFilter(BUDGET, steps_cap=STEPS_CAP)
    cost = bit_cost(account.alpha, bound, laziness=laziness, shift=CELLS)
    steps = int(account.limit / cost)
    account.charge("accept bits", cost, steps)
    rho = steps * 2.0 * lazy_price(laziness) * bound**2
    low, high = 0.0, BUDGET.epsilon
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_delta(middle, rho) > BUDGET.delta else (low, middle)
    note = f"{steps:,} steps: ε {account.epsilon_spent():.4g} against {high:.4g}, δ = {BUDGET.delta:g}"
    return Row(PART, "ε of a fixed run over the Gaussian limit's", account.epsilon_spent() / high, "×", "<= 1.1", note)


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


# -- forecasts -------------------------------------------------------------------------------------------------------
class Design(NamedTuple):
    """A nominal design: even features, no effects."""

    model: GLM
    features: int
    units: int
    epsilon: float
    rows_per_unit: int = 1
    method: str = "dp-fast-mh"


def _logistic(d: int) -> GLM:
    return mh.LogisticRegression(mh.Box.unit(d), intercept=False)


DESIGNS = {
    "d=5, N=10⁵, ε=1": Design(_logistic(5), 5, 100_000, 1.0),
    "d=10, N=2·10⁵, ε=1": Design(_logistic(10), 10, 200_000, 1.0),
    "d=30, N=10⁶, ε=1": Design(_logistic(30), 30, 1_000_000, 1.0),
    "3 classes of softmax, d=4, N=10⁵, ε=2": Design(mh.SoftmaxRegression(mh.Box.unit(4), classes=3), 4, 100_000, 2.0),
    "units of 3 rows, d=3, N=3·10⁴, ε=2": Design(_logistic(3), 3, 30_000, 2.0, rows_per_unit=3),
    "full batch, d=2, N=4,000, ε=2": Design(_logistic(2), 2, 4_000, 2.0, method="dp-fast-mh-full"),
}


def _forecasts(count: int) -> Iterator[Row]:
    """The larger of forecast/found and found/forecast, for the worst of steps, effective draws and error of means."""
    for name, design in DESIGNS.items():
        rng, budget = np.random.default_rng(7), mh.Budget(design.epsilon, 1e-6)
        expected = mh.plan(
            design.model,
            units=design.units,
            budget=budget,
            max_rows_per_unit=design.rows_per_unit,
            method=design.method,
        )
        found = np.array([_found(design, budget, rng) for _ in range(count)])
        steps, effective, error = *np.median(found[:, :2], axis=0), np.sqrt(found[:, 2].mean())
        pairs = (
            (steps, expected.steps),
            (effective, float(np.median(expected.effective))),
            (error, float(np.sqrt((expected.errors**2).mean()))),
        )
        worst = max(max(seen / told, told / seen) for seen, told in pairs)
        words = ("steps", "effective draws", "error")
        note = ", ".join(f"{word} {seen:.3g} for {told:.3g}" for word, (seen, told) in zip(words, pairs, strict=True))
        yield Row(PART, f"plan for {name}: forecast within", worst, "×", "<= 2", note)


def _found(design: Design, budget: mh.Budget, rng: np.random.Generator) -> tuple[float, float, float]:
    """Steps, effective draws and squared error of means in posterior variances, of one run on a table of its own."""
    model, count = design.model, design.units * design.rows_per_unit
    x = rng.random((count, design.features), dtype=np.float32) * 2.0 - 1.0
    y = rng.integers(0, model.predictors + 1, count)
    if design.rows_per_unit == 1:
        run = mh.sample(model, x, y, budget=budget, method=design.method)
    else:
        table = {f"x{j}": x[:, j] for j in range(design.features)}
        table |= {"y": y, "who": np.repeat(np.arange(design.units), design.rows_per_unit)}
        run = mh.sample(model, table, target="y", unit="who", max_rows_per_unit=design.rows_per_unit, budget=budget)
    centre, hessian = mode(model, model.load(x, y))
    off = (run.means - centre) ** 2 / np.diag(np.linalg.inv(hessian))
    return run.privacy.steps, float(np.median(run.ess())), float(off.mean())
