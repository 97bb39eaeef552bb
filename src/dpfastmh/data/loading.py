"""PRIVATE. From a table to the rows that the compiled chain reads: one pass, no second copy.

Every batch is projected onto the public domain as it comes and put at the end of the final matrix, which is as large as
the table says it is, or grows in place where the number of rows is not known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh import losses
from dpfastmh.data import cells, memory
from dpfastmh.data.fingerprint import Cells
from dpfastmh.data.tables import Batch, Table, TableError, open_table
from dpfastmh.data.units import Units
from dpfastmh.domain import Domain, OneHot, Product
from dpfastmh.models import GLM
from dpfastmh.schema import Column, Value, nearest
from dpfastmh.steps.likelihood import Rows

__all__ = ["Loaded", "Projection", "load"]


class Loaded(NamedTuple):
    """The rows, which are private, and what is public about them.

    With a unit column the number of rows is private too: ``units`` is the size of the data.
    """

    rows: Rows
    units: int
    rows_per_unit: int  # at most


def load(
    model: GLM,
    source: Any,
    *,
    target: str,
    unit: str | None = None,
    max_rows_per_unit: int = 1,
    missing: Mapping[str, Value] | None = None,
    dtype: npt.DTypeLike = np.float32,
    fingerprint: Cells | None = None,
) -> Loaded:
    """Read what ``model`` needs of a table: see ``open_table`` for the sources, ``Units`` for people with several rows.

    ``missing`` gives the public values of missing cells by column; without one a missing cell is refused, and so is
    every cell that is not what the model's domain or target declares. Numbers outside their bounds are clipped.
    ``fingerprint`` is shown every cell as the table has it.
    """
    reading = Projection(model, target, unit, max_rows_per_unit, missing, dtype)
    table = open_table(source)
    people = reading.people(table)
    x = _Growing((len(model.domain),), dtype, table.rows)
    y = _Growing((), dtype, table.rows)
    for scaled, targets in reading.batches(table, people, fingerprint=fingerprint):
        x.append(scaled)
        y.append(targets)
    units = reading.units(table, people, y.size)
    return Loaded(memory.rows(x.finished(), y.finished()), units, reading.rows_per_unit)


class Projection:
    """How the rows of a table become rows of a model: which cells are read, which rows count. Holds no record."""

    def __init__(
        self,
        model: GLM,
        target: str,
        unit: str | None = None,
        max_rows_per_unit: int = 1,
        missing: Mapping[str, Value] | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.features, self.outcome = declarations(model, target, unit, missing or {})
        if unit is not None and (
            isinstance(max_rows_per_unit, bool) or not isinstance(max_rows_per_unit, int) or max_rows_per_unit < 1
        ):
            raise TableError(f"max_rows_per_unit is {max_rows_per_unit!r}: it must be a whole number of at least 1")
        self.model, self.unit, self.dtype = model, unit, np.dtype(dtype)
        self.rows_per_unit = 1 if unit is None else max_rows_per_unit
        self.needed = [*(column.name for column in self.features), target, *([] if unit is None else [unit])]

    def people(self, table: Table) -> Units | None:
        """A count of the rows of each unit, as long as one reading of the table."""
        return None if self.unit is None else Units(self.unit, self.rows_per_unit, table.text)

    def batches(
        self, table: Table, people: Units | None, skip: int = 0, fingerprint: Cells | None = None
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Scaled features and targets of the rows that count, batch by batch, without the first ``skip`` of them; the
        fingerprint is of all cells."""
        for batch in table.batches(self.needed):
            kept = None if people is None else people.keep(batch)
            count = batch.rows if kept is None else int(kept.sum())
            if skip >= count > 0:
                skip -= count
                if fingerprint is not None:
                    self.cells(batch, table.text, fingerprint)
                continue
            scaled, targets = self.rows(batch, table.text, fingerprint)
            if kept is not None:
                scaled, targets = scaled[kept], targets[kept]
            yield scaled[skip:], targets[skip:]
            skip = max(0, skip - count)

    def rows(
        self, batch: Batch, text: bool, fingerprint: Cells | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """All rows of a batch, projected."""
        read = self.cells(batch, text, fingerprint)
        targets = self.model.stored(self.model.targets(read.pop(self.outcome.name)), self.dtype)
        if not read:  # a domain of constants: any column says how many rows there are
            read = {self.outcome.name: targets}
        return self.model.domain.project(read, self.dtype), targets

    def cells(self, batch: Batch, text: bool, fingerprint: Cells | None) -> dict[str, Any]:
        """The cells of a batch as declared, by column; ``fingerprint`` is shown them as the table has them."""
        read = {}
        for column in (*self.features, self.outcome):
            found = cells.read(column, batch, text)
            read[column.name] = cells.declared(column, batch, found)
            if fingerprint is None:
                continue
            if column.categories is None:
                fingerprint.add_numbers(column.name, found.values, found.missing)
            else:
                fingerprint.add_categories(column.name, column.categories, found.values, found.missing)
        return read

    def units(self, table: Table, people: Units | None, rows: int) -> int:
        """The public number of units, at least two."""
        units = rows if people is None else people.count
        if units < 2:
            what = "row" if self.unit is None else "unit"
            raise TableError(f"{table.where}: {units} {what}{'' if units == 1 else 's'}: at least two are needed")
        return units


def declarations(
    model: GLM, target: str, unit: str | None, missing: Mapping[str, Value]
) -> tuple[list[Column], Column]:
    """What the model declares about each feature's column, and about the target's."""
    names = [*model.domain.columns, target]
    for name in missing:
        if name not in names:
            raise TableError(f"missing names column {name!r}, which the model does not read{nearest(name, names)}")
    if target in model.domain.columns:
        raise TableError(f"column {target!r} is the target and a feature: take it out of the domain")
    if unit in names:
        raise TableError(f"column {unit!r} is the unit, and the model reads it too: it can be one of them")
    features = [
        Column(name, categories=categories, missing=missing.get(name))
        for name, categories in declared_columns(model.domain)
    ]
    classes = model.classes
    if isinstance(model.loss, losses.Logistic | losses.Softmax) and classes is None:
        classes = list(range(2 if isinstance(model.loss, losses.Logistic) else model.loss.classes))
    outcome = Column(
        target,
        categories=None if classes is None else tuple(c.item() if isinstance(c, np.generic) else c for c in classes),
        whole=isinstance(model.loss, losses.Poisson),
        missing=missing.get(target),
    )
    return features, outcome


def declared_columns(domain: Domain) -> Iterator[tuple[str, tuple[str | int | bool, ...] | None]]:
    """The raw columns that a domain reads, with the categories of those that have them."""
    for part in domain.parts if isinstance(domain, Product) else (domain,):
        if isinstance(part, OneHot):
            yield part.column, part.categories
        else:
            yield from ((name, None) for name in part.columns)


class _Growing:
    """Rows at the end of an array. Pages that hold none are never touched, and an array that grows is not copied where
    the system can move its pages instead."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike, expected: int | None) -> None:
        self.size = 0
        try:
            self._held = np.empty((expected or 0, *shape), dtype)
        except (MemoryError, ValueError):
            raise TableError(f"a table of {expected} rows does not fit into memory") from None

    def append(self, part: npt.NDArray[Any]) -> None:
        need = self.size + len(part)
        if need > len(self._held):
            self._resize(need + need // 8)
        self._held[self.size : need] = part
        self.size = need

    def finished(self) -> npt.NDArray[Any]:
        """The array, cut to its rows; nothing may be appended afterwards."""
        self._resize(self.size)
        return self._held

    def _resize(self, rows: int) -> None:
        self._held.resize((rows, *self._held.shape[1:]), refcheck=False)
