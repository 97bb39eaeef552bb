"""What comes after the draws: summaries, both scales, saving, loading, predictions, warnings, files written whole."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest

from dpfastmh import Box, Flat, Laplace, LogisticRegression, Normal, OneHot
from dpfastmh.cli import main
from dpfastmh.description import DescriptionError, describe, model_from
from dpfastmh.findings import BudgetEndedEarly, ChainsDisagree, FewEffectiveDraws, NeverMoved
from dpfastmh.netcdf import LoadError, privacy_record
from dpfastmh.outputs import OutputError, create_folder, replace_file
from dpfastmh.posterior import PRIVACY_FIELDS, Posterior, PosteriorError
from dpfastmh.report import OUTPUTS, write_outputs
from posteriors import BOX, models, privacy, replaced, synthetic

KINDS = sorted(models())


# -- descriptions ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_a_described_model_comes_back_the_same(kind):
    model = models()[kind]
    text = json.dumps(describe(model))
    again = model_from(json.loads(text))
    assert describe(again) == describe(model)
    assert (again.parameters, again.loss, again.temperature) == (model.parameters, model.loss, model.temperature)
    assert again.domain == model.domain
    for ours, theirs in zip(again.prior_table, model.prior_table, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_priors_of_every_kind_come_back():
    model = LogisticRegression(BOX, prior=[Flat(), Laplace(1.5, loc=0.5), Normal(2.0)])
    assert describe(model_from(describe(model))) == describe(model)


@pytest.mark.parametrize(
    "change",
    [
        {"loss": {"name": "os.system"}},
        {"loss": {"name": "logistic", "more": 1}},
        {"loss": {"name": "student-t", "df": math.nan, "scale": 1.0}},
        {"loss": {"name": "softmax", "classes": 10**9}},
        {"domain": []},
        {"domain": [{"kind": "__import__"}]},
        {"domain": [{"kind": "box", "bounds": [["a", 1, 0]]}]},
        {"domain": [{"kind": "box", "bounds": [["a", 0, 1], ["a", 0, 2]]}]},
        {"domain": [{"kind": "one-hot", "column": "c", "categories": [["x"]]}]},
        {"prior": [{"kind": "normal", "loc": 0.0, "scale": -1.0}] * 4},
        {"prior": []},
        {"classes": ["yes", "yes"]},
        {"classes": "no"},
        {"target_bounds": [1]},
        {"temperature": 0.5},
        {"extra": 1},
    ],
)
def test_a_description_of_anything_else_is_refused(change):
    with pytest.raises(DescriptionError) as caught:
        model_from(describe(models()["logistic"]) | change)
    assert "\n" not in str(caught.value)


# -- summaries -------------------------------------------------------------------------------------------------------
def test_summary_numbers():
    posterior = synthetic()
    summary = posterior.summary()
    pooled = posterior.draws.reshape(-1, 4)
    for j, row in enumerate(summary.on("scaled")):
        assert row.name == posterior.names[j]
        assert row.mean == pytest.approx(pooled[:, j].mean())
        assert row.sd == pytest.approx(pooled[:, j].std(ddof=1))
        assert (row.q5, row.q95) == pytest.approx(tuple(np.quantile(pooled[:, j], [0.05, 0.95])))
        assert row.mcse == pytest.approx(row.sd / math.sqrt(row.ess), rel=1e-6)
        assert 500 < row.ess < 1300
        assert 0.99 < row.rhat < 1.02
    assert len(summary) == 8


def test_autocorrelation_is_seen_in_the_effective_draws():
    # an autoregressive chain of correlation r has (1−r)/(1+r) effective draws for each draw
    ess = synthetic(draws=20_000, correlation=0.9, seed=3).ess()
    np.testing.assert_allclose(ess, 40_000 * 0.1 / 1.9, rtol=0.25)


def test_summary_csv_is_the_contract(tmp_path):
    posterior = synthetic()
    path = posterior.summary().to_csv(tmp_path / "summary.csv")
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert list(rows[0]) == ["name", "scale", "mean", "sd", "q5", "q95", "ess", "mcse", "rhat"]
    assert [row["scale"] for row in rows] == ["scaled"] * 4 + ["original"] * 4
    assert float(rows[1]["mean"]) == posterior.summary().rows[1].mean
    frame = posterior.summary().to_pandas()
    assert frame.loc[1, "mean"] == posterior.summary().rows[1].mean


def test_few_draws_leave_empty_cells_not_numbers():
    summary = synthetic(draws=5).summary()
    assert all(math.isnan(row.ess) and math.isnan(row.rhat) for row in summary)
    assert summary.csv().splitlines()[1].endswith(",,,")
    assert "nan" not in str(summary)


@pytest.mark.parametrize("kind", KINDS)
def test_the_original_scale_has_the_same_predictor(kind):
    """raw·original = scaled features·scaled coefficients, for rows inside the domain."""
    model = models()[kind]
    posterior = synthetic(model, draws=20)
    rng = np.random.default_rng(1)
    n, table, raw = 7, {}, []
    for part in model.domain.parts:
        for name in part.columns:
            if isinstance(part, OneHot):
                table[name] = rng.choice(part.categories, n)
                raw += [table[name] == category for category in part.categories[1:]]
            else:
                low, high = {"age": (18, 95), "dose": (0, 10), "b": (1.2, 1.8)}.get(name, (-0.5, 0.5))
                table[name] = rng.uniform(low, high, n)
                raw.append(table[name])
        if not part.columns:
            raw.append(np.ones(n))
    shape = (-1, model.predictors, len(model.domain))
    scaled = np.einsum("nd,mkd->nmk", model.domain.project(table), posterior.draws.reshape(shape))
    original = np.einsum("dn,mkd->nmk", np.array(raw, dtype=float), posterior.original.reshape(shape))
    np.testing.assert_allclose(original, scaled, rtol=1e-9, atol=1e-9)


def test_no_intercept_to_take_up_the_shift_means_no_original_scale():
    posterior = synthetic(LogisticRegression(Box(age=(18, 95)), intercept=False))
    assert posterior.original is None
    assert posterior.summary().on("original") == ()
    with pytest.raises(PosteriorError, match="no original scale"):
        posterior.plot_forest(scale="original")


# -- words -----------------------------------------------------------------------------------------------------------
def test_posterior_is_said_at_temperature_one_only():
    tempered = synthetic(models()["poisson"])
    assert tempered.word == "tempered (4)"
    assert "about √T = 2 times the posterior's" in str(tempered.summary())
    assert str(tempered.summary()).startswith("tempered (4), 2 chains")
    assert str(synthetic().summary()).startswith("posterior, 2 chains")
    assert tempered.to_datatree().attrs["target"] == "tempered (4)"


def test_not_private_is_said_everywhere():
    seeded = synthetic(private=False)
    assert str(seeded.summary()).startswith("NOT PRIVATE")
    tree = seeded.to_datatree()
    assert tree.attrs["private"] == tree["posterior"].attrs["private"] == "NOT PRIVATE"
    assert tree.attrs["statement"].startswith("NOT PRIVATE")
    for plot in (
        seeded.plot_forest,
        seeded.plot_density,
        seeded.plot_trace,
        seeded.plot_spending,
        seeded.plot_acceptance,
    ):
        assert plot().get_suptitle().startswith("NOT PRIVATE")
    assert "NOT PRIVATE" not in str(synthetic().summary())
    assert "NOT PRIVATE" not in synthetic().plot_forest().get_suptitle()


# -- only released facts ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("secret", ["rows", "seconds", "evaluated", "log_likelihood", "clipped"])
def test_a_private_fact_is_refused(secret):
    with pytest.raises(PosteriorError, match=f"'{secret}' is not among the released facts"):
        replaced(synthetic(), start={"point": [0.0], secret: 1})
    with pytest.raises(PosteriorError, match=f"'{secret}' is not among the released facts"):
        privacy(releases=({"what": "gradient", "rdp": 0.1, secret: 3},))


def test_the_tree_holds_released_variables_only():
    tree = synthetic().to_datatree()
    assert set(tree["posterior"].data_vars) == {"coefficients", "coefficients_original"}
    assert set(tree["sample_stats"].data_vars) == {"accepted", "tried", "spent_steps", "spent_epsilon"}
    words = json.dumps([tree.attrs, tree["posterior"].attrs, tree["sample_stats"].attrs]).lower()
    for secret in ("created_at", 'time"', "rows_touched", "seconds"):
        assert secret not in words


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("draws", np.zeros((2, 3))),
        ("draws", np.full((2, 3, 4), np.nan)),
        ("draws", np.zeros((2, 0, 4))),
        ("accepted", np.full((2, 4), 10**9)),
        ("tried", np.zeros((3, 4), int)),
        ("spending", np.zeros(3)),
        ("names", ("a", "b", "c", "d")),
    ],
)
def test_shapes_are_checked(field, value):
    with pytest.raises(PosteriorError):
        replaced(synthetic(), **{field: value})


# -- files -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind, tmp_path):
    posterior = replaced(synthetic(models()[kind]), warnings=("one", "zwei – ≥"))
    again = Posterior.load(posterior.save(tmp_path / "posterior.nc"))
    np.testing.assert_array_equal(again.draws, posterior.draws)
    np.testing.assert_array_equal(again.accepted, posterior.accepted)
    np.testing.assert_array_equal(again.tried, posterior.tried)
    np.testing.assert_array_equal(again.spending, posterior.spending)
    assert (again.names, again.privacy, again.warnings) == (posterior.names, posterior.privacy, posterior.warnings)
    assert again.outcome == "readmitted"
    assert describe(again.model) == describe(posterior.model)
    assert again.start == {"point": [0.0] * len(again.names), "error": [0.3] * len(again.names)}
    assert str(again.summary()) == str(posterior.summary())


def test_models_that_are_no_regression_and_large_starts_are_saved_too(tmp_path):
    names = tuple(f"θ{k}" for k in range(120))
    posterior = replaced(synthetic(names=names, draws=10), start={"precision": np.eye(120)}, outcome=None)
    again = Posterior.load(posterior.save(tmp_path / "p.nc"))
    assert again.names == names
    assert again.model is None
    np.testing.assert_array_equal(again.start["precision"], np.eye(120))
    with pytest.raises(PosteriorError, match="no regression"):
        again.predict(np.zeros((2, 2)))


def test_arviz_opens_the_file(tmp_path):
    import arviz_stats
    import xarray as xr

    posterior = synthetic()
    path = posterior.save(tmp_path / "posterior.nc")
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        assert list(tree["posterior"].coefficient.values) == list(posterior.names)
        assert tree["posterior"].coefficients.dims == ("chain", "draw", "coefficient")
        assert json.loads(tree.attrs["privacy"]) == privacy_record(posterior)
        table = arviz_stats.summary(tree, var_names=["coefficients"], round_to="none")
    np.testing.assert_allclose(table["mean"].to_numpy(dtype=float), posterior.means)


def test_other_files_are_refused_in_one_line(tmp_path):
    import h5netcdf

    good = synthetic().save(tmp_path / "good.nc").read_bytes()
    files = {
        "text.nc": b"name,scale\n",
        "empty.nc": b"",
        "pickle.nc": b"\x80\x04\x95",
        "cut.nc": good[: len(good) // 2],
        "head.nc": good[:8],
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with h5netcdf.File(tmp_path / "other.nc", "w") as other:
        other.dimensions["x"] = 3
        other.create_variable("v", ("x",), float)
    for name in (*files, "other.nc"):
        with pytest.raises(LoadError) as caught:
            Posterior.load(tmp_path / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        Posterior.load(tmp_path / "missing.nc")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("format", "dpfastmh posterior 9"),
        ("privacy", "{}"),
        ("privacy", json.dumps(privacy_record(synthetic()) | {"private": "yes"})),
        ("privacy", json.dumps(privacy_record(synthetic()) | {"rows": 7})),
        ("model", '{"loss": {"name": "eval"}}'),
        ("model", "[" * 100_000),
        ("start", '{"seconds": 3}'),
        ("warnings", "[1]"),
        ("outcome", "3"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused(attribute, value, tmp_path):
    import h5netcdf

    path = synthetic().save(tmp_path / "p.nc")
    with h5netcdf.File(path, "a") as tree:
        tree.attrs[attribute] = value
    with pytest.raises(LoadError):
        Posterior.load(path)


def test_privacy_record_is_the_contract():
    record = privacy_record(synthetic())
    assert list(record) == list(PRIVACY_FIELDS)
    assert set(record) == {
        "epsilon", "delta", "epsilon_spent", "delta_spent", "alpha", "rdp_spent", "neighbouring", "unit",
        "max_rows_per_unit", "units", "method", "exact_target", "private", "temperature", "chains", "steps", "draws",
        "releases", "library_version",
    }  # fmt: skip
    assert privacy_record(replaced(synthetic(), privacy=privacy(epsilon=math.inf)))["epsilon"] is None
    json.dumps(record, allow_nan=False)


# -- writing whole or not at all -------------------------------------------------------------------------------------
def test_outputs_are_written_once_and_whole(tmp_path):
    folder = write_outputs(synthetic(), tmp_path / "out")
    assert sorted(p.name for p in folder.iterdir()) == sorted(OUTPUTS)
    assert json.loads((folder / "privacy.json").read_text()) == privacy_record(synthetic())
    assert list(tmp_path.iterdir()) == [folder]
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(OutputError, match="exists already"):
        write_outputs(synthetic(), folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_an_output_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(OutputError, match="does not exist, create it first"):
        create_folder(tmp_path / "no" / "out", {"a": b"1"})
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="does not exist"):
        create_folder(tmp_path / "file" / "out", {"a": b"1"})

    def full(_):
        raise OSError(28, "No space left on device")

    (tmp_path / "kept").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OutputError, match=r"out cannot be written \(no space left on device\): nothing was left behind"
    ):
        create_folder(tmp_path / "out", {"a": b"1"})
    with pytest.raises(OutputError, match="nothing was changed"):
        replace_file(tmp_path / "kept", b"new")
    monkeypatch.undo()
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "kept"]


@pytest.mark.skipif(os.name != "posix", reason="limits on file sizes are a POSIX matter")
def test_a_full_disk_in_the_middle_leaves_nothing(tmp_path):
    """A real one: the system refuses to write past 50 kB, in the second file."""
    code = """
        import resource, signal, sys
        from dpfastmh.outputs import create_folder
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            create_folder(sys.argv[1], {"small": bytes(10), "large": bytes(60_000)})
        except OSError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot be written (file too large): nothing was left behind" in done.stdout
    assert list(tmp_path.iterdir()) == []


# -- warnings --------------------------------------------------------------------------------------------------------
def kinds(posterior):
    return [type(finding) for finding in posterior.findings()]


def test_good_draws_raise_no_warning():
    assert kinds(synthetic(draws=1000)) == []


def test_each_warning_has_its_type_and_says_what_to_do():
    few = synthetic(draws=1000, correlation=0.98)
    assert FewEffectiveDraws in kinds(few)
    apart = synthetic(draws=1000)
    apart = replaced(apart, draws=apart.draws + np.array([0.0, 2.0])[:, None, None])
    assert ChainsDisagree in kinds(apart)
    short = synthetic(draws=6)
    assert kinds(short) == [BudgetEndedEarly]
    still = synthetic(draws=1000)
    stuck = still.accepted.copy()
    stuck[:, 2] = 0
    still = replaced(still, accepted=stuck)
    assert kinds(still) == [NeverMoved]
    assert "dose" in str(still.findings()[0])
    for posterior in (few, apart, short, still):
        for finding in posterior.findings():
            assert "epsilon" in str(finding)
            assert str(finding) in str(posterior.summary())


# -- predictions -----------------------------------------------------------------------------------------------------
def sigmoid(eta):
    return 1.0 / (1.0 + np.exp(-eta))


TABLE = {"age": np.array([20.0, 60.0, 300.0]), "dose": np.array([0.0, 5.0, 10.0]), "sex": np.array(["F", "M", "M"])}


def test_predicted_probabilities_by_hand():
    posterior = synthetic()
    found = posterior.predict(TABLE, interval=0.8)
    x = np.column_stack([np.ones(3), [(20 - 56.5) / 38.5, 3.5 / 38.5, 1.0], [-1, 0, 1], [0, 1, 1]])
    expected = sigmoid(x @ posterior.draws.reshape(-1, 4).T)
    np.testing.assert_allclose(found.mean, expected.mean(axis=1))
    np.testing.assert_allclose(found.low, np.quantile(expected, 0.1, axis=1))
    np.testing.assert_allclose(found.high, np.quantile(expected, 0.9, axis=1))
    assert found.kind == "probability"


def test_predictions_take_any_table():
    import pandas as pd
    import polars as pl

    posterior = synthetic()
    mean = posterior.predict(TABLE).mean
    for table in (pd.DataFrame(TABLE), pl.DataFrame(TABLE), pa.table(TABLE)):
        np.testing.assert_array_equal(posterior.predict(table).mean, mean)
    numbers = synthetic(models()["huber"])
    array = np.array([[0.5, -0.5], [1.0, 2.0]])
    by_name = numbers.predict({"u": array[:, 0], "v": array[:, 1]})
    np.testing.assert_array_equal(numbers.predict(array).mean, by_name.mean)
    assert len(numbers.predict(array[:1])) == 1


def test_softmax_probabilities_add_up():
    posterior = synthetic(models()["softmax"])
    table = {"age": [20.0, 90.0], "dose": [1.0, 9.0], "ward": [1, 3]}
    found = posterior.predict(table)
    assert found.mean.shape == (2, 3)
    np.testing.assert_allclose(found.mean.sum(axis=1), 1.0)
    assert np.all((found.low <= found.mean) & (found.mean <= found.high))
    x = posterior.model.domain.project(table)
    eta = np.einsum("nd,mkd->nmk", x, posterior.draws.reshape(-1, 2, 5))
    weight = np.concatenate([np.ones((*eta.shape[:2], 1)), np.exp(eta)], axis=2)
    np.testing.assert_allclose(found.mean, (weight / weight.sum(axis=2, keepdims=True)).mean(axis=1))
    assert list(found.columns())[:4] == ["probability[red]", "low[red]", "high[red]", "probability[green]"]


@pytest.mark.parametrize("kind", ["student-t", "huber", "logistic-error"])
def test_intervals_of_outcomes_hold_the_models_errors(kind):
    """With the coefficients all but known, the interval of the outcome is that of the error's density e^{−L}."""
    from scipy.integrate import quad

    model = models()[kind]
    posterior = synthetic(model, sd=1e-9, draws=40_000, chains=1)
    table = {name: np.array(["F"] if name == "sex" else [0.3]) for name in model.domain.columns}
    found = posterior.predict(table, interval=0.8, predictive=True)
    loss = model.loss
    energy = {
        "student-t": lambda r: 0.5 * (loss.df + 1) * math.log1p(r * r / (loss.df * loss.scale**2)),
        "huber": lambda r: math.sqrt(1 + (r / loss.scale) ** 2),
        "logistic-error": lambda r: abs(r) / loss.scale + 2 * math.log1p(math.exp(-abs(r) / loss.scale)),
    }[kind]
    whole = quad(lambda r: math.exp(-energy(r)), -60, 60)[0]
    half = (found.high - found.low)[0] / 2
    inside = quad(lambda r: math.exp(-energy(r)), -half, half)[0] / whole
    assert inside == pytest.approx(0.8, abs=0.015)  # six standard errors of a quantile of 40,000 draws


def test_outcome_intervals_of_counts_and_classes():
    counts = synthetic(models()["poisson"]).predict({"age": [50.0], "dose": [10.0]}, predictive=True)
    assert counts.low[0] == np.floor(counts.low[0]) >= 0
    assert counts.high[0] <= 30
    assert counts.high[0] - counts.low[0] >= 2
    one = synthetic().predict(TABLE, predictive=True)
    assert set(np.concatenate([one.low, one.high])) <= {0.0, 1.0}
    again = synthetic().predict({name: cells[:1] for name, cells in TABLE.items()}, predictive=True)
    assert again.low[0] == one.low[0]  # a row's prediction does not depend on its company


@pytest.mark.parametrize("interval", [0.0, 1.0, -1.0, math.nan, True])
def test_an_interval_is_a_probability(interval):
    with pytest.raises(PosteriorError, match="between 0 and 1"):
        synthetic().predict(TABLE, interval=interval)


# -- commands --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return write_outputs(synthetic(), tmp_path_factory.mktemp("outputs") / "out")


def test_predict_command(out, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("id,sex,age,dose\na,F,20,0\nb,M,60,5\nc,M,300,10\n")
    assert main(["predict", str(out), str(tmp_path / "new.csv")]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == ["probability", "low", "high"]
    mean = synthetic().predict(TABLE).mean
    np.testing.assert_allclose([float(row["probability"]) for row in rows], mean, rtol=1e-5)
    target = tmp_path / "predictions.csv"
    assert main(["predict", str(out), str(tmp_path / "new.csv"), "-o", str(target), "--interval", "0.5"]) == 0
    assert capsys.readouterr().out == ""
    narrow = list(csv.DictReader(io.StringIO(target.read_text())))
    assert float(narrow[0]["low"]) > float(rows[0]["low"])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("sex,age\nF,20\n", "column 'dose' is missing"),
        ("sex,age,dose\nF,20,x\n", "column 'dose', row 1"),
        ("sex,age,dose\nF,20,1\nX,20,2\n", "unknown category 'X'"),
        ("sex,age,dose\nF,20,\n", "missing"),
        ("", "new.csv"),
        (None, "no such file"),
    ],
)
def test_predict_refuses_in_one_line_and_writes_nothing(out, table, words, tmp_path, capsys):
    if table is not None:
        (tmp_path / "new.csv").write_text(table)
    assert main(["predict", str(out), str(tmp_path / "new.csv"), "-o", str(tmp_path / "p.csv")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "p.csv").exists()


def test_report_command_writes_it_again(out, capsys):
    before = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").read_bytes() == before
    assert "report.html" in capsys.readouterr().out
    assert main(["report", str(out / "nothing")]) == 1
    assert "has no posterior.nc" in capsys.readouterr().err


def test_heavy_libraries_wait_until_they_are_needed():
    code = (
        "import sys, dpfastmh, dpfastmh.cli, dpfastmh.posterior, dpfastmh.commands.predict, dpfastmh.commands.report;"
        "print([m for m in ('arviz_base', 'arviz_stats', 'matplotlib', 'h5netcdf', 'sklearn', 'scipy', 'numba',"
        " 'pyarrow', 'xarray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_shown_is_short():
    posterior = synthetic()
    assert len(repr(posterior)) < 200
    assert "summary()" in repr(posterior)
    assert repr(posterior.predict(TABLE)).startswith(
        f"<Prediction of {len(posterior.predict(TABLE))} rows: probability"
    )


def test_predictions_fill_in_missing_cells_and_carry_an_id(tmp_path, capsys):
    posterior = replaced(synthetic(), missing={"age": 45, "sex": "M"}, privacy=privacy(temperature=4.0))
    (tmp_path / "out").mkdir()
    posterior.save(tmp_path / "out" / "posterior.nc")
    assert Posterior.load(tmp_path / "out" / "posterior.nc").missing == {"age": 45, "sex": "M"}
    (tmp_path / "gaps.csv").write_text("who,age,dose,sex\nA7,,3,F\nB2,50,3,\n")
    (tmp_path / "full.csv").write_text("age,dose,sex\n45,3,F\n50,3,M\n")
    assert main(["predict", str(tmp_path / "out"), str(tmp_path / "gaps.csv"), "--id", "who"]) == 0
    out, err = capsys.readouterr()
    assert "at temperature 4: the intervals are about 2 times as wide as the posterior's" in err
    assert main(["predict", str(tmp_path / "out"), str(tmp_path / "full.csv")]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert out.splitlines() == [f"{who},{line}" for who, line in zip(["who", "A7", "B2"], plain, strict=True)]
    (tmp_path / "dose.csv").write_text("age,dose,sex\n45,,F\n")  # no public value for this one
    assert main(["predict", str(tmp_path / "out"), str(tmp_path / "dose.csv")]) == 1
    assert "column 'dose', row 1: missing" in capsys.readouterr().err
