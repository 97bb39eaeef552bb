"""What the boundary asks of releases and chains: every public number that a price rests on, as it is passed on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dpfastmh as mh
from dpfastmh import randomness
from dpfastmh.methods import Coordinates, DPFastMH
from dpfastmh.privacy.boundary import PrivateRecords
from dpfastmh.privacy.filter import BudgetExceeded, RenyiFilter
from dpfastmh.privacy.releases import GaussianSum
from dpfastmh.steps.reference import grids

RNG = np.random.default_rng(71)
ROWS, UNITS, MOST = 120, 50, 3


def held(model: mh.GLM, rows_per_unit: int = MOST) -> PrivateRecords:
    """120 rows of 50 units: neither 50 nor 150, so that a private count cannot pass for a public one."""
    y = RNG.integers(0, 2, ROWS)
    return PrivateRecords(model, model.load(RNG.uniform(-1, 1, (ROWS, 2)), y), units=UNITS, rows_per_unit=rows_per_unit)


def account() -> RenyiFilter:
    return RenyiFilter(mh.Budget(8.0, 1e-3), steps_cap=100_000)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[GaussianSum]:
    """The releases that were asked for, none of them made."""
    found: list[GaussianSum] = []

    def note(self: PrivateRecords, release: GaussianSum, account: Any, sums: Any) -> tuple[np.ndarray, float]:
        found.append(release)
        return np.zeros(release.multiplicity.size), 1.0

    monkeypatch.setattr(PrivateRecords, "_release", note)
    return found


@pytest.mark.parametrize("k", [1, MOST])
def test_gradients_are_asked_for_at_their_sensitivity(asked: list[GaussianSum], k: int) -> None:
    """2·k·|L′|·‖x‖, with the slope's bound at the very point: σ(s(θ)) for the logistic loss, s(θ) = 3.5."""
    box, point = mh.Box.unit(2), np.array([1.0, -2.0, 0.5])
    norm = math.sqrt(3.0)
    cases = [
        (mh.LogisticRegression(box), np.zeros(3), 0.5),
        (mh.LogisticRegression(box, temperature=9.0), point, 1 / (1 + math.exp(-3.5))),
        (mh.StudentTRegression(box, df=4.0, scale=0.5), point, 2.5),
        (mh.HuberRegression(box, scale=0.1), point, 10.0),
        (mh.PoissonRegression(box, cap=7), point, 7.0),
        (mh.SoftmaxRegression(box, classes=3), np.zeros(6), math.sqrt(2.0)),
        (mh.SoftmaxRegression(box, classes=2), np.zeros(3), 1.0),
    ]
    for model, at, slope in cases:
        held(model, k).noisy_gradient(at, 0.1, account())
        release = asked.pop()
        assert release.sensitivity == pytest.approx(2 * k * slope * norm, rel=1e-12)
        assert (release.rows_per_unit, release.units, release.rho) == (k, UNITS, 0.1)
        assert release.grid == grids(model.table(), UNITS * k)[0]


@pytest.mark.parametrize("k", [1, MOST])
def test_hessians_are_asked_for_at_their_sensitivity(asked: list[GaussianSum], k: int) -> None:
    """√2·k·L2·‖x‖² for convex losses, 2·k·L2·‖x‖² for Student's; entries off the diagonal stand for two."""
    box = mh.Box.unit(2)
    cases = [
        (mh.LogisticRegression(box), 3, math.sqrt(2.0) * 0.25),
        (mh.StudentTRegression(box, df=4.0, scale=0.5), 3, 2.0 * 5.0),
        (mh.PoissonRegression(box, cap=7), 3, math.sqrt(2.0) * (0.25 + 0.1671 * 7)),
        (mh.SoftmaxRegression(box, classes=3), 6, math.sqrt(2.0) * 0.5),
    ]
    for model, p, factor in cases:
        held(model, k).noisy_hessian(np.zeros(p), 0.1, account())
        release = asked.pop()
        assert release.sensitivity == pytest.approx(k * factor * 3.0, rel=1e-12)
        assert (release.rows_per_unit, release.units, release.multiplicity.sum()) == (k, UNITS, p * p)
        assert release.grid == grids(model.table(), UNITS * k)[1]


def test_chains_know_the_most_rows_and_not_how_many_there_are() -> None:
    model = mh.LogisticRegression(mh.Box.unit(2))
    chain = held(model).chain(DPFastMH(Coordinates(0.1)), np.zeros(3), account(), reference=None)
    assert chain._PrivateChain__sampler.rule.size == UNITS * MOST  # type: ignore[attr-defined]


def test_a_release_that_cannot_be_paid_for_is_not_made() -> None:
    poor = account()
    model = mh.LogisticRegression(mh.Box.unit(2))
    for ask in (held(model).noisy_gradient, held(model).noisy_hessian):
        with pytest.raises(BudgetExceeded):
            ask(np.zeros(3), 1e3, poor)
    assert poor.spent == 0.0


def test_steps_are_charged_whether_the_coin_lets_them_look_or_not() -> None:
    """At κ = 10⁻⁶ hardly any of 2,000 steps looks at the data, and all are charged: ρ = 2J(κ)·b², b = |δ|/2 near 0.

    Charging for those alone that looked would give away which did.
    """
    model, kappa, scale = mh.LogisticRegression(mh.Box.unit(2)), 1e-6, 0.1
    budget = account()
    chain = held(model, 1).chain(
        DPFastMH(Coordinates(scale), laziness=kappa), np.zeros(3), budget, reference=np.zeros(3)
    )
    found = chain.run(2_000)
    per_step = budget.alpha * 2 * (4 * kappa / 27) * (0.5 * scale) ** 2
    assert 0.8 < found.spent / (2_000 * per_step) < 1.6  # small steps, but not infinitely small ones
    assert budget.spent >= found.spent


def test_a_chain_that_breaks_off_releases_nothing_and_counts_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread dies half-way: its share stays spent, and no other chain's draws leave either."""
    from dpfastmh import sampling

    model = mh.LogisticRegression(mh.Box.unit(2))
    x = RNG.uniform(-1, 1, (4_000, 2))
    accounts: list[RenyiFilter] = []

    class Broken(sampling.Run):
        def in_threads(self, work: Any, *rest: Any) -> list[Any]:
            def half(number: int) -> Any:
                if number == 1 and self.shares[0].spent > 0:
                    raise MemoryError("out of memory")
                return work(number)

            accounts.append(self.account)
            return super().in_threads(half, *rest)

    monkeypatch.setattr(sampling, "Run", Broken)
    with pytest.raises(MemoryError):
        sampling.sample(model, x, x[:, 0] > 0, budget=mh.Budget(4.0, 1e-5))
    assert accounts[-1].spent > 0.99 * accounts[-1].limit


def test_the_four_streams_of_a_chain_differ() -> None:
    """One key for two of them would show the lazy coin in the proposals."""
    for streams in (randomness.secure_streams(), randomness.insecure_streams(5)):
        assert len({int(stream.integers(2**63)) for stream in streams}) == 4
    first, second = (randomness.secure_streams().proposals.integers(2**63) for _ in range(2))
    assert first != second
    one, other = (randomness.insecure_streams(5, chain).proposals.integers(2**63) for chain in (0, 1))
    assert one != other
