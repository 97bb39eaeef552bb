"""PRIVATE. What a column's cells mean: numbers, or positions among declared categories.

The declaration decides, never what else is in the column:

* CSV cells are text. A number is written as usual (``3``, ``-1.5``, ``2e-4``; blanks around it are let be); a category
  matches by its exact text, an integer one by its digits, a boolean one by ``true`` or ``false`` in any case.
* Cells of typed sources match by value: the category 1 is 1, 1.0 and true; text never equals a number.
* Missing is a null or NaN, and in CSV an empty cell or one of ``MISSING``, unless that text is a declared category.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh.data.tables import Batch, TableError
from dpfastmh.schema import Column, is_date, toml_key

NUMBER_OF_A_DATE = "make a number of it first (days since a public day, say)"
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")

Mask = npt.NDArray[np.bool_]


class Cells(NamedTuple):
    """The cells of one column in a batch."""

    values: npt.NDArray[Any]  # float64, or positions among the categories; without meaning where the masks say so
    missing: Mask
    bad: Mask  # neither missing nor what is declared


def read(column: Column, batch: Batch, text: bool) -> Cells:
    """Numbers or positions; a column whose type cannot hold them is a `TableError`."""
    cells = _plain(batch.cells[column.name])
    where = f"{batch.where}: column {column.name!r}"
    if column.categories is not None:
        return _categories(column.categories, cells, text, where)
    found = _numbers_of_text(cells) if text else _numbers(cells, where)
    with np.errstate(invalid="ignore"):
        bad = found.bad | ~(found.missing | np.isfinite(found.values))
        if column.whole:
            bad |= ~found.missing & ~((found.values >= 0) & (found.values == np.floor(found.values)))
    return found._replace(bad=bad)


def declared(column: Column, batch: Batch, cells: Cells) -> npt.NDArray[Any]:
    """The cells as the domain and the model take them: numbers or categories, missing ones filled in.

    The first cell that cannot be used is a `TableError` that names its row.
    """
    wrong = cells.bad if column.missing is not None else cells.bad | cells.missing
    if wrong.any():
        raise TableError(refusal(column, batch, cells, int(np.argmax(wrong))))
    values = cells.values
    if cells.missing.any():
        values = np.where(cells.missing, column.fill, values).astype(values.dtype)
    return values if column.categories is None else np.asarray(column.categories)[values]


def refusal(column: Column, batch: Batch, cells: Cells, row: int) -> str:
    """Why the cell in row ``row`` of the batch cannot be used."""
    return f"{batch.where}: column {column.name!r}, row {batch.first + row + 1}: {reason(column, batch, cells, row)}"


def reason(column: Column, batch: Batch, cells: Cells, row: int) -> str:
    """The same without saying where."""
    if cells.missing[row]:
        return f"missing: drop the row, or declare the public value of missing cells, {_how_to_fill(column)}"
    try:
        value = batch.cells[column.name][row].as_py()
        value = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return "not UTF-8 text: save the file as UTF-8"
    shown = repr(value)[:60]
    if column.categories is not None:
        known = ", ".join(map(repr, column.categories))
        return f"unknown category {shown}: declare it, or map it to one of {known[:200]}"
    kind = "a count (whole, not negative)" if column.whole else "a finite number"
    if is_date(value):
        return f"{shown} is a date, not {kind}: {NUMBER_OF_A_DATE}"
    return f"{shown} is not {kind}: mend it, or drop the row"


def _how_to_fill(column: Column) -> str:
    return f"missing = VALUE in [columns.{toml_key(column.name)}] (in Python missing={{{column.name!r}: VALUE}})"


def _plain(cells: Any) -> Any:
    """Without dictionary encoding."""
    import pyarrow as pa

    return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells


def _mask(cells: Any) -> Mask:
    return np.asarray(cells.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
    )


def kind_of(type_: Any) -> str:
    """What the cells of an Arrow type are, for messages: "numbers", "text" or the type's own name."""
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return "text" if _is_text(type_) else "numbers" if _is_number(type_) else str(type_)


# -- numbers ---------------------------------------------------------------------------------------------------------


def _numbers(cells: Any, where: str) -> Cells:
    import pyarrow as pa

    if not _is_number(cells.type):
        date = pa.types.is_temporal(cells.type)
        cure = f": {NUMBER_OF_A_DATE}" if date else ""
        raise TableError(f"{where} is of type {cells.type}: a column with bounds, or of counts, holds numbers{cure}")
    if pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.int8())
    values = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)  # a null is NaN
    return Cells(values, np.isnan(values), np.zeros(len(values), np.bool_))


def _numbers_of_text(cells: Any) -> Cells:
    """Bytes as numbers. A batch without a bad cell is cast as a whole; any other is halved until all are found."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.ascii_trim(cells.cast(pa.large_binary()).view(pa.large_string()), " \t")
    missing = pc.is_in(trimmed, value_set=pa.array(MISSING, pa.large_string()))
    numbers = pc.if_else(missing, pa.scalar(None, pa.large_string()), trimmed)
    values = np.full(len(cells), np.nan)
    bad = np.zeros(len(cells), np.bool_)
    waiting = [(0, len(cells))]
    while waiting:
        start, stop = waiting.pop()
        try:
            piece = numbers.slice(start, stop - start).cast(pa.float64())
            values[start:stop] = piece.to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            if stop - start == 1:
                bad[start] = True
            else:
                middle = (start + stop) // 2
                waiting += [(start, middle), (middle, stop)]
    return Cells(values, _mask(missing), bad)


# -- categories ------------------------------------------------------------------------------------------------------


def _categories(categories: tuple[str | int | bool, ...], cells: Any, text: bool, where: str) -> Cells:
    import pyarrow as pa
    import pyarrow.compute as pc

    if text:
        spelt = [(position, form) for position, one in enumerate(categories) for form in _spellings(one)]
        known = pa.array([form for _, form in spelt], pa.binary())
        found = pc.index_in(cells, value_set=known)
        absent = _mask(pc.is_in(cells, value_set=pa.array([form.encode() for form in MISSING], pa.binary())))
    elif isinstance(categories[0], str):
        if not (_is_text(cells.type) or pa.types.is_null(cells.type)):
            raise TableError(f"{where} is of type {cells.type}, its categories are text: declare them as the cells are")
        spelt = list(enumerate(form.encode() for form in map(str, categories)))
        cells = cells.cast(pa.large_string())
        found = pc.index_in(cells, value_set=pa.array(map(str, categories), pa.large_string()))
        absent = _mask(pc.is_null(cells))
    else:
        if not _is_number(cells.type):
            raise TableError(
                f"{where} is of type {cells.type}, its categories are no text: declare them as the cells are"
                f" (they are {', '.join(map(repr, categories))}; a target's are the model's classes=[...])"
            )
        cells = _comparable(cells)
        spelt = [(position, b"") for position, one in enumerate(categories) if _fits(int(one), cells.type)]
        known = pa.array([int(categories[position]) for position, _ in spelt], cells.type)
        found = pc.index_in(cells, value_set=known)
        absent = _mask(pc.is_null(cells, nan_is_null=True))
    unknown = _mask(pc.is_null(found))
    position = np.array([position for position, _ in spelt], dtype=np.int64)
    chosen = np.asarray(pc.fill_null(found, 0).to_numpy(zero_copy_only=False))
    values = position[chosen] if position.size else np.zeros(len(cells), np.int64)
    return Cells(values, absent & unknown, unknown & ~absent)


def _spellings(category: str | int | bool) -> list[bytes]:
    if isinstance(category, bool):
        return [form.encode() for form in (str(category), str(category).lower(), str(category).upper())]
    return [str(category).encode()]


def _comparable(cells: Any) -> Any:
    """Numbers as a type that index_in knows: integers as they are, all others as float64."""
    import pyarrow as pa

    if pa.types.is_boolean(cells.type):
        return cells.cast(pa.int8())
    return cells if pa.types.is_integer(cells.type) else cells.cast(pa.float64(), safe=False)


def _fits(number: int, kind: Any) -> bool:
    """Whether a column of this type can hold the number at all, exactly."""
    import pyarrow as pa

    try:
        pa.scalar(number, kind)
    except (pa.ArrowException, OverflowError):
        return False
    return True
