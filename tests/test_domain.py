"""The domain is the one thing the privacy accounting believes about a record, so its bounds are tried from both sides:
no projected row may exceed the support, and some record of the domain must attain it. Planted mistakes show that each
side of the check bites."""

import copy
import itertools
import math
import pickle
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpfastmh.domain import (
    BALL,
    BOX,
    BOXBALL,
    ONEHOT,
    Ball,
    Box,
    Constant,
    Domain,
    DomainError,
    Intersection,
    OneHot,
    Product,
    SupportTable,
)

SLACK = 1e-12
FLOATS = (np.float64, np.float32)


# ---------------------------------------------------------------- random domains, rows and directions


@st.composite
def boxes(draw: st.DrawFn, prefix: str, unit: bool = False) -> Box:
    d = draw(st.integers(1, 4))
    if unit:
        return Box({f"{prefix}{j}": (-1, 1) for j in range(d)})
    lows = draw(st.lists(st.floats(-1e6, 1e6), min_size=d, max_size=d))
    widths = draw(st.lists(st.floats(1e-3, 1e6), min_size=d, max_size=d))
    return Box({f"{prefix}{j}": (low, low + width) for j, (low, width) in enumerate(zip(lows, widths, strict=True))})


RADII = st.one_of(st.floats(0.05, 3.0), st.sampled_from([1.0, math.sqrt(2), 2.0]))


@st.composite
def leaves(draw: st.DrawFn, prefix: str, unit: bool = False) -> Domain:
    """One factor; with `unit`, one whose raw columns are scaled features already (so without categories)."""
    kind = draw(
        st.sampled_from(["box", "ball", "cut", "constant"] if unit else ["box", "ball", "cut", "constant", "one"])
    )
    if kind == "box":
        return draw(boxes(prefix, unit))
    if kind == "ball":
        names = [f"{prefix}{j}" for j in range(draw(st.integers(1, 4)))]
        return Ball(1.0 if unit else draw(st.floats(1e-3, 1e6)), names)
    if kind == "cut":
        return draw(boxes(prefix, unit)) & Ball(draw(RADII))
    if kind == "constant":
        return Constant(f"{prefix}one")
    return OneHot(f"{prefix}c", list("abcde")[: draw(st.integers(2, 5))])


@st.composite
def domains(draw: st.DrawFn, unit: bool = False) -> Domain:
    parts = [draw(leaves(prefix, unit)) for prefix in "pqrs"[: draw(st.integers(1, 4))]]
    return parts[0] if len(parts) == 1 else Product(*parts)


def factors(domain: Domain) -> tuple[Domain, ...]:
    return domain.parts if isinstance(domain, Product) else (domain,)


def random_rows(domain: Domain, rng: np.random.Generator, n: int = 30) -> dict[str, np.ndarray]:
    """Raw rows from well inside to far outside the domain."""
    rows: dict[str, np.ndarray] = {"unused": np.zeros(n)}
    size = 10.0 ** rng.choice([-3, 0, 0.5, 3, 150, 300], n)
    for part in factors(domain):
        for j, name in enumerate(part.columns):
            if isinstance(part, OneHot):
                rows[name] = rng.choice(list(part.categories), n)
            else:
                with np.errstate(over="ignore"):
                    raw = part.center[j] + part.half_width[j] * size * rng.uniform(-1, 1, n)
                rows[name] = np.clip(raw, -1.7e308, 1.7e308)
    return rows


ENTRIES = st.one_of(
    st.just(0.0),
    st.sampled_from([-1.0, 1.0]),
    st.floats(-10, 10).filter(lambda x: x == 0 or abs(x) > 1e-100),
    st.floats(1e-90, 1e90),
)


@st.composite
def domains_and_directions(draw: st.DrawFn, directions: int = 1) -> tuple:
    domain = draw(domains())
    d = len(domain)
    return domain, *(np.array(draw(st.lists(ENTRIES, min_size=d, max_size=d))) for _ in range(directions))


# ---------------------------------------------------------------- the two sides of the check


def dot(x: np.ndarray, delta: np.ndarray) -> float:
    return math.fsum(float(a) * b for a, b in zip(x, delta, strict=True))


Support = Callable[[Domain, np.ndarray], float]


def true_support(domain: Domain, delta: np.ndarray) -> float:
    return domain.support(delta)


def dominates(domain: Domain, rows: np.ndarray, delta: np.ndarray, support: Support = true_support) -> bool:
    """No row reaches further than the support."""
    limit = support(domain, delta) * (1 + SLACK)
    return all(abs(dot(x, delta)) <= limit for x in rows)


def attained(domain: Domain, delta: np.ndarray, support: Support = true_support) -> bool:
    """Some record of the domain reaches as far as the support."""
    x = domain.extreme(delta)
    assert domain.contains(x[None, :]).all()
    return abs(dot(x, delta)) >= support(domain, delta) * (1 - SLACK)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(domains_and_directions(), st.integers(0, 2**32 - 1))
def test_no_projected_row_exceeds_the_support_and_some_record_attains_it(drawn: tuple, seed: int) -> None:
    domain, delta = drawn
    rows = random_rows(domain, np.random.default_rng(seed))
    for dtype in FLOATS:
        x = domain.project(rows, dtype)
        assert x.dtype == dtype
        assert x.shape == (30, len(domain))
        assert domain.contains(x).all()
        assert dominates(domain, x, delta)
    assert attained(domain, delta)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(domains_and_directions(directions=2), st.floats(0, 1), st.floats(1e-3, 1e3))
@example((Box.unit(2) & Ball(1.2), np.array([1.0, 0.1]), np.array([-0.3, 1.0])), 0.5, 3.0)
def test_support_is_even_convex_and_homogeneous(drawn: tuple, weight: float, factor: float) -> None:
    domain, a, b = drawn
    s = domain.support
    assert s(-a) == s(a) >= 0
    assert s(np.zeros(len(domain))) == 0
    assert s(factor * a) == pytest.approx(factor * s(a), rel=1e-12)
    mixed = weight * s(a) + (1 - weight) * s(b)
    assert s(weight * a + (1 - weight) * b) <= mixed * (1 + SLACK) + 1e-14 * max(s(a), s(b))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(domains(unit=True), st.integers(0, 2**32 - 1), st.sampled_from(FLOATS))
def test_projecting_twice_is_projecting_once(domain: Domain, seed: int, dtype: type) -> None:
    rows = random_rows(domain, np.random.default_rng(seed))
    once = domain.project(rows, dtype)
    scaled = {name: once[:, j] for j, name in enumerate(domain.features)}  # constants included: nobody reads them
    again = domain.project(scaled, dtype)
    np.testing.assert_array_equal(again, once)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(domains(), st.integers(0, 2**32 - 1))
def test_norm2_is_the_largest_norm(domain: Domain, seed: int) -> None:
    rows = random_rows(domain, np.random.default_rng(seed))
    for dtype in FLOATS:
        norms = [math.sqrt(dot(x, x.astype(float))) for x in domain.project(rows, dtype)]
        assert max(norms) <= domain.norm2() * (1 + SLACK)
    furthest = domain.extreme(np.ones(len(domain)))
    assert math.sqrt(dot(furthest, furthest)) == pytest.approx(domain.norm2(), rel=1e-12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(domains(), st.integers(0, 2**32 - 1))
def test_original_coefficients_give_the_same_predictor_on_raw_rows(domain: Domain, seed: int) -> None:
    domain = Product(Constant("intercept"), domain)
    rng = np.random.default_rng(seed)
    coefficients = rng.normal(size=(2, 3, len(domain)))
    raw_coefficients = domain.original(coefficients)
    assert raw_coefficients.shape == coefficients.shape
    record = domain.extreme(rng.normal(size=len(domain))) * np.where(domain.table().constant, 1.0, 0.9)
    raw = domain.center + domain.half_width * record  # encoded features have center 0 and half width 1
    scaled_predictor, raw_predictor = coefficients @ record, raw_coefficients @ raw
    scale = np.abs(raw_coefficients) @ np.abs(raw)
    assert (np.abs(scaled_predictor - raw_predictor) <= 1e-13 * (1 + scale)).all()


def test_original_on_a_table() -> None:
    domain = Constant("intercept") * Box(age=(18, 95), dose=(0, 10)) * OneHot("sex", ["F", "M"])
    rows = {"age": np.array([18.0, 40.0, 95.0]), "dose": np.array([0.0, 2.5, 10.0]), "sex": np.array(["F", "M", "M"])}
    coefficients = np.array([0.3, -1.2, 0.7, 0.25])
    intercept, age, dose, male = domain.original(coefficients)
    expected = intercept + age * rows["age"] + dose * rows["dose"] + male * np.array([0, 1, 1])
    np.testing.assert_allclose(domain.project(rows) @ coefficients, expected, rtol=1e-13)
    np.testing.assert_array_equal(Box.unit(2).original([1.0, 2.0]), [1.0, 2.0])  # centred: no constant needed
    np.testing.assert_array_equal(Ball(4, ["a", "b"]).original([1.0, 2.0]), [0.25, 0.5])


# ---------------------------------------------------------------- against brute force


def test_support_of_boxes_groups_and_constants_by_enumeration() -> None:
    domain = Box.unit(2) * OneHot("a", ["x", "y", "z"]) * Constant("one") * OneHot("b", [0, 1])
    corners = [
        np.array([*box, *a, 1.0, b])
        for box in itertools.product([-1, 1], repeat=2)
        for a in ([0, 0], [1, 0], [0, 1])
        for b in (0, 1)
    ]
    rng = np.random.default_rng(1)
    for _ in range(300):
        delta = rng.normal(size=6) * rng.integers(0, 2, 6)
        assert domain.support(delta) == pytest.approx(max(abs(c @ delta) for c in corners), rel=1e-14, abs=1e-300)


def water_filling(a: np.ndarray, radius: float) -> float:
    """Maximum of x·a over 0 <= x <= 1, ‖x‖ <= radius: x = min(1, t·a), t found by bisection."""
    low, high = 0.0, 1e12
    for _ in range(300):
        t = (low + high) / 2
        low, high = (t, high) if np.linalg.norm(np.minimum(1, t * a)) <= radius else (low, t)
    return float(np.minimum(1, low * a) @ a)


def test_support_of_a_cut_box_by_bisection() -> None:
    rng = np.random.default_rng(2)
    for _ in range(300):
        d = int(rng.integers(1, 9))
        radius = float(rng.uniform(0.1, math.sqrt(d) + 0.2))
        delta = rng.normal(size=d) * 10.0 ** rng.uniform(-2, 2, d)
        expected = water_filling(np.abs(delta), radius)
        assert (Box.unit(d) & Ball(radius)).support(delta) == pytest.approx(expected, rel=1e-9)


def test_support_of_a_cut_square_on_its_boundary() -> None:
    """Dense points of the rim of {|x| <= 1, |y| <= 1, ‖(x, y)‖ <= 1.1}: no theory of maxima needed."""
    angle = np.linspace(0, 2 * math.pi, 200_001)
    rim = np.clip(1.1 * np.column_stack([np.cos(angle), np.sin(angle)]), -1, 1)
    bend = math.sqrt(0.21)  # where the circle meets the sides
    rim = np.vstack([rim, [[1, bend], [1, -bend], [bend, 1], [-bend, 1]]])
    domain = Box.unit(2) & Ball(1.1)
    for delta in np.random.default_rng(3).normal(size=(50, 2)):
        assert domain.support(delta) == pytest.approx(np.abs(rim @ delta).max(), rel=1e-8)


def test_directions_of_extreme_shape() -> None:
    cut = Box.unit(3) & Ball(1.2)
    for delta in ([1.0, 1e-200, 0.0], [1e-300, 1e-320, 0.0], [1e300, 1e300, -1e300], [1.0, 1.0, 1.0]):
        assert dominates(cut, np.array([[1.0, 0.6, 0.2], [0.4, 0.8, 0.8]]), np.array(delta))
        assert attained(cut, np.array(delta))
    assert attained(Ball(1, ["a", "b"]), np.array([1e-300, 1e-320]))
    assert attained(Ball(1, ["a", "b"]), np.array([1e300, -1e300]))
    for domain in (cut, Box.unit(3), Box.unit(3) & Ball(9), Ball(2, ["a", "b", "c"])):
        assert domain.contains(domain.extreme(np.zeros(3))[None]).all()


# ---------------------------------------------------------------- negative controls


def forgets_the_ball(domain: Domain, delta: np.ndarray) -> float:
    return float(np.abs(delta).sum())


def takes_the_smaller(domain: Domain, delta: np.ndarray) -> float:
    """Valid for a cut box, but larger than the support."""
    assert isinstance(domain, Intersection)
    return min(float(np.abs(delta).sum()), domain.ball.radius * float(np.linalg.norm(delta)))


def half_a_bound(domain: Domain, delta: np.ndarray) -> float:
    return domain.support(np.concatenate([delta[:-1], delta[-1:] / 2]))


def adds_up_groups(domain: Domain, delta: np.ndarray) -> float:
    return sum(abs(d) for d in delta)


def test_a_wrong_support_is_caught() -> None:
    rng = np.random.default_rng(4)
    cut, box = Box.unit(3) & Ball(1.3), Box.unit(3)
    groups = OneHot("a", [0, 1]) * OneHot("b", [0, 1])
    rows = {f"x{j}": rng.uniform(-5, 5, 200) for j in range(3)}
    delta = np.array([3.0, -0.5, 0.8])
    assert attained(cut, delta)
    assert not attained(cut, delta, forgets_the_ball)
    assert not attained(cut, delta, takes_the_smaller)
    assert attained(groups, np.array([1.0, -1.0]))
    assert not attained(groups, np.array([1.0, -1.0]), adds_up_groups)
    for domain in (cut, box):
        x = domain.project(rows)
        assert dominates(domain, x, delta)
        assert not dominates(domain, x, delta, half_a_bound)


def test_a_wrong_projection_is_caught() -> None:
    rng = np.random.default_rng(5)
    cut = Box.unit(4) & Ball(1.0)
    raw = rng.normal(size=(2000, 4)) * 3
    raw = raw[np.linalg.norm(raw, axis=1) > 1]
    forgot_to_shrink = cut.box.project(raw)
    assert not dominates(cut, forgot_to_shrink, np.ones(4))
    # rounding a row of norm 1 to float32 pushes about half of them out; the projection aims inside
    rounded = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    ball = Ball(1, cut.columns)
    poking = rounded[~ball.contains(rounded)]
    assert 500 < len(poking) < 1500
    assert not all(dominates(ball, x[None], x.astype(float)) for x in poking)
    for rows in (raw, raw / np.linalg.norm(raw, axis=1, keepdims=True)):  # far out, and on the rim already
        safe = ball.project(rows, np.float32)
        assert all(dominates(ball, x[None], x.astype(float)) for x in safe)
        assert np.linalg.norm(safe.astype(float), axis=1).min() > 1 - 1e-6


# ---------------------------------------------------------------- the table for compiled code


def support_from_table(table: SupportTable, delta: np.ndarray) -> tuple[float, float]:
    """The support as compiled code reads it off the table, and the simpler sum of blocks."""
    one_sided = {1.0: 0.0, -1.0: 0.0}
    summed = 0.0
    for kind, start, stop, radius in zip(table.kind, table.start, table.stop, table.radius, strict=True):
        piece = delta[start:stop]
        both = {
            BOX: lambda p, r: float(np.abs(p).sum()),
            BALL: lambda p, r: float(r * np.linalg.norm(p)),
            ONEHOT: lambda p, r: float(np.abs(p).max()),
            BOXBALL: lambda p, r: water_filling(np.abs(p), r),
        }[int(kind)](piece, radius)
        summed += both
        for sign in one_sided:
            if kind == ONEHOT:
                one_sided[sign] += max(0.0, float((sign * piece).max()))
            else:
                constant = table.constant[start:stop]
                one_sided[sign] += both + float((sign * piece - np.abs(piece))[constant].sum())
    return max(one_sided.values()), summed


@settings(max_examples=100, deadline=None, derandomize=True)
@given(domains(), st.integers(0, 2**32 - 1))
def test_the_table_holds_the_support(domain: Domain, seed: int) -> None:
    table, d = domain.table(), len(domain)
    assert table.start[0] == 0
    assert table.stop[-1] == d
    np.testing.assert_array_equal(table.start[1:], table.stop[:-1])
    assert not ((table.kind[1:] == BOX) & (table.kind[:-1] == BOX)).any()
    delta = np.random.default_rng(seed).normal(size=d)
    exact, summed = support_from_table(table, delta)
    assert exact == pytest.approx(domain.support(delta), rel=1e-9, abs=1e-12)
    assert summed >= domain.support(delta) * (1 - 1e-9)
    for j in range(d):
        move = np.eye(d)[j]
        assert domain.support(move) == pytest.approx(table.half[j], rel=1e-15)


def test_table_of_an_example() -> None:
    domain = (
        Constant("intercept")
        * Box(age=(18, 95))
        * OneHot("sex", ["F", "M", "X"])
        * Ball(5, ["u", "v"])
        * (Box.unit(2) & Ball(0.5))
        * Box(w=(0, 1))
    )
    table = domain.table()
    np.testing.assert_array_equal(table.kind, [BOX, ONEHOT, BALL, BOXBALL, BOX])
    np.testing.assert_array_equal(table.start, [0, 2, 4, 6, 8])
    np.testing.assert_array_equal(table.stop, [2, 4, 6, 8, 9])
    np.testing.assert_array_equal(table.radius, [math.inf, math.inf, 1, 0.5, math.inf])
    np.testing.assert_array_equal(table.half, [1, 1, 1, 1, 1, 1, 0.5, 0.5, 1])
    np.testing.assert_array_equal(table.constant, [True] + [False] * 8)
    assert [a.dtype for a in table] == [np.int64] * 3 + [np.float64] * 2 + [np.bool_]
    assert domain.norm2() == pytest.approx(math.sqrt(2 + 1 + 1 + 0.25 + 1), rel=1e-15)


# ---------------------------------------------------------------- reading rows


def test_project_an_example() -> None:
    domain = Box(age=(18, 95), dose=(0, 10)) * OneHot("sex", ["F", "M", "X"]) * Constant("intercept")
    assert domain.columns == ("age", "dose", "sex")
    assert domain.features == ("age", "dose", "sex[M]", "sex[X]", "intercept")
    rows = {"sex": ["M", "F", "X"], "dose": [5, 99, -3], "age": [18, 56.5, 1000], "other": [None, None, None]}
    expected = [[-1, 0, 1, 0, 1], [0, 1, 0, 0, 1], [1, -1, 0, 1, 1]]
    np.testing.assert_array_equal(domain.project(rows), expected)
    np.testing.assert_array_equal(domain.center, [56.5, 5, 0, 0, 0])
    np.testing.assert_array_equal(domain.half_width, [38.5, 5, 1, 1, 1])


def test_project_a_matrix_and_many_rows() -> None:
    rng = np.random.default_rng(6)
    raw = rng.normal(size=(70_001, 3)) * 2  # more than one chunk
    domain = Box({"a": (-1, 1), "b": (-2, 2)}) * Constant() * Box(c=(0, 1))
    x = domain.project(raw)
    np.testing.assert_array_equal(x[:, 2], 1)
    np.testing.assert_allclose(x[:, [0, 1, 3]], np.clip(raw / [1, 2, 0.5] - [0, 0, 1], -1, 1), atol=1e-15)
    np.testing.assert_array_equal(x, domain.project({"a": raw[:, 0], "b": raw[:, 1], "c": raw[:, 2]}))
    np.testing.assert_array_equal(domain.project(raw.tolist()), x)
    np.testing.assert_array_equal(domain.project(np.asfortranarray(raw)), x)
    assert domain.project(raw[:0]).shape == (0, 4)
    assert x.flags.c_contiguous


def test_numbers_of_every_kind_are_read() -> None:
    box = Box(a=(0, 4))
    for values in (
        [0, 1, 2.0, True],
        [Decimal(0), Fraction(1), np.float32(2), np.bool_(True)],
        np.array([0, 1, 2, 1], dtype=np.uint8),
        np.array([0, 1, 2, 1], dtype=np.float16),
        np.array([0, 1, 2, 1], dtype=object),
        np.ma.masked_array([0, 1, 2, 1], mask=False),
    ):
        np.testing.assert_array_equal(box.project({"a": values})[:, 0], [-1, -0.5, 0, -0.5])


def test_categories_of_every_kind_are_read() -> None:
    flags = OneHot("f", [0, 1])
    for values in ([0, 1, 1], [False, True, True], np.array([0.0, 1.0, 1.0]), np.array([0, 1, 1.0], dtype=object)):
        np.testing.assert_array_equal(flags.project({"f": values})[:, 0], [0, 1, 1])
    mixed = OneHot("m", ["a", 2, True])
    np.testing.assert_array_equal(mixed.project({"m": ["a", 2, True]}), [[0, 0], [1, 0], [0, 1]])
    assert OneHot("n", np.array([3, 4])).categories == (3, 4)
    assert OneHot("b", [False, True]).features == ("b[True]",)


class Frame:
    """As much of a data frame as `project` relies on."""

    def __init__(self, **columns: list) -> None:
        self._columns = columns

    def keys(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array(self._columns[name])

    def __contains__(self, name: object) -> bool:  # of a list of rows, say
        raise AssertionError("ask keys()")


def test_a_data_frame_will_do() -> None:
    np.testing.assert_array_equal(Box(a=(0, 2)).project(Frame(b=["x", "y"], a=[0, 1])), [[-1], [0]])
    np.testing.assert_array_equal(Constant().project(Frame(b=["x", "y"])), [[1], [1]])


def test_contains() -> None:
    domain = Box.unit(1) * OneHot("s", [0, 1, 2]) * Constant() * Ball(3, ["u", "v"])
    inside = [0.5, 0, 1, 1, 0.6, 0.8]
    outside = [
        [1.0 + 1e-15, 0, 1, 1, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0.5, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0.6, 0.8001],
        [0, 0, 0, 1, math.inf, 0],
        [math.nan, 0, 0, 1, 0, 0],
        [0, math.nan, 0, 1, 0, 0],
        [0, 0, 0, math.nan, 0, 0],
        [0, 0, 0, 1, math.nan, 0],
    ]
    np.testing.assert_array_equal(domain.contains([inside, *outside]), [True] + [False] * len(outside))
    np.testing.assert_array_equal((Box.unit(2) & Ball(1)).contains([[1, 0], [1, 0.1], [1.1, 0]]), [True, False, False])
    assert not Box.unit(1).contains([[np.iinfo(np.int64).min]]).any()
    many = np.zeros((70_001, 1))
    many[-1] = 2
    np.testing.assert_array_equal(np.flatnonzero(~Box.unit(1).contains(many)), [70_000])


# ---------------------------------------------------------------- errors: one line, what, where, what to do


def refused(match: str) -> pytest.RaisesExc[DomainError]:
    return pytest.raises(DomainError, match=match)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None, "3", "x", 1j, 10**400])
def test_a_cell_that_is_no_number_names_its_column_and_row(bad: object) -> None:
    cells = np.array([1, 2, bad, bad], dtype=object)
    for domain in (Box(z=(0, 9), a=(0, 5)), Ball(2, ["z", "a"]), Box(z=(0, 9), a=(0, 5)) & Ball(1)):
        with refused(r"^column 'a', row 2: not a finite number[^\n]*$"):
            domain.project({"z": np.zeros(4), "a": cells})
        with refused(r"^column 'a', row 2: "):
            domain.project(np.column_stack([np.zeros(4, dtype=object), cells]))


def test_the_row_is_right_beyond_the_first_chunk() -> None:
    column = np.zeros(70_001)
    column[70_000] = math.nan
    with refused(r"^column 'a', row 70000: "):
        Box(a=(0, 5)).project({"a": column})
    with refused(r"^column 'c', row 70000: unknown category 2\.0: "):
        OneHot("c", [0, 1]).project({"c": np.where(np.isnan(column), 2, 0.0)})


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.array(["F", "f"]), "'f'"),
        (["F", None], "None"),
        (["F", 1], "1"),
        (["F", ["M"]], r"\['M'\]"),
        (["F", math.nan], "nan"),
        (np.array([b"F", b"M"]), "b'F'"),
    ],
)
def test_an_unknown_category_is_named(values: object, shown: str) -> None:
    row = 0 if "b'" in shown else 1
    with refused(rf"^column 'sex', row {row}: unknown category {shown}: declare it[^\n]*$"):
        OneHot("sex", ["F", "M", "1"]).project({"sex": values})


def test_numbers_are_not_their_spelling() -> None:
    with refused("unknown category '0'"):
        OneHot("f", [0, 1]).project({"f": np.array(["0", "1"])})
    with refused("unknown category 0"):
        OneHot("f", ["0", "1"]).project({"f": np.array([0, 1])})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": [1.0]}, "column 'b' is missing"),
        ({"a": [1.0], "b": [1.0, 2.0]}, "column 'b' has 2 rows, column 'a' has 1"),
        ({"a": [1.0], "b": np.ones((1, 1))}, r"column 'b' has shape \(1, 1\)"),
        ({"a": [1.0], "b": 1.0}, r"column 'b' has shape \(\)"),
        ({"a": [1.0], "b": ["x"]}, "column 'b', row 0: not a finite number"),
        ({"a": [1.0], "b": np.array(["x"])}, "column 'b', row 0: not a finite number"),
        ({"a": [1.0], "b": np.array(["2020-01-01"], "M8[D]")}, "column 'b', row 0: not a finite number"),
        ({"a": [1.0], "b": np.ma.masked_array([1.0], mask=[True])}, "column 'b', row 0: a masked cell"),
        (np.ones((3, 3)), r"shape \(3, 3\): expected 2 dimensions and 2 columns \(a, b\)"),
        (np.ones(2), "expected 2 dimensions"),
        ([[1.0, 2.0], [3.0]], "expected 2 dimensions"),
        (7, "expected 2 dimensions"),
        (np.ma.masked_array(np.ones((2, 2)), mask=[[0, 0], [0, 1]]), "the table, row 1: a masked cell"),
    ],
)
def test_a_table_that_does_not_fit(rows: object, message: str) -> None:
    with refused(message):
        Box(a=(0, 1), b=(0, 1)).project(rows)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Box(), "needs at least one column"),
        (lambda: Box({}), "needs at least one column"),
        (lambda: Box([("a", 0, 1)]), "Box takes names and bounds"),
        (lambda: Box(a=(1, 0)), "column 'a': bounds must be finite numbers with low < high"),
        (lambda: Box(a=(1, 1)), "low < high"),
        (lambda: Box(a=(0, math.inf)), "low < high"),
        (lambda: Box(a=(math.nan, 1)), "low < high"),
        (lambda: Box(a=(False, True)), "low < high"),
        (lambda: Box(a=("0", "1")), "low < high"),
        (lambda: Box(a=(0, 5e-324)), "low < high"),
        (lambda: Box(a=(0, 1, 2)), "a pair"),
        (lambda: Box(a="01"), "a pair"),
        (lambda: Box(a=3), "a pair"),
        (lambda: Box({"a": (0, 1)}, a=(0, 2)), "column 'a' appears twice"),
        (lambda: Box({1: (0, 1)}), "non-empty text, not 1"),
        (lambda: Box({"": (0, 1)}), "non-empty text, not ''"),
        (lambda: Box.unit(0), "positive number of columns"),
        (lambda: Box.unit(2.0), "positive number of columns"),
        (lambda: Ball(0, ["a"]), "radius of a Ball must be a finite number above 0"),
        (lambda: Ball(-1, ["a"]), "above 0"),
        (lambda: Ball(math.nan, ["a"]), "above 0"),
        (lambda: Ball(math.inf, ["a"]), "above 0"),
        (lambda: Ball(True, ["a"]), "above 0"),
        (lambda: Ball("1", ["a"]), "above 0"),
        (lambda: Ball(1, []), "needs at least one column"),
        (lambda: Ball(1, "ab"), "list of names"),
        (lambda: Ball(1, ["a", "a"]), "column 'a' appears twice"),
        (lambda: OneHot("a", ["x"]), "at least 2 categories"),
        (lambda: OneHot("a", []), "at least 2 categories"),
        (lambda: OneHot("a", "xy"), "list"),
        (lambda: OneHot("a", ["x", "x"]), "category 'x' is declared twice"),
        (lambda: OneHot("a", [1, True]), "category True is declared twice"),
        (lambda: OneHot("a", [1, "1"]), "category '1' is declared twice"),
        (lambda: OneHot("a", [1, None]), "neither text, an integer nor a boolean"),
        (lambda: OneHot("a", [0.5, 1.5]), "neither text, an integer nor a boolean"),
        (lambda: OneHot(3, ["x", "y"]), "non-empty text"),
        (lambda: Constant(""), "non-empty text"),
        (lambda: Product(), "needs at least one feature"),
        (lambda: Box(a=(0, 1)) * Box(a=(0, 2)), "column 'a' appears twice"),
        (lambda: Box(a=(0, 1)) * OneHot("a", [0, 1]), "column 'a' appears twice"),
        (lambda: Box(a=(0, 1)) * Constant("a"), "feature 'a' appears twice"),
        (lambda: Box({"a[1]": (0, 1)}) * OneHot("a", [0, 1]), r"feature 'a\[1\]' appears twice"),
        (lambda: Box(a=(0, 1)) * Ball(1), r"Ball\(1.0\) has no columns"),
        (lambda: len(Ball(1)), "has no columns"),
        (lambda: Ball(1).support([]), "has no columns"),
        (lambda: Box(a=(0, 1)) & Ball(1, ["a"]), "without columns"),
        (lambda: Ball(1) & Box(a=(0, 1)), "Ball & Box: only a Box can be cut"),
        (lambda: Box(a=(0, 1)) * Constant() & Ball(1), "Product & Ball"),
        (lambda: Box(a=(0, 1)) & Ball(1e-13), "too small"),
        (lambda: Box.unit(2).support([1.0]), "2 finite numbers"),
        (lambda: Box.unit(2).support([1.0, math.nan]), "2 finite numbers"),
        (lambda: Box.unit(2).extreme([math.inf, 1.0]), "2 finite numbers"),
        (lambda: Box.unit(2).support([1e308, 1e308]), "overflows"),
        (lambda: Box(a=(0, 1)).original([1.0]), r"column 'a' is not centred.*Constant\('intercept'\)"),
        (lambda: Box.unit(2).original([1.0]), "last axis must have length 2"),
        (lambda: Box.unit(1).original(1.0), "last axis must have length 1"),
        (lambda: Box.unit(2).contains(np.ones(2)), "2-D numeric array with 2 columns"),
        (lambda: Box.unit(1).contains([["0"]]), "2-D numeric array"),
        (lambda: Box.unit(1).project(np.ones((1, 1)), np.float16), "float32 or float64"),
        (lambda: OneHot("a", [0, 1]).project(np.ones((1, 1))), "column 'a' holds categories"),
        (lambda: Constant().project({}), "does not say how many rows"),
    ],
)
def test_refusals_are_one_clear_line(build: Callable[[], object], message: str) -> None:
    with refused(message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_a_domain_only_combines_with_domains() -> None:
    for combine in (lambda: Box.unit(1) * 2, lambda: Box.unit(1) & 2):
        with pytest.raises(TypeError, match="unsupported operand"):
            combine()


# ---------------------------------------------------------------- value semantics


@settings(max_examples=100, deadline=None, derandomize=True)
@given(domains())
def test_repr_pickle_and_copy_give_the_domain_back(domain: Domain) -> None:
    for other in (eval(repr(domain)), pickle.loads(pickle.dumps(domain)), copy.deepcopy(domain)):
        assert other == domain
        assert hash(other) == hash(domain)
        assert repr(other) == repr(domain)


def test_domains_are_values() -> None:
    a, b, c = Box(a=(0, 1)), OneHot("b", ["x", "y"]), Constant()
    assert (a * b) * c == a * (b * c) != a * c * b
    assert len({a, Box({"a": [0.0, 1.0]}), Box(a=(0, 2)), b, OneHot("b", ("x", "y")), OneHot("b", ["y", "x"])}) == 4
    assert OneHot("b", [0, 1]) != OneHot("b", [False, True])  # their features are named differently
    assert Box.unit(2) & Ball(1) != Box.unit(2) & Ball(1.5) != Box.unit(2)
    assert (
        repr((Box({"x 1": (0, 1)}) & Ball(2)) * c) == "(Box({'x 1': (0.0, 1.0)}) & Ball(2.0)) * Constant('intercept')"
    )
    assert re.fullmatch(r"Box\(\{'class': .*\}\)", repr(Box({"class": (0, 1)})))
    with pytest.raises(AttributeError):
        a.bounds = ()
