"""A posterior as a DataTree and as a netCDF file, and back.

The file is read by ArviZ and by ``load``. Numbers are variables; everything else is text (JSON) in the attributes.
Nothing in a file is ever executed: no pickles, no names looked up outside fixed tables.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import types
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from dpfastmh.description import DescriptionError, describe, model_from
from dpfastmh.posterior import PRIVACY_FIELDS, Posterior, PosteriorError, Privacy
from dpfastmh.statement import NOT_PRIVATE, promise

FORMAT = "dpfastmh posterior 1"
LARGEST = 2**28  # numbers in a variable; more is refused before memory is asked for


class LoadError(ValueError):
    """A file that is not a posterior of this library. One line."""


def privacy_record(posterior: Posterior) -> dict[str, Any]:
    """``privacy.json``: the privacy statement, field by field. An infinite ε (nothing promised) is null."""
    record = {name: getattr(posterior.privacy, name) for name in PRIVACY_FIELDS}
    record["releases"] = [dict(release) for release in posterior.privacy.releases]
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in record.items()}


def attributes(posterior: Posterior) -> dict[str, Any]:
    """Attributes of the tree's root: the statement in words and in numbers, the model, the warnings."""
    private = posterior.privacy.private
    return {
        "format": FORMAT,
        "title": posterior.title,
        "target": posterior.word,
        "private": "yes" if private else NOT_PRIVATE,
        "statement": " ".join(promise(posterior.privacy)),
        "privacy": _json(privacy_record(posterior)),
        "model": _json(None if posterior.model is None else describe(posterior.model)),
        "outcome": _json(posterior.outcome),
        "missing": _json(posterior.missing),
        "warnings": _json(list(posterior.warnings)),
        "start": _json(posterior.start),
    }


def to_datatree(posterior: Posterior) -> Any:
    """Groups ``posterior`` and ``sample_stats`` with named coordinates."""
    import arviz_base
    import xarray as xr

    groups = {"coefficients": posterior.draws}
    original = posterior.original
    if original is not None:
        groups["coefficients_original"] = original
    short = {"target": posterior.word, "private": "yes" if posterior.privacy.private else NOT_PRIVATE}
    tree = arviz_base.from_dict(
        {"posterior": groups},
        coords={"coefficient": list(posterior.names)},
        dims={name: ["coefficient"] for name in groups},
    )
    move = "coefficient" if posterior.tried.shape[1] == len(posterior.names) else "direction"
    tree["sample_stats"] = xr.DataTree(
        xr.Dataset(
            {
                "accepted": (("chain", move), posterior.accepted),
                "tried": (("chain", move), posterior.tried),
                "spent_steps": ("checkpoint", posterior.spending[:, 0]),
                "spent_epsilon": ("checkpoint", posterior.spending[:, 1]),
            },
            coords={"chain": np.arange(len(posterior.tried)), move: list(posterior.move_names)},
        )
    )
    tree.attrs = attributes(posterior)
    for group in ("posterior", "sample_stats"):  # the time of writing is nobody's business
        tree[group].attrs = dict(short)
    return tree


def to_bytes(posterior: Posterior) -> bytes:
    """The netCDF file as bytes, so that writing it is one plain write."""
    tree = to_datatree(posterior)
    with ExitStack() as stack:
        if "distributed" in sys.modules:  # with a client about, xarray would ask its scheduler for a lock
            import dask

            stack.enter_context(dask.config.set(scheduler="synchronous"))
        return bytes(tree.to_netcdf(engine="h5netcdf"))


def load(path: str | os.PathLike[str]) -> Posterior:
    """A posterior from a file; `LoadError` for anything else."""
    import h5netcdf

    source = Path(path)
    with open(source, "rb") as file:  # a missing or forbidden file is an OSError of its own
        if file.read(8) != b"\x89HDF\r\n\x1a\n":
            raise LoadError(f"{source} is not a posterior saved by dpfastmh: not a netCDF file")
    try:
        with h5netcdf.File(source, "r", decode_vlen_strings=True) as tree:
            return _read(tree)
    except (DescriptionError, PosteriorError, LoadError) as error:
        raise LoadError(f"{source} is not a posterior saved by dpfastmh: {error}") from None
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LoadError(f"{source} is damaged or not a posterior saved by dpfastmh: {reason}") from None


def _read(tree: Any) -> Posterior:
    if _text(tree, "format") != FORMAT:
        raise LoadError("it has another format")
    draws, stats = tree["posterior"], tree["sample_stats"]
    described = json.loads(_text(tree, "model"))
    outcome, warnings, start = (json.loads(_text(tree, name)) for name in ("outcome", "warnings", "start"))
    if not (outcome is None or isinstance(outcome, str)) or not (start is None or isinstance(start, dict)):
        raise LoadError("the outcome or the start is not what it should be")
    missing = json.loads(_text(tree, "missing")) if "missing" in tree.attrs else {}  # older files have none
    if not isinstance(missing, dict) or not all(isinstance(value, str | int | float) for value in missing.values()):
        raise LoadError("the values of missing cells are not texts or numbers")
    if not isinstance(warnings, list) or not all(isinstance(text, str) for text in warnings):
        raise LoadError("the warnings are not texts")
    names = draws["coefficient"]
    return Posterior(
        names=tuple(str(name) for name in _bounded(names)[...]),
        draws=_floats(draws["coefficients"]),
        accepted=_whole(stats["accepted"]),
        tried=_whole(stats["tried"]),
        spending=np.column_stack([_floats(stats["spent_steps"]), _floats(stats["spent_epsilon"])]),
        privacy=_privacy(json.loads(_text(tree, "privacy"))),
        model=None if described is None else model_from(described),
        warnings=tuple(warnings),
        start=start,
        outcome=outcome,
        missing=missing,
    )


def _text(tree: Any, name: str) -> str:
    value = tree.attrs[name]
    if not isinstance(value, str):
        raise LoadError(f"its attribute {name!r} is not text")
    return value


def _bounded(variable: Any) -> Any:
    if math.prod(variable.shape) > LARGEST:
        raise LoadError(f"a variable of shape {variable.shape} is too large to be true")
    return variable


def _floats(variable: Any) -> Any:
    return np.asarray(_bounded(variable)[...], dtype=np.float64)


def _whole(variable: Any) -> Any:
    found = np.asarray(_bounded(variable)[...])
    if found.dtype.kind not in "iu":
        raise LoadError("counts are not whole numbers")
    return found.astype(np.int64)


def _privacy(found: Any) -> Privacy:
    """The statement, every field of its declared type."""
    if not isinstance(found, dict) or set(found) != set(PRIVACY_FIELDS):
        raise LoadError("the privacy statement lacks fields or has others")
    kinds = get_type_hints(Privacy)
    values: dict[str, Any] = {}
    for name in PRIVACY_FIELDS:
        kind, value = kinds[name], found[name]
        if kind is float:
            values[name] = math.inf if value is None else _of(value, (int, float), name) * 1.0
        elif kind in (int, str, bool):
            values[name] = _of(value, (kind,), name)
        else:
            entries = _of(value, (list,), name)
            values[name] = tuple(dict(_of(entry, (dict,), name)) for entry in entries)
    return Privacy(**values)


def _of(value: Any, kinds: tuple[type | types.GenericAlias, ...], name: str) -> Any:
    if type(value) not in kinds:
        raise LoadError(f"{name} in the privacy statement is {value!r}")
    return value


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise PosteriorError(f"{type(value).__name__} cannot be saved")
