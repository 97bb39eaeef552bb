"""Bounds on the spectral gap stay below the gaps of enumerated kernels; the MNIST data are what they are said to be."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from dpfastmh import datasets, theory
from dpfastmh.baselines.published import Published
from test_baselines_published import MOVE, PRIOR, STATES, WALK, X, accepted, differences, matrix, target

TOTAL = float(np.abs(X).sum())


def kernel(law) -> np.ndarray:
    n = len(STATES)
    chances = np.zeros((n, n))
    for i, j in itertools.product(range(n), repeat=2):
        if abs(i - j) == 1:
            a, b = STATES[i, 0], STATES[j, 0]
            prior = float(PRIOR.log_density(b) - PRIOR.log_density(a))
            chances[i, j] = law(differences(a, b)).shifted(prior).acceptance(theory.metropolis)
    return theory.transition_matrix(np.full((n, n), 0.5), chances)


def full_gap() -> float:
    return theory.spectral_gap(target(), kernel(lambda dU: theory.certain(-dU.sum())))


@pytest.mark.parametrize("chi", [0.5, 1.0, 3.0, 10.0, 100.0])
def test_tuna_keeps_its_share_of_the_gap(chi: float) -> None:
    lam = chi * (TOTAL * MOVE) ** 2
    c = np.abs(X[:, 0])
    minibatch = kernel(lambda dU: theory.minibatch_law(dU, c * MOVE, lam * c / TOTAL))
    share = theory.spectral_gap(target(), minibatch) / full_gap()
    assert theory.tuna_gap_ratio(chi) <= share < 1.0
    assert theory.tuna_batch(chi, TOTAL, MOVE) == pytest.approx(lam + TOTAL * MOVE)


def test_the_tuna_bound_is_no_idle_one() -> None:
    assert theory.tuna_gap_ratio(100.0) > 0.8
    assert theory.tuna_gap_ratio(1e8) == pytest.approx(1.0, abs=1e-3)


SETTINGS = {
    "noise": Published(WALK, lam=0.5, upper=1.6, epsilon=10.0, delta=0.9),
    "free, large λ": Published(WALK, lam=50.0, upper=60.0, epsilon=60.0, delta=0.1),
    "free, small λ": Published(WALK, lam=3.0, upper=6.0, epsilon=30.0, delta=0.5),
}


@pytest.mark.parametrize("constant", [216.0, 288.0])
@pytest.mark.parametrize("name", SETTINGS)
def test_theorem_3_is_below_the_truth(name: str, constant: float) -> None:
    method = SETTINGS[name]
    bound = theory.published_gap_ratio(
        method.epsilon,
        method.delta,
        upper=method.upper,
        lam=method.lam,
        total=TOTAL,
        largest=1.0,
        longest=MOVE,
        constant=constant,
    )
    share = theory.spectral_gap(target(), matrix(method)) / full_gap()
    assert 1e-5 < bound <= share


def test_the_variance_of_the_noise_has_the_288() -> None:
    """σ₁²Δ₁² = 288 K²c² log(2.5Kc/(δC)) log²(1 + CM/λ)/(ε²C²)."""
    from dpfastmh.baselines.published import Constants, step_noise

    method = SETTINGS["noise"]
    rule = method.rule(Constants(TOTAL, 1.0, None))  # type: ignore[arg-type]
    sd, _ = step_noise(rule, True, MOVE)
    share = method.upper / TOTAL
    expected = 288 * (share / method.epsilon) ** 2 * math.log(2.5 * share / method.delta)
    assert sd**2 == pytest.approx(expected * math.log1p(TOTAL * MOVE / method.lam) ** 2)


def test_noise_slows_the_chain() -> None:
    free = replace(SETTINGS["noise"], epsilon=20.0)
    assert accepted(free, 0.0, 0.5) > accepted(SETTINGS["noise"], 0.0, 0.5)
    gaps = [theory.spectral_gap(target(), matrix(m)) for m in (free, SETTINGS["noise"])]
    assert gaps[0] > gaps[1]


# -- data ------------------------------------------------------------------------------------------------------------
def test_mnist_sevens_and_nines() -> None:
    digits = datasets.mnist79()
    assert digits.x.shape == (12214, 50)
    assert digits.test_x.shape == (2037, 50)
    assert set(digits.y) == set(digits.test_y) == {0, 1}
    assert digits.y.sum() == 5949
    assert np.linalg.norm(np.vstack([digits.x, digits.test_x]), axis=1).max() <= digits.radius * (1 + 1e-12)
    scaled = digits.domain.project(digits.x)
    assert np.allclose(scaled * digits.radius, digits.x, atol=1e-9)
    assert digits.domain.norm2() == pytest.approx(1.0)
    assert len(files(datasets.__name__).joinpath("mnist79.npz").read_bytes()) < 1_600_000


def test_fifty_components_tell_sevens_from_nines() -> None:
    """95.1% by logistic regression through the origin, against 96.5% with all 784 pixels and an intercept."""
    from sklearn.linear_model import LogisticRegression

    digits = datasets.mnist79()
    fitted = LogisticRegression(fit_intercept=False, max_iter=2000).fit(digits.x, digits.y)
    assert fitted.score(digits.test_x, digits.test_y) > 0.949
