"""What is public about a record: the domain of its features, and how far a record can move a linear predictor.

Everything the privacy accounting knows about a record x is its *domain*: a set of scaled feature vectors declared in
advance from public knowledge, never measured on the data. A domain answers two questions.

*What is x allowed to be?* `project` maps any raw row into the domain by a fixed public rule that looks at that row
alone: clip to the bounds, scale to [-1, 1], shrink into a ball, encode categories. Since every row is projected when it
is loaded, the bounds below hold whatever the data are: privacy rests on no claim about them.

*How much can x matter?* The **support function** of a move δ = θ' - θ of the coefficients is

    s(δ) = sup over x in the domain of |x·δ|,

so that a loss with slope at most L1 in the linear predictor changes by at most b(θ, θ') = L1·s(δ) for every record.
Write h(δ) = sup x·δ; then s(δ) = max(h(δ), h(-δ)), and h of a product is the sum over its factors:

    box      |x_j| <= 1                  h(δ) = Σ|δ_j|
    ball     ‖x‖ <= R                    h(δ) = R‖δ‖
    one-hot  x = 0 or a unit vector      h(δ) = max(0, max δ_k)
    constant x = 1                       h(δ) = δ
    box cut by a ball                    h(δ) = min over c of Σ(|δ_j| - c)⁺ + R‖min(|δ|, c)‖   (see `Intersection`)

Boxes and balls are symmetric, h(-δ) = h(δ). One-hot groups and constants are not, which is why the two signs are
summed apart and compared at the end: adding up max|δ_k| group by group is a bound, but it is not attained when two
groups pull in opposite directions.

Floating point: a projected row x satisfies |x·δ| <= s(δ)(1 + 1e-12), in float32 as in float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from keyword import iskeyword
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "BALL",
    "BOX",
    "BOXBALL",
    "ONEHOT",
    "Ball",
    "Box",
    "Constant",
    "Domain",
    "DomainError",
    "Intersection",
    "OneHot",
    "Product",
    "SupportTable",
]

FloatArray = npt.NDArray[np.float64]
AnyArray = npt.NDArray[Any]
Category = str | int | bool

BOX, BALL, ONEHOT, BOXBALL = 0, 1, 2, 3

_CHUNK_CELLS = 1 << 16  # cells of a chunk of rows: temporaries stay in the cache whatever the number of rows
_NORM_SLACK = 1e-13  # a row normalised by its owner has norm 1 ± a few rounding errors: `contains` lets it in
_NEGLIGIBLE = 1e-100  # share of a direction's largest entry that no sum of float64 numbers can notice
_SMALLEST_RADIUS = 1e-12  # of a ball inside the unit box; below it float32 coordinates lose their relative precision


class DomainError(ValueError):
    """A domain that cannot be, or a table that does not fit its domain. One line: what, where, what to do."""


class SupportTable(NamedTuple):
    """A domain as plain arrays, for compiled code. Block i covers the features start[i]:stop[i].

    kind    BOX, BALL, ONEHOT or BOXBALL; neighbouring boxes and constants are one BOX block
    radius  of the ball of a BALL or BOXBALL block in scaled units; infinite where there is no ball
    half    sup |x_j| of every feature, so that a move of one coefficient has s(δ) = half_j·|δ_j|
    constant  the features that are always 1

    Two upper bounds can be read off. The sum over blocks of Σ half_j|δ_j|, R‖δ‖, max|δ_k| and the water-filling value
    is valid for every domain. The support itself is the larger of two such sums, one for δ and one for -δ, in which a
    one-hot block adds max(0, max ±δ_k) and a constant adds ±δ_j.
    """

    kind: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]
    radius: FloatArray
    half: FloatArray
    constant: npt.NDArray[np.bool_]


class _Block(NamedTuple):
    kind: int
    features: int
    radius: float
    half: float
    constant: bool

    def norm_squared(self) -> float:
        """sup ‖x‖² over the block's features: a corner of the box or the rim of the ball; one 1 in a one-hot group."""
        corner = 1.0 if self.kind == ONEHOT else float(self.features)
        return min(corner, self.radius * self.radius)


class Domain(ABC):
    """A public set of records. Multiply domains to put their features side by side."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the raw columns that `project` reads, in order."""

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """Names of the scaled features, one for each coefficient."""

    @property
    @abstractmethod
    def center(self) -> FloatArray:
        """Raw value at which a scaled feature is 0 (0 for encoded features)."""

    @property
    @abstractmethod
    def half_width(self) -> FloatArray:
        """Raw units in one unit of a scaled feature (1 for encoded features)."""

    @abstractmethod
    def _reach(self, delta: FloatArray) -> float:
        """h(δ) = sup x·δ over the domain."""

    @abstractmethod
    def _furthest(self, delta: FloatArray) -> FloatArray:
        """A record of the domain with x·δ = h(δ)."""

    @abstractmethod
    def _encode(self, cells: Sequence[AnyArray], first: int, out: AnyArray) -> None:
        """Project a chunk of raw columns into `out`; `first` is the row number of its first row, for messages."""

    @abstractmethod
    def _inside(self, x: AnyArray) -> npt.NDArray[np.bool_]:
        """Which scaled rows of a chunk belong to the domain."""

    @abstractmethod
    def _blocks(self) -> list[_Block]:
        """The blocks of `table`, before neighbouring boxes are merged."""

    def __len__(self) -> int:
        return len(self.features)

    def __mul__(self, other: Domain) -> Product:
        return Product(self, other) if isinstance(other, Domain) else NotImplemented

    def __and__(self, other: Domain) -> Intersection:
        return Intersection(self, other) if isinstance(other, Domain) else NotImplemented

    def project(self, rows: object, dtype: npt.DTypeLike = np.float64) -> AnyArray:
        """The scaled features of raw rows, an array (n, d): a fixed public rule applied to each row by itself.

        `rows` is a mapping from column names to 1-D arrays (a data frame will do), or, where no column holds
        categories, a 2-D array with the columns in order. Finite numbers outside the domain are moved into it; a cell
        that cannot be read (NaN, infinite, text, an unknown category) raises `DomainError` naming its column and row.
        """
        out_dtype = _float_dtype(dtype)
        cells, n = self._cells(rows)
        out = np.empty((n, len(self)), dtype=out_dtype)
        for first, last in _chunks(n, len(self)):
            self._encode([column[first:last] for column in cells], first, out[first:last])
        return out

    def contains(self, x: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which rows of a 2-D array of already scaled features belong to the domain (a NaN never does)."""
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] != len(self) or x.dtype.kind not in "biuf":
            raise DomainError(
                f"scaled features of shape {x.shape} and type {x.dtype}:"
                f" give a 2-D numeric array with {len(self)} columns"
            )
        inside = np.empty(len(x), dtype=np.bool_)
        for first, last in _chunks(len(x), len(self)):
            inside[first:last] = self._inside(x[first:last])
        return inside

    def norm2(self) -> float:
        """The largest Euclidean norm of a record, sup ‖x‖₂, attained."""
        return math.sqrt(math.fsum(block.norm_squared() for block in self._blocks()))

    def support(self, delta: npt.ArrayLike) -> float:
        """s(δ) = sup |x·δ| over the domain, attained by `extreme(δ)`."""
        direction = self._direction(delta)
        reach = max(self._reach(direction), self._reach(-direction))
        if not math.isfinite(reach):
            raise DomainError("the support of this direction overflows: scale the direction down")
        return reach

    def extreme(self, delta: npt.ArrayLike) -> FloatArray:
        """A record of the domain that attains s(δ): the worst case for a move δ."""
        direction = self._direction(delta)
        sign = 1.0 if self._reach(direction) >= self._reach(-direction) else -1.0
        return self._furthest(sign * direction)

    def table(self) -> SupportTable:
        """The domain as plain arrays, for compiled code."""
        blocks = self._blocks()
        merged: list[_Block] = []
        for block in blocks:
            if merged and block.kind == BOX == merged[-1].kind:
                merged[-1] = merged[-1]._replace(features=merged[-1].features + block.features)
            else:
                merged.append(block)
        stop = np.cumsum([block.features for block in merged], dtype=np.int64)
        sizes = [block.features for block in blocks]
        return SupportTable(
            kind=np.array([block.kind for block in merged], dtype=np.int64),
            start=np.concatenate([np.zeros(1, np.int64), stop[:-1]]),
            stop=stop,
            radius=np.array([block.radius for block in merged], dtype=np.float64),
            half=np.repeat([block.half for block in blocks], sizes).astype(np.float64),
            constant=np.repeat([block.constant for block in blocks], sizes).astype(np.bool_),
        )

    def original(self, coefficients: npt.ArrayLike) -> FloatArray:
        """Coefficients (..., d) of scaled features as coefficients per unit of the original columns.

        With x_j = (raw_j - center_j)/half_width_j the linear predictor is the same when coefficient j is divided by
        half_width_j and the constant takes up -Σ coefficient_j·center_j/half_width_j. A domain without a constant has
        no place for that shift: an error, unless every center is 0.
        """
        scaled = np.asarray(coefficients, dtype=np.float64)
        if scaled.ndim == 0 or scaled.shape[-1] != len(self):
            raise DomainError(f"coefficients of shape {scaled.shape}: the last axis must have length {len(self)}")
        center = self.center
        raw = np.array(scaled / self.half_width)
        if not center.any():
            return raw
        constants = np.flatnonzero(self.table().constant)
        if not constants.size:
            name = self.features[int(np.flatnonzero(center)[0])]
            raise DomainError(
                f"column {name!r} is not centred at 0 and there is no intercept to take up the shift:"
                " multiply the domain by Constant('intercept')"
            )
        raw[..., constants[0]] -= (raw * center).sum(axis=-1)
        return raw

    def _direction(self, delta: npt.ArrayLike) -> FloatArray:
        direction = np.asarray(delta, dtype=np.float64)
        if direction.shape != (len(self),) or not np.isfinite(direction).all():
            raise DomainError(f"a direction must be {len(self)} finite numbers, one for each feature")
        return direction

    def _cells(self, rows: object) -> tuple[list[AnyArray], int]:
        """The raw columns as 1-D arrays of one length, and that length."""
        if hasattr(rows, "keys") and hasattr(rows, "__getitem__"):
            return self._cells_by_name(rows)
        table = _as_array(rows, "the table")
        categorical = [part.column for part in _parts(self) if isinstance(part, OneHot)]
        if categorical:
            raise DomainError(f"column {categorical[0]!r} holds categories: give a mapping of column names to arrays")
        if table.ndim != 2 or table.shape[1] != len(self.columns):
            raise DomainError(
                f"a table of shape {table.shape}: expected 2 dimensions and {len(self.columns)} columns"
                f" ({', '.join(self.columns)})"
            )
        return [table[:, j] for j in range(table.shape[1])], len(table)

    def _cells_by_name(self, rows: Any) -> tuple[list[AnyArray], int]:
        # a domain of constants reads no column: any column of the table tells how many rows there are
        names = self.columns or tuple(rows.keys())[:1]
        if not names:
            raise DomainError("a mapping without columns does not say how many rows there are: add a column")
        cells: list[AnyArray] = []
        for name in names:
            if name not in rows.keys():  # noqa: SIM118 - of a data frame, only keys() is sure to mean its columns
                raise DomainError(f"column {name!r} is missing from the table: add it, or leave it out of the domain")
            column = _as_array(rows[name], f"column {name!r}")
            if column.ndim != 1:
                raise DomainError(f"column {name!r} has shape {column.shape}: give a 1-D array")
            if cells and len(column) != len(cells[0]):
                raise DomainError(f"column {name!r} has {len(column)} rows, column {names[0]!r} has {len(cells[0])}")
            cells.append(column)
        return (cells if self.columns else []), len(cells[0])


@dataclass(frozen=True, init=False, repr=False)
class Box(Domain):
    """Numeric columns with public bounds: Box(age=(18, 95), dose=(0, 10)), or Box({"dose (mg)": (0, 10)}).

    Each column is clipped to its bounds and scaled to [-1, 1].
    """

    bounds: tuple[tuple[str, float, float], ...]

    def __init__(self, bounds: Mapping[str, Sequence[float]] | None = None, /, **more_bounds: Sequence[float]) -> None:
        if bounds is not None and not isinstance(bounds, Mapping):
            raise DomainError(f"Box takes names and bounds, as in Box(age=(18, 95)), not {type(bounds).__name__}")
        pairs = [*(bounds or {}).items(), *more_bounds.items()]
        _check_names([name for name, _ in pairs], "column")
        object.__setattr__(self, "bounds", tuple((name, *_check_bounds(name, pair)) for name, pair in pairs))

    @classmethod
    def unit(cls, d: int) -> Box:
        """d columns x0, x1, ... that are in [-1, 1] already."""
        if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
            raise DomainError(f"Box.unit needs a positive number of columns, not {d!r}")
        return cls({f"x{j}": (-1.0, 1.0) for j in range(d)})

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.bounds)

    @property
    def features(self) -> tuple[str, ...]:
        return self.columns

    @property
    def center(self) -> FloatArray:
        return np.array([low / 2 + high / 2 for _, low, high in self.bounds])

    @property
    def half_width(self) -> FloatArray:
        return np.array([high / 2 - low / 2 for _, low, high in self.bounds])

    def _reach(self, delta: FloatArray) -> float:
        return _sum(np.abs(delta))

    def _furthest(self, delta: FloatArray) -> FloatArray:
        return np.where(delta < 0, -1.0, 1.0)

    def _scaled(self, cells: Sequence[AnyArray], first: int) -> FloatArray:
        x = _numbers(self.columns, cells, first)
        # clipped before scaling, so that nothing overflows, and after it, because scaling rounds
        np.clip(x, [low for _, low, _ in self.bounds], [high for _, _, high in self.bounds], out=x)
        x -= self.center
        x /= self.half_width
        return np.clip(x, -1.0, 1.0, out=x)

    def _encode(self, cells: Sequence[AnyArray], first: int, out: AnyArray) -> None:
        out[...] = self._scaled(cells, first)

    def _inside(self, x: AnyArray) -> npt.NDArray[np.bool_]:
        return np.asarray(((x >= -1.0) & (x <= 1.0)).all(axis=1))

    def _blocks(self) -> list[_Block]:
        return [_Block(BOX, len(self), math.inf, 1.0, False)]

    def __repr__(self) -> str:
        pairs = {name: (low, high) for name, low, high in self.bounds}
        if all(name.isidentifier() and not iskeyword(name) for name in pairs):
            return f"Box({', '.join(f'{name}={pair}' for name, pair in pairs.items())})"
        return f"Box({pairs})"


@dataclass(frozen=True, init=False, repr=False)
class Ball(Domain):
    """Numeric columns with ‖raw‖₂ <= radius about 0, scaled by 1/radius into the unit ball.

    Without columns it stands on the right of `box & Ball(radius)`, where the radius is in the box's scaled units.
    """

    radius: float
    names: tuple[str, ...] | None

    def __init__(self, radius: float, columns: Sequence[str] | None = None) -> None:
        if isinstance(columns, str):
            raise DomainError(f"the columns of a Ball are a list of names, not the text {columns!r}")
        names = None if columns is None else tuple(columns)
        if names is not None:
            _check_names(names, "column")
        object.__setattr__(self, "radius", _positive(radius, "the radius of a Ball"))
        object.__setattr__(self, "names", names)

    @property
    def columns(self) -> tuple[str, ...]:
        if self.names is None:
            raise DomainError(
                f"Ball({self.radius}) has no columns: name them, or cut a box by it as in box & Ball(radius)"
            )
        return self.names

    @property
    def features(self) -> tuple[str, ...]:
        return self.columns

    @property
    def center(self) -> FloatArray:
        return np.zeros(len(self))

    @property
    def half_width(self) -> FloatArray:
        return np.full(len(self), self.radius)

    def _reach(self, delta: FloatArray) -> float:
        return _norm(delta)

    def _furthest(self, delta: FloatArray) -> FloatArray:
        largest = float(np.abs(delta).max())
        if largest == 0.0:
            return np.zeros(len(self))
        unit = delta / largest
        return unit / _norm(unit)

    def _encode(self, cells: Sequence[AnyArray], first: int, out: AnyArray) -> None:
        _into_ball(_numbers(self.columns, cells, first), self.radius, 1.0, out)

    def _inside(self, x: AnyArray) -> npt.NDArray[np.bool_]:
        return np.asarray(_row_norms(x, 1.0) <= 1.0 + _NORM_SLACK)

    def _blocks(self) -> list[_Block]:
        return [_Block(BALL, len(self), 1.0, 1.0, False)]

    def __repr__(self) -> str:
        return f"Ball({self.radius})" if self.names is None else f"Ball({self.radius}, {list(self.names)})"


@dataclass(frozen=True, init=False, repr=False)
class OneHot(Domain):
    """A column of K declared categories as K-1 features 0/1, all 0 for the first: OneHot("sex", ["F", "M"])."""

    column: str
    categories: tuple[Category, ...]
    labels: tuple[str, ...]

    def __init__(self, column: str, categories: Sequence[Category]) -> None:
        _check_names([column], "column")
        if isinstance(categories, str):
            raise DomainError(f"column {column!r}: the categories are a list, not the text {categories!r}")
        kept = tuple(_check_category(column, category) for category in categories)
        if len(kept) < 2:
            raise DomainError(f"column {column!r} needs at least 2 categories, not {len(kept)}")
        labels = tuple(str(category) for category in kept)
        for k, (category, label) in enumerate(zip(kept, labels, strict=True)):
            # 1 and True are one category, 1 and "1" would be one feature name
            if category in kept[:k] or label in labels[:k]:
                raise DomainError(f"column {column!r}: category {category!r} is declared twice")
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "categories", kept)
        object.__setattr__(self, "labels", labels)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{self.column}[{label}]" for label in self.labels[1:])

    @property
    def center(self) -> FloatArray:
        return np.zeros(len(self))

    @property
    def half_width(self) -> FloatArray:
        return np.ones(len(self))

    def _reach(self, delta: FloatArray) -> float:
        return max(0.0, float(delta.max()))

    def _furthest(self, delta: FloatArray) -> FloatArray:
        x = np.zeros(len(self))
        best = int(delta.argmax())
        x[best] = float(delta[best] > 0)
        return x

    def _encode(self, cells: Sequence[AnyArray], first: int, out: AnyArray) -> None:
        codes = self._codes(cells[0])
        unknown = np.flatnonzero(codes < 0)
        if unknown.size:
            row = int(unknown[0])
            value = cells[0][row]
            shown = repr(value.item() if isinstance(value, np.generic) else value)[:60]
            raise DomainError(
                f"column {self.column!r}, row {first + row}: unknown category {shown}:"
                f" declare it, or map it to one of the {len(self.categories)} declared"
            )
        out[...] = codes[:, None] == np.arange(1, len(self.categories))

    def _codes(self, values: AnyArray) -> npt.NDArray[np.int64]:
        """Position of each value among the categories, -1 if it is none of them. Text never equals a number."""
        if values.dtype.kind not in "biufU":
            return self._codes_of_objects(values.tolist())
        codes = np.full(len(values), -1, dtype=np.int64)
        for k, category in enumerate(self.categories):
            codes[values == category] = k
        return codes

    def _codes_of_objects(self, values: list[object]) -> npt.NDArray[np.int64]:
        position: dict[object, int] = {category: k for k, category in enumerate(self.categories)}
        scalar = (str, bool, int, float, np.generic)  # all hashable, unlike what else an object array may hold
        return np.array([position.get(v, -1) if isinstance(v, scalar) else -1 for v in values], dtype=np.int64)

    def _inside(self, x: AnyArray) -> npt.NDArray[np.bool_]:
        return np.asarray(((x == 0) | (x == 1)).all(axis=1) & (np.count_nonzero(x, axis=1) <= 1))

    def _blocks(self) -> list[_Block]:
        return [_Block(ONEHOT, len(self), math.inf, 1.0, False)]

    def __repr__(self) -> str:
        return f"OneHot({self.column!r}, {list(self.categories)})"


@dataclass(frozen=True, init=False, repr=False)
class Constant(Domain):
    """A feature that is 1 in every record: the intercept. It reads no column."""

    name: str

    def __init__(self, name: str = "intercept") -> None:
        _check_names([name], "feature")
        object.__setattr__(self, "name", name)

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def features(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def center(self) -> FloatArray:
        return np.zeros(1)

    @property
    def half_width(self) -> FloatArray:
        return np.ones(1)

    def _reach(self, delta: FloatArray) -> float:
        return float(delta[0])

    def _furthest(self, delta: FloatArray) -> FloatArray:
        return np.ones(1)

    def _encode(self, cells: Sequence[AnyArray], first: int, out: AnyArray) -> None:
        out[...] = 1.0

    def _inside(self, x: AnyArray) -> npt.NDArray[np.bool_]:
        return np.asarray(x[:, 0] == 1)

    def _blocks(self) -> list[_Block]:
        return [_Block(BOX, 1, math.inf, 1.0, True)]

    def __repr__(self) -> str:
        return f"Constant({self.name!r})"


@dataclass(frozen=True, init=False, repr=False)
class Product(Domain):
    """Domains side by side: a record holds the features of all of them. Written a * b."""

    parts: tuple[Domain, ...]

    def __init__(self, *parts: Domain) -> None:
        flat = tuple(leaf for part in parts for leaf in _parts(part))
        _check_names([name for part in flat for name in part.columns], "column", allow_none=True)
        _check_names([name for part in flat for name in part.features], "feature")
        object.__setattr__(self, "parts", flat)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.columns)

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.features)

    @property
    def center(self) -> FloatArray:
        return np.concatenate([part.center for part in self.parts])

    @property
    def half_width(self) -> FloatArray:
        return np.concatenate([part.half_width for part in self.parts])

    def _split(self, x: AnyArray) -> list[AnyArray]:
        """The columns of x, or the entries of a vector, part by part."""
        return np.split(x, np.cumsum([len(part) for part in self.parts])[:-1], axis=-1)

    def _reach(self, delta: FloatArray) -> float:
        reaches = [part._reach(piece) for part, piece in zip(self.parts, self._split(delta), strict=True)]
        return _sum(np.array(reaches))

    def _furthest(self, delta: FloatArray) -> FloatArray:
        pieces = zip(self.parts, self._split(delta), strict=True)
        return np.concatenate([part._furthest(piece) for part, piece in pieces])

    def _encode(self, cells: Sequence[AnyArray], first: int, out: AnyArray) -> None:
        used = 0
        for part, piece in zip(self.parts, self._split(out), strict=True):
            part._encode(cells[used : used + len(part.columns)], first, piece)
            used += len(part.columns)

    def _inside(self, x: AnyArray) -> npt.NDArray[np.bool_]:
        pieces = zip(self.parts, self._split(x), strict=True)
        return np.asarray(np.all([part._inside(piece) for part, piece in pieces], axis=0))

    def _blocks(self) -> list[_Block]:
        return [block for part in self.parts for block in part._blocks()]

    def __repr__(self) -> str:
        shown = [f"({part!r})" if isinstance(part, Intersection) else repr(part) for part in self.parts]
        return " * ".join(shown)


@dataclass(frozen=True, init=False, repr=False)
class Intersection(Domain):
    """A box cut by a ball of its scaled features, ‖x‖₂ <= R: box & Ball(R).

    A row is clipped and scaled by the box, then shrunk towards 0 into the ball; shrinking keeps it in the box.

    Support. With a = |δ|, h(δ) is the maximum of x·a over 0 <= x_j <= 1, ‖x‖ <= R. For every level c >= 0 split
    a = (a - c)⁺ + min(a, c); the box bounds the first part and the ball the second, so

        x·a <= Σ(a_j - c)⁺ + R‖min(a, c)‖     for every c >= 0.                                                (*)

    Equality: if R² >= the number of a_j > 0, take c = 0 and x_j = 1 where a_j > 0. Else take x_j = min(1, a_j/c) with
    ‖x‖ = R: then x_j = 1 wherever (a_j - c)⁺ > 0, and c·x = min(a, c), so x·a = Σ(a_j - c)⁺ + x·min(a, c)
    = Σ(a_j - c)⁺ + c‖x‖² and R‖min(a, c)‖ = cR². The value returned is the right side of (*): rounding errors in the
    level c can only raise it.
    """

    box: Box
    ball: Ball

    def __init__(self, box: Domain, ball: Domain) -> None:
        if not isinstance(box, Box) or not isinstance(ball, Ball):
            raise DomainError(
                f"{type(box).__name__} & {type(ball).__name__}: only a Box can be cut, and by a Ball only;"
                " write (box & Ball(radius)) * the rest"
            )
        if ball.names is not None:
            raise DomainError(
                "the ball of box & ball acts on all the scaled features of the box: write Ball(radius) without columns"
            )
        if ball.radius < _SMALLEST_RADIUS:
            raise DomainError(f"radius {ball.radius} in scaled units is too small: use at least {_SMALLEST_RADIUS}")
        object.__setattr__(self, "box", box)
        object.__setattr__(self, "ball", ball)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.box.columns

    @property
    def features(self) -> tuple[str, ...]:
        return self.box.features

    @property
    def center(self) -> FloatArray:
        return self.box.center

    @property
    def half_width(self) -> FloatArray:
        return self.box.half_width

    def _reach(self, delta: FloatArray) -> float:
        a = np.abs(delta)
        level = _water_level(a, self.ball.radius)
        above = _sum(np.maximum(a - level, 0.0))
        below = _norm(np.minimum(a, level))
        return above + self.ball.radius * below

    def _furthest(self, delta: FloatArray) -> FloatArray:
        largest = float(np.abs(delta).max())
        if largest == 0.0:
            return np.zeros(len(self))
        unit = delta / largest
        unit[np.abs(unit) < _NEGLIGIBLE] = 0.0  # their squares would vanish, and with them the level
        level = _water_level(np.abs(unit), self.ball.radius)
        x = np.clip(unit / level, -1.0, 1.0) if level > 0 else np.sign(unit)
        return np.asarray(x * min(1.0, self.ball.radius / _norm(x)))

    def _encode(self, cells: Sequence[AnyArray], first: int, out: AnyArray) -> None:
        _into_ball(self.box._scaled(cells, first), 1.0, self.ball.radius, out)

    def _inside(self, x: AnyArray) -> npt.NDArray[np.bool_]:
        return self.box._inside(x) & (_row_norms(x, self.ball.radius) <= 1.0 + _NORM_SLACK)

    def _blocks(self) -> list[_Block]:
        return [_Block(BOXBALL, len(self), self.ball.radius, min(1.0, self.ball.radius), False)]

    def __repr__(self) -> str:
        return f"{self.box!r} & {self.ball!r}"


def _water_level(a: FloatArray, radius: float) -> float:
    """The level c > 0 at which x_j = min(1, a_j/c) has norm `radius`; 0 if even the corner of the box is in the ball.

    Sort a in decreasing order. If exactly the k largest are cut off at 1, then k + S_k/c² = R² with S_k the sum of the
    squares of the rest; k is right as soon as a_{k+1} <= c, that is a_{k+1}²(R² - k) <= S_k.
    """
    largest = float(a.max())
    if largest == 0.0:
        return 0.0
    descending = np.sort(a[a > 0])[::-1] / largest
    k = np.arange(len(descending))
    room = radius * radius - k
    if radius * radius >= len(descending):
        return 0.0
    rest = np.cumsum((descending**2)[::-1])[::-1]
    cut = int(np.argmax((room > 0) & (descending**2 * room <= rest)))
    return largest * math.sqrt(rest[cut] / room[cut])


def _parts(domain: Domain) -> tuple[Domain, ...]:
    return domain.parts if isinstance(domain, Product) else (domain,)


def _sum(values: FloatArray) -> float:
    with np.errstate(over="ignore"):
        return float(values.sum())


def _norm(values: FloatArray) -> float:
    """Euclidean norm of a vector, without overflow or underflow of the squares."""
    largest = float(np.abs(values).max())
    return largest * math.sqrt(float(np.square(values / largest).sum())) if largest > 0 else 0.0


def _row_norms(x: AnyArray, unit: float) -> FloatArray:
    """Euclidean norm of each row in units of `unit`, in float64; infinite or NaN where it cannot be computed."""
    with np.errstate(all="ignore"):
        scaled = np.asarray(x, dtype=np.float64) / unit
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", scaled, scaled)))


def _into_ball(raw: FloatArray, unit: float, radius: float, out: AnyArray) -> None:
    """out = raw/unit, rows outside ‖·‖ <= radius shrunk towards 0.

    What counts is the row as it is stored, after rounding to float32. Shrunk rows are aimed a little inside, by more
    than the rounding of their norm, so that a row once projected is left alone when it is projected again.
    """
    with np.errstate(all="ignore"):
        out[...] = raw / unit
    outside = ~(_row_norms(out, radius) <= 1.0)
    if outside.any():
        rows = raw[outside]
        direction = rows / np.abs(rows).max(axis=1, keepdims=True)
        direction /= _row_norms(direction, 1.0)[:, None]
        margin = 4.0 * float(np.finfo(out.dtype).eps) + raw.shape[1] * float(np.finfo(np.float64).eps)
        out[outside] = direction * (radius * (1.0 - margin))


def _chunks(n: int, width: int) -> list[tuple[int, int]]:
    step = max(1, _CHUNK_CELLS // max(1, width))
    return [(first, min(first + step, n)) for first in range(0, n, step)]


def _float_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    chosen = np.dtype(dtype)
    if chosen not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise DomainError(f"rows are kept as float32 or float64, not {chosen}")
    return chosen


def _as_array(values: object, what: str) -> AnyArray:
    """An array that shows every cell as it was given."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        row = int(np.argwhere(np.ma.getmaskarray(values))[0][0])
        raise DomainError(f"{what}, row {row}: a masked cell: remove the row or fill in a public value")
    # asked for an array, numpy would turn the list [1, "F"] into text
    return np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)


def _numbers(names: Sequence[str], cells: Sequence[AnyArray], first: int) -> FloatArray:
    """Numeric columns side by side in a fresh float64 array; `DomainError` at the first cell that is no number."""
    x = np.empty((len(cells[0]), len(cells)))
    for j, values in enumerate(cells):
        kind = values.dtype.kind
        if kind in "biuf":
            with np.errstate(over="ignore"):
                x[:, j] = values
        elif kind == "O":
            x[:, j] = [_number(value) for value in values.tolist()]
        else:
            x[:, j] = math.nan
    if not np.isfinite(x).all():
        j = int(np.flatnonzero(~np.isfinite(x).all(axis=0))[0])
        row = first + int(np.flatnonzero(~np.isfinite(x[:, j]))[0])
        raise DomainError(
            f"column {names[j]!r}, row {row}: not a finite number (missing, NaN, infinite or text):"
            " remove the row or fill in a public value"
        )
    return x


def _number(value: object) -> float:
    """A cell of an object array as a float; NaN for whatever is not a number, text that looks like one included."""
    if not isinstance(value, Real | Decimal | np.bool_):
        return math.nan
    try:
        return float(value)
    except (OverflowError, ValueError):
        return math.nan


def _positive(value: object, what: str) -> float:
    number = math.nan if isinstance(value, bool) else _number(value)
    if not (math.isfinite(number) and number > 0):
        raise DomainError(f"{what} must be a finite number above 0, not {value!r}")
    return number


def _check_names(names: Sequence[str], what: str, allow_none: bool = False) -> None:
    if not names and not allow_none:
        raise DomainError(f"a domain needs at least one {what}")
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name:
            raise DomainError(f"a {what} name must be a non-empty text, not {name!r}")
        if name in seen:
            raise DomainError(f"{what} {name!r} appears twice: every {what} needs a name of its own")
        seen.add(name)


def _check_bounds(name: str, pair: Sequence[float]) -> tuple[float, float]:
    if not isinstance(pair, Sequence | np.ndarray) or isinstance(pair, str) or len(pair) != 2:
        raise DomainError(f"column {name!r}: bounds are a pair (low, high), not {pair!r}")
    low, high = (math.nan if isinstance(end, bool) else _number(end) for end in pair)
    # half the width must not vanish either: it divides
    if not (math.isfinite(low) and math.isfinite(high) and high / 2 - low / 2 > 0):
        raise DomainError(f"column {name!r}: bounds must be finite numbers with low < high, not {pair!r}")
    return low, high


def _check_category(column: str, category: object) -> Category:
    plain = category.item() if isinstance(category, np.generic) else category
    if not isinstance(plain, str | int):
        raise DomainError(f"column {column!r}: category {category!r} is neither text, an integer nor a boolean")
    return plain
