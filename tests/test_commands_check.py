"""The commands schema and check as a user meets them: what is printed where, exit codes, one line for every mistake,
and nothing written that was not asked for."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import dpfastmh
from dpfastmh import datasets
from dpfastmh.cli import main
from dpfastmh.commands.check import NOTICE, SHOWN
from dpfastmh.schema import Schema

SCHEMA = """
model = "logistic"
target = "y"
unit = "person"
max_rows_per_unit = 2
[columns.age]
bounds = [0, 100]
missing = 50
[columns.sex]
categories = ["F", "M"]
[columns.y]
categories = ["no", "yes"]
"""
TABLE: dict[str, list[Any]] = {
    "age": [10, 200, None, -5, 20],
    "sex": ["F", "M", "M", "F", "F"],
    "y": ["no", "yes", "yes", "no", "yes"],
    "person": ["a", "b", "a", "a", "c"],
    "note": [1, 2, 3, 4, 5],
    "other": [1, 2, 3, 4, 5],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SCHEMA)
    pd.DataFrame(TABLE).to_csv("t.csv", index=False)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def found(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["check", *arguments, "--json"]) == code
    result = json.loads(capsys.readouterr().out)
    assert isinstance(result, dict)
    return result


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refusal: nothing on standard output."""
    assert main([*arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"dpfastmh {arguments[0]}: ")
    assert err.count("\n") == 1
    return err


# ---------------------------------------------------------------- check


def test_what_a_good_table_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = found(capsys, "t.csv", "--schema", "s.toml")
    assert result["notice"] == NOTICE
    assert (result["rows"], result["units"], result["rows_past_the_limit"]) == (5, 3, 1)
    age, sex, y = result["columns"]
    assert (age["below"], age["above"], age["missing"], age["unreadable"]) == (1, 1, 1, 0)
    assert sex["classes"] == {"F": 3, "M": 2}
    assert (y["name"], y["classes"]) == (result["target"], {"no": 2, "yes": 3})
    assert result["extra_columns"] == ["note", "other"]
    assert result["refused"] == []


def test_the_page_begins_with_whom_it_is_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "t.csv", "--schema", "s.toml"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0] == NOTICE.upper()
    assert "5 rows of 3 units; 1 rows past max_rows_per_unit are left out" in out
    assert "classes of the target y: no: 2, yes: 3" in out
    assert out.count("note, other") == 1
    assert set(files(folder)) == {"s.toml", "t.csv"}


def test_what_would_be_refused_is_listed_with_its_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["age,sex,y,person", "x,F,no,a", "1,Q,,b", ",M,yes,c", *["1,F,maybe,d"] * 9]
    Path("t.csv").write_text("\n".join(rows))
    result = found(capsys, "t.csv", "--schema", "s.toml", code=1)
    age, sex, y = result["columns"]
    assert (age["unreadable"], sex["unreadable"], y["missing"], y["unreadable"]) == (1, 1, 1, 9)
    lines = "\n".join(result["refused"])
    assert "t.csv: column 'age', row 1: 'x' is not a finite number" in lines
    assert "column 'sex', row 2: unknown category 'Q'" in lines
    assert "column 'y', row 2: missing: drop the row" in lines
    assert "missing = VALUE in [columns.y] (in Python missing={'y': VALUE})" in lines
    assert "column 'y', rows 4, 5, 6, 7: unknown category 'maybe': declare it" in lines
    assert lines.count("column 'y'") == 2  # one line for each reason
    assert len(re.findall(r"\b[2-7]\b", "".join(line for line in lines.split("\n") if "'y'" in line))) == SHOWN
    assert main(["check", "t.csv", "--schema", "s.toml"]) == 1
    out, err = capsys.readouterr()
    assert err == f"dpfastmh check: t.csv: the table would be refused, {len(result['refused'])} reasons listed\n"
    assert "would be refused" in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["1", "2", "3", "4", "5"]}, "column 'age' is of type"),
        ({"sex": [1, 2, 3, 4, 5]}, "column 'sex' is of type"),
        ({"person": ["a", None, "b", "c", "d"]}, "unit 'person', row 2: missing"),
        ({"person": ["a"] * 5}, "fewer than two units"),
    ],
)
def test_a_column_that_cannot_be_read_does_not_hide_the_others(
    change: dict[str, Any], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pa.parquet.write_table(pa.table(TABLE | change), "t.parquet")
    result = found(capsys, "t.parquet", "--schema", "s.toml", code=1)
    assert [line for line in result["refused"] if message in line]
    assert result["columns"][2]["classes"] == {"no": 2, "yes": 3}


def test_a_table_that_ends_early_is_counted_up_to_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.csv").write_text("age,sex,y,person\n" + "1,F,no,a\n2,M,yes,b\n" * 100_000 + "1,F\n")
    result = found(capsys, "t.csv", "--schema", "s.toml", code=1)
    assert 0 < result["rows"] < 200_000
    assert "has 2 cells, the header 4" in result["refused"][-1]


def test_counts_and_their_cap(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.toml").write_text('model = "poisson"\ntarget = "n"\ncap = 3\n[columns.a]\nbounds = [0, 1]\n')
    Path("t.csv").write_text("a,n\n0,2\n1,7\n1,0\n")
    result = found(capsys, "t.csv", "--schema", "s.toml")
    assert result["columns"][1]["above"] == 1
    assert result["units"] is None
    Path("t.csv").write_text("a,n\n0,2\n1,-7\n1,0.5\n")
    assert found(capsys, "t.csv", "--schema", "s.toml", code=1)["columns"][1]["unreadable"] == 2


def test_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("t.csv").read_bytes())))
    assert found(capsys, "-", "--schema", "s.toml")["rows"] == 5
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in refused(capsys, "check", "-", "--schema", "s.toml")


def test_the_shipped_table(capsys: pytest.CaptureFixture[str]) -> None:
    result = found(capsys, str(datasets.ADULT_TABLE), "--schema", str(datasets.ADULT_SCHEMA))
    assert result["rows"] == 48_842
    assert all(column["below"] == column["above"] == column["missing"] == 0 for column in result["columns"])
    assert result["columns"][-1]["classes"] == {"<=50k": 37_155, ">50k": 11_687}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv", "--schema", "s.toml"], "none.csv: no such file"),
        (["t.csv", "--schema", "none.toml"], "none.toml: no such file"),
        (["t.csv", "--schema", "t.csv"], "t.csv: not TOML"),
        (["s.toml", "--schema", "s.toml"], "s.toml: column 'age' is missing"),
        ([".", "--schema", "s.toml"], "no Parquet files"),
    ],
)
def test_what_cannot_be_checked_at_all(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(folder)
    assert message in refused(capsys, "check", *arguments)
    assert files(folder) == before


def test_the_schema_must_be_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", "t.csv"])
    assert caught.value.code == 2
    assert "--schema" in capsys.readouterr().err


# ---------------------------------------------------------------- schema


def test_a_draft_has_names_and_types_and_nothing_of_the_cells(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = {
        "age": np.array([12345.0, 54321.0]),
        "sex": ["Zaphod", "Trillian"],
        "n": [77777, 88888],
        "ok": [True, False],
    }
    pd.DataFrame(secret).to_parquet("t.parquet", index=False)
    assert main(["schema", "t.parquet"]) == 0
    out = capsys.readouterr().out
    for cell in ("12345", "54321", "Zaphod", "Trillian", "77777", "88888"):
        assert cell not in out
    assert "[columns.age]  # double\nbounds = []" in out
    assert "[columns.sex]  # large_string\ncategories = []" in out
    assert "[columns.n]  # int64\nbounds = []" in out
    assert "[columns.ok]  # bool\ncategories = [false, true]" in out
    assert "Do NOT look the bounds or categories up in the data" in out
    assert set(files(folder)) == {"s.toml", "t.csv", "t.parquet"}


@pytest.mark.parametrize("kind", ["t.csv", "t.parquet"])
def test_a_draft_that_has_been_filled_in_is_a_schema(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame({"a.b": [0.0, 1.0], 'odd "name"': ["u", "v"], "y": ["no", "yes"]})
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet", index=False)
    assert main(["schema", kind, "-o", "draft.toml"]) == 0
    assert capsys.readouterr().out == ""
    assert "fill in the model" in refused(capsys, "check", kind, "--schema", "draft.toml")
    text = (
        Path("draft.toml")
        .read_text()
        .replace('model = ""', 'model = "logistic"')
        .replace('target = ""', 'target = "y"')
    )
    head, first, second, third = text.split("\n[columns.")
    first = first.replace("bounds = []", "bounds = [0, 1]")
    second, third = (
        part.replace("bounds = []  # [low, high]\n", "").replace("# cat", "cat") for part in (second, third)
    )
    second, third = second.replace("[]", '["u", "v"]'), third.replace("[]", '["no", "yes"]')
    Path("draft.toml").write_text("\n[columns.".join([head, first, second, third]))
    assert Schema.load("draft.toml").columns == ("a.b", 'odd "name"', "y")
    assert found(capsys, kind, "--schema", "draft.toml")["rows"] == 2


def test_a_draft_never_overwrites(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(folder)
    assert "s.toml: exists already" in refused(capsys, "schema", "t.csv", "-o", "s.toml")
    assert "cannot be written" in refused(capsys, "schema", "t.csv", "-o", "none/s.toml")
    assert "no such file" in refused(capsys, "schema", "none.csv", "-o", "new.toml")
    assert files(folder) == before


# ---------------------------------------------------------------- from a shell


def shell(*arguments: str, given: bytes) -> "subprocess.CompletedProcess[bytes]":
    home = str(Path(dpfastmh.__file__).parents[1])  # whatever directory the test is in
    return subprocess.run(
        [sys.executable, "-m", "dpfastmh", *arguments],
        input=given,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": home},
        check=False,
    )


def test_a_shell_sees_the_exit_code_and_no_traceback(folder: Path) -> None:
    result = shell("check", "-", "--schema", "s.toml", given=b"age,sex\n1,F,x\n")
    assert result.returncode == 1
    assert result.stdout == b""
    assert result.stderr == b"dpfastmh check: standard input: column 'y' is missing: add it, or correct the name\n"
    piped = shell("schema", "-", given=Path("t.csv").read_bytes())
    assert piped.returncode == 0
    assert b"[columns.age]" in piped.stdout
    assert piped.stderr == b""


def test_dates_are_told_from_other_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text("age,sex,y,person\n2024-02-02,F,no,a\n5,M,yes,b\n")
    (line,) = found(capsys, "t.csv", "--schema", "s.toml", code=1)["refused"]
    assert "'2024-02-02' is a date, not a finite number: make a number of it first" in line


def test_missing_cells_of_categories_are_counted_where_they_go(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("s.toml").write_text(
        'model = "logistic"\ntarget = "y"\n[columns.sex]\ncategories = ["F", "M"]\nmissing = "M"\n'
        '[columns.y]\ncategories = ["no", "yes"]\n'
    )
    Path("t.csv").write_text("sex,y\nF,no\n,yes\nM,yes\n")
    assert main(["check", "t.csv", "--schema", "s.toml"]) == 0
    assert "categories of sex: F: 1, M: 1; the 1 missing count as M" in capsys.readouterr().out
