"""Posteriors for the tests of what comes after sampling: Gaussian draws around given means, every shape of output."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from dpfastmh import (
    Ball,
    Box,
    HuberRegression,
    LogisticErrorRegression,
    LogisticRegression,
    Normal,
    OneHot,
    PoissonRegression,
    SoftmaxRegression,
    StudentT,
    StudentTRegression,
)
from dpfastmh.models import GLM
from dpfastmh.posterior import Posterior, Privacy

BOX = Box(age=(18.0, 95.0), dose=(0.0, 10.0))
CATEGORIES = OneHot("sex", ["F", "M"])


def models() -> dict[str, GLM]:
    """One model of each kind, between them every kind of domain and prior."""
    return {
        "logistic": LogisticRegression(BOX * CATEGORIES, classes=["no", "yes"]),
        "student-t": StudentTRegression(BOX, prior=StudentT(3.0, 2.0), df=4.0, scale=0.5, target_bounds=(-20.0, 20.0)),
        "huber": HuberRegression(Ball(4.0, ["u", "v"]), scale=2.0),
        "logistic-error": LogisticErrorRegression((Box(a=(-1, 1), b=(0, 3)) & Ball(1.2)) * CATEGORIES, scale=1.5),
        "poisson": PoissonRegression(BOX, prior=Normal(1.0), cap=30.0, temperature=4.0),
        "softmax": SoftmaxRegression(BOX * OneHot("ward", [1, 2, 3]), classes=["red", "green", "blue"]),
    }


def privacy(**changed: Any) -> Privacy:
    facts: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "epsilon_spent": 0.998,
        "delta_spent": 1e-6,
        "alpha": 25.5,
        "rdp_spent": 0.51,
        "units": 50_000,
        "unit": "row",
        "max_rows_per_unit": 1,
        "method": "dp-fast-mh",
        "exact_target": "posterior",
        "private": True,
        "temperature": 1.0,
        "chains": 2,
        "steps": 60_000,
        "draws": 800,
        "releases": (
            {"what": "hessian", "rdp": 0.04},
            {"what": "gradient", "rdp": 0.08},
            {"what": "accept bits", "rdp": 0.39},
        ),
        "library_version": "0.1.0",
    }
    return Privacy(**(facts | changed))


def synthetic(
    model: GLM | None = None,
    *,
    chains: int = 2,
    draws: int = 400,
    sd: float = 0.2,
    correlation: float = 0.0,
    seed: int = 0,
    names: tuple[str, ...] | None = None,
    **changed: Any,
) -> Posterior:
    """Gaussian draws (autoregressive with this ``correlation``) around −1, ..., 1; fields of the statement by name."""
    if model is None and names is None:
        model = models()["logistic"]
    names = names or tuple(model.parameters)  # type: ignore[union-attr]
    rng = np.random.default_rng(seed)
    count = len(names)
    values = np.empty((chains, draws, count))
    values[:, 0] = rng.standard_normal((chains, count))
    for t in range(1, draws):
        noise = rng.standard_normal((chains, count))
        values[:, t] = correlation * values[:, t - 1] + math.sqrt(1.0 - correlation**2) * noise
    centers = np.linspace(-1.0, 1.0, count)
    tried = np.full((chains, count), 10_000, dtype=np.int64)
    steps = np.linspace(0.0, 60_000.0, 13)
    spending = np.column_stack([steps, 0.25 + (0.998 - 0.25) * np.sqrt(steps / 60_000.0)])
    temperature = 1.0 if model is None else model.temperature
    target = "posterior" if temperature == 1.0 else "tempered"
    facts = {"temperature": temperature, "exact_target": target, "chains": chains, "draws": chains * draws} | changed
    return Posterior(
        names=names,
        draws=centers + sd * values,
        accepted=(tried * rng.uniform(0.05, 0.12, tried.shape)).astype(np.int64),
        tried=tried,
        spending=spending,
        privacy=privacy(**facts),
        model=model,
        start={"point": np.zeros(count), "error": np.full(count, 0.3)},
        outcome="readmitted",
    )


def replaced(posterior: Posterior, **changed: Any) -> Posterior:
    """The same with other fields, and none of the diagnostics computed for the old ones."""
    return dataclasses.replace(posterior, _diagnostics={}, **changed)
