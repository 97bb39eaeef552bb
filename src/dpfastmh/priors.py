"""Priors on the coefficients: independent, one density for each coefficient of the scaled features.

A prior is public, so its part of the log acceptance ratio, log p(θ') - log p(θ), costs no privacy; constants cancel in
it. The compiled functions below are antisymmetric to the last bit, change(θ, θ') = -change(θ', θ), as detailed balance
asks: every term is a product of an antisymmetric difference and symmetric factors, or a plain difference, and terms
are added in one order. (IEEE rounding commutes with a change of sign.)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

__all__ = [
    "FLAT",
    "LAPLACE",
    "NORMAL",
    "STUDENT_T",
    "Flat",
    "Laplace",
    "Normal",
    "Prior",
    "PriorTable",
    "StudentT",
    "energy_derivatives",
    "log_prior_change",
    "log_prior_change_at",
    "prior_table",
]

FloatArray = npt.NDArray[np.float64]

NORMAL, STUDENT_T, LAPLACE, FLAT = 0, 1, 2, 3


class _Row(NamedTuple):
    kind: int
    loc: float
    scale: float
    df: float


class Prior(ABC):
    """The prior density of one coefficient."""

    @abstractmethod
    def log_density(self, x: npt.ArrayLike) -> FloatArray:
        """log p(x) up to a constant, elementwise."""

    @abstractmethod
    def _row(self) -> _Row:
        """The prior's entry in a `PriorTable`; numbers a kind does not use are 0 (loc) and 1 (scale, df)."""


@dataclass(frozen=True)
class Normal(Prior):
    """log p(x) = -z²/2, z = (x - loc)/scale."""

    scale: float = 2.5
    loc: float = 0.0

    def __post_init__(self) -> None:
        _check(self, positive=("scale",))

    def log_density(self, x: npt.ArrayLike) -> FloatArray:
        return np.asarray(-0.5 * np.square(_standardised(x, self.loc, self.scale)))

    def _row(self) -> _Row:
        return _Row(NORMAL, self.loc, self.scale, 1.0)


@dataclass(frozen=True)
class StudentT(Prior):
    """log p(x) = -(df + 1)/2·log(1 + z²/df), z = (x - loc)/scale. StudentT(1) is the Cauchy prior."""

    df: float
    scale: float = 2.5
    loc: float = 0.0

    def __post_init__(self) -> None:
        _check(self, positive=("df", "scale"))

    def log_density(self, x: npt.ArrayLike) -> FloatArray:
        z = _standardised(x, self.loc, self.scale)
        return np.asarray(-0.5 * (self.df + 1.0) * np.log1p(np.square(z) / self.df))

    def _row(self) -> _Row:
        return _Row(STUDENT_T, self.loc, self.scale, self.df)


@dataclass(frozen=True)
class Laplace(Prior):
    """log p(x) = -|z|, z = (x - loc)/scale."""

    scale: float = 2.5
    loc: float = 0.0

    def __post_init__(self) -> None:
        _check(self, positive=("scale",))

    def log_density(self, x: npt.ArrayLike) -> FloatArray:
        return np.asarray(-np.abs(_standardised(x, self.loc, self.scale)))

    def _row(self) -> _Row:
        return _Row(LAPLACE, self.loc, self.scale, 1.0)


@dataclass(frozen=True)
class Flat(Prior):
    """log p(x) = 0: improper. The posterior may be improper too when the data do not pin the coefficient down."""

    def log_density(self, x: npt.ArrayLike) -> FloatArray:
        return np.zeros(np.shape(x))

    def _row(self) -> _Row:
        return _Row(FLAT, 0.0, 1.0, 1.0)


class PriorTable(NamedTuple):
    """One prior for each coefficient as plain arrays, for compiled code."""

    kind: npt.NDArray[np.int64]
    loc: FloatArray
    scale: FloatArray
    df: FloatArray


def prior_table(prior: Prior | Sequence[Prior] | Mapping[str, Prior], names: Sequence[str]) -> PriorTable:
    """The priors of the coefficients called `names`, in their order.

    `prior` is one prior for all, a sequence with one for each, or a mapping from names to priors in which the key
    "default" stands for every name not mentioned.
    """
    names = _check_names(names)
    rows = [_checked_prior(chosen, name)._row() for name, chosen in zip(names, _chosen(prior, names), strict=True)]
    return PriorTable(
        kind=np.array([row.kind for row in rows], dtype=np.int64),
        loc=np.array([row.loc for row in rows], dtype=np.float64),
        scale=np.array([row.scale for row in rows], dtype=np.float64),
        df=np.array([row.df for row in rows], dtype=np.float64),
    )


def _chosen(prior: Prior | Sequence[Prior] | Mapping[str, Prior], names: list[str]) -> list[Any]:
    """The prior of each name, in order, not yet checked to be one."""
    if isinstance(prior, Prior):
        return [prior] * len(names)
    if isinstance(prior, Mapping):
        return _chosen_by_name(prior, names)
    if not isinstance(prior, Sequence) or isinstance(prior, str):
        raise ValueError(f"a prior is a Prior, a sequence or a mapping of them, not {prior!r}")
    if len(prior) != len(names):
        raise ValueError(f"{len(prior)} priors for {len(names)} coefficients: give one for each, or a single one")
    return list(prior)


def _chosen_by_name(priors: Mapping[str, Prior], names: list[str]) -> list[Any]:
    if "default" in names:
        raise ValueError('a coefficient is called "default", the key for all others: give the priors as a sequence')
    unknown = [key for key in priors if key != "default" and key not in names]
    if unknown:
        raise ValueError(f"a prior for {unknown[0]!r}, which is not a coefficient: they are {', '.join(names)}")
    missing = [name for name in names if name not in priors]
    if missing and "default" not in priors:
        raise ValueError(f'coefficient {missing[0]!r} has no prior: add one for it, or one under the key "default"')
    return [priors[name] if name in priors else priors["default"] for name in names]


def _checked_prior(prior: object, name: str) -> Prior:
    if not isinstance(prior, Prior):
        raise ValueError(f"the prior of coefficient {name!r} must be a Prior such as Normal(2.5), not {prior!r}")
    return prior


def _check_names(names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not len(names):
        raise ValueError(f"the coefficients are a non-empty list of names, not {names!r}")
    repeated = [name for k, name in enumerate(names) if name in names[:k]]
    if repeated:
        raise ValueError(f"coefficient {repeated[0]!r} appears twice: every coefficient needs a name of its own")
    return list(names)


def _check(prior: Normal | StudentT | Laplace, positive: tuple[str, ...]) -> None:
    """Every parameter a finite number, kept as a float; those named `positive` above 0."""
    for name, value in vars(prior).items():
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        if not math.isfinite(number) or (name in positive and number <= 0):
            wanted = "a finite number above 0" if name in positive else "a finite number"
            raise ValueError(f"the {name} of a {type(prior).__name__} prior must be {wanted}, not {value!r}")
        object.__setattr__(prior, name, number)


def energy_derivatives(table: PriorTable, theta: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Slope and a curvature of −log p at θ, coefficient by coefficient, for Newton steps.

    Where the curvature would be 0 or negative (Laplace, the tails of Student-t) the slope over the distance takes its
    place, 1/(scale·max(|z|, 1)) times |slope|'s factor: it keeps the step a descent and changes no stationary point.
    """
    z = (np.asarray(theta, dtype=np.float64) - table.loc) / table.scale
    far = np.maximum(np.abs(z), 1.0)
    kinds = [table.kind == kind for kind in (NORMAL, STUDENT_T, LAPLACE)]
    weight = (table.df + 1.0) / (table.df + z * z)
    slope = np.select(kinds, [z, weight * z, np.sign(z)], 0.0) / table.scale
    curvature = np.select(kinds, [np.ones_like(z), weight, 1.0 / far], 0.0) / table.scale**2
    return slope, curvature


def _standardised(x: npt.ArrayLike, loc: float, scale: float) -> FloatArray:
    return np.asarray((np.asarray(x, dtype=np.float64) - loc) / scale)


_Function = TypeVar("_Function", bound=Callable[..., float])


def _compiled(function: _Function) -> _Function:
    """Let compiled code call `function`. Without fast maths, whatever the caller's: it may undo the antisymmetry."""
    registered: _Function = register_jitable(fastmath=False)(function)
    return registered


@_compiled
def log_prior_change_at(table: PriorTable, j: int, old: float, new: float) -> float:
    """log p_j(new) - log p_j(old) of coefficient j.

    The normal one is the product -(z' - z)(z' + z)/2: a small move far from the prior's centre loses no digits.
    """
    kind = table.kind[j]
    if kind == FLAT:
        return 0.0
    z_old: float = (old - table.loc[j]) / table.scale[j]
    z_new: float = (new - table.loc[j]) / table.scale[j]
    if kind == NORMAL:
        return -0.5 * ((z_new - z_old) * (z_new + z_old))
    if kind == STUDENT_T:
        df: float = table.df[j]
        return -0.5 * (df + 1.0) * (math.log1p(z_new * z_new / df) - math.log1p(z_old * z_old / df))
    return abs(z_old) - abs(z_new)


@_compiled
def log_prior_change(table: PriorTable, theta: FloatArray, proposal: FloatArray) -> float:
    """log p(θ') - log p(θ), the sum of the changes of all coefficients."""
    total = 0.0
    for j in range(len(theta)):
        total += log_prior_change_at(table, j, theta[j], proposal[j])
    return total
