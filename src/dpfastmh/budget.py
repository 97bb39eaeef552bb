"""The total privacy budget (ε, δ), and the exchange between (ε, δ) and Rényi divergence.

Nothing here reads data. A run promises (ε, δ)-differential privacy for everything that it lets out: for every two
tables that differ in one unit, and every set S of outputs, P(S) ≤ e^ε Q(S) + δ. Inside, costs are counted as Rényi
divergences of one fixed order α > 1,

    D_α(P‖Q) = log E_Q[(dP/dQ)^α] / (α−1),

because those simply add up (`dpfastmh.privacy.filter`). This module says how much Rényi divergence a budget allows.

**Theorem** (Canonne, Kamath and Steinke 2020, *The Discrete Gaussian for Differential Privacy*, Proposition 12). If
D_α(P‖Q) ≤ r, then P(S) ≤ e^ε Q(S) + δ for all S, with

    ε = r + [log(1/δ) + (α−1) log(1−1/α) − log α] / (α−1).

*Proof.* Let Z = log(dP/dQ) under P. The best δ for a given ε is E[max(0, 1 − e^{ε−Z})]. For every real z,
max(0, 1 − e^{ε−z}) ≤ c·e^{(α−1)(z−ε)} with c = (1−1/α)^{α−1}/α: at z ≤ ε the left side is 0, and beyond, with
y = e^{z−ε} ≥ 1, the ratio (1 − 1/y)·y^{−(α−1)} has its maximum at y = α/(α−1), where it is c. So
δ ≤ c·e^{−(α−1)ε}·E_P[e^{(α−1)Z}] ≤ c·e^{(α−1)(r−ε)}; solve for ε. ∎

Rounding is always against us: what may be spent is rounded down, what has been spent is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real

__all__ = [
    "Budget",
    "best_alpha",
    "epsilon_from_rdp",
    "float_reserve",
    "gaussian_delta",
    "gaussian_limit_rho",
    "rdp_budget",
]

# Each conversion adds five or six floats of relative error about 2⁻⁵²; 2⁻⁴⁸ of the sum of their sizes covers that with
# room. Downwards four times as much is taken, so that converting a limit back never lands above the ε it came from.
_SLACK_UP = 2.0**-48
_SLACK_DOWN = 2.0**-46


def checked_real(value: object, name: str, rule: str, low: float, high: float = math.inf) -> float:
    """`value` as a float strictly between `low` and `high`; anything else is a ValueError of one line."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if low < number < high:
            return number
    raise ValueError(f"{name} must be {rule}, got {value!r}")


def checked_cost(value: object, name: str) -> float:
    """`value` as a finite float ≥ 0: a cost that is unknown is never taken for free."""
    if isinstance(value, Real) and not isinstance(value, bool) and value == 0:
        return 0.0
    return checked_real(value, name, "a finite number, zero or more", 0.0)


def checked_count(value: object, name: str) -> int:
    """`value` as an int ≥ 1."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        count = int(value)
        if count >= 1:
            return count
    raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def checked_order(alpha: object) -> float:
    """A Rényi order: finite and above 1."""
    return checked_real(alpha, "the Rényi order alpha", "a finite number above 1", 1.0)


@dataclass(frozen=True)
class Budget:
    """The total privacy loss that a run may cause, everything it releases counted: (ε, δ).

    `epsilon` bounds how far one unit can shift the odds of any output (by e^ε); `delta` is the small probability with
    which that may fail. δ has no default, because a sensible one depends on how many units there are.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checked_real(self.epsilon, "epsilon", "a finite number above 0", 0.0))
        object.__setattr__(
            self, "delta", checked_real(self.delta, "delta", "a number strictly between 0 and 1", 0.0, 1.0)
        )

    def check_rows(self, units: int, force: bool = False) -> None:
        """Refuse δ > 1/N for N = `units` (a public number) unless forced.

        Publishing one unit's record, picked at random, is (0, 1/N)-differentially private: above that, δ permits it.
        """
        count = checked_count(units, "the number of units")
        if self.delta > 1 / count and not force:
            raise ValueError(
                f"delta={self.delta:g} is above 1/{count}: it would allow publishing somebody's record; "
                f"use a delta well below {1 / count:.2g}, or force it knowingly"
            )

    def most_steps(self, coin_bits: int = 64) -> int:
        """How many accept bits `float_reserve` pays for with a hundredth of δ; at least 1."""
        price = float_reserve(1, self.epsilon, coin_bits)
        return max(1, int(min(0.01 * self.delta / price, 2.0**50)))

    def minus_float_reserve(self, steps_cap: int, coin_bits: int = 64) -> Budget:
        """The budget left once `float_reserve` for at most `steps_cap` accept bits is set aside from δ."""
        reserve = float_reserve(steps_cap, self.epsilon, coin_bits)
        if reserve > self.delta / 2:
            raise ValueError(
                f"rounding of random numbers over {steps_cap} steps needs {reserve:.2g} of delta={self.delta:g}, "
                "more than half; lower steps_cap or epsilon, or raise delta"
            )
        return Budget(self.epsilon, math.nextafter(self.delta - reserve, 0.0))


def float_reserve(steps_cap: int, epsilon: float, coin_bits: int = 64) -> float:
    """The part of δ that pays for coins of `coin_bits` random bits: (1+e^ε)·T_max·2^{1−bits}.

    An accept bit drawn as u < p, with u on a grid of 2^{−bits}, has a probability within η₁ = 2^{1−bits} of p, rounding
    of p itself included. Replacing the ideal bits by the drawn ones one after another moves the law of at most T_max of
    them by η = T_max·η₁ in total variation, for either table. With P, Q ideal and P̃, Q̃ drawn,

        P̃(S) ≤ P(S) + η ≤ e^ε Q(S) + δ + η ≤ e^ε Q̃(S) + δ + (1+e^ε)η.

    Barker's coin has 64 bits (`dpfastmh.steps.chain.barker_coin`), that of the penalty rule 53. Infinite where e^ε
    overflows: `Budget.minus_float_reserve` then refuses.
    """
    steps = checked_count(steps_cap, "steps_cap")
    exponent = checked_real(epsilon, "epsilon", "a finite number above 0", 0.0)
    if exponent > 700 or steps > 2**52:
        return math.inf
    return (1 + math.exp(exponent)) * steps * 2.0 ** (1 - coin_bits) * (1 + _SLACK_UP)


def _conversion_terms(delta: float, alpha: float) -> tuple[float, float, float]:
    """The three terms of ε − r at order α: log(1/δ)/(α−1), log(1−1/α), −log α/(α−1)."""
    return -math.log(delta) / (alpha - 1), math.log1p(-1 / alpha), -math.log(alpha) / (alpha - 1)


def rdp_budget(epsilon: float, delta: float, alpha: float) -> float:
    """τ(α): the Rényi divergence of order α that (ε, δ) allows, rounded down.

    τ(α) = ε − [log(1/δ) + (α−1) log(1−1/α) − log α]/(α−1), less 2⁻⁴⁶ of the sizes of its terms. Zero or negative
    where order α is too small for the budget: nothing can be spent at such an order.
    """
    budget, order = Budget(epsilon, delta), checked_order(alpha)
    terms = _conversion_terms(budget.delta, order)
    sizes = budget.epsilon + sum(abs(term) for term in terms)
    return budget.epsilon - math.fsum(terms) - _SLACK_DOWN * sizes


def epsilon_from_rdp(rdp: float, delta: float, alpha: float) -> float:
    """The inverse of `rdp_budget`, rounded up: the ε at δ that a Rényi divergence of order α amounts to.

    Never negative; and 0 where 1 − e^{−r} ≤ δ², because the total variation of P and Q is at most √(1−e^{−D₁})
    (Bretagnolle and Huber 1979) and D₁ ≤ D_α.
    """
    spent, order = checked_cost(rdp, "the Rényi divergence"), checked_order(alpha)
    chance = checked_real(delta, "delta", "a number strictly between 0 and 1", 0.0, 1.0)
    if -math.expm1(-spent) <= chance**2 * (1 - _SLACK_UP):
        return 0.0
    terms = _conversion_terms(chance, order)
    sizes = spent + sum(abs(term) for term in terms)
    return max(0.0, spent + math.fsum(terms) + _SLACK_UP * sizes)


def best_alpha(budget: Budget, unit_cost: Callable[[float], float] = lambda alpha: alpha) -> float:
    """The order α that buys most: it maximises τ(α)/unit_cost(α).

    `unit_cost(α)` is the Rényi divergence of order α of a typical step; near-Gaussian steps, which small accept bits
    and Gaussian releases are, have unit_cost ∝ α, the default. An infinite cost rules an order out. Everything here is
    public and the search has no randomness, so α can be fixed before the first release, as the filter requires.

    Search: α − 1 on a geometric grid around log(1/δ)/ε, where τ turns positive, refined by golden section between the
    neighbours of the best point, then α − 1 rounded to four digits if that loses nothing to speak of. Any α is valid;
    a poor one only buys less.
    """
    centre = -math.log(budget.delta) / budget.epsilon

    def gain(position: float) -> float:
        return _bought(budget, 1 + centre * 2.0**position, unit_cost)

    grid = [quarter / 4 for quarter in range(-16, 45)]
    gains = [gain(position) for position in grid]
    best = max(range(len(grid)), key=gains.__getitem__)
    if gains[best] <= 0:
        raise ValueError("no Rényi order has a finite unit_cost within this budget: check unit_cost")
    refined = _golden_maximum(gain, grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    position = max((refined, grid[best]), key=gain)
    excess = centre * 2.0**position
    rounded = 1 + float(f"{excess:.4g}")
    return rounded if _bought(budget, rounded, unit_cost) >= gain(position) * (1 - 1e-3) else 1 + excess


def _bought(budget: Budget, alpha: float, unit_cost: Callable[[float], float]) -> float:
    """τ(α)/unit_cost(α), or 0 where the order is of no use."""
    if alpha <= 1:
        return 0.0
    allowed = rdp_budget(budget.epsilon, budget.delta, alpha)
    if allowed <= 0:
        return 0.0
    cost = unit_cost(alpha)
    if math.isnan(cost) or cost <= 0:
        raise ValueError(f"unit_cost({alpha:g}) must be above 0, got {cost!r}")
    return allowed / cost


def _golden_maximum(gain: Callable[[float], float], low: float, high: float, rounds: int = 24) -> float:
    """Where `gain`, single-peaked from `low` to `high`, is largest (golden section: 10⁻⁵ of the bracket)."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = gain(left), gain(right)
    for _ in range(rounds):
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = gain(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = gain(right)
    return (low + high) / 2


def gaussian_delta(epsilon: float, rho: float) -> float:
    """The exact δ(ε) of a Gaussian mechanism of zCDP ρ (Balle and Wang 2018), shift μ = √(2ρ) in noise sd:

        δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

    No accounting of many small steps of total ρ can promise less: this is the limit that reports compare with. It is a
    yardstick only; no guarantee rests on it.
    """
    exponent = checked_cost(epsilon, "epsilon")
    shift = math.sqrt(2 * checked_real(rho, "rho", "a finite number above 0", 0.0))
    above = math.exp(_log_upper_tail(exponent / shift - shift / 2))
    below = math.exp(min(0.0, exponent + _log_upper_tail(exponent / shift + shift / 2)))
    return max(0.0, above - below)


def gaussian_limit_rho(budget: Budget) -> float:
    """The zCDP ρ of the Gaussian mechanism whose exact δ(ε) equals δ: what perfect accounting would let us spend."""
    low, high = math.log(1e-30), math.log(1e30)
    for _ in range(200):
        middle = (low + high) / 2
        if gaussian_delta(budget.epsilon, math.exp(middle)) <= budget.delta:
            low = middle
        else:
            high = middle
    return math.exp(low)


def _log_upper_tail(z: float) -> float:
    """log P(N(0,1) > z), by its asymptotic series where the probability itself would underflow."""
    if z < 30:
        return math.log(math.erfc(z / math.sqrt(2)) / 2)
    inverse = 1 / (z * z)
    series = inverse * (-1 + inverse * (3 - inverse * 15))
    return -z * z / 2 - math.log(z * math.sqrt(2 * math.pi)) + math.log1p(series)
