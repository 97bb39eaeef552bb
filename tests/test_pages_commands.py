"""The commands of the pages run as they stand, on a table made from the page's own schema."""

from __future__ import annotations

import csv
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfastmh.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/start.md")


def fences(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """What a page tells the shell to run, the demonstration aside, without comments."""
    lines = [line for fence in fences(text, "sh") for line in fence.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("dpfastmh ")]
    return [words[1:] for words in found if words[1] != "demo"]


def made_up(schema: dict[str, Any], rows: int, path: Path) -> None:
    """A table that keeps to the schema; the target leans on the first column."""
    rng = np.random.default_rng(3)
    columns = {}
    for name, what in schema["columns"].items():
        low_high, labels = what.get("bounds"), what.get("categories")
        columns[name] = rng.uniform(*low_high, rows).round(2) if low_high else rng.choice(labels, rows)
    first, target = next(iter(columns)), schema["target"]
    high = columns[first] > np.median(columns[first])
    labels = schema["columns"][target]["categories"]
    columns[target] = np.where(rng.random(rows) < 0.3 + 0.3 * high, labels[1], labels[0])
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (schema,) = fences(text, "toml")
    (tmp_path / "patients.toml").write_text(schema)
    for name in ("patients.csv", "new_patients.csv"):
        made_up(tomllib.loads(schema), 50_000 if name == "patients.csv" else 100, tmp_path / name)
    if page != "README.md":
        exec(compile(fences(text, "python")[0], page, "exec"), {"__name__": "snippet"})  # writes the page's own table
    found = commands(text)
    assert {words[0] for words in found} >= {"plan", "check", "fit", "predict"}
    for words in found:
        assert main(words) == 0, (words, capsys.readouterr().err)
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {
        "report.html",
        "posterior.nc",
        "summary.csv",
        "privacy.json",
    }


def test_a_command_that_fails_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "```sh\ndpfastmh demo\ndpfastmh plan --schema gone.toml --rows 5 --epsilon 1 --delta 1e-6  # why\n```\n"
    assert commands(text) == [["plan", "--schema", "gone.toml", "--rows", "5", "--epsilon", "1", "--delta", "1e-6"]]
    assert main(commands(text)[0]) == 1
