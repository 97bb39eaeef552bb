"""Every sampler against posteriors computed by other means: NUTS for the regressions, quadrature for the mixture.

Forty chains start from independent draws of N(mean, covariance) of the reference, and each yields, in the reference's
own units, z_j = mean of (θ_j − m_j)/s_j, the mean of its square less 1, and the mean of (θ − m)ᵀ S⁻¹ (θ − m)/p less 1.
Their averages over the chains, divided by the standard error between the chains (and the reference's own), follow
Student's t; a sampler fails where one of them passes the two-sided 1e-6 point.

What such a test can see is shown by its controls: the quick runs must notice a reference whose sds are 10% off or whose
means are off by .3 sd, the slow runs (eleven times longer) sds off by 3% and means off by .1 sd.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import t as student

from dpfastmh import datasets
from dpfastmh.domain import Box
from dpfastmh.methods import (
    Coordinates,
    Directions,
    DPFastMH,
    DPFastMHFull,
    Method,
    MetropolisHastings,
    RandomWalk,
    TunaMH,
    run_chains,
)
from dpfastmh.models import LogisticRegression, Mixture, Model, StudentTRegression
from dpfastmh.priors import Normal

HERE = Path(__file__).resolve().parent
CHAINS = 40
LONGER = 11  # how much longer the slow runs are
LIMIT = float(student.isf(0.5e-6, CHAINS - 1))


@cache
def maker() -> ModuleType:
    """The script that made the reference moments: it makes the tables too."""
    path = HERE.parent / "benchmarks" / "make_reference_moments.py"
    spec = importlib.util.spec_from_file_location("make_reference_moments", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Reference(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray
    error: float  # of a mean, in sd; √2 times this of a mean square

    @property
    def sd(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance))

    @property
    def axes(self) -> np.ndarray:
        """Principal directions, each one posterior sd long."""
        values, vectors = np.linalg.eigh(self.covariance)
        return np.ascontiguousarray((vectors * np.sqrt(values)).T)

    @property
    def conditional_sd(self) -> np.ndarray:
        return 1.0 / np.sqrt(np.diag(np.linalg.inv(self.covariance)))


@cache
def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "data" / f"{name}.json").read_text())
    return found


@cache
def reference(name: str) -> Reference:
    found = stored(name)
    error = max([0.0, *found.get("mcse_mean_in_sd", []), *found.get("mcse_sd_relative", [])])
    return Reference(np.array(found["mean"]), np.array(found["covariance"]), error)


# -- tables and models -------------------------------------------------------------------------------------------------
def student_model(temperature: float = 1.0) -> StudentTRegression:  # type: ignore[valid-type]
    script = maker()
    return StudentTRegression(
        Box.unit(4),
        Normal(script.PRIOR_SCALE),
        df=script.STUDENT_DF,
        scale=script.STUDENT_SCALE,
        temperature=temperature,
    )


@cache
def student_data() -> tuple[Any, Any]:
    table = maker().student_table()
    return table.x[:, 1:], table.y


@cache
def mixture_data() -> tuple[Any, None]:
    return maker().mixture_records(), None


@cache
def adult_data(rows: int | None) -> tuple[Any, Any]:
    adult = datasets.adult()
    return adult.x[:rows], adult.y[:rows]


def adult_model() -> Model:
    return LogisticRegression(datasets.adult().domain, Normal(maker().PRIOR_SCALE))


POSTERIORS: dict[str, tuple[Callable[[], Model], Callable[[], tuple[Any, Any]]]] = {
    "student_t": (student_model, student_data),
    "mixture": (Mixture, mixture_data),
    "adult": (adult_model, lambda: adult_data(None)),
    "adult_2000": (adult_model, lambda: adult_data(2000)),
}


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_references_belong_to_these_tables(name: str) -> None:
    script, found = maker(), stored(name)
    if name == "mixture":
        arrays = [script.mixture_records()]
    else:
        table = script.student_table() if name == "student_t" else script.adult_table(found["settings"]["rows"])
        arrays = [table.x, table.y]
        model, data = POSTERIORS[name]
        rows = model().load(*data())
        assert np.abs(rows.x - table.x).max() < 1e-6
        assert np.abs(rows.y - table.y).max() == 0
        assert max(found["rhat"]) < 1.001
        assert reference(name).error < 0.006
    assert script.checksums(*arrays) == pytest.approx(found["checksums"], rel=1e-12)
    assert np.array(found["sd"]) == pytest.approx(reference(name).sd)


def test_the_mixture_reference_once_more_by_coarser_quadrature() -> None:
    """All records in 3,000 cells of .002 with their true mean: the second-order error is far below the tolerance."""
    script = maker()
    records = np.sort(script.mixture_records()).reshape(2500, 20).mean(axis=1)
    held = script.MIXTURE_TEMPERATURE
    script.MIXTURE_TEMPERATURE = held / 20
    try:
        found = script._mixture_moments(records, 48)
    finally:
        script.MIXTURE_TEMPERATURE = held
    assert found["mean"] == pytest.approx(stored("mixture")["mean"], abs=1e-4)
    assert found["sd"] == pytest.approx(stored("mixture")["sd"], rel=1e-4)


# -- statistics --------------------------------------------------------------------------------------------------------
def deviations(draws: list[np.ndarray], against: Reference) -> np.ndarray:
    """One row per chain: p means, p mean squares less 1, and the whitened mean square less 1."""
    factor = np.linalg.cholesky(against.covariance)
    rows = []
    for chain in draws:
        z = (chain - against.mean) / against.sd
        white = np.linalg.solve(factor, (chain - against.mean).T)
        rows.append(np.concatenate([z.mean(axis=0), (z**2).mean(axis=0) - 1, [(white**2).mean() - 1]]))
    return np.array(rows)


def worst_t(draws: list[np.ndarray], against: Reference) -> float:
    found = deviations(draws, against)
    p = against.mean.size
    own = against.error * np.array([1.0] * p + [2.0] * p + [2.0 / np.sqrt(p)])
    between = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    return float(np.abs(found.mean(axis=0) / np.hypot(between, own)).max())


def spoiled(against: Reference, scale: float, shift: float) -> Reference:
    return Reference(against.mean + shift * against.sd, against.covariance * scale**2, against.error)


class Case(NamedTuple):
    posterior: str
    method: Callable[[Reference], Method]
    steps: int  # of one chain in the quick run
    burn_in: int
    order: int = 0  # of control variates around the posterior mean
    per_record: str | None = None
    model: Callable[[], Model] | None = None


def chains(case: Case, longer: int = 1) -> list[np.ndarray]:
    against = reference(case.posterior)
    build, data = POSTERIORS[case.posterior]
    model, (x, y) = (case.model or build)(), data()
    rows = model.load(x, y, per_record=case.per_record)
    method = case.method(against)
    found: Any = against.mean if case.order else None
    samplers = []
    for k in range(CHAINS):
        samplers.append(method.on(model, rows, reference=found, order=case.order or 2, seed=50, chain_number=k))
        found = samplers[0]._reference if case.order else None
    rng = np.random.default_rng(51)
    factor = np.linalg.cholesky(against.covariance)
    starts = against.mean + rng.standard_normal((CHAINS, against.mean.size)) @ factor.T
    if model.parameter_box is not None:
        starts = np.clip(starts, *model.parameter_box)
    states = [sampler.init(start) for sampler, start in zip(samplers, starts, strict=True)]
    settled = [state for state, _, _ in run_chains(samplers, states, case.burn_in)]
    return [draws for _, draws, _ in run_chains(samplers, settled, case.steps * longer, thin=5)]


def check(case: Case, longer: int = 1) -> None:
    against, draws = reference(case.posterior), chains(case, longer)
    assert worst_t(draws, against) < LIMIT
    scale, shift = (0.10, 0.30) if longer == 1 else (0.03, 0.10)
    for control in (spoiled(against, 1 + scale, 0), spoiled(against, 1 - scale, 0), spoiled(against, 1, shift)):
        assert worst_t(draws, control) > LIMIT, "the run is too short to see what it must see"


# -- the samplers ------------------------------------------------------------------------------------------------------
QUICK: dict[str, Case] = {
    "Metropolis-Hastings": Case("student_t", lambda r: MetropolisHastings(RandomWalk(1.0, r.axes)), 900, 200),
    "penalty": Case(
        "student_t",
        lambda r: MetropolisHastings(RandomWalk(1.0, r.axes), acceptance="penalty", variance=1.0),
        1000,
        200,
    ),
    "DPFastMHFull": Case("student_t", lambda r: DPFastMHFull(RandomWalk(1.0, r.axes)), 1200, 200),
    "DPFastMH order 2, coordinates": Case(
        "student_t", lambda r: DPFastMH(Coordinates(2 * r.conditional_sd)), 5000, 800, 2
    ),
    "DPFastMH order 2, joint": Case("student_t", lambda r: DPFastMH(RandomWalk(0.9 * r.conditional_sd)), 3000, 500, 2),
    "DPFastMH order 2, basis": Case("student_t", lambda r: DPFastMH(RandomWalk(0.9, r.axes)), 1500, 300, 2),
    "DPFastMH order 2, lazy directions": Case(
        "student_t", lambda r: DPFastMH(Directions(r.axes, 2.0), laziness=0.5), 5000, 800, 2
    ),
    "DPFastMH order 1, basis": Case("student_t", lambda r: DPFastMH(RandomWalk(0.9, r.axes)), 1500, 300, 1),
    "TunaMH λ, order 2": Case("student_t", lambda r: TunaMH(RandomWalk(1.0, r.axes), lam=30), 1200, 200, 2),
    "DPFastMH minibatch": Case("mixture", lambda r: DPFastMH(RandomWalk(0.3), full_batch=False), 5000, 500),
    "TunaMH χ": Case("mixture", lambda r: TunaMH(RandomWalk(0.3), chi=1e-4), 5000, 500),
    "TunaMH χ, records thinned": Case(
        "mixture",
        lambda r: TunaMH(RandomWalk(0.3), chi=1e-4),
        4000,
        500,
        per_record="thinned",
        model=lambda: Mixture(bound="lipschitz"),
    ),
    "TunaMH χ, records by alias": Case(
        "mixture",
        lambda r: TunaMH(RandomWalk(0.3), chi=1e-4),
        4000,
        500,
        per_record="alias",
        model=lambda: Mixture(bound="paper"),
    ),
    "adult, DPFastMH order 2, basis": Case("adult", lambda r: DPFastMH(RandomWalk(0.6, r.axes)), 700, 300, 2),
}

SLOW: dict[str, Case] = {
    "DPFastMH order 1, coordinates": Case(
        "student_t", lambda r: DPFastMH(Coordinates(2 * r.conditional_sd)), 12000, 2000, 1
    ),
    "DPFastMH minibatch, regression": Case(
        "student_t", lambda r: DPFastMH(RandomWalk(0.3, r.axes), full_batch=False), 4000, 500
    ),
    "TunaMH λ": Case("student_t", lambda r: TunaMH(RandomWalk(0.5, r.axes), lam=3000), 800, 150),
    "TunaMH χ, regression": Case("student_t", lambda r: TunaMH(RandomWalk(0.5, r.axes), chi=1e-2), 1500, 200),
    "DPFastMH coordinates": Case("mixture", lambda r: DPFastMH(Coordinates(0.5)), 4000, 500),
    "adult, Metropolis-Hastings": Case("adult_2000", lambda r: MetropolisHastings(RandomWalk(0.8, r.axes)), 1000, 300),
    "adult, DPFastMHFull": Case("adult_2000", lambda r: DPFastMHFull(RandomWalk(0.7, r.axes)), 1000, 300),
    "adult, DPFastMH order 2, directions": Case("adult", lambda r: DPFastMH(Directions(r.axes, 2.0)), 2500, 800, 2),
    "adult, TunaMH λ, order 2": Case("adult", lambda r: TunaMH(RandomWalk(0.8, r.axes), lam=50), 700, 300, 2),
}


@pytest.mark.parametrize("name", QUICK)
def test_the_sampler_draws_from_the_reference_posterior(name: str) -> None:
    check(QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_the_sampler_draws_from_the_reference_posterior_at_length(name: str) -> None:
    check((QUICK | SLOW)[name], LONGER)


# -- planted errors ----------------------------------------------------------------------------------------------------
def test_a_likelihood_tempered_by_mistake_is_caught() -> None:
    case = QUICK["TunaMH λ, order 2"]._replace(model=lambda: student_model(temperature=1.2))
    assert worst_t(chains(case), reference(case.posterior)) > LIMIT


def test_a_proposal_that_always_accepts_downhill_and_half_of_the_rest_is_caught() -> None:
    """Barker's chance taken for a rule that is not balanced: draws of the penalty rule with its variance forgotten are
    those of another temperature. Here: every second draw replaced by its neighbour a tenth of an sd away."""
    case = QUICK["TunaMH λ, order 2"]
    against = reference(case.posterior)
    draws = chains(case)
    noise = np.random.default_rng(52)
    rough = [chain + 0.45 * against.sd * noise.standard_normal(chain.shape) for chain in draws]
    assert worst_t(draws, against) < LIMIT
    assert worst_t(rough, against) > LIMIT
