"""Losses: the energy L(η; y) of one record as a function of its linear predictor η = x·θ.

Each loss is a NamedTuple that the compiled loop takes as it is, with three proven public constants over every predictor
and every admissible target:

    |L′| ≤ L1,   |L″| ≤ L2,   |L‴| ≤ L3.

L1 bounds what one record can do to a log-ratio, |L(η+δ) − L(η)| ≤ L1|δ|, and L2 and L3 bound what is left of it after
a first- or second-order expansion around a reference. ``convex`` says that L″ ≥ 0, which makes the release of a Hessian
cheaper. Tests check every constant against brute force and find it attained to within a per cent where it is sharp.

Softmax has several predictors. Its constants then bound directional derivatives: with range(u) = max_k u_k − min_k u_k,
|∇L·u| ≤ range(u), |∇²L[u, v]| ≤ L2 range(u) range(v) and |∇³L[u, v, v]| ≤ L3 range(u) range(v)².
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dpfastmh.steps.dispatch import generic_inlined
from dpfastmh.steps.elementary import exp, log, log1p, sigmoid, softplus, softplus_change

_CUBIC = 1.0 / (6.0 * math.sqrt(3.0))  # sup |σ(1−σ)(1−2σ)|, at σ = ½ ± √3/6


# -- what a loss must supply -----------------------------------------------------------------------------------------
@generic_inlined
def value(loss: Any, eta: float, y: float) -> Any:
    """L(η; y) up to a constant of the record. For real outcomes L(η; y) − L(0; y), which L1|η| bounds: an energy as
    large as the residual of a far outlier would lose to rounding what its bound lets through."""


@generic_inlined
def change(loss: Any, eta: float, step: float, y: float) -> Any:
    """L(η + step; y) − L(η; y), without cancellation when the step is small."""


@generic_inlined
def slope(loss: Any, eta: float, y: float) -> Any:
    """L′(η; y)."""


@generic_inlined
def curvature(loss: Any, eta: float, y: float) -> Any:
    """L″(η; y)."""


@generic_inlined
def record_bound(loss: Any, l1: float, reach: float, support: float) -> Any:
    """The public bound on |L(η+δ) − L(η)|: ``support`` is s(δ), ``reach`` is max(s(θ), s(θ′))."""


# -- binary outcomes -------------------------------------------------------------------------------------------------
class Logistic(NamedTuple):
    """y ∈ {0, 1}, P(y = 1) = σ(η): L = log(1 + e^η) − yη.

    L′ = σ − y lies in (−1, 1), so L1 = 1. L″ = σ(1−σ) ≤ 1/4 at σ = 1/2. L‴ = σ(1−σ)(1−2σ); its square is
    w(1−4w)·w with w = σ(1−σ) ≤ 1/4, largest at w = 1/6, where it is 1/108: L3 = 1/(6√3).
    """

    @property
    def constants(self) -> tuple[float, float, float]:
        return 1.0, 0.25, _CUBIC

    @property
    def convex(self) -> bool:
        return True

    @property
    def predictors(self) -> int:
        return 1


@value.of(Logistic)
def _logistic_value(loss: Any, eta: float, y: float) -> Any:
    return softplus(eta) - y * eta


@change.of(Logistic)
def _logistic_change(loss: Any, eta: float, step: float, y: float) -> Any:
    return softplus_change(eta, step) - y * step


@slope.of(Logistic)
def _logistic_slope(loss: Any, eta: float, y: float) -> Any:
    return sigmoid(eta) - y


@curvature.of(Logistic)
def _logistic_curvature(loss: Any, eta: float, y: float) -> Any:
    """σ·(e^−η σ), the bracket being 1 − σ without cancellation: one exponential serves both derivatives."""
    chance = sigmoid(eta)
    return chance * (exp(-eta) * chance)


@record_bound.of(Logistic)
def _logistic_bound(loss: Any, l1: float, reach: float, support: float) -> Any:
    """σ(reach)·s(δ): along the move |η| ≤ reach, and |σ(η) − y| ≤ σ(|η|) ≤ σ(reach). Between ½ and 1 times s(δ)."""
    return support / (1.0 + exp(-reach))


# -- real outcomes, r = y − η ----------------------------------------------------------------------------------------
class StudentT(NamedTuple):
    """y = η + scale·t with ``df`` degrees of freedom: L = (ν+1)/2 · log(1 + r²/(νs²)).

    With r = √ν s t: L′ = −(ν+1)/(√ν s) · t/(1+t²), largest at t = 1: L1 = (ν+1)/(2√ν s).
    L″ = (ν+1)/(νs²) · (1−t²)/(1+t²)², which is 1 at t = 0 and no lower than −1/8 at t² = 3: L2 = (ν+1)/(νs²).
    |L‴| = (ν+1)/(ν^{3/2}s³) · 2|t||t²−3|/(1+t²)³, stationary where t⁴ − 6t² + 1 = 0, largest at t = √2 − 1, where the
    last factor is 4√2(√2−1)/(4−2√2)³ = 1.4571067...
    """

    df: float
    scale: float

    @property
    def constants(self) -> tuple[float, float, float]:
        nu, s = self.df, self.scale
        third = 4.0 * math.sqrt(2.0) * (math.sqrt(2.0) - 1.0) / (4.0 - 2.0 * math.sqrt(2.0)) ** 3
        return (
            (nu + 1.0) / (2.0 * math.sqrt(nu) * s),
            (nu + 1.0) / (nu * s**2),
            (nu + 1.0) / (nu**1.5 * s**3) * third,
        )

    @property
    def convex(self) -> bool:
        return False

    @property
    def predictors(self) -> int:
        return 1


@value.of(StudentT)
def _student_value(loss: Any, eta: float, y: float) -> Any:
    return change(loss, 0.0, eta, y)


@change.of(StudentT)
def _student_change(loss: Any, eta: float, step: float, y: float) -> Any:
    """From the endpoint with the smaller residual, where the argument of log1p is positive."""
    before = y - eta
    after = before - step
    near = min(abs(before), abs(after))
    gain = abs(step * (before + after)) / (loss.df * loss.scale * loss.scale + near * near)
    rise = 0.5 * (loss.df + 1.0) * log1p(gain)
    return rise if abs(after) >= abs(before) else -rise


@slope.of(StudentT)
def _student_slope(loss: Any, eta: float, y: float) -> Any:
    r = y - eta
    return -(loss.df + 1.0) * r / (loss.df * loss.scale * loss.scale + r * r)


@curvature.of(StudentT)
def _student_curvature(loss: Any, eta: float, y: float) -> Any:
    r = y - eta
    spread = loss.df * loss.scale * loss.scale
    return (loss.df + 1.0) * (spread - r * r) / ((spread + r * r) * (spread + r * r))


class PseudoHuber(NamedTuple):
    """L = √(1 + t²) − 1 with t = r/s: quadratic near 0, linear far out.

    |L′| = |t|/√(1+t²)/s < 1/s. L″ = (1+t²)^{−3/2}/s² ≤ 1/s². |L‴| = 3|t|(1+t²)^{−5/2}/s³, largest at t² = 1/4.
    """

    scale: float

    @property
    def constants(self) -> tuple[float, float, float]:
        s = self.scale
        return 1.0 / s, 1.0 / s**2, 1.5 * 1.25**-2.5 / s**3

    @property
    def convex(self) -> bool:
        return True

    @property
    def predictors(self) -> int:
        return 1


@value.of(PseudoHuber)
def _huber_value(loss: Any, eta: float, y: float) -> Any:
    return change(loss, 0.0, eta, y)


@change.of(PseudoHuber)
def _huber_change(loss: Any, eta: float, step: float, y: float) -> Any:
    before = (y - eta) / loss.scale
    shift = step / loss.scale
    after = before - shift
    return -shift * (before + after) / (math.sqrt(1.0 + before * before) + math.sqrt(1.0 + after * after))


@slope.of(PseudoHuber)
def _huber_slope(loss: Any, eta: float, y: float) -> Any:
    t = (y - eta) / loss.scale
    return -t / (loss.scale * math.sqrt(1.0 + t * t))


@curvature.of(PseudoHuber)
def _huber_curvature(loss: Any, eta: float, y: float) -> Any:
    t = (y - eta) / loss.scale
    w = 1.0 + t * t
    return 1.0 / (loss.scale * loss.scale * w * math.sqrt(w))


class LogisticError(NamedTuple):
    """y = η + s·(logistic noise): L = t + 2 log(1 + e^−t), t = r/s.

    L′ = −(1 − 2σ(−t))/s lies in ±1/s. L″ = 2σ(1−σ)/s² ≤ 1/(2s²). |L‴| = 2|σ(1−σ)(1−2σ)|/s³ ≤ 1/(3√3 s³).
    """

    scale: float

    @property
    def constants(self) -> tuple[float, float, float]:
        s = self.scale
        return 1.0 / s, 0.5 / s**2, 2.0 * _CUBIC / s**3

    @property
    def convex(self) -> bool:
        return True

    @property
    def predictors(self) -> int:
        return 1


@value.of(LogisticError)
def _logistic_error_value(loss: Any, eta: float, y: float) -> Any:
    """|t| + 2 log(1 + e^−|t|) less the same at η = 0; where the residual keeps its sign, |t| changes by ∓η/s."""
    start = y / loss.scale
    t = (y - eta) / loss.scale
    moved = math.copysign(eta / loss.scale, -start * eta) if start * t > 0.0 else abs(t) - abs(start)
    return moved + 2.0 * (log1p(exp(-abs(t))) - log1p(exp(-abs(start))))


@change.of(LogisticError)
def _logistic_error_change(loss: Any, eta: float, step: float, y: float) -> Any:
    t = (y - eta) / loss.scale
    shift = step / loss.scale
    return 2.0 * softplus_change(-t, shift) - shift


@slope.of(LogisticError)
def _logistic_error_slope(loss: Any, eta: float, y: float) -> Any:
    t = (y - eta) / loss.scale
    return (sigmoid(-t) - sigmoid(t)) / loss.scale


@curvature.of(LogisticError)
def _logistic_error_curvature(loss: Any, eta: float, y: float) -> Any:
    t = (y - eta) / loss.scale
    return 2.0 * sigmoid(t) * sigmoid(-t) / (loss.scale * loss.scale)


# -- counts ----------------------------------------------------------------------------------------------------------
class Poisson(NamedTuple):
    """Counts with mean μ = log(1 + e^η) and a public cap: L = μ − y log μ, 0 ≤ y ≤ cap.

    μ′ = σ. Put q = (log μ)′ = σ/μ. In terms of μ, σ = 1 − e^{−μ}, so q = φ(μ) = ∫₀¹ e^{−μs} ds lies in (0, 1),
    φ′ = −∫ s e^{−μs} ds ∈ (−½, 0) and φ″ = ∫ s² e^{−μs} ds ∈ (0, ⅓). Hence

        L′ = σ − yq ∈ (−y, 1)                                  → L1 = max(1, cap)
        L″ = σ(1−σ) + y|q′|,  q′ = φ′σ,                        → L2 = 1/4 + cap·sup|q′|
        L‴ = σ(1−σ)(1−2σ) − yq″,  q″ = σ(φ″σ + φ′(1−σ)),       → L3 = 1/(6√3) + cap·sup|q″|.

    sup|q′| < 0.1671 and sup|q″| < 0.0610: maxima of smooth functions of η alone, bounded on a grid of spacing h by its
    largest value plus h times a bound on the next derivative (|q″| < 1, |q‴| < 2), and beyond ±30 by |q′|, |q″| ≤ μ at
    the left and ≤ 2/μ² at the right. A test repeats that computation.
    """

    cap: float

    @property
    def constants(self) -> tuple[float, float, float]:
        return max(1.0, self.cap), 0.25 + 0.1671 * self.cap, _CUBIC + 0.0610 * self.cap

    @property
    def convex(self) -> bool:
        return True

    @property
    def predictors(self) -> int:
        return 1


_FLOOR = -690.0  # below it the mean is 1e-300 and its logarithm is η itself


@value.of(Poisson)
def _poisson_value(loss: Any, eta: float, y: float) -> Any:
    mean = softplus(max(eta, _FLOOR))
    return mean - y * (log(mean) + min(eta - _FLOOR, 0.0))


@change.of(Poisson)
def _poisson_change(loss: Any, eta: float, step: float, y: float) -> Any:
    """From the lower end up. Below the floor the mean is nothing and its logarithm is η itself."""
    low = min(eta, eta + step)
    held = max(low, _FLOOR)
    under = min(held - low, abs(step))
    rise = softplus_change(held, abs(step) - under)
    total = rise - y * (under + log1p(rise / softplus(held)))
    return total if step >= 0.0 else -total


@slope.of(Poisson)
def _poisson_slope(loss: Any, eta: float, y: float) -> Any:
    held = max(eta, _FLOOR)
    s = sigmoid(held)
    return s - y * (s / softplus(held))  # y over the mean alone overflows


@curvature.of(Poisson)
def _poisson_curvature(loss: Any, eta: float, y: float) -> Any:
    held = max(eta, _FLOOR)
    s = sigmoid(held)
    q = s / softplus(held)
    return s * (1.0 - s) - y * q * (1.0 - s - q)


@record_bound.of(StudentT, PseudoHuber, LogisticError, Poisson)
def _general_bound(loss: Any, l1: float, reach: float, support: float) -> Any:
    return l1 * support


# -- classes ---------------------------------------------------------------------------------------------------------
class Softmax(NamedTuple):
    """y ∈ {0, ..., K−1}, P(y = k) ∝ e^{η_k} with η_0 = 0: L = log Σ_k e^{η_k} − η_y; K−1 predictors η_1, ..., η_{K−1}.

    With P the class probabilities and u, v, δ vectors over all K classes (entry 0 is 0), the derivatives are cumulants
    of a class drawn from P, and constants drop out of each:

    * ∇L·δ = E δ − δ_y, at most range(δ): L1 = 1.
    * ∇²L[u, v] = Cov(u, v), at most range(u) range(v)/4 (Popoviciu): L2 = 1/4.
    * ∇³L[δ, v, v] = Cov(δ, (v − Ev)²) ≤ range(δ) range(v)²/(6√3), L3 as for two classes. Proof. Linear in δ, so extreme
      where δ is the indicator of a set of classes, of probability q; scale v into [0, 1]. With means m₁, m₀ and
      variances v₁, v₀ of v inside and outside the set, the value is q(1−q)(v₁ − v₀ + (1−2q)(m₁−m₀)²), and
      v₀ ≥ 0, v₁ ≤ m₁(1−m₁). For q ≤ ½ the largest is at m₀ = 0 (or its mirror): q(1−q)(m₁ − 2q m₁²), that is
      (1−q)/8 ≤ 3/32 for q ≥ ¼ (m₁ = 1/(4q)) and q(1−q)(1−2q) ≤ 1/(6√3) below; for q > ½ it is at most q(1−q)/4 ≤ 1/16.
      The complement of the set gives the other sign. 3/32 < 1/(6√3). ∎
    """

    classes: int

    @property
    def constants(self) -> tuple[float, float, float]:
        return 1.0, 0.25, _CUBIC

    @property
    def convex(self) -> bool:
        return True

    @property
    def predictors(self) -> int:
        return self.classes - 1


@record_bound.of(Softmax)
def _softmax_bound(loss: Any, l1: float, reach: float, support: float) -> Any:
    """(1 − p)·s(δ) with p the least probability of the true class: |∇L·δ| = |Σ_k P_k (δ_k − δ_y)| ≤ (1 − P_y) range(δ),
    and P_y ≥ 1/(1 + (K−1)e^{range(η)}), range(η) ≤ reach along the move."""
    others = loss.classes - 1.0
    return support / (1.0 + exp(-reach) / others)


SCALAR_LOSSES = (Logistic, StudentT, PseudoHuber, LogisticError, Poisson)
