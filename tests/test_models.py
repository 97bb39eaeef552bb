"""Models and loading: what is refused and how, what is projected, what is kept, and energies that break their word."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, poisson

from dpfastmh import losses
from dpfastmh.data.memory import CHUNK
from dpfastmh.domain import Ball, Box, Constant, OneHot
from dpfastmh.methods import (
    Coordinates,
    Directions,
    DPFastMH,
    DPFastMHFull,
    MetropolisHastings,
    RandomWalk,
    TunaMH,
    no_meter,
)
from dpfastmh.models import (
    GLM,
    REGRESSIONS,
    Energy,
    HuberRegression,
    LogisticErrorRegression,
    LogisticRegression,
    Mixture,
    PoissonRegression,
    SoftmaxRegression,
    StudentTRegression,
)
from dpfastmh.priors import Flat, Normal
from dpfastmh.privacy.releases import gradient_sensitivity, hessian_sensitivity
from dpfastmh.steps.reference import integer_sums, no_reference, total_energy

RNG = np.random.default_rng(40)
X = RNG.uniform(-1, 1, (6, 2))
Y = np.array([0, 1, 0, 1, 1, 0])
BOX = Box.unit(2)
LOGISTIC = LogisticRegression(BOX)
COUNTS = PoissonRegression(BOX, cap=5)
NUMBERS = StudentTRegression(BOX)
CLASSES = SoftmaxRegression(BOX, classes=["a", "b", "c"])
MIXTURE = Mixture()
WALK = RandomWalk(0.1)


def spoiled(value: float) -> np.ndarray:
    x = X.copy()
    x[2, 1] = value
    return x


def still(row: np.ndarray, theta: np.ndarray, proposal: np.ndarray) -> float:
    return 0.0


def one(theta: np.ndarray, proposal: np.ndarray) -> float:
    return 1.0


def energy(**options: Any) -> Energy:
    return Energy(["a"], still, one, prior=Normal(1.0), **options)


def refusal(attempt: Callable[[], Any]) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the callers look at the words
        attempt()
    message = str(caught.value)
    assert message.count("\n") == 0
    assert len(message) > 20
    return message


# -- refusals: each ends in ONE line that names the place ------------------------------------------------------------
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    # features
    "NaN": (lambda: LOGISTIC.load(spoiled(np.nan), Y), "row 3 of x"),
    "infinity": (lambda: LOGISTIC.load(spoiled(np.inf), Y), "row 3 of x"),
    "None in a table": (lambda: LOGISTIC.load(np.array([[0.1, None]] * 6, dtype=object), Y), "row 1 of x"),
    "too few columns": (lambda: LOGISTIC.load(X[:, :1], Y), "1 columns: the domain names 2"),
    "three dimensions": (lambda: LOGISTIC.load(X[None], Y), "3 dimensions"),
    "a scalar": (lambda: LOGISTIC.load(3.0, Y), "0 dimensions"),
    "text": (lambda: LOGISTIC.load([["a", "b"]] * 6, Y), "not numeric"),
    "ragged": (lambda: LOGISTIC.load([[1.0, 2.0], [3.0]], Y), "not numeric"),
    "no rows": (lambda: LOGISTIC.load(X[:0], Y[:0]), "0 rows"),
    "one row": (lambda: LOGISTIC.load(X[:1], Y[:1]), "1 row:"),
    "a column missing": (lambda: LOGISTIC.load({"x0": X[:, 0]}, Y), "'x1' is missing"),
    "an unknown category": (
        lambda: LogisticRegression(OneHot("sex", ["F", "M"])).load({"sex": ["F", "M", "X"]}, [0, 1, 0]),
        "column 'sex'",
    ),
    "categories as numbers": (lambda: LogisticRegression(OneHot("s", ["F", "M"])).load(X[:, :1], Y), "'s'"),
    # targets
    "no target": (lambda: LOGISTIC.load(X), "no target"),
    "short target": (lambda: LOGISTIC.load(X, Y[:5]), "y has shape (5,)"),
    "target as a column": (lambda: LOGISTIC.load(X, Y[:, None]), "y has shape (6, 1)"),
    "target as a row": (lambda: LOGISTIC.load(X, Y[None]), "y has shape (1, 6)"),
    "scalar target": (lambda: LOGISTIC.load(X, 1), "y has shape ()"),
    "an undeclared label": (lambda: LOGISTIC.load(X, Y + 1), "row 2"),
    "labels of another type": (lambda: LOGISTIC.load(X, ["0", "1"] * 3), "row 1"),
    "a missing label": (lambda: LOGISTIC.load(X, [0, 1, np.nan, 0, 1, 0]), "row 3"),
    "a missing class": (lambda: CLASSES.load(X, list("abcabd")), "row 6"),
    "a negative count": (lambda: COUNTS.load(X, [1, 2, -1, 0, 0, 0]), "row 3"),
    "a fractional count": (lambda: COUNTS.load(X, [1, 2, 0.5, 0, 0, 0]), "row 3"),
    "an infinite count": (lambda: COUNTS.load(X, [1, 2, np.inf, 0, 0, 0]), "row 3"),
    "counts as text": (lambda: COUNTS.load(X, ["many"] * 6), "not numeric"),
    "a missing number": (lambda: NUMBERS.load(X, [1, 2, None, 4, 5, 6]), "row 3"),
    "an infinite number": (lambda: NUMBERS.load(X, [1, 2, -np.inf, 4, 5, 6]), "row 3"),
    # models
    "no domain": (lambda: LogisticRegression(None), "domain is NoneType"),  # type: ignore[arg-type]
    "a ball without columns": (lambda: LogisticRegression(Ball(1.0)), "no columns"),
    "two intercepts": (lambda: LogisticRegression(Constant("intercept") * BOX), "'intercept' appears twice"),
    "bounds reversed": (lambda: Box(age=(95, 18)), "'age'"),
    "target bounds reversed": (lambda: StudentTRegression(BOX, target_bounds=(2, 1)), "target bounds are (2, 1)"),
    "target bounds NaN": (lambda: StudentTRegression(BOX, target_bounds=(math.nan, 1)), "target bounds"),
    "temperature below 1": (lambda: LogisticRegression(BOX, temperature=0.99), "temperature is 0.99"),
    "temperature NaN": (lambda: LogisticRegression(BOX, temperature=math.nan), "temperature is nan"),
    "temperature infinite": (lambda: Mixture(temperature=math.inf), "temperature is inf"),
    "temperature text": (lambda: LogisticRegression(BOX, temperature="2"), "temperature is '2'"),
    "temperature True": (lambda: LogisticRegression(BOX, temperature=True), "temperature is True"),
    "three classes": (lambda: LogisticRegression(BOX, classes=[0, 1, 2]), "[0, 1, 2]"),
    "one class": (lambda: LogisticRegression(BOX, classes=[1]), "[1]"),
    "a class twice": (lambda: SoftmaxRegression(BOX, classes=["a", "b", "a"]), "['a', 'b', 'a']"),
    "one softmax class": (lambda: SoftmaxRegression(BOX, classes=1), "at least two"),
    "cap 0": (lambda: PoissonRegression(BOX, cap=0), "cap is 0"),
    "cap NaN": (lambda: PoissonRegression(BOX, cap=math.nan), "cap is nan"),
    "df 0": (lambda: StudentTRegression(BOX, df=0), "df is 0"),
    "negative scale": (lambda: HuberRegression(BOX, scale=-1), "scale is -1"),
    "infinite scale": (lambda: LogisticErrorRegression(BOX, scale=math.inf), "scale is inf"),
    "a prior that is none": (lambda: LogisticRegression(BOX, prior=3), "not 3"),  # type: ignore[arg-type]
    "a prior for nothing": (lambda: LogisticRegression(BOX, prior={"zz": Flat(), "default": Flat()}), "'zz'"),
    "per_record of a GLM": (lambda: LOGISTIC.load(X, Y, per_record="alias"), "per_record is 'alias'"),
    "mixture target": (lambda: MIXTURE.load(X[:, 0], Y), "no target"),
    "mixture columns": (lambda: MIXTURE.load(X), "2 columns"),
    "mixture NaN": (lambda: MIXTURE.load([0.0, np.nan]), "row 2 of x"),
    "mixture bound": (lambda: Mixture(bound="blunt"), "'blunt'"),
    "mixture variance": (lambda: Mixture(variance=0), "variance is 0"),
    "mixture half width": (lambda: Mixture(half_width=-1), "half_width is -1"),
    "mixture per_record": (lambda: MIXTURE.load([1.0, 2.0], per_record="sorted"), "'sorted'"),
    "energy without parameters": (lambda: Energy([], still, one, prior=Flat()), "parameters is empty"),
    "energy parameter twice": (lambda: Energy(["a", "a"], still, one, prior=Flat()), "'a' appears twice"),
    "energy per_record": (lambda: energy().load(X, per_record="thinned"), "no record_bound"),
    "record bound 0": (
        lambda: energy(record_bound=lambda rows: np.zeros(len(rows))).load(X, per_record="thinned"),
        "above 0",
    ),
    "record bound NaN": (
        lambda: energy(record_bound=lambda rows: np.full(len(rows), np.nan)).load(X, per_record="alias"),
        "above 0",
    ),
    "record bound above 1": (
        lambda: energy(record_bound=lambda rows: np.full(len(rows), 1.01)).load(X, per_record="alias"),
        "public maximum",
    ),
    "energy projects to NaN": (lambda: energy(project=lambda rows: rows * np.nan).load(X), "row 1 of x"),
    "energy target NaN": (lambda: energy().load(X, [1, 2, 3, 4, 5, np.nan]), "row 6 of x"),
    # methods
    "two scales for three": (lambda: TunaMH(RandomWalk([1, 2.0]), lam=1).on(LOGISTIC, X, Y), "(2,)"),
    "scale NaN": (lambda: MetropolisHastings(RandomWalk(math.nan)).on(LOGISTIC, X, Y), "scale"),
    "scale negative": (lambda: MetropolisHastings(Coordinates(-1.0)).on(LOGISTIC, X, Y), "scale"),
    "scale 0": (lambda: MetropolisHastings(RandomWalk(0.0)).on(LOGISTIC, X, Y), "scale"),
    "basis of another size": (lambda: TunaMH(RandomWalk(1.0, np.eye(2)), lam=1).on(LOGISTIC, X, Y), "(2, 2)"),
    "no directions": (lambda: TunaMH(Directions(np.zeros((0, 3))), lam=1).on(LOGISTIC, X, Y), "(0, 3)"),
    "direction NaN": (lambda: TunaMH(Directions(np.full((1, 3), np.nan)), lam=1).on(LOGISTIC, X, Y), "finite"),
    "TunaMH without λ": (lambda: TunaMH(WALK), "lam or chi"),
    "TunaMH with both": (lambda: TunaMH(WALK, lam=1, chi=1), "lam or chi"),
    "λ negative": (lambda: TunaMH(WALK, lam=-1), "lam=-1"),
    "χ NaN": (lambda: TunaMH(WALK, chi=math.nan), "chi=nan"),
    "laziness 0": (lambda: DPFastMH(WALK, laziness=0), "laziness is 0"),
    "laziness NaN": (lambda: DPFastMH(WALK, laziness=math.nan), "laziness is nan"),
    "laziness above 1": (lambda: DPFastMHFull(WALK, laziness=1.1), "laziness is 1.1"),
    "acceptance": (lambda: DPFastMH(WALK, acceptance="always"), "'always'"),
    "variance 0": (lambda: MetropolisHastings(WALK, acceptance="penalty", variance=0), "variance is 0"),
    "ratio above √2": (lambda: DPFastMH(WALK, ratio=1.5), "ratio is 1.5"),
    "ratio NaN": (lambda: DPFastMH(WALK, ratio=math.nan), "ratio is nan"),
    "order 3": (lambda: DPFastMH(WALK).on(LOGISTIC, X, Y, reference=np.zeros(3), order=3), "order is 3"),
    "short reference": (lambda: DPFastMH(WALK).on(LOGISTIC, X, Y, reference=np.zeros(2)), "2 numbers"),
    "reference NaN": (lambda: DPFastMH(WALK).on(LOGISTIC, X, Y, reference=[0, 0, np.nan]), "finite"),
    "no expansion": (lambda: DPFastMH(WALK).on(MIXTURE, X[:, 0], reference=np.zeros(2)), "Mixture"),
    "no expansion of an energy": (lambda: DPFastMH(WALK).on(energy(), X, reference=np.zeros(1)), "Energy"),
    "short position": (lambda: TunaMH(WALK, lam=1).on(LOGISTIC, X, Y, seed=1).init([0.0, 0.0]), "2 numbers"),
    "position NaN": (lambda: TunaMH(WALK, lam=1).on(LOGISTIC, X, Y, seed=1).init([0, 0, np.nan]), "finite"),
    "outside the parameter box": (lambda: TunaMH(WALK, lam=1).on(MIXTURE, X[:, 0], seed=1).init([0, 3.1]), "box"),
    "box reversed": (lambda: TunaMH(WALK, lam=1).on(energy(parameter_box=([1.0], [0.0])), X), "parameter box"),
    "box NaN": (lambda: TunaMH(WALK, lam=1).on(energy(parameter_box=([np.nan], [0.0])), X), "parameter box"),
    "box of another size": (lambda: TunaMH(WALK, lam=1).on(energy(parameter_box=([0, 0], [1, 1])), X), "parameter box"),
    # losses and options that do not belong together
    "two-class loss, three classes": (lambda: GLM(losses.Logistic(), BOX, classes=[0, 1, 2]), "the loss has 2"),
    "softmax of three, two classes": (lambda: GLM(losses.Softmax(3), BOX, classes=["a", "b"]), "the loss has 3"),
    "a bare loss with df below 0": (lambda: GLM(losses.StudentT(-1.0, 1.0), BOX), "df is -1"),
    "a bare loss with cap NaN": (lambda: GLM(losses.Poisson(math.nan), BOX), "cap is nan"),
    "a bare loss with scale 0": (lambda: GLM(losses.PseudoHuber(0.0), BOX), "scale is 0"),
    "a bare softmax of one": (lambda: GLM(losses.Softmax(1), BOX), "classes are 1"),
    "a loss that is a name": (lambda: GLM("logistic", BOX), "loss is 'logistic'"),
    "a scale that overflows": (lambda: StudentTRegression(BOX, scale=1e-200), "scale is 1e-200"),
    "target bounds, one number": (lambda: StudentTRegression(BOX, target_bounds=3), "target bounds are 3"),  # type: ignore[arg-type]
    "target bounds of classes": (lambda: LogisticRegression(BOX, target_bounds=(0, 1)), "leave them out"),
    "target bounds of counts": (lambda: PoissonRegression(BOX, cap=5, target_bounds=(0, 1)), "leave them out"),
    "classes of a number": (lambda: StudentTRegression(BOX, classes=[0, 1]), "leave them out"),
    "classes that are a number": (lambda: LogisticRegression(BOX, classes=2), "classes are 2"),  # type: ignore[arg-type]
    "classes that are a text": (lambda: SoftmaxRegression(BOX, classes="ab"), "classes are 'ab'"),
    "classes beyond comparison": (lambda: LogisticRegression(BOX, classes=[[0], [1]]), "class [0]"),
    "a class that is NaN": (lambda: LogisticRegression(BOX, classes=[math.nan, 1]), "class nan"),
    # tables that are not what they seem
    "a mapping without rows": (lambda: LOGISTIC.load({"x0": [], "x1": []}, []), "0 rows"),
    "a mapping with one row": (lambda: LOGISTIC.load({"x0": [0.1], "x1": [0.1]}, [1]), "1 row:"),
    "masked features": (lambda: LOGISTIC.load(np.ma.masked_array(X, mask=X > 0.5), Y), "x has masked cells"),
    "masked targets": (lambda: LOGISTIC.load(X, np.ma.masked_array(Y, mask=Y > 0)), "y has masked cells"),
    "dates": (lambda: LOGISTIC.load(np.full((6, 2), "2020-01-01", dtype="datetime64[D]"), Y), "not numeric"),
    "complex features": (lambda: LOGISTIC.load(X + 1j, Y), "not numeric"),
    "numbers beyond float64": (lambda: LOGISTIC.load([[10**400, 1]] * 6, Y), "beyond the range of float64"),
    "counts beyond float32": (
        lambda: PoissonRegression(BOX, cap=1e40).load(X.astype(np.float32), np.full(6, 1e39)),
        "y in row 1",
    ),
    "a projection that drops rows": (lambda: energy(project=lambda rows: rows[:3]).load(X), "3 rows of 6"),
    "an energy's short target": (lambda: energy().load(X, [1, 2]), "y has shape (2,)"),
    "record bounds of another length": (
        lambda: energy(record_bound=lambda rows: np.ones(2)).load(X, per_record="alias"),
        "shape (2,)",
    ),
    # pieces of different samplers
    "rows of another model": (
        lambda: TunaMH(WALK, lam=1).on(LogisticRegression(Box.unit(3)), LOGISTIC.load(X, Y), seed=1),
        "another model",
    ),
    "rows of more classes": (
        lambda: TunaMH(WALK, lam=1).on(LOGISTIC, CLASSES.load(X, list("abcabc")), seed=1),
        "2 classes",
    ),
    "rows of the mixture's": (lambda: TunaMH(WALK, lam=1).on(MIXTURE, LOGISTIC.load(X, Y), seed=1), "another model"),
    "rows and a target": (lambda: TunaMH(WALK, lam=1).on(LOGISTIC, LOGISTIC.load(X, Y), Y), "loaded already"),
    "a state of another sampler": (
        lambda: (
            TunaMH(WALK, lam=1)
            .on(LOGISTIC, X, Y, seed=1)
            .run(TunaMH(WALK, lam=1).on(MIXTURE, X[:, 0], seed=1).init(np.zeros(2)), 0)
        ),
        "another sampler",
    ),
    "a reference for another model": (
        lambda: TunaMH(WALK, lam=1).on(LOGISTIC, X, Y, reference=no_reference(2)),
        "another model or proposal",
    ),
    "half a step": (lambda: (lambda s: s.run(s.init([0, 0, 0]), 0.5))(TunaMH(WALK, lam=1).on(LOGISTIC, X, Y)), "0.5"),
    "a number for a proposal": (lambda: TunaMH(0.1, lam=1), "proposal is 0.1"),  # type: ignore[arg-type]
    "laziness as text": (lambda: DPFastMH(WALK, laziness="half"), "laziness is 'half'"),  # type: ignore[arg-type]
    "χ as text": (lambda: TunaMH(WALK, chi="1"), "chi='1'"),  # type: ignore[arg-type]
    "thrift NaN": (lambda: DPFastMH(WALK, thrift=math.nan), "thrift is nan"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_one_line_that_names_the_place(case: str) -> None:
    attempt, words = REFUSED[case]
    assert words in refusal(attempt)


# -- what is kept and what is projected ------------------------------------------------------------------------------
def test_float32_is_kept_and_everything_else_becomes_float64() -> None:
    for kind, kept in ((np.float32, np.float32), (np.float64, np.float64), (np.int16, np.float64), (bool, np.float64)):
        rows = LOGISTIC.load((X > 0).astype(kind), Y)
        assert rows.x.dtype == kept
        assert rows.y.dtype == kept


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_rows_already_in_the_domain_are_not_copied(kind: type) -> None:
    model = LogisticRegression(BOX, intercept=False)
    inside = X.astype(kind)
    assert np.shares_memory(model.load(inside, Y).x, inside)
    outside = 2 * inside
    rows = model.load(outside, Y)
    assert not np.shares_memory(rows.x, outside)
    assert (outside == 2 * inside).all()
    assert (rows.x == np.clip(outside, -1, 1)).all()


def test_overwrite_projects_in_place() -> None:
    model, outside = LogisticRegression(BOX, intercept=False), 2 * X
    rows = model.load(outside, Y, overwrite=True)
    assert rows.x is outside
    assert (outside == np.clip(2 * X, -1, 1)).all()
    records = np.array([[5.0], [-4.0], [1.0]])
    held = MIXTURE.load(records, overwrite=True)
    assert held.x is records
    assert (records.ravel() == [3.0, -3.0, 1.0]).all()
    untouched = np.array([5.0, 1.0])
    assert (MIXTURE.load(untouched).x.ravel() == [3.0, 1.0]).all()
    assert (untouched == [5.0, 1.0]).all()


def test_every_row_lands_on_the_domain_however_far_out_it_is() -> None:
    wild = RNG.standard_cauchy((500, 2)) * 10.0 ** RNG.uniform(-3, 6, (500, 2))
    for domain in (BOX, Ball(2.0, ["a", "b"]), BOX & Ball(0.7), Box(a=(0, 1), b=(-9, 4))):
        for kind in (np.float32, np.float64):
            rows = LogisticRegression(domain, intercept=False).load(wild.astype(kind), RNG.integers(0, 2, 500))
            assert domain.contains(rows.x).all()


def test_counts_above_the_cap_are_capped_and_numbers_held_to_their_bounds() -> None:
    assert COUNTS.load(X, [1, 2, 7, 0, 5, 1e9]).y.tolist() == [1, 2, 5, 0, 5, 5]
    bounded = StudentTRegression(BOX, target_bounds=(-1, 2))
    assert bounded.load(X, [-5, -1, 0, 1, 2, 9]).y.tolist() == [-1, -1, 0, 1, 2, 2]
    wild = StudentTRegression(BOX, scale=2.0)
    assert wild.load(X, [0, 5e4, 1e6, -1e39, 1e60, 1]).y.tolist() == [0, 5e4, 2.0**17, -(2.0**17), 2.0**17, 1]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("build", [StudentTRegression, HuberRegression, LogisticErrorRegression])
def test_a_target_however_far_out_moves_the_sums_no_further_than_their_sensitivity(
    build: Callable[..., Any], kind: type
) -> None:
    model = build(Box.unit(1), intercept=False)
    slope, curvature, _ = model.loss.constants
    x, point = np.ones((2, 1), kind), np.zeros(1)
    before = integer_sums(model, model.load(x, np.zeros(2)), point)
    for far in (1e10, 1e39, 1e160, -1e300):
        after = integer_sums(model, model.load(x, np.array([0.0, far])), point)
        assert abs(float(after[0][0] - before[0][0])) * after[2] <= gradient_sensitivity(slope, 1.0)
        assert abs(float(after[1][0, 0] - before[1][0, 0])) * after[3] <= hessian_sensitivity(
            curvature, 1.0, convex=model.loss.convex
        )


def test_classes_are_numbered_as_declared_whatever_the_data_hold() -> None:
    assert CLASSES.load(X, list("cabbac")).y.tolist() == [2, 0, 1, 1, 0, 2]
    assert LogisticRegression(BOX, classes=["yes", "no"]).load(X, ["yes"] * 6).y.tolist() == [0] * 6
    assert LOGISTIC.load(X, Y == 1).y.tolist() == Y.tolist()
    assert CLASSES.parameters == ("intercept[b]", "x0[b]", "x1[b]", "intercept[c]", "x0[c]", "x1[c]")


def test_a_cap_that_float32_rounds_up_is_not_passed() -> None:
    counts = PoissonRegression(BOX, cap=16_777_219)
    assert counts.load(X.astype(np.float32), [1e9] * 6).y.max() <= 16_777_219


def test_long_targets_are_read_in_parts_and_bad_ones_named_by_their_row() -> None:
    count = 2 * CHUNK + 5
    x, y = np.zeros((count, 2), np.float32), RNG.integers(0, 2, count)
    assert (LOGISTIC.load(x, y).y == y).all()
    y[CHUNK + 6] = 3
    assert f"row {CHUNK + 7}" in refusal(lambda: LOGISTIC.load(x, y))
    numbers = np.zeros(count)
    numbers[CHUNK] = np.nan
    assert f"row {CHUNK + 1}" in refusal(lambda: NUMBERS.load(x, numbers))


def test_mappings_and_matrices_give_the_same_rows() -> None:
    named = LOGISTIC.load({"x1": X[:, 1], "extra": X[:, 0], "x0": X[:, 0]}, Y)
    plain = LOGISTIC.load(X, Y)
    assert (named.x == plain.x).all()
    assert (plain.x[:, 0] == 1).all()


def test_default_priors_and_names() -> None:
    assert LOGISTIC.parameters == ("intercept", "x0", "x1")
    assert LOGISTIC.prior_table.scale.tolist() == [5.0, 2.5, 2.5]
    assert CLASSES.prior_table.scale.tolist() == [5.0, 2.5, 2.5] * 2
    assert LogisticRegression(BOX, Normal(1.0)).prior_table.scale.tolist() == [1.0] * 3
    assert set(REGRESSIONS) == {"logistic", "student-t", "huber", "logistic-error", "poisson", "softmax"}


def test_per_record_shares_of_the_mixture_are_the_records_constants() -> None:
    x = np.array([0.0, 1.5, -3.0, 8.0])
    for bound in ("paper", "lipschitz"):
        model = Mixture(bound=bound)
        for how in ("thinned", "alias"):
            share = model.load(x, per_record=how).share
            assert share == pytest.approx(model.constant(np.minimum(np.abs(x), 3)) / model.constant(3.0))
    assert MIXTURE.load(x).share.size == 0
    assert MIXTURE.load(x, per_record="thinned").alias.size == 0
    assert MIXTURE.load(x, per_record="alias").alias.size == 4


# -- energies that break their word -----------------------------------------------------------------------------------
HONEST, NOT_A_NUMBER, RISING, FALLING, TOO_LARGE, AT_BOUND, AT_MINUS_BOUND = range(7)


def unruly(row: np.ndarray, theta: np.ndarray, proposal: np.ndarray) -> float:
    """row[0] says what this record does with its bound of ½."""
    kind = row[0]
    if kind == NOT_A_NUMBER:
        return math.nan
    if kind == RISING:
        return math.inf
    if kind == FALLING:
        return -math.inf
    if kind == TOO_LARGE:
        return 7.0
    if kind == AT_BOUND:
        return 0.5
    if kind == AT_MINUS_BOUND:
        return -0.5
    return 0.0


def half(theta: np.ndarray, proposal: np.ndarray) -> float:
    """The public bound; without the right to say no where the move is longer than 50, where it is NaN."""
    return 0.5 if abs(proposal[0] - theta[0]) < 50.0 else math.nan


@pytest.fixture(scope="module")
def unruly_model() -> Energy:
    return Energy(["a"], unruly, half, prior=Flat())


def kinds(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=float)[:, None]


METHODS = {
    "full": DPFastMHFull(RandomWalk(1.0)),
    "minibatch": DPFastMH(RandomWalk(1.0), full_batch=False),
    "tuna": TunaMH(RandomWalk(1.0), lam=3.0),
    "metropolis": MetropolisHastings(RandomWalk(1.0)),
}


@pytest.mark.parametrize("method", METHODS)
def test_differences_beyond_the_bound_are_held_to_it(unruly_model: Energy, method: str) -> None:
    """The same draws, bit for bit, as from records that stay at their bound; NaN counts as plus the bound."""
    draws = []
    for numbers in (
        (NOT_A_NUMBER, RISING, FALLING, TOO_LARGE, HONEST),
        (AT_BOUND, AT_BOUND, AT_MINUS_BOUND, AT_BOUND, HONEST),
        (AT_BOUND, AT_BOUND, AT_BOUND, AT_BOUND, HONEST),
    ):
        sampler = METHODS[method].on(unruly_model, kinds(*numbers), seed=3)
        draws.append(sampler.run(sampler.init([0.0]), 400)[1])
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()


def acceptance_law(changes: list[float], bound: float, ratio: float) -> float:
    """E 1/(1 + e^−ℓ), ℓ = Σ s_i log((2r + b − dU_i)/(2r + b + dU_i)), s_i ~ Poisson(r + (dU_i + b)/2), r = b/x, summed
    over all counts up to 40."""
    rate = bound / ratio
    values, weights = np.zeros(1), np.ones(1)
    counts = np.arange(41)
    for change in changes:
        law = poisson.pmf(counts, rate + (change + bound) / 2)
        step = counts * math.log((2 * rate + bound - change) / (2 * rate + bound + change))
        values, weights = np.add.outer(values, step).ravel(), np.multiply.outer(weights, law).ravel()
    return float((weights / (1 + np.exp(-values))).sum())


def accepted(method: Any, model: Energy, numbers: tuple[int, ...], steps: int) -> int:
    sampler = method.on(model, kinds(*numbers), seed=5)
    return int(sampler.run(sampler.init([0.0]), steps)[2].accepted)


def test_acceptance_follows_the_law_of_the_held_differences_and_stays_within_its_privacy(unruly_model: Energy) -> None:
    """Neighbours at the worst: a record that yields NaN against one that yields −∞. Both outcomes within e^ε."""
    steps, bound = 200_000, 0.5
    for ratio in (None, 1.0, math.sqrt(2.0)):
        method = DPFastMHFull(RandomWalk(1.0)) if ratio is None else DPFastMH(WALK, full_batch=False, ratio=ratio)
        laws = []
        for last, change in ((NOT_A_NUMBER, bound), (FALLING, -bound)):
            changes = [bound, change]
            law = 1 / (1 + math.exp(sum(changes))) if ratio is None else acceptance_law(changes, bound, ratio)
            found = accepted(method, unruly_model, (AT_BOUND, last), steps)
            tail = min(binom.cdf(found, steps, law), binom.sf(found - 1, steps, law))
            assert tail > 1e-6, f"accepted {found / steps:.4f} of steps, the law says {law:.4f}"
            laws.append(law)
        epsilon = 2 * bound if ratio is None else bound * ((1 + ratio) + 1 / (1 + ratio))
        assert abs(math.log(laws[0] / laws[1])) <= epsilon
        assert abs(math.log((1 - laws[0]) / (1 - laws[1]))) <= epsilon


def test_an_unheld_difference_would_be_caught(unruly_model: Energy) -> None:
    """Control: were 7 not held to ½, acceptance beside one record at its bound would fall from .27 to 5e-4."""
    found = accepted(DPFastMHFull(RandomWalk(1.0)), unruly_model, (AT_BOUND, TOO_LARGE), 20_000)
    assert binom.cdf(found, 20_000, 1 / (1 + math.exp(1.0))) > 1e-6
    assert binom.sf(found - 1, 20_000, 1 / (1 + math.exp(7.5))) < 1e-100


def test_moves_whose_bound_is_not_a_number_are_never_made(unruly_model: Energy) -> None:
    for method in (DPFastMHFull(RandomWalk(1000.0)), DPFastMH(RandomWalk(1000.0), full_batch=False)):
        sampler = method.on(unruly_model, kinds(HONEST, HONEST), seed=6)
        _, draws, info = sampler.run(sampler.init([0.0]), 3000)
        assert np.abs(np.diff(draws[:, 0], prepend=0.0)).max() < 50.0
        assert 0 < info.evaluated < 300


def right(row: np.ndarray, theta: np.ndarray, proposal: np.ndarray) -> float:
    return row[0] * (proposal[0] - theta[0])


def left(row: np.ndarray, theta: np.ndarray, proposal: np.ndarray) -> float:
    return -row[0] * (proposal[0] - theta[0])


def slope_one(theta: np.ndarray, proposal: np.ndarray) -> float:
    return abs(proposal[0] - theta[0])


@pytest.fixture(scope="module")
def to_either_side() -> list[Energy]:
    return [Energy(["a"], difference, slope_one, prior=Normal(1.0)) for difference in (right, left)]


def test_moves_beyond_the_meters_reach_are_never_made_and_do_not_stop_the_chain(to_either_side: list[Energy]) -> None:
    sampler = DPFastMHFull(RandomWalk(0.3)).on(
        to_either_side[0], np.zeros((2, 1)), seed=8, meter=no_meter()._replace(reach=0.1)
    )
    _, draws, info = sampler.run(sampler.init([0.0]), 2_000)
    assert info.steps == 2_000
    assert 0.05 < np.abs(np.diff(draws[:, 0])).max() <= 0.1
    assert 300 < info.evaluated < 800  # P(|z| ≤ 1/3) = .26


def test_two_energies_in_one_process_keep_their_own_code(to_either_side: list[Energy]) -> None:
    """Compiled one after the other, run in turn: U = xθ and U = −xθ, under a normal prior, have means −Σx and Σx."""
    x = np.full((4, 1), 0.5)
    for method in (DPFastMH(RandomWalk(2.0), full_batch=False), MetropolisHastings(RandomWalk(2.0))):
        means = []
        for model in (*to_either_side, to_either_side[0]):
            sampler = method.on(model, x, seed=8)
            means.append(float(sampler.run(sampler.init([0.0]), 20_000)[1].mean()))
        assert means == pytest.approx([-2.0, 2.0, -2.0], abs=0.2)


STEEP = 250.0


def cliff(row: np.ndarray, theta: np.ndarray, proposal: np.ndarray) -> float:
    return STEEP * (abs(proposal[0]) - abs(theta[0]))


def cliff_bound(theta: np.ndarray, proposal: np.ndarray) -> float:
    return STEEP * abs(proposal[0] - theta[0])


@pytest.fixture(scope="module")
def cliffs() -> Energy:
    return Energy(["a"], cliff, cliff_bound, prior=Flat())


@pytest.mark.parametrize("method", [TunaMH(WALK, lam=100), DPFastMH(WALK, full_batch=False), MetropolisHastings(WALK)])
def test_log_ratios_of_any_size_are_judged_rightly(cliffs: Energy, method: Any) -> None:
    """Moves that cost 10⁴ to 10⁶ nats: sums in cells of 2⁻⁴⁸ would wrap at 32,768 and let every second one pass."""
    sampler = method.on(cliffs, np.zeros((20_000, 1)), seed=9)
    sampler.proposal = sampler.proposal._replace(scale=np.array([0.1]))
    _, draws, info = sampler.run(sampler.init([0.0]), 200)
    assert info.evaluated == 200
    assert np.abs(draws).max() < 1e-4


@pytest.mark.parametrize("build", [HuberRegression, LogisticErrorRegression, StudentTRegression])
@pytest.mark.parametrize("outlier", [1e9, 1e17, 1e45])
def test_full_batches_bound_what_a_far_outlier_does(build: Any, outlier: float) -> None:
    """The energies' difference, as summed, never exceeds the public bound: subtracting energies as large as the
    residual would be off by its rounding."""
    model = build(BOX, intercept=False)
    source = np.random.default_rng(12)
    for sign in (1.0, -1.0):
        rows = model.load(np.array([[1.0, 0.3], [-1.0, 0.7]]), np.array([sign * outlier, 0.3]))
        single = rows._replace(x=rows.x[:1], y=rows.y[:1])
        for _ in range(20):
            theta, move = source.normal(0, 2, 2), source.normal(0, 0.1, 2)
            change = (total_energy(model, single, theta + move) - total_energy(model, single, theta)) * 2.0**-32
            bound = model.loss.constants[0] * model.domain.support(move)
            assert abs(change) <= bound + 1e-9
            if not isinstance(model.loss, losses.StudentT):  # so far out the slope of the others is the bound's
                assert abs(change) == pytest.approx(model.loss.constants[0] * abs(single.x[0] @ move), abs=2e-9)


def test_a_parameter_box_holds_the_chain() -> None:
    sampler = TunaMH(RandomWalk(2.0), lam=50).on(MIXTURE, RNG.normal(0, 1, 500), seed=7)
    _, draws, info = sampler.run(sampler.init([0.0, 0.0]), 5000)
    assert np.abs(draws).max() <= 3.0
    assert info.accepted > 100
    assert info.evaluated < 5000
