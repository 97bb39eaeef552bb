# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
"""Clipped gradients of single records, for the methods that move along them.

ḡ_i(θ) = ∇U_i(θ)·min(1, clip/‖∇U_i(θ)‖₂), U_i with its 1/τ. A record replaced changes Σ ḡ_i by at most 2·clip.
"""

from __future__ import annotations

import math

from dpfastmh.priors import FLAT, LAPLACE, NORMAL
from dpfastmh.steps.dispatch import generic
from dpfastmh.steps.elementary import compiled, sigmoid
from dpfastmh.steps.likelihood import GLMTable, derivatives, predictors
from dpfastmh.steps.memory import dot
from dpfastmh.steps.mixture import MixtureTable


@generic
def add_clipped_gradient(model, rows, work, i, theta, clip, out):
    """out += ḡ_i(θ)."""


@compiled
def clipping_share(model, square, clip):
    """1/τ·min(1, clip/‖∇U/τ‖) for a gradient of squared length ``square`` before 1/τ."""
    norm = math.sqrt(square) * model.inverse_temperature
    return model.inverse_temperature * (clip / norm if norm > clip else 1.0)


@add_clipped_gradient.of(GLMTable)
def _glm_gradient(model, rows, work, i, theta, clip, out):
    """∇U = slopes ⊗ x, so its length is ‖slopes‖·‖x‖."""
    d, row = rows.x.shape[1], work.row
    work.y[0] = rows.y[i]
    for k in range(predictors(model.loss)):
        work.eta[k, 0] = dot(rows.x, i, theta[k * d : (k + 1) * d])
    derivatives(model.loss, work.eta, work.y, 0, work.slopes, work.curvatures)
    source = rows.x[i]
    for j in range(d):
        row[j] = source[j]
    square = 0.0
    for k in range(predictors(model.loss)):
        square += work.slopes[k] ** 2
    share = clipping_share(model, square * dot(rows.x, i, row), clip)
    for k in range(predictors(model.loss)):
        slope, part = share * work.slopes[k], out[k * d : (k + 1) * d]  # a slice: sums of indices do not vectorise
        for j in range(d):
            part[j] += slope * row[j]


@add_clipped_gradient.of(MixtureTable)
def _mixture_gradient(model, rows, work, i, theta, clip, out):
    """(w₁a + w₂b, w₂b), a = (θ₁−x)/σ², b = (θ₁+θ₂−x)/σ², w₂ = σ(−D): see ``dpfastmh.models.Mixture``."""
    x = float(rows.x[i, 0])
    near, far = (theta[0] - x) / model.variance, (theta[0] + theta[1] - x) / model.variance
    weight = sigmoid(-theta[1] * (theta[0] + 0.5 * theta[1] - x) / model.variance)
    first, second = (1.0 - weight) * near + weight * far, weight * far
    share = clipping_share(model, first * first + second * second, clip)
    out[0] += share * first
    out[1] += share * second


@compiled
def add_prior_gradient(prior, theta, out):
    """out += ∇(−log prior)(θ)."""
    for j in range(theta.size):
        z = (theta[j] - prior.loc[j]) / prior.scale[j]
        if prior.kind[j] == NORMAL:
            out[j] += z / prior.scale[j]
        elif prior.kind[j] == LAPLACE:
            out[j] += math.copysign(1.0, z) / prior.scale[j]
        elif prior.kind[j] != FLAT:
            out[j] += (prior.df[j] + 1.0) * z / ((prior.df[j] + z * z) * prior.scale[j])
