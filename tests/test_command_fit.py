"""``dpfastmh fit`` as a user meets it, through a process of its own: what it writes and prints, every refusal in one
line with nothing written and nothing spent, and Ctrl-C."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dpfastmh as mh
from dpfastmh import datasets
from dpfastmh.cli import main
from dpfastmh.outputs import OutputError
from dpfastmh.posterior import Posterior
from dpfastmh.privacy.filter import RenyiFilter
from dpfastmh.schema import Schema

SCHEMA = """model = "logistic"
target = "y"
[columns.age]
bounds = [0, 100]
[columns.sex]
categories = ["F", "M"]
[columns.y]
categories = ["no", "yes"]
"""
ROWS = ["10,F,no", "20,M,yes", "30,F,no", "40,M,yes"] * 50
TEXT = "\n".join(["age,sex,y", *ROWS]) + "\n"
BUDGET = ["--epsilon", "1", "--delta", "1e-6"]
ADULT = [str(datasets.ADULT_TABLE), "--schema", str(datasets.ADULT_SCHEMA), "--delta", "1e-6"]
OUTPUTS = {"posterior.nc", "summary.csv", "privacy.json", "report.html"}
HOME = str(Path(mh.__file__).parents[1])  # whatever directory a test is in


def started(arguments: Sequence[str], folder: Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dpfastmh", *arguments], cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": HOME}, **options,
    )  # fmt: skip


def finished(arguments: Sequence[str], folder: Path, given: str | None = None, **options: Any) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``dpfastmh ARGUMENTS``."""
    return ended(started(arguments, folder, **options), given)


def ended(process: subprocess.Popen[str], given: str | None = None) -> tuple[int, str, str]:
    """A process that does not end, a minute of compiling on a busy machine apart, is killed and fails the test."""
    try:
        out, err = process.communicate(given, timeout=600)
    finally:
        process.kill()
    return process.returncode, out, err


# -- results ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def adult(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder, the output and the messages of a run on Adult whose draws can be drawn again."""
    folder = tmp_path_factory.mktemp("adult")
    code, out, err = finished(
        ["fit", *ADULT, "--epsilon", "4", "--temperature", "10", "--seed", "1", "-o", "out"], folder
    )
    assert code == 0, err
    return folder / "out", out, err


def test_a_run_writes_and_prints_what_it_found(adult: tuple[Path, str, str]) -> None:
    folder, out, err = adult
    assert {path.name for path in folder.iterdir()} == OUTPUTS
    assert list(folder.parent.iterdir()) == [folder]
    assert out.startswith("NOT PRIVATE: tempered (10), 2 chains of ")
    assert "original scale" in out
    assert f"report: {Path('out') / 'report.html'}" in err
    assert "dpfastmh: sampling: " in err
    privacy = json.loads((folder / "privacy.json").read_text())
    assert privacy["private"] is False
    assert 0.99 * 4 < privacy["epsilon_spent"] <= 4
    assert privacy["exact_target"] == "tempered"
    assert (folder / "summary.csv").read_text().splitlines()[0] == "name,scale,mean,sd,q5,q95,ess,mcse,rhat"


def test_the_command_line_and_python_give_the_same_draws(adult: tuple[Path, str, str]) -> None:
    schema = Schema.load(datasets.ADULT_SCHEMA)
    again = mh.sample(
        schema.build(10.0), str(datasets.ADULT_TABLE), target="income", budget=mh.Budget(4.0, 1e-6), seed=1
    )
    saved = Posterior.load(adult[0] / "posterior.nc")
    assert np.array_equal(again.draws, saved.draws)


def test_means_on_adult_agree_with_the_reference() -> None:
    """Root mean square error in posterior standard deviations, the median of five runs."""
    known = json.loads((Path(__file__).parent / "data" / "adult_tempered_10.json").read_text())
    model = Schema.load(datasets.ADULT_SCHEMA).build(10.0)
    errors = []
    for seed in range(5):
        found = mh.sample(
            model, str(datasets.ADULT_TABLE), target="income", budget=mh.Budget(4.0, 1e-6), seed=seed
        ).means
        errors.append(np.sqrt(np.mean(((found - known["mean"]) / known["sd"]) ** 2)))
    assert np.median(errors) <= 0.40


def test_json_and_standard_input(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCHEMA)
    rng = random.Random(1)
    rows = [f"{rng.randrange(100)},{rng.choice('FM')},{rng.choice(['no', 'yes'])},x" for _ in range(20_000)]
    big = "\n".join(["age,sex,y,note", *rows])
    arguments = ["fit", "-", "--schema", "s.toml", *BUDGET, "--epsilon", "3", "-o", "out", "--json", "--draws", "50"]
    code, out, err = finished(arguments, tmp_path, big)
    assert (code, err) == (0, "dpfastmh fit: columns that the schema does not name are ignored: 'note'\n")
    record = json.loads(out)
    assert record["output"] == "out"
    assert record["privacy"]["private"] is True
    assert record["privacy"]["units"] == len(rows)
    assert {row["scale"] for row in record["summary"]} == {"scaled", "original"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == OUTPUTS


def test_predictions_and_the_report_again(adult: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = adult[0]
    before = (folder / "report.html").read_bytes()
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_bytes() == before
    assert main(["predict", str(folder), str(datasets.ADULT_TABLE)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 48_842 + 2
    assert "NOT PRIVATE" in err


# -- refusals --------------------------------------------------------------------------------------------------------
def truncated(folder: Path) -> None:
    pa.parquet.write_table(pa.table({"age": [1.0] * 9, "sex": ["F"] * 9, "y": ["no"] * 9}), folder / "whole.parquet")
    (folder / "t.parquet").write_bytes((folder / "whole.parquet").read_bytes()[:-30])


def csv(text: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())


def schema(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "s.toml").write_text(SCHEMA.replace(old, new))


def few_bytes() -> None:
    """Files of this process may hold 100 kB: what a full disk is like."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


# what is wrong, what to change in the folder, other arguments, what the one line says
REFUSALS: dict[str, tuple[Callable[[Path], object], dict[str, str], str]] = {
    "missing file": (lambda folder: (folder / "t.csv").unlink(), {}, "t.csv: no such file"),
    "missing schema": (lambda folder: (folder / "s.toml").unlink(), {}, "s.toml: no such file"),
    "empty file": (csv(""), {}, "t.csv: the file is empty"),
    "no header": (csv("\n".join(["1,2,3"] * 9)), {}, "t.csv: the first line holds numbers, not the names of columns"),
    "no rows": (csv(TEXT[:10]), {}, "t.csv: 0 rows: at least two are needed"),
    "missing column": (csv(TEXT.replace("age", "agee")), {}, "t.csv: column 'age' is missing (did you mean 'agee'?)"),
    "non-numeric cell": (csv(TEXT.replace("20", "x", 1)), {}, "column 'age', row 2: 'x' is not a finite number"),
    "unknown category": (csv(TEXT.replace("M", "X", 1)), {}, "column 'sex', row 2: unknown category 'X'"),
    "not UTF-8": (csv(TEXT.replace("M", "\xfc", 1).encode("latin-1")), {}, "column 'sex', row 2: not UTF-8 text"),
    "ragged rows": (csv(TEXT.replace(",no", "", 1)), {}, "row 1 has 2 cells, the header 3"),
    "duplicate names": (csv(TEXT.replace("sex", "age", 1)), {}, "2 columns are called 'age'"),
    "truncated Parquet": (truncated, {"t.csv": "t.parquet"}, "t.parquet: cannot be read, damaged"),
    "reversed bounds": (schema("[0, 100]", "[100, 0]"), {}, "s.toml: column 'age': bounds = [100, 0] are reversed"),
    "infinite bounds": (schema("[0, 100]", "[0, inf]"), {}, "s.toml: column 'age': bounds = [0, inf] are not finite"),
    "one class": (
        schema('["no", "yes"]', '["no"]'),
        {},
        "s.toml: column 'y', the target of model 'logistic', has one cat",
    ),
    "no TOML": (schema("[columns.age]", "[columns.age"), {}, "s.toml: not TOML"),
    "OUT exists": (lambda folder: (folder / "out").mkdir(), {}, "out exists already"),
    "OUT in no folder": (lambda folder: None, {"out": "none/out"}, "none does not exist, create it first"),
    "OUT not writable": (lambda folder: None, {"out": "/proc/out"}, "/proc/out"),
    "epsilon 0": (lambda folder: None, {"1": "0"}, "epsilon"),
    "delta 1": (lambda folder: None, {"1e-6": "1"}, "delta"),
    "delta above 1/N": (lambda folder: None, {"1e-6": "0.1"}, "delta"),
    "hopeless budget": (lambda folder: None, {}, "effective draws, less than one"),
}


def tried(name: str, folder: Path, **options: Any) -> tuple[int, str, str]:
    change, swaps, _ = REFUSALS[name]
    (folder / "s.toml").write_text(SCHEMA)
    (folder / "t.csv").write_text(TEXT)
    change(folder)
    before = sorted(folder.iterdir())
    arguments = ["fit", "t.csv", "--schema", "s.toml", *BUDGET, "-o", "out"]
    result = finished([swaps.get(word, word) for word in arguments], folder, **options)
    assert sorted(folder.iterdir()) == before
    return result


def one_line(code: int, out: str, err: str) -> str:
    assert (code, out) == (1, ""), err
    assert err.startswith("dpfastmh fit: ")
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("name", REFUSALS)
def test_every_refusal_is_one_line_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    assert REFUSALS[name][2] in one_line(*tried(name, tmp_path))


def test_a_full_disk_is_noticed_before_anything_is_spent(tmp_path: Path) -> None:
    line = one_line(*tried("hopeless budget", tmp_path, preexec_fn=few_bytes))
    assert "out could not be written (file too large)" in line
    assert "nothing was spent" in line


def test_wrong_usage_has_a_code_of_its_own(tmp_path: Path) -> None:
    code, out, err = finished(["fit", "t.csv", "--schema", "s.toml", "-o", "out"], tmp_path)
    assert (code, out) == (2, "")
    assert "--epsilon" in err
    assert "Traceback" not in err
    assert finished(["--version"], tmp_path)[:2] == (0, f"dpfastmh {mh.__version__}\n")


def test_results_that_cannot_be_written_are_put_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that appears while the run goes on; then a disk that takes nothing at all."""
    from dpfastmh import report
    from dpfastmh.commands.fit import written
    from posteriors import synthetic

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "out").mkdir()
    where = written(synthetic(), tmp_path / "out")
    assert where != tmp_path / "out"
    assert {path.name for path in where.iterdir()} == OUTPUTS
    assert str(where) in capsys.readouterr().err

    def refuse(*given: object) -> None:
        raise OutputError("no space left")

    monkeypatch.setattr(report, "write_outputs", refuse)
    with pytest.raises(OutputError, match="keep the summary above"):
        written(synthetic(), tmp_path / "new")
    assert "scaled scale" in capsys.readouterr().out


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------
def interrupted(folder: Path, at: str, *more: str) -> tuple[int, str, str]:
    """A long run that is sent SIGINT once it has said ``at``."""
    process = started(["fit", *ADULT, "--epsilon", "9", "--temperature", "1000", "-o", "out", *more], folder)
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if at in line:
            break
    time.sleep(0.2)  # so that every chain has begun
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    return code, out, seen + err


def test_an_interrupt_keeps_what_was_drawn_and_says_what_it_cost(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, "sampling: ")
    assert code == 0, err
    assert "Traceback" not in err
    assert "The run was interrupted" in out
    privacy = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert 0 < privacy["epsilon_spent"] < 9
    assert sum(release["rdp"] for release in privacy["releases"]) == pytest.approx(privacy["rdp_spent"])
    assert Posterior.load(tmp_path / "out" / "posterior.nc").draws.size


def test_an_interrupt_before_the_first_draw_says_what_was_spent(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, "finding the start")
    if code == 0:  # a fast machine was past it already
        assert (tmp_path / "out").exists()
        return
    assert (code, out) == (1, "")
    assert "no draws are kept. Spent: epsilon = " in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


# -- fuzz ------------------------------------------------------------------------------------------------------------
PARTS = [
    "age",
    "sex",
    "y",
    ",",
    "\n",
    '"',
    "10",
    "F",
    "no",
    "yes",
    "M",
    "",
    "é",
    "\0",
    "nan",
    "1e999",
    "[",
    "]",
    "=",
    "-",
]


def mutated(text: str, seed: int) -> str:
    rng = random.Random(seed)
    out = list(text)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(out) + 1)
        out[at : at + rng.randrange(8)] = rng.choice(PARTS)
    return "".join(out)


def attempt(folder: Path, table: str, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A run on four people can only be refused: for what is wrong, or because no budget would do."""
    (folder / "t.csv").write_text(table)
    (folder / "s.toml").write_text(schema)
    before = sorted(folder.iterdir())
    code = main(["fit", str(folder / "t.csv"), "--schema", str(folder / "s.toml"), *BUDGET, "-o", str(folder / "out")])
    one_refusal = [line for line in capsys.readouterr().err.splitlines() if "are ignored: " not in line]
    assert code == 1
    assert len(one_refusal) == 1
    assert one_refusal[0].startswith("dpfastmh fit: ")
    assert sorted(folder.iterdir()) == before


def fuzz(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cases: int) -> None:
    def spent(*given: object, **more: object) -> None:
        raise AssertionError("a refused run spent something")

    for name in ("reserve", "charge"):
        monkeypatch.setattr(RenyiFilter, name, spent)

    @settings(max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(st.integers(0, 2**32), st.booleans(), st.booleans())
    def run(seed: int, table: bool, schema: bool) -> None:
        text = "\n".join(["age,sex,y", *ROWS[:4]]) + "\n"
        attempt(folder, mutated(text, seed) if table else text, mutated(SCHEMA, seed) if schema else SCHEMA, capsys)

    run()


def test_any_table_and_schema_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fuzz(tmp_path, monkeypatch, capsys, 40)


@pytest.mark.slow
def test_two_thousand_tables_and_schemas_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fuzz(tmp_path, monkeypatch, capsys, 2_000)


def test_a_refusal_that_spends_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dpfastmh import sampling

    def spend_first(*given: object, **more: object) -> str:
        RenyiFilter(mh.Budget(1.0, 1e-6), steps_cap=10).charge("too early", 0.1)
        return "too small"

    monkeypatch.setattr(sampling, "_hopeless", spend_first)
    with pytest.raises(AssertionError, match="spent something"):
        fuzz(tmp_path, monkeypatch, capsys, 5)
