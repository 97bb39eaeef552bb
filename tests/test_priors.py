"""Priors against scipy.stats, and the two exact laws detailed balance asks of a change: it is antisymmetric to the last
bit, and the change of a vector is the sum of the changes of its entries."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import stats

from dpfastmh.priors import (
    FLAT,
    LAPLACE,
    NORMAL,
    STUDENT_T,
    Flat,
    Laplace,
    Normal,
    Prior,
    PriorTable,
    StudentT,
    log_prior_change,
    log_prior_change_at,
    prior_table,
)

PRIORS = {
    "normal": Normal(),
    "shifted": Normal(scale=0.3, loc=-2.0),
    "student": StudentT(3.5, scale=1.7, loc=0.4),
    "cauchy": StudentT(1),
    "laplace": Laplace(0.8, loc=1.5),
    "flat": Flat(),
}
SCIPY = {
    "normal": stats.norm(0, 2.5),
    "shifted": stats.norm(-2, 0.3),
    "student": stats.t(3.5, loc=0.4, scale=1.7),
    "cauchy": stats.cauchy(0, 2.5),
    "laplace": stats.laplace(1.5, 0.8),
    "flat": None,
}
NAMES = list(PRIORS)


@njit
def change(table: PriorTable, theta: np.ndarray, proposal: np.ndarray) -> float:
    return log_prior_change(table, theta, proposal)


@njit(fastmath=True)
def fast_change(table: PriorTable, theta: np.ndarray, proposal: np.ndarray) -> float:
    return log_prior_change(table, theta, proposal)


@njit
def change_at(table: PriorTable, j: int, old: float, new: float) -> float:
    return log_prior_change_at(table, j, old, new)


def scipy_change(name: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    law = SCIPY[name]
    return np.zeros(np.shape(old)) if law is None else law.logpdf(new) - law.logpdf(old)


def agrees(computed: Callable[[np.ndarray, np.ndarray], np.ndarray], name: str) -> bool:
    old, new = np.random.default_rng(1).normal(0, 5, size=(2, 500))
    return bool(np.allclose(computed(old, new), scipy_change(name, old, new), rtol=1e-11, atol=1e-11))


@pytest.mark.parametrize("name", NAMES)
def test_densities_agree_with_scipy(name: str) -> None:
    prior, j, table = PRIORS[name], NAMES.index(name), prior_table(PRIORS, NAMES)
    assert agrees(lambda old, new: prior.log_density(new) - prior.log_density(old), name)
    assert agrees(lambda old, new: np.array([change_at(table, j, a, b) for a, b in zip(old, new, strict=True)]), name)
    assert prior.log_density([[1.0, 2.0]]).shape == (1, 2)
    assert prior.log_density(3.0).shape == ()


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("normal", Normal(2.0)),
        ("shifted", Normal(0.3)),
        ("student", StudentT(3.5, 1.7)),
        ("student", StudentT(4.5, 1.7, 0.4)),
        ("cauchy", Flat()),
        ("laplace", Normal(0.8, 1.5)),
    ],
)
def test_a_wrong_prior_is_caught(name: str, planted: Prior) -> None:
    table = prior_table(planted, ["x"])
    assert not agrees(
        lambda old, new: np.array([change_at(table, 0, a, b) for a, b in zip(old, new, strict=True)]), name
    )


VECTORS = st.lists(st.floats(-1e8, 1e8), min_size=len(NAMES), max_size=len(NAMES)).map(np.array)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(VECTORS, VECTORS)
def test_a_change_and_its_reverse_cancel_to_the_last_bit(theta: np.ndarray, proposal: np.ndarray) -> None:
    table = prior_table(PRIORS, NAMES)
    for compiled in (change, fast_change, log_prior_change):
        assert compiled(table, theta, proposal) == -compiled(table, proposal, theta)
        assert compiled(table, theta, theta) == 0
    for j in range(len(NAMES)):
        assert change_at(table, j, theta[j], proposal[j]) == -change_at(table, j, proposal[j], theta[j])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(VECTORS, VECTORS, VECTORS)
def test_changes_add_up(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    table = prior_table(PRIORS, NAMES)
    one_by_one = [change_at(table, j, a[j], b[j]) for j in range(len(NAMES))]
    size = sum(map(abs, one_by_one)) + 1e-300
    assert abs(change(table, a, b) - math.fsum(one_by_one)) <= 1e-15 * len(NAMES) * size
    detour = [change(table, a, b), change(table, b, c)]
    largest = max(np.square(np.concatenate([a, b, c]) - t).max() for t in (0, -2.0)) / 0.3**2 + 1
    assert abs(change(table, a, c) - sum(detour)) <= 1e-14 * len(NAMES) * largest


def test_a_change_that_is_not_antisymmetric_is_caught() -> None:
    """One logarithm instead of the difference of two is as accurate, but not antisymmetric."""
    rng = np.random.default_rng(2)
    table = prior_table(StudentT(3.0, 1.0), ["x"])

    def one_logarithm(old: float, new: float) -> float:
        return -2.0 * math.log1p((new * new - old * old) / (3.0 + old * old))

    pairs = rng.normal(size=(1000, 2))
    assert sum(one_logarithm(a, b) != -one_logarithm(b, a) for a, b in pairs) > 100
    assert all(math.isclose(one_logarithm(a, b), change_at(table, 0, a, b), abs_tol=1e-14) for a, b in pairs)


def test_small_moves_far_out_lose_no_digits() -> None:
    table = prior_table(Normal(1.0), ["x"])
    step = 2.0**-30
    assert change_at(table, 0, 1e6, 1e6 + step) == pytest.approx(-step * (1e6 + step / 2), rel=1e-15)


def test_table() -> None:
    table = prior_table(PRIORS, NAMES)
    np.testing.assert_array_equal(table.kind, [NORMAL, NORMAL, STUDENT_T, STUDENT_T, LAPLACE, FLAT])
    np.testing.assert_array_equal(table.loc, [0, -2, 0.4, 0, 1.5, 0])
    np.testing.assert_array_equal(table.scale, [2.5, 0.3, 1.7, 2.5, 0.8, 1])
    np.testing.assert_array_equal(table.df, [1, 1, 3.5, 1, 1, 1])
    assert [a.dtype for a in table] == [np.int64, np.float64, np.float64, np.float64]
    for a, b in zip(prior_table(list(PRIORS.values()), NAMES), table, strict=True):
        np.testing.assert_array_equal(a, b)
    by_default = prior_table({"intercept": Normal(5), "default": Normal(2.5)}, ["a", "intercept", "b"])
    np.testing.assert_array_equal(by_default.scale, [2.5, 5, 2.5])
    np.testing.assert_array_equal(prior_table(Laplace(2), ["a", "b"]).kind, [LAPLACE, LAPLACE])
    # every prior mentioned: a default that is not needed does no harm
    np.testing.assert_array_equal(prior_table({"a": Normal(1), "default": Flat()}, ["a"]).kind, [NORMAL])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Normal(0), "the scale of a Normal prior must be a finite number above 0, not 0"),
        (lambda: Normal(-1), "above 0"),
        (lambda: Normal(math.nan), "above 0"),
        (lambda: Normal(math.inf), "above 0"),
        (lambda: Normal(True), "above 0"),
        (lambda: Normal("1"), "above 0"),
        (lambda: Normal(1, math.nan), "the loc of a Normal prior must be a finite number, not nan"),
        (lambda: Laplace(0), "the scale of a Laplace prior"),
        (lambda: Laplace(1, math.inf), "the loc of a Laplace prior"),
        (lambda: StudentT(0), "the df of a StudentT prior"),
        (lambda: StudentT(math.inf), "the df of a StudentT prior"),
        (lambda: StudentT(3, -1), "the scale of a StudentT prior"),
        (lambda: prior_table([Normal()], ["a", "b"]), "1 priors for 2 coefficients"),
        (lambda: prior_table([Normal(), 2.5], ["a", "b"]), "prior of coefficient 'b' must be a Prior"),
        (lambda: prior_table({"a": 2.5}, ["a"]), "prior of coefficient 'a' must be a Prior"),
        (lambda: prior_table(2.5, ["a"]), "a prior is a Prior, a sequence or a mapping"),
        (lambda: prior_table("normal", ["a"]), "a prior is a Prior, a sequence or a mapping"),
        (lambda: prior_table({"a": Normal(), "z": Normal()}, ["a"]), "'z', which is not a coefficient: they are a"),
        (lambda: prior_table({"a": Normal()}, ["a", "b"]), "coefficient 'b' has no prior"),
        (lambda: prior_table({"default": Normal()}, ["a", "default"]), 'called "default"'),
        (lambda: prior_table(Normal(), []), "non-empty list of names"),
        (lambda: prior_table(Normal(), "ab"), "non-empty list of names"),
        (lambda: prior_table(Normal(), ["a", "a"]), "coefficient 'a' appears twice"),
    ],
)
def test_refusals_are_one_clear_line(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_priors_are_values() -> None:
    assert Normal(2, 0) == Normal(scale=2.0) != Laplace(2)
    assert len({Normal(), Normal(2.5), Flat(), Flat()}) == 2
    assert eval(repr(StudentT(3))) == StudentT(3.0, 2.5, 0.0)
    with pytest.raises(AttributeError):
        Normal().scale = 1.0
