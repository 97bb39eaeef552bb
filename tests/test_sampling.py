"""Private sampling from end to end: what is spent, what comes out, what cannot come out, and when it refuses."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

import dpfastmh as mh
from dpfastmh import datasets, methods
from dpfastmh.methods import Coordinates, DPFastMH, DPFastMHFull, MetropolisHastings
from dpfastmh.planning import BudgetTooSmall, Settings
from dpfastmh.posterior import Posterior
from dpfastmh.privacy.boundary import PrivateChain, PrivateRecords, make_meter
from dpfastmh.privacy.filter import RenyiFilter
from dpfastmh.privacy.releases import GaussianSum
from dpfastmh.sampling import Progress, sample
from dpfastmh.steps.likelihood import Reference, Rows
from dpfastmh.steps.reference import mode
from energies import free_mean

BUDGET = mh.Budget(2.0, 1e-6)
N, D = 20_000, 3
RNG = np.random.default_rng(21)
X = RNG.uniform(-1, 1, (N, D))
THETA = np.array([-0.3, 0.6, -0.4, 0.2])
Y = (RNG.random(N) < 1 / (1 + np.exp(-THETA[0] - X @ THETA[1:]))).astype(float)
MODEL = mh.LogisticRegression(mh.Box.unit(D))


def reference(model: mh.GLM, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mode and Laplace sds: at these sizes the posterior is normal to within a few per cent of an sd."""
    point, hessian = mode(model, model.load(x, y))
    return point, np.sqrt(np.diag(np.linalg.inv(hessian)))


@pytest.fixture(scope="module")
def run() -> Posterior:
    return sample(MODEL, X, Y, budget=BUDGET, seed=1)


# -- the budget ------------------------------------------------------------------------------------------------------
def test_everything_is_charged_and_nothing_beyond_the_budget(run: Posterior) -> None:
    privacy = run.privacy
    assert 0.999 * BUDGET.epsilon < privacy.epsilon_spent <= BUDGET.epsilon
    assert privacy.delta_spent <= BUDGET.delta
    releases = {release["what"]: release for release in privacy.releases}
    assert set(releases) == {"gradient", "hessian", "accept bits"}
    assert sum(release["rdp"] for release in releases.values()) == pytest.approx(privacy.rdp_spent, rel=1e-12)
    settings = Settings()
    warm = releases["gradient"]["rdp"] + releases["hessian"]["rdp"]
    limit = RenyiFilter(BUDGET, steps_cap=100).limit
    assert warm == pytest.approx(settings.warm_share * limit, rel=1e-3)
    assert releases["gradient"]["count"] == len(settings.gradient_weights)
    assert releases["accept bits"]["count"] >= privacy.steps
    assert (np.diff(run.spending, axis=0) >= 0).all()
    assert run.spending[0, 1] < run.spending[-1, 1] <= privacy.epsilon_spent * (1 + 1e-9)


def test_a_warm_start_that_is_not_charged_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(self: GaussianSum, sums: Any, account: Any, insecure_rng: Any = None) -> Any:
        rich = RenyiFilter(mh.Budget(10.0, 1e-3), steps_cap=10)
        return original(self, sums, rich, insecure_rng=insecure_rng)

    original = GaussianSum.release
    monkeypatch.setattr(GaussianSum, "release", free)
    with pytest.raises(AssertionError):
        test_everything_is_charged_and_nothing_beyond_the_budget(sample(MODEL, X, Y, budget=BUDGET, seed=1))


def test_ending_early_leaves_the_rest_unspent() -> None:
    few = sample(MODEL, X, Y, budget=BUDGET, draws=100, seed=2)
    assert few.draws.shape[:2] == (2, 50)
    assert few.privacy.epsilon_spent < 0.9 * BUDGET.epsilon
    short = sample(MODEL, X, Y, budget=BUDGET, max_time=0.002, seed=2)
    assert short.privacy.epsilon_spent <= BUDGET.epsilon
    assert short.privacy.steps < 100_000


def test_draws_are_thinned_to_two_thousand_a_chain() -> None:
    long = sample(MODEL, X, Y, budget=mh.Budget(6.0, 1e-6), seed=3)
    assert 1_000 <= long.draws.shape[1] <= 2_000
    assert long.start is not None
    assert long.start["thin"] * long.draws.shape[1] <= long.privacy.steps / 2 * 1.01


def test_an_interrupt_ends_with_what_there_is() -> None:
    seen: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.phase == "main" and sum(p.phase == "main" for p in seen) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    found = sample(MODEL, X, Y, budget=mh.Budget(8.0, 1e-6), seed=4, progress=watch)
    assert any("interrupted" in warning for warning in found.warnings)
    assert 0 < found.privacy.epsilon_spent < 8.0
    assert found.privacy.epsilon_spent == pytest.approx(found.spending[-1, 1], rel=1e-6)
    assert [p.phase for p in seen][:6] == ["start"] * 6
    assert all(0 <= p.spent <= p.epsilon and 0 <= p.share <= 1 for p in seen)


def test_an_interrupt_in_the_warm_start_says_what_was_spent() -> None:
    def watch(progress: Progress) -> None:
        if progress.phase == "start" and progress.share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"stopped, and no draws are kept\. Spent: epsilon = \d\.\d+\.$"):
        sample(MODEL, X, Y, budget=BUDGET, progress=watch)


# -- what comes out --------------------------------------------------------------------------------------------------
def test_draws_are_those_of_the_posterior() -> None:
    """N = 20,000, ε = 8: 40 runs, each mean's error and each variance against the normal limit, by their own spread."""
    point, sd = reference(MODEL, X, Y)
    runs = [sample(MODEL, X, Y, budget=mh.Budget(8.0, 1e-6), seed=seed) for seed in range(24)]
    z = np.array([(found.means - point) / sd for found in runs])
    spread = np.array([found.sds / sd for found in runs])
    assert np.abs(z.mean(axis=0)).max() < 5.5 * z.std(axis=0).max() / math.sqrt(24) + 0.03
    assert np.sqrt((z**2).mean()) < 0.2
    assert np.abs(spread.mean(axis=0) - 1).max() < 5.5 * spread.std(axis=0).max() / math.sqrt(24) + 0.03
    # the same figures notice a likelihood counted at four fifths
    cooler = np.sqrt(1.25)
    assert np.abs(spread.mean(axis=0) / cooler - 1).min() > 5.5 * spread.std(axis=0).max() / math.sqrt(24) + 0.03


def test_seeds_repeat_and_are_marked() -> None:
    again = [sample(MODEL, X, Y, budget=BUDGET, seed=5, draws=200) for _ in range(2)]
    assert np.array_equal(again[0].draws, again[1].draws)
    assert not again[0].privacy.private
    assert "NOT PRIVATE" in str(again[0].summary())
    secret = [sample(MODEL, X, Y, budget=BUDGET, draws=200) for _ in range(2)]
    assert secret[0].privacy.private
    assert not np.array_equal(secret[0].draws, secret[1].draws)
    assert "NOT PRIVATE" not in str(secret[0].summary())


def test_every_model_and_method_runs() -> None:
    rng = np.random.default_rng(31)
    x = rng.uniform(-1, 1, (3_000, 2))
    budget = mh.Budget(4.0, 1e-5)
    box = mh.Box.unit(2)
    cases: list[tuple[mh.GLM, np.ndarray]] = [
        (mh.StudentTRegression(box), x[:, 0] + rng.standard_t(4, 3_000)),
        (mh.HuberRegression(box), x[:, 0] + rng.normal(size=3_000)),
        (mh.PoissonRegression(box, cap=10), rng.poisson(1.0, 3_000)),
        (mh.SoftmaxRegression(box, classes=3), rng.integers(0, 3, 3_000)),
    ]
    for model, y in cases:
        found = sample(model, x, y, budget=budget, seed=6, settings=Settings(least_draws=0.0))
        assert np.isfinite(found.draws).all()
        assert found.privacy.epsilon_spent <= budget.epsilon
    full = sample(mh.LogisticRegression(box), x, x[:, 0] > 0, budget=budget, seed=6, method="dp-fast-mh-full", chains=1)
    assert full.privacy.method == "dp-fast-mh-full"
    mixture = sample(mh.Mixture(), rng.normal(0, 1, 5_000), budget=budget, seed=6, max_time=1.0)
    assert mixture.privacy.exact_target == "tempered"
    assert mixture.start is not None
    assert 0.2 < mixture.acceptance.mean() / mixture.start["laziness"] < 0.65  # found by itself


def test_a_users_energy_needs_a_start() -> None:
    model = free_mean()
    x = np.random.default_rng(7).uniform(-1, 1, (2_000, 1))
    with pytest.raises(ValueError, match="give a start"):
        sample(model, x, budget=BUDGET, seed=7)
    found = sample(model, x, budget=BUDGET, seed=7, start=[0.0], proposal=Coordinates(0.02), max_time=0.5)
    assert found.privacy.exact_target == "clampable"
    assert abs(found.means[0] - x.mean()) < 0.15


# -- people with several rows ----------------------------------------------------------------------------------------
def visits(people: int, seed: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 6, people)
    ids = np.repeat(np.arange(people), rows)
    x = rng.uniform(-1, 1, ids.size)
    return {"id": ids, "x0": x, "y": (rng.random(ids.size) < 1 / (1 + np.exp(-x))).astype(int)}


def test_units_are_counted_and_rows_are_not() -> None:
    table = visits(8_000)
    model = mh.LogisticRegression(mh.Box.unit(1))
    found = sample(model, table, target="y", unit="id", max_rows_per_unit=3, budget=mh.Budget(4.0, 1e-5), seed=9)
    privacy = found.privacy
    assert (privacy.units, privacy.unit, privacy.max_rows_per_unit) == (8_000, "id", 3)
    rows = int(np.minimum(np.bincount(table["id"]), 3).sum())
    text = json.dumps(dataclasses.asdict(privacy)) + str(found.summary())
    assert str(rows) not in text
    assert str(table["id"].size) not in text
    alone = sample(model, table, target="y", budget=mh.Budget(4.0, 1e-5), seed=9)
    assert alone.privacy.units == table["id"].size
    assert found.sds.max() > alone.sds.max()  # fewer rows count


def test_a_unit_of_several_rows_pays_for_all_of_them() -> None:
    method = DPFastMH(Coordinates(0.1))
    one, three = (make_meter(MODEL, method, 10.0, 1_000, k) for k in (1, 3))
    from dpfastmh.privacy.accept_bit import look_up

    for table in ("full", "minibatch", "expanded"):
        ratio = look_up(getattr(three, table), 0.01, 0.001) / look_up(getattr(one, table), 0.01, 0.001)
        assert ratio == pytest.approx(9.0, rel=0.05)


# -- nothing private can be reached ----------------------------------------------------------------------------------
def reachable(root: object) -> list[object]:
    """Everything that can be reached from ``root`` through references, but for code."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        seen[id(item)] = item
        waiting += gc.get_referents(item)
    return list(seen.values())


def private_parts(root: object, rows: int) -> list[object]:
    """What must not be there: private objects, and arrays as long as the table."""
    kinds = (PrivateRecords, PrivateChain, Rows, Reference)
    return [
        item
        for item in reachable(root)
        if isinstance(item, kinds) or (isinstance(item, np.ndarray) and item.ndim > 0 and item.shape[0] == rows)
    ]


def test_the_result_leads_to_no_record(run: Posterior) -> None:
    assert private_parts(run, N) == []
    for attribute in dir(run):
        if not attribute.startswith("__") and not callable(getattr(run, attribute)):
            assert private_parts(getattr(run, attribute), N) == []


def test_a_result_that_kept_its_records_is_caught(run: Posterior) -> None:
    kept = dataclasses.replace(run)
    object.__setattr__(kept, "records", PrivateRecords(MODEL, MODEL.load(X, Y), units=N))
    assert private_parts(kept, N)
    lazy = dataclasses.replace(run, accepted=np.zeros((2, N), int), tried=np.ones((2, N), int))
    assert private_parts(lazy, 2) or private_parts(lazy.tried.T, N)


def test_private_objects_cannot_be_copied_out() -> None:
    records = PrivateRecords(MODEL, MODEL.load(X, Y), units=N)
    account = RenyiFilter(BUDGET, steps_cap=1000)
    chain = records.chain(DPFastMH(Coordinates(0.1)), np.zeros(4), account, reference=np.zeros(4))
    for secret in (records, chain):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(secret)
        public = [name for name in dir(secret) if not name.startswith("_")]
        assert not any(isinstance(getattr(secret, name), np.ndarray | Rows) for name in public)
        assert not hasattr(secret, "__dict__")
    assert set(chain.run(10)._asdict()) == {"draws", "position", "steps", "tried", "accepted", "spent", "closed"}


def beside_states(seed: int) -> tuple[int, int, bool]:
    """What a chain of 500 moves releases beside its states, acceptances and their cost."""
    table = np.vstack([X[:50], -X[:50]])
    answers = np.concatenate([Y[:50], Y[:50]])
    records = PrivateRecords(MODEL, MODEL.load(table, answers), units=100, seed=seed)
    account = RenyiFilter(mh.Budget(8.0, 1e-3), steps_cap=100_000)
    chain = records.chain(DPFastMH(Coordinates(1e-9), laziness=0.5), np.zeros(4), account, reference=np.zeros(4))
    found = chain.run(500)
    assert set(found._fields) == {"draws", "position", "steps", "tried", "accepted", "spent", "closed"}
    return found.steps, int(found.tried.sum()), found.closed


def test_what_is_released_does_not_depend_on_the_lazy_coin() -> None:
    """Half of the steps skip the data, not the same ones in two chains: nothing shows which, nor how many."""
    assert beside_states(1) == beside_states(2) == (500, 500, False)


def test_control_counting_the_steps_that_looked_at_data_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def telling(before: Any, after: Any) -> Any:
        info = original(before, after)
        return info._replace(steps=info.evaluated)

    original = methods._info
    monkeypatch.setattr(methods, "_info", telling)
    assert beside_states(1) != beside_states(2)


def test_public_rules_do_not_depend_on_the_data() -> None:
    """The meter, the rule and the bounds are the same for two tables; a constant taken from the data is caught."""

    def rules(model: Any, x: np.ndarray) -> list[Any]:
        method = DPFastMH(Coordinates(0.1))
        sampler = method.on(model(x), x, np.zeros(len(x)), seed=1, meter=make_meter(model(x), method, 9.0, len(x)))
        flat = []
        for part in (sampler.rule, sampler._meter, sampler._table):
            for field in part:
                for entry in field if isinstance(field, tuple) else (field,):
                    flat.append(np.asarray(entry))
        return flat

    def same(one: list[Any], other: list[Any]) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))

    def declared(x: np.ndarray) -> mh.GLM:
        return mh.LogisticRegression(mh.Box.unit(3) & mh.Ball(1.7))

    def measured(x: np.ndarray) -> mh.GLM:
        return mh.LogisticRegression(mh.Box.unit(3) & mh.Ball(float(np.linalg.norm(x, axis=1).max())))

    assert same(rules(declared, X[:200]), rules(declared, 0.5 * X[:200]))
    assert not same(rules(measured, X[:200]), rules(measured, 0.5 * X[:200]))


# -- refusals --------------------------------------------------------------------------------------------------------
def test_metropolis_is_refused_where_privacy_is_claimed() -> None:
    records = PrivateRecords(MODEL, MODEL.load(X, Y), units=N)
    account = RenyiFilter(BUDGET, steps_cap=1000)
    for method in (MetropolisHastings(Coordinates(0.1)), DPFastMHFull(Coordinates(0.1), acceptance="metropolis")):
        with pytest.raises(ValueError, match="Metropolis acceptance cannot be private"):
            records.chain(method, np.zeros(4), account, reference=None)
    penalty = DPFastMHFull(Coordinates(0.1), acceptance="penalty", variance=1.0)
    with pytest.raises(ValueError, match="53 random bits"):
        records.chain(penalty, np.zeros(4), account, reference=None)
    assert account.spent == 0
    coarse = RenyiFilter(BUDGET, steps_cap=1000, coin_bits=53)
    assert records.chain(penalty, np.zeros(4), coarse, reference=None).run(3).steps == 3


REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "epsilon 0": (lambda: mh.Budget(0.0, 1e-6), "epsilon must be"),
    "epsilon NaN": (lambda: mh.Budget(math.nan, 1e-6), "epsilon must be"),
    "delta 1": (lambda: mh.Budget(1.0, 1.0), "delta must be"),
    "delta above 1/N": (lambda: sample(MODEL, X, Y, budget=mh.Budget(1.0, 1e-4)), "above 1/20000"),
    "epsilon beyond coins": (lambda: sample(MODEL, X, Y, budget=mh.Budget(45.0, 1e-9)), "too large for delta"),
    "tiny budget": (lambda: sample(MODEL, X, Y, budget=mh.Budget(1e-4, 1e-6)), "Nothing was spent"),
    "unknown method": (lambda: sample(MODEL, X, Y, budget=BUDGET, method="mh"), "private sampling has dp-fast-mh"),
    "no chains": (lambda: sample(MODEL, X, Y, budget=BUDGET, chains=0), "chains=0"),
    "no draws": (lambda: sample(MODEL, X, Y, budget=BUDGET, draws=0), "draws=0"),
    "no time": (lambda: sample(MODEL, X, Y, budget=BUDGET, max_time=math.nan), "max_time=nan"),
    "draws NaN": (lambda: sample(MODEL, X, Y, budget=BUDGET, draws=math.nan), "draws=nan"),  # type: ignore[arg-type]
    "draws endless": (lambda: sample(MODEL, X, Y, budget=BUDGET, draws=math.inf), "draws=inf"),  # type: ignore[arg-type]
    "chains 1.5": (lambda: sample(MODEL, X, Y, budget=BUDGET, chains=1.5), "chains=1.5"),  # type: ignore[arg-type]
    "a start of another model": (lambda: sample(MODEL, X, Y, budget=BUDGET, start=[0.0, 0.0]), "give 4 finite numbers"),
    "a start that is no number": (lambda: sample(MODEL, X, Y, budget=BUDGET, start=[math.nan] * 4), "4 finite numbers"),
    "rows of nobody": (lambda: sample(MODEL, X, Y, budget=BUDGET, max_rows_per_unit=5), "without a unit column"),
    "thrift NaN": (lambda: Settings(thrift=math.nan), "thrift is nan"),
    "dispersion NaN": (lambda: Settings(dispersion=math.nan), "dispersion is nan"),
    "weights below 0": (lambda: Settings(gradient_weights=(1.0, -0.5, 1.0, 1.0)), "gradient_weights are"),
    "no Hessian": (lambda: Settings(hessian_rounds=()), "hessian_rounds are"),
    "lazier than its coin": (lambda: Settings(laziness=1e-9), "laziness is 1e-09"),
    "laziness 2": (lambda: sample(MODEL, X, Y, budget=BUDGET, laziness=2.0), "laziness is 2.0"),
    "a unit without a table": (lambda: sample(MODEL, X, Y, budget=BUDGET, unit="id"), "give the table as x"),
    "y beside a target": (lambda: sample(MODEL, X, Y, budget=BUDGET, target="y"), "leave y out"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_are_one_line(case: str) -> None:
    attempt, words = REFUSALS[case]
    with pytest.raises(ValueError, match=words) as caught:
        attempt()
    assert "\n" not in str(caught.value)


def test_a_narrow_posterior_is_found_out_and_the_rest_of_the_budget_kept() -> None:
    """Features that always agree: the nominal design promises draws, the noisy Hessian shows a ridge."""
    rng = np.random.default_rng(12)
    x = rng.uniform(-1, 1, (30_000, 1)) * np.ones((1, 6)) * 0.05
    y = (rng.random(30_000) < 0.5).astype(float)
    model = mh.LogisticRegression(mh.Box.unit(6), mh.Normal(scale=1e3))
    with pytest.raises(BudgetTooSmall, match=r"Spent on finding out: epsilon = 0\.\d+\.$") as caught:
        sample(model, x, y, budget=mh.Budget(0.3, 1e-6), seed=13)
    assert "temperature" in str(caught.value)


# -- the figures that were promised ----------------------------------------------------------------------------------
def adult_error(temperature: float, epsilon: float, runs: int) -> float:
    """Median over runs of the root mean square of (posterior mean − reference)/(posterior sd)."""
    adult = datasets.adult()
    model = mh.LogisticRegression(adult.domain, mh.Normal(scale=2.5), temperature=temperature)
    held = json.loads((Path(__file__).parent / "data" / f"adult_tempered_{temperature:g}.json").read_text())
    mean, sd = np.array(held["mean"]), np.array(held["sd"])
    off = []
    for seed in range(runs):
        found = sample(model, adult.x, adult.y, budget=mh.Budget(epsilon, 1e-6), seed=seed)
        off.append(float(np.sqrt((((found.means - mean) / sd) ** 2).mean())))
    return float(np.median(off))


@pytest.mark.parametrize(("temperature", "epsilon", "most"), [(10, 4, 0.40), (10, 2, 0.70), (50, 2, 0.33)])
def test_adult_means_are_as_good_as_promised(temperature: float, epsilon: float, most: float) -> None:
    assert adult_error(temperature, epsilon, 9) <= most
