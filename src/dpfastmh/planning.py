"""What a privacy budget buys, computed from public numbers alone: how to move, and what to expect of it.

**What a step costs, and what it buys.** For small moves of one coordinate j with standard deviation s_j, Barker
acceptance and laziness κ, a step costs ρ = 2J(κ)·E[b²] with b = k L1 β_j |δ_j|/τ for units of k rows, and the chain is
a diffusion with the mobility matrix M = diag(m), m_j ∝ s_j². The error covariance of its time averages is ∝ Σ M⁻¹ Σ,
Σ the posterior covariance, so that with D = diag(Σ) and W = Σ D⁻¹ Σ

    (sum of squared errors in posterior sd) × (ρ spent)  ∝  (Σ_j m_j β_j²)·(Σ_j W_jj/m_j),

least at m_j ∝ √W_jj/β_j, where it is (Σ_j β_j √W_jj)². No other directions do better on a box: the best mobility puts
its weight where vᵀM⁻¹WM⁻¹v/s(v)² is largest, a convex function over the ball of s, whose corners are the coordinates.

**Forecasts before any data.** ``plan`` assumes a *nominal design*: features spread evenly over their domain, every
coefficient 0, every unit holding its most rows. Real tables have features that lean on each other and take up less of
their bounds; they get fewer effective draws. The noisy Hessian of the warm start then tells, at a price already paid.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh import losses
from dpfastmh.budget import Budget, best_alpha, checked_count, rdp_budget
from dpfastmh.domain import BALL, BOXBALL, ONEHOT
from dpfastmh.findings import FEW_EFFECTIVE
from dpfastmh.models import GLM, Model
from dpfastmh.priors import energy_derivatives

FloatArray = npt.NDArray[np.float64]


class BudgetTooSmall(ValueError):
    """The budget cannot buy what was asked. One line, with the temperature, ε or number of units at which it would."""


# -- what a Barker chain yields --------------------------------------------------------------------------------------
# Effective draws per evaluated step of a random walk on N(0, 1) with Barker acceptance, by its scale in sd; computed
# from the transition operator on a fine grid (tests repeat it). ESS/step → scale²/8 for small scales.
SCALES = np.array([0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.3, 1.6, 2.0])
YIELD = np.array([0.00125, 0.0049, 0.0107, 0.0272, 0.0478, 0.0801, 0.1082, 0.1289, 0.1445])
STEPS_CAP = 5_000_000  # of one chain, whatever the budget: public, and paid for out of δ


class Engine(NamedTuple):
    """PUBLIC. Speed figures of a place where rows can be, two processors: they forecast, and decide nothing."""

    bytes: float  # a second, of a pass over all rows
    row: float  # seconds of a random row read ahead
    pass_: float  # seconds of asking for a pass


ENGINES = {"memory": Engine(2.5e9, 0.0, 0.0), "mapped": Engine(1e9, 5e-6, 0.002), "dask": Engine(1.5e9, 5e-6, 0.05)}
SECONDS = (1e-7, 5e-7, 3e-8)  # public speed figure: of a step, of one that looks at data, of each row it reads


def acceptance(scale: npt.ArrayLike) -> FloatArray:
    """Barker's acceptance E σ(−zδ − δ²/2) of moves δ ~ N(0, scale²) on z ~ N(0, 1).

    Given δ, tilting z by e^{zδ/2} makes it e^{−δ²/8} E[1/(2 cosh(zδ/2))]: even and smooth, so plain sums converge fast.
    """
    lengths = np.asarray(scale, dtype=np.float64)[..., None]
    reach = np.minimum(8.0, 14.0 / lengths)  # in units of the scale; longer moves are never accepted
    unit = np.linspace(-1.0, 1.0, 161)
    move = lengths * reach * unit
    weight = np.exp(-0.5 * (reach * unit) ** 2) * reach * (unit[1] - unit[0]) / math.sqrt(2.0 * math.pi)
    z = np.linspace(-8.0, 8.0, 81)
    normal = np.exp(-0.5 * z * z)
    even = (0.5 / np.cosh(0.5 * move[..., None] * z)) @ (normal / normal.sum())
    return np.asarray((weight * np.exp(-(move**2) / 8.0) * even).sum(axis=-1))


def lazy_price(laziness: float) -> float:
    """J(κ) = sup over σ of κσ(1−σ)²/(1−κσ), at σ = 2/(3 + √(9 − 8κ)): ρ of a small step is 2J b²."""
    s = 2.0 / (3.0 + math.sqrt(9.0 - 8.0 * laziness))
    return laziness * s * (1.0 - s) ** 2 / (1.0 - laziness * s)


@dataclass(frozen=True)
class Settings:
    """The planner's choices; every one may be set by hand in ``sample``."""

    warm_share: float = 0.25  # of the budget, for the start
    hessian_share: float = 0.35  # of the start's budget
    gradient_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 2.0, 4.0, 4.0)  # one Newton step each
    hessian_rounds: tuple[int, ...] = (0, 1, 2)
    adapt_share: float = 0.03  # of a chain's budget, for trying its moves
    laziness: float | None = None
    scale: float | None = None  # of a move, in conditional standard deviations
    dispersion: float = 0.3  # of the chains' starts, in posterior standard deviations
    thrift: float = 0.1  # how far an expansion's remainder may widen a step's price
    patience: float = 0.6  # seconds of work that may be spent on buying more, by the public speed figure
    least_draws: float = 1.0  # effective draws below which sampling is refused

    def __post_init__(self) -> None:
        for name in ("warm_share", "hessian_share"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it is a share, between 0 and 1")
        if not 0.0 <= self.adapt_share < 1.0:
            raise ValueError(f"adapt_share is {self.adapt_share!r}: it is a share, from 0 to below 1")
        if not (self.laziness is None or 1e-6 <= self.laziness <= 1.0):
            raise ValueError(f"laziness is {self.laziness!r}: the probability of a real step, from 0.000001 to 1")
        if not (self.scale is None or 0.0 < self.scale < math.inf):
            raise ValueError(f"scale is {self.scale!r}: it must be a finite number above 0")
        for name, least in (("dispersion", 0.0), ("thrift", 0.0), ("patience", 0.0), ("least_draws", -math.inf)):
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be a finite number, not negative")
        if not all(0.0 < weight < math.inf for weight in self.gradient_weights):
            raise ValueError(f"gradient_weights are {self.gradient_weights!r}: all must be finite and above 0")
        if not self.hessian_rounds or min(self.hessian_rounds) < 0:
            raise ValueError(f"hessian_rounds are {self.hessian_rounds!r}: name at least one round, from 0")
        if max(self.hessian_rounds) >= len(self.gradient_weights) - 1:
            raise ValueError("hessian_rounds must leave at least one later round of gradients")

    @property
    def last_weights(self) -> FloatArray:
        """Shares of the gradients' budget that the averaged last rounds get."""
        weights = np.array(self.gradient_weights)
        return np.asarray(weights[max(self.hessian_rounds) + 1 :] / weights.sum())


@dataclass(frozen=True)
class Start:
    """PUBLIC. Where chains start: a point, a precision matrix, and how far off the point may be."""

    point: FloatArray
    precision: FloatArray
    error: FloatArray  # standard deviation of the point's error, in posterior sd

    @property
    def covariance(self) -> FloatArray:
        return np.asarray(np.linalg.inv(self.precision))


@dataclass(frozen=True)
class Moves:
    """PUBLIC. How a chain moves: scales by coordinate and laziness, with what they are expected to do."""

    scales: FloatArray
    laziness: float
    own: FloatArray  # the scales in conditional standard deviations
    steps: float  # of one chain until its share of the budget is spent
    variance: FloatArray  # of one chain's time averages over that many steps, in posterior variances
    seconds: float  # of one chain
    rows: float  # that one chain is expected to read

    def errors(self, chains: int, start: FloatArray, steps: float | None = None) -> FloatArray:
        """Error of the mean of all draws in posterior sd: chance, and what is left of an error in the start.

        A chain of n effective draws forgets its start as 1 − (1 − e^{−2n})/(2n), and all chains share one start.
        """
        variance = self.variance * (1.0 if steps is None else self.steps / max(steps, 1.0))
        twice = 2.0 / variance
        left = -np.expm1(-twice) / twice
        return np.asarray(np.sqrt(variance / chains + (left * start) ** 2))

    def effective(self, chains: int, steps: float | None = None) -> FloatArray:
        """Effective draws of all chains, by coefficient."""
        return np.asarray(chains / self.variance * (1.0 if steps is None else steps / self.steps))


def choose_moves(
    model: GLM,
    start: Start,
    rho: float,
    units: int,
    rows_per_unit: int,
    settings: Settings,
    *,
    seconds: float,
    full: bool = False,
) -> Moves:
    """The scales and laziness that buy one chain the most from ``rho`` within about ``seconds`` of work.

    ``full``: every evaluated step reads all rows.
    """
    candidates = []
    for laziness in (0.05, 0.1, 0.25, 0.5, 1.0) if settings.laziness is None else (settings.laziness,):
        for scale in (0.2, 0.3, 0.5, 0.7, 1.0, 1.4) if settings.scale is None else (settings.scale,):
            candidates.append(_moves(model, start, rho, units, rows_per_unit, scale, laziness, settings.thrift, full))
    affordable = [moves for moves in candidates if moves.seconds <= seconds]
    if not affordable:
        return min(candidates, key=lambda moves: moves.seconds)
    return min(affordable, key=lambda moves: float(moves.variance.sum()))


def _moves(
    model: GLM, start: Start, rho: float, units: int, k: int, scale: float, laziness: float, thrift: float, full: bool
) -> Moves:
    covariance = start.covariance
    variances = np.diag(covariance)
    p = variances.size
    unit = np.tile(model.domain.table().half, model.predictors)
    w = np.diag(covariance / variances @ covariance)
    conditional = 1.0 / np.sqrt(np.diag(start.precision))
    scales = np.sqrt(np.sqrt(w) / unit)
    scales *= scale * float(np.min(conditional / scales))
    # moves a unit could notice by more than its largest bound would never be made
    scales = np.minimum(scales, 2.0 / (k * steepest_slope(model, start.point) * unit / model.temperature))
    own = scales / conditional
    bound = k * steepest_slope(model, start.point) * unit * scales / model.temperature
    steps = rho / (2.0 * lazy_price(laziness) * float(np.mean(bound**2)))
    # a scale above a small one wastes: efficiency relative to the diffusion limit, coordinate by coordinate
    efficiency = np.interp(np.minimum(own, SCALES[-1]), SCALES, YIELD / (SCALES**2 / 8.0))
    rate = laziness * efficiency * scales**2 / p  # mobility per step; the diffusion's ESS per step is mobility/(8 var)
    variance = 8.0 * np.diag(covariance @ np.diag(1.0 / rate) @ covariance) / variances / steps
    touched = float(units * k)
    if not full:
        touched = _rows_read(model, start, float(np.mean(bound)), float(np.mean(unit * scales)), units * k, thrift)
    step, evaluation, row = SECONDS
    seconds = steps * (step + laziness * (evaluation + row * touched))
    return Moves(scales, laziness, own, steps, variance, seconds, steps * laziness * touched)


def _rows_read(model: GLM, start: Start, bound: float, move: float, rows: int, thrift: float) -> float:
    """Expected rows of one evaluated step: N(r + b₂) with the second-order remainder's bound a few sd from the mode."""
    unit = np.tile(model.domain.table().half, model.predictors)
    far = float(np.sum(unit * np.sqrt(np.diag(start.covariance)))) * (0.8 + float(np.mean(start.error)))
    remainder = 0.4 * float(model.loss.constants[2]) * move * far**2 / model.temperature
    if remainder <= 0.0:
        return 0.0
    ratio = min(1.0, thrift * 0.8 * bound / remainder)
    return min(rows * remainder * (1.0 + 1.0 / ratio), float(rows))


def steepest_slope(model: GLM, point: FloatArray) -> float:
    """sup |L′| over the domain at a public point: σ(s(θ)) for the logistic loss, ½ at θ = 0."""
    if isinstance(model.loss, losses.Logistic):
        return 1.0 / (1.0 + math.exp(-min(model.domain.support(point), 700.0)))
    return float(model.loss.constants[0])


# -- the nominal design ----------------------------------------------------------------------------------------------
def nominal_start(model: GLM, units: int, rows_per_unit: int, rho: float, settings: Settings) -> Start:
    """What the warm start would find on the nominal design with ``rho`` to spend: its error is that of the noise."""
    from dpfastmh.privacy.releases import gradient_sensitivity, softmax_slope_norm

    curvature = energy_derivatives(model.prior_table, np.zeros(len(model.parameters)))[1]
    information = np.kron(_nominal_information(model.loss), nominal_second_moment(model))
    precision = units * rows_per_unit / model.temperature * information + np.diag(np.maximum(curvature, 1e-9))
    slope = steepest_slope(model, np.zeros(len(model.domain)))
    if isinstance(model.loss, losses.Softmax):
        slope = softmax_slope_norm(model.loss.classes)
    sensitivity = gradient_sensitivity(slope, model.domain.norm2(), model.temperature, rows_per_unit)
    last = rho * (1.0 - settings.hessian_share) * float(settings.last_weights.sum())
    noise = sensitivity / math.sqrt(2.0 * last)
    covariance = np.linalg.inv(precision)
    error = noise * np.sqrt(np.diag(covariance @ covariance) / np.diag(covariance))
    return Start(np.zeros(len(model.parameters)), precision, error)


def nominal_second_moment(model: GLM) -> FloatArray:
    """E[xxᵀ] for features spread evenly over the domain: boxes and balls uniform, categories equally frequent."""
    table = model.domain.table()
    mean, spread = np.zeros(len(model.domain)), np.zeros(len(model.domain))
    mixed = np.zeros((len(model.domain), len(model.domain)))
    for kind, start, stop, radius in zip(table.kind, table.start, table.stop, table.radius, strict=True):
        part, size = slice(start, stop), stop - start
        if kind == ONEHOT:
            mean[part] = 1.0 / (size + 1)  # the first category has no column
            mixed[part, part] = np.diag(mean[part]) - np.outer(mean[part], mean[part])
        elif kind == BALL:
            spread[part] = radius**2 / (size + 2)
        elif kind == BOXBALL:
            spread[part] = min(1.0 / 3.0, radius**2 / (size + 2))
        else:
            spread[part] = 1.0 / 3.0
    mean[table.constant], spread[table.constant] = 1.0, 0.0
    return np.asarray(np.outer(mean, mean) + np.diag(spread) + mixed)


def _nominal_information(loss: Any) -> FloatArray:
    """Fisher information of the predictors at η = 0, a matrix with one row for each."""
    if isinstance(loss, losses.Softmax):
        share = np.full(loss.classes - 1, 1.0 / loss.classes)
        return np.asarray(np.diag(share) - np.outer(share, share))
    if isinstance(loss, losses.Logistic):
        found = 0.25
    elif isinstance(loss, losses.StudentT):
        found = (loss.df + 1.0) / ((loss.df + 3.0) * loss.scale**2)
    elif isinstance(loss, losses.LogisticError):
        found = 1.0 / (3.0 * loss.scale**2)
    elif isinstance(loss, losses.Poisson):
        found = 0.25 / math.log(2.0)  # σ(0)²/softplus(0)
    else:
        z = np.linspace(-60.0, 60.0, 20_001)
        root = np.sqrt(1.0 + z * z)
        found = float((np.exp(1.0 - root) / root**3).sum() / np.exp(1.0 - root).sum()) / loss.scale**2
    return np.array([[found]])


# -- plans -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Plan:
    """A forecast for the nominal design: no record was read to make it."""

    names: tuple[str, ...]
    budget: Budget
    units: int
    rows_per_unit: int
    temperature: float
    chains: int
    laziness: float
    steps: float  # of all chains
    start_errors: FloatArray  # of the warm start, in posterior sd
    effective: FloatArray  # draws of all chains, by coefficient
    errors: FloatArray  # of the means of all draws, in posterior sd
    seconds: float
    enough: bool
    advice: str
    engine: str
    passes: float  # over all rows
    rows_read: float  # at random, beside them
    reading: float  # seconds of both, at the engine's public speed figure
    comfortable: float  # the temperature at which it would buy a hundred effective draws; infinite where none would

    def summary(self) -> str:
        """The forecast in words and figures."""
        kind = "posterior" if self.temperature == 1.0 else f"tempered ({self.temperature:g}) posterior"
        unit = "rows" if self.rows_per_unit == 1 else f"units of at most {self.rows_per_unit} rows"
        lines = [
            f"{kind} of {len(self.names)} coefficients from {self.units:,} {unit} "
            f"at epsilon = {self.budget.epsilon:g}, delta = {self.budget.delta:g}",
            f"  steps             {self.steps:,.0f} in {self.chains} chains, laziness {self.laziness:g}",
            f"  effective draws   {self.effective.min():,.1f} (least of all coefficients)",
            f"  error of means    {self.errors.max():.2f} posterior sd (largest), from a start off by "
            f"{self.start_errors.max():.2f}",
            f"  time              about {self.seconds:.1f} s of sampling",
            f"  rows              {self.passes:,.0f} passes over all of them, {self.rows_read:,.0f} read at random: "
            f"about {self.reading:.1f} s ({self.engine})",
            "A forecast for features spread evenly over their bounds and no effects; no data was read. Features that "
            "lean on each other or use little of their bounds give less.",
        ]
        if self.advice:
            lines.append(self.advice)
        if self.temperature < self.comfortable < math.inf:
            lines.append(
                f"Comfortable are {FEW_EFFECTIVE:g} effective draws or more: this budget buys them at about "
                f"temperature {self.comfortable:.2g}. A real table may give a tenth of its forecast."
            )
        return "\n".join(lines)


def plan(
    model: Model,
    *,
    units: int,
    budget: Budget,
    max_rows_per_unit: int = 1,
    chains: int = 2,
    max_time: float | None = None,
    laziness: float | None = None,
    method: str = "dp-fast-mh",
    settings: Settings | None = None,
    engine: str = "memory",
) -> Plan:
    """What ``sample`` would do with this budget on ``units`` people (or rows): reads no data.

    ``engine``, "memory", "mapped" or "dask", is where the rows will be; it changes what the time is, not what is done.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}: choose one of {', '.join(ENGINES)}")
    if chains < 1 or (max_time is not None and not 0.0 < max_time < math.inf):
        raise ValueError(f"chains={chains}, max_time={max_time}: each must be above 0")
    checked_count(units, "the number of units")
    checked_count(max_rows_per_unit, "max_rows_per_unit")
    if not isinstance(model, GLM):
        raise ValueError(f"{type(model).__name__} has no nominal design: a forecast needs a regression model")
    settings = settings or Settings()
    if laziness is not None:
        settings = replace_setting(settings, laziness=laziness)
    full = method == "dp-fast-mh-full"
    found = _forecast(model, units, budget, max_rows_per_unit, chains, max_time, settings, full, engine)
    enough = bool(found.effective.min() >= max(settings.least_draws, 1.0))
    if found.effective.min() >= FEW_EFFECTIVE:
        return found

    def draws(temperature: float = model.temperature, epsilon: float = budget.epsilon, people: int = units) -> float:
        other = at_temperature(model, temperature)
        raised = Budget(epsilon, budget.delta)
        bought = _forecast(other, people, raised, max_rows_per_unit, chains, max_time, settings, full)
        return float(bought.effective.min())

    comfort = model.temperature * _least(lambda f: draws(temperature=model.temperature * f), FEW_EFFECTIVE)
    if enough:
        return replace(found, comfortable=comfort)
    warmer = _least(lambda f: draws(temperature=model.temperature * f))
    larger = _least(lambda f: draws(epsilon=budget.epsilon * f))
    more = _least(lambda f: draws(people=math.ceil(units * f)))
    advice = too_small(found.effective.min(), model.temperature * warmer, budget.epsilon * larger, units * more)
    return replace(found, enough=False, advice=advice, comfortable=comfort)


def replace_setting(settings: Settings, **changes: object) -> Settings:
    return Settings(**{**settings.__dict__, **changes})


def at_temperature(model: GLM, temperature: float) -> GLM:
    """The same model at another temperature."""
    other = copy.copy(model)
    other.temperature = temperature
    return other


def too_small(draws: float, temperature: float, epsilon: float, units: float) -> str:
    """The refusal's words, with what would be enough where anything would."""
    ways = []
    if temperature < math.inf:
        ways.append(f"temperature {temperature:.3g}")
    if epsilon < math.inf:
        ways.append(f"epsilon {epsilon:.3g}")
    if units < math.inf:
        ways.append(f"{math.ceil(units):,} units")
    rescue = f"One would take about {', or '.join(ways)}." if ways else "Nothing within a factor of a million would do."
    return f"This budget buys {draws:.2g} effective draws, less than one. {rescue}"


def _least(draws: Callable[[float], float], wanted: float = 1.0) -> float:
    """The least factor up to 2²⁰ at which ``wanted`` draws can be bought, to 2%; infinite where there is none."""
    high = next((float(2**k) for k in range(1, 21) if draws(float(2**k)) >= wanted), math.inf)
    if high == math.inf:
        return high
    low = high / 2.0
    while high > 1.02 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if draws(middle) >= wanted else (middle, high)
    return high


def _forecast(
    model: GLM,
    units: int,
    budget: Budget,
    k: int,
    chains: int,
    max_time: float | None,
    settings: Settings,
    full: bool,
    engine: str = "memory",
) -> Plan:
    alpha = best_alpha(budget)
    rho = rdp_budget(budget.epsilon, budget.delta, alpha) / alpha
    start = nominal_start(model, units, k, rho * settings.warm_share, settings)
    share = rho * (1.0 - settings.warm_share) / chains
    moves = choose_moves(model, start, share, units, k, settings, seconds=max_time or settings.patience, full=full)
    steps = most_steps(moves, max_time, min(STEPS_CAP, budget.most_steps() // chains))
    main = steps * (1.0 - settings.adapt_share)
    # H and G at one point share a pass, and so do the chains' expansions
    passes, rows_read = len(settings.gradient_weights) + 1.0, chains * moves.rows * steps / moves.steps
    if full:
        passes, rows_read = passes + rows_read / (units * k), 0.0
    where = ENGINES[engine]
    size = 4.0 * units * k * (len(model.domain) + 1.0)
    return Plan(
        names=model.parameters,
        budget=budget,
        units=units,
        rows_per_unit=k,
        temperature=model.temperature,
        chains=chains,
        laziness=moves.laziness,
        steps=chains * steps,
        start_errors=start.error,
        effective=moves.effective(chains, main),
        errors=moves.errors(chains, start.error, main),
        seconds=moves.seconds * steps / moves.steps,
        enough=True,
        advice="",
        engine=engine,
        passes=passes,
        rows_read=rows_read,
        reading=passes * (where.pass_ + size / where.bytes) + rows_read * where.row,
        comfortable=model.temperature,
    )


def most_steps(moves: Moves, max_time: float | None, cap: int) -> float:
    """Steps of one chain: to the end of its budget, the cap, or the time allowed by the public speed figure."""
    steps = min(moves.steps, float(cap))
    if max_time is not None:
        steps = min(steps, max_time * moves.steps / moves.seconds)
    return max(1.0, steps)


def plan_table(plans: Iterable[Plan]) -> str:
    """Forecasts side by side, one line each."""
    head = f"{'epsilon':>9}{'units':>14}{'temperature':>13}{'steps':>13}"
    lines = [f"{head}{'effective draws':>17}{'error of means':>16}{'seconds':>9}"]
    for found in plans:
        lines.append(
            f"{found.budget.epsilon:>9g}{found.units:>14,}{found.temperature:>13g}{found.steps:>13,.0f}"
            f"{_draws(found):>17}{found.errors.max():>13.2g} sd{found.seconds:>9.1f}"
        )
    return "\n".join(lines)


def _draws(found: Plan) -> str:
    least = float(found.effective.min())
    return f"{least:,.0f}" if least >= 10.0 else f"{least:.2g}"
