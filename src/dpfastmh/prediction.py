"""Predictions for new records from released draws: nothing here touches the private table, so nothing costs budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfastmh import losses
from dpfastmh.posterior import PosteriorError

if TYPE_CHECKING:
    from dpfastmh.models import GLM
    from dpfastmh.posterior import Posterior

FloatArray = npt.NDArray[np.float64]
CELLS = 2_000_000  # numbers of a chunk (rows times draws)


@dataclass(frozen=True)
class Prediction:
    """One entry for each row; with several classes, one column for each class.

    ``kind`` says what ``mean`` is: the "probability" of the event or of each class, or the "mean" of the outcome.
    """

    mean: FloatArray
    low: FloatArray
    high: FloatArray
    kind: str
    interval: float
    classes: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        what = f"{self.kind} with {100 * self.interval:g}% intervals"
        return f"<Prediction of {len(self):,} rows: {what}, in .mean, .low and .high>"

    def columns(self) -> dict[str, FloatArray]:
        """Column names and values, as ``dpfastmh predict`` writes them."""
        if self.mean.ndim == 1:
            return {self.kind: self.mean, "low": self.low, "high": self.high}
        return {
            f"{what}[{label}]": values[:, k]
            for k, label in enumerate(self.classes or range(self.mean.shape[1]))
            for what, values in ((self.kind, self.mean), ("low", self.low), ("high", self.high))
        }


def predict(posterior: Posterior, x: Any, *, interval: float, predictive: bool) -> Prediction:
    """Averages and quantiles over the draws, a chunk of rows at a time."""
    model = posterior.model
    if model is None:
        raise PosteriorError("this posterior has no regression model: predictions cannot be made from it")
    if isinstance(interval, bool) or not 0.0 < interval < 1.0:
        raise PosteriorError(f"interval is {interval!r}: it is a probability between 0 and 1, such as 0.9")
    features = project(model, x)
    levels = [(1.0 - interval) / 2.0, (1.0 + interval) / 2.0]
    draws = posterior.draws.reshape(-1, model.predictors, len(model.domain))
    several = isinstance(model.loss, losses.Softmax)
    shape = (len(features), model.loss.classes) if several else (len(features),)
    mean, low, high = np.empty(shape), np.empty(shape), np.empty(shape)
    for part in _chunks(len(features), draws.shape[0] * max(model.predictors + several, 1)):
        values = expected(model, features[part], draws)  # (row, draw) or (row, draw, class)
        mean[part] = values.mean(axis=1)
        shown = _outcomes(model, features[part], draws, values) if predictive else values
        low[part], high[part] = np.quantile(shown, levels, axis=1)
    kind = "probability" if isinstance(model.loss, losses.Logistic | losses.Softmax) else "mean"
    return Prediction(mean, low, high, kind, float(interval), None if model.classes is None else tuple(model.classes))


def project(model: GLM, x: Any) -> FloatArray:
    """Scaled features of new records: an array, a mapping of columns, a data frame or anything with Arrow's stream."""
    if not hasattr(x, "keys") and hasattr(x, "__arrow_c_stream__"):
        import pyarrow as pa

        table = pa.table(x)
        x = {name: table.column(name).to_numpy() for name in model.domain.columns if name in table.column_names}
    return np.asarray(model.domain.project(x), dtype=np.float64)


def expected(model: GLM, features: FloatArray, draws: FloatArray) -> FloatArray:
    """The outcome's mean, or its classes' probabilities, under every draw."""
    eta = np.einsum("nd,mkd->nmk", features, draws, optimize=True)
    loss = model.loss
    if isinstance(loss, losses.Softmax):
        padded = np.concatenate([np.zeros((*eta.shape[:2], 1)), eta], axis=2)
        padded -= padded.max(axis=2, keepdims=True)
        np.exp(padded, out=padded)
        return np.asarray(padded / padded.sum(axis=2, keepdims=True))
    single = eta[:, :, 0]
    if isinstance(loss, losses.Logistic):
        return _sigmoid(single)
    if isinstance(loss, losses.Poisson):
        return np.asarray(np.logaddexp(0.0, single))
    return np.asarray(single)


def _sigmoid(eta: FloatArray) -> FloatArray:
    small = np.exp(-np.abs(eta))
    return np.asarray(np.where(eta >= 0.0, 1.0, small) / (1.0 + small))


def _outcomes(model: GLM, features: FloatArray, draws: FloatArray, values: FloatArray) -> FloatArray:
    """One outcome for each row and draw. The same random numbers serve every row, so rows do not depend on company."""
    rng = np.random.default_rng(0)  # not private: an outcome is simulated from released draws
    count = values.shape[1]
    uniform = rng.permutation((np.arange(count) + 0.5) / count)
    loss = model.loss
    if isinstance(loss, losses.Logistic):
        return np.asarray(uniform < values, dtype=np.float64)
    if isinstance(loss, losses.Softmax):
        chosen = (uniform[:, None] >= np.cumsum(values, axis=2)[:, :, :-1]).sum(axis=2)
        return np.asarray(chosen[:, :, None] == np.arange(loss.classes), dtype=np.float64)
    if isinstance(loss, losses.Poisson):
        from scipy.stats import poisson

        return np.minimum(poisson.ppf(uniform, values), loss.cap)
    return np.asarray(values + _errors(loss, count, uniform, rng))


def _errors(loss: Any, count: int, uniform: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Errors of density ∝ e^{−L(r)}, one for each draw."""
    makers: dict[type, Callable[[], Any]] = {
        losses.StudentT: lambda: loss.scale * _student(loss.df, uniform),
        losses.LogisticError: lambda: loss.scale * (np.log(uniform) - np.log1p(-uniform)),
        losses.PseudoHuber: lambda: loss.scale * _pseudo_huber(count, rng),
    }
    return np.asarray(makers[type(loss)](), dtype=np.float64)


def _student(df: float, uniform: FloatArray) -> Any:
    from scipy.special import stdtrit

    return stdtrit(df, uniform)


def _pseudo_huber(count: int, rng: np.random.Generator) -> Any:
    """e^{−√(1+r²)} is a hyperbolic density: normal with a variance from the generalised inverse Gaussian (1, 1)."""
    from scipy.stats import geninvgauss

    variance = geninvgauss.rvs(1.0, 1.0, size=count, random_state=rng)
    return np.sqrt(variance) * rng.standard_normal(count)


def _chunks(rows: int, per_row: int) -> Iterator[slice]:
    step = max(1, CELLS // per_row)
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))
