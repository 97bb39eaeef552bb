"""Models: what a record's likelihood is, in terms of what is public about the record.

A model is a loss over linear predictors (``GLM``), the paper's Gaussian ``Mixture``, or a user's own ``Energy``. It
turns raw records into the private rows that the compiled chain reads (projecting every one of them onto its public
domain) and supplies the chain with a compiled table of itself.

The target is π(θ) ∝ prior(θ) · exp(−Σ_i U_i(θ)/τ), τ ≥ 1 an optional temperature.
"""

from __future__ import annotations

import math
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh import losses
from dpfastmh.data import memory
from dpfastmh.domain import Constant, Domain, DomainError
from dpfastmh.priors import Flat, Normal, Prior, PriorTable, prior_table

if TYPE_CHECKING:
    from dpfastmh.steps.likelihood import Rows

FloatArray = npt.NDArray[np.float64]
PriorLike = Prior | Sequence[Prior] | Mapping[str, Prior]


FARTHEST = 2.0**16  # of targets and predictors, in units of the loss's scale: energies are then known to 2⁻³³


class ModelError(ValueError):
    """A model that cannot be, or records that do not fit it. One line: what, where, what to do."""


class Model(ABC):
    """What the sampler needs to know of a model."""

    parameters: tuple[str, ...]
    temperature: float
    shipped: bool  # part of the library, so that its compiled loop may be cached on disk

    @property
    @abstractmethod
    def prior_table(self) -> PriorTable:
        """The prior of every parameter."""

    @abstractmethod
    def table(self) -> Any:
        """The model as a NamedTuple for the compiled loop."""

    @abstractmethod
    def load(self, x: Any, y: Any = None, *, per_record: str | None = None, overwrite: bool = False) -> Rows:
        """PRIVATE. Records as the loop reads them, each on the public domain."""

    def check(self, rows: Rows) -> None:
        """``check_shape`` of rows in memory, and of the class numbers among their targets."""
        self.check_shape(rows.x.shape[1], rows.y.shape == rows.x.shape[:1])
        if self.target_classes and not (rows.y.min() >= 0 and rows.y.max() < self.target_classes):
            raise ModelError(f"rows were loaded for another model: this one has {self.target_classes} classes")

    has_energies: bool = True  # or differences only
    target_classes: int = 0  # where the target is a class number

    @property
    @abstractmethod
    def projection(self) -> Any:
        """What decides how a record is projected, as numbers and texts: rows kept in files must be made alike."""

    @abstractmethod
    def check_shape(self, features: int, targets: bool) -> None:
        """Refuse rows of another shape: compiled code would read past their ends."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What the columns of a record are called; nothing where they have no names."""
        return ()

    @property
    def has_expansion(self) -> bool:
        """Whether proven derivatives allow control variates."""
        return False

    @property
    def needs_box(self) -> bool:
        """Whether the public bound holds only on a bounded parameter set (``parameter_box``)."""
        return False

    parameter_box: tuple[FloatArray, FloatArray] | None = None


def _temperature(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 1.0 <= value < math.inf:
        raise ModelError(f"temperature is {value!r}: it must be a finite number of at least 1")
    return float(value)


class GLM(Model):
    """A loss over the linear predictor x·θ of records in a public domain.

    Coefficients belong to the *scaled* features (bounds to [−1, 1]); ``domain.original`` converts them. The prior is on
    them too: Normal(0, 2.5) and Normal(0, 5) for the intercept unless given.
    """

    shipped = True
    has_expansion = True

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.domain.columns)

    def __init__(
        self,
        loss: Any,
        domain: Domain,
        prior: PriorLike | None = None,
        *,
        intercept: bool = True,
        temperature: float = 1.0,
        classes: Sequence[Any] | None = None,
        target_bounds: tuple[float, float] | None = None,
    ) -> None:
        if not isinstance(domain, Domain):
            raise ModelError(f"domain is {type(domain).__name__}: give a Box, Ball, OneHot or a product of them")
        self.loss = _checked_loss(loss)
        self.domain = Constant("intercept") * domain if intercept else domain
        self.temperature = _temperature(temperature)
        self.classes = _class_list(classes, self.loss)
        self.target_bounds = _target_bounds(target_bounds, self.loss)
        self.parameters = self._names()
        if prior is None:
            prior = {"default": Normal(scale=2.5)}
            if intercept:
                prior |= {name: Normal(scale=5.0) for name in self.parameters if name.split("[")[0] == "intercept"}
        self.prior = prior
        self._prior_table = prior_table(prior, self.parameters)

    def __repr__(self) -> str:
        return f"GLM({self.loss!r}, {self.domain!r}, temperature={self.temperature:g})"

    def _names(self) -> tuple[str, ...]:
        if not isinstance(self.loss, losses.Softmax):
            return tuple(self.domain.features)
        labels = self.classes if self.classes is not None else range(self.loss.classes)
        return tuple(f"{feature}[{label}]" for label in list(labels)[1:] for feature in self.domain.features)

    @property
    def prior_table(self) -> PriorTable:
        return self._prior_table

    @property
    def predictors(self) -> int:
        return int(self.loss.predictors)

    def table(self) -> Any:
        from dpfastmh.steps.likelihood import GLMTable
        from dpfastmh.steps.support import is_simple

        support = self.domain.table()
        l1, l2, l3 = self.loss.constants
        return GLMTable(
            loss=self.loss,
            support=support,
            simple=is_simple(support) and self.predictors == 1,
            unit=support.half,
            narrowest=float(support.half.min()),
            l1=l1,
            l2=l2,
            l3=l3,
            known=_energies_known(self.loss, len(self.domain)),
            inverse_temperature=1.0 / self.temperature,
        )

    def load(self, x: Any, y: Any = None, *, per_record: str | None = None, overwrite: bool = False) -> Rows:
        if y is None:
            raise ModelError("no target: give one value of y for every row of x")
        if per_record is not None:
            raise ModelError(f"per_record is {per_record!r}: bounds that differ by record are for Mixture and Energy")
        if np.ma.is_masked(y):
            raise ModelError("y has masked cells: fill in a public value or drop their rows")
        features = memory.features(self.domain, x, overwrite=overwrite)
        given = np.asarray(y)
        if given.shape != features.shape[:1]:
            raise ModelError(f"y has shape {given.shape}: {features.shape[0]} rows of x need as many single values")
        target = np.empty(given.shape, features.dtype)
        for first in range(0, given.size, memory.CHUNK):  # a column of doubles at once would double what is held
            part = slice(first, first + memory.CHUNK)
            target[part] = self.stored(self.targets(given[part], first), features.dtype, first)
        return memory.rows(features, target)

    def check_shape(self, features: int, targets: bool) -> None:
        d = len(self.domain.features)
        if features != d or not targets:
            raise ModelError(f"rows of {features} features were loaded for another model: this one has {d}")

    @property
    def target_classes(self) -> int:  # type: ignore[override]
        return _class_count(self.loss)

    @property
    def projection(self) -> Any:
        classes = None if self.classes is None else [[type(label).__name__, str(label)] for label in self.classes]
        return [type(self.loss).__name__, *map(repr, self.loss), repr(self.domain), classes, self.target_bounds]

    def stored(self, target: FloatArray, kind: np.dtype[Any], first: int = 0) -> npt.NDArray[Any]:
        """Targets in the features' precision. Float32 may round a cap up: then they are held to the number below it."""
        limit = float(np.finfo(kind).max)
        if (np.abs(target) > limit).any():
            row = first + int(np.argmax(np.abs(target) > limit)) + 1
            raise ModelError(f"y in row {row} is beyond ±{limit:.3g}, the range of {kind}: rescale the target")
        stored = target.astype(kind)
        if isinstance(self.loss, losses.Poisson) and float(kind.type(self.loss.cap)) > self.loss.cap:
            stored = np.minimum(stored, np.nextafter(kind.type(self.loss.cap), kind.type(0)))
        return stored

    def targets(self, y: npt.NDArray[Any], first: int = 0) -> FloatArray:
        """Targets as the loss takes them: class numbers, counts up to the cap, or numbers within the public bounds.

        ``first`` is the number of the first row, for messages.
        """
        if count := _class_count(self.loss):
            return _class_numbers(y, self.classes if self.classes is not None else list(range(count)), first)
        values = memory.numeric(y, "y").astype(np.float64)
        bad = ~np.isfinite(values)
        if bad.any():
            raise ModelError(
                f"y is missing or not finite in row {first + int(np.argmax(bad)) + 1}: every record needs a number"
            )
        if isinstance(self.loss, losses.Poisson):
            bad = (values < 0) | (values != np.floor(values))
            if bad.any():
                raise ModelError(
                    f"y is not a count in row {first + int(np.argmax(bad)) + 1}: counts are whole and not negative"
                )
            return np.minimum(values, self.loss.cap)
        if self.target_bounds is not None:
            values = np.clip(values, *self.target_bounds)
        farthest = min(FARTHEST * self.loss.scale, float(np.finfo(np.float32).max))
        return np.clip(values, -farthest, farthest)


def _energies_known(loss: Any, features: int) -> float:
    """|x·θ| up to which a row's energy is computed to 2⁻³³; −1 where it never is.

    Counted in units of 2⁻³⁷: with |x·θ|·max(L1, 1/scale) ≤ 2¹⁶ no number on the way exceeds 2¹⁷, an energy takes some
    eight roundings, and a dot product d/8 + 4 on sums of |x_jθ_j| ≤ 2 s(θ): 16 + d/4, of which 2⁻³³ allows 16. (Several
    predictors: twice that.) Student's r²/(r² + ν s²) makes roundings of r count up to ν + 1 times, and a count's own
    part y·log(mean) is as large as the cap.
    """
    if getattr(loss, "df", 1.0) > 2.0**17 or getattr(loss, "cap", 1.0) > 2.0**16:
        return -1.0
    steepest = max(loss.constants[0], 1.0 / getattr(loss, "scale", 1.0))
    return float(FARTHEST / steepest / (1.0 + features / 64.0) / min(loss.predictors, 2))


def _class_count(loss: Any) -> int:
    """How many classes the target has; 0 for targets that are numbers."""
    if isinstance(loss, losses.Logistic):
        return 2
    return int(loss.classes) if isinstance(loss, losses.Softmax) else 0


def _checked_loss(loss: Any) -> Any:
    """The loss itself, its parameters finite, above 0 and far enough from overflow that no square of them does."""
    if not isinstance(loss, (*losses.SCALAR_LOSSES, losses.Softmax)):
        raise ModelError(f"loss is {loss!r}: give one of dpfastmh.losses, such as Logistic()")
    if isinstance(loss, losses.Softmax):
        if isinstance(loss.classes, bool) or not isinstance(loss.classes, int) or loss.classes < 2:
            raise ModelError(f"classes are {loss.classes!r}: softmax needs a whole number of at least two")
        return loss
    for name, value in loss._asdict().items():
        if not 1.0 / LARGEST <= _positive(name, value) <= LARGEST:
            raise ModelError(f"{name} is {value!r}: it must lie between {1 / LARGEST:g} and {LARGEST:g}")
    return loss


LARGEST = 1e50  # of scales and their inverses: fourth powers of a residual over a scale stay finite


def _class_list(classes: Sequence[Any] | None, loss: Any) -> list[Any] | None:
    if classes is None:
        return None
    count = _class_count(loss)
    if not count:
        raise ModelError(f"classes are {classes!r}: the target of this model is a number, leave them out")
    found = _labels(classes)
    if len(found) < 2 or len(set(found)) != len(found):
        raise ModelError(f"classes are {found!r}: declare at least two different ones")
    if len(found) != count:
        raise ModelError(f"classes are {found!r}: the loss has {count}")
    return found


def _labels(classes: Any) -> list[Any]:
    """Class labels: text, numbers or truth values, NaN not among them."""
    if isinstance(classes, str) or not hasattr(classes, "__iter__"):
        raise ModelError(f"classes are {classes!r}: give a list of the labels that the target may hold")
    found = list(classes)
    for label in found:
        if not isinstance(label, str | int | float | np.generic) or label != label:
            raise ModelError(f"class {label!r} is neither text nor a number: targets cannot be compared with it")
    return found


def _class_numbers(y: npt.NDArray[Any], classes: list[Any], first: int) -> npt.NDArray[np.float64]:
    numbers = np.full(y.shape, -1.0)
    for k, label in enumerate(classes):
        numbers[np.asarray(y == label, dtype=bool) & np.ones(y.shape, bool)] = k
    if (numbers < 0).any():
        row = first + int(np.argmax(numbers < 0))
        raise ModelError(
            f"y in row {row + 1} is not one of the declared classes {classes!r}: declare it or drop the row"
        )
    return numbers


def _target_bounds(bounds: tuple[float, float] | None, loss: Any) -> tuple[float, float] | None:
    if bounds is None:
        return None
    if _class_count(loss) or isinstance(loss, losses.Poisson):
        raise ModelError(f"target bounds are {bounds!r}: this model's target has classes or a cap, leave them out")
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ModelError(f"target bounds are {bounds!r}: give two finite numbers, the lower one first")
    return low, high


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0.0 < value < math.inf:
        raise ModelError(f"{name} is {value!r}: it must be a finite number above 0")
    return float(value)


def LogisticRegression(
    domain: Domain, prior: PriorLike | None = None, *, classes: Sequence[Any] = (0, 1), **options: Any
) -> GLM:
    """P(y = the second class) = σ(x·θ)."""
    if len(_labels(classes)) != 2:
        raise ModelError(f"classes are {list(classes)!r}: logistic regression has two, and the second is the event")
    return GLM(losses.Logistic(), domain, prior, classes=classes, **options)


def StudentTRegression(
    domain: Domain, prior: PriorLike | None = None, *, df: float = 4.0, scale: float = 1.0, **options: Any
) -> GLM:
    """y = x·θ + scale·t, t with ``df`` degrees of freedom: one outlier moves the posterior only so far."""
    return GLM(losses.StudentT(_positive("df", df), _positive("scale", scale)), domain, prior, **options)


def HuberRegression(domain: Domain, prior: PriorLike | None = None, *, scale: float = 1.0, **options: Any) -> GLM:
    """Errors with the pseudo-Huber energy √(1 + (r/scale)²)."""
    return GLM(losses.PseudoHuber(_positive("scale", scale)), domain, prior, **options)


def LogisticErrorRegression(
    domain: Domain, prior: PriorLike | None = None, *, scale: float = 1.0, **options: Any
) -> GLM:
    """y = x·θ + scale·(logistic noise)."""
    return GLM(losses.LogisticError(_positive("scale", scale)), domain, prior, **options)


def PoissonRegression(domain: Domain, prior: PriorLike | None = None, *, cap: float, **options: Any) -> GLM:
    """Counts with mean log(1 + e^{x·θ}); larger counts are set to the public ``cap``, which is part of the model."""
    return GLM(losses.Poisson(_positive("cap", cap)), domain, prior, **options)


def SoftmaxRegression(
    domain: Domain, prior: PriorLike | None = None, *, classes: Sequence[Any] | int, **options: Any
) -> GLM:
    """P(y = class k) ∝ e^{x·θ_k}, θ of the first class being 0."""
    labels = list(range(classes)) if isinstance(classes, int) else _labels(classes)
    if len(labels) < 2:
        raise ModelError(f"classes are {classes!r}: declare at least two different ones")
    return GLM(losses.Softmax(len(labels)), domain, prior, classes=labels, **options)


class Mixture(Model):
    """The paper's posterior: x ~ ½N(θ₁, σ²) + ½N(θ₁ + θ₂, σ²), records in [−X, X], |θ₁|, |θ₂| ≤ 3, flat prior.

    With A = (x−θ₁)²/2σ² and D = (θ₂/σ²)(θ₁ + θ₂/2 − x), U = A − log(1 + e^{−D}). Its gradient is
    (w₁a + w₂b, w₂b) with a = (θ₁−x)/σ², b = (θ₁+θ₂−x)/σ² and weights w₁ + w₂ = 1, so a move δ changes U by at most

    * ``bound="sharp"``: max((X+|θ₁|)|δ₁|, (X+|θ₁+θ₂|)|δ₁+δ₂|)/σ², |θ| at the larger end of the move: ∇U·δ is a weighted
      mean of aδ₁ and b(δ₁+δ₂);
    * ``bound="lipschitz"``: √2(X+6)/σ² · ‖δ‖, as |a|, |b| ≤ (X+6)/σ²;
    * ``bound="paper"``: √((2X+9)² + (X+6)²)/σ² · ‖δ‖, the published c(x), 1.4 times larger at X = 3;

    each divided by τ. ``per_record`` uses the same with |x| for X: "thinned" from the public maximum, or "alias",
    where rows are drawn by c_i itself (a function of the private records: for the non-private methods).
    """

    shipped = True
    needs_box = True
    parameters = ("theta1", "theta2")

    def __init__(
        self,
        *,
        variance: float = 2.0,
        half_width: float = 3.0,
        temperature: float = 500.0,
        bound: str = "sharp",
        prior: PriorLike | None = None,
    ) -> None:
        self.variance = _positive("variance", variance)
        self.half_width = _positive("half_width", half_width)
        self.temperature = _temperature(temperature)
        if bound not in MIXTURE_BOUNDS:
            raise ModelError(f"bound is {bound!r}: choose one of {', '.join(MIXTURE_BOUNDS)}")
        self.bound = bound
        self._prior_table = prior_table(Flat() if prior is None else prior, self.parameters)
        self.parameter_box = (np.full(2, -3.0), np.full(2, 3.0))

    def __repr__(self) -> str:
        return f"Mixture(variance={self.variance:g}, temperature={self.temperature:g}, bound={self.bound!r})"

    @property
    def prior_table(self) -> PriorTable:
        return self._prior_table

    def constant(self, x: npt.ArrayLike) -> FloatArray:
        """c(x): the record's Lipschitz constant, without the temperature."""
        size = np.abs(np.asarray(x, dtype=np.float64))
        if self.bound == "paper":
            return np.hypot(2.0 * size + 9.0, size + 6.0) / self.variance
        return math.sqrt(2.0) * (size + 6.0) / self.variance

    def table(self) -> Any:
        from dpfastmh.steps.mixture import MixtureTable

        return MixtureTable(
            variance=self.variance,
            half_width=self.half_width,
            sharp=self.bound == "sharp",
            lipschitz=float(self.constant(self.half_width)),
            inverse_temperature=1.0 / self.temperature,
        )

    def load(self, x: Any, y: Any = None, *, per_record: str | None = None, overwrite: bool = False) -> Rows:
        if y is not None:
            raise ModelError("y is given: the mixture model has no target")
        values = memory.matrix(x)
        if values.shape[1] != 1:
            raise ModelError(f"x has {values.shape[1]} columns: the mixture model takes one number for each record")
        held = np.clip(values, -self.half_width, self.half_width, out=values if overwrite else None)
        share = self.constant(held[:, 0]) / self.constant(self.half_width)
        return memory.rows(held, None, share=share, per_record=per_record)

    def check_shape(self, features: int, targets: bool) -> None:
        if features != 1:
            raise ModelError(f"rows of {features} features were loaded for another model: the mixture has 1")

    @property
    def projection(self) -> Any:
        return ["mixture", self.half_width]


MIXTURE_BOUNDS = ("sharp", "lipschitz", "paper")


class Energy(Model):
    """A user's own model: a compiled energy difference and its public bound.

    ``difference(row, theta, proposal)`` returns U(θ′; row) − U(θ; row) and ``bound(theta, proposal)`` a number that no
    record of the public domain exceeds, the same for (θ, θ′) and (θ′, θ). Both are plain functions that Numba compiles.
    ``project(rows)`` is the public rule that puts raw rows into the domain; ``record_bound(rows)`` in (0, 1], if given,
    is the share of the bound that each record needs.

    The kernel holds every difference to ±bound and reads NaN as +bound. Privacy therefore never rests on the claim;
    what a broken claim costs is that another posterior is sampled.
    """

    shipped = False
    has_energies = False

    def __init__(
        self,
        parameters: Sequence[str],
        difference: Callable[..., float],
        bound: Callable[..., float],
        *,
        prior: PriorLike,
        project: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
        record_bound: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
        temperature: float = 1.0,
        parameter_box: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    ) -> None:
        if not parameters:
            raise ModelError("parameters is empty: name at least one")
        self.parameters = tuple(parameters)
        self.temperature = _temperature(temperature)
        self.project, self.record_bound = project, record_bound
        self.functions = (difference, bound, project, record_bound)
        self.prior = prior
        self._prior_table = prior_table(prior, self.parameters)
        if parameter_box is not None:
            low, high = (np.asarray(edge, dtype=np.float64).reshape(-1) for edge in parameter_box)
            self.parameter_box = (low, high)
        from dpfastmh.steps.own_energy import table_class

        self._table_class = table_class(difference, bound)
        self._name = secrets.token_hex(16)
        self._made_of: dict[str, Any] = {
            "parameters": self.parameters,
            "difference": difference,
            "bound": bound,
            "prior": prior,
            "project": project,
            "record_bound": record_bound,
            "temperature": temperature,
            "parameter_box": parameter_box,
        }
        _ENERGIES[self._name] = self

    def __reduce__(self) -> Any:
        """A worker of a cluster makes the model once and compiles it once, however often it is sent."""
        return _energy, (self._name, self._made_of)

    def __repr__(self) -> str:
        return f"Energy({', '.join(self.parameters)}, temperature={self.temperature:g})"

    @property
    def prior_table(self) -> PriorTable:
        return self._prior_table

    def table(self) -> Any:
        return self._table_class(inverse_temperature=1.0 / self.temperature)

    def load(self, x: Any, y: Any = None, *, per_record: str | None = None, overwrite: bool = False) -> Rows:
        if y is not None:
            features, target = memory.matrix(x), memory.numeric(y, "y")
            if target.ndim not in (1, 2) or len(target) != len(features):
                raise ModelError(f"y has shape {target.shape}: {len(features)} rows of x need as many")
            x = np.column_stack([features, target])
        values = memory.matrix(x)
        if self.project is not None:
            count, values = len(values), memory.matrix(self.project(values))
            if len(values) != count:
                raise ModelError(f"project made {len(values)} rows of {count}: it may move records, not drop any")
        if per_record is not None and self.record_bound is None:
            raise ModelError("per_record is set but the model has no record_bound: give one")
        share = None if self.record_bound is None else np.asarray(self.record_bound(values), dtype=np.float64)
        return memory.rows(values, None, share=share, per_record=per_record)

    def check_shape(self, features: int, targets: bool) -> None:
        """A user's functions read whatever columns they like: nothing is known to check."""

    @property
    def projection(self) -> Any:
        """All that can be known of a user's own rule: whether there is one."""
        return ["energy", self.project is not None]


_ENERGIES: weakref.WeakValueDictionary[str, Energy] = weakref.WeakValueDictionary()
_KEPT: dict[str, Energy] = {}  # those that came from another process


def _energy(name: str, made_of: dict[str, Any]) -> Energy:
    """The model of this name, made here unless it is known."""
    if name in _ENERGIES:
        return _ENERGIES[name]
    made = Energy(**made_of)
    made._name = name
    _KEPT[name] = _ENERGIES[name] = made
    return made


class Named(NamedTuple):
    """A model's name in schemas and on the command line, with what builds it."""

    build: Callable[..., GLM]
    summary: str


REGRESSIONS = {
    "logistic": Named(LogisticRegression, "two classes"),
    "student-t": Named(StudentTRegression, "numbers with outliers"),
    "huber": Named(HuberRegression, "numbers with outliers, convex"),
    "logistic-error": Named(LogisticErrorRegression, "numbers with logistic errors"),
    "poisson": Named(PoissonRegression, "counts up to a public cap"),
    "softmax": Named(SoftmaxRegression, "several classes"),
}

__all__ = [
    "GLM",
    "DomainError",
    "Energy",
    "HuberRegression",
    "LogisticErrorRegression",
    "LogisticRegression",
    "Mixture",
    "Model",
    "ModelError",
    "PoissonRegression",
    "SoftmaxRegression",
    "StudentTRegression",
]
