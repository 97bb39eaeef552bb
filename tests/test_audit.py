"""The audit itself: that its bounds are bounds, that ours hold, and that planted bugs are called by their name."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import dpfastmh
from dpfastmh import audit, theory
from dpfastmh.audit import Bit, Finding
from dpfastmh.commands import audit as command
from dpfastmh.privacy import boundary, releases
from dpfastmh.privacy.accept_bit import bit_cost, pure_epsilon

SEED = 11


def verdict(claim: float, lower: float) -> str:
    return Finding("control", "planted", "epsilon", claim, lower).verdict


# -- lower bounds ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("runs", [1, 2, 17, 1000])
@pytest.mark.parametrize("error", [1e-6, 0.01, 0.2])
def test_clopper_pearson_agrees_with_scipy(runs, error):
    hits = sorted({0, 1, runs // 3, runs - 1, runs})
    low, high = audit.clopper_pearson(hits, runs, error)
    for i, h in enumerate(hits):
        exact = stats.binomtest(h, runs).proportion_ci(1.0 - 2.0 * error, method="exact")
        assert low[i] == pytest.approx(exact.low, abs=1e-10)  # scipy looks for a root, to 2e-12
        assert high[i] == pytest.approx(exact.high, abs=1e-10)


def test_clopper_pearson_covers():
    """By summation over all outcomes, not by simulation."""
    runs, error = 60, 0.03
    low, high = audit.clopper_pearson(np.arange(runs + 1), runs, error)
    for p in np.linspace(0.001, 0.999, 200):
        chance = stats.binom.pmf(np.arange(runs + 1), runs, p)
        assert chance[low > p].sum() <= error * (1 + 1e-9)
        assert chance[high < p].sum() <= error * (1 + 1e-9)


def above_truth(draw, truth, *, error, delta=0.0, repeats=400):
    """How often the bound lies above the truth, and its mean."""
    random = np.random.default_rng(SEED)
    found = np.array([audit.lower_bound(*draw(random), delta=delta, error=error) for _ in range(repeats)])
    return int(np.count_nonzero(found > truth)), float(found.mean())


def allowed(error, repeats=400):
    return int(stats.binom.isf(1e-6, repeats, error))


def test_lower_bound_is_above_the_truth_no_more_often_than_stated():
    """Coins of log ratio 1, and normals a shift apart at the δ of the Gaussian mechanism."""
    error = 0.1
    odds = math.e / (1 + math.e)
    count, mean = above_truth(lambda rng: (rng.random(300) < odds, rng.random(300) < 1 - odds), 1.0, error=error)
    assert count <= allowed(error)
    assert mean > 0.5
    delta = 0.05
    low, high = 0.0, 10.0
    for _ in range(60):  # ε of N(1, 1) against N(0, 1) at δ
        middle = (low + high) / 2
        at = stats.norm.sf(middle - 0.5) - math.exp(middle) * stats.norm.sf(middle + 0.5)
        low, high = (middle, high) if at > delta else (low, middle)
    count, mean = above_truth(lambda rng: (rng.normal(1, 1, 900), rng.normal(0, 1, 900)), low, error=error, delta=delta)
    assert count <= allowed(error)
    assert mean > 0.3 * low


def test_equal_tables_are_told_apart_no_more_often_than_stated():
    count, _ = above_truth(lambda rng: (rng.normal(size=200), rng.normal(size=200)), 0.0, error=0.2)
    assert count <= allowed(0.2)


def test_control_choosing_the_event_on_the_runs_that_are_counted_is_no_bound(monkeypatch):
    """The reason for runs held out: looking first finds differences between equal tables."""
    error = 0.4

    def careless(rng):
        p, q = rng.normal(size=200), rng.normal(size=200)
        monkeypatch.setattr(audit, "_held_out", lambda runs: runs // 2)
        return np.tile(p, 2), np.tile(q, 2)

    assert above_truth(careless, 0.0, error=error)[0] > allowed(error)


def test_lower_bound_approaches_the_truth():
    random = np.random.default_rng(SEED)
    p, q = random.random(400_000) < 0.6, random.random(400_000) < 0.6 * math.exp(-0.7)
    assert 0.67 < audit.lower_bound(p, q) < 0.7
    assert 0.67 < audit.lower_bound(q, p) < 0.7
    assert 0.37 < audit.lower_bound(p, ~p) < math.log(1.5)
    assert audit.lower_bound(np.ones(1000), np.zeros(1000)) > 3


# -- exact bits ------------------------------------------------------------------------------------------------------
GRID = [
    Bit(),
    Bit(laziness=0.25),
    Bit(rows_per_unit=3),
    Bit(laziness=0.5, rows_per_unit=2),
    Bit(acceptance="penalty", variance=4.0),
    Bit(acceptance="penalty", variance=9.0, laziness=0.3),
    *(
        Bit(batch="minibatch", x=x, laziness=kappa, rows_per_unit=k)
        for x in (0.1, 0.5, 1.0)
        for kappa in (0.1, 1.0)
        for k in (1, 4)
    ),
    *(
        Bit(batch="control-variate", x=x, remainder=share * 0.1, laziness=kappa, rows_per_unit=k)
        for x, share in ((1.0, 0.02), (0.3, 0.5), (1.0, 1.0))
        for kappa in (0.2, 1.0)
        for k in (1, 3)
    ),
]


@pytest.mark.parametrize("bit", GRID, ids=repr)
@pytest.mark.parametrize("alpha", [2.0, 30.0])
def test_no_unit_of_any_kind_exceeds_the_claim(bit, alpha):
    """Corners and inside, several R, rows missing: below the claim; and close to it, or the audit would be blind."""
    found = audit.exact_bit("ours", "bit", bit, steps=(0.03, 0.7), alpha=alpha)
    assert [one.verdict for one in found] == ["holds"] * len(found)
    loose = 1.0 + bit.x * bit.remainder / (2 * bit.b)  # control variates charge their Poisson part in full
    assert all(0.98 / loose**2 < one.tightness <= 1.0 for one in found)


def test_exact_figures_are_those_of_the_theory():
    """Reference values of D_α/(α(2b)²) at b = 0.01, α = 8."""
    cases = {
        0.1250: Bit(0.01),
        0.1252: Bit(0.01, "minibatch", x=0.5),
        0.1274: Bit(0.01, "minibatch"),
        0.0462: Bit(0.01, laziness=0.5),
        0.0079: Bit(0.01, laziness=0.1),
        0.0666: Bit(0.01, acceptance="penalty", variance=4.0),
        0.0322: Bit(0.01, acceptance="penalty", variance=9.0),
    }
    for expected, bit in cases.items():
        assert audit.exact_rdp(bit, 8.0, points=21) / (8 * 0.02**2) == pytest.approx(expected, abs=6e-5)
    beyond = Bit(0.01, "minibatch", x=2.0)  # where corners are not the worst any more
    assert audit.exact_rdp(beyond, 8.0, points=2) / (8 * 0.02**2) == pytest.approx(0.1402, abs=6e-5)
    assert audit.exact_rdp(beyond, 8.0, points=21) / (8 * 0.02**2) > 0.1405


def planted(claimed, actual):
    """The verdicts of the exact check when a bit is claimed and another is run."""
    return {one.measure: one.verdict for one in audit.exact_bit("planted", "", claimed, actual)}


@pytest.mark.parametrize("b", [0.05, 0.8])
def test_control_exact_checks_see_what_is_wrong(b):
    epsilon, divergence = "epsilon", "Rényi divergence of order 8"
    full = Bit(b)
    both = {epsilon: "violated", divergence: "violated"}
    assert planted(full, full) == {epsilon: "holds", divergence: "holds"}
    assert planted(full, replace(full, acceptance="metropolis")) == both, "Metropolis for Barker"
    lazy = replace(full, laziness=0.5)
    assert planted(lazy, replace(lazy, acceptance="metropolis"))[divergence] == "violated", "lazy Metropolis"
    assert planted(replace(full, b=b / 2), full) == both, "half the bound"
    assert planted(full, replace(full, rows_per_unit=2)) == both, "two rows where one is counted"
    assert planted(full, Bit(b, "minibatch")) == both, "the Poisson part forgotten"
    split = Bit(b, "control-variate", remainder=b / 2)
    assert planted(replace(split, remainder=0.0), split)[divergence] == "violated", "the remainder forgotten"
    slow = Bit(b, "minibatch", laziness=0.1)
    assert planted(slow, replace(slow, laziness=1.0))[divergence] == "violated", "laziness charged, not applied"
    shown = Bit(min(b, 0.2), laziness=0.1)
    assert planted(shown, shown)[divergence] == "holds"
    assert planted(shown, replace(shown, coin_released=True))[divergence] == "violated", "evaluated steps released"


def test_control_beyond_root_two_the_corners_are_not_the_worst():
    """x = 5: a record between the extremes rejects least, and (1+x) + 1/(1+x) is too little."""
    b, x = 0.01, 5.0
    corners = b * ((1 + x) + 1 / (1 + x))
    inside = b * ((1 + x) + (3 - 2 * math.sqrt(2)) * (2 + x) / x)
    found = audit.exact_pure(Bit(b, "minibatch", x=x), points=65)
    assert verdict(corners, found) == "violated"
    assert found == pytest.approx(inside, rel=1e-3)
    assert audit.exact_pure(Bit(b, "minibatch", x=x), points=2) == pytest.approx(corners, rel=1e-3)
    with pytest.raises(ValueError, match="x: the ratio"):
        Bit(b, "minibatch", x=x).claimed_pure()


def test_control_rate_from_a_private_row_count():
    """Five rows against one, among 4,000 rows at one extreme, λ fixed: with λ/rows everybody's law moves."""
    b, others, k = 1e-3, 4000, 5

    def law(own, sign, rows):
        r = others * b / rows
        return theory.minibatch_law([others * b, sign * own * b], [others * b, own * b], [others * r, own * r])

    rests = np.linspace(-30.0, 30.0, 121)
    claim = pure_epsilon(b, batch="minibatch", rows_per_unit=k)
    for rows, expected in (((others + k, others + 1), "violated"), ((others, others), "holds")):
        table = audit.outcome_table([law(k, 1, rows[0]), law(1, -1, rows[1])], rests, Bit(b))
        assert verdict(claim, audit.worst_log_ratio(table)) == expected


# -- the compiled chain ----------------------------------------------------------------------------------------------
COMPILED = {f"{name}, {what}": bit for name, cases in audit.CASES.items() for what, bit in cases.items()}


@pytest.mark.parametrize("name", COMPILED)
def test_the_experiment_is_what_it_says(name):
    """Frequencies of the compiled chain are the probabilities of a unit at its two extremes."""
    bit, rest = COMPILED[name], 0.4
    count = 20_000 if bit.batch != "control-variate" else 1_500
    for table, sign in zip(audit._tables(bit, rest, SEED), (1.0, -1.0), strict=True):
        frequency = audit._bits(table, bit, count).mean()
        k, b = bit.rows_per_unit, bit.b
        law = theory.minibatch_law(k * sign * b, k * b, k * b) if bit.batch == "minibatch" else None
        law = law or theory.certain(-k * sign * b)
        accept = np.exp(audit.outcome_table([law], np.array([rest]), bit)[0, 0, 0])
        assert abs(frequency - accept) < 5 * math.sqrt(accept * (1 - accept) / count)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_bits_hold(name):
    bit = COMPILED[name]
    if math.isfinite(bit.claimed_pure()):
        found = audit.one_bit("ours", name, bit, bits=40_000, seed=SEED)
        assert found.verdict == "holds"
        assert bit.laziness < 1 or bit.batch == "control-variate" or found.tightness > 0.5
    if bit.batch != "control-variate":
        found = audit.many_bits("ours", name, bit.at(0.1), bits=40_000, seed=SEED)
        assert found.verdict == "holds"


@pytest.mark.parametrize("batch", ["full", "minibatch"])
def test_control_compiled_bits_that_are_not_as_claimed(batch):
    bit = Bit(0.5, batch)
    metropolis = replace(bit, acceptance="metropolis")
    assert audit.one_bit("planted", "", bit, metropolis, bits=40_000, seed=SEED).verdict == "violated"
    half = replace(bit, b=0.25)
    assert audit.one_bit("planted", "", half, bit, bits=100_000, seed=SEED).verdict == "violated"
    lazy = Bit(0.2, batch, laziness=0.1)
    eager = replace(lazy, laziness=1.0)
    assert audit.many_bits("planted", "", lazy, lazy, bits=100_000, seed=SEED).verdict == "holds"
    assert audit.many_bits("planted", "", lazy, eager, bits=100_000, seed=SEED).verdict == "violated"
    crowd = Bit(0.2, batch, rows_per_unit=3)
    assert audit.one_bit("planted", "", replace(crowd, rows_per_unit=1), crowd, bits=60_000, seed=SEED).verdict == (
        "violated"
    )


# -- noisy sums ------------------------------------------------------------------------------------------------------
def test_no_record_moves_a_sum_further_than_its_noise_was_made_for():
    found = audit.extreme_records()
    assert {one.what.split(":")[0] for one in found} == {"noisy gradient", "noisy hessian"}
    assert all(one.verdict == "holds" and one.tightness > 0.99 for one in found)


def test_control_extreme_records_find_half_the_sensitivity(monkeypatch):
    real = boundary.hessian_sensitivity
    monkeypatch.setattr(boundary, "hessian_sensitivity", lambda *a, **k: 0.5 * real(*a, **k))
    assert [one.verdict for one in audit.extreme_records()] == ["holds", "violated"]


def test_control_targets_of_any_size_break_the_sums(monkeypatch):
    """Past the public limit on targets one record's slope is inf/inf, and G moves by thousands."""
    load = audit._pair

    def unlimited(model, x, y, dtype):
        with np.errstate(over="ignore"):
            return load(model, x, 0.0, dtype)._replace(y=np.array([y, 0.0]).astype(dtype))

    monkeypatch.setattr(audit, "_pair", unlimited)
    assert [one.verdict for one in audit.extreme_records()] == ["violated", "violated"]


@pytest.mark.parametrize("kind", ["gradient", "hessian"])
def test_releases_with_the_real_noise_hold(kind):
    found = audit.release(kind, runs=500)
    assert found.verdict == "holds"
    assert found.claim == 2.0


def test_control_half_the_sensitivity_in_a_release(monkeypatch):
    assert audit.release("gradient", runs=4000, seed=SEED).verdict == "holds"
    real = boundary.gradient_sensitivity
    monkeypatch.setattr(boundary, "gradient_sensitivity", lambda *a: 0.5 * real(*a))
    assert audit.release("gradient", runs=4000, seed=SEED).verdict == "violated"


def test_control_noise_from_a_uniform(monkeypatch):
    def uniform(self, sums, account, *, insecure_rng=None):
        account.charge(self.what, self.rdp(account.alpha))
        width = math.sqrt(3.0) * self._scales()
        return (sums + np.rint(insecure_rng.uniform(-1, 1, sums.size) * width)) * self.grid

    monkeypatch.setattr(releases.GaussianSum, "release", uniform)
    assert audit.release("gradient", runs=4000, seed=SEED).verdict == "violated"


# -- whole runs ------------------------------------------------------------------------------------------------------
SMALL = Bit(0.1)


def test_a_whole_run_holds_and_an_undercharged_one_does_not():
    budget = dpfastmh.Budget(1.0, 0.05)
    honest = audit.whole_run("ours", "full batch", SMALL, budget=budget, runs=700, release_share=0.1, seed=SEED)
    assert honest.verdict == "holds"
    planted = audit.whole_run(
        "planted", "a ninth is charged", SMALL, budget=budget, runs=700, release_share=0.1, charged=1 / 9, seed=SEED
    )
    assert planted.verdict == "violated"


@pytest.mark.slow
@pytest.mark.parametrize("name", audit.CASES)
def test_whole_runs_of_every_method(name):
    for what, bit in audit.CASES[name].items():
        found = audit.whole_run(name, what, bit.at(0.1), runs=3000, seed=SEED)
        assert found.verdict == "holds"
        assert bit.laziness < 1 or found.lower > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("charged", [1 / 9, 1 / 16])
def test_control_whole_runs_that_charge_too_little(charged):
    for bit in (SMALL, Bit(0.1, "minibatch"), replace(SMALL, laziness=0.25)):
        assert audit.whole_run("planted", "", bit, charged=charged, runs=2500, seed=SEED).verdict == "violated"


@pytest.mark.slow
def test_everything_of_ours_holds():
    found = audit.run(seed=SEED)
    assert audit.violations(found) == []
    assert {one.verdict for one in found if one.method == "published"} == {"violated"}


# -- the algorithm as published --------------------------------------------------------------------------------------
def test_the_published_rule_is_violated_exactly_and_by_its_frequencies():
    full = audit.published_full(bits=100_000, seed=SEED)
    mini = audit.published_minibatch(bits=200_000, seed=SEED)
    for exact, sampled in (full, mini):
        assert (exact.claim, exact.delta, exact.lower) == (0.05, 1e-5, math.inf)
        assert sampled.lower > 10 * sampled.claim
        assert exact.verdict == sampled.verdict == "violated"
    assert "δ ≥ 0.049" in full[0].note
    assert "δ ≥ 0.0002" in mini[0].note
    assert audit.violations([*full, *mini]) == []


def test_the_published_rule_with_barkers_acceptance_would_hold():
    laws = [theory.certain(0.0), theory.certain(-0.05)]
    table = audit.outcome_table(laws, np.zeros(1), Bit())
    needed, impossible = audit.needed_epsilon(table[:, 0, 0], table[:, 1, 0], 1e-5)
    assert needed < 0.05
    assert impossible == 0.0


def test_the_published_rule_adds_noise_beyond_its_epsilon_only():
    rule = audit.Published()
    assert rule.noise_variance(0.05) == 0.0
    variance = rule.noise_variance(0.06)
    assert variance == pytest.approx(2 * math.log(1.25e5) * (0.06 / 0.05) ** 2)
    accepted = rule.accept(np.full(200_000, 3.0), 0.06, np.random.default_rng(SEED)).mean()
    assert accepted == pytest.approx(float(theory.penalty(variance)(np.array([3.0]))[0]), abs=5e-3)


def test_metropolis_claims_nothing_and_is_refused_a_claim():
    exact, sampled = audit.metropolis(bits=40_000, seed=SEED)
    assert exact.verdict == sampled.verdict == "no claim"
    assert exact.lower == math.inf
    assert sampled.lower > 2
    with pytest.raises(ValueError, match="Metropolis acceptance has no finite privacy cost"):
        bit_cost(8.0, 0.1, acceptance="metropolis")


# -- Python and the command ------------------------------------------------------------------------------------------
def test_the_module_is_public_and_lazy():
    assert dpfastmh.audit is audit
    assert "audit" in dir(dpfastmh)


def test_mistakes_are_one_line():
    with pytest.raises(ValueError, match="method 'nuts' has no audit: choose from dp-fast-mh"):
        audit.run(["nuts"])
    with pytest.raises(ValueError, match="effort is 'hasty'"):
        audit.run(effort="hasty")


def main(*arguments):
    from dpfastmh.cli import main

    return main(["audit", *arguments])


def test_the_command_shows_the_published_violation_as_a_finding(capsys):
    assert main("--method", "published", "mh", "--quick", "--seed", "3") == 0
    out, err = capsys.readouterr()
    assert "violated" in out
    assert "no claim" in out
    assert "the rule protects acceptance, not rejection" in out
    assert out.splitlines()[0].split() == ["method", "what", "claim", "lower", "bound", "verdict"]
    assert "published: one step" in err


def test_the_command_speaks_json_without_infinities(capsys):
    assert main("--method", "published", "--quick", "--seed", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert found["violated"] == 0
    assert {one["verdict"] for one in found["findings"]} == {"violated"}
    assert found["findings"][0]["lower"] == "unbounded"
    assert found["findings"][0]["claim"] == 0.05


def test_the_command_fails_when_a_claim_of_ours_does(capsys, monkeypatch):
    broken = Finding("dp-fast-mh", "planted", "epsilon", 0.1, 0.2, 0.01, 1e-5)
    monkeypatch.setattr(audit, "run", lambda *a, **k: [broken])
    assert main() == 1
    assert "VIOLATED: dp-fast-mh, planted" in capsys.readouterr().err
    monkeypatch.setattr(audit, "run", lambda *a, **k: [replace(broken, ours=False), replace(broken, lower=0.05)])
    assert main() == 0


def test_the_command_refuses_nonsense(capsys):
    assert main("--method", "nuts") == 1
    assert "method 'nuts' has no audit" in capsys.readouterr().err
    for wrong in (["--seed", "-1"], ["--quick", "--thorough"]):
        with pytest.raises(SystemExit) as stop:
            main(*wrong)
        assert stop.value.code == 2


def test_claims_are_written_with_their_units():
    table = command.table(
        [
            Finding("a", "b", "Rényi divergence of order 8", 0.5, 0.25),
            Finding("a", "b", "sensitivity", 2.0, 1.0),
            Finding("a", "b", "epsilon", 1.0, 0.5, 0.05, 1e-5),
        ]
    )
    for text in ("D8 = 0.5", "Δ = 2", "ε = 1, δ = 0.05", "a chance of at most 1e-05"):
        assert text in table
