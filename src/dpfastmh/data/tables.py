"""PRIVATE. Tables as they come: CSV, Parquet, Arrow files and Arrow streams, read in batches by pyarrow.

``open_table(source)`` looks at names and types only; ``Table.batches(columns)`` then reads the cells of those columns,
a batch of rows at a time, so that no table is ever in memory as a whole. What can be read:

* a path to a CSV file (``.gz``, ``.bz2`` and ``.zst`` are unpacked on the way), or ``-`` for CSV on standard input;
* a path to a Parquet file, a folder of Parquet files (in the order of their names), an Arrow or Feather file;
* in Python anything with the Arrow stream interface (pandas, Polars, DuckDB, PyArrow), or a mapping of arrays.

CSV cells are kept as bytes: what they mean is declared, never inferred. Rows are counted from 1, the header apart.
"""

from __future__ import annotations

import csv
import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpfastmh.schema import nearest

__all__ = ["Batch", "Table", "TableError", "open_table"]

BATCH = 16_384  # most rows of a batch
BLOCK = 1 << 20  # bytes of CSV read at a time, the most that one row may take
BUFFER = 1 << 18  # bytes of a Parquet column read at a time


class TableError(ValueError):
    """A table that cannot be read, or a cell that does not fit what is declared. One line: where, what to do."""


class Batch(NamedTuple):
    """Some rows of a table: ``cells[name]`` is a pyarrow array."""

    where: str  # the file, for messages
    first: int  # rows of that file before this batch
    rows: int
    cells: dict[str, Any]


Part = tuple[str, Any]  # the file's name and a pyarrow record batch whose columns are in the order asked for


class Table(NamedTuple):
    """Names, types where the source has them (CSV does not), the number of rows where it is known, and a reader.

    A stream (standard input, an Arrow stream) can be read once.
    """

    where: str
    names: tuple[str, ...]
    types: tuple[Any, ...] | None
    rows: int | None
    read: Callable[[tuple[str, ...]], Iterator[Part]]

    @property
    def text(self) -> bool:
        """Whether cells are bytes of text, as in CSV."""
        return self.types is None

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """The cells of ``columns``, in batches, in the order of the table."""
        wanted = tuple(dict.fromkeys(columns))
        self.check(wanted)
        place, done = self.where, 0
        with readable(self.where):
            for where, part in self.read(wanted):
                if where != place:
                    place, done = where, 0
                for start in range(0, part.num_rows, BATCH):
                    piece = part.slice(start, BATCH)
                    cells = {name: piece.column(j) for j, name in enumerate(wanted)}
                    yield Batch(where, done + start, piece.num_rows, cells)
                done += part.num_rows

    def check(self, columns: Sequence[str]) -> None:
        """Every one of ``columns`` is there, once."""
        for name in columns:
            count = self.names.count(name)
            if count == 0:
                if self.text and all(_is_number(other) for other in self.names):
                    raise TableError(
                        f"{self.where}: the first line holds numbers, not the names of columns: add a header"
                    )
                separator = next((mark for mark in ";\t|" if len(self.names) == 1 and mark in self.names[0]), "")
                hint = (
                    f": cells are separated by {separator!r}, write the file with commas"
                    if separator and self.text
                    else f"{nearest(name, self.names)}: add it, or correct the name"
                )
                raise TableError(f"{self.where}: column {name!r} is missing{hint}")
            if count > 1:
                raise TableError(f"{self.where}: {count} columns are called {name!r}: rename all but one")


def open_table(source: Any) -> Table:
    """A table from a path, an Arrow stream or a mapping of arrays; no cell is read yet. An open one stays as it is."""
    if isinstance(source, Table):
        return source
    if isinstance(source, str | os.PathLike):
        return _file(os.fspath(source))
    with readable("the table"):
        if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
            return _stream(source)
        if hasattr(source, "keys") and hasattr(source, "__getitem__"):
            return _mapping(source)
    raise TableError(
        f"a table is a path, an Arrow stream (a data frame of pandas or Polars, say) or a mapping of arrays,"
        f" not {type(source).__name__}"
    )


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn whatever pyarrow says about a damaged source into one line."""
    import pyarrow as pa

    try:
        yield
    except TableError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(f"{where}: no such file") from None
    except (pa.ArrowException, OSError, EOFError, MemoryError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise OSError(f"{where}: cannot be read: {error.strerror}") from None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TableError(f"{where}: cannot be read, damaged or of another kind: {reason[:200]}") from None


# -- files -----------------------------------------------------------------------------------------------------------

MAGIC = ((b"PAR1", "parquet"), (b"ARROW1", "arrow"), (b"\xff\xff\xff\xff", "arrow"))
PACKED = ((b"\x1f\x8b", "gzip"), (b"BZh", "bz2"), (b"\x28\xb5\x2f\xfd", "zstd"))
SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}


def _file(path: str) -> Table:
    if path == "-":
        if sys.stdin is None:
            raise TableError("standard input is closed: give a file, or pipe a table in")
        return _csv_once(sys.stdin.buffer, "standard input")
    if "\0" in path:
        raise TableError(f"{path!r} is not the path of a file")
    with readable(path):
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return _folder(Path(path))
        if not stat.S_ISREG(mode):  # a pipe: what is read of it is gone
            return _csv_once(open(path, "rb"), path)
        with open(path, "rb") as file:
            start = file.read(8)
        if not start:
            raise TableError(f"{path}: the file is empty")
        suffixes = [suffix.lower() for suffix in Path(path).suffixes]
        named = "csv" if ".csv" in suffixes else SUFFIXES.get(suffixes[-1]) if suffixes else None
        found = next((kind for magic, kind in MAGIC if start.startswith(magic)), "csv")
        if named not in (None, "csv", found):
            raise TableError(f"{path}: does not begin as a file of kind {named}: it is damaged, or of another kind")
        return {"csv": _csv_file, "parquet": _parquet_file, "arrow": _arrow}[named or found](path)


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files of a folder, in the order of their names."""
    files = sorted(
        path
        for path in folder.rglob("*.parquet")
        if path.is_file() and not any(part[0] in "._" for part in path.relative_to(folder).parts)
    )
    if not files:
        raise TableError(f"{folder}: no Parquet files in this folder: their names must end in .parquet")
    return files


def _folder(folder: Path) -> Table:
    return _parquet([str(path) for path in parquet_files(folder)], str(folder))


def _parquet_file(path: str) -> Table:
    return _parquet([path], path)


def _parquet(paths: Sequence[str], where: str) -> Table:
    import pyarrow.parquet as pq

    tables = []
    for path in paths:
        with readable(path), pq.ParquetFile(path) as file:
            tables.append((path, file.schema_arrow, max(0, file.metadata.num_rows)))

    def read(columns: tuple[str, ...]) -> Iterator[Part]:
        for path, schema, _ in tables:
            Table(path, tuple(schema.names), tuple(schema.types), None, read).check(columns)
        for path, _, _ in tables:
            with readable(path), pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
                for batch in file.iter_batches(BATCH, columns=list(columns), use_threads=False):
                    yield path, batch.select(list(columns))

    schema = tables[0][1]
    return Table(where, tuple(schema.names), tuple(schema.types), sum(rows for _, _, rows in tables), read)


def _arrow(path: str) -> Table:
    """An Arrow (Feather) file, or a stream of record batches in a file."""
    import pyarrow as pa

    def opened(file: Any, included: list[int] | None = None) -> tuple[Any, Iterator[Any]]:
        options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
        stream = file.read(6) != b"ARROW1"
        file.seek(0)
        if stream:
            reader = pa.ipc.open_stream(file, options=options)
            return reader.schema, iter(reader)
        reader = pa.ipc.open_file(file, options=options)
        return reader.schema, (reader.get_batch(k) for k in range(reader.num_record_batches))

    def read(columns: tuple[str, ...]) -> Iterator[Part]:
        with pa.OSFile(path) as file:
            for batch in opened(file, sorted(schema.names.index(name) for name in columns))[1]:
                batch.validate(full=True)
                yield path, batch.select(list(columns))

    with pa.OSFile(path) as file:
        schema = opened(file)[0]
    return Table(path, tuple(schema.names), tuple(schema.types), None, read)


# -- CSV -------------------------------------------------------------------------------------------------------------


class _Stream(io.RawIOBase):
    """What has been read of a stream already, then the rest; counts the quotation marks that go by."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest, self.quotes = memoryview(head), rest, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            part = bytes(self._head if size < 0 else self._head[:size])
            self._head = self._head[len(part) :]
        else:
            part = self._rest.read(size)
        self.quotes += part.count(b'"')
        return part


def _unpacked(file: Any, where: str) -> Any:
    """The bytes of a stream, decompressed where its first bytes say that it is compressed."""
    import pyarrow as pa

    start = file.read(4)
    if not start:
        raise TableError(f"{where}: the table is empty: a header and rows are needed")
    stream = _Stream(start, file)
    packed = next((name for magic, name in PACKED if start.startswith(magic)), None)
    return stream if packed is None else pa.CompressedInputStream(pa.PythonFile(stream, "r"), packed)


def _csv_head(file: Any, where: str) -> tuple[tuple[str, ...], _Stream]:
    """The names of the columns, and the stream of rows after them."""
    stream = _unpacked(file, where)
    head = bytearray()
    while len(head) < BLOCK and (more := stream.read(BLOCK - len(head))):
        head += more
    names, rest = _header(bytes(head), where)
    return names, _Stream(rest, stream)


def _csv_file(path: str) -> Table:
    def read(columns: tuple[str, ...]) -> Iterator[Part]:
        with open(path, "rb") as file:
            names, stream = _csv_head(file, path)
            for batch in _csv_batches(stream, names, columns, path):
                yield path, batch

    with open(path, "rb") as file:
        return Table(path, _csv_head(file, path)[0], None, None, read)


def _csv_once(file: Any, where: str) -> Table:
    """CSV from what can be read once."""
    with readable(where):
        names, stream = _csv_head(file, where)

    def read(columns: tuple[str, ...]) -> Iterator[Part]:
        for batch in _csv_batches(stream, names, columns, where):
            yield where, batch

    return Table(where, names, None, None, read)


def _header(head: bytes, where: str) -> tuple[tuple[str, ...], bytes]:
    """The names in the first line that is not empty, and what follows it. Latin-1 keeps every byte apart."""
    text = head.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    lines = io.StringIO(text, newline="")
    try:
        row = next((row for row in csv.reader(lines, strict=True) if row), None)
    except csv.Error as error:
        raise TableError(f"{where}: the header cannot be read ({error}): give one line of names and commas") from None
    if row is None:
        raise TableError(f"{where}: the table is empty: a header and rows are needed")
    try:
        names = tuple(name.encode("latin-1").decode("utf-8") for name in row)
    except UnicodeDecodeError:
        raise TableError(f"{where}: the header is not UTF-8 text: save the file as UTF-8") from None
    rest = text[lines.tell() :].encode("latin-1")
    return names, rest


def _csv_batches(stream: _Stream, names: tuple[str, ...], columns: tuple[str, ...], where: str) -> Iterator[Any]:
    """Batches of bytes. Columns go by number, so that names that nobody asked for may be anything."""
    import pyarrow as pa
    import pyarrow.csv

    wanted = [str(names.index(name)) for name in columns]
    first = stream.read(BLOCK)
    if not first.strip(b"\r\n"):  # pyarrow takes a file of no rows for a mistake; a block of empty lines is one
        return
    stream = _Stream(first, stream)
    try:
        reader = pyarrow.csv.open_csv(
            pa.PythonFile(stream, "r"),
            read_options=pyarrow.csv.ReadOptions(
                column_names=[str(j) for j in range(len(names))], block_size=BLOCK, use_threads=False
            ),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=wanted, column_types={name: pa.binary() for name in wanted}
            ),
        )
        yield from reader
    except pa.ArrowInvalid as error:
        ragged = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", str(error))
        if ragged:
            at = f"row {ragged[1]}" if ragged[1] else "a row"
            raise TableError(f"{where}: {at} has {ragged[3]} cells, the header {ragged[2]}: mend or drop it") from None
        if "straddling" in str(error):
            raise TableError(f"{where}: a quoted cell does not end, or a row is longer than {BLOCK} bytes") from None
        raise
    if stream.quotes % 2:
        raise TableError(
            f"{where}: an odd number of quotation marks: a quoted cell does not end, or holds a single one"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# -- what Python hands over ------------------------------------------------------------------------------------------


# what pyarrow raises for cells that it has no type for: too long an integer, say, or half of a surrogate pair
NOT_ARROW = (ValueError, TypeError, OverflowError, NotImplementedError)


def _stream(source: Any) -> Table:
    import pyarrow as pa

    try:
        if hasattr(source, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(source)
        else:
            batch = pa.record_batch(source)
            reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    except NOT_ARROW as error:
        raise TableError(f"the table has no Arrow form: {' '.join(str(error).split())[:200]}") from None

    def read(columns: tuple[str, ...]) -> Iterator[Part]:
        for batch in reader:
            yield "the table", batch.select(list(columns))

    return Table("the table", tuple(reader.schema.names), tuple(reader.schema.types), None, read)


def _mapping(source: Any) -> Table:
    import pyarrow as pa

    columns = {}
    for name in source.keys():  # noqa: SIM118 - of a data frame, only keys() is sure to mean its columns
        given = source[name]
        column = given if isinstance(given, list | tuple | np.ndarray) else np.asarray(given)
        if isinstance(column, np.ndarray) and column.ndim != 1:
            raise TableError(f"column {name!r} has shape {column.shape}: give a 1-D array")
        columns[str(name)] = column
    lengths = {name: len(column) for name, column in columns.items()}
    rows = next(iter(lengths.values()), 0)
    for name, length in lengths.items():
        if length != rows:
            raise TableError(f"column {name!r} has {length} rows, column {next(iter(lengths))!r} has {rows}")

    def array(name: str, start: int = 0) -> Any:
        piece = columns[name][start : start + BATCH]
        if isinstance(piece, np.ndarray) and not piece.dtype.isnative:
            piece = piece.astype(piece.dtype.newbyteorder("="))
        try:
            return pa.array(piece, from_pandas=True)
        except NOT_ARROW as error:
            reason = " ".join(str(error).split())[:200]
            raise TableError(f"column {name!r}: cells that are not all numbers, or all text: {reason}") from None

    def read(wanted: tuple[str, ...]) -> Iterator[Part]:
        for start in range(0, rows, BATCH):
            yield "the table", pa.record_batch([array(name, start) for name in wanted], names=list(wanted))

    return Table("the table", tuple(columns), tuple(map(_type_of, columns.values())), rows, read)


def _type_of(column: Any) -> Any:
    """The Arrow type of a column's first cells; None if it has none."""
    import pyarrow as pa

    try:
        return pa.array(column[:1], from_pandas=True).type
    except NOT_ARROW:
        return None
