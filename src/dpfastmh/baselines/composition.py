"""What many releases cost together: the accountants by which the compared systems are put on one scale.

Neighbours are tables that differ in one replaced record. Every method's total is an (ε, δ) for all its steps together,
by the best accounting that is rigorous for it, so that no competitor looks worse than it is:

* steps that release Gaussian noise on a full-data quantity: the T-fold composition of Gaussian mechanisms *is* one
  Gaussian mechanism with ρ = Σ1/(2σ_t²), adaptively too (Dong, Roth & Su 2022), so its exact δ(ε) is used;
* everything else: Rényi divergences, which add up, converted at the best order.

The weaker rules that the literature uses (basic, advanced, the older Rényi conversion) are here under their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from dpfastmh.budget import (
    Budget,
    checked_count,
    checked_order,
    checked_real,
    epsilon_from_rdp,
    gaussian_delta,
    gaussian_limit_rho,
)

FloatArray = npt.NDArray[np.float64]
Curve = Callable[[float], float]  # Rényi order α > 1 -> divergence

ORDERS = tuple(
    [1.0 + k / 20 for k in range(1, 60)] + [4.0 + k / 4 for k in range(64)] + [20.0 * 1.1**k for k in range(60)]
)
WHOLE_ORDERS = (*range(2, 65), *sorted({round(64 * 1.25**k) for k in range(1, 12)}))


class Claim(NamedTuple):
    """(ε, δ) of a composition; δ may pass 1, where nothing is claimed any more."""

    epsilon: float
    delta: float


# -- (ε, δ) a step ---------------------------------------------------------------------------------------------------
def basic(epsilon: float, delta: float, steps: int) -> Claim:
    """(Tε, Tδ)."""
    return Claim(steps * epsilon, steps * delta)


def advanced(epsilon: float, delta: float, steps: int, slack: float | None = None) -> Claim:
    """(√(2T log(1/δ′)) ε + Tε(e^ε − 1), Tδ + δ′); δ′ = δ unless given, as in the paper: (T+1)δ."""
    extra = delta if slack is None else slack
    spread = math.sqrt(2.0 * steps * -math.log(extra)) * epsilon
    return Claim(spread + steps * epsilon * math.expm1(epsilon), steps * delta + extra)


# -- Gaussian noise --------------------------------------------------------------------------------------------------
def classic_sigma(epsilon: float, delta: float) -> float:
    """σ = √(2 log(1.25/δ))/ε for sensitivity 1: the classical calibration, proven for ε < 1 only."""
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def analytic_sigma(epsilon: float, delta: float) -> float:
    """The least σ for which sensitivity 1 is (ε, δ)-private, at any ε (Balle & Wang 2018)."""
    return 1.0 / math.sqrt(2.0 * gaussian_limit_rho(Budget(epsilon, delta)))


def gaussian_rho(sigma: float, steps: int = 1) -> float:
    """ρ = T/(2σ²): zCDP of T releases with noise of σ sensitivities."""
    return checked_count(steps, "steps") / (2.0 * checked_real(sigma, "sigma", "a number above 0", 0.0) ** 2)


def gaussian_epsilon(rho: float, delta: float) -> float:
    """ε at δ of Gaussian mechanisms of total ρ, exactly: the root of δ(ε) = δ, rounded up."""
    if rho <= 0.0 or gaussian_delta(0.0, rho) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, rho) > delta:
        high *= 2.0
    low = 0.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_delta(middle, rho) > delta else (low, middle)
    return high


def gaussian_rho_for(budget: Budget) -> float:
    """The ρ that Gaussian mechanisms may reach in all: the inverse of ``gaussian_epsilon``, rounded down."""
    return gaussian_limit_rho(budget) * (1.0 - 1e-12)


def gaussian_sigma_for(budget: Budget, steps: int) -> float:
    """The noise, in sensitivities, at which ``steps`` releases cost the budget."""
    return math.sqrt(checked_count(steps, "steps") / (2.0 * gaussian_rho_for(budget)))


# -- Rényi -----------------------------------------------------------------------------------------------------------
def gaussian_rdp(sigma: float) -> Curve:
    """α/(2σ²)."""
    return lambda alpha: alpha / (2.0 * sigma * sigma)


def epsilon_of(
    curve: Curve, steps: int, delta: float, *, classic: bool = False, orders: Iterable[float] = ORDERS
) -> float:
    """The least ε over the orders. ``classic``: ε = Tr + log(1/δ)/(α−1), the moments accountant's own conversion."""
    best = math.inf
    for alpha in orders:
        total = steps * curve(alpha)
        if math.isnan(total) or total < 0.0:
            raise ValueError(f"the Rényi cost at order {alpha:g} is {total!r}: it must be a number of at least 0")
        if math.isfinite(total):
            found = total - math.log(delta) / (alpha - 1.0) if classic else epsilon_from_rdp(total, delta, alpha)
            best = min(best, found)
    return best


def between_whole_orders(curve: Curve) -> Curve:
    """A curve known at whole orders, as an upper bound at all: (α−1)D_α is convex in α and 0 at α = 1."""

    def bound(alpha: float) -> float:
        low = math.floor(checked_order(alpha))
        if alpha == low:
            return curve(alpha)
        below = (low - 1) * curve(low) if low > 1 else 0.0
        above = low * curve(low + 1)
        share = alpha - low
        return ((1.0 - share) * below + share * above) / (alpha - 1.0)

    return bound


def sampled_gaussian_rdp(rate: float, sigma: float) -> Curve:
    """Poisson sampling at ``rate`` q, records of norm ≤ 1, noise σ; a record **added or removed**; whole orders.

    exp((α−1)D_α) = Σ_k C(α,k) (1−q)^{α−k} q^k e^{k(k−1)/2σ²}: the binomial expansion of E[(dP/dR)^α] with
    P = (1−q)N(0,σ²) + qN(1,σ²) and R = N(0,σ²); the opposite direction is never larger (Mironov, Talwar & Zhang 2019).
    """
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"the sampling rate is {rate!r}: it is a probability")

    def curve(alpha: float) -> float:
        order = _whole(alpha)
        if rate == 0.0:
            return 0.0
        if rate == 1.0:
            return order / (2.0 * sigma * sigma)
        k = np.arange(order + 1)
        return max(0.0, _log_sum(_binomial_terms(order, rate) + k * (k - 1) / (2.0 * sigma * sigma))) / (order - 1)

    return curve


def sampled_gaussian_replaced_rdp(rate: float, sigma: float) -> Curve:
    """The same for a record **replaced** by another; whole orders. The least of three rigorous bounds.

    P = R·(1 + q(h−1)) and Q = R·(1 + q(h′−1)), R the law without the record and h, h′ the ratios of the Gaussians
    shifted by the two records' parts, of norm ≤ 1, to R. With s = 1/2σ², E_R[h^k h′^m] is at most
    e^{(k(k−1) + m(m−1) + 2km)s}, and E_R[h^k h′] at least e^{(k(k−1) − 2k)s}.

    1. ``_expanded``: (1+x)^{1−α} ≤ 1 − (α−1)x + ½α(α−1)(1−q)^{−α−1}x² for x = q(h′−1) ≥ −q, so
       E_Q[(P/Q)^α] ≤ Σ_k C(α,k)(1−q)^{α−k}q^k e^{k(k−1)s} [1 + (α−1)q(1 − e^{−2ks})
       + ½α(α−1)(1−q)^{−α−1}q²(e^{2s+4ks} − 2e^{2ks} + 1)]. The first bracketed part grows with the norms and with the
       angle between the two shifts; the last one is largest for equal shifts of norm 1.
    2. Through R: D_α(P‖Q) ≤ (α−½)/(α−1)·D_{2α}(P‖R) + D_{2α−1}(R‖Q) (Mironov 2017, Proposition 11 at p = 2).
    3. Without sampling, D_α being quasi-convex: 2α/σ².

    For small costs the first two are sharp, α·4q²/(2σ²): twice the shift of a record removed.
    """
    removed = sampled_gaussian_rdp(rate, sigma)

    def curve(alpha: float) -> float:
        order = _whole(alpha)
        if rate == 0.0:
            return 0.0
        whole = 2.0 * order / (sigma * sigma)
        if rate == 1.0:
            return whole
        through = (order - 0.5) / (order - 1.0) * removed(2 * order) + removed(2 * order - 1)
        return max(0.0, min(through, _expanded(rate, sigma, order), whole))  # rounding, where next to nothing is lost

    return curve


def _expanded(rate: float, sigma: float, order: int) -> float:
    s = 1.0 / (2.0 * sigma * sigma)
    second = 2.0 * math.log(rate) + math.log(order * (order - 1) / 2.0) - (order + 1) * math.log1p(-rate)
    k = np.arange(order + 1)
    base = _binomial_terms(order, rate) + k * (k - 1) * s
    later = base[1:], k[1:]
    first = later[0] + math.log((order - 1) * rate) + np.log(-np.expm1(-2.0 * s * later[1]))
    rising = later[0] + second + 2.0 * _log_expm1(2.0 * s * later[1])
    level = base + second + 4.0 * s * k + _log_expm1(2.0 * s)
    return _log_sum(np.concatenate([base, first, rising, level])) / (order - 1)


def _binomial_terms(n: int, rate: float) -> FloatArray:
    """log C(n,k) + (n−k) log(1−q) + k log q for k = 0, ..., n."""
    k = np.arange(n + 1)
    return np.asarray(_log_choose(n, k) + (n - k) * math.log1p(-rate) + k * math.log(rate))


def _log_expm1(x: Any) -> Any:
    """log(e^x − 1)."""
    return x + np.log(-np.expm1(-x))


def subsampled_rdp(curve: Curve, rate: float) -> Curve:
    """Amplification by a batch drawn without replacement, q = b/N (Wang, Balle & Kasiviswanathan 2019); whole orders:

    (1/(α−1)) log(1 + q²C(α,2) min{4(e^{ε(2)} − 1), 2e^{ε(2)}} + 2Σ_{j=3}^α q^j C(α,j) e^{(j−1)ε(j)}).
    """

    def amplified(alpha: float) -> float:
        order = _whole(alpha)
        if rate == 0.0:
            return 0.0
        j = np.arange(3, order + 1)
        second, costs = curve(2), np.array([curve(int(at)) for at in j])
        if not (math.isfinite(second) and np.isfinite(costs).all()):
            return math.inf
        near = math.log(4.0) + float(_log_expm1(second)) if second > 0.0 else -math.inf
        quadratic = 2.0 * math.log(rate) + math.log(order * (order - 1) / 2.0) + min(near, math.log(2.0) + second)
        rest = math.log(2.0) + j * math.log(rate) + _log_choose(order, j) + (j - 1) * costs
        return _log_sum(np.concatenate([[0.0, quadratic], rest])) / (order - 1)

    return amplified


def _whole(alpha: float) -> int:
    order = round(alpha)
    if order != alpha or order < 2:
        raise ValueError(f"the Rényi order is {alpha!r}: this cost is known at whole orders from 2 on")
    return order


def _log_choose(n: int, k: npt.NDArray[np.int64]) -> FloatArray:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def _log_sum(terms: FloatArray) -> float:
    top = float(np.max(terms))
    return top + math.log(float(np.exp(terms - top).sum()))


# -- the inverse -----------------------------------------------------------------------------------------------------
def least_noise(cost: Callable[[float], float], budget: Budget, low: float = 1e-3, high: float = 1e9) -> float:
    """The least noise whose ``cost(noise)``, an ε at the budget's δ that falls with noise, keeps to the budget."""
    if cost(high) > budget.epsilon:
        raise ValueError(f"no noise up to {high:g} keeps to epsilon={budget.epsilon:g}: take fewer steps")
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) > budget.epsilon else (low, middle)
        if high <= low * (1.0 + 1e-6):
            break
    return high
