"""PRIVATE. Rows in memory: every record checked, projected onto its public domain, and held once.

An array of float32 or float64 that needs no projection (the domain's own units, all rows inside) is used as it is; with
``overwrite`` rows are projected in place; otherwise they are copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfastmh.domain import Domain, DomainError

if TYPE_CHECKING:
    from dpfastmh.steps.likelihood import Rows

CHUNK = 65_536  # rows checked or projected at a time


def numeric(values: Any, what: str) -> npt.NDArray[Any]:
    """An array of float32 or float64. What is no number is refused, not guessed: text, dates, complex numbers."""
    if np.ma.is_masked(values):
        raise DomainError(f"{what} has masked cells: fill in a public value or drop their rows")
    try:
        found = np.asarray(values)
        if found.dtype.kind not in "biufO":
            raise TypeError
        return found if found.dtype in (np.float32, np.float64) else found.astype(np.float64)
    except (TypeError, ValueError):
        advice = ", or a mapping of columns for a domain with categories" if what == "x" else " for every record"
        raise DomainError(f"{what} is not numeric: give numbers{advice}") from None
    except OverflowError:
        raise DomainError(f"{what} holds a number beyond the range of float64: rescale it") from None


def matrix(x: Any) -> npt.NDArray[Any]:
    """A two-dimensional float array with at least two rows, all finite; float32 stays float32."""
    values = numeric(x, "x")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise DomainError(f"x has {values.ndim} dimensions: give one row for each record")
    check_rows(values.shape[0])
    values = np.ascontiguousarray(values)
    for start in range(0, values.shape[0], CHUNK):
        good = np.isfinite(values[start : start + CHUNK]).all(axis=1)
        if not good.all():
            raise DomainError(f"row {start + int(np.argmin(good)) + 1} of x is missing or not finite: mend or drop it")
    return values


def check_rows(count: int) -> None:
    if count < 2:
        raise DomainError(f"the table has {count} row{'s' if count != 1 else ''}: at least two records are needed")


def features(domain: Domain, x: Any, *, overwrite: bool = False) -> npt.NDArray[Any]:
    """The records' scaled features, every row inside the domain."""
    if hasattr(x, "keys"):
        projected = np.ascontiguousarray(domain.project(x))
        check_rows(projected.shape[0])
        return projected
    values = matrix(x)
    if values.shape[1] != len(domain.columns):
        raise DomainError(f"x has {values.shape[1]} columns: the domain names {len(domain.columns)}")
    in_place = _already_scaled(domain)
    if in_place and all(domain.contains(values[s : s + CHUNK]).all() for s in range(0, values.shape[0], CHUNK)):
        return values
    out = values if in_place and overwrite else np.empty((values.shape[0], len(domain.features)), values.dtype)
    for start in range(0, values.shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        out[part] = domain.project(values[part], dtype=values.dtype)
    return out


def _already_scaled(domain: Domain) -> bool:
    """Raw columns are the features: no centring, no scaling, no encoding, no constant."""
    same = tuple(domain.columns) == tuple(domain.features)
    return same and bool(np.all(domain.center == 0.0) and np.all(domain.half_width == 1.0))


def rows(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any] | None,
    *,
    share: npt.NDArray[np.float64] | None = None,
    per_record: str | None = None,
) -> Rows:
    """Put the arrays together as the compiled loop takes them. ``per_record``: None, "thinned" or "alias"."""
    from dpfastmh.steps.likelihood import Rows

    if per_record not in (None, "thinned", "alias"):
        raise DomainError(f'per_record is {per_record!r}: choose "thinned", "alias" or None')
    nothing = np.zeros(0)
    alias, threshold = np.zeros(0, np.int64), nothing
    if per_record is None or share is None:
        share = nothing
    else:
        if share.shape != (x.shape[0],):
            raise DomainError(f"record bounds have shape {share.shape}: give one for each of the {x.shape[0]} records")
        if not (np.all(share > 0.0) and np.all(share <= 1.0 + 1e-12)):
            raise DomainError("record bounds must lie above 0 and not exceed the public maximum")
        if per_record == "alias":
            alias, threshold = alias_table(share)
    weight = float(share.sum()) if alias.size else float(x.shape[0])
    return Rows(x, np.zeros(0, x.dtype) if y is None else y, np.ascontiguousarray(share), alias, threshold, weight)


def alias_table(weights: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Walker's alias method in Vose's order: cell i keeps itself with probability threshold[i], else gives alias[i]."""
    n = weights.size
    scaled = weights * (n / weights.sum())
    alias, threshold = np.arange(n), np.ones(n)
    small = [int(i) for i in np.flatnonzero(scaled < 1.0)]
    large = [int(i) for i in np.flatnonzero(scaled >= 1.0)]
    while small and large:
        low, high = small.pop(), large[-1]
        threshold[low], alias[low] = scaled[low], high
        scaled[high] -= 1.0 - scaled[low]
        if scaled[high] < 1.0:
            small.append(large.pop())
    return alias, threshold
