"""A schema: what is publicly known about a table, and the model to fit, in a TOML file.

    model = "logistic"            # logistic, student-t, huber, logistic-error, poisson or softmax
    target = "readmitted"         # the column to explain
    unit = "patient_id"           # optional: the column that says whose row it is
    max_rows_per_unit = 3         # with unit: the first rows of each unit that count (1 unless given)
    prior_scale = 2.5             # priors are Normal, on the coefficients of the features scaled to [−1, 1]
    intercept_scale = 5.0         # without these two: 2.5 and 5; for a target of bounds [l, h]: h − l and max(|l|, |h|)
    intercept = true

    [columns.age]
    bounds = [18, 95]             # a number: cells outside are moved to the nearest bound
    missing = 50                  # optional: the public value of missing cells, which are refused otherwise
    [columns.sex]
    categories = ["F", "M"]       # K categories become K−1 columns of 0 and 1, against the first
    [columns.readmitted]
    categories = [0, 1]           # the target of a logistic model: the second is the event

The target has ``categories`` (logistic: two; softmax: all classes), ``bounds`` (student-t, huber, logistic-error) or
nothing (poisson, whose key ``cap`` says where counts are cut). ``scale`` (student-t, huber, logistic-error) is the
usual size of an error in units of the target: a twentieth of the width of its bounds unless given. ``df`` is
student-t's.

Everything here is decided before the data are seen. Bounds and categories must come from what anyone may know about the
table without looking at it: taken from the data they would give records away, and no budget would pay for it.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time
from itertools import groupby
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfastmh.domain import Box, Constant, Domain, DomainError, OneHot, Product

if TYPE_CHECKING:
    from dpfastmh.models import GLM

__all__ = ["Column", "Schema", "SchemaError", "nearest", "toml_key"]

Category = str | int | bool
Value = str | int | float | bool

# what a model needs beside its columns: the kind of its target, and its own keys
CLASSES, BOUNDED, COUNTS = "classes", "bounds", "counts"
TARGETS = {
    "logistic": CLASSES,
    "student-t": BOUNDED,
    "huber": BOUNDED,
    "logistic-error": BOUNDED,
    "poisson": COUNTS,
    "softmax": CLASSES,
}
OWN_KEYS = {"scale": ("student-t", "huber", "logistic-error"), "df": ("student-t",), "cap": ("poisson",)}
KEYS = (
    *("model", "target", "unit", "max_rows_per_unit", "prior_scale", "intercept_scale", "intercept"),
    *OWN_KEYS,
    "columns",
)
FAR = 4.0  # scales between 0 and the middle of a target's bounds, beyond which the start may be far off
COLUMN_KEYS = ("bounds", "categories", "missing")


class SchemaError(ValueError):
    """A schema that cannot be. One line: the file, the key or column, what to do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that was probably meant, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@dataclass(frozen=True)
class Column:
    """What is declared about one column: bounds, categories or counts; and what a missing cell becomes."""

    name: str
    bounds: tuple[float, float] | None = None
    categories: tuple[Category, ...] | None = None
    whole: bool = False  # counts: whole numbers, not negative
    missing: Value | None = None

    def __post_init__(self) -> None:
        if self.categories is not None:
            _check_categories(self.name, self.categories)
        if self.missing is not None:
            self._check_missing(self.missing)

    def _check_missing(self, value: Value) -> None:
        where = f"column {self.name!r}: missing = {_shown(value)}"
        if self.categories is not None:
            if not any(type(value) is type(known) and value == known for known in self.categories):
                raise SchemaError(f"{where} is not one of its categories: give one of {_listed(self.categories)}")
            return
        if not math.isfinite(_number(value)):
            raise SchemaError(f"{where} is not a finite number: give the public value that stands for a missing cell")
        if self.whole and (self.fill < 0 or self.fill != int(self.fill)):
            raise SchemaError(f"{where} is not a count: give a whole number, not negative")
        if self.bounds is not None and not self.bounds[0] <= self.fill <= self.bounds[1]:
            raise SchemaError(f"{where} lies outside its bounds {list(self.bounds)}: give a value between them")

    @property
    def fill(self) -> float:
        """What a missing cell becomes: a number, or a position among the categories. Only with ``missing``."""
        assert self.missing is not None
        return self.categories.index(self.missing) if self.categories is not None else float(self.missing)


@dataclass(frozen=True)
class Schema:
    """The public knowledge about a table, checked: by ``Schema.load(path)`` or ``Schema.from_mapping(mapping)``."""

    model: str
    outcome: Column  # of the target
    features: tuple[Column, ...]
    unit: str | None = None
    max_rows_per_unit: int = 1
    prior_scale: float = 2.5
    intercept_scale: float = 5.0
    intercept: bool = True
    scale: float | None = None
    df: float | None = None
    cap: int | None = None
    where: str = "schema"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schema:
        """Read a TOML file."""
        where = os.fspath(path)
        return cls.from_mapping(_toml(Path(path), where), where)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str = "schema") -> Schema:
        """The same from a mapping with a schema's keys; ``where`` stands in front of every message."""
        try:
            return _schema(mapping, where)
        except (SchemaError, DomainError) as error:
            raise SchemaError(f"{where}: {error}") from None

    @property
    def target(self) -> str:
        return self.outcome.name

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a table must have: features, target, unit."""
        return (*(column.name for column in self.features), self.target, *([] if self.unit is None else [self.unit]))

    @property
    def missing(self) -> dict[str, Value]:
        """The public values of missing cells, by column."""
        return {c.name: c.missing for c in (*self.features, self.outcome) if c.missing is not None}

    @property
    def hint(self) -> str:
        """What would help the search for a start, which begins at 0, to find a target of numbers; mostly nothing."""
        if self.outcome.bounds is None or self.scale is None:
            return ""
        middle = sum(self.outcome.bounds) / 2.0
        if abs(middle) <= FAR * self.scale:
            return ""
        return (
            f"target {self.target!r}: its bounds are centred at {middle:.6g}, {abs(middle) / self.scale:.2g} times the "
            f"scale of {self.scale:.3g} from 0, where the search for a start begins: better subtract a public typical "
            "value from the column (and from its bounds)"
        )

    @property
    def domain(self) -> Domain:
        """The features in declared order, without the intercept."""
        parts: list[Domain] = []
        for numeric, group in groupby(self.features, key=lambda column: column.categories is None):
            if numeric:
                parts.append(Box({column.name: column.bounds or () for column in group}))
            else:
                parts += [OneHot(column.name, column.categories or ()) for column in group]
        return parts[0] if len(parts) == 1 else Product(*parts)

    def build(self, temperature: float = 1.0) -> GLM:
        """The model."""
        from dpfastmh.models import REGRESSIONS
        from dpfastmh.priors import Normal

        domain = self.domain
        blocks = len(self.outcome.categories or ()) - 1 if self.model == "softmax" else 1
        prior = [Normal(scale=self.intercept_scale)] * self.intercept + [Normal(scale=self.prior_scale)] * len(domain)
        options: dict[str, Any] = {key: getattr(self, key) for key in OWN_KEYS if getattr(self, key) is not None}
        if self.outcome.categories is not None:
            options["classes"] = self.outcome.categories
        if self.outcome.bounds is not None:
            options["target_bounds"] = self.outcome.bounds
        return REGRESSIONS[self.model].build(
            domain, prior * blocks, intercept=self.intercept, temperature=temperature, **options
        )


# -- reading ---------------------------------------------------------------------------------------------------------


def _toml(path: Path, where: str) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{where}: no such file: give the path of a schema") from None
    except OSError as error:
        raise OSError(f"{where}: cannot be read ({error.strerror})") from None
    except ValueError:  # a path that no file can have
        raise SchemaError(f"{where!r} is not the path of a file") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SchemaError(f"{where}: not UTF-8 text in line {line}: save the file as UTF-8") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise SchemaError(f"{where}: not TOML: {reason}") from None


def _schema(given: Mapping[str, Any], where: str) -> Schema:
    if not isinstance(given, Mapping):
        raise SchemaError(f"a schema is a mapping of keys, not {type(given).__name__}")
    _known(given, KEYS, "key")
    model = _choice(given, "model", TARGETS)
    target = _text(given, "target", "the name of the column to explain")
    _check_useful(given, model)
    tables = given.get("columns", {})
    if not isinstance(tables, Mapping):
        raise SchemaError("key 'columns' must hold sections [columns.NAME]")
    unit = _text(given, "unit", "the name of the column that says whose row it is") if "unit" in given else None
    if unit == target:
        raise SchemaError(f"column {unit!r} is both unit and target: it can be one of them")
    if unit is not None and unit in tables:
        raise SchemaError(f"column {unit!r} is the unit, which is no feature: remove {_section_name(unit)}")
    if target not in tables and TARGETS[model] != COUNTS:
        what = "categories" if TARGETS[model] == CLASSES else "bounds"
        close = nearest(target, map(str, tables))
        raise SchemaError(f"target {target!r} is not declared{close}: add {_section_name(target)} with its {what}")
    cap = _count(given, "cap") if model == "poisson" else None
    outcome = _outcome(target, tables.get(target, {}), model, cap)
    features = tuple(_feature(name, table) for name, table in tables.items() if name != target)
    if not features:
        raise SchemaError("no features: add a section [columns.NAME] with bounds or categories for each")
    schema = Schema(
        model=model,
        outcome=outcome,
        features=features,
        unit=unit,
        max_rows_per_unit=_count(given, "max_rows_per_unit", 1),
        intercept=_flag(given, "intercept", True),
        df=_positive(given, "df", 4.0) if "df" in given else None,
        cap=cap,
        where=where,
        **_in_units_of(outcome, given),
    )
    # names that collide once the categories are encoded
    _ = Constant("intercept") * schema.domain if schema.intercept else schema.domain
    return schema


def _in_units_of(outcome: Column, given: Mapping[str, Any]) -> dict[str, float]:
    """Priors and the size of an error: as given, or in proportion to the public bounds of a target of numbers.

    Priors of 2.5 and 5 are wide for log-odds. A target between 0 and 200 they would hold near 0, whatever the data say.
    """
    known = {"prior_scale": 2.5, "intercept_scale": 5.0}
    if outcome.bounds is not None:
        low, high = outcome.bounds
        known = {"prior_scale": high - low, "intercept_scale": max(abs(low), abs(high)), "scale": (high - low) / 20.0}
    return {key: _positive(given, key, default) for key, default in known.items()}


def _check_useful(given: Mapping[str, Any], model: str) -> None:
    """Refuse keys that would do nothing."""
    for key, models in OWN_KEYS.items():
        if key in given and model not in models:
            raise SchemaError(
                f"key {key!r} does nothing for model {model!r} (it is for {', '.join(models)}): remove it"
            )
    if "max_rows_per_unit" in given and "unit" not in given:
        raise SchemaError("key 'max_rows_per_unit' does nothing without 'unit': name the unit's column, or remove it")
    if "intercept_scale" in given and given.get("intercept") is False:
        raise SchemaError("key 'intercept_scale' does nothing with intercept = false: remove one of them")


def _known(given: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    for key in given:
        if key not in known:
            raise SchemaError(f"unknown {what} {key!r}{nearest(str(key), known)}: the keys are {', '.join(known)}")


def _text(given: Mapping[str, Any], key: str, meaning: str) -> str:
    if key not in given:
        raise SchemaError(f"key {key!r} is missing: it is {meaning}")
    value = given[key]
    if value == "":
        raise SchemaError(f"fill in the {key}: it is {meaning}")
    if not isinstance(value, str):
        raise SchemaError(f"key {key!r} is {_shown(value)}: it must be a text, {meaning}")
    return value


def _choice(given: Mapping[str, Any], key: str, known: Iterable[str]) -> str:
    value = _text(given, key, f"one of {', '.join(known)}")
    if value not in known:
        raise SchemaError(f"{key} {value!r} is unknown{nearest(value, known)}: choose one of {', '.join(known)}")
    return value


def _positive(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    number = _number(value)
    if not (number > 0 and math.isfinite(number)):
        raise SchemaError(f"key {key!r} is {_shown(value)}: it must be a finite number above 0")
    return number


def _count(given: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = given.get(key, default)
    if value is None:
        raise SchemaError(f"key {key!r} is missing: model {given['model']!r} needs it, a whole number of at least 1")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise SchemaError(f"key {key!r} is {_shown(value)}: it must be a whole number of at least 1")
    return value


def _flag(given: Mapping[str, Any], key: str, default: bool) -> bool:
    value = given.get(key, default)
    if not isinstance(value, bool):
        raise SchemaError(f"key {key!r} is {_shown(value)}: it must be true or false")
    return value


def _number(value: object) -> float:
    """A number as a float; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except (OverflowError, ValueError):
        return math.inf


def toml_key(name: str) -> str:
    """A name as a key of a TOML file, quoted where it must be."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return name
    escaped = "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 or c in '"\\' else c for c in name)
    return f'"{escaped}"'


def _section_name(name: str) -> str:
    return f"[columns.{toml_key(name)}]"


def _shown(value: object) -> str:
    """A value for a message: no longer than a line can bear."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write out integers of thousands of digits
        return "an enormous number"
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- columns ---------------------------------------------------------------------------------------------------------


def _section(name: str, table: Any) -> Mapping[str, Any]:
    if not isinstance(name, str) or not name:
        raise SchemaError(f"a column is called {name!r}: a name is a text of at least one character")
    if not isinstance(table, Mapping):
        raise SchemaError(f"column {name!r} is {_shown(table)}: write a section {_section_name(name)} with its bounds")
    _known(table, COLUMN_KEYS, f"key of column {name!r},")
    return table


def _feature(name: str, table: Any) -> Column:
    table = _section(name, table)
    if "bounds" in table and "categories" in table:
        raise SchemaError(f"column {name!r} has both bounds and categories: keep one of them")
    if "bounds" in table:
        return Column(name, bounds=_bounds(name, table["bounds"]), missing=table.get("missing"))
    if "categories" in table:
        return Column(name, categories=_categories(name, table["categories"]), missing=table.get("missing"))
    raise SchemaError(f"column {name!r} has neither bounds nor categories: add bounds = [low, high], or its categories")


def _outcome(name: str, table: Any, model: str, cap: int | None) -> Column:
    table = _section(name, table)
    kind = TARGETS[model]
    useful = {CLASSES: "categories", BOUNDED: "bounds", COUNTS: "cap"}[kind]
    for key in ("bounds", "categories"):
        if key in table and key != useful:
            need = "its cap says where counts are cut" if kind == COUNTS else f"it has {useful}"
            raise SchemaError(
                f"column {name!r} is the target of model {model!r}: {need}, {key} do nothing, and a target is no"
                " feature; change it"
            )
    missing = table.get("missing")
    if kind == COUNTS:
        column = Column(name, whole=True, missing=missing)
        if missing is not None and cap is not None and column.fill > cap:
            raise SchemaError(
                f"column {name!r}: missing = {_shown(missing)} is above the cap of {cap}: give a count up to it"
            )
        return column
    if useful not in table:
        raise SchemaError(f"column {name!r}, the target of model {model!r}, has no {useful}: add them")
    if kind == BOUNDED:
        return Column(name, bounds=_bounds(name, table["bounds"]), missing=missing)
    categories = _categories(name, table["categories"])
    if model == "logistic" and len(categories) != 2:
        count = "one category" if len(categories) == 1 else f"{len(categories)} categories"
        raise SchemaError(
            f"column {name!r}, the target of model 'logistic', has {count}: give two, the second"
            " being the event; model 'softmax' takes more"
        )
    return Column(name, categories=categories, missing=missing)


def _bounds(name: str, given: Any) -> tuple[float, float]:
    where = f"column {name!r}: bounds = {_shown(given)}"
    if isinstance(given, list | tuple) and len(given) == 0:
        raise SchemaError(f"fill in the bounds of column {name!r} from public knowledge, as in bounds = [0, 120]")
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise SchemaError(f"{where}: give two numbers, the lower one first")
    if any(map(is_date, given)):
        raise SchemaError(
            f"column {name!r}: its bounds are dates: make a number of the column first (days since a public day, say),"
            " and give two numbers"
        )
    low, high = (_number(end) for end in given)
    if math.isnan(low) or math.isnan(high):
        raise SchemaError(f"{where} are not numbers: give two, the lower one first")
    if math.isinf(low) or math.isinf(high):
        raise SchemaError(f"{where} are not finite: what a record can do must be bounded, so give finite numbers")
    if low == high:
        raise SchemaError(f"{where} are equal: a column of one value says nothing; widen them or drop the column")
    if low > high:
        raise SchemaError(f"{where} are reversed: the lower one comes first")
    Box({name: (low, high)})  # refuses what is too narrow to divide by
    return low, high


def is_date(value: object) -> bool:
    """A date or time, or text that begins with a date as 2024-01-31."""
    return isinstance(value, date | time) or (
        isinstance(value, str) and re.match(r"\d{4}-\d\d?-\d\d?\b", value) is not None
    )


def _categories(name: str, given: Any) -> tuple[Category, ...]:
    if not isinstance(given, list | tuple):
        raise SchemaError(f"column {name!r}: categories = {_shown(given)}: give a list, as in ['F', 'M']")
    if not given:
        raise SchemaError(f"fill in the categories of column {name!r} from public knowledge, as in ['no', 'yes']")
    return tuple(given)


def _check_categories(name: str, categories: tuple[Category, ...]) -> None:
    """Text, whole numbers or booleans, all of a kind, so that it is plain which cells are meant."""
    kinds = {type(category) for category in categories}
    if not kinds <= {str, int, bool}:
        raise SchemaError(f"column {name!r}: categories must be texts, whole numbers or booleans: write others as text")
    if len(kinds) != 1:
        raise SchemaError(f"column {name!r}: categories of more than one kind: write all as text or all as numbers")
    if len(categories) < 2:
        raise SchemaError(f"column {name!r}: one category, {_shown(categories[0])}: declare at least two")
    for category in categories:
        if isinstance(category, str) and "\0" in category:
            raise SchemaError(f"column {name!r}: category {_shown(category)} holds a NUL character: remove it")
        if isinstance(category, int) and not -(2**63) <= category < 2**63:
            raise SchemaError(f"column {name!r}: category {_shown(category)} needs more than 64 bits: write it as text")
    OneHot(name, categories)  # refuses what is declared twice


def _listed(categories: tuple[Category, ...]) -> str:
    return _shown(list(categories))
