"""The vectorised arithmetic: accuracy against references of higher precision, and bits that depend on nothing else.

References are 80-bit (``numpy.longdouble``), where it has at least eleven more bits than a double; ``ulps`` counts
units in the last place of the double nearest to the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy.stats import chi2

from dpfastmh.data.memory import alias_table
from dpfastmh.randomness import insecure_streams
from dpfastmh.steps import elementary
from dpfastmh.steps.memory import LANES, dot, dot2, dot3, pick, turn, turned_dots, uniform

Long = np.longdouble
pytestmark = pytest.mark.skipif(np.finfo(Long).nmant < 63, reason="needs an 80-bit long double as the reference")


def over_arrays(function: Any) -> Callable[..., Any]:
    """The function applied by one compiled loop to whole arrays."""
    binary = function is elementary.softplus_change

    @njit(error_model="numpy")
    def one(x):
        out = np.empty_like(x)
        for i in range(x.size):
            out[i] = function(x[i])
        return out

    @njit(error_model="numpy")
    def two(x, y):
        out = np.empty_like(x)
        for i in range(x.size):
            out[i] = function(x[i], y[i])
        return out

    return two if binary else one


NAMES = ("exp", "expm1", "log", "log1p", "sigmoid", "softplus", "softplus_change")
COMPILED = {name: over_arrays(getattr(elementary, name)) for name in NAMES}


def ulps(found: Any, reference: Any) -> Any:
    nearest = np.asarray(reference, dtype=np.float64)
    return np.abs((Long(found) - reference) / np.spacing(np.abs(nearest)))


def long_softplus(x: Any) -> Any:
    return np.maximum(x, Long(0)) + np.log1p(np.exp(-np.abs(x)))


def long_softplus_change(x: Any, step: Any) -> Any:
    lower, rise = np.minimum(x, x + step), np.abs(step)
    return np.copysign(np.log1p(np.expm1(rise) / (1 + np.exp(-lower))), step)


def numbers(low: float, high: float, seed: int, count: int = 200_000) -> Any:
    """Uniform over [low, high], with log-spaced magnitudes from 1e-300 up inside it."""
    rng = np.random.default_rng(seed)
    plain = rng.uniform(low, high, count)
    small = np.exp(rng.uniform(math.log(1e-300), math.log(max(-low, high, 1.0)), count)) * rng.choice(
        [-1.0, 1.0], count
    )
    return np.concatenate([plain, small[(small >= low) & (small <= high)]])


# what the stated 4 units leave room for: each function's own worst case, measured, rounded up
CASES = {
    "exp": (numbers(-700, 700, 1), np.exp, 1.5),
    "expm1": (numbers(-700, 700, 2), np.expm1, 2.0),
    "log": (np.abs(numbers(1e-300, 1e300, 3)), np.log, 2.0),
    "log1p": (np.concatenate([numbers(-1 + 1e-10, 10, 4), np.exp(numbers(0, 600, 5))]), np.log1p, 4.0),
    "sigmoid": (numbers(-700, 700, 6), lambda x: 1 / (1 + np.exp(-x)), 4.0),
    "softplus": (numbers(-690, 690, 7), long_softplus, 4.0),
}


@pytest.mark.parametrize("name", CASES)
def test_relative_error_is_within_four_units_in_the_last_place(name: str) -> None:
    x, reference, worst = CASES[name]
    error = ulps(COMPILED[name](x), reference(Long(x)))
    assert error.max() <= worst <= 4.0, f"{name}: {error.max():.2f} ulp at {x[np.argmax(error)]!r}"


def test_softplus_change_keeps_its_relative_accuracy_for_steps_of_any_size() -> None:
    rng = np.random.default_rng(8)
    x = np.concatenate([rng.uniform(-600, 600, 200_000), rng.normal(0, 5, 200_000)])
    step = np.exp(rng.uniform(math.log(1e-14), math.log(80.0), x.size)) * rng.choice([-1.0, 1.0], x.size)
    moved = x + step  # the compiled function forms this sum too: its rounding is a change of argument, not an error
    found, reference = COMPILED["softplus_change"](x, step), long_softplus_change(Long(x), Long(step))
    # the rounding of x + step moves the lower end by half a unit of it: up to that much, relative, where x is large
    room = 4.0 + np.abs(moved)
    assert (ulps(found, reference) / room).max() <= 1.0
    near = np.maximum(np.abs(x), np.abs(moved)) < 1.0
    assert ulps(found, reference)[near].max() <= 6.0


def test_a_plain_difference_of_softplus_would_be_caught() -> None:
    """The control of the test above: subtraction loses ten digits at a step of 1e-12."""
    x, step = np.full(1, 0.3), np.full(1, 1e-12)
    plain = COMPILED["softplus"](x + step) - COMPILED["softplus"](x)
    assert ulps(plain, long_softplus_change(Long(x), Long(step)))[0] > 1e3
    assert ulps(COMPILED["softplus_change"](x, step), long_softplus_change(Long(x), Long(step)))[0] <= 4.0


@pytest.mark.parametrize(("name", "at"), [("exp", 700.0), ("expm1", 700.0)])
def test_beyond_its_range_the_exponential_is_held(name: str, at: float) -> None:
    function = COMPILED[name]
    far = np.array([at + 1, 1e300, np.inf])
    assert (function(far) == function(np.array([at]))).all()
    assert (function(-far) == function(np.array([-at]))).all()
    assert np.isfinite(function(np.array([at]))).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "log"])
def test_nan_in_nan_out(name: str) -> None:
    """``log`` is left out: it reads bits, and the loop hands it positive normal numbers alone."""
    nan = np.array([np.nan])
    arguments = (nan, np.ones(1)) if name == "softplus_change" else (nan,)
    assert np.isnan(COMPILED[name](*arguments)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_the_same_at_every_place_of_a_tile(name: str) -> None:
    """Vectorised and left-over iterations, and the call for one number alone, give the same bits."""
    function, rng = COMPILED[name], np.random.default_rng(9)
    values = np.abs(rng.normal(0, 3, 40))
    for length in (1, 2, 3, 5, 8, 13, 63, 64, 65):
        for value in values:
            tile = rng.normal(0, 3, length) if name != "log" else rng.uniform(0.1, 9, length)
            place = int(rng.integers(length))
            tile[place] = value
            extra = (np.full(length, 0.7),) if name == "softplus_change" else ()
            alone = function(np.array([value]), *(e[:1] for e in extra))
            assert function(tile, *extra)[place] == alone[0]


def test_exact_values() -> None:
    assert COMPILED["exp"](np.zeros(1))[0] == 1.0
    assert COMPILED["expm1"](np.zeros(1))[0] == 0.0
    assert COMPILED["log"](np.ones(1))[0] == 0.0
    assert COMPILED["sigmoid"](np.zeros(1))[0] == 0.5
    assert COMPILED["softplus_change"](np.ones(1), np.zeros(1))[0] == 0.0


def test_softplus_change_is_antisymmetric_to_the_last_bit() -> None:
    rng = np.random.default_rng(10)
    x, y = rng.integers(-400, 400, (2, 1000)) / 8.0  # sums of these are exact
    there, back = COMPILED["softplus_change"](x, y - x), COMPILED["softplus_change"](y, x - y)
    assert (there == -back).all()


# -- dot products ----------------------------------------------------------------------------------------------------
@njit(error_model="numpy")
def all_dots(x, row, a, b, c):
    p = dot2(x, row, a, b)
    q = dot3(x, row, a, b, c)
    return dot(x, row, a), p[0], p[1], q[0], q[1], q[2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dot_products_against_exact_sums(dtype: type) -> None:
    rng = np.random.default_rng(11)
    for d in range(1, 71):
        x = np.ascontiguousarray(rng.normal(size=(7, d)) * 10.0 ** rng.integers(-3, 4, (7, d)), dtype=dtype)
        vectors = rng.normal(size=(3, d))
        for row in (0, 3, 6):
            found = all_dots(x, row, *vectors)
            wide = x[row].astype(np.float64)
            for value, v in zip(found, [vectors[k] for k in (0, 0, 1, 0, 1, 2)], strict=True):
                products = [math.fsum([a * b]) for a, b in zip(wide, v, strict=True)]
                size = math.fsum(abs(p) for p in products)
                # eight lanes of d/8 fused steps and a tree of three sums
                assert abs(value - math.fsum(products)) <= (d / 8 + 5) * 2.0**-53 * size


@njit(error_model="numpy")
def by_columns(x, start, n, columns, a, out):
    turn(x, start, n, columns)
    for t in range(0, columns.shape[1], LANES):
        turned_dots(columns, t, a, 1, out, 1)
    return [dot(x, start + t, a[1:]) for t in range(n)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dot_products_by_columns_have_the_bits_of_those_by_rows(dtype: type) -> None:
    """Sums over rows take the ones, the chain's remainders the others: the chain is exact only if they are the same."""
    rng = np.random.default_rng(13)
    for d in (*range(1, 27), 31, 32, 70):
        x = np.ascontiguousarray(rng.normal(size=(30, d)) * 10.0 ** rng.integers(-3, 4, (30, d)), dtype=dtype)
        a = rng.normal(size=d + 3)
        for start, n in ((0, 24), (3, 16), (5, 13), (9, 1)):
            columns, out = np.zeros((d, 24)), np.zeros((2, 24))
            expected = by_columns(x, start, n, columns, a[: d + 1], out)
            assert np.array_equal(columns[:, :n], x[start : start + n].T)
            assert np.array_equal(out[1, :n], expected)
            assert not out[0].any()
            assert not columns[:, n:].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_dot_product_has_the_same_bits_wherever_the_row_stands(dtype: type) -> None:
    rng = np.random.default_rng(12)
    for d in (1, 3, 7, 8, 9, 16, 31, 64, 70):
        row = rng.normal(size=d).astype(dtype)
        vectors = rng.normal(size=(3, d))
        seen = set()
        for count in (1, 2, 5):
            for place in range(count):
                x = rng.normal(size=(count, d)).astype(dtype)
                x[place] = row
                x[place + 1 :] = np.nan  # what lies behind the row is never added in
                seen.add(all_dots(x, place, *vectors))
                seen.add(all_dots(x, place, *np.concatenate([vectors, vectors], axis=1)[:, :d].copy()))
        assert len(seen) == 1
        (only,) = seen
        assert only[0] == only[1] == only[3]
        assert only[2] == only[4]


# -- random words ----------------------------------------------------------------------------------------------------
@njit
def picks(stream, n, count):
    found = np.zeros(n, np.int64)
    for _ in range(count):
        found[pick(stream, n)] += 1
    return found


@njit
def uniforms(stream, count):
    out = np.empty(count)
    for i in range(count):
        out[i] = uniform(stream)
    return out


def chi_square_p(counts: Any, probabilities: Any) -> float:
    expected = counts.sum() * probabilities
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), counts.size - 1))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100, 1000])
def test_pick_is_in_range_and_uniform(n: int) -> None:
    counts = picks(insecure_streams(13, n).rows, n, 400_000)  # an index out of range would write outside the array
    assert counts.sum() == 400_000
    assert n == 1 or 1e-6 < chi_square_p(counts, np.full(n, 1.0 / n)) < 1 - 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2**62))
def test_pick_of_any_size_stays_in_range(n: int) -> None:
    found = first_picks(insecure_streams(14).rows, n)
    assert ((found >= 0) & (found < n)).all()


@njit
def first_picks(stream, n):
    out = np.empty(50, np.int64)
    for i in range(50):
        out[i] = pick(stream, n)
    return out


def test_the_chi_square_catches_a_biased_pick() -> None:
    """Control: taking a 10-bit word modulo 1000 favours the first 24 indices."""
    words = np.random.default_rng(15).integers(0, 1024, 400_000) % 1000
    assert chi_square_p(np.bincount(words, minlength=1000), np.full(1000, 1e-3)) < 1e-6


def test_uniforms_are_multiples_of_two_to_the_minus_53_in_the_half_open_interval() -> None:
    u = uniforms(insecure_streams(16).acceptance, 200_000)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert (u * 2.0**53 == np.floor(u * 2.0**53)).all()
    assert 1e-6 < chi_square_p(np.bincount((u * 256).astype(int), minlength=256), np.full(256, 1 / 256)) < 1 - 1e-6


def test_the_four_streams_and_the_chains_differ() -> None:
    heads = [tuple(uniforms(stream, 4)) for chain in (0, 1) for stream in insecure_streams(17, chain)]
    assert len(set(heads)) == 8


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=300))
def test_an_alias_table_holds_its_weights_exactly(weights: list[float]) -> None:
    w = np.array(weights)
    alias, threshold = alias_table(w)
    implied = threshold.copy()
    np.add.at(implied, alias, 1.0 - threshold)
    assert ((threshold >= 0) & (threshold <= 1 + 1e-12)).all()
    assert np.abs(implied / w.size - w / w.sum()).max() <= 1e-12
