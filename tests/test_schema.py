"""A schema is the public knowledge that everything rests on: every mistake in one is one line that says where it is and
what to do, and whatever is accepted makes a model."""

import datetime as dt
import json
import math
import random
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfastmh import losses
from dpfastmh.commands.schema import draft
from dpfastmh.data.tables import open_table
from dpfastmh.models import REGRESSIONS
from dpfastmh.schema import OWN_KEYS, TARGETS, Column, Schema, SchemaError, toml_key

GOOD = """
model = "logistic"
target = "readmitted"
unit = "patient"
max_rows_per_unit = 3
prior_scale = 2.0
[columns.age]
bounds = [18, 95]
missing = 50
[columns.sex]
categories = ["F", "M", "other"]
[columns.dose]
bounds = [0.0, 10.0]
[columns.readmitted]
categories = [0, 1]
"""


def mapping(model: str = "logistic", **more: Any) -> dict[str, Any]:
    targets: dict[str, dict[str, Any]] = {
        "classes": {"y": {"categories": ["no", "yes"]}},
        "bounds": {"y": {"bounds": [0, 5]}},
        "counts": {},
    }
    own = {"cap": 9} if model == "poisson" else {}
    columns = {"a": {"bounds": [0, 1]}, "b": {"categories": ["u", "v"]}} | targets[TARGETS[model]]
    return {"model": model, "target": "y", "columns": columns} | own | more


def changed(column: str, section: Any, model: str = "logistic", **more: Any) -> dict[str, Any]:
    given = mapping(model, **more)
    given["columns"] = given["columns"] | {column: section}
    return given


# ---------------------------------------------------------------- what a good one makes


def test_a_file_becomes_the_domain_and_the_model_that_it_declares(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(GOOD)
    schema = Schema.load(path)
    assert schema.columns == ("age", "sex", "dose", "readmitted", "patient")
    assert repr(schema.domain) == "Box(age=(18.0, 95.0)) * OneHot('sex', ['F', 'M', 'other']) * Box(dose=(0.0, 10.0))"
    assert schema.missing == {"age": 50}
    assert (schema.unit, schema.max_rows_per_unit, schema.target) == ("patient", 3, "readmitted")
    model = schema.build(temperature=3.0)
    assert model.parameters == ("intercept", "age", "sex[M]", "sex[other]", "dose")
    assert model.temperature == 3.0
    assert model.prior_table.scale.tolist() == [5.0, 2.0, 2.0, 2.0, 2.0]
    assert model.targets(np.array([1, 0])).tolist() == [1, 0]
    assert Schema.from_mapping(tomllib.loads(GOOD), str(path)) == schema


def test_every_model_of_the_library_can_be_declared() -> None:
    assert set(TARGETS) == set(REGRESSIONS)
    assert {name for names in OWN_KEYS.values() for name in names} <= set(REGRESSIONS)
    for name in REGRESSIONS:
        model = Schema.from_mapping(mapping(name)).build()
        assert model.parameters[0].startswith("intercept")


def test_the_keys_of_the_losses_reach_them() -> None:
    assert Schema.from_mapping(mapping("student-t", scale=2.0, df=7.0)).build().loss == losses.StudentT(7.0, 2.0)
    assert Schema.from_mapping(mapping("huber", scale=2.0)).build().loss == losses.PseudoHuber(2.0)
    assert Schema.from_mapping(mapping("logistic-error", scale=3)).build().loss == losses.LogisticError(3.0)
    model = Schema.from_mapping(mapping("poisson", cap=7)).build()
    assert model.targets(np.array([3, 20])).tolist() == [3, 7]
    assert Schema.from_mapping(mapping("huber")).build().target_bounds == (0.0, 5.0)


def test_softmax_has_a_block_of_coefficients_and_priors_for_every_class_but_the_first() -> None:
    given = changed("y", {"categories": ["low", "middle", "high"]}, "softmax", intercept_scale=4.0, prior_scale=1.5)
    model = Schema.from_mapping(given).build()
    assert model.parameters == tuple(
        f"{name}[{label}]" for label in ("middle", "high") for name in model.domain.features
    )
    assert model.prior_table.scale.tolist() == [4.0, 1.5, 1.5] * 2
    given["intercept"] = False
    del given["intercept_scale"]
    model = Schema.from_mapping(given).build()
    assert "intercept" not in model.domain.features
    assert model.prior_table.scale.tolist() == [1.5, 1.5] * 2


def test_a_column_may_be_called_default_or_need_quotes() -> None:
    given = mapping()
    given["columns"] = {"default": {"bounds": [0, 1]}, 'a "b"\n': {"bounds": [0, 1]}} | given["columns"]
    assert Schema.from_mapping(given).build().parameters[1:3] == ("default", 'a "b"\n')
    for name in ("age", "a b", 'q"\\', "tab\t", "é", "", "\x7f", "a.b"):
        assert tomllib.loads(f"{toml_key(name)} = 1") == {name: 1}


def test_a_byte_order_mark_and_windows_line_ends_are_let_be(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert Schema.load(path).target == "readmitted"


# ---------------------------------------------------------------- mistakes

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": (mapping(targett="y"), r"unknown key 'targett' \(did you mean 'target'\?\)"),
    "unknown column key": (changed("a", {"bound": [0, 1]}), r"column 'a', 'bound' \(did you mean 'bounds'\?\)"),
    "no model": ({"target": "y"}, "key 'model' is missing: it is one of logistic"),
    "blank model": (mapping() | {"model": ""}, "fill in the model"),
    "unknown model": (mapping() | {"model": "logistics"}, r"'logistics' is unknown \(did you mean 'logistic'\?\)"),
    "model no text": (mapping() | {"model": 3}, "key 'model' is 3"),
    "no target": ({"model": "logistic", "columns": {}}, "key 'target' is missing"),
    "blank target": (mapping(target=""), "fill in the target"),
    "undeclared target": (mapping(target="yy"), r"'yy' is not declared \(did you mean 'y'\?\): add \[columns.yy\]"),
    "blank bounds": (changed("a", {"bounds": []}), "fill in the bounds of column 'a' from public knowledge"),
    "blank categories": (changed("b", {"categories": []}), "fill in the categories of column 'b'"),
    "reversed": (changed("a", {"bounds": [2, 1]}), r"column 'a': bounds = \[2, 1\] are reversed"),
    "infinite": (changed("a", {"bounds": [0, math.inf]}), "column 'a'.* not finite"),
    "nan": (changed("a", {"bounds": [0, math.nan]}), "column 'a'.* not numbers"),
    "equal": (changed("a", {"bounds": [1, 1.0]}), "column 'a'.* equal"),
    "one bound": (changed("a", {"bounds": [1]}), "column 'a'.* give two numbers"),
    "bounds no list": (changed("a", {"bounds": 4}), "column 'a': bounds = 4: give two numbers"),
    "text bounds": (changed("a", {"bounds": ["0", "1"]}), "column 'a'.* not numbers"),
    "boolean bounds": (changed("a", {"bounds": [False, True]}), "column 'a'.* not numbers"),
    "too narrow": (changed("a", {"bounds": [0, 5e-324]}), "column 'a': bounds must be finite"),
    "huge": (changed("a", {"bounds": [0, 10**400]}), "column 'a'.* not finite"),
    "both": (changed("a", {"bounds": [0, 1], "categories": [0, 1]}), "column 'a' has both"),
    "neither": (changed("a", {"missing": 1}), "column 'a' has neither"),
    "no section": (changed("a", [0, 1]), r"column 'a' is \[0, 1\]: write a section \[columns.a\]"),
    "columns no section": (mapping() | {"columns": 3}, r"must hold sections \[columns.NAME\]"),
    "one category": (changed("b", {"categories": ["u"]}), "column 'b': one category"),
    "twice": (changed("b", {"categories": ["u", "v", "u"]}), "category 'u' is declared twice"),
    "categories no list": (changed("b", {"categories": "uv"}), "column 'b': categories = 'uv': give a list"),
    "mixed": (changed("b", {"categories": ["1", 2]}), "column 'b': categories of more than one kind"),
    "floats": (changed("b", {"categories": [0.5, 1.5]}), "column 'b': categories must be texts"),
    "NUL": (changed("b", {"categories": ["u", "v\0"]}), "column 'b'.* NUL"),
    "65 bits": (changed("b", {"categories": [0, 2**63]}), "column 'b'.* 64 bits"),
    "one class": (changed("y", {"categories": ["yes"]}), "column 'y': one category|'y'.* has one category: give two"),
    "three classes": (changed("y", {"categories": [1, 2, 3]}), "'y'.* has 3 categories: give two"),
    "softmax of one": (changed("y", {"categories": [1]}, "softmax"), "column 'y': one category"),
    "target as feature": (changed("y", {"bounds": [0, 1]}), "'y' is the target.* bounds do nothing.* no feature"),
    "classes of numbers": (changed("y", {"categories": [0, 1]}, "huber"), "'y' is the target.* categories do nothing"),
    "target without": (changed("y", {}), "'y', the target of model 'logistic', has no categories"),
    "bounded without": (changed("y", {}, "huber"), "'y', the target of model 'huber', has no bounds"),
    "bounds of counts": (
        changed("y", {"bounds": [0, 9]}, "poisson"),
        "'y' is the target.* its cap.* bounds do nothing",
    ),
    "unit declared": (mapping(unit="a"), r"column 'a' is the unit.* remove \[columns.a\]"),
    "unit is target": (mapping(unit="y"), "column 'y' is both unit and target"),
    "blank unit": (mapping(unit=""), "fill in the unit"),
    "rows without unit": (mapping(max_rows_per_unit=2), "'max_rows_per_unit' does nothing without 'unit'"),
    "no rows": (mapping(unit="u", max_rows_per_unit=0), "'max_rows_per_unit' is 0: it must be a whole number"),
    "half rows": (mapping(unit="u", max_rows_per_unit=1.5), "'max_rows_per_unit' is 1.5"),
    "scale of logistic": (mapping(scale=2.0), "'scale' does nothing for model 'logistic'"),
    "df of huber": (mapping("huber", df=3), "'df' does nothing for model 'huber' \\(it is for student-t\\)"),
    "cap of logistic": (mapping(cap=3), "'cap' does nothing for model 'logistic'"),
    "idle intercept": (mapping(intercept=False, intercept_scale=1.0), "'intercept_scale' does nothing"),
    "no cap": ({k: v for k, v in mapping("poisson").items() if k != "cap"}, "key 'cap' is missing"),
    "half cap": (mapping("poisson", cap=1.5), "'cap' is 1.5: it must be a whole number"),
    "prior_scale": (mapping(prior_scale=0), "'prior_scale' is 0: it must be a finite number above 0"),
    "prior nan": (mapping(prior_scale=math.nan), "'prior_scale' is nan"),
    "prior text": (mapping(prior_scale="2"), "'prior_scale' is '2'"),
    "intercept": (mapping(intercept=1), "'intercept' is 1: it must be true or false"),
    "no features": (mapping() | {"columns": {"y": {"categories": [0, 1]}}}, "no features"),
    "intercept twice": (changed("intercept", {"bounds": [0, 1]}), "feature 'intercept' appears twice"),
    "encoded twice": (changed("b[v]", {"bounds": [0, 1]}), r"feature 'b\[v\]' appears twice"),
    "nameless": (changed("", {"bounds": [0, 1]}), "column is called ''"),
    "missing outside": (changed("a", {"bounds": [0, 1], "missing": 2}), "'a': missing = 2 lies outside its bounds"),
    "missing text": (changed("a", {"bounds": [0, 1], "missing": "x"}), "'a': missing = 'x' is not a finite number"),
    "missing nan": (changed("a", {"bounds": [0, 1], "missing": math.nan}), "'a': missing = nan is not a finite"),
    "missing unknown": (changed("b", {"categories": [1, 2], "missing": 3}), "'b': missing = 3 is not one of its"),
    "missing kind": (changed("b", {"categories": [1, 2], "missing": True}), "'b': missing = True is not one of"),
    "missing half": (changed("y", {"missing": 0.5}, "poisson"), "'y': missing = 0.5 is not a count"),
    "missing above": (changed("y", {"missing": 10}, "poisson"), "'y': missing = 10 is above the cap of 9"),
}


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    assert "\r" not in text
    return text


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_says_where(name: str) -> None:
    given, message = MISTAKES[name]
    with pytest.raises(SchemaError, match=message) as caught:
        Schema.from_mapping(given, "s.toml")
    assert one_line(caught.value).startswith("s.toml: ")


def test_the_sections_from_which_the_mistakes_are_made_are_good() -> None:
    for model in TARGETS:
        Schema.from_mapping(mapping(model))
    Schema.from_mapping(changed("y", {"missing": 9}, "poisson"))
    Schema.from_mapping(mapping(unit="u"))


FILES = {
    "not TOML": (b"model = \n", r"not TOML: .*line 1"),
    "later line": (b'model = "logistic"\ntarget == "y"\n', r"not TOML: .*line 2"),
    "declared twice": (b"[columns.a]\nbounds=[0,1]\n[columns.a]\n", r"not TOML: .*line 3"),
    "key twice": (b'model = "a"\nmodel = "b"\n', r"not TOML: .*line 2"),
    "a blank with a comma": (b"[columns.a]\nbounds = [ , ]\n", r"not TOML: .*line 2"),
    "not UTF-8": (b'model = "logistic"\n# \xff\n', "not UTF-8 text in line 2"),
    "deep": (b"a = " + b"[" * 100_000, "not TOML"),
    "endless number": (b"prior_scale = " + b"1" * 10_000, "not TOML"),
    "endless hexadecimal": (
        b'model="huber"\ntarget="y"\n[columns.y]\nbounds=[0, 0x' + b"f" * 9_000 + b"]",
        "column 'y': bounds = an enormous number are not finite",
    ),
    "empty": (b"", "key 'model' is missing"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_schema_is_one_line_that_names_it(name: str, tmp_path: Path) -> None:
    raw, message = FILES[name]
    path = tmp_path / "s.toml"
    path.write_bytes(raw)
    with pytest.raises(SchemaError, match=message) as caught:
        Schema.load(path)
    assert one_line(caught.value).startswith(f"{path}: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        Schema.load(tmp_path / "none.toml")
    with pytest.raises(OSError, match="cannot be read"):
        Schema.load(tmp_path)
    with pytest.raises(SchemaError, match="not the path of a file"):
        Schema.load("a\0b")


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(SchemaError, match="a mapping of keys, not list"):
        Schema.from_mapping([1])  # type: ignore[arg-type]


# ---------------------------------------------------------------- fuzz

JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["a", "b", "y", "logistic", "poisson", ""]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=4,
)
PLACES = [
    *[
        (key,)
        for key in ("model", "target", "unit", "max_rows_per_unit", "prior_scale", "intercept_scale", "intercept")
    ],
    *[(key,) for key in (*OWN_KEYS, "columns", "other")],
    *[("columns", name) for name in ("a", "b", "y", "z", "intercept")],
    *[("columns", name, key) for name in ("a", "b", "y") for key in ("bounds", "categories", "missing", "x")],
]


def holds(schema: Schema) -> None:
    """What every accepted schema keeps to."""
    domain, model = schema.domain, schema.build()
    assert len(set(schema.columns)) == len(schema.columns)
    assert set(domain.columns) == {column.name for column in schema.features}
    assert schema.target not in domain.columns
    assert np.isfinite(model.domain.norm2())
    assert np.isfinite(model.prior_table.scale).all()
    for column in (*schema.features, schema.outcome):
        assert column.bounds is None or -math.inf < column.bounds[0] < column.bounds[1] < math.inf
        assert column.categories is None or len(set(column.categories)) >= 2
        if column.missing is not None and column.bounds is not None:
            assert column.bounds[0] <= column.fill <= column.bounds[1]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(list(TARGETS)), st.lists(st.tuples(st.sampled_from(PLACES), JUNK), min_size=1, max_size=3))
def test_any_mapping_is_a_schema_or_one_line(model: str, edits: list[tuple[tuple[str, ...], Any]]) -> None:
    given: dict[str, Any] = json.loads(json.dumps(mapping(model)))
    for place, value in edits:
        inner: Any = given
        for key in place[:-1]:
            inner = inner.setdefault(key, {}) if isinstance(inner, dict) else {}
        if isinstance(inner, dict):
            inner[place[-1]] = value
    try:
        schema = Schema.from_mapping(given)
    except SchemaError as error:
        one_line(error)
    else:
        holds(schema)


SNIPPETS = [
    "[",
    "]",
    "=",
    '"',
    "#",
    "\n",
    ".",
    ",",
    "inf",
    "nan",
    "-",
    "e9",
    "columns",
    "[columns.y]",
    "\0",
    "\\",
    "true",
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=60), st.integers(0, 2**32)), st.integers(1, 6))
def test_any_file_is_a_schema_or_one_line(tmp_path: Path, seed: bytes | int, edits: int) -> None:
    raw = bytearray(GOOD.encode())
    if isinstance(seed, bytes):
        raw = bytearray(seed)
    else:
        rng = random.Random(seed)
        for _ in range(edits):
            at = rng.randrange(len(raw))
            raw[at : at + rng.randrange(4)] = rng.choice([rng.choice(SNIPPETS).encode(), rng.randbytes(1), b""])
    path = tmp_path / "s.toml"
    path.write_bytes(raw)
    try:
        schema = Schema.load(path)
    except (SchemaError, OSError) as error:
        one_line(error)
    else:
        holds(schema)
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------- drafts


def test_a_draft_is_refused_blank_by_blank_until_a_person_has_filled_it_in(tmp_path: Path) -> None:
    csv = tmp_path / "t.csv"
    csv.write_text("age,sex,y\n40,F,0\n50,M,1\n")
    path = tmp_path / "s.toml"
    text = draft(open_table(csv))
    for blank, filled, message in (
        ('model = ""', 'model = "logistic"', "fill in the model"),
        ('target = ""', 'target = "y"', "fill in the target"),
        ("[columns.y]\nbounds", "[columns.y]\ncategories", "'y' is the target of model 'logistic'"),
        ("[columns.y]\ncategories = []", "[columns.y]\ncategories = [0, 1]", "fill in the categories of column 'y'"),
        (
            "[columns.age]\nbounds = []",
            "[columns.age]\nbounds = [0, 120]",
            "fill in the bounds of column 'age' from pub",
        ),
        ("[columns.sex]\nbounds = []", '[columns.sex]\ncategories = ["F", "M"]', "fill in the bounds of column 'sex'"),
    ):
        path.write_text(text)
        with pytest.raises(SchemaError, match=message):
            Schema.load(path)
        assert blank in text
        text = text.replace(blank, filled)
    path.write_text(text)
    assert Schema.load(path).columns == ("age", "sex", "y")


def test_missing_values_of_a_column_by_position() -> None:
    assert Column("b", categories=("u", "v"), missing="v").fill == 1
    assert Column("a", bounds=(0.0, 1.0), missing=1).fill == 1.0


def bounded(low: float, high: float, **keys: Any) -> Schema:
    columns = {"a": {"bounds": [0, 1]}, "y": {"bounds": [low, high]}}
    return Schema.from_mapping({"model": "student-t", "target": "y", "columns": columns, **keys})


def test_priors_and_errors_are_in_units_of_a_bounded_target() -> None:
    found = bounded(-50, 150)
    assert (found.prior_scale, found.intercept_scale, found.scale) == (200.0, 150.0, 10.0)
    given = bounded(-50, 150, prior_scale=3.0, intercept_scale=4.0, scale=5.0)
    assert (given.prior_scale, given.intercept_scale, given.scale) == (3.0, 4.0, 5.0)
    classes = Schema.from_mapping(mapping())
    assert classes.scale is None


def test_a_target_far_from_zero_gets_a_hint() -> None:
    assert "subtract a public typical value" in bounded(0, 200).hint
    assert "10 times the scale of 10 from 0" in bounded(0, 200).hint
    assert bounded(-100, 100).hint == ""
    assert bounded(0, 200, scale=30).hint == ""
    assert Schema.from_mapping(mapping()).hint == ""


@pytest.mark.parametrize("bounds", [["2010-01-01", "2026-11-01"], [dt.date(2010, 1, 1), dt.date(2026, 11, 1)]])
def test_bounds_that_are_dates_say_what_to_do(bounds: list[Any]) -> None:
    with pytest.raises(SchemaError, match="column 'd': its bounds are dates: make a number of the column first"):
        Schema.from_mapping(
            {"model": "logistic", "target": "y", "columns": {"d": {"bounds": bounds}, "y": {"categories": [0, 1]}}}
        )
