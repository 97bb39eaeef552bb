"""The examples run, and their notebooks are what the scripts say, with pictures."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
INLINE = "%matplotlib inline\n"


def pieces(script: str) -> list[str]:
    """The cells of a script, text without its comment signs."""
    found = []
    for part in script.split("# %%")[1:]:
        mark, _, text = part.partition("\n")
        lines = [line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines()]
        found.append("\n".join(lines) if "markdown" in mark else text.strip())
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_runs(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "show", lambda: None)
    monkeypatch.chdir(tmp_path)  # the flights' file is not here: they are made up
    runpy.run_path(str(script))
    pyplot.close("all")
    assert "epsilon" in (shown := capsys.readouterr().out) or "interval" in shown


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_notebook_is_the_script_run(script: Path) -> None:
    """``make examples`` makes them again."""
    book = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]).removeprefix(INLINE) for cell in book["cells"]]
    assert cells == pieces(script.read_text(encoding="utf-8"))
    outputs = [output for cell in book["cells"] for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture"
    assert not any(output["output_type"] == "error" for output in outputs)


def test_notebooks_are_small_and_name_no_machine() -> None:
    books = [path.with_suffix(".ipynb") for path in SCRIPTS]
    assert len(books) >= 5
    assert sum(book.stat().st_size for book in books) < 1_000_000
    for book in books:
        text = book.read_text(encoding="utf-8")
        assert sys.prefix not in text
        assert str(ROOT) not in text
