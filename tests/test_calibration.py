"""Simulation-based calibration: where the truth is drawn from the prior, its rank among posterior draws is uniform.

Each repetition draws θ* from the prior, a table from the model at θ*, and a chain from the sampler, started at θ*. At
stationarity θ* and the chain's draws are exchangeable up to their order in time, so the rank of a quantity of θ* among
thinned draws is uniform on 0, ..., DRAWS but for what autocorrelation is left; starting at θ*, the chain is stationary
from its first step whatever its speed. Ranks of both coefficients and of the log-likelihood are compared with the
uniform law by a χ² test in bins; a sampler fails below p = 1e-6. The controls are samplers of other posteriors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chisquare

from dpfastmh import models, priors
from dpfastmh.domain import Box
from dpfastmh.methods import (
    Coordinates,
    DPFastMH,
    DPFastMHFull,
    Method,
    MetropolisHastings,
    RandomWalk,
    Sampler,
    TunaMH,
)
from dpfastmh.steps import chain

ROWS, BINS, DRAWS = 24, 16, 31  # 32 possible ranks, two to a bin
RARE, CAUGHT = 1e-6, 1e-9
PRIOR = priors.Normal(1.0)
MODEL = models.LogisticRegression(Box(a=(-1, 1)), PRIOR)
WALK = RandomWalk([0.9, 1.4])


@dataclass(frozen=True)
class Setting:
    """A method, whether it expands around a reference (fixed before the truth is known), and steps between draws."""

    method: Method
    thin: int = 12
    reference: tuple[float, float] | None = None


SETTINGS = {
    "mh": Setting(MetropolisHastings(WALK)),
    "penalty": Setting(MetropolisHastings(WALK, acceptance="penalty", variance=1.0), thin=16),
    "tuna-mh": Setting(TunaMH(WALK, lam=60.0), thin=20),
    "tuna-mh around a point": Setting(TunaMH(Coordinates([1.0, 1.8]), lam=40.0), thin=24, reference=(0.2, -0.3)),
    "dp-fast-mh": Setting(DPFastMH(Coordinates([1.0, 1.8]), laziness=0.7), thin=48, reference=(0.0, 0.0)),
    "dp-fast-mh-full": Setting(DPFastMHFull(WALK), thin=24),
}


def log_likelihood(points: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    eta = points[:, :1] + points[:, 1:] * x[:, 0]
    return np.asarray((y * eta - np.logaddexp(0.0, eta)).sum(axis=1))


Spoil = Callable[[Sampler], None]


def unspoiled(sampler: Sampler) -> None:
    pass


def ranks(setting: Setting, repetitions: int, spoil: Spoil = unspoiled, rows_used: int = ROWS) -> np.ndarray:
    """Ranks of the truth: (repetition, quantity)."""
    source = np.random.default_rng(60)
    found = np.empty((repetitions, 3), int)
    for k in range(repetitions):
        truth = source.normal(0.0, PRIOR.scale, 2)
        x = source.uniform(-1, 1, (ROWS, 1))
        y = (source.random(ROWS) < 1.0 / (1.0 + np.exp(-truth[0] - truth[1] * x[:, 0]))).astype(float)
        sampler = setting.method.on(
            MODEL, x[:rows_used], y[:rows_used], reference=setting.reference, seed=61, chain_number=k
        )
        spoil(sampler)
        # the truth stands anywhere in the stretch of draws: on one side of it time runs backwards, as a reversible
        # chain allows
        draws = []
        before = int(source.integers(0, DRAWS + 1))
        for count in (before, DRAWS - before):
            draws.append(sampler.run(sampler.init(truth), count * setting.thin, thin=setting.thin)[1])
        draws = np.vstack(draws)
        both = np.vstack([truth, draws])
        quantities = np.column_stack([both, log_likelihood(both, x, y)])
        found[k] = (quantities[1:] < quantities[0]).sum(axis=0)
    return found


def least_p(found: np.ndarray) -> float:
    """Smallest p-value over the quantities, for evenly filled bins."""
    width = (DRAWS + 1) // BINS
    return min(float(chisquare(np.bincount(r // width, minlength=BINS)).pvalue) for r in found.T)


@pytest.mark.parametrize("name", SETTINGS)
def test_ranks_of_the_truth_are_uniform(name: str) -> None:
    assert least_p(ranks(SETTINGS[name], 400)) > RARE


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_ranks_of_the_truth_are_uniform_over_many_tables(name: str) -> None:
    assert least_p(ranks(SETTINGS[name], 5_000)) > RARE


def replacing(**changed: object) -> Spoil:
    def spoil(sampler: Sampler) -> None:
        for name, value in changed.items():
            setattr(sampler, name, value)

    return spoil


def wrong_sign(sampler: Sampler) -> None:
    """G with the other sign: the ratio of the Metropolis rule upside down but for its curvature."""
    sampler._reference = sampler._reference._replace(gradient=-sampler._reference.gradient)


def metropolis_for_barker(sampler: Sampler) -> None:
    """Another rule, as exact: no control should be caught for what is right."""
    sampler.rule = sampler.rule._replace(acceptance=chain.METROPOLIS)


WRONG_PRIOR = models.LogisticRegression(Box(a=(-1, 1)), priors.Normal(0.5))
SHIFTED_PRIOR = models.LogisticRegression(Box(a=(-1, 1)), priors.Normal(1.0, loc=0.9))
TEMPERED = models.LogisticRegression(Box(a=(-1, 1)), PRIOR, temperature=2.0)
CONTROLS: dict[str, tuple[str, Spoil, int]] = {
    "prior scale": ("mh", replacing(model=WRONG_PRIOR), ROWS),
    "prior centre": ("mh", replacing(model=SHIFTED_PRIOR), ROWS),
    "temperature": ("mh", replacing(_table=TEMPERED.table()), ROWS),
    "sign of the likelihood ratio": ("mh", replacing(_table=MODEL.table()._replace(inverse_temperature=-1.0)), ROWS),
    "half of the records dropped": ("mh", unspoiled, ROWS // 2),
    "sign of the expansion": ("dp-fast-mh", wrong_sign, ROWS),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_are_caught(name: str) -> None:
    setting, spoil, rows_used = CONTROLS[name]
    assert least_p(ranks(SETTINGS[setting], 400, spoil, rows_used)) < CAUGHT


def test_another_exact_rule_is_not_a_fault() -> None:
    assert least_p(ranks(SETTINGS["dp-fast-mh-full"], 400, metropolis_for_barker)) > RARE


@pytest.mark.slow
def test_one_dropped_record_in_six_is_caught() -> None:
    assert least_p(ranks(SETTINGS["mh"], 6_000, unspoiled, ROWS * 5 // 6)) < CAUGHT
