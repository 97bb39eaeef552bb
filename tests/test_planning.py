"""The planner's arithmetic against brute force, and its forecasts against runs on the design they are made for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import logistic, poisson, t

import dpfastmh as mh
from dpfastmh import losses, planning
from dpfastmh.cli import main
from dpfastmh.planning import (
    SCALES,
    YIELD,
    Plan,
    Settings,
    acceptance,
    lazy_price,
    nominal_second_moment,
    plan,
    plan_table,
    steepest_slope,
)


# -- what a Barker chain yields --------------------------------------------------------------------------------------
def barker_walk(scale: float, half_width: float = 7.0, cells: int = 1401) -> tuple[np.ndarray, np.ndarray]:
    """Grid, and transition matrix of a Barker random walk on N(0, 1)."""
    z = np.linspace(-half_width, half_width, cells)
    density = np.exp(-((z[:, None] - z) ** 2) / (2 * scale**2)) * (z[1] - z[0]) / (scale * math.sqrt(2 * math.pi))
    step = density / (1 + np.exp((z**2 - z[:, None] ** 2) / 2))
    np.fill_diagonal(step, 0.0)
    return z, step + np.diag(1 - step.sum(axis=1))


@pytest.mark.parametrize("scale", SCALES[1:])
def test_effective_draws_per_step_by_the_transition_operator(scale: float) -> None:
    """1/(1 + 2Σ autocorrelations) of z ↦ z, from (I − P)⁻¹."""
    z, step = barker_walk(scale)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    solved = np.linalg.solve(np.eye(z.size) - step + np.outer(np.ones(z.size), weight), z)
    ratio = 2 * (weight * z) @ solved / (weight @ z**2) - 1
    assert np.interp(scale, SCALES, YIELD) == pytest.approx(1 / ratio, rel=0.03)


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 2.4, 10.0])
def test_acceptance_by_brute_force(scale: float) -> None:
    z = np.linspace(-9, 9, 2001)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    move = scale * z
    chance = 1 / (1 + np.exp(np.clip(np.outer(move, z) + move[:, None] ** 2 / 2, -700, 700)))
    assert acceptance(scale) == pytest.approx(float(weight @ chance @ weight), rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("kappa", [1e-3, 0.05, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_the_price_of_a_lazy_step_is_the_supremum(kappa: float) -> None:
    s = np.linspace(0, 1, 200_001)[:-1]
    assert lazy_price(kappa) == pytest.approx(float(np.max(kappa * s * (1 - s) ** 2 / (1 - kappa * s))), rel=1e-8)


# -- the nominal design ----------------------------------------------------------------------------------------------
DOMAINS = {
    "box": mh.Box(a=(0, 10), b=(-1, 1)),
    "categories": mh.OneHot("c", ["x", "y", "z"]) * mh.Box(a=(0, 1)),
    "two groups": mh.OneHot("c", ["x", "y", "z"]) * mh.OneHot("e", ["u", "v"]),
    "ball": mh.Ball(2.0, ["p", "q", "r"]),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_second_moments_of_even_features(name: str) -> None:
    rng = np.random.default_rng(3)
    n = 200_000
    ball = rng.normal(size=(n, 3))
    ball *= 2.0 * rng.random((n, 1)) ** (1 / 3) / np.linalg.norm(ball, axis=1, keepdims=True)
    raw = {
        "a": rng.uniform(*((0, 10) if name == "box" else (0, 1)), n),
        "b": rng.uniform(-1, 1, n),
        "c": np.array(["x", "y", "z"])[rng.integers(0, 3, n)],
        "e": np.array(["u", "v"])[rng.integers(0, 2, n)],
        "p": ball[:, 0],
        "q": ball[:, 1],
        "r": ball[:, 2],
    }
    model = mh.LogisticRegression(DOMAINS[name])
    x = model.domain.project({column: raw[column] for column in DOMAINS[name].columns})
    assert nominal_second_moment(model) == pytest.approx(x.T @ x / n, abs=0.015 * max(1.0, float(np.abs(x).max()) ** 2))


@pytest.mark.parametrize(
    "loss",
    [
        losses.Logistic(),
        losses.StudentT(4.0, 2.0),
        losses.PseudoHuber(1.5),
        losses.LogisticError(0.7),
        losses.Poisson(60),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_information_at_zero_is_the_mean_curvature(loss: Any) -> None:
    if isinstance(loss, losses.Logistic):
        y, weight = np.array([0.0, 1.0]), np.array([0.5, 0.5])
    elif isinstance(loss, losses.Poisson):
        y = np.arange(61.0)
        weight = poisson.pmf(y, math.log(2))
    else:
        z = np.linspace(-200, 200, 20_001)
        y = z * loss.scale
        densities = {
            losses.StudentT: lambda: t.pdf(z, 4.0),
            losses.PseudoHuber: lambda: np.exp(1 - np.sqrt(1 + z * z)),
            losses.LogisticError: lambda: logistic.pdf(z),
        }
        weight = densities[type(loss)]()
    weight = weight / weight.sum()
    found = float(weight @ np.array([losses.curvature(loss, 0.0, v) for v in y]))
    assert planning._nominal_information(loss)[0, 0] == pytest.approx(found, rel=0.01)


def test_the_steepest_slope_is_never_exceeded() -> None:
    model, rng = mh.LogisticRegression(mh.Box.unit(3)), np.random.default_rng(5)
    for _ in range(50):
        point = rng.normal(size=4) * 3
        x = model.domain.project(rng.uniform(-1, 1, (100, 3)))
        slope = np.abs(1 / (1 + np.exp(-x @ point))[:, None] - np.array([0, 1]))
        assert slope.max() <= steepest_slope(model, point) * (1 + 1e-12)


# -- plans -----------------------------------------------------------------------------------------------------------
MODEL = mh.LogisticRegression(mh.Box.unit(4))


def forecast(epsilon: float = 1.0, units: int = 100_000, **options: object) -> Plan:
    model = options.pop("model", MODEL)
    return plan(model, units=units, budget=mh.Budget(epsilon, 1e-7), **options)  # type: ignore[arg-type]


def test_more_budget_records_and_temperature_give_more() -> None:
    least = [forecast(e).effective.min() for e in (0.25, 0.5, 1.0, 2.0)]
    assert least == sorted(least)
    assert forecast(units=400_000).effective.min() > forecast().effective.min()
    warm = mh.LogisticRegression(mh.Box.unit(4), temperature=8)
    assert forecast(model=warm).effective.min() > forecast().effective.min()
    assert forecast(max_rows_per_unit=3, units=100_000).effective.min() < forecast(units=300_000).effective.min()
    assert forecast(max_time=0.01).steps < forecast().steps / 3


def test_the_advice_buys_one_draw() -> None:
    found = forecast(0.05, 2_000)
    assert not found.enough
    assert found.advice in found.summary()
    words = found.advice.split("temperature ")[1]
    temperature, epsilon, units = (
        float(part.strip(" .,units").replace(",", ""))
        for part in (words.split(",")[0], words.split("epsilon ")[1].split(", or")[0], words.split(", or ")[2])
    )
    assert forecast(0.05, 2_000, model=planning.at_temperature(MODEL, temperature)).effective.min() > 0.9
    assert forecast(epsilon, 2_000).effective.min() > 0.9
    assert forecast(0.05, int(units)).effective.min() > 0.9


def test_a_budget_beyond_rescue_says_so() -> None:
    found = forecast(1e-6, 10)
    assert not found.enough
    assert "inf" not in found.advice
    beyond = planning.too_small(1e-9, math.inf, math.inf, math.inf)
    assert beyond.endswith("Nothing within a factor of a million would do.")


def test_the_table_has_a_line_for_each_plan() -> None:
    lines = plan_table([forecast(e) for e in (0.5, 1.0)]).splitlines()
    assert len(lines) == 3
    assert lines[0].split()[0] == "epsilon"


class Design(NamedTuple):
    """Even features and no effects: what forecasts are made for."""

    build: Callable[[], mh.GLM]
    target: Callable[[np.random.Generator, int], np.ndarray]
    units: int
    epsilon: float
    rows: int = 1
    method: str = "dp-fast-mh"

    def table(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        n = self.units * self.rows
        return rng.uniform(-1, 1, (n, len(self.build().domain) - 1)), self.target(rng, n)

    def sample(self, x: np.ndarray, y: np.ndarray, budget: mh.Budget, seed: int) -> mh.Posterior:
        if self.rows == 1:
            return mh.sample(self.build(), x, y, budget=budget, method=self.method, seed=seed)
        table = {f"x{j}": x[:, j] for j in range(x.shape[1])} | {"y": y, "who": np.arange(y.size) // self.rows}
        return mh.sample(
            self.build(), table, target="y", unit="who", max_rows_per_unit=self.rows, budget=budget, seed=seed
        )


def logistic_design(d: int, units: int, epsilon: float, rows: int = 1, method: str = "dp-fast-mh") -> Design:
    return Design(
        lambda: mh.LogisticRegression(mh.Box.unit(d)),
        lambda rng, n: rng.integers(0, 2, n),
        units,
        epsilon,
        rows,
        method,
    )


NOMINAL = {
    "logistic": logistic_design(4, 60_000, 1.0),
    "logistic, small": logistic_design(2, 6_000, 2.0),
    "logistic, ten columns": logistic_design(9, 150_000, 1.0),
    "units of three rows": logistic_design(3, 30_000, 2.0, rows=3),
    "full batch": logistic_design(2, 4_000, 2.0, method="dp-fast-mh-full"),
    "student-t": Design(
        lambda: mh.StudentTRegression(mh.Box.unit(3)), lambda rng, n: rng.standard_t(4, n), 60_000, 2.0
    ),
    "softmax": Design(
        lambda: mh.SoftmaxRegression(mh.Box.unit(2), classes=3), lambda rng, n: rng.integers(0, 3, n), 60_000, 2.0
    ),
    "logistic, thirty columns": logistic_design(29, 500_000, 2.0),
}
SLOW = ("logistic, thirty columns",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NOMINAL])
def test_forecasts_hold_within_a_factor_of_two_on_the_nominal_design(name: str) -> None:
    """Steps, effective draws and the error of means, the last as a root mean square over runs and coefficients."""
    design, rng = NOMINAL[name], np.random.default_rng(11)
    model, budget = design.build(), mh.Budget(design.epsilon, 1e-6)
    x, y = design.table(rng)
    expected = plan(model, units=design.units, budget=budget, max_rows_per_unit=design.rows, method=design.method)
    runs = [design.sample(x, y, budget, seed) for seed in range(6)]
    assert 0.5 < np.median([run.privacy.steps for run in runs]) / expected.steps < 2
    assert 0.5 < np.median([run.ess() for run in runs]) / np.median(expected.effective) < 2
    exact = mode_and_sd(model, x, y)
    off = np.array([(run.means - exact[0]) / exact[1] for run in runs])
    assert 0.5 < np.sqrt((off**2).mean()) / np.sqrt((expected.errors**2).mean()) < 2


def mode_and_sd(model: mh.GLM, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from dpfastmh.steps.reference import mode

    point, hessian = mode(model, model.load(x, y))
    return point, np.sqrt(np.diag(np.linalg.inv(hessian)))


# -- refusals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"units": 0}, "number of units"),
        ({"units": 2.5}, "number of units"),
        ({"max_rows_per_unit": 0}, "max_rows_per_unit"),
        ({"chains": 0}, "chains"),
        ({"max_time": -1.0}, "max_time"),
        ({"max_time": math.nan}, "max_time"),
        ({"laziness": 0.0}, "laziness"),
        ({"model": mh.Mixture()}, "nominal design"),
    ],
)
def test_bad_questions_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        forecast(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        {"warm_share": 0.0},
        {"warm_share": 1.0},
        {"hessian_share": math.nan},
        {"adapt_share": 1.0},
        {"laziness": 1.5},
        {"scale": -1.0},
        {"hessian_rounds": (0, 5)},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Settings(**bad)  # type: ignore[arg-type]


def test_the_comfortable_temperature_buys_a_hundred_draws() -> None:
    found = forecast(0.5)
    assert found.temperature < found.comfortable < math.inf
    assert f"temperature {found.comfortable:.2g}" in found.summary()
    warm = forecast(0.5, model=planning.at_temperature(MODEL, found.comfortable))
    assert 90.0 < warm.effective.min() < 115.0
    rich = forecast(4.0, 1_000_000, model=planning.at_temperature(MODEL, 50.0))
    assert rich.comfortable == rich.temperature
    assert "Comfortable" not in rich.summary()


def test_the_command_compares_temperatures_and_passes_on_the_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "spend.toml"
    schema.write_text('model = "huber"\ntarget = "y"\n[columns.x]\nbounds = [0, 1]\n[columns.y]\nbounds = [0, 200]\n')
    words = ["plan", "--schema", str(schema), "--rows", "50000", "--epsilon", "1", "--delta", "1e-6"]
    assert main([*words, "--over", "temperature", "--temperature", "2"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["2", "4", "8", "16", "32", "64"]
    assert "dpfastmh plan: target 'y': its bounds are centred at 100" in err
    assert main([*words, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["comfortable_temperature"] > 1.0
