"""Thin scikit-learn estimators over ``dpfastmh.sampling.sample``.

    PrivateLogisticRegression(bounds=(0, 10), classes=[0, 1], epsilon=1, delta=1e-6).fit(X, y).predict_proba(X)

What is public must be declared, never measured on the data: ``domain`` (a Box, OneHot, ... with named columns, for data
frames) or ``bounds`` (one pair for all columns, one for each, or for a data frame one by name), and ``classes``.
``classes="observed"`` declares that the labels found in ``y`` are public knowledge. ``random_state=None`` is private; a
number makes every result reproducible and **not private**.

``force`` goes on where δ is above 1/N or the budget buys less than one effective draw: ``posterior_`` then says how
little the result is worth.

``coef_`` and ``intercept_`` are posterior means on the original scale; ``posterior_`` holds all draws, ``privacy_`` the
privacy statement. Predictions average over the draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from dpfastmh.budget import Budget
from dpfastmh.domain import Box, Domain
from dpfastmh.models import (
    GLM,
    HuberRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
    StudentTRegression,
)
from dpfastmh.priors import Normal

if TYPE_CHECKING:
    from dpfastmh.posterior import Posterior

__all__ = [
    "PrivateLogisticRegression",
    "PrivatePoissonRegression",
    "PrivateRobustRegression",
    "PrivateSoftmaxRegression",
]

Bounds = tuple[float, float] | Sequence[tuple[float, float]] | Mapping[str, tuple[float, float]]


class _Private(BaseEstimator):  # type: ignore[misc]
    """What the four estimators share: the declared columns, the budget, the draws."""

    def __init__(
        self,
        *,
        domain: Domain | None = None,
        bounds: Bounds | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        prior_scale: float = 2.5,
        intercept_scale: float = 5.0,
        temperature: float = 1.0,
        chains: int = 2,
        max_time: float | None = None,
        force: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.domain = domain
        self.bounds = bounds
        self.epsilon = epsilon
        self.delta = delta
        self.prior_scale = prior_scale
        self.intercept_scale = intercept_scale
        self.temperature = temperature
        self.chains = chains
        self.max_time = max_time
        self.force = force
        self.random_state = random_state

    def _model(self, domain: Domain, prior: dict[str, Normal]) -> GLM:
        raise NotImplementedError

    def _fit(self, x: Any, y: npt.NDArray[Any]) -> _Private:
        """Sample, and keep the draws with the numbers that scikit-learn's users look for."""
        from dpfastmh.planning import Settings, replace_setting
        from dpfastmh.sampling import sample

        domain = self._declared(x)
        plain = self._model(domain, {"default": Normal(self.prior_scale)})
        intercepts = [name for name in plain.parameters if name.split("[")[0] == "intercept"]
        prior = {"default": Normal(self.prior_scale)} | dict.fromkeys(intercepts, Normal(self.intercept_scale))
        self.posterior_: Posterior = sample(
            self._model(domain, prior),
            x,
            y,
            budget=self._budget(),
            chains=self.chains,
            max_time=self.max_time,
            settings=replace_setting(Settings(), least_draws=0.0) if self.force else None,
            seed=self._seed(),
            force=self.force,
        )
        self.privacy_ = self.posterior_.privacy
        self._keep_coefficients()
        return self

    def _declared(self, x: Any) -> Domain:
        """The domain of the features as it was declared; never a look at the cells."""
        if self.domain is not None:
            if self.bounds is not None:
                raise ValueError("give either domain or bounds, not both")
            return self.domain
        if self.bounds is None:
            raise ValueError(
                "bounds are missing: declare from public knowledge, not from the data, between which values every "
                "column lies, as in bounds=(0, 10) or bounds=[(18, 95), (0, 10)], or give a domain"
            )
        names = [
            str(name) for name in getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        ]
        if isinstance(self.bounds, Mapping):
            if set(self.bounds) != set(names):
                raise ValueError(
                    f"bounds are those of {', '.join(map(repr, self.bounds))}, X has {', '.join(map(repr, names))}: "
                    "give a pair for each column of X"
                )
            pairs = np.asarray([self.bounds[name] for name in names], dtype=np.float64)
        else:
            pairs = np.asarray(self.bounds, dtype=np.float64)
        if pairs.shape == (2,):
            pairs = np.tile(pairs, (self.n_features_in_, 1))
        if pairs.shape != (self.n_features_in_, 2):
            raise ValueError(
                f"bounds of shape {pairs.shape}: X has {self.n_features_in_} features, give a pair for each"
            )
        return Box({name: (low, high) for name, (low, high) in zip(names, pairs.tolist(), strict=True)})

    def _budget(self) -> Budget:
        if self.epsilon is None or self.delta is None:
            raise ValueError(
                "epsilon and delta are missing: state the total privacy budget, as in epsilon=1, delta=1e-6"
            )
        return Budget(self.epsilon, self.delta)

    def _seed(self) -> int | None:
        if self.random_state is None:
            return None
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, Integral):
            raise ValueError(f"random_state is {self.random_state!r}: None is private, a whole number is not private")
        return int(self.random_state)

    def _features(self, x: Any, *, reset: bool) -> Any:
        """Validated features. With a ``domain`` and a data frame the domain's own columns, categories and all."""
        if self.domain is not None and hasattr(x, "keys"):
            if reset:
                self.n_features_in_ = len(self.domain.columns)
            return {name: x[name] for name in self.domain.columns if name in x.keys()}  # noqa: SIM118
        return validate_data(self, x, reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1)

    def _targets(self, x: Any, y: Any, **options: Any) -> tuple[Any, npt.NDArray[Any]]:
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        features = self._features(x, reset=True)
        values = column_or_1d(check_array(y, ensure_2d=False, ensure_min_samples=0, **options), warn=True)
        rows = len(next(iter(features.values()))) if isinstance(features, dict) else len(features)
        if len(values) != rows:
            raise ValueError(f"Found input variables with inconsistent numbers of samples: {[rows, len(values)]}")
        return features, values

    def _keep_coefficients(self) -> None:
        model = self.posterior_.model
        original = self.posterior_.original
        assert model is not None
        assert original is not None
        by_class = original.mean(axis=(0, 1)).reshape(model.predictors, len(model.domain))
        constant = model.domain.table().constant
        self.coef_ = by_class[:, ~constant]
        self.intercept_ = by_class[:, constant].sum(axis=1)

    def _predicted(self, x: Any) -> npt.NDArray[np.float64]:
        check_is_fitted(self, "posterior_")
        return self.posterior_.predict(self._features(x, reset=False)).mean


class _Classifier(ClassifierMixin, _Private):  # type: ignore[misc]
    def fit(self, X: Any, y: Any) -> _Classifier:
        """Draw from the posterior within the budget."""
        features, labels = self._targets(X, y, dtype=None)
        check_classification_targets(labels)
        self.classes_ = self._declared_classes(labels)
        numbers = np.searchsorted(self.classes_, labels)
        known = self.classes_[np.minimum(numbers, len(self.classes_) - 1)] == labels
        if not np.all(known):
            raise ValueError(
                f"y in row {int(np.argmin(known)) + 1} is not one of the declared classes {self.classes_.tolist()}"
            )
        self._fit(features, numbers)
        return self

    def _declared_classes(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.classes is None:
            raise ValueError(
                "classes are missing: declare them from public knowledge, as in classes=[0, 1]; classes='observed' "
                "declares that the labels in y are public"
            )
        observed = isinstance(self.classes, str) and self.classes == "observed"
        classes = np.unique(labels if observed else np.asarray(self.classes))
        if len(classes) < 2:
            raise ValueError(f"one class only, {classes.tolist()}: a classifier needs at least two classes")
        return classes

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Posterior mean probabilities, one column for each of ``classes_``."""
        found = self._predicted(X)
        return found if found.ndim == 2 else np.column_stack([1.0 - found, found])

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The class of the highest posterior mean probability."""
        best = np.argmax(self.predict_proba(X), axis=1)
        return np.asarray(self.classes_[best])


class PrivateLogisticRegression(_Classifier):
    """Two classes; the second, in sorted order, is the event."""

    def __init__(
        self,
        *,
        domain: Domain | None = None,
        bounds: Bounds | None = None,
        classes: Sequence[Any] | str | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        prior_scale: float = 2.5,
        intercept_scale: float = 5.0,
        temperature: float = 1.0,
        chains: int = 2,
        max_time: float | None = None,
        force: bool = False,
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            domain=domain,
            bounds=bounds,
            epsilon=epsilon,
            delta=delta,
            prior_scale=prior_scale,
            intercept_scale=intercept_scale,
            temperature=temperature,
            chains=chains,
            max_time=max_time,
            force=force,
            random_state=random_state,
        )
        self.classes = classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _declared_classes(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        classes = super()._declared_classes(labels)
        if len(classes) > 2:
            raise ValueError(
                f"Only binary classification is supported: there are {len(classes)} classes; "
                "use PrivateSoftmaxRegression"
            )
        return classes

    def _model(self, domain: Domain, prior: dict[str, Normal]) -> GLM:
        return LogisticRegression(domain, prior, temperature=self.temperature)


class PrivateSoftmaxRegression(_Classifier):
    """Several classes; coefficients are against the first one, whose own are 0."""

    def __init__(
        self,
        *,
        domain: Domain | None = None,
        bounds: Bounds | None = None,
        classes: Sequence[Any] | str | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        prior_scale: float = 2.5,
        intercept_scale: float = 5.0,
        temperature: float = 1.0,
        chains: int = 2,
        max_time: float | None = None,
        force: bool = False,
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            domain=domain,
            bounds=bounds,
            epsilon=epsilon,
            delta=delta,
            prior_scale=prior_scale,
            intercept_scale=intercept_scale,
            temperature=temperature,
            chains=chains,
            max_time=max_time,
            force=force,
            random_state=random_state,
        )
        self.classes = classes

    def _model(self, domain: Domain, prior: dict[str, Normal]) -> GLM:
        return SoftmaxRegression(domain, prior, classes=len(self.classes_), temperature=self.temperature)

    def _keep_coefficients(self) -> None:
        super()._keep_coefficients()
        self.coef_ = np.vstack([np.zeros((1, self.coef_.shape[1])), self.coef_])
        self.intercept_ = np.concatenate([[0.0], self.intercept_])


class _Regressor(RegressorMixin, _Private):  # type: ignore[misc]
    def fit(self, X: Any, y: Any) -> _Regressor:
        """Draw from the posterior within the budget."""
        features, values = self._targets(X, y, dtype=np.float64)
        self._fit(features, self._outcome(values))
        return self

    def _outcome(self, y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return y

    def _keep_coefficients(self) -> None:
        super()._keep_coefficients()
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """The posterior mean of the outcome's mean."""
        return self._predicted(X)


class PrivateRobustRegression(_Regressor):
    """Numbers with outliers: ``loss`` is "student-t" or "huber", ``scale`` the public size of an ordinary error.

    ``target_bounds``, if given, is where outcomes are held to.
    """

    def __init__(
        self,
        *,
        domain: Domain | None = None,
        bounds: Bounds | None = None,
        loss: str = "student-t",
        scale: float = 1.0,
        df: float = 4.0,
        target_bounds: tuple[float, float] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        prior_scale: float = 2.5,
        intercept_scale: float = 5.0,
        temperature: float = 1.0,
        chains: int = 2,
        max_time: float | None = None,
        force: bool = False,
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            domain=domain,
            bounds=bounds,
            epsilon=epsilon,
            delta=delta,
            prior_scale=prior_scale,
            intercept_scale=intercept_scale,
            temperature=temperature,
            chains=chains,
            max_time=max_time,
            force=force,
            random_state=random_state,
        )
        self.loss = loss
        self.scale = scale
        self.df = df
        self.target_bounds = target_bounds

    def _model(self, domain: Domain, prior: dict[str, Normal]) -> GLM:
        shared: dict[str, Any] = {
            "scale": self.scale,
            "target_bounds": self.target_bounds,
            "temperature": self.temperature,
        }
        if self.loss == "student-t":
            return StudentTRegression(domain, prior, df=self.df, **shared)
        if self.loss == "huber":
            return HuberRegression(domain, prior, **shared)
        raise ValueError(f"loss is {self.loss!r}: choose 'student-t' or 'huber'")


class PrivatePoissonRegression(_Regressor):
    """Counts with mean log(1 + e^η). Record by record, outcomes are rounded and held to 0 to the public ``cap``."""

    def __init__(
        self,
        *,
        domain: Domain | None = None,
        bounds: Bounds | None = None,
        cap: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        prior_scale: float = 2.5,
        intercept_scale: float = 5.0,
        temperature: float = 1.0,
        chains: int = 2,
        max_time: float | None = None,
        force: bool = False,
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            domain=domain,
            bounds=bounds,
            epsilon=epsilon,
            delta=delta,
            prior_scale=prior_scale,
            intercept_scale=intercept_scale,
            temperature=temperature,
            chains=chains,
            max_time=max_time,
            force=force,
            random_state=random_state,
        )
        self.cap = cap

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _outcome(self, y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if self.cap is None:
            raise ValueError("cap is missing: declare the largest count from public knowledge, as in cap=20")
        return np.clip(np.rint(y), 0.0, np.floor(self.cap))

    def _model(self, domain: Domain, prior: dict[str, Normal]) -> GLM:
        return PoissonRegression(domain, prior, cap=float(self.cap or 0.0), temperature=self.temperature)
