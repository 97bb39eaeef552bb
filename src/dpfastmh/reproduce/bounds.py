"""Theorem 3 and TunaMH's bound against exact spectral gaps: privacy, batch and rate of convergence at once.

A logistic model of three records on a line of seven states is small enough for every law to be written down. The chain
is the published algorithm's minibatch branch as it can be mended: the correction only where there is noise, the choice
of batch public.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import log_expit

from dpfastmh import theory
from dpfastmh.baselines.composition import classic_sigma
from dpfastmh.reproduce.figures import Panel, save_panels
from dpfastmh.reproduce.work import Claim, FloatArray, Section, Work, verdict

RECORDS = np.array([1.0, -0.6, 0.8])
LABELS = np.array([1, 0, 1])
STATES = np.linspace(-1.5, 1.5, 7)
MOVE = float(STATES[1] - STATES[0])
CONSTANTS = np.abs(RECORDS)
DELTA = 0.1


def energy(theta: float) -> FloatArray:
    return np.asarray(-log_expit(np.where(LABELS == 1, 1.0, -1.0) * RECORDS * theta))


def target() -> FloatArray:
    weight = np.exp([-energy(float(s)).sum() - 0.5 * s * s for s in STATES])
    return np.asarray(weight / weight.sum())


def gap(lam: float | None, variance: float) -> float:
    """The spectral gap of the chain with λ (None: the full batch) and noise of this variance."""
    n = STATES.size
    balance = theory.penalty(variance) if variance > 0.0 else theory.metropolis
    chances = np.zeros((n, n))
    for i in range(n):
        for j in (i - 1, i + 1):
            if 0 <= j < n:
                change = energy(float(STATES[j])) - energy(float(STATES[i]))
                prior = 0.5 * (STATES[i] ** 2 - STATES[j] ** 2)
                law = theory.certain(-change.sum())
                if lam is not None:
                    law = theory.minibatch_law(change, CONSTANTS * MOVE, lam * CONSTANTS / CONSTANTS.sum())
                chances[i, j] = law.shifted(float(prior)).acceptance(balance)
    return theory.spectral_gap(target(), theory.transition_matrix(np.full((n, n), 0.5), chances))


def noise_variance(epsilon: float, lam: float, upper: float) -> float:
    """(σ₁Δ₁)² of the published minibatch branch; 0 where Δ₁ < ε′."""
    total, largest = float(CONSTANTS.sum()), float(CONSTANTS.max())
    sensitivity = 2.0 * math.log1p(total * MOVE / lam)
    share = total / (upper * largest)
    free = epsilon * share / 6.0
    if sensitivity < free:
        return 0.0
    return (classic_sigma(free, min(DELTA * share / 2.0, 0.9)) * sensitivity) ** 2


def sections(work: Work) -> list[Section]:
    total, largest = float(CONSTANTS.sum()), float(CONSTANTS.max())
    full = gap(None, 0.0)
    lams = np.geomspace(0.3, 10.0, work.pick(4, 8))
    rows: list[tuple[Any, ...]] = []
    truth, bound, tuna, tuna_bound = [], [], [], []
    epsilon, sizes = 30.0, lams + total * MOVE
    for lam, size in zip(lams, sizes, strict=True):
        upper = float(size) + 1e-9  # the least K that allows this batch
        variance = noise_variance(epsilon, float(lam), upper)
        truth.append(gap(float(lam), variance) / full)
        options = {"upper": upper, "lam": float(lam), "total": total, "largest": largest, "longest": MOVE}
        bound.append(theory.published_gap_ratio(epsilon, DELTA, **options))
        tuna.append(gap(float(lam), 0.0) / full)
        tuna_bound.append(theory.tuna_gap_ratio(float(lam) / (total * MOVE) ** 2))
        rows.append(("batch", epsilon, float(lam), float(size), truth[-1], bound[-1], tuna[-1], tuna_bound[-1]))
    by_epsilon: dict[str, tuple[list[float], list[float]]] = {}
    epsilons = np.geomspace(4.0, 60.0, work.pick(4, 7))
    for lam in (1.0, 3.0, 10.0):
        shares = []
        for e in epsilons:
            upper = float(lam + total * MOVE) + 1e-9
            variance = noise_variance(float(e), lam, upper)
            shares.append(gap(lam, variance) / full)
            options = {"upper": upper, "lam": lam, "total": total, "largest": largest, "longest": MOVE}
            below = theory.published_gap_ratio(float(e), DELTA, **options)
            rows.append(("privacy", float(e), lam, upper, shares[-1], below, float("nan"), float("nan")))
        by_epsilon[f"λ = {lam:g}"] = (list(epsilons), shares)
    panels = [
        Panel(
            f"rate against batch (ε = {epsilon:g})",
            "expected batch",
            "share of the full-batch gap",
            {"published": (sizes, truth), "bound of Theorem 3": (sizes, bound)},
            log="x",
        ),
        Panel(
            "without noise: TunaMH",
            "expected batch",
            "share of the full-batch gap",
            {"exact": (sizes, tuna), "bound": (sizes, tuna_bound)},
            log="x",
        ),
        Panel("rate against ε of a step, by λ", "ε of a step", "share of the full-batch gap", by_epsilon, log="x"),
    ]
    save_panels(work, "theory", panels, columns=3)
    above = [row for row in rows if not row[5] <= row[4] + 1e-9]
    tight = max(row[5] / row[4] for row in rows if row[4] > 1e-6)
    reached = [b / t for b, t in zip(tuna_bound, tuna, strict=True)]
    claims = (
        Claim(
            "The spectral gap is at least what Theorem 3 says.",
            f"bound below the exact gap in {len(rows) - len(above)} of {len(rows)} settings; at most {tight:.2g} of it",
            verdict(not above),
        ),
        Claim(
            "TunaMH keeps at least exp(−1/χ − 2√(log 2/χ)) of the full batch's gap.",
            f"bound over exact between {min(reached):.2g} and {max(reached):.2g}",
            verdict(max(reached) <= 1.0 + 1e-9),
        ),
    )
    text = (
        "Exact spectral gaps by enumeration on seven states and three records, as shares of the gap of full-batch "
        "Metropolis-Hastings, beside the "
        f"lower bounds (the statement's constant 216; δ = {DELTA:g}). K is the least that allows the batch. More "
        "privacy or a smaller batch costs rate."
    )
    columns = (
        "figure",
        "epsilon a step",
        "lambda",
        "batch or K",
        "exact share of gap",
        "bound of Theorem 3",
        "exact without noise",
        "bound of TunaMH",
    )
    return [Section("theory", "Privacy, batch and rate of convergence", text, columns, rows, claims)]
