"""The machinery behind ``dpfastmh reproduce``: distances with known answers, pieces that are kept, honest verdicts."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpfastmh as mh
from dpfastmh import cli, theory
from dpfastmh.baselines import DPPenalty
from dpfastmh.commands import reproduce as command
from dpfastmh.methods import MethodError, RandomWalk
from dpfastmh.models import Mixture
from dpfastmh.reproduce import PARTS, bounds, mixture, page, run, scoreboard, tasks
from dpfastmh.reproduce.measures import Reference, accuracy, log_loss, mean_error, sd_error
from dpfastmh.reproduce.work import Claim, Section, Work, verdict


# -- distances -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def normal() -> Reference:
    rng = np.random.default_rng(0)
    return Reference(*rng.normal(size=(2, 100_000, 2)))


def test_w1_of_a_shift_is_the_mean_length_of_its_projections(normal: Reference) -> None:
    """A shift by v moves the projection on a direction at angle a by |v| |cos a|, on average 2/π |v|."""
    rng = np.random.default_rng(1)
    shifted = rng.normal([3.0, 4.0], 1.0, (100_000, 2))
    assert normal.w1(shifted) == pytest.approx(5.0 * 2.0 / np.pi, abs=0.02)
    assert normal.w1(normal.draws) < 1e-3


def test_w1_sees_what_is_wrong_by_a_tenth(normal: Reference) -> None:
    """Control: draws a tenth too narrow, or a tenth of an sd off, lie well above as many right ones."""
    rng = np.random.default_rng(2)
    right = rng.normal(size=(20_000, 2))
    floor = normal.w1_floor(20_000)
    assert normal.w1(right) < 2.0 * floor
    assert normal.w1(0.9 * right) > 5.0 * floor
    assert normal.w1(right + 0.1) > 5.0 * floor


def test_kl_counts_filled_cells_and_its_floor_says_so(normal: Reference) -> None:
    assert normal.kl(normal.draws) == pytest.approx(0.0, abs=1e-12)
    floors = [normal.kl_floor(count) for count in (1_000, 4_000, 20_000)]
    assert floors == sorted(floors, reverse=True)
    assert floors[0] > 2.0, "even exact draws score badly when there are few"
    assert normal.kl(np.random.default_rng(3).normal(size=(4_000, 2))) == pytest.approx(floors[1], rel=0.2)


def test_errors_are_in_posterior_sd() -> None:
    draws = np.array([[1.0, 4.0], [3.0, 8.0]])
    assert mean_error(draws, np.array([1.0, 6.0]), np.array([1.0, 2.0])) == pytest.approx(np.sqrt(0.5))
    assert sd_error(draws, np.array([1.0, 1.0])) == pytest.approx(np.sqrt(0.5))


def test_accuracy_and_log_loss() -> None:
    x, y = np.array([[1.0], [-1.0], [2.0]]), np.array([1, 0, 0])
    assert accuracy(np.array([1.0]), x, y) == pytest.approx(2 / 3)
    assert log_loss(np.zeros((5, 1)), x, y) == pytest.approx(np.log(2.0))
    assert np.isfinite(log_loss(np.full((5, 1), 1e6), x, y))


def test_the_grid_reference_draws_what_the_energy_says() -> None:
    """A correlated normal, by its moments: standard errors of 2·10⁵ draws are below .003."""
    axis = np.linspace(-3.0, 3.0, 121)
    cov = np.array([[0.2, -0.1], [-0.1, 0.3]])
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    energy = 0.5 * np.einsum("...i,ij,...j->...", points, np.linalg.inv(cov), points)
    draws = tasks.sampled_density(axis, energy, 200_000, np.random.default_rng(4))
    assert np.allclose(draws.mean(axis=0), 0.0, atol=0.008)
    assert np.allclose(np.cov(draws.T), cov, atol=0.006)


# -- pieces ----------------------------------------------------------------------------------------------------------
def test_pieces_are_kept_and_damaged_ones_made_again(tmp_path: Path) -> None:
    calls: list[str] = []

    def compute() -> dict[str, Any]:
        calls.append("made")
        return {"a": [1.0, 2.0], "label": "x"}

    work = Work(tmp_path / "out", quick=True)
    assert work.piece("one", compute)["a"].tolist() == [1.0, 2.0]
    again = Work(tmp_path / "out", quick=True).piece("one", compute)
    assert (again["a"].tolist(), str(again["label"]), len(calls)) == ([1.0, 2.0], "x", 1)
    (tmp_path / "out" / "pieces" / "one.npz").write_bytes(b"not a piece")
    assert work.piece("one", compute)["a"].tolist() == [1.0, 2.0]
    assert len(calls) == 2


def test_a_piece_that_fails_leaves_nothing(tmp_path: Path) -> None:
    work = Work(tmp_path / "out", quick=True)

    def fails() -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.piece("one", fails)
    assert not list((tmp_path / "out" / "pieces").iterdir())


def test_folders_of_other_settings_and_other_things_are_refused(tmp_path: Path) -> None:
    Work(tmp_path / "out", quick=True)
    with pytest.raises(OSError, match="other settings"):
        Work(tmp_path / "out", quick=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(OSError, match="holds other files"):
        Work(tmp_path / "mine", quick=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="is a file"):
        Work(tmp_path / "file", quick=True)
    (tmp_path / "out" / "settings.json").write_text("{")
    with pytest.raises(OSError, match="cannot be read"):
        Work(tmp_path / "out", quick=True)


# -- the page --------------------------------------------------------------------------------------------------------
def test_the_page_shows_claims_and_numbers_and_escapes_them(tmp_path: Path) -> None:
    work = Work(tmp_path / "out", quick=True)
    claim = Claim("a < b", "3 & 4", verdict(False, True))
    rows = [("x", 0.123456), ("none", float("inf")), ("gap", float("nan"))]
    page.write(work, [Section("one", "One", "words", ("name", "value"), rows, (claim,), True)])
    html = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    for part in ("a &lt; b", "3 &amp; 4", "in part", "0.1235", "none of these", 'src="one.svg"', "quick run"):
        assert part in html
    with (tmp_path / "out" / "one.csv").open() as file:
        assert list(csv.reader(file)) == [["name", "value"], ["x", "0.1235"], ["none", "none"], ["gap", ""]]


def test_verdicts() -> None:
    assert [verdict(True), verdict(False, True), verdict(False)] == ["held", "in part", "did not hold"]


# -- theory ----------------------------------------------------------------------------------------------------------
def test_the_command_writes_everything_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["reproduce", "theory", "-o", str(out), "--quick"]) == 0
    for name in ("index.html", "theory.svg", "theory.png", "theory.csv", "settings.json"):
        assert (out / name).stat().st_size > 0, name
    assert capsys.readouterr().out.strip() == str(out / "index.html")
    assert "<h2>Privacy, batch and rate" in (out / "index.html").read_text(encoding="utf-8")
    assert cli.main(["reproduce", "theory", "-o", str(out)]) == 1
    assert "other settings" in capsys.readouterr().err
    with pytest.raises(ValueError, match="choose some of"):
        run(["figures"], tmp_path / "other")
    assert command.PARTS == PARTS


def test_bounds_lie_below_the_exact_gaps_and_a_noisier_chain_would_show(tmp_path: Path) -> None:
    (section,) = bounds.sections(Work(tmp_path / "out", quick=True))
    assert [claim.verdict for claim in section.claims] == ["held", "held"]
    best = max(section.rows, key=lambda row: row[5])
    assert bounds.gap(best[2], 60.0) / bounds.gap(None, 0.0) < best[5], "control: noise left out of the bound"


def test_the_chain_of_the_bounds_is_the_published_one() -> None:
    """Its laws leave the target invariant, noise or none."""
    assert bounds.target().sum() == pytest.approx(1.0)
    law = theory.minibatch_law(bounds.energy(0.5) - bounds.energy(0.0), bounds.CONSTANTS * 0.5, 1.0)
    back = theory.minibatch_law(bounds.energy(0.0) - bounds.energy(0.5), bounds.CONSTANTS * 0.5, 1.0)
    for balance in (theory.metropolis, theory.penalty(2.0)):
        flow = np.exp(-(bounds.energy(0.5) - bounds.energy(0.0)).sum()) * back.acceptance(balance)
        assert law.acceptance(balance) == pytest.approx(flow, rel=1e-9)


# -- contests --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fake:
    """A method whose draws lie ``off`` the truth; below ε = ``least`` it cannot be had."""

    off: float
    least: float = 0.0
    overspends: bool = False

    def within(self, budget: mh.Budget, steps: int, *, size: int) -> Fake:
        if budget.epsilon < self.least:
            raise MethodError("too dear")
        return self

    def total_epsilon(self, steps: int, delta: float, *, size: int) -> float:
        return 2.0 if self.overspends else 0.9


def contest(*fakes: Fake) -> tuple[str, list[Any], float]:
    def play(method: Fake, steps: int, seed: int) -> Any:
        return tasks.Run(np.full((steps, 1), method.off), 0.0, 0.0, 0.0)

    candidates = [scoreboard.Candidate(fake, 10 + k) for k, fake in enumerate(fakes)]
    return scoreboard.contest(candidates, mh.Budget(1.0, 1e-5), 100, play, lambda r: abs(r.draws.mean()), 2, 3)


def test_a_contest_takes_the_best_that_the_budget_allows() -> None:
    label, found, spent = contest(Fake(0.5), Fake(0.1, least=4.0), Fake(0.2))
    assert label.endswith("12 steps")
    assert (len(found), spent) == (3, 0.9)
    assert contest(Fake(0.1, least=4.0)) == ("", [], np.inf)


def test_control_a_method_that_overspends_ends_the_contest() -> None:
    with pytest.raises(AssertionError):
        contest(Fake(0.5, overspends=True))


def test_candidates_keep_to_the_budget() -> None:
    budget = mh.Budget(1.0, 1e-5)
    for name in scoreboard.COMPETITORS:
        candidate = scoreboard.mixture_candidates(name, True, 50_000)[0]
        ready = candidate.method.within(budget, candidate.steps, size=50_000)
        assert ready.total_epsilon(candidate.steps, 1e-5, size=50_000) <= 1.0 + 1e-9
        assert f"{candidate.steps} steps" in candidate.label


def test_exact_draws_are_paid_for_one_by_one() -> None:
    """Four of pure ε = .2 fit into .85 by adding up; with many, zCDP allows more than adding up does."""
    count, spent = scoreboard.affordable(0.2, mh.Budget(0.85, 1e-5))
    assert count == 4
    assert spent <= 0.85
    many, spent = scoreboard.affordable(0.2, mh.Budget(8.0, 1e-5))
    assert many > 40
    assert spent <= 8.0
    assert scoreboard.affordable(0.2, mh.Budget(0.1, 1e-5)) == (0, 0.0)


# -- the mixture, in small ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tasks.MixtureTask:
    work = Work(tmp_path_factory.mktemp("reproduce") / "out", quick=True)
    return tasks.MixtureTask(work, records=1_000)


def test_ours_keeps_its_total_and_ends_when_told(small: tasks.MixtureTask) -> None:
    draws, spent, _, steps = mixture.ours(small, 1.0, 0.3, 0, laziness=0.25, steps=4_000)
    assert spent <= 1.0
    assert steps == pytest.approx(1_000)
    assert np.abs(draws).max() <= 3.0


def test_a_step_size_is_tuned_to_its_target(small: tasks.MixtureTask) -> None:
    """Acceptance over 20,000 correlated steps is within .05 of .6; a step ten times as long is not."""

    def make(scale: float) -> DPPenalty:
        return DPPenalty(RandomWalk(scale), sigma=20.0)

    model = Mixture(temperature=10.0)
    scale = tasks.tuned(make, model, small.rows, small.start, 0.06, 300)
    found = [tasks.run(make(s), model, small.rows, small.start, 20_000, 1).acceptance for s in (scale, 10.0 * scale)]
    assert found[0] == pytest.approx(0.6, abs=0.05)
    assert found[1] < 0.5


def test_barker_s_batch_grows_with_what_a_step_may_cost() -> None:
    assert mixture.barker_batch(0.01, 1_000) == 1_000, "none is allowed: all the data"
    assert mixture.target("dp-barker") < 0.5 < mixture.target("published")


# -- what the library's own sampler had to learn for it ---------------------------------------------------------------
def test_trials_of_a_model_without_derivatives_leave_most_of_a_small_budget() -> None:
    x = np.random.default_rng(5).normal(0.5, 1.4, 1_000)
    found = mh.sample(Mixture(), x, budget=mh.Budget(2.0, 1e-5), chains=1, seed=1)
    assert found.draws.shape[1] > 50
    alpha = found.privacy.alpha
    trials = sum(release["rdp"] for release in found.privacy.releases) - found.privacy.rdp_spent
    assert trials == pytest.approx(0.0, abs=1e-9 * alpha), "trials are among the releases that were paid"
    before, after = found.spending[0, 1], found.privacy.epsilon_spent
    start = mh.budget.epsilon_from_rdp(1e-9, 1e-5, alpha)  # what order α costs before anything is released
    assert before - start < 0.3 * (after - start)


def test_as_many_draws_are_kept_as_are_asked_for(small: tasks.MixtureTask) -> None:
    arguments = SimpleNamespace(budget=mh.Budget(1.0, 1e-5), start=[0.0, 1.0], chains=1, seed=2)
    walk = mh.RandomWalk(0.3, mixture.MEANS)
    few, many = (
        mh.sample(small.sharp, small.x, proposal=walk, draws=draws, **vars(arguments)).draws.shape[1]
        for draws in (None, 6_000)
    )
    assert few <= 2_000 < many <= 6_000
