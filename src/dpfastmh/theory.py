"""Exact transition matrices on small finite state spaces: what a chain does, without simulating it.

A step from state i proposes j with probability Q_ij, Q symmetric, and accepts with probability κ·E[g(ℓ)], κ the
laziness. With a handful of records the law of the log-ratio ℓ can be written down in full, so that invariance,
reversibility and the spectral gap of every method become statements about a small matrix. Nothing here is compiled or
shared with the sampler: it restates the mathematics from the beginning, as an independent check on the compiled code.

**The law of ℓ.** On the full batch ℓ = −Σ_i dU_i with certainty. A Poisson minibatch draws independent counts
s_i ~ Poisson(r_i + (dU_i + b_i)/2) for rates r_i > 0 and bounds |dU_i| ≤ b_i, and has

    ℓ = Σ_i s_i log((2r_i + b_i − dU_i)/(2r_i + b_i + dU_i)).

**Why it is exact.** The reverse move has −dU_i for dU_i: with a_i = r_i + b_i/2 the counts then follow
Poisson(a_i − dU_i/2). For one vector of counts s the two probabilities have the ratio
Π_i e^{dU_i} ((a_i − dU_i/2)/(a_i + dU_i/2))^{s_i} = e^{Σ dU_i}·e^ℓ, and the reverse move turns ℓ into −ℓ. With
g(ℓ) = e^ℓ g(−ℓ), summing over s gives P(accept forward) = e^{−Σ dU_i} P(accept backward).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_ndtr, ndtr
from scipy.stats import poisson

FloatArray = npt.NDArray[np.float64]
Balance = Callable[[FloatArray], FloatArray]

NEGLIGIBLE = 1e-20  # probability of one outcome that the enumeration leaves out; outcomes number below 1e5


class RatioLaw(NamedTuple):
    """The distribution of a log-ratio: its values and their probabilities."""

    ratio: FloatArray
    probability: FloatArray

    def shifted(self, by: float) -> RatioLaw:
        """The law of ℓ + ``by``: a prior's share, or an expansion's."""
        return RatioLaw(self.ratio + by, self.probability)

    def acceptance(self, balance: Balance) -> float:
        """E[g(ℓ)]."""
        return float(self.probability @ balance(self.ratio))


def certain(ratio: float) -> RatioLaw:
    """A log-ratio that is known: the full batch's."""
    return RatioLaw(np.array([ratio]), np.ones(1))


def minibatch_law(differences: npt.ArrayLike, bounds: npt.ArrayLike, rates: npt.ArrayLike) -> RatioLaw:
    """The law of ℓ from Poisson counts, by enumeration; ``bounds`` and ``rates`` are one number or one per record."""
    change = np.atleast_1d(np.asarray(differences, dtype=np.float64))
    bound, rate = (np.broadcast_to(np.asarray(a, dtype=np.float64), change.shape) for a in (bounds, rates))
    if not np.all(np.isfinite(rate) & (rate > 0.0)):
        raise ValueError("rates must be finite and above 0: without them a record's count says too much about it")
    if not np.all(np.isfinite(bound) & (np.abs(change) <= bound)):
        raise ValueError("an energy difference exceeds its bound or is not finite: the Poisson rates would be negative")
    law = certain(0.0)
    for d, b, r in zip(change, bound, rate, strict=True):
        weight = math.log((2.0 * r + b - d) / (2.0 * r + b + d))
        counts, chance = _poisson(float(r + 0.5 * (d + b)))
        law = _combined(law, RatioLaw(counts * weight, chance))
    return law


def _poisson(mean: float) -> tuple[FloatArray, FloatArray]:
    """Counts 0, 1, ... and their probabilities, up to where nothing that matters is left."""
    counts = np.arange(int(mean + 12.0 * math.sqrt(mean)) + 40, dtype=np.float64)
    chance = np.asarray(poisson.pmf(counts, mean))
    kept = chance > NEGLIGIBLE
    return counts[kept], chance[kept]


def _combined(one: RatioLaw, other: RatioLaw) -> RatioLaw:
    """The sum of two independent log-ratios."""
    ratio = np.add.outer(one.ratio, other.ratio).ravel()
    chance = np.multiply.outer(one.probability, other.probability).ravel()
    kept = chance > NEGLIGIBLE
    return RatioLaw(ratio[kept], chance[kept])


# -- balancing functions, g(ℓ) = e^ℓ g(−ℓ) ----------------------------------------------------------------------------
def metropolis(ratio: FloatArray) -> FloatArray:
    """min(1, e^ℓ)."""
    return np.asarray(np.exp(np.minimum(ratio, 0.0)))


def barker(ratio: FloatArray) -> FloatArray:
    """1/(1 + e^−ℓ)."""
    return np.asarray(expit(ratio))


def penalty(variance: float) -> Balance:
    """E min(1, e^{ℓ+ξ}) with ξ ~ N(−v/2, v): Φ((ℓ − v/2)/√v) + e^ℓ Φ(−(ℓ + v/2)/√v)."""
    root = math.sqrt(variance)

    def balance(ratio: FloatArray) -> FloatArray:
        rising = ndtr((ratio - 0.5 * variance) / root)
        return np.asarray(rising + np.exp(ratio + log_ndtr(-(ratio + 0.5 * variance) / root)))

    return balance


# -- matrices --------------------------------------------------------------------------------------------------------
def transition_matrix(proposal: FloatArray, acceptance: FloatArray, laziness: float = 1.0) -> FloatArray:
    """P_ij = κ Q_ij A_ij off the diagonal; what is left stays."""
    moves = laziness * proposal * acceptance
    np.fill_diagonal(moves, 0.0)
    return moves + np.diag(1.0 - moves.sum(axis=1))


def invariance_defect(target: FloatArray, transitions: FloatArray) -> float:
    """max_j |(πP − π)_j|."""
    return float(np.max(np.abs(target @ transitions - target)))


def flow_defect(target: FloatArray, transitions: FloatArray) -> float:
    """max |π_i P_ij − π_j P_ji|: 0 for a reversible chain."""
    flow = target[:, None] * transitions
    return float(np.max(np.abs(flow - flow.T)))


def stationary(transitions: FloatArray) -> FloatArray:
    """The π with πP = π and Σπ = 1 of an irreducible chain."""
    n = transitions.shape[0]
    system = np.vstack([(transitions - np.eye(n)).T, np.ones(n)])
    return np.asarray(np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0])


def total_variation(one: FloatArray, other: FloatArray) -> float:
    """½ Σ |p − q|."""
    return float(0.5 * np.abs(one - other).sum())


def spectral_gap(target: FloatArray, transitions: FloatArray) -> float:
    """1 − the second largest eigenvalue of a π-reversible chain, by the symmetric matrix √π_i P_ij/√π_j."""
    root = np.sqrt(target)
    symmetric = root[:, None] * transitions / root[None, :]
    return float(1.0 - np.linalg.eigvalsh(0.5 * (symmetric + symmetric.T))[-2])


# -- bounds on the spectral gap, as a share of the gap of Metropolis-Hastings on all the data --------------------------
def tuna_gap_ratio(chi: float) -> float:
    """TunaMH with λ = χC²M²: at least exp(−1/χ − 2√(log 2/χ)) (Zhang, Cooper & De Sa 2020)."""
    return math.exp(-1.0 / chi - 2.0 * math.sqrt(math.log(2.0) / chi))


def tuna_batch(chi: float, total: float, move: float) -> float:
    """Its expected batch, at most χC²M² + CM."""
    return chi * (total * move) ** 2 + total * move


def published_gap_ratio(
    epsilon: float,
    delta: float,
    *,
    upper: float,
    lam: float,
    total: float,
    largest: float,
    longest: float,
    constant: float = 216.0,
) -> float:
    """Theorem 3 of the published algorithm: moves M ≤ A = ``longest``, C = ``total``, c = ``largest``, K = ``upper``,

        γ̄/γ ≥ (1 − Φ(216 K²c² log(2.5Kc/(δC)) log²(1 + CA/λ)/(ε²C²))) · exp(−C²A²/λ − 2√(C²A² log 2/λ)).

    The first factor is what the noise leaves, the second the minibatch's. The proof has 288 for the 216 of the
    statement, 288(…) being the variance v = σ₁²Δ₁² of the noise: give it as ``constant``. (At a log-ratio of 0 noise of
    variance v leaves the share 2Φ(−√v/2) of the acceptances and elsewhere more, so that either number is a bound.) The
    statement leaves the factor of the full-batch steps out and assumes the reversible form of the algorithm.
    """
    share = upper * largest / total
    noise = constant * (share / epsilon) ** 2 * math.log(2.5 * share / delta) * math.log1p(total * longest / lam) ** 2
    spread = (total * longest) ** 2 / lam
    return float(ndtr(-noise)) * math.exp(-spread - 2.0 * math.sqrt(spread * math.log(2.0)))
