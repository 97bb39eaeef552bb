"""The audit: does what the library runs keep the privacy that it charges for?

A privacy claim is an upper bound, and a test can only ever push against it from below. This file pushes as hard as it
can, in three ways that share no code with the accounting that they examine.

1. ``exact_bit`` — one accept bit, without sampling. The unit's part of the log-ratio ℓ has a law that can be written
   down (``dpfastmh.theory``); the rest contributes any real number R. Over a grid of R and of everything that a unit's
   rows may be, corners and inside, the largest log ratio of probabilities and the largest Rényi divergence are found
   and compared with ``privacy.accept_bit``.
2. ``one_bit``, ``many_bits``, ``release`` — bits of the *compiled* chain, and noisy sums, on two neighbouring tables
   that are as different as a record can make them, and from their frequencies a lower bound on ε. ``extreme_records``
   looks for records that move a sum by more than the noise was made for.
3. ``whole_run`` — many complete private runs through ``privacy.boundary`` with a real filter, a noisy release first and
   a chain until the budget is spent; a statistic trained on some of the runs tries to tell the tables of the others.

**A lower bound on ε from frequencies.** If the outputs are (ε, δ)-differentially private, every event S has
P(S) ≤ e^ε Q(S) + δ, so ε ≥ log((P(S) − δ)/Q(S)). With S seen h times in n runs, Clopper and Pearson's limits hold for
P(S) from below and Q(S) from above, each but for a chosen chance; the bound then holds but for the sum. S must be fixed
before the runs that are counted: it is chosen on a first third of the runs, one event for each direction (P over Q,
Q over P), and counted on the rest. Four limits share the chance of error.

**The neighbouring tables.** Logistic regression on the box [−1, 1]², θ = (1000, t), and moves t → t + b: there the
energies log(1 + e^{x·θ}) of the records x = (1, ±1), y = 0 are straight lines to the last bit, and so they change by
±b, which is the public bound itself. Beside the unit in question (x = (1, 1) or x = (1, −1), as many rows as it may
hold) the table has one row of zeros, which adds nothing: all of ℓ is the unit's part and R, the change of the prior's
logarithm. On a straight line each step of a chain is the same experiment as the last, so a run of n steps is n
independent bits. (With control variates the remainder depends on where the chain is, and every bit starts afresh.)

What an audit cannot do is in ``docs/audit.md``.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfastmh import theory
from dpfastmh.budget import Budget, best_alpha, epsilon_from_rdp
from dpfastmh.privacy.accept_bit import bit_cost, pure_epsilon

if TYPE_CHECKING:
    from dpfastmh.methods import Method, Sampler, State
    from dpfastmh.privacy.boundary import PrivateRecords

__all__ = [
    "CASES",
    "EFFORTS",
    "Bit",
    "Finding",
    "Published",
    "clopper_pearson",
    "exact_bit",
    "extreme_records",
    "lower_bound",
    "many_bits",
    "one_bit",
    "release",
    "run",
    "violations",
    "whole_run",
]

FloatArray = npt.NDArray[np.float64]
Progress = Callable[[str], None]

ERROR = 1e-5  # chance that a sampled lower bound lies above the truth, for each finding
HELD_OUT = 1.0 / 3.0  # of the runs: choose the event and are not counted
FAR = 1000.0  # where the energies of the audit's records are straight lines
CUBIC = 1.0 / (6.0 * math.sqrt(3.0))  # the largest third derivative of log(1 + e^η)
ORDERS = (2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0)


# -- what is found ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Finding:
    """One claim beside the strongest evidence against it."""

    method: str
    what: str
    measure: str  # "epsilon", "sensitivity" or, for example, "Rényi divergence of order 8"
    claim: float | None  # None: the method claims nothing
    lower: float  # inf: no finite number would do
    delta: float = 0.0
    error: float = 0.0  # chance that `lower` is above the truth; 0 where nothing was sampled
    ours: bool = True
    note: str = ""

    @property
    def verdict(self) -> str:
        """ "holds", "violated" or "no claim". Exact figures are good to about ten digits."""
        if self.claim is None:
            return "no claim"
        return "violated" if not self.lower <= self.claim * (1.0 + 1e-9) else "holds"

    @property
    def tightness(self) -> float | None:
        """Lower bound over claim."""
        return None if self.claim is None or self.claim == 0.0 else self.lower / self.claim

    def as_dict(self) -> dict[str, Any]:
        """For machines: JSON has no infinity, so a lower bound without limit reads "unbounded"."""
        found = asdict(self) | {"verdict": self.verdict}
        if math.isinf(self.lower):
            found["lower"] = "unbounded"
        return found


def violations(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that refute a claim of this library's own."""
    return [finding for finding in findings if finding.ours and finding.verdict == "violated"]


# -- a bit, as claimed or as run -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bit:
    """All that an accept bit's cost depends on; see ``privacy.accept_bit.bit_cost`` for the names.

    A claim is made for one ``Bit``; what is examined may be another, and then the audit should notice.
    """

    b: float = 0.1
    batch: str = "full"
    x: float = 1.0
    remainder: float = 0.0
    laziness: float = 1.0
    acceptance: str = "barker"
    variance: float | None = None
    rows_per_unit: int = 1
    coin_released: bool = False  # whether it is seen that a step was skipped: never so in this library

    def _options(self) -> dict[str, Any]:
        names = ("batch", "x", "remainder", "laziness", "acceptance", "variance", "rows_per_unit")
        return {name: getattr(self, name) for name in names}

    def claimed_pure(self) -> float:
        """The ε of one bit; infinite where there is none (penalty acceptance without laziness)."""
        if self.acceptance == "penalty" and self.laziness == 1.0:
            return math.inf
        return pure_epsilon(self.b, **self._options())

    def claimed_rdp(self, alpha: float) -> float:
        return bit_cost(alpha, self.b, **self._options())

    def claimed_epsilon(self, bits: int, delta: float) -> float:
        """The least ε that the library's accounting promises for this many bits at δ, over several Rényi orders."""
        promised = [epsilon_from_rdp(bits * self.claimed_rdp(alpha), delta, alpha) for alpha in ORDERS]
        return min(*promised, bits * self.claimed_pure())

    def at(self, b: float) -> Bit:
        """The same bit for another step size, its remainder in proportion."""
        return replace(self, b=b, remainder=self.remainder * b / self.b)


# -- exact: every outcome's probability ------------------------------------------------------------------------------
def _outcomes(acceptance: str, variance: float | None, ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
    """g(ℓ) and 1 − g(ℓ), neither from the other where digits would be lost."""
    if acceptance == "barker":
        return theory.barker(ratio), theory.barker(-ratio)
    if acceptance == "metropolis":
        return theory.metropolis(ratio), -np.expm1(np.minimum(ratio, 0.0))
    accept = theory.penalty(float(variance or 1.0))(ratio)
    return accept, 1.0 - accept


def unit_laws(bit: Bit, points: int = 9) -> list[theory.RatioLaw]:
    """The law of a unit's part of ℓ for rows of every kind: extremes and between, all its rows or fewer, none."""
    k, b, r = bit.rows_per_unit, bit.b, bit.remainder
    between = np.linspace(-1.0, 1.0, points)
    nothing = [theory.certain(0.0)]
    if bit.batch == "full":
        return nothing + [theory.certain(-k * b * u) for u in between]
    if bit.batch == "minibatch":  # n equal rows are one row n times as large: counts add, their weight stays
        rows = sorted({1, k})
        return nothing + [theory.minibatch_law(n * b * u, n * b, n * b / bit.x) for n in rows for u in between]
    few = np.linspace(-1.0, 1.0, 5)
    laws = [
        theory.minibatch_law(k * r * v, k * r, k * r / bit.x).shifted(-k * (b * u - r * v)) if r > 0 else
        theory.certain(-k * b * u)
        for u in between
        for v in few
    ]  # fmt: skip
    return nothing + laws


def outcome_table(laws: Sequence[theory.RatioLaw], rest: FloatArray, bit: Bit) -> FloatArray:
    """log P(outcome) with axes (outcome, law of the unit, R): accepted, not accepted, and skipped if that is seen."""
    accept, reject = np.empty((len(laws), rest.size)), np.empty((len(laws), rest.size))
    for i, law in enumerate(laws):
        yes, no = _outcomes(bit.acceptance, bit.variance, law.ratio[:, None] + rest)
        accept[i], reject[i] = law.probability @ yes, law.probability @ no
    kappa = bit.laziness
    parts = [kappa * accept, kappa * reject + (0.0 if bit.coin_released else 1.0 - kappa)]
    if bit.coin_released and kappa < 1.0:
        parts.append(np.full_like(accept, 1.0 - kappa))
    with np.errstate(divide="ignore"):
        return np.log(np.array(parts))


def worst_log_ratio(table: FloatArray) -> float:
    """The ε of pure differential privacy: max over outcomes, pairs of units and R of |log P/Q|."""
    high, low = table.max(axis=1), table.min(axis=1)
    gap = np.where(np.isneginf(high), 0.0, high) - np.where(np.isneginf(high), 0.0, low)
    return float(gap.max())


def worst_divergence(table: FloatArray, alpha: float) -> FloatArray:
    """max over pairs of units of D_α, for each R."""
    worst = np.zeros(table.shape[2])
    for i in range(table.shape[1]):
        p, q = table[:, i, None, :], table
        with np.errstate(invalid="ignore"):
            terms = np.where(np.isneginf(p), -np.inf, alpha * p + (1.0 - alpha) * q)
        moment = np.logaddexp.reduce(terms, axis=0)
        worst = np.maximum(worst, moment.max(axis=0) / (alpha - 1.0))
    return worst


def _rests(bit: Bit) -> FloatArray:
    """The R to look at. 1 − g of the penalty is a difference, of no digits far to the right: those are left out."""
    top = 14.0 if bit.acceptance != "penalty" else float(bit.variance or 1.0) / 2.0 + 5.0 * math.sqrt(bit.variance or 1)
    return np.linspace(-14.0, top, 225)


def exact_pure(bit: Bit, points: int = 9) -> float:
    """The worst log ratio of the bit as it is run. It grows as R → ±∞, where the claims' suprema lie."""
    rests = np.append(_rests(bit), () if bit.acceptance == "penalty" else (-30.0, 30.0))
    return worst_log_ratio(outcome_table(unit_laws(bit, points), rests, bit))


def exact_rdp(bit: Bit, alpha: float, points: int = 9) -> float:
    """The worst Rényi divergence of the bit as it is run: over a grid of R, then finer where it is largest."""
    laws, rests = unit_laws(bit, points), _rests(bit)
    step = float(rests[1] - rests[0])
    best = 0.0
    for _ in range(3):
        found = worst_divergence(outcome_table(laws, rests, bit), alpha)
        at = rests[int(np.argmax(found))]
        best = max(best, float(found.max()))
        rests = np.linspace(at - step, at + step, 21)
        step /= 10.0
    return best


def exact_bit(
    method: str,
    what: str,
    claimed: Bit,
    actual: Bit | None = None,
    *,
    steps: Sequence[float] = (0.01, 0.1, 1.0),
    alpha: float = 8.0,
) -> list[Finding]:
    """ε and D_α of one bit, found by exact sums, against their claims: at the step size where they come closest."""
    actual = claimed if actual is None else actual
    scale = actual.b / claimed.b
    pure, rdp = [], []
    for b in steps:
        promise, real = claimed.at(b), actual.at(b * scale)
        if math.isfinite(promise.claimed_pure()):
            pure.append(Finding(method, f"{what}: one bit, exact", "epsilon", promise.claimed_pure(), exact_pure(real)))
        measure = f"Rényi divergence of order {alpha:g}"
        rdp.append(
            Finding(method, f"{what}: one bit, exact", measure, promise.claimed_rdp(alpha), exact_rdp(real, alpha))
        )
    return [max(found, key=lambda one: one.tightness or 0.0) for found in (pure, rdp) if found]


# -- lower bounds from frequencies -----------------------------------------------------------------------------------
def clopper_pearson(hits: npt.ArrayLike, runs: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Limits of a probability, each on its own side of the truth but for a chance of at most ``error``."""
    from scipy.special import betaincinv

    h = np.asarray(hits, dtype=np.float64)
    low = np.where(h > 0, betaincinv(np.maximum(h, 1.0), runs - h + 1.0, error), 0.0)
    high = np.where(h < runs, betaincinv(h + 1.0, np.maximum(runs - h, 1.0), 1.0 - error), 1.0)
    return low, high


def _bound(hits_p: npt.ArrayLike, runs_p: int, hits_q: npt.ArrayLike, runs_q: int, delta: float, error: float) -> Any:
    """log((P(S) − δ)/Q(S)) from below; both limits hold but for ``error``."""
    low, _ = clopper_pearson(hits_p, runs_p, error / 2.0)
    _, high = clopper_pearson(hits_q, runs_q, error / 2.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(low > delta, np.log(np.maximum(low - delta, 0.0)) - np.log(high), -np.inf)


def lower_bound(first: npt.ArrayLike, second: npt.ArrayLike, *, delta: float = 0.0, error: float = ERROR) -> float:
    """A lower bound on ε from one score for each run on two tables; above the truth with a chance below ``error``.

    The events are "the score is at least (at most) t". In either direction the one that promises most on the first
    ``HELD_OUT`` of the runs is counted on the rest.
    """
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    best = 0.0
    for one, other in ((p, q), (q, p)):
        cut, other_cut = _held_out(one.size), _held_out(other.size)
        threshold, sign = _best_event(one[:cut], other[:other_cut], delta, error / 2.0)
        hits = [int(np.count_nonzero(sign * scores >= sign * threshold)) for scores in (one[cut:], other[other_cut:])]
        found = _bound(hits[0], one.size - cut, hits[1], other.size - other_cut, delta, error / 2.0)
        best = max(best, float(found))
    return best


def _held_out(runs: int) -> int:
    return max(1, int(HELD_OUT * runs))


def _best_event(p: FloatArray, q: FloatArray, delta: float, error: float) -> tuple[float, float]:
    """(t, sign) of the event sign·score ≥ sign·t with the best bound on these runs."""
    pooled = np.unique(np.concatenate([p, q]))
    if pooled.size > 200:
        pooled = np.unique(np.quantile(pooled, np.linspace(0.0, 1.0, 200), method="nearest"))
    p, q = np.sort(p), np.sort(q)
    best, event = -math.inf, (float(pooled[0]), 1.0)
    for sign in (1.0, -1.0):
        if sign > 0:
            hits = [scores.size - np.searchsorted(scores, pooled, "left") for scores in (p, q)]
        else:
            hits = [np.searchsorted(scores, pooled, "right") for scores in (p, q)]
        found = _bound(hits[0], p.size, hits[1], q.size, delta, error)
        at = int(np.argmax(found))
        if found[at] > best:
            best, event = float(found[at]), (float(pooled[at]), sign)
    return event


# -- the compiled chain on neighbouring tables -----------------------------------------------------------------------
_WORD = (1 << 59) | 7
_KEPT: list[Any] = []  # a generator holds only the addresses of these


def _constant_moves() -> np.random.Generator:
    """Proposals are public, so the audit chooses them: a stream whose every normal is the same number."""
    from numba import cfunc, types
    from randomgen.wrapper import UserBitGenerator

    if not _KEPT:

        @cfunc(types.uint64(types.voidptr))  # type: ignore[untyped-decorator]
        def word(address: Any) -> Any:
            return np.uint64(_WORD)

        @cfunc(types.uint32(types.voidptr))  # type: ignore[untyped-decorator]
        def half_word(address: Any) -> Any:
            return np.uint32(0)

        @cfunc(types.double(types.voidptr))  # type: ignore[untyped-decorator]
        def fraction(address: Any) -> Any:
            return 0.5

        _KEPT.extend([word, half_word, fraction, np.zeros(1, np.uint64)])
    word, half_word, fraction, state = _KEPT
    address = state.ctypes.data_as(ctypes.c_void_p)
    return np.random.Generator(UserBitGenerator.from_cfunc(word, word, half_word, fraction, address))


def method_of(bit: Bit, move: float) -> Method:
    """The library's method that makes such bits, its moves ``move`` along the second coordinate."""
    from dpfastmh import methods

    along = methods.Directions([[0.0, 1.0]], move / abs(float(_constant_moves().standard_normal())))
    if bit.batch == "full":
        kind = methods.MetropolisHastings if bit.acceptance == "metropolis" else methods.DPFastMHFull
        more = {"variance": bit.variance} if bit.variance is not None else {}
        return kind(along, laziness=bit.laziness, acceptance=bit.acceptance, **more)
    return methods.DPFastMH(
        along, laziness=bit.laziness, acceptance=bit.acceptance, ratio=bit.x, full_batch=False, thrift=0.0
    )


@dataclass(frozen=True)
class _Table:
    """One of the two neighbours, bound to a method: its compiled chain and where it starts."""

    sampler: Sampler
    start: State
    records: PrivateRecords


START = (FAR, 0.0)


def _tables(bit: Bit, rest: float, seed: int | None, meter: Any = None) -> list[_Table]:
    """The neighbouring tables under the method of ``bit``; every step has R = ``rest``."""
    from dpfastmh import Box, Flat, Laplace, LogisticRegression
    from dpfastmh.privacy.boundary import PrivateRecords

    k = bit.rows_per_unit
    slope = Flat() if rest == 0.0 else Laplace(bit.b / abs(rest), loc=math.copysign(1e6, rest))
    model = LogisticRegression(Box.unit(2), [Flat(), slope], intercept=False)
    tables = []
    for number, sign in enumerate((1.0, -1.0)):
        rows = model.load(np.array([[1.0, sign]] * k + [[0.0, 0.0]]), np.zeros(k + 1))
        sampler = method_of(bit, bit.b).on(
            model,
            rows,
            reference=START if bit.batch == "control-variate" else None,
            seed=seed,
            chain_number=number,
            threads=1,
            public_rows=2 * k,
            meter=meter,
        )
        sampler._streams = sampler._streams._replace(proposals=_constant_moves())
        records = PrivateRecords(model, rows, units=2, rows_per_unit=k, threads=1)
        tables.append(_Table(sampler, sampler.init(START), records))
    return tables


def _bits(table: _Table, bit: Bit, count: int) -> npt.NDArray[np.bool_]:
    """Accept bits of the compiled chain: read off the states, as whoever receives the draws would."""
    if bit.batch == "control-variate":
        bits = [table.sampler.run(table.start, 1)[2].accepted for _ in range(count)]
        return np.array(bits, dtype=bool)
    longest = int(0.5 * FAR / bit.b)
    parts: list[npt.NDArray[np.bool_]] = []
    for first in range(0, count, longest):
        _, draws, _ = table.sampler.run(table.start, min(longest, count - first))
        parts.append(np.diff(draws[:, 1], prepend=0.0) != 0.0)
    return np.concatenate(parts)


def one_bit(
    method: str, what: str, claimed: Bit, actual: Bit | None = None, *, bits: int = 200_000, seed: int | None = None
) -> Finding:
    """ε of a single bit of the compiled chain: at R far to the left, where acceptance tells most, to the right, where
    rejection does, and between; the three share the chance of error."""
    actual = claimed if actual is None else actual
    count = max(4, bits // 40) if actual.batch == "control-variate" else bits
    found = 0.0
    for rest in (-2.5, 0.0, 2.5):
        pair = [_bits(table, actual, count) for table in _tables(actual, rest, seed)]
        found = max(found, lower_bound(*pair, error=ERROR / 3.0))
    return Finding(method, f"{what}: one bit, {count:,} runs", "epsilon", claimed.claimed_pure(), found, 0.0, ERROR)


def many_bits(
    method: str,
    what: str,
    claimed: Bit,
    actual: Bit | None = None,
    *,
    length: int = 64,
    delta: float = 0.01,
    bits: int = 200_000,
    seed: int | None = None,
) -> Finding:
    """ε at δ of ``length`` bits of the compiled chain. They are alike, so how many are accepted says all they can."""
    actual = claimed if actual is None else actual
    pair = []
    for table in _tables(actual, _most_telling(actual), seed):
        found = _bits(table, actual, max(4, bits // length) * length)
        pair.append(found.reshape(-1, length).sum(axis=1))
    label = f"{what}: {length} bits, {pair[0].size:,} runs"
    return Finding(
        method, label, "epsilon", claimed.claimed_epsilon(length, delta), lower_bound(*pair, delta=delta), delta, ERROR
    )


def _most_telling(bit: Bit) -> float:
    """The R where a small Barker step costs most, σ(R) = 2/(3 + √(9 − 8κ))."""
    s = 2.0 / (3.0 + math.sqrt(9.0 - 8.0 * bit.laziness))
    return math.log(s / (1.0 - s))


# -- whole runs through the boundary ---------------------------------------------------------------------------------
def whole_run(
    method: str,
    what: str,
    bit: Bit,
    *,
    budget: Budget = Budget(2.0, 0.05),  # noqa: B008 - frozen
    release_share: float = 0.3,
    charged: float = 1.0,
    runs: int = 1000,
    seed: int | None = None,
) -> Finding:
    """ε at δ of complete private runs: a noisy gradient for ``release_share`` of the budget, then a chain to the end.

    What a run gives out — the released gradient, how many steps were accepted — is scored by Fisher's linear
    discriminant, trained on the runs held out. ``charged`` < 1 plants a bug: only that share of each bit's
    cost is entered. Noise of releases is always the real one, whatever the ``seed``.
    """
    from dpfastmh.privacy.boundary import PrivateChain, make_meter
    from dpfastmh.privacy.filter import RenyiFilter

    cap = 20_000
    alpha = best_alpha(budget.minus_float_reserve(cap))
    limit = RenyiFilter(budget, steps_cap=cap, alpha=alpha).limit
    method_run = method_of(bit, bit.b)
    start = np.array(START)
    model = _tables(bit, 0.0, seed)[0].records.model
    meter = _discounted(make_meter(model, method_run, alpha, 2, bit.rows_per_unit), charged)
    outputs = []
    for table in _tables(bit, 0.0, seed, meter):
        released = np.empty((runs, 4))
        for number in range(runs):
            account = RenyiFilter(budget, steps_cap=cap, alpha=alpha)
            gradient, _ = table.records.noisy_gradient(start, release_share * limit / alpha * (1 - 1e-9), account)
            chain = PrivateChain(table.sampler, table.start, account).run(cap - 1)
            released[number] = *gradient, chain.accepted.sum(), chain.steps
        outputs.append(released)
    label = f"{what}: whole run, {runs:,} runs of about {np.mean(outputs[0][:, 3]):.0f} steps"
    found = lower_bound(*_scores(*outputs), delta=budget.delta)
    return Finding(method, label, "epsilon", budget.epsilon, found, budget.delta, ERROR)


def _discounted(meter: Any, charged: float) -> Any:
    """A meter that enters only this share of each cost: a planted bug."""
    if charged == 1.0:
        return meter

    def cheaper(table: Any) -> Any:
        root = math.sqrt(charged)
        return table._replace(costs=table.costs * charged, slope=table.slope * root, offset=table.offset * root)

    return meter._replace(
        full=cheaper(meter.full), minibatch=cheaper(meter.minibatch), expanded=cheaper(meter.expanded)
    )


def _scores(first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fisher's discriminant w = S⁻¹(m₁ − m₂) from the runs held out, applied to all."""
    one, other = first[: _held_out(len(first))], second[: _held_out(len(second))]
    scale = np.concatenate([one, other]).std(axis=0)
    kept = scale > 0.0
    one, other = one[:, kept] / scale[kept], other[:, kept] / scale[kept]
    spread = np.cov(one.T) + np.cov(other.T) + 1e-9 * np.eye(int(kept.sum()))
    weights = np.linalg.solve(np.atleast_2d(spread), one.mean(axis=0) - other.mean(axis=0)) / scale[kept]
    return first[:, kept] @ weights, second[:, kept] @ weights


# -- noisy releases --------------------------------------------------------------------------------------------------
def release(
    kind: str,
    *,
    budget: Budget = Budget(2.0, 0.05),  # noqa: B008 - frozen
    runs: int = 1000,
    seed: int | None = None,
) -> Finding:
    """ε at δ of one noisy sum, "gradient" or "hessian", that takes the whole budget.

    The records live in the unit disc, and θ = 0, where slopes are ±½ and curvatures ¼: replacing e₁ by −e₁ moves the
    gradient by its whole sensitivity, 1, and replacing e₁ by e₂ moves the Hessian by its own, √2/4. ``seed`` replaces
    OpenDP's noise by rounded normal numbers.
    """
    from dpfastmh import Ball, Flat, LogisticRegression
    from dpfastmh.privacy.boundary import PrivateRecords
    from dpfastmh.privacy.filter import RenyiFilter

    model = LogisticRegression(Ball(1.0, ["a", "b"]), Flat(), intercept=False)
    alpha = best_alpha(budget.minus_float_reserve(1))
    outputs = []
    for number, record in enumerate(((1.0, 0.0), (-1.0, 0.0) if kind == "gradient" else (0.0, 1.0))):
        rows = model.load(np.array([record, (0.0, 0.0)]), np.zeros(2))
        found = []
        for turn in range(runs):
            own = None if seed is None else 2 * (seed * runs + turn) + number
            records = PrivateRecords(model, rows, units=2, threads=1, seed=own)
            account = RenyiFilter(budget, steps_cap=1, alpha=alpha)
            rho = account.left / alpha * (1.0 - 1e-9)
            noisy = records.noisy_gradient if kind == "gradient" else records.noisy_hessian
            found.append(noisy(np.zeros(2), rho, account)[0].ravel())
        outputs.append(np.array(found))
    found_bound = lower_bound(*_scores(*outputs), delta=budget.delta)
    label = f"noisy {kind}: one release, {runs:,} runs"
    return Finding("dp-fast-mh", label, "epsilon", budget.epsilon, found_bound, budget.delta, ERROR)


def extreme_records() -> list[Finding]:
    """How far one record moves G and H, against the sensitivity that set their noise, for every kind of regression.

    Records: corners of the box and its centre, targets from ordinary to the largest that a float holds, in float64 and
    float32, as far as loading accepts them. The sensitivity is read off the released noise: Δ = sd·√(2ρ).
    """
    from dpfastmh.models import REGRESSIONS

    worst: dict[str, Finding] = {}
    for name, named in REGRESSIONS.items():
        for kind in ("gradient", "hessian"):
            claim, moved = _farthest(name, named.build, kind)
            found = Finding("dp-fast-mh", f"noisy {kind}: extreme records ({name}), exact", "sensitivity", claim, moved)
            if kind not in worst or (found.tightness or 0.0) > (worst[kind].tightness or 0.0):
                worst[kind] = found
    return list(worst.values())


_TARGETS: dict[str, tuple[float, ...]] = {
    "logistic": (0.0, 1.0),
    "softmax": (0.0, 1.0, 2.0),
    "poisson": (0.0, 1.0, 9.0),
}
_OUTCOMES = (0.0, 1.0, -1.0, 3.0, 1e6, -1e6, 1e20, 1e39, -1e39, 1e78, 1e160, -1e160, 1.7e308)


def _farthest(name: str, build: Callable[..., Any], kind: str) -> tuple[float, float]:
    """(Δ, the largest distance between the sums of two tables that differ in one record), where they come closest."""
    from dpfastmh import Box
    from dpfastmh.privacy.boundary import PrivateRecords
    from dpfastmh.privacy.filter import RenyiFilter

    needed: dict[str, dict[str, Any]] = {"softmax": {"classes": 3}, "poisson": {"cap": 9.0}}
    model = build(Box.unit(2), intercept=False, **needed.get(name, {}))
    p = len(model.parameters)
    rho, worst = 0.5, (1.0, 0.0)
    for point in (np.zeros(p), np.linspace(1.0, -2.0, p)):
        records = PrivateRecords(model, _pair(model, (1.0, 1.0), 0.0, np.float64), units=2, threads=1)
        account = RenyiFilter(Budget(20.0, 0.1), steps_cap=1, alpha=2.0)
        noisy = records.noisy_gradient if kind == "gradient" else records.noisy_hessian
        claim = noisy(point, rho, account)[1] * math.sqrt(2.0 * rho)
        tables = [
            _pair(model, x, y, dtype)
            for dtype in (np.float64, np.float32)
            for x in ((1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0), (0.0, 0.0))
            for y in _TARGETS.get(name, _OUTCOMES)
        ]
        sums = np.array([_sums(model, rows, point, kind) for rows in tables if rows is not None])
        moved = max(float(np.sqrt(np.square(sums - one).sum(axis=1)).max()) for one in sums)
        worst = max(worst, (claim, moved), key=lambda pair: pair[1] / pair[0])
    return worst


def _pair(model: Any, x: tuple[float, float], y: float, dtype: Any) -> Any:
    """A table of this record and one of zeros; None for a record that is refused."""
    from dpfastmh.models import ModelError

    try:
        return model.load(np.array([x, (0.0, 0.0)], dtype=dtype), np.array([y, 0.0]))
    except ModelError:
        return None


def _sums(model: Any, rows: Any, point: FloatArray, kind: str) -> FloatArray:
    from dpfastmh.steps.reference import integer_sums

    gradient, hessian, gradient_grid, hessian_grid = integer_sums(model, rows, point, threads=1, public_rows=2)
    return np.asarray(gradient * gradient_grid if kind == "gradient" else hessian.ravel() * hessian_grid)


# -- the algorithm as published --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Published:
    """The accept rule of the paper's Algorithm 2 (Zhang & Zhang 2023), noise corrected only where there is noise.

    Accept with probability min(1, e^{ℓ + ξ − σ²Δ²/2}), ξ ~ N(0, σ²Δ²), σ = √(2 log(1.25/δ))/ε, where Δ is the
    sensitivity of ℓ: Δ₂ = 2cM on the full batch, Δ₁ = 2 log(1 + CM/λ) on a minibatch. Where Δ ≤ ε no noise is added at
    all, because accepting or not is held to protect privacy for free. That argument bounds the probability of
    acceptance only.
    """

    epsilon: float = 0.05
    delta: float = 1e-5

    def noise_variance(self, sensitivity: float) -> float:
        """σ²Δ², or 0 where the rule finds privacy for free."""
        if sensitivity <= self.epsilon:
            return 0.0
        return 2.0 * math.log(1.25 / self.delta) * (sensitivity / self.epsilon) ** 2

    def accept(self, ratio: FloatArray, sensitivity: float, random: np.random.Generator) -> npt.NDArray[np.bool_]:
        variance = self.noise_variance(sensitivity)
        noisy = ratio + math.sqrt(variance) * random.standard_normal(ratio.shape) - variance / 2.0
        return np.asarray(random.random(ratio.shape) < np.exp(np.minimum(noisy, 0.0)))


_WHY = (
    "the rule protects acceptance, not rejection: a move that raises everybody's likelihood is accepted for certain, "
    "so one rejection proves that a record was different"
)


def published_full(*, bits: int = 200_000, seed: int | None = None) -> list[Finding]:
    """A full-batch step with Δ₂ = ε: ℓ = 0 on one table and −Δ₂ on its neighbour."""
    rule = Published()
    laws = [theory.certain(0.0), theory.certain(-rule.epsilon)]
    return _published_findings(rule, "full batch", laws, rule.epsilon, bits, seed)


def published_minibatch(*, bits: int = 200_000, seed: int | None = None) -> list[Finding]:
    """A minibatch step at N = 50,000: CM = 10, λ = 400, so that Δ₁ = .0494 < ε and λ + CM = 410 < K = εN/6 = 416.

    All other records leave ℓ as it is; the one in question moves by ∓b, b = CM/N.
    """
    rule, size, reach, rate = Published(), 50_000, 10.0, 400.0
    b, r = reach / size, rate / size
    laws = [theory.minibatch_law(sign * b, b, r) for sign in (-1.0, 1.0)]
    return _published_findings(rule, "minibatch", laws, 2.0 * math.log1p(reach / rate), 10 * bits, seed)


def _published_findings(
    rule: Published, what: str, laws: list[theory.RatioLaw], sensitivity: float, bits: int, seed: int | None
) -> list[Finding]:
    table = outcome_table(laws, np.zeros(1), Bit(acceptance="metropolis"))
    exact, chance = needed_epsilon(table[:, 0, 0], table[:, 1, 0], rule.delta)
    random = np.random.default_rng(seed)
    pair = []
    for law in laws:
        ratio = random.choice(law.ratio, bits, p=law.probability / law.probability.sum())
        pair.append(rule.accept(ratio, sensitivity, random))
    sampled = lower_bound(*pair, delta=rule.delta)
    shared = {"delta": rule.delta, "ours": False}
    needs = f"claimed for a single step; would need δ ≥ {chance:.2g}: {_WHY}"
    return [
        Finding("published", f"{what}: one step, exact", "epsilon", rule.epsilon, exact, note=needs, **shared),  # type: ignore[arg-type]
        Finding(
            "published", f"{what}: one step, {bits:,} runs", "epsilon", rule.epsilon, sampled, rule.delta, ERROR, False
        ),
    ]


def needed_epsilon(log_p: FloatArray, log_q: FloatArray, delta: float) -> tuple[float, float]:
    """The least ε with P(S) ≤ e^ε Q(S) + δ, and back, for single outcomes S; and the δ that no ε can do without: the
    largest probability of an outcome that the other table rules out."""
    best, impossible = 0.0, 0.0
    for p, q in ((np.exp(log_p), np.exp(log_q)), (np.exp(log_q), np.exp(log_p))):
        for one, other in zip(p, q, strict=True):
            if other == 0.0:
                impossible = max(impossible, float(one))
            if one > delta:
                best = max(best, math.inf if other == 0.0 else math.log((one - delta) / other))
    return best, impossible


def metropolis(*, bits: int = 200_000, seed: int | None = None) -> list[Finding]:
    """min(1, e^ℓ) on the full batch promises nothing, and keeps nothing."""
    bit = Bit(0.1, acceptance="metropolis")
    sampled = one_bit("mh", "full batch", replace(bit, acceptance="barker"), bit, bits=bits, seed=seed)
    note = "an accepted move can be certain, so one rejection can rule a table out"
    exact = Finding("mh", "full batch: one bit, exact", "epsilon", None, exact_pure(bit), ours=False, note=note)
    return [exact, replace(sampled, claim=None, ours=False)]


# -- all of it -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Effort:
    """How long to push."""

    bits: int  # of the compiled chain, for each experiment and table
    runs: int  # whole runs on each table
    steps: tuple[float, ...]  # step sizes of the exact check


EFFORTS = {
    "quick": Effort(60_000, 300, (0.1, 1.0)),
    "default": Effort(300_000, 1_200, (0.01, 0.1, 1.0)),
    "thorough": Effort(4_000_000, 40_000, (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)),
}
STEP, SHORT_STEP = 0.5, 0.1  # of single bits; of many bits and of whole runs
_EXPANDED = Bit(STEP, "control-variate", remainder=0.5 * CUBIC * STEP**3 * (1 + 1e-6))

CASES: dict[str, dict[str, Bit]] = {
    "dp-fast-mh": {
        "minibatch": Bit(STEP, "minibatch"),
        "minibatch, κ = 0.25": Bit(STEP, "minibatch", laziness=0.25),
        "minibatch, 3 rows per unit": Bit(STEP, "minibatch", rows_per_unit=3),
        "control variates": _EXPANDED,
        "control variates, κ = 0.25": replace(_EXPANDED, laziness=0.25),
    },
    "dp-fast-mh-full": {
        "full batch": Bit(STEP),
        "full batch, κ = 0.25": Bit(STEP, laziness=0.25),
        "full batch, 3 rows per unit": Bit(STEP, rows_per_unit=3),
    },
    "penalty": {
        "full batch, v = 4": Bit(STEP, acceptance="penalty", variance=4.0),
        "full batch, v = 4, κ = 0.25": Bit(STEP, acceptance="penalty", variance=4.0, laziness=0.25),
    },
}
METHODS = (*CASES, "published", "mh")


def run(
    methods: Sequence[str] | None = None,
    *,
    effort: str = "default",
    seed: int | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Audit the named methods (all of ``METHODS`` if none is named)."""
    chosen = list(METHODS if methods is None else methods)
    for name in chosen:
        if name not in METHODS:
            raise ValueError(f"method {name!r} has no audit: choose from {', '.join(METHODS)}")
    if effort not in EFFORTS:
        raise ValueError(f"effort is {effort!r}: choose one of {', '.join(EFFORTS)}")
    tell = progress or (lambda text: None)
    findings: list[Finding] = []
    for name in chosen:
        findings += _audit_method(name, EFFORTS[effort], seed, tell)
    return findings


def _audit_method(name: str, much: Effort, seed: int | None, tell: Progress) -> list[Finding]:
    if name == "published":
        tell("published: one step")
        return [
            *published_full(bits=much.bits, seed=seed),
            *published_minibatch(bits=much.bits, seed=seed),
        ]
    if name == "mh":
        tell("mh: one bit")
        return metropolis(bits=much.bits, seed=seed)
    findings: list[Finding] = []
    for what, bit in CASES[name].items():
        tell(f"{name}, {what}: exact sums")
        findings += exact_bit(name, what, bit, steps=much.steps)
        tell(f"{name}, {what}: bits of the compiled chain")
        if math.isfinite(bit.claimed_pure()):
            findings.append(one_bit(name, what, bit, bits=much.bits, seed=seed))
        if bit.batch != "control-variate":
            findings.append(many_bits(name, what, bit.at(SHORT_STEP), bits=2 * much.bits, seed=seed))
    what, bit = next(iter(CASES[name].items()))
    tell(f"{name}, {what}: whole runs")
    if name == "dp-fast-mh":
        tell("dp-fast-mh: noisy sums")
        findings += extreme_records()
        findings += [release(kind, runs=much.runs) for kind in ("gradient", "hessian")]
    tell(f"{name}, {what}: whole runs")
    findings.append(whole_run(name, what, bit.at(SHORT_STEP), runs=much.runs, seed=seed))
    return findings
