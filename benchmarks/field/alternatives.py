"""What a user would pick instead, at the same (ε, δ), one row replaced: each gives a point, some an interval as well.

All work on the scaled features with the intercept among them, rows shortened to a public norm R where the method needs
one. Every setting of a rival is tried and its best on the held-out part is reported: more than a user could do without
paying for it. Ours has one: the temperature that the forecast, which reads no data, recommends.

- *Output perturbation*: the minimiser of mean loss + ½λ‖θ‖² moves by at most 2R/(λN) when a row is replaced (Chaudhuri,
  Monteleoni and Sarwate 2011), released with Gaussian noise at the exact ρ of the budget.
- *DP-SGD*: T steps on Poisson batches, gradients shortened to C, Gaussian noise; the average of the last half. Cost by
  the library's own accountant for a replaced row. With Laplace's approximation: a tenth of ρ buys a noisy Hessian at
  the end, and the interval is that of N(θ, H⁻¹), as if θ were the mode.
- *Objective perturbation*: diffprivlib's LogisticRegression, which knows ε only (δ = 0).
- *Noisy Newton*: this library's own start with all of the budget, its interval widened by the noise that it knows of.

OpenDP has no logistic regression (its scikit-learn part has linear regression and principal components).
"""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import expit

import dpfastmh as mh
from dpfastmh.baselines.composition import (
    WHOLE_ORDERS,
    epsilon_of,
    gaussian_rho_for,
    least_noise,
    sampled_gaussian_replaced_rdp,
)
from dpfastmh.privacy.boundary import PrivateRecords
from dpfastmh.privacy.filter import RenyiFilter
from dpfastmh.sampling import warm_start
from field.speed import HERE, PEERS_PYTHON
from field.tables import FloatArray, Table

PRIOR_SD = 2.5
HESSIAN_SHARE = 0.1
RADII = (2.0, 2.75)
Setting = dict[str, float]


class Fit(NamedTuple):
    """Coefficients of the scaled features; draws, where the method says how sure it is."""

    point: FloatArray
    draws: FloatArray | None = None


class Case(NamedTuple):
    """A table with its scaled features, and what may be learnt from it."""

    table: Table
    x: FloatArray
    y: FloatArray
    budget: mh.Budget
    rng: np.random.Generator


class Rival(NamedTuple):
    """``settings`` are all tried; ``fit`` runs one of them."""

    settings: Callable[[Case], list[Setting]]
    fit: Callable[[Case, Setting], Fit]


def every(**choices: tuple[float, ...]) -> list[Setting]:
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def shortened(x: FloatArray, radius: float) -> FloatArray:
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x * np.minimum(1.0, radius / norm))


def minimiser(x: FloatArray, y: FloatArray, ridge: float) -> FloatArray:
    """Of Σ loss + ½·ridge·‖θ‖², to the last digits: the proof of output perturbation is about the minimiser itself."""
    theta = np.zeros(x.shape[1])
    for _ in range(50):
        chance = expit(x @ theta)
        gradient = x.T @ (chance - y) + ridge * theta
        hessian = (x * (chance * (1.0 - chance))[:, None]).T @ x + ridge * np.eye(theta.size)
        move = np.linalg.solve(hessian, gradient)
        theta = theta - move
        if np.abs(move).max() < 1e-12:
            break
    return theta


# -- output perturbation ---------------------------------------------------------------------------------------------
def output_perturbation(case: Case, setting: Setting) -> Fit:
    radius, ridge, n = setting["R"], setting["λ"], len(case.y)
    theta = minimiser(shortened(case.x, radius), case.y, ridge * n)
    noise = 2.0 * radius / (ridge * n) / math.sqrt(2.0 * gaussian_rho_for(case.budget))
    return Fit(theta + noise * case.rng.standard_normal(theta.size))


def ridges(case: Case) -> list[Setting]:
    few = 1.0 if len(case.y) < 100_000 else 0.03
    return every(R=RADII, λ=(3e-4 * few, 1e-3 * few, 3e-3 * few, 1e-2 * few))


# -- DP-SGD ----------------------------------------------------------------------------------------------------------
def descents(case: Case) -> list[Setting]:
    if len(case.y) < 100_000:
        return every(q=(1.0,), T=(1_000,), C=(1.0, 3.0), step=(4.0, 16.0))
    return every(q=(0.004,), T=(500,), C=(1.0, 3.0), step=(4.0, 16.0))


def sgd_noise(rate: float, steps: int, budget: mh.Budget, hessian_rho: float) -> float:
    """The multiplier z at which the steps and the Hessian's release together keep to the budget."""

    def cost(noise: float) -> float:
        curve = sampled_gaussian_replaced_rdp(rate, noise)
        return epsilon_of(
            lambda alpha: steps * curve(alpha) + alpha * hessian_rho, 1, budget.delta, orders=WHOLE_ORDERS
        )

    return least_noise(cost, budget)


def dp_sgd(case: Case, setting: Setting) -> Fit:
    return Fit(_descend(case, setting, 0.0))


def dp_sgd_laplace(case: Case, setting: Setting) -> Fit:
    rho = HESSIAN_SHARE * gaussian_rho_for(case.budget)
    theta = _descend(case, setting, rho)
    return Fit(theta, _laplace(case, theta, rho))


def _descend(case: Case, setting: Setting, hessian_rho: float) -> FloatArray:
    rate, steps, clip, step = setting["q"], int(setting["T"]), setting["C"], setting["step"]
    noise = sgd_noise(rate, steps, case.budget, hessian_rho)
    x, y, rng = case.x, case.y, case.rng
    n, p = x.shape
    theta, late = np.zeros(p), np.zeros(p)
    for turn in range(steps):
        batch, labels = x, y
        if rate < 1.0:
            picked = rng.choice(n, rng.binomial(n, rate), replace=False, shuffle=False)
            batch, labels = x[picked], y[picked]
        slope = expit(batch @ theta) - labels
        norm = np.abs(slope) * np.sqrt(np.einsum("ij,ij->i", batch, batch))
        total = batch.T @ (slope * np.minimum(1.0, clip / np.maximum(norm, 1e-12)))
        total = total + clip * noise * rng.standard_normal(p)
        theta = theta - step * (total / (rate * n) + theta / (PRIOR_SD**2 * n))
        if 2 * turn >= steps:
            late += theta
    return np.asarray(late / (steps - math.ceil(steps / 2)))


def _laplace(case: Case, theta: FloatArray, rho: float, radius: float = RADII[-1]) -> FloatArray:
    """Draws of N(θ, H⁻¹); H = Σσ(1−σ)xxᵀ moves by at most √2·¼·R² in Frobenius norm."""
    p = theta.size
    short = shortened(case.x, radius)
    chance = expit(short @ theta)
    hessian = (short * (chance * (1.0 - chance))[:, None]).T @ short
    spread = math.sqrt(2.0) / 4.0 * radius**2 / math.sqrt(2.0 * rho)
    noise = case.rng.standard_normal((p, p)) * spread
    values, vectors = np.linalg.eigh(hessian + np.tril(noise) + np.tril(noise, -1).T)
    values = np.maximum(values, spread) + 1.0 / PRIOR_SD**2
    return np.asarray(theta + (case.rng.standard_normal((1_000, p)) / np.sqrt(values)) @ vectors.T)


# -- diffprivlib -----------------------------------------------------------------------------------------------------
def objective_perturbation(case: Case, setting: Setting) -> Fit:
    """In the peers' environment: diffprivlib's estimator."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, x=case.x, y=case.y)
        command = [str(PEERS_PYTHON), str(HERE / "diffprivlib_fit.py"), str(data)]
        command += [repr(case.budget.epsilon), repr(setting["R"]), repr(setting["C"])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise RuntimeError(f"diffprivlib failed: {done.stderr[-300:]}")
    return Fit(np.array(json.loads(done.stdout)))


# -- ours ------------------------------------------------------------------------------------------------------------
def noisy_newton(case: Case, setting: Setting) -> Fit:
    """The library's noisy Newton steps alone: no chain, so that nothing is sampled, only approximated."""
    table, rng = case.table, case.rng
    model = mh.LogisticRegression(table.domain, mh.Normal(PRIOR_SD))
    records = PrivateRecords(model, model.load(table.x, table.y), units=len(table.y))
    found = warm_start(records, RenyiFilter(case.budget, steps_cap=1_000), mh.Settings())
    root = np.linalg.cholesky(found.covariance)
    normal = rng.standard_normal((1_000, found.point.size)) @ root.T
    return Fit(found.point, found.point + normal * np.sqrt(1.0 + found.error**2))


def forecast_temperature(case: Case) -> float:
    """The least temperature that is forecast to give 500 effective draws: real columns give far fewer."""
    for temperature in (1.0, 2.0, 5.0, 10.0, 20.0, 50.0):
        model = mh.LogisticRegression(case.table.domain, mh.Normal(PRIOR_SD), temperature=temperature)
        if mh.plan(model, units=len(case.y), budget=case.budget).effective.min() >= 500.0:
            break
    return temperature


def ours(case: Case, setting: Setting) -> Fit:
    """``dpfastmh.sample`` with its defaults."""
    table = case.table
    model = mh.LogisticRegression(table.domain, mh.Normal(PRIOR_SD), temperature=setting["temperature"])
    found = mh.sample(model, table.x, table.y, budget=case.budget)
    return Fit(found.means, found.draws.reshape(-1, len(found.names)))


RIVALS = {
    "dpfastmh": Rival(lambda case: [{"temperature": forecast_temperature(case)}], ours),
    "noisy Newton": Rival(lambda case: [{}], noisy_newton),
    "DP-SGD + Laplace": Rival(descents, dp_sgd_laplace),
    "DP-SGD": Rival(descents, dp_sgd),
    "diffprivlib": Rival(lambda case: every(R=RADII, C=(0.1, 1.0)), objective_perturbation),
    "output perturbation": Rival(ridges, output_perturbation),
}
