"""Tables from every source give the same rows; what cannot be read is one line that says where; and which rows of a
unit count is decided by that unit's rows alone."""

import bz2
import gzip
import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfastmh import LogisticRegression, PoissonRegression, StudentTRegression, datasets
from dpfastmh.data import tables
from dpfastmh.data.loading import Loaded, _Growing, load
from dpfastmh.data.tables import Table, TableError, open_table
from dpfastmh.data.units import Units
from dpfastmh.domain import Box, Constant, OneHot
from dpfastmh.models import GLM
from dpfastmh.schema import Schema, SchemaError

MODEL = LogisticRegression(Box(age=(0, 100)) * OneHot("sex", ["F", "M"]), classes=("no", "yes"))
ROWS = 10
RAW: dict[str, list[Any]] = {
    "note": ["x, y", 'a "quote"', "two\nlines", "", "é", "n", "n", "n", "n", "n"],
    "age": [10.0, 20.5, None, -5.0, 200.0, 1e-3, 60.0, 70.0, 80.0, 90.0],
    "sex": ["F", "M", "M", "F", "F", "M", "F", "M", "F", "M"],
    "y": ["no", "yes", "no", "yes", "no", "yes", "no", "yes", "no", "yes"],
    "person": ["a", "b", "a", "a", "c", "b", "d", "b", "e", "b"],
}
AGES = np.array([10, 20.5, 50, 0, 100, 1e-3, 60, 70, 80, 90]) / 50 - 1
EXPECTED = np.column_stack([np.ones(ROWS), AGES, [0, 1, 1, 0, 0, 1, 0, 1, 0, 1]])


def loaded(source: Any, **options: Any) -> Loaded:
    return load(MODEL, source, **{"target": "y", "missing": {"age": 50}} | options)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    assert "\r" not in text
    return text


# ---------------------------------------------------------------- the same rows from every source


def csv(folder: Path, name: str = "t.csv", pack: Callable[[bytes], bytes] = bytes, **options: Any) -> str:
    path = folder / name
    path.write_bytes(pack(pd.DataFrame(RAW).to_csv(index=False, **options).encode()))
    return str(path)


def zstd(raw: bytes) -> bytes:
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(raw)
    return bytes(packed.getvalue())


def in_folder(folder: Path) -> str:
    parts = folder / "parts"
    (parts / "deeper").mkdir(parents=True)
    table = pa.table(RAW)
    pa.parquet.write_table(table.slice(6), parts / "deeper" / "part-3.parquet")
    pa.parquet.write_table(table.slice(0, 0), parts / "a-empty.parquet")
    pa.parquet.write_table(table.slice(0, 4), parts / "b.parquet")
    pa.parquet.write_table(table.slice(4, 2), parts / "c.parquet")
    (parts / "_SUCCESS").write_text("")
    (parts / "_metadata.parquet").write_text("not a table")
    return str(parts)


def written(write: Callable[[Any, Path], None], name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        write(pa.table(RAW), folder / name)
        return str(folder / name)

    return make


def stream_file(table: Any, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        for batch in table.to_batches(3):
            stream.write_batch(batch)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "CSV": csv,
    "CSV, Windows": lambda folder: csv(folder, pack=lambda raw: b"\xef\xbb\xbf" + raw, lineterminator="\r\n"),
    "CSV, all quoted": lambda folder: csv(folder, quoting=1),
    "CSV, empty lines": lambda folder: csv(folder, pack=lambda raw: b"\n\n" + raw + b"\n\n"),
    "CSV, blanks": lambda folder: csv(folder, pack=lambda raw: raw.replace(b",20.5,", b", 20.5\t,")),
    "CSV, gzip": lambda folder: csv(folder, "t.csv.gz", gzip.compress),
    "CSV, gzip in two": lambda folder: csv(
        folder, "t.gz", lambda raw: gzip.compress(raw[:40]) + gzip.compress(raw[40:])
    ),
    "CSV, bz2": lambda folder: csv(folder, "t.csv.bz2", bz2.compress),
    "CSV, zstd": lambda folder: csv(folder, "t.csv.zst", zstd),
    "CSV, other suffix": lambda folder: csv(folder, "t.data"),
    "Parquet": written(pa.parquet.write_table, "t.parquet"),
    "Parquet, no suffix": written(pa.parquet.write_table, "t"),
    "Parquet, row groups": written(lambda t, p: pa.parquet.write_table(t, p, row_group_size=3), "t.parquet"),
    "Parquet, dictionary": written(
        lambda t, p: pa.parquet.write_table(t.set_column(2, "sex", t["sex"].dictionary_encode()), p), "t.parquet"
    ),
    "folder": in_folder,
    "Feather": written(pa.feather.write_feather, "t.feather"),
    "Feather, batches": written(lambda t, p: pa.feather.write_feather(t, p, chunksize=3), "t.arrow"),
    "Arrow stream in a file": written(stream_file, "t.arrow"),
    "pandas": lambda folder: pd.DataFrame(RAW),
    "pandas, categories": lambda folder: pd.DataFrame(RAW).astype({"sex": "category"}),
    "Polars": lambda folder: pl.DataFrame(RAW),
    "DuckDB": lambda folder: duckdb.from_arrow(pa.table(RAW)),
    "pyarrow table": lambda folder: pa.table(RAW),
    "pyarrow reader": lambda folder: pa.table(RAW).to_reader(max_chunksize=3),
    "pyarrow batch": lambda folder: pa.table(RAW).to_batches()[0],
    "array interface": lambda folder: type(
        "A", (), {"__arrow_c_array__": pa.table(RAW).to_batches()[0].__arrow_c_array__}
    )(),
    "lists": lambda folder: RAW,
    "mapping": lambda folder: {name: np.array(column, dtype=object) for name, column in RAW.items()},
    "typed arrays": lambda folder: {
        name: np.array(column, dtype=float if name == "age" else str) for name, column in RAW.items()
    },
    "masked": lambda folder: RAW | {"age": np.ma.masked_invalid(np.array(RAW["age"], dtype=float))},
    "other byte order": lambda folder: RAW | {"age": np.array(RAW["age"], dtype=">f8")},
}


@pytest.fixture(params=[tables.BATCH, 3], ids=["one batch", "batches of 3"])
def _batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCH", request.param)


@pytest.mark.usefixtures("_batches")
@pytest.mark.parametrize("name", SOURCES)
def test_the_same_rows_from_every_source(name: str, tmp_path: Path) -> None:
    rows, units, most = loaded(SOURCES[name](tmp_path))
    assert (units, most) == (ROWS, 1)
    assert rows.x.dtype == rows.y.dtype == np.float32
    assert rows.x.flags.c_contiguous
    np.testing.assert_allclose(rows.x, EXPECTED, atol=1e-7)
    assert rows.y.tolist() == [0, 1] * 5
    kept = loaded(remade(name, tmp_path), unit="person", max_rows_per_unit=2)
    assert (kept.units, kept.rows_per_unit) == (5, 2)
    np.testing.assert_array_equal(kept.rows.x, rows.x[[0, 1, 2, 4, 5, 6, 8]])
    assert kept.rows.y.tolist() == [0, 1, 0, 0, 1, 0, 0]


def remade(name: str, folder: Path) -> Any:
    """The source once more: a stream can be read once."""
    again = folder / "again"
    again.mkdir()
    return SOURCES[name](again)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    raw = pack(pd.DataFrame(RAW).to_csv(index=False).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    np.testing.assert_allclose(loaded("-").rows.x, EXPECTED, atol=1e-7)


def test_a_long_csv_in_many_blocks(tmp_path: Path) -> None:
    n = 200_000
    age = np.random.default_rng(1).uniform(0, 100, n)
    frame = pd.DataFrame({"age": age, "sex": np.array(["F", "M"])[np.arange(n) % 2], "y": "no", "p": np.arange(n) // 3})
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    rows = loaded(path, dtype=np.float64).rows
    np.testing.assert_allclose(rows.x[:, 1], age / 50 - 1, rtol=1e-12, atol=1e-15)
    assert rows.x[:, 2].tolist() == [0, 1] * (n // 2)
    kept = loaded(path, unit="p", max_rows_per_unit=2, dtype=np.float64)
    assert kept.units == -(-n // 3)
    np.testing.assert_array_equal(kept.rows.x, rows.x[np.arange(n) % 3 < 2])


def test_reading_stops_at_the_columns_that_are_needed(tmp_path: Path) -> None:
    strange = (
        pa.table(RAW | {"age": RAW["age"]})
        .append_column("list", pa.array([[1]] * ROWS))
        .append_column("s", pa.array([{"a": 1}] * ROWS))
    )
    pa.parquet.write_table(strange, tmp_path / "t.parquet")
    assert loaded(tmp_path / "t.parquet").units == ROWS
    assert loaded(strange).units == ROWS
    twice = pd.DataFrame(RAW).to_csv(index=False).replace("note,", "person,", 1)
    (tmp_path / "t.csv").write_text(twice)
    assert loaded(tmp_path / "t.csv").units == ROWS


def test_a_parquet_column_may_be_called_anything(tmp_path: Path) -> None:
    name = 'a.b, "c"\n'
    model = LogisticRegression(Box({name: (0, 1)}))
    table = pd.DataFrame({name: [0.0, 1.0], "y": [0, 1]})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    for source in (tmp_path / "t.csv", tmp_path / "t.parquet", table):
        assert load(model, source, target="y").rows.x.tolist() == [[1, -1], [1, 1]]


# ---------------------------------------------------------------- what cells mean


def one_column(cells: Any, model: GLM, **options: Any) -> list[float]:
    return [
        float(v) for v in load(model, {"a": cells, "y": [0, 1] * (len(cells) // 2)}, target="y", **options).rows.x[:, 1]
    ]


@pytest.mark.parametrize(
    "cells",
    [
        np.array([0, 1]),
        np.array([0, 1], np.uint64),
        np.array([0, 1], np.int8),
        np.array([0.0, 1.0]),
        np.array([0, 1], np.float16),
        np.array([False, True]),
        pa.array([Decimal("0.0"), Decimal("1.0")]),
    ],
)
def test_typed_cells_match_integer_categories_by_value(cells: Any) -> None:
    if isinstance(cells, pa.Array):
        source = pa.table({"a": cells, "y": [0, 1]})
        assert load(LogisticRegression(OneHot("a", [0, 1])), source, target="y").rows.x[:, 1].tolist() == [0, 1]
        assert load(LogisticRegression(Box(a=(0, 1))), source, target="y").rows.x[:, 1].tolist() == [-1, 1]
        return
    assert one_column(cells, LogisticRegression(OneHot("a", [0, 1]))) == [0, 1]
    assert one_column(cells, LogisticRegression(OneHot("a", [True, False]))) == [1, 0]
    assert one_column(cells, LogisticRegression(Box(a=(0, 1)))) == [-1, 1]


@pytest.mark.parametrize("cells", [np.array([1, 2]), np.array([1.0, 2.0]), np.array([1, 2], np.int8)])
def test_numbers_beyond_the_type_of_a_column_match_nothing_in_it(cells: Any) -> None:
    model = LogisticRegression(OneHot("a", [2**53 + 1, 300, 1, 2]))
    assert load(model, {"a": cells, "y": [0, 1]}, target="y").rows.x.tolist() == [[1, 0, 1, 0], [1, 0, 0, 1]]


@pytest.mark.parametrize(
    ("categories", "cells"),
    [
        ([0, 1], "0 1"),
        (["0", "1"], "0 1"),
        ([False, True], "false true"),
        ([False, True], "False TRUE"),
        (["1.0", "1"], "1.0 1"),
        (["NA", "nan"], "NA nan"),
        (["", "x"], " x"),
    ],
)
def test_csv_cells_match_by_their_text(categories: list[Any], cells: str, tmp_path: Path) -> None:
    first, second = cells.split(" ")
    (tmp_path / "t.csv").write_text(f"a,y\n{first},0\n{second},1\n")
    model = LogisticRegression(OneHot("a", categories))
    assert load(model, tmp_path / "t.csv", target="y").rows.x[:, 1].tolist() == [0, 1]


@pytest.mark.parametrize("cell", ["1.0", " 1", "01", "+1", "True"])
def test_csv_integers_match_by_their_digits_only(cell: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"a,y\n{cell},0\n0,1\n")
    with pytest.raises(TableError, match="column 'a', row 1: unknown category"):
        load(LogisticRegression(OneHot("a", [0, 1])), tmp_path / "t.csv", target="y")


@pytest.mark.parametrize("form", ["", '""', "NA", "N/A", "NaN", "nan", "null", "NULL"])
def test_what_is_missing_in_csv_takes_the_declared_value(form: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"a,b,y\n{form},u,0\n3,{form},1\n4,v,{form}\n")
    model = LogisticRegression(Box(a=(-10, 10)) * OneHot("b", ["u", "v"]))
    rows = load(model, tmp_path / "t.csv", target="y", missing={"a": 5, "b": "v", "y": 1}).rows
    np.testing.assert_allclose(rows.x[:, 1:], [[0.5, 0], [0.3, 1], [0.4, 1]], rtol=1e-6)
    assert rows.y.tolist() == [0, 1, 1]


def test_targets_that_are_numbers_or_counts() -> None:
    source = {"a": [0.0, 1.0, 1.0], "y": [-3.0, 0.5, 99.0]}
    box = Box(a=(0, 1))
    assert load(StudentTRegression(box, target_bounds=(0, 9)), source, target="y").rows.y.tolist() == [0, 0.5, 9]
    counts = source | {"y": [0, 3, None]}
    assert load(PoissonRegression(box, cap=2), counts, target="y", missing={"y": 1}).rows.y.tolist() == [0, 2, 1]


def test_a_domain_without_columns() -> None:
    model = LogisticRegression(Constant("one"), intercept=False)
    assert load(model, {"y": [0, 1, 1]}, target="y").rows.x.tolist() == [[1], [1], [1]]


def test_what_is_declared_decides_and_not_what_is_found() -> None:
    rows = load(MODEL, {"age": [5.0, 5.0], "sex": ["F", "F"], "y": ["no", "no"]}, target="y").rows
    assert rows.x[:, 2].tolist() == rows.y.tolist() == [0, 0]


# ---------------------------------------------------------------- mistakes

TEXT = "age,sex,y,person\n10,F,no,a\n20,M,yes,b\n30,F,no,c\n"
CSV_MISTAKES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "only a mark": (b"\xef\xbb\xbf", "the table is empty"),
    "only lines": (b"\n\r\n\n", "the table is empty"),
    "only a header": (TEXT[:17].encode(), "0 rows: at least two"),
    "a header and lines": (TEXT[:17].encode() + b"\n\n\n", "0 rows: at least two"),
    "one row": (TEXT[:27].encode(), "1 row: at least two"),
    "no header": (b"10,1,0\n20,1,1\n", "the first line holds numbers, not the names of columns"),
    "missing column": (TEXT.replace("age", "aged").encode(), r"column 'age' is missing \(did you mean 'aged'\?\)"),
    "semicolons": (TEXT.replace(",", ";").encode(), "cells are separated by ';'"),
    "twice": (TEXT.replace("person", "age").encode(), "2 columns are called 'age'"),
    "text": (TEXT.replace("20", "abc").encode(), "column 'age', row 2: 'abc' is not a finite number"),
    "decimal comma": (TEXT.replace("20", '"2,5"').encode(), "column 'age', row 2: '2,5' is not"),
    "infinite": (TEXT.replace("20", "-inf").encode(), "column 'age', row 2: '-inf' is not"),
    "overflow": (TEXT.replace("20", "1e999").encode(), "column 'age', row 2: '1e999' is not"),
    "missing cell": (TEXT.replace("20", "").encode(), "column 'age', row 2: missing"),
    "missing class": (TEXT.replace("no,c", ",c").encode(), "column 'y', row 3: missing"),
    "unknown category": (TEXT.replace("M", "X").encode(), "column 'sex', row 2: unknown category 'X': .*'F', 'M'"),
    "unknown class": (TEXT.replace("yes", "maybe").encode(), "column 'y', row 2: unknown category 'maybe'"),
    "not UTF-8": (TEXT.replace("M", "\xfc").encode("latin-1"), "column 'sex', row 2: not UTF-8"),
    "number not UTF-8": (TEXT.replace("20", "\xfc").encode("latin-1"), "column 'age', row 2: not UTF-8"),
    "header not UTF-8": (TEXT.replace("person", "\xfc").encode("latin-1"), "header is not UTF-8"),
    "UTF-16": (TEXT.encode("utf-16"), "header is not UTF-8"),
    "short row": (TEXT.replace(",b", "").encode(), "row 2 has 3 cells, the header 4"),
    "long row": (TEXT.replace("c\n", "c,d\n").encode(), "row 3 has 5 cells, the header 4"),
    "open quote": (TEXT.replace("c\n", '"c\n').encode(), "an odd number of quotation marks"),
    "long open quote": (TEXT.replace("c\n", '"c').encode() + b"x" * 2_500_000, "a quoted cell does not end"),
    "broken header": (b'"age"x,sex\n', "the header cannot be read"),
    "open header": (b'age,"sex\n1,2\n', "the header cannot be read"),
    "truncated gzip": (gzip.compress(TEXT.encode() * 9)[:-9], "cannot be read"),
    "damaged gzip": (gzip.compress(TEXT.encode())[:12] + b"\0\0\0\0", "cannot be read"),
    "truncated bz2": (bz2.compress(TEXT.encode())[:-9], "cannot be read"),
    "truncated zstd": (zstd(TEXT.encode() * 9)[:-5], "cannot be read"),
}


@pytest.mark.parametrize("name", CSV_MISTAKES)
def test_a_mistake_in_a_csv_is_one_line_that_says_where(name: str, tmp_path: Path) -> None:
    raw, message = CSV_MISTAKES[name]
    path = tmp_path / "t.csv"
    path.write_bytes(raw)
    with pytest.raises(TableError, match=message) as caught:
        loaded(path, missing={})
    assert one_line(caught.value).startswith(str(path))


def frame(**columns: Any) -> dict[str, Any]:
    return {"age": [1.0, 2.0], "sex": ["F", "M"], "y": ["no", "yes"], "person": [1, 2]} | columns


TYPED_MISTAKES: dict[str, tuple[Any, str]] = {
    "missing column": (frame() | {"y": None}, "shape"),
    "renamed": ({"ages": [1.0], "sex": ["F"], "y": ["no"]}, r"column 'age' is missing \(did you mean 'ages'\?\)"),
    "null": (frame(age=[1.0, None]), "column 'age', row 2: missing"),
    "nan": (frame(age=np.array([1.0, np.nan])), "column 'age', row 2: missing"),
    "inf": (frame(age=[1.0, np.inf]), "column 'age', row 2: inf is not a finite number"),
    "null category": (frame(sex=["F", None]), "column 'sex', row 2: missing"),
    "text for numbers": (frame(age=["1", "2"]), "column 'age' is of type string"),
    "date for numbers": (frame(age=np.array(["2020-01-01"] * 2, "M8[s]")), "column 'age' is of type timestamp"),
    "numbers for text": (frame(sex=[0, 1]), "column 'sex' is of type int64, its categories are text"),
    "unknown": (frame(sex=["F", "f"]), "column 'sex', row 2: unknown category 'f'"),
    "empty text": (frame(sex=["F", ""]), "column 'sex', row 2: unknown category ''"),
    "lengths": (frame(age=[1.0]), "column 'sex' has 2 rows, column 'age' has 1"),
    "two dimensions": (frame(age=np.zeros((2, 2))), r"column 'age' has shape \(2, 2\)"),
    "mixed": (frame(age=[1.0, "x"]), "column 'age': cells that are not all numbers"),
    "complex": (frame(age=np.array([1j, 2])), "column 'age': cells that are not all numbers"),
    "too long": (frame(person=[1, 2], age=[1, 2**70]), "column 'age': cells that are not all numbers"),
    "surrogate": (frame(sex=["F", "\ud800"]), "column 'sex': cells that are not all numbers"),
    "one row": (pa.table(frame()).slice(0, 1), "1 row: at least two are needed"),
    "no rows": (pl.DataFrame(frame()).clear(), "0 rows: at least two"),
    "no table": (3, "a table is a path, .* not int"),
    "pandas, mixed": (pd.DataFrame(frame(age=[1.0, "x"])), "the table has no Arrow form: .*age"),
    "pandas, twice": (pd.DataFrame([[1.0, 2.0]], columns=["age", "age"]), "the table has no Arrow form: [Dd]uplicate"),
    "twice": (pa.table([[1.0], [2.0]], names=["age", "age"]), "2 columns are called 'age'"),
}


@pytest.mark.parametrize("name", TYPED_MISTAKES)
def test_a_mistake_in_what_python_hands_over(name: str) -> None:
    source, message = TYPED_MISTAKES[name]
    with pytest.raises(TableError, match=message) as caught:
        loaded(source, missing={})
    one_line(caught.value)


def test_text_of_a_typed_source_that_is_not_utf8() -> None:
    damaged = pa.array([b"F", b"\xff"]).view(pa.string())
    with pytest.raises(TableError, match="column 'sex', row 2: not UTF-8 text"):
        loaded(pa.table(frame(sex=damaged)))


def test_text_does_not_match_numbers() -> None:
    with pytest.raises(TableError, match="column 'a' is of type string, its categories are no text"):
        load(LogisticRegression(OneHot("a", [0, 1])), {"a": ["0", "1"], "y": [0, 1]}, target="y")


@pytest.mark.parametrize("y", [[0, -1], [0, 1.5]])
def test_counts_are_whole_and_not_negative(y: list[float]) -> None:
    with pytest.raises(TableError, match=r"column 'y', row 2: -?1\S* is not a count"):
        load(PoissonRegression(Box(a=(0, 1)), cap=2), {"a": [0, 1], "y": y}, target="y")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "age"}, "column 'age' is the target and a feature"),
        ({"unit": "age"}, "column 'age' is the unit, and the model reads it too"),
        ({"unit": "y"}, "column 'y' is the unit"),
        ({"unit": "person", "max_rows_per_unit": 0}, "max_rows_per_unit is 0"),
        ({"unit": "persons"}, r"column 'persons' is missing \(did you mean 'person'\?\)"),
        ({"missing": {"agee": 1}}, r"missing names column 'agee'.*\(did you mean 'age'\?\)"),
        ({"missing": {"age": "x"}}, "column 'age': missing = 'x' is not a finite number"),
        ({"missing": {"sex": "x"}}, "column 'sex': missing = 'x' is not one of its categories"),
    ],
)
def test_a_mistake_in_what_is_asked_for(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TableError, SchemaError), match=message) as caught:
        loaded(RAW, **options)
    one_line(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        loaded(tmp_path / "none.csv")
    with pytest.raises(TableError, match="no Parquet files in this folder"):
        loaded(tmp_path)
    with pytest.raises(TableError, match="not the path of a file"):
        loaded("a\0b")
    table = pa.table(RAW)
    for name, write in (("t.parquet", pa.parquet.write_table), ("t.feather", pa.feather.write_feather)):
        path = tmp_path / name
        write(table, path)
        raw = path.read_bytes()
        for cut in (1, 4, 6, 12, len(raw) // 2, len(raw) - 1):
            path.write_bytes(raw[:cut])
            with pytest.raises(TableError, match="damaged") as caught:
                loaded(path)
            assert one_line(caught.value).startswith(str(path))
        path.write_bytes(b"age,sex\n")
        with pytest.raises(TableError, match="does not begin as a file of kind"):
            loaded(path)
        path.unlink()


def test_a_row_is_counted_from_the_start_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "1,F,no,a\n" * 300_000
    for bad, message in (("1,F\n", "row 300001 has 2 cells"), ("1,X,no,a\n", "row 300001: unknown category 'X'")):
        path.write_text("age,sex,y,person\n" + rows + bad + rows)
        with pytest.raises(TableError, match=message):
            loaded(path)


def test_a_table_that_claims_too_many_rows() -> None:
    with pytest.raises(TableError, match="a table of 9000000000000000000 rows does not fit into memory"):
        _Growing((8,), np.float32, 9 * 10**18)


def test_the_parts_of_a_folder_are_told_apart(tmp_path: Path) -> None:
    table = pa.table(RAW)
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    pa.parquet.write_table(table.drop(["sex"]), tmp_path / "b.parquet")
    with pytest.raises(TableError, match=r"b.parquet: column 'sex' is missing"):
        loaded(tmp_path)
    pa.parquet.write_table(pa.table(RAW | {"sex": ["F"] * 3 + ["X"] * 7}), tmp_path / "b.parquet")
    with pytest.raises(TableError, match=r"b.parquet: column 'sex', row 4: unknown category 'X'"):
        loaded(tmp_path)


# ---------------------------------------------------------------- units


def kept(ids: Any, most: int, chunk: int = 7) -> tuple[np.ndarray, int]:
    """Which rows count, going through the table in small batches."""
    array = ids if isinstance(ids, pa.Array) else pa.array(ids)
    units = Units("u", most, False)
    masks = [
        units.keep(tables.Batch("t", start, len(array[start : start + chunk]), {"u": array.slice(start, chunk)}))
        for start in range(0, len(array), chunk)
    ]
    return np.concatenate(masks), units.count


def by_hand(ids: list[Any], most: int) -> list[bool]:
    seen: dict[Any, int] = {}
    return [seen.setdefault(one, 0) < most and not seen.update({one: seen[one] + 1}) for one in ids]


IDS: dict[str, Callable[[int], Any]] = {
    "integers": lambda k: 7 - 3 * k,
    "large": lambda k: 2**62 + k,
    "text": lambda k: "p" * (k % 5) + str(k),
    "bytes": lambda k: bytes([k, 0]),
    "floats": lambda k: k / 3,
    "times": lambda k: date(2020, 1, 1) + timedelta(k),
    "decimals": lambda k: Decimal(k) / 4,
}


@pytest.mark.parametrize("kind", IDS)
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 70))
def test_the_first_rows_of_each_unit_are_kept(kind: str, people: list[int], most: int, chunk: int) -> None:
    ids = pa.array([IDS[kind](k) for k in people])
    mask, count = kept(ids, most, chunk)
    assert mask.tolist() == by_hand(people, most)
    assert count == len(set(people))
    assert kept(ids.dictionary_encode(), most, chunk)[0].tolist() == mask.tolist()


def test_many_units() -> None:
    people = np.random.default_rng(5).integers(0, 30_000, 100_000)
    for ids in (people, np.char.add("person ", people.astype(str))):
        mask, count = kept(ids, 3, 4096)
        assert mask.tolist() == by_hand(people.tolist(), 3)
        assert count == len(np.unique(people))


def test_zero_is_one_unit_and_unsigned_ids_reach_the_end_of_their_range() -> None:
    assert kept(np.array([0.0, -0.0]), 1)[1] == 1
    assert kept(np.array([0, 2**64 - 1, 2**63], np.uint64), 1)[1] == 3


class OthersFirst(Units):
    """PLANTED MISTAKE: the rule counts all rows, so that one unit's rows decide about another's."""

    def keep(self, batch: tables.Batch) -> np.ndarray:
        held = super().keep(batch)
        return held & (np.cumsum(held) <= 4 * self.most)


def disturbed(rule: type[Units], people: list[int], whose: int, other: list[int], most: int) -> bool:
    """Whether replacing the rows of one unit by others, anywhere in the table, changes what is kept of anybody else."""

    def others(ids: list[int | None]) -> list[tuple[int, bool]]:
        units, held = rule("u", most, False), []
        real = [whose if one is None else one for one in ids]
        for start in range(0, len(real), 5):
            part = real[start : start + 5]
            held += units.keep(tables.Batch("t", start, len(part), {"u": pa.array(part)})).tolist()
        return [(one, bool(k)) for one, k in zip(real, held, strict=True) if one != whose]

    rest: list[int | None] = [one for one in people if one != whose]
    moved = list(rest)
    for at in other:
        moved.insert(at % (len(moved) + 1), None)
    return others([None if one == whose else one for one in people]) != others(moved)


TABLES_OF_UNITS = st.tuples(
    st.lists(st.integers(0, 6), min_size=2, max_size=40),
    st.integers(0, 6),
    st.lists(st.integers(0, 100), max_size=20),
    st.integers(1, 3),
)


@settings(max_examples=150, deadline=None)
@given(TABLES_OF_UNITS)
def test_one_units_rows_never_decide_about_anothers(case: tuple[list[int], int, list[int], int]) -> None:
    assert not disturbed(Units, *case)


def test_a_rule_that_looks_at_other_units_is_caught() -> None:
    rng = random.Random(3)
    cases = [
        ([rng.randrange(7) for _ in range(40)], rng.randrange(7), [rng.randrange(100) for _ in range(5)], 1)
        for _ in range(30)
    ]
    assert any(disturbed(OthersFirst, *case) for case in cases)
    assert not any(disturbed(Units, *case) for case in cases)


def test_what_is_returned_says_nothing_of_dropped_rows() -> None:
    few = {"age": [1.0, 2.0], "sex": ["F", "M"], "y": ["no", "yes"], "person": [1, 2]}
    many = {name: [*column, *[column[1]] * 50] for name, column in few.items()}
    one, other = (loaded(table, unit="person", max_rows_per_unit=1) for table in (few, many))
    assert one.rows.x.tolist() == other.rows.x.tolist()
    assert one.rows.x.base is None
    assert other.rows.x.base is None
    assert one[1:] == other[1:]


@pytest.mark.parametrize("ids", [["a", None], [1, None], [1.0, float("nan")], [None, None]])
def test_an_id_that_is_missing_is_refused(ids: list[Any]) -> None:
    with pytest.raises(TableError, match=r"unit 'person', row \d: missing: say whose row it is") as caught:
        loaded(frame(person=ids), unit="person")
    one_line(caught.value)


@pytest.mark.parametrize("form", ["", "NA", "null"])
def test_an_id_that_is_missing_in_a_csv_is_refused(form: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TEXT.replace(",b\n", f",{form}\n"))
    with pytest.raises(TableError, match="unit 'person', row 2: missing"):
        loaded(tmp_path / "t.csv", unit="person")


def test_ids_of_two_kinds_would_make_two_units_of_one_person(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table(frame(person=[1, 2])), tmp_path / "a.parquet")
    pa.parquet.write_table(pa.table(frame(person=["1", "2"])), tmp_path / "b.parquet")
    with pytest.raises(TableError, match=r"b.parquet: unit 'person' is text here and an integer before"):
        loaded(tmp_path, unit="person")
    pa.parquet.write_table(pa.table(frame(person=pa.array([1, 2], pa.int8()))), tmp_path / "b.parquet")
    assert loaded(tmp_path, unit="person").units == 2


def test_ids_that_are_no_ids() -> None:
    with pytest.raises(TableError, match="ids are numbers, text or times"):
        loaded(pa.table(frame(person=[[1], [2]])), unit="person")
    with pytest.raises(TableError, match="1 unit: at least two"):
        loaded(frame(person=[1, 1]), unit="person")


# ---------------------------------------------------------------- the shipped table


def mode(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most likely coefficients of a logistic regression, and their covariance."""
    x, theta = x.astype(float), np.zeros(x.shape[1])
    for _ in range(12):
        p = 1 / (1 + np.exp(-x @ theta))
        covariance = np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x)
        theta = theta - covariance @ (x.T @ (p - y))
    return theta, covariance


def test_the_adult_file_holds_the_people_of_the_shipped_array() -> None:
    schema, shipped = Schema.load(datasets.ADULT_SCHEMA), datasets.adult()
    rows = load(schema.build(), datasets.ADULT_TABLE, target=schema.target).rows
    bounds = np.array([column.bounds for column in schema.features])
    centre, unit = np.array([38, 0, 10, 40, 0, 0, 0, 0]), np.array([14, 14**2, 2.6, 12, 1, 1, 8, 8])
    pairs = (bounds - centre[:, None]) / unit[:, None]
    exact = Box(dict(zip(shipped.domain.columns, pairs, strict=True)))
    scaled = exact.project(shipped.x, np.float32)
    assert np.abs(rows.x[:, 1:] - scaled).max() <= 2.5e-7
    assert np.array_equal(rows.y, shipped.y)
    # the array's own bounds are the same to four decimals, and so is the posterior
    own = LogisticRegression(shipped.domain).load(shipped.x, shipped.y)
    assert np.abs(rows.x - own.x).max() < 1e-4
    (one, covariance), (other, _) = mode(rows.x, rows.y), mode(own.x, own.y)
    assert (np.abs(one - other) / np.sqrt(np.diag(covariance))).max() < 0.01
    assert datasets.ADULT_TABLE.stat().st_size < 600_000


# ---------------------------------------------------------------- fuzz


def good(result: Loaded) -> None:
    rows = result.rows
    assert result.units >= 2
    assert len(rows.x) == len(rows.y) >= result.units if result.rows_per_unit > 1 else len(rows.y) == result.units
    assert MODEL.domain.contains(rows.x).all()
    assert np.isin(rows.y, [0, 1]).all()


def attempt(source: Any) -> None:
    for unit in (None, "person"):
        try:
            good(loaded(source, unit=unit, max_rows_per_unit=2 if unit else 1))
        except (TableError, OSError) as error:
            one_line(error)


def mutated(raw: bytes, rng: random.Random, snippets: list[bytes]) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            out[at : at + rng.randrange(6)] = rng.choice(snippets)
        elif kind == 1:
            out[at : at + 1] = rng.randbytes(1)
        elif kind == 2:
            del out[at : at + rng.randrange(40)]
        else:
            out[at:at] = out[max(0, at - 20) : at]
    return bytes(out)


SNIPPETS = [
    b",",
    b"\n",
    b"\r",
    b'"',
    b'""',
    b"\xff",
    b"\0",
    b"nan",
    b"1e999",
    b"-",
    b"",
    b"\xef\xbb\xbf",
    b"F",
    b"no",
    b";",
]
CELLS = st.one_of(
    st.sampled_from(["1", "2.5", "F", "M", "no", "yes", "", "NA", "inf", '"', '"a\nb"', "é"]), st.text(max_size=3)
)


@settings(max_examples=450, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=80), st.integers(0, 2**32), st.lists(st.lists(CELLS, max_size=5), max_size=6)))
def test_any_csv_is_a_table_or_one_line(tmp_path: Path, case: bytes | int | list[list[str]]) -> None:
    if isinstance(case, bytes):
        raw = case
    elif isinstance(case, int):
        raw = mutated(TEXT.encode(), random.Random(case), SNIPPETS)
    else:
        raw = b"age,sex,y,person\n" + "\n".join(",".join(row) for row in case).encode("utf-8", "replace")
    path = tmp_path / "t.csv"
    path.write_bytes(raw)
    attempt(path)
    assert list(tmp_path.iterdir()) == [path]


def binary_files() -> Iterator[tuple[str, bytes]]:
    table = pa.table(RAW)
    for name, options in (("parquet", {"compression": "none"}), ("parquet", {"compression": "snappy"})):
        sink = io.BytesIO()
        pa.parquet.write_table(table, sink, **options)
        yield name, sink.getvalue()
    sink = io.BytesIO()
    pa.feather.write_feather(table, sink, compression="uncompressed")
    yield "feather", sink.getvalue()
    for pack in (gzip.compress, bz2.compress, zstd):
        yield "csv", pack(TEXT.encode())


BINARY = list(binary_files())


@settings(max_examples=450, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(BINARY), st.integers(0, 2**32))
def test_any_damaged_file_is_a_table_or_one_line(tmp_path: Path, case: tuple[str, bytes], seed: int) -> None:
    suffix, raw = case
    path = tmp_path / f"t.{suffix}"
    path.write_bytes(mutated(raw, random.Random(seed), [b"\0", b"\xff\xff\xff\x7f", b"\x80", b"PAR1"]))
    attempt(path)
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=2), st.binary(max_size=2),
    st.sampled_from(["F", "M", "no", "yes", 1, 2.5, Decimal("1.5")]),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["age", "sex", "y", "person", "x"]), st.lists(VALUES, min_size=2, max_size=4)),
    st.booleans(),
)
def test_any_mapping_is_a_table_or_one_line(columns: dict[str, list[Any]], arrays: bool) -> None:
    source: dict[str, Any] = frame() | columns
    if arrays:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = {name: np.array(column, dtype=object) for name, column in source.items()}
    attempt(source)


def test_the_table_tells_what_it_knows_before_it_is_read(tmp_path: Path) -> None:
    table: Table = open_table(csv(tmp_path))
    assert table.names == tuple(RAW)
    assert table.text
    assert table.rows is None
    typed = open_table(in_folder(tmp_path))
    assert typed.rows == ROWS
    assert not typed.text
    assert open_table(RAW).rows == ROWS
