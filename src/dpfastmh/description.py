"""A regression model as plain data, and back: what a saved posterior says about the model it belongs to.

Everything in it is public: the loss with its parameters, the domain part by part, the classes or the target's bounds,
the prior of every coefficient, the temperature. Reading one back runs no code: names are looked up in the tables below,
numbers are checked by the classes they are given to, and whatever is unknown is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dpfastmh.domain import Domain
    from dpfastmh.models import GLM
    from dpfastmh.priors import Prior, PriorTable

KEYS = ("loss", "domain", "classes", "target_bounds", "prior", "temperature")

LOSSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "logistic": ("Logistic", ()),
    "student-t": ("StudentT", ("df", "scale")),
    "huber": ("PseudoHuber", ("scale",)),
    "logistic-error": ("LogisticError", ("scale",)),
    "poisson": ("Poisson", ("cap",)),
    "softmax": ("Softmax", ("classes",)),
}


class DescriptionError(ValueError):
    """A description that describes no model of this library. One line."""


def describe(model: GLM) -> dict[str, Any]:
    """The model as numbers, text, lists and dictionaries, fit for JSON."""
    return {
        "loss": _loss_out(model.loss),
        "domain": [_part_out(part) for part in parts(model.domain)],
        "classes": None if model.classes is None else [_plain(label) for label in model.classes],
        "target_bounds": None if model.target_bounds is None else list(model.target_bounds),
        "prior": _priors_out(model.prior_table),
        "temperature": model.temperature,
    }


def model_from(description: Any) -> GLM:
    """The model that `describe` described."""
    from dpfastmh.models import GLM

    found = _keys(description, KEYS, "a model")
    try:
        parts = _list(found["domain"], "the domain")
        domain = _domain([_part_in(part) for part in parts])
        bounds = found["target_bounds"]
        return GLM(
            _loss_in(found["loss"]),
            domain,
            [_prior_in(prior) for prior in _list(found["prior"], "the priors")],
            intercept=False,  # it is one of the domain's parts already
            temperature=found["temperature"],
            classes=None if found["classes"] is None else _list(found["classes"], "the classes"),
            target_bounds=None if bounds is None else (_number(bounds, 0), _number(bounds, 1)),
        )
    except DescriptionError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise DescriptionError(f"not a model of this library: {' '.join(str(error).split())}") from None


def model_name(model: GLM) -> str:
    """What schemas and the command line call the model."""
    return next(name for name, (kind, _) in LOSSES.items() if kind == type(model.loss).__name__)


# -- losses ----------------------------------------------------------------------------------------------------------
def _loss_out(loss: Any) -> dict[str, Any]:
    for name, (kind, fields) in LOSSES.items():
        if type(loss).__name__ == kind:
            return {"name": name} | {field: _plain(getattr(loss, field)) for field in fields}
    raise DescriptionError(f"{type(loss).__name__} is not a loss of this library")


def _loss_in(description: Any) -> Any:
    from dpfastmh import losses

    name = description.get("name") if isinstance(description, Mapping) else None
    if name not in LOSSES:
        raise DescriptionError(f"unknown loss {name!r}")
    kind, fields = LOSSES[name]
    found = _keys(description, ("name", *fields), f"the loss {name}")
    values = [found[field] for field in fields]
    if name == "softmax":
        if not _is_whole(values[0]) or not 2 <= values[0] <= 10_000:
            raise DescriptionError(f"a softmax loss of {values[0]!r} classes")
    elif not all(_is_number(value) and 0.0 < value < float("inf") for value in values):
        raise DescriptionError(f"the loss {name} has numbers that are not finite and above 0")
    return getattr(losses, kind)(*(value if name == "softmax" else float(value) for value in values))


# -- domains ---------------------------------------------------------------------------------------------------------
def parts(domain: Domain) -> tuple[Domain, ...]:
    from dpfastmh.domain import Product

    return domain.parts if isinstance(domain, Product) else (domain,)


def _part_out(part: Domain) -> dict[str, Any]:
    from dpfastmh.domain import Ball, Box, Constant, Intersection, OneHot

    match part:
        case Constant():
            return {"kind": "constant", "name": part.name}
        case Box():
            return {"kind": "box", "bounds": [list(triple) for triple in part.bounds]}
        case Ball():
            return {"kind": "ball", "radius": part.radius, "columns": list(part.columns)}
        case OneHot():
            return {"kind": "one-hot", "column": part.column, "categories": list(part.categories)}
        case Intersection():
            return {"kind": "box-and-ball", "bounds": [list(t) for t in part.box.bounds], "radius": part.ball.radius}
    raise DescriptionError(f"{type(part).__name__} is not a domain of this library")


def _box_in(found: Mapping[str, Any]) -> Any:
    from dpfastmh.domain import Box

    triples = [_list(triple, "a column's bounds") for triple in _list(found["bounds"], "the bounds")]
    if any(len(triple) != 3 for triple in triples) or len({str(t[0]) for t in triples}) != len(triples):
        raise DescriptionError("the bounds of a box are not different names with two numbers each")
    return Box({name: (low, high) for name, low, high in triples})


def _part_in(description: Any) -> Domain:
    from dpfastmh.domain import Ball, Constant, OneHot

    builders: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Any]]] = {
        "constant": (("name",), lambda d: Constant(d["name"])),
        "box": (("bounds",), _box_in),
        "ball": (("radius", "columns"), lambda d: Ball(d["radius"], _list(d["columns"], "the columns"))),
        "one-hot": (
            ("column", "categories"),
            lambda d: OneHot(d["column"], _list(d["categories"], "the categories")),
        ),
        "box-and-ball": (("bounds", "radius"), lambda d: _box_in(d) & Ball(d["radius"])),
    }
    kind = description.get("kind") if isinstance(description, Mapping) else None
    if kind not in builders:
        raise DescriptionError(f"unknown kind of domain {kind!r}")
    keys, build = builders[kind]
    built: Domain = build(_keys(description, ("kind", *keys), f"a {kind} domain"))
    return built


def _domain(parts: list[Domain]) -> Domain:
    from dpfastmh.domain import Product

    if not parts:
        raise DescriptionError("the domain has no parts")
    return parts[0] if len(parts) == 1 else Product(*parts)


# -- priors ----------------------------------------------------------------------------------------------------------
def _priors_out(table: PriorTable) -> list[dict[str, Any]]:
    return [
        _prior_out(int(kind), float(loc), float(scale), float(df))
        for kind, loc, scale, df in zip(table.kind, table.loc, table.scale, table.df, strict=True)
    ]


def _prior_out(kind: int, loc: float, scale: float, df: float) -> dict[str, Any]:
    from dpfastmh import priors

    if kind == priors.FLAT:
        return {"kind": "flat"}
    if kind == priors.STUDENT_T:
        return {"kind": "student-t", "loc": loc, "scale": scale, "df": df}
    return {"kind": "normal" if kind == priors.NORMAL else "laplace", "loc": loc, "scale": scale}


def _prior_in(description: Any) -> Prior:
    from dpfastmh import priors

    classes: dict[str, tuple[type[Prior], tuple[str, ...]]] = {
        "normal": (priors.Normal, ("loc", "scale")),
        "laplace": (priors.Laplace, ("loc", "scale")),
        "student-t": (priors.StudentT, ("loc", "scale", "df")),
        "flat": (priors.Flat, ()),
    }
    kind = description.get("kind") if isinstance(description, Mapping) else None
    if kind not in classes:
        raise DescriptionError(f"unknown kind of prior {kind!r}")
    prior, keys = classes[kind]
    found = _keys(description, ("kind", *keys), f"a {kind} prior")
    return prior(**{key: found[key] for key in keys})


# -- checks ----------------------------------------------------------------------------------------------------------
def _keys(found: Any, wanted: tuple[str, ...], what: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping) or set(found) != set(wanted):
        raise DescriptionError(f"{what} is described by {', '.join(wanted)}, all of them and no others")
    return found


def _list(found: Any, what: str) -> list[Any]:
    if not isinstance(found, list):
        raise DescriptionError(f"{what} must be a list, not {type(found).__name__}")
    return found


def _number(found: Any, position: int) -> float:
    if not isinstance(found, list) or len(found) != 2 or not _is_number(found[position]):
        raise DescriptionError("the target's bounds are not two numbers")
    return float(found[position])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """A label or number as JSON has it."""
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, str | int | float):
        raise DescriptionError(f"class {value!r} is neither text, a number nor a boolean: it cannot be saved")
    return plain
