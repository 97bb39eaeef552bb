"""The certified Rényi cost of one accept bit.

A Metropolis-Hastings step looks at the records once and lets one bit out: accepted or not.  This file says what that
bit costs under the replacement of one unit's records, as a rigorous upper bound of the Rényi divergence of a fixed
order α, and tabulates it for the compiled chain.  Nothing here ever sees a record.

Notation.  σ(z) = 1/(1+e^{−z}) is Barker's acceptance, logit its inverse, κ the laziness (a step is tried with
probability κ), b the public bound of a row's energy difference, k the rows a unit may hold, e a bound on the floating
point error of the log-ratio ℓ.  Everything but the unit contributes R to ℓ, with the same law under both neighbours.

**1. R may be fixed.**  exp((α−1)D_α) is an f-divergence, hence jointly convex, hence a mixture over R costs at most
the worst R.

**2. Domination.**  For q' ≤ q ≤ p ≤ p', D_α(Bern p‖Bern q) ≤ D_α(Bern p'‖Bern q'), and so with the roles exchanged:
a divergence of two coins is convex in each of its arguments and zero where they meet.  So it is enough to bound
logit p from above for one neighbour and logit q from below for the other: if q ≥ σ(z) and p ≤ σ(z+S) then the cost is
at most H(z, S), the larger divergence between κσ(z+S) and κσ(z).  S is the *shift*.  A numerical error |e| of ℓ moves
either logit by at most e, because a mixture f of sigmoids has f' = E σ(1−σ) ≤ f(1−f) (Jensen): S grows by 2e.

**3. Full batch.**  ℓ moves by at most kb each way: S = 2(kb + e), for all R.  The penalty acceptance is treated below.

**4. Minibatch** (Poisson splitting with rate r0 = b/x per row).  A row with energy difference 2y, |y| ≤ h = b/2, gets
s ~ Poisson(a+y) with a = r0 + h and adds s·log((a−y)/(a+y)) to ℓ.  For x ≤ √2 acceptance falls in y for every R:
with w = log((a−y)/(a+y)), g = σ and E[s f(s)] = (a+y) E[f(s+1)],
    ∂_y p = E[g(R+(s+1)w) − g(R+sw)] − 2a/(a−y)·E[g'(R+(s+1)w)].
For y ≥ 0 both terms are ≤ 0.  For y < 0, |(log g')'| ≤ 1 bounds the first by 2|y|/(a−|y|)·E[g'(R+(s+1)w)], which the
second outweighs iff |y| ≤ (√2−1)a; and h/a = x/(2+x) ≤ √2−1 iff x ≤ √2.  ∎  This file demands x ≤ 1.  The extremes
y = ∓h therefore dominate, row by row, and a missing row is y = 0.  With w = log(1+x), μ₊ = k r0, μ₋ = (1+x)μ₊ they are
    P = E σ(R + sw), s ~ Poisson(μ₊)      and      Q = E σ(R − sw), s ~ Poisson(μ₋).
w depends on x alone, so the cost grows with b, k and e (more counts push P up and Q down).
*Shift.*  Scale both means by λ ∈ [0, 1].  dP/dλ = μ₊(P(R+w) − P(R)), and since logit P is 1-Lipschitz,
d logit P/dλ ≤ μ₊x/(1+Px) = kb/(1+Px); likewise −d logit Q/dλ ≤ kb(1+x)/(1+x(1−Q)).  As Q ≤ P, with
    η(q) = 1/(1+qx) + (1+x)/(1+x(1−q)),   dS/dλ ≤ kb·η(Q_λ).                                               (4a)
η is convex with its maximum η(1) = (1+x) + 1/(1+x), so S ≤ kb·η(1) + 2e.
*Slope.*  (logit P)' = 1 − Var σ/(P(1−P)), and the Poisson Poincaré inequality Var f(s) ≤ μ E(f(s+1)−f(s))² with
(σ(ℓ+w)−σ(ℓ))² = p²(1−p)²x²/(1+px)² ≤ p(1−p)·x²/(4(1+x)) gives 1/(1+c) ≤ (logit)' ≤ 1 with c = c₊ = kbx/(4(1+x)) for P,
c = c₋ = kbx/4 for Q.  So −c₊/(1+c₊) ≤ S'(R) ≤ c₋/(1+c₋).                                                  (4b)

**5. Control variates.**  A row adds −t exactly and a Poisson remainder r = 2y, |r| ≤ b_r, |t+r| ≤ b (t + r is the row's
energy difference), rate r0 = b_r/x.  σ(ℓ) is concave in e^ℓ, so E σ(ℓ+Z) ≤ σ(ℓ + log E e^Z), and
    E e^{sw} = e^{−r},   E e^{−sw} = exp(r(a+y)/(a−y)).
The first gives logit P ≤ R − Σ(t+r) ≤ R + kb.  The second, applied to 1−Q = E σ(−ℓ), gives
logit Q ≥ R − Σ(t + r + r²/(a−r/2)) ≥ R − k(b + x·b_r), because a = b_r(1/x + ½) and r²/(a−r/2) is largest at r = b_r.
So S = 2k(b + x·b_r/2) + 2e: control variates cost at most what a full batch costs at the step b + x·b_r/2.  ∎
(No monotonicity in t or r is needed.  The pair of corners (t, r) = ∓(b+b_r, b_r) would charge about 2k(b + 2b_r).)

**6. Pure differential privacy.**  Acceptance ratios are at most e^U, rejection ratios e^V, at κ = 1: full batch and
control variates U = V = S, since |(log σ)'|, |(log(1−σ))'| ≤ 1; minibatch U = 2kb + 2e, V = kb·η(1) + 2e, since
dlog P/dλ ≤ μ₊(e^w−1) = kb, and so on for Q, 1−Q and 1−P.  With laziness U stays, and
(1−κQ)/(1−κP) ≤ 1/(1−κ+κe^{−V}), increasing in 1−Q ≤ 1.
*What it is worth in Rényi terms*: t ↦ t^α is convex, so among likelihood ratios t ∈ [e^{−ε}, e^ε] of mean 1 the two
ends are worst: D_α ≤ log(cosh((α−½)ε)/cosh(ε/2))/(α−1).  (log cosh √s has slope ≤ ½, so that is ≤ αε²/2, and ≤ ε.)

**7. H and its certificate.**  With u = log(P/Q), v = log((1−κQ)/(1−κP)), q = κQ, p = κP and
ψ(y) = e^{αy} − 1 − α(e^y − 1) ≥ 0, the excess E = exp((α−1)D) − 1 is
    q ψ(u) + (1−q) ψ(−v)   for D(p‖q),        p ψ(−u) + (1−p) ψ(v)   for D(q‖p),
because the ratios have mean one.  No term cancels.  Along s ∈ [0, S], with P_s = σ(z+s), ℓ_s = logit p_s − logit q ≤ s,
    ∂_s E = α p_s' e^{(α−1)u_s}(1 − e^{−(α−1)ℓ_s}),     resp.   (α−1) p_s' e^{αv_s}(1 − e^{−αℓ_s}).               (7a)
*Curvature in z.*  For a positive f, f'' ≥ f·(log f)''.  In (7a) (log p_s')'' ≥ −½; |u_s''| ≤ min(S/(6√3), ¼);
|v_s''| ≤ that, twice that if κ < 1; and ℓ_s = ∫(1−σ(y+log(1−κ)))dy over [z, z+s] has |ℓ'|, |ℓ''| ≤ ℓ, so the last
factor contributes ≥ −2 (0 if κ = 1).  Hence E'' ≥ −C·E with
    C = ½ + α·min(S/(6√3), ¼)   (κ = 1),        C = 5/2 + 2α·min(S/(6√3), ¼)   (κ < 1),
and on a cell of length Δ: max E ≤ max(E at the ends)/(1 − CΔ²/8).                                          (7b)
*Tails in z.*  u falls in z and u ≤ S.  For z ≤ z0: v ≤ v0 = log(1 + κσ(z0)(e^S−1)), hence E ≤ κσ(z0)ψ(S) + ψ(−v0),
resp. κσ(z0+S)ψ(−S) + ψ(v0).  For z ≥ z1: 1−P ≥ e^{−S}(1−Q) gives v ≤ v1 = −log(1 − ω(1−e^{−S})), ω = κ/(1+(1−κ)e^{z1}),
hence E ≤ κψ(u(z1)) + (1−κσ(z1))ψ(−v1), resp. κψ(−u(z1)) + (1−κσ(z1+S))ψ(v1).  All are of second order in S, like E.
*Small shifts.*  In (7a) ℓ_s ≤ s(1−σ(z))/(1−κσ(z)), p_s' ≤ κσ'(z)e^s, u_s, v_s ≤ s, so
    D ≤ (α/2)·J·S²·e^{(α+1)S},   J = sup_σ κσ(1−σ)²/(1−κσ), attained at σ = 2/(3+√(9−8κ)).                     (7c)
For the minibatch S ≤ kb·η(σ(z))·e^{kb(1+x)+e} + 2e by (4a), as |dlog η/dz| ≤ 1 and logit Q moves by at most kb(1+x), so
    D ≤ (α/2)(kb√J_x + 2e√J)²·exp((α+1)S + 2kb(1+x) + 2e),   J_x = sup κσ(1−σ)²η(σ)²/(1−κσ).                     (7d)

**8. Penalty acceptance** (full batch), g(ℓ) = E min(1, e^{ℓ+ξ}), ξ ~ N(−v/2, v); c = kb + e.  g, 1−g are convolutions
of log-concave functions (min(1,e^z), (1−e^z)⁺) with a Gaussian: log-concave, with (log)'' ≥ −1/v.  So the pair
(logit g(R+c), logit g(R−c)) has a shift S(R) with |S'| ≤ 2c/v; u ≤ 2c and v grows with R, which bounds the left tail;
u falls, and (1−g(R−c))^α (1−g(R+c))^{1−α} falls in R once the hazard (−log(1−g))'(R−c) exceeds 2c(α−1)/v, which bounds
the right one at κ = 1; for κ < 1 it is bounded by v ≤ log(1 + (1−g(R−c))κ/(1−κ)), which falls.
The bit is a function of ℓ+ξ, so the Gaussian mechanism's α(2c)²/(2v) is a cap.

**Rounding.**  Sums have positive terms, differences are taken with log1p and expm1, Poisson tails are added on the
unsafe side, and every quantity is a chain of far fewer than 10⁵ operations good to a few units in the last place: the
result is multiplied by 1 + 10⁻⁹.  Where cancellation cannot be avoided (penalty) its error is added to S.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray
from scipy.special import erfcx, expit, gammaln, log_ndtr

__all__ = ["CostTable", "bit_cost", "cost_table", "look_up", "pure_epsilon"]

Batch = Literal["full", "minibatch", "control-variate"]
Acceptance = Literal["barker", "penalty"]
Array = NDArray[np.float64]
Index = NDArray[np.intp]
# (node of each row, points R) -> (z, S) at the points and the bounds (up, down) of S' on each row
Pairs = Callable[[Index, Array], tuple[Array, Array, Array, Array]]

ROUNDING = 1e-9  # relative, see the module's docstring
TOLERANCE = 1e-3  # of the supremum over R
RATIO = 1.005  # between neighbouring step sizes of a table: at most 1 % of the cost
PENALTY_RATIO = 1.01  # the penalty's table takes longer to build
LARGEST_SHIFT = 600.0  # beyond it e^S overflows, and the caps of sections 6 and 8 answer
SERIES_TERMS = 20
EPS = float(np.finfo(np.float64).eps)


# ---------------------------------------------------------------------------------------------------------------------
# what is asked


@dataclass(frozen=True)
class _Bit:
    """All that is public about a bit except the step size: see `bit_cost` for the meaning of the fields."""

    alpha: float
    batch: str
    x: float
    laziness: float
    acceptance: str
    variance: float | None
    rows_per_unit: int
    shift: float

    def __post_init__(self) -> None:
        if not 1.001 <= self.alpha <= 1e6:
            raise ValueError(f"alpha: a Rényi order between 1.001 and 1e6 is needed, not {self.alpha}")
        if self.acceptance == "metropolis":
            raise ValueError(
                "acceptance: Metropolis acceptance has no finite privacy cost: it accepts some moves with certainty; "
                "use 'barker' (or 'penalty' on the full batch)"
            )
        if self.acceptance not in ("barker", "penalty"):
            raise ValueError(f"acceptance: 'barker' or 'penalty' is needed, not {self.acceptance!r}")
        if self.batch not in ("full", "minibatch", "control-variate"):
            raise ValueError(f"batch: 'full', 'minibatch' or 'control-variate' is needed, not {self.batch!r}")
        if not 0 < self.x <= 1:
            raise ValueError(f"x: the ratio of bound to rate must lie in (0, 1], not {self.x}; raise the rate per row")
        if not 0 < self.laziness <= 1:
            raise ValueError(f"laziness: the probability of trying a step must lie in (0, 1], not {self.laziness}")
        if not 1 <= self.rows_per_unit < math.inf or self.rows_per_unit != int(self.rows_per_unit):
            raise ValueError(f"rows_per_unit: a whole number >= 1 is needed, not {self.rows_per_unit}")
        _check("shift", self.shift)
        self._check_penalty()

    def _check_penalty(self) -> None:
        if self.acceptance == "barker":
            if self.variance is not None:
                raise ValueError("variance: only the penalty acceptance has one; leave it out for 'barker'")
            return
        if self.batch != "full":
            raise ValueError(f"acceptance: 'penalty' has a proven cost on the full batch only, not on {self.batch!r}")
        if self.variance is None or not (0 < self.variance < math.inf):
            raise ValueError(f"variance: the penalty acceptance needs a finite variance > 0, not {self.variance}")

    @property
    def penalty_variance(self) -> float:
        assert self.variance is not None
        return self.variance


def _check(name: str, value: float) -> None:
    """Bounds that come from elsewhere must be numbers we can charge for."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}: a finite number >= 0 is needed, not {value}; no cost can be given to this step")


def _equivalent_step(bit: _Bit, b: float, remainder: float) -> float:
    """The full-batch step with the shift of a control-variate one: b + x·b_r/2 (section 5); b for the other batches."""
    _check("b", b)
    _check("remainder", remainder)
    if bit.batch == "control-variate":
        return b + bit.x * remainder / 2
    if remainder != 0:
        raise ValueError(f"remainder: only control variates have one, not the {bit.batch!r} batch; pass 0")
    return b


def bit_cost(
    alpha: float,
    b: float,
    *,
    batch: Batch = "full",
    x: float = 1.0,
    remainder: float = 0.0,
    laziness: float = 1.0,
    acceptance: Acceptance = "barker",
    variance: float | None = None,
    rows_per_unit: int = 1,
    shift: float = 0.0,
) -> float:
    """A certified upper bound on D_α of one accept bit under the replacement of one unit.

    `b` bounds a row's energy difference, `remainder` (b_r) what control variates leave of it, `x` = b/r0 (b_r/r0) fixes
    the Poisson rate r0 per row, `laziness` is κ, `variance` that of the penalty acceptance, `shift` (e) bounds the
    numerical error of the log-ratio.  Full batch and minibatch: within 0.2 % of the supremum over all data sets.
    Control variates: at most (1 + x·b_r/(2b))² times the full batch's cost, which is no more than their supremum.
    Penalty: within 0.2 % too, except where αb is so large that the Gaussian mechanism's cost is as good (1 %).
    """
    bit = _Bit(alpha, batch, x, laziness, acceptance, variance, rows_per_unit, shift)
    step = _equivalent_step(bit, b, remainder)
    if step == 0 and shift == 0:
        return 0.0
    cost = float(_costs(bit, np.array([step]))[0])
    if acceptance == "penalty" or _small_exponent(bit, step) < 1:
        slope, offset = _small_step(bit, step)
        cost = min(cost, (slope * step + offset) ** 2)
    if not cost < math.inf:
        raise ValueError(f"b: no finite cost could be certified at b = {b}; take smaller steps")
    return cost


def pure_epsilon(
    b: float,
    *,
    batch: Batch = "full",
    x: float = 1.0,
    remainder: float = 0.0,
    laziness: float = 1.0,
    acceptance: Acceptance = "barker",
    variance: float | None = None,
    rows_per_unit: int = 1,
    shift: float = 0.0,
) -> float:
    """The ε of section 6: no outcome of the bit is more than e^ε times likelier under a neighbouring data set."""
    bit = _Bit(2.0, batch, x, laziness, acceptance, variance, rows_per_unit, shift)
    epsilon = float(_pure(bit, np.array([_equivalent_step(bit, b, remainder)]))[0])
    if not epsilon < math.inf:
        raise ValueError("acceptance: penalty without laziness has no finite pure epsilon; use its Rényi cost")
    return epsilon


# ---------------------------------------------------------------------------------------------------------------------
# caps and small steps


def _pure(bit: _Bit, step: Array) -> Array:
    """ε of section 6 for each full-batch or minibatch step."""
    kappa, bound = bit.laziness, bit.rows_per_unit * step
    accept = 2 * (bound + bit.shift)
    if bit.acceptance == "penalty":  # rejecting becomes impossible as R grows; only laziness keeps it possible
        reject = np.full_like(step, -math.log1p(-kappa) if kappa < 1 else math.inf)
    else:
        shift = _largest_shift(bit, step)
        with np.errstate(divide="ignore", over="ignore", under="ignore"):  # shifts beyond e^700 end as +inf
            reject = _drop(np.float64(kappa), np.float64(1 - kappa), shift)
    worst: Array = np.maximum(accept, reject) * (1 + ROUNDING)
    return worst


def _largest_shift(bit: _Bit, step: Array) -> Array:
    """S over all R: 2(kb+e), or kb·η(1) + 2e for the minibatch."""
    per_bound = (1 + bit.x) + 1 / (1 + bit.x) if bit.batch == "minibatch" else 2.0
    return bit.rows_per_unit * per_bound * step + 2 * bit.shift


def _cap(bit: _Bit, step: Array) -> Array:
    """D_α <= log(cosh((α−½)ε)/cosh(ε/2))/(α−1); for the penalty also the Gaussian mechanism's α(2c)²/(2v)."""
    pure = _pure(bit, step)
    epsilon = np.minimum(pure, 1e100)

    def log_cosh(y: Array) -> Array:
        return y + np.log1p(np.exp(-2 * y)) - math.log(2)

    large = (log_cosh((bit.alpha - 0.5) * epsilon) - log_cosh(epsilon / 2)) / (bit.alpha - 1)
    # the difference of two log cosh loses digits for small ε, where αε²/2 is as good
    cap: Array = np.where((bit.alpha - 1) * epsilon**2 > 1e-5, large, bit.alpha * epsilon**2 / 2) * (1 + ROUNDING)
    cap = np.where(pure < 1e100, cap, np.inf)
    if bit.acceptance == "penalty":
        change = 2 * (bit.rows_per_unit * step + bit.shift)
        cap = np.minimum(cap, bit.alpha * change**2 / (2 * bit.penalty_variance) * (1 + ROUNDING))
    return cap


def _information(kappa: float) -> float:
    """J = sup_σ κσ(1−σ)²/(1−κσ); 1/4 without laziness."""
    s = 2 / (3 + math.sqrt(9 - 8 * kappa))
    return kappa * s * (1 - s) ** 2 / (1 - kappa * s)


def _eta(x: float, q: Array) -> Array:
    """η of (4a)."""
    result: Array = 1 / (1 + x * q) + (1 + x) / (1 + x * (1 - q))
    return result


def _minibatch_information(kappa: float, x: float) -> float:
    """J_x of (7d), certified on a grid: σ rises, (1−σ)²/(1−κσ) falls, η is convex."""
    s = np.linspace(0.0, 1.0, 20_001)
    eta = _eta(x, s)
    # the last cell would be 0/0 for κ = 1, but (1−σ)/(1−κσ) <= 1 everywhere
    falling = (1 - s[:-1]) * np.minimum(1.0, (1 - s[:-1]) / (1 - kappa * s[:-1]))
    cells = kappa * s[1:] * falling * np.maximum(eta[:-1], eta[1:]) ** 2
    return float(cells.max())


def _small_step(bit: _Bit, first: float) -> tuple[float, float]:
    """(slope, offset) with D_α <= (slope·b + offset)² for all b <= first, by (7c) and (7d), or the Gaussian cap."""
    k, e, alpha = bit.rows_per_unit, bit.shift, bit.alpha
    if bit.acceptance == "penalty":
        scale = 2 * math.sqrt(alpha / (2 * bit.penalty_variance)) * (1 + ROUNDING)
        return scale * k, scale * e
    plain = math.sqrt(_information(bit.laziness))
    exponent = _small_exponent(bit, first)
    per_bound = 2 * plain
    if bit.batch == "minibatch":
        per_bound = math.sqrt(_minibatch_information(bit.laziness, bit.x))
    factor = math.sqrt(alpha / 2) * math.exp(exponent / 2) * (1 + ROUNDING)
    return factor * k * per_bound, (factor * 2 * e * plain if e > 0 else 0.0)


def _small_exponent(bit: _Bit, b: float) -> float:
    """The exponent of (7c) or (7d) at the step b."""
    largest = float(_largest_shift(bit, np.array([b]))[0])
    spread = 2 * bit.rows_per_unit * b * (1 + bit.x) + 2 * bit.shift if bit.batch == "minibatch" else 0.0
    return (bit.alpha + 1) * largest + spread


# ---------------------------------------------------------------------------------------------------------------------
# the divergence H(z, S), and its bounds on cells and tails


def _log_psi(alpha: float, y: Array) -> Array:
    """log ψ(y), ψ(y) = e^{αy} − 1 − α(e^y − 1) = Σ_{n>=2} (1 − α^{1−n})(αy)ⁿ/n!."""
    y = np.asarray(y, dtype=np.float64)
    t = alpha * y
    small = np.clip(t, -1.0, 1.0)
    series = np.zeros_like(t)
    for n in range(SERIES_TERMS, 1, -1):
        series = series * small - math.expm1((1 - n) * math.log(alpha)) / math.factorial(n)
    result: Array = 2 * np.log(np.abs(small)) + np.log(series)
    above, below = t > 1, t < -1
    if above.any():
        y1, t1 = y[above], t[above]
        result[above] = t1 + np.log1p((alpha - 1) * np.exp(-t1) - alpha * np.exp(y1 - t1))
    if below.any():
        result[below] = np.log(np.expm1(t[below]) - alpha * np.expm1(y[below]))
    return result


def _drop(weight: Array | np.float64, complement: Array | np.float64, shift: Array) -> Array:
    """−log(complement + weight·e^{−S}) for weight + complement = 1, without loss for small S."""
    change = weight * np.expm1(-shift)
    rest = complement + weight * np.exp(-shift)
    near = change > -0.5
    result: Array = np.where(near, -np.log1p(np.where(near, change, 0.0)), -np.log(np.where(near, 1.0, rest)))
    return result


def _log_reject(kappa: float, z: Array) -> Array:
    """log(1 − κσ(z)) = log(1 + (1−κ)e^z) − log(1 + e^z)."""
    result: Array = np.log1p((1 - kappa) * np.exp(np.minimum(z, 700.0))) - np.logaddexp(0.0, z)
    return result


def _log_accept(kappa: float, z: Array) -> Array:
    result: Array = math.log(kappa) - np.logaddexp(0.0, -z)
    return result


def _log_excess(alpha: float, kappa: float, z: Array, shift: Array) -> Array:
    """log E of the worse direction between κσ(z+S) and κσ(z) (section 7)."""
    u = _drop(expit(-z), expit(z), shift)
    v = np.log1p(kappa * expit(z) * np.expm1(shift) / (1 + (1 - kappa) * np.exp(np.minimum(z + shift, 700.0))))
    upward = np.logaddexp(_log_accept(kappa, z) + _log_psi(alpha, u), _log_reject(kappa, z) + _log_psi(alpha, -v))
    z = z + shift
    downward = np.logaddexp(_log_accept(kappa, z) + _log_psi(alpha, -u), _log_reject(kappa, z) + _log_psi(alpha, v))
    worse: Array = np.maximum(upward, downward)
    return worse


def _log_tails(alpha: float, kappa: float, z0: Array, z1: Array, shift0: Array, shift: Array) -> Array:
    """log of a bound on E for all z <= z0 at shifts up to `shift0`, all z >= z1 at shifts up to `shift` (section 7)."""
    v0 = np.log1p(kappa * expit(z0) * np.expm1(shift0))
    left = np.maximum(
        np.logaddexp(_log_accept(kappa, z0) + _log_psi(alpha, shift0), _log_psi(alpha, -v0)),
        np.logaddexp(_log_accept(kappa, z0 + shift0) + _log_psi(alpha, -shift0), _log_psi(alpha, v0)),
    )
    u1 = _drop(expit(-z1), expit(z1), shift)
    stay = 1 + (1 - kappa) * np.exp(np.minimum(z1, 700.0))
    v1 = _drop(kappa / stay, 1 - kappa / stay, shift)
    right = np.maximum(
        np.logaddexp(math.log(kappa) + _log_psi(alpha, u1), _log_reject(kappa, z1) + _log_psi(alpha, -v1)),
        np.logaddexp(math.log(kappa) + _log_psi(alpha, -u1), _log_reject(kappa, z1 + shift) + _log_psi(alpha, v1)),
    )
    worse: Array = np.maximum(left, right)
    return worse


def _cell_shift(shift: Array, width: Array, up: Array, down: Array) -> Array:
    """max S on each cell from S at its ends and −down <= S' <= up: the two lines meet at the value returned."""
    left, right = shift[:, :-1], shift[:, 1:]
    slopes = up + down
    meet = (down * left + up * right + up * down * width) / np.where(slopes > 0, slopes, 1.0)
    ends = np.maximum(left, right)
    result: Array = np.where(slopes > 0, np.maximum(meet, ends), ends)
    return result


def _cells(bit: _Bit, points: Array, z: Array, shift: Array, up: Array, down: Array) -> tuple[Array, Array]:
    """A value of log(1+E) on each row, and upper bounds on its cells between neighbouring points by (7b)."""
    alpha, kappa = bit.alpha, bit.laziness
    top = _cell_shift(shift, np.diff(points, axis=1), up, down)
    used = np.minimum(top, LARGEST_SHIFT)
    if np.any(up + down > 0):
        ends = np.maximum(_log_excess(alpha, kappa, z[:, :-1], used), _log_excess(alpha, kappa, z[:, 1:], used))
    else:  # S does not move: neighbouring cells share their points
        at_points = _log_excess(alpha, kappa, z, np.minimum(shift, LARGEST_SHIFT))
        ends = np.maximum(at_points[:, :-1], at_points[:, 1:])
    bend = np.minimum(top / (6 * math.sqrt(3)), 0.25)
    curvature = 0.5 + alpha * bend if kappa == 1 else 2.5 + 2 * alpha * bend
    loss = curvature * np.diff(z, axis=1) ** 2 / 8
    known = (loss < 1) & (top < LARGEST_SHIFT)
    upper = np.logaddexp(0.0, ends - np.log1p(-np.where(known, loss, 0.0)))
    upper = np.where(known & ~np.isnan(upper), upper, np.inf)
    row, at = np.arange(z.shape[0]), np.argmax(ends, axis=1)
    reached = _log_excess(alpha, kappa, z[row, at], np.minimum(shift[row, at], LARGEST_SHIFT))
    return np.nan_to_num(np.logaddexp(0.0, reached), nan=0.0), upper


def _supremum(bit: _Bit, pairs: Pairs, start: Array, stop: Array, tails: Array) -> Array:
    """Bounds sup_R log(1+E) for many nodes at once: cells that could still beat the best value seen are cut in eight.

    `start`, `stop` enclose R for each node, `tails` bounds log(1+E) outside.
    """
    node = np.arange(start.size)
    best, certified = np.zeros(start.size), np.where(np.isnan(tails), np.inf, tails)
    low, high, cells, last = start, stop, 64, 7
    for turn in range(last + 1):
        points = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, cells + 1)
        points[:, -1] = high
        value, upper = _cells(bit, points, *pairs(node, points))
        np.maximum.at(best, node, value)
        open_cells = upper > best[node][:, None] * (1 + TOLERANCE)
        if turn == last or open_cells.sum() > 100_000:
            open_cells[:] = False
        np.maximum.at(certified, node, np.where(open_cells, 0.0, upper).max(axis=1))
        rows, columns = np.nonzero(open_cells)
        if rows.size == 0:
            break
        node, low, high, cells = node[rows], points[rows, columns], points[rows, columns + 1], 8
    return certified


# ---------------------------------------------------------------------------------------------------------------------
# the pairs (z, S)


def _constant_pairs(shift: Array) -> Pairs:
    """Full batch, Barker: the same S for every z."""

    def pairs(node: Index, points: Array) -> tuple[Array, Array, Array, Array]:
        none = np.zeros((node.size, 1))
        return points, np.broadcast_to(shift[node][:, None], points.shape), none, none

    return pairs


def _poisson(mean: Array, terms: int) -> Array:
    """P(s) for s = 0..terms (last axis)."""
    s = np.arange(terms + 1.0)
    result: Array = np.exp(s * np.log(mean)[..., None] - mean[..., None] - gammaln(s + 1))
    return result


def _poisson_tail(mean: Array, terms: int) -> Array:
    """An upper bound on P(s > terms): the ratio of neighbouring terms is below mean/(terms+2)."""
    if terms + 2 <= float(mean.max()):
        return np.ones_like(mean)
    result: Array = np.exp((terms + 1) * np.log(mean) - mean - gammaln(terms + 2.0)) / (1 - mean / (terms + 2))
    return result


def _minibatch_pairs(bit: _Bit, step: Array) -> Pairs:
    """Section 4: S and z = logit Q by direct summation over the counts.

    With p = σ(R) and X = e^{sw} − 1, σ(R+sw) − p = p(1−p)·X/(1+pX), so P = p + p(1−p)A, A = E[X/(1+pX)], and
    logit P − R = log(1+(1−p)A) − log(1−pA); likewise for Q with B = E[Y/(1−pY)], Y = 1 − e^{−sw}.  What is cut off A is
    at most E[e^{sw}; s > n] = e^{μ₊x}·Pr(Poisson(μ₊(1+x)) > n), off B e^{μ₋x}·Pr(Poisson(μ₋(1+x)) > n): added to both.
    """
    x, bound = bit.x, bit.rows_per_unit * step
    w = math.log1p(x)
    few = bound / x
    many = few * (1 + x)

    def cut_off(terms: int) -> tuple[Array, Array]:
        return np.exp(few * x) * _poisson_tail(many, terms), np.exp(many * x) * _poisson_tail(many * (1 + x), terms)

    terms = 2
    while np.any(cut_off(terms)[1] > 1e-13 * bound):
        terms += 1
    rest_up, rest_down = cut_off(terms)
    up_counts, down_counts = _poisson(few, terms), _poisson(many, terms)
    less, more = bound * x / (4 * (1 + x)), bound * x / 4

    def pairs(node: Index, points: Array) -> tuple[Array, Array, Array, Array]:
        p, not_p = expit(points), expit(-points)
        a = np.broadcast_to(rest_up[node][:, None], points.shape).copy()
        b = np.broadcast_to(rest_down[node][:, None], points.shape).copy()
        for s in range(1, terms + 1):
            gain, loss = math.expm1(s * w), -math.expm1(-s * w)
            a += up_counts[node, s][:, None] * (gain / (1 + gain * p))
            b += down_counts[node, s][:, None] * (loss / (not_p + (1 - loss) * p))
        rise = np.log1p(not_p * a) - np.log1p(-p * a)
        fall = np.log1p(p * b) - np.log1p(-not_p * b)
        return points - fall - bit.shift, rise + fall + 2 * bit.shift, _slope(more[node]), _slope(less[node])

    return pairs


def _slope(c: Array) -> Array:
    return (c / (1 + c))[:, None]


class _Penalty(NamedTuple):
    log_accept: Array
    log_reject: Array
    hazard: Array  # −(log(1−g))'
    error: Array  # of logit g, from cancellation


def _penalty(ell: Array, variance: float) -> _Penalty:
    """g(ℓ) = Φ(d) + e^ℓ Φ(−d') with d = (ℓ−v/2)/√v, d' = d + √v.

    e^ℓ φ(d') = φ(d) turns 1−g into φ(d)(m(d) − m(d')), m Mills' ratio; g' = e^ℓ Φ(−d') = φ(d) m(d').
    """
    root = math.sqrt(variance)
    d = (ell - variance / 2) / root
    log_accept = np.logaddexp(log_ndtr(d), ell + log_ndtr(-(d + root)))
    right = d > -5  # left of it Mills' ratio explodes, and 1 − g loses nothing unless v is tiny
    safe = np.maximum(d, -5.0)
    mills, mills_far = (math.sqrt(math.pi / 2) * erfcx(y / math.sqrt(2)) for y in (safe, safe + root))
    gap = mills - mills_far
    log_left = np.log1p(-np.exp(np.where(right, -1.0, log_accept)))
    log_reject = np.where(right, -(d**2) / 2 - math.log(2 * math.pi) / 2 + np.log(gap), log_left)
    error = 16 * EPS * (4 + d**2 + np.abs(ell) + np.where(right, mills / gap, np.exp(-log_left)))
    return _Penalty(log_accept, log_reject, mills_far / gap, error)


def _penalty_pairs(bit: _Bit, change: Array) -> Pairs:
    """Section 8: c = `change`, S = logit g(R+c) − logit g(R−c), |S'| <= 2c/v."""

    def pairs(node: Index, points: Array) -> tuple[Array, Array, Array, Array]:
        c = change[node][:, None]
        high, low = (_penalty(points + sign * c, bit.penalty_variance) for sign in (1, -1))
        z = low.log_accept - low.log_reject
        error = low.error + high.error
        slope = 2 * c / bit.penalty_variance
        return z - error, high.log_accept - high.log_reject - z + 2 * error, slope, slope

    return pairs


def _penalty_tails(bit: _Bit, change: Array, start: Array, stop: Array) -> Array:
    """Bounds log E for R <= start and R >= stop (section 8)."""
    alpha, kappa, variance = bit.alpha, bit.laziness, bit.penalty_variance
    low, high = _penalty(start - change, variance), _penalty(start + change, variance)
    reject = low.log_reject - high.log_reject + low.error + high.error
    reject = _drop(np.float64(kappa), np.float64(1 - kappa), np.maximum(reject, 0.0))
    log_kappa = math.log(kappa)
    left = np.maximum(
        np.logaddexp(log_kappa + low.log_accept + _log_psi(alpha, 2 * change), _log_psi(alpha, -reject)),
        np.logaddexp(log_kappa + high.log_accept + _log_psi(alpha, -2 * change), _log_psi(alpha, reject)),
    )
    low, high = _penalty(stop - change, variance), _penalty(stop + change, variance)
    accept = -np.log1p(-np.exp(low.log_reject + low.error))
    if kappa < 1:
        reject = np.log1p(kappa / (1 - kappa) * np.exp(low.log_reject + low.error))
        right = np.maximum(
            np.logaddexp(_log_psi(alpha, accept), _log_psi(alpha, -reject)),
            np.logaddexp(_log_psi(alpha, -accept), _log_psi(alpha, reject)),
        )
        return np.maximum(left, right)
    moved = alpha * (low.log_reject + low.error) - (alpha - 1) * (high.log_reject - high.error)
    moved = np.where(low.hazard > 2 * change * (alpha - 1) / variance * (1 + 1e-6), moved, np.inf)
    right = np.maximum(
        np.logaddexp(_log_psi(alpha, accept), low.log_reject + low.error + math.log(alpha - 1)),
        np.logaddexp(_log_psi(alpha, -accept), moved),
    )
    return np.maximum(left, right)


# ---------------------------------------------------------------------------------------------------------------------
# the cost of many steps


def _costs(bit: _Bit, steps: Array) -> Array:
    """Certified D_α for each step > 0 (full-batch equivalent steps for control variates)."""
    parts = [_some_costs(bit, steps[i : i + 256]) for i in range(0, steps.size, 256)]
    return np.concatenate(parts)


def _some_costs(bit: _Bit, steps: Array) -> Array:
    """The caps, improved by the certified supremum where that can be computed."""
    costs = _cap(bit, steps)
    usable = _largest_shift(bit, steps) < LARGEST_SHIFT
    if _summed(bit):  # e^{−kb} is what is left of some sums, and digits go with it; such steps are far too dear anyway
        usable &= bit.rows_per_unit * steps * (1 + bit.x) < 12
    if usable.any():
        with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
            excess = _log_one_plus_excess(bit, steps[usable])
        certified = excess / (bit.alpha - 1) * (1 + ROUNDING) + 1e-300
        costs[usable] = np.fmin(costs[usable], np.where(np.isnan(certified), np.inf, certified))
    return costs


def _summed(bit: _Bit) -> bool:
    """Whether the counts are summed over: for small x, S <= kb·η(1) + 2e is within c + x²/2 of S anyway, by (4b)."""
    return bit.batch == "minibatch" and bit.x >= 0.01


def _log_one_plus_excess(bit: _Bit, steps: Array) -> Array:
    alpha, kappa = bit.alpha, bit.laziness
    largest = _largest_shift(bit, steps)
    # E peaks near e^z = 1/(1 + α(e^S − 1)) or its mirror image; seven more units of z make the tails negligible
    reach = 7 + np.log1p(alpha * np.expm1(largest))
    if bit.acceptance == "penalty":
        change, variance = largest / 2, bit.penalty_variance
        spread = variance / 2 + 6 * math.sqrt(variance)  # left of −spread g is e^ℓ, and u has reached 2c
        start = -reach - spread
        stop = (1 + 4 * alpha * (kappa == 1)) * change + spread + 3 * math.sqrt(variance)
        tails = _penalty_tails(bit, change, start, stop)
        return _supremum(bit, _penalty_pairs(bit, change), start, stop, np.logaddexp(0.0, tails))
    pairs = _minibatch_pairs(bit, steps) if _summed(bit) else _constant_pairs(largest)
    node, ends = np.arange(steps.size), np.stack([-reach, reach + largest], axis=1)
    z = pairs(node, ends)[0]
    left = largest
    if _summed(bit):  # Q_λ <= σ(R), and η is convex: S <= kb·max(η(0), η(σ(−reach))) + 2e on the left
        left = bit.rows_per_unit * steps * np.maximum(2.0, _eta(bit.x, expit(-reach))) + 2 * bit.shift
    tails = _log_tails(alpha, kappa, z[:, 0], z[:, 1], left, largest)
    return _supremum(bit, pairs, ends[:, 0], ends[:, 1], np.logaddexp(0.0, tails))


# ---------------------------------------------------------------------------------------------------------------------
# the table of the compiled loop


class CostTable(NamedTuple):
    """D_α by step size, for `look_up`.  Build with `cost_table`.

    Steps up to `first` cost at most (slope·step + offset)²; those in the i-th cell of a geometric grid at most
    costs[i], the cost at the cell's upper end, because the cost grows with the step; those above `last` are refused.
    """

    costs: Array
    first: float
    last: float
    cells_per_log: float
    slope: float
    offset: float
    remainder_weight: float


def cost_table(
    alpha: float,
    b_max: float,
    *,
    also: tuple[float, ...] = (),
    batch: Batch = "full",
    x: float = 1.0,
    laziness: float = 1.0,
    acceptance: Acceptance = "barker",
    variance: float | None = None,
    rows_per_unit: int = 1,
    shift: float = 0.0,
) -> CostTable:
    """Tabulates `bit_cost` for steps up to `b_max` (for control variates: b + x·b_r/2 up to `b_max`).

    With further orders in `also` an entry is max_a (α/a)·D_a over a = α and those: what it charges at order α bounds
    the step's divergence of order a by a/α of that, as a Gaussian release's does.
    """
    bits = [_Bit(order, batch, x, laziness, acceptance, variance, rows_per_unit, shift) for order in (alpha, *also)]
    _check("b_max", b_max)
    if b_max == 0:
        raise ValueError("b_max: a table needs a largest step > 0")
    first = min(*(_first_step(bit) for bit in bits), b_max)
    log_ratio = math.log(PENALTY_RATIO if acceptance == "penalty" else RATIO)
    count = math.ceil(math.log(b_max / first) / log_ratio) + 2  # one to spare for rounding in `look_up`
    ends: Array = first * np.exp(log_ratio * np.arange(1.0, count + 1)) * (1 + ROUNDING)
    # a larger step costs no less than a smaller one, and its bound holds for the smaller one too
    each = [_costs(bit, ends) * _share(bit, alpha) for bit in bits]
    costs: Array = np.minimum.accumulate(np.max(each, axis=0)[::-1])[::-1].copy()
    if not np.all(costs < np.inf):
        raise ValueError(f"b_max: no finite cost could be certified for steps up to {b_max}; choose a smaller one")
    roots = [(*_small_step(bit, first), math.sqrt(_share(bit, alpha))) for bit in bits]
    slope = max(slope * root for slope, _, root in roots)
    offset = max(offset * root for _, offset, root in roots)
    weight = x / 2 if batch == "control-variate" else 0.0
    return CostTable(costs, first, float(b_max), 1 / log_ratio, slope, offset, weight)


def _share(bit: _Bit, alpha: float) -> float:
    """α/a: what a divergence of order a is charged as at order α."""
    return 1.0 if bit.alpha == alpha else alpha / bit.alpha * (1 + ROUNDING)


def _first_step(bit: _Bit) -> float:
    """The step below which the quadratic bound is used: it is within 1/2 % there (penalty: the Gaussian cap)."""
    if bit.acceptance == "penalty":
        return 1e-4 / bit.rows_per_unit
    return 0.005 / _small_exponent(replace(bit, shift=0.0), 1.0)


@register_jitable  # type: ignore[untyped-decorator]
def look_up(table: CostTable, b: float, remainder: float) -> float:
    """An upper bound on `bit_cost`, for compiled loops; +inf for what is not a step the table covers, NaN included.

    Not for callers compiled with fastmath's `nnan`, which lets the compiler drop the test for NaN.
    """
    if not (b >= 0.0 and remainder >= 0.0):
        return math.inf
    step = b + table.remainder_weight * remainder
    if not step <= table.last:
        return math.inf
    if step <= table.first:
        root = table.slope * step + table.offset
        return float(min(root * root, table.costs[0]))
    return float(table.costs[int(math.log(step / table.first) * table.cells_per_log)])
