"""What the field benchmark rests on: rivals that keep to their budget, and a page that shows what was measured."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import minimize

import dpfastmh as mh

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
BUDGET = mh.Budget(1.0, 1e-6)


@pytest.fixture(scope="module")
def field() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(BENCHMARKS))
    from field import alternatives, page, store

    yield {"alternatives": alternatives, "page": page, "store": store}
    sys.path.remove(str(BENCHMARKS))


def data(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(n), rng.uniform(-1, 1, (n, 2))])
    return x, (rng.random(n) < 0.5 + 0.3 * x[:, 1]).astype(float)


def test_minimiser_is_the_minimum_and_moves_by_at_most_what_is_charged(field: dict[str, ModuleType]) -> None:
    alternatives = field["alternatives"]
    x, y = data()
    ridge = 4.0
    theta = alternatives.minimiser(x, y, ridge)
    found = minimize(lambda t: np.logaddexp(0.0, x @ t).sum() - y @ (x @ t) + 0.5 * ridge * t @ t, np.zeros(3))
    assert np.allclose(theta, found.x, atol=1e-4)
    radius = math.sqrt(3.0)
    worst = 0.0
    for corner in np.array(np.meshgrid([-1, 1], [-1, 1])).reshape(2, -1).T:
        for label in (0.0, 1.0):
            other, labels = x.copy(), y.copy()
            other[0], labels[0] = [1.0, *corner], label
            worst = max(worst, float(np.linalg.norm(alternatives.minimiser(other, labels, ridge) - theta)))
    assert 0.0 < worst <= 2.0 * radius / ridge  # 2R/(λN) with λN = ridge


def test_descent_and_hessian_together_keep_to_the_budget(field: dict[str, ModuleType]) -> None:
    """dp_accounting counts a record removed, which costs no more than one replaced: a lower bound of what we charge."""
    rate, steps = 0.01, 200
    alone = field["alternatives"].sgd_noise(rate, steps, BUDGET, 0.0)
    accountant = RdpAccountant()
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(alone)), steps))
    assert 0.2 < accountant.get_epsilon(BUDGET.delta) <= BUDGET.epsilon
    assert field["alternatives"].sgd_noise(rate, steps, BUDGET, 0.005) > alone


def test_entries_replace_those_of_the_same_setting(field: dict[str, ModuleType], tmp_path: Path) -> None:
    store = field["store"].Store("part", ("n",), tmp_path)
    for n, figure in ((1, 1.0), (2, 2.0), (1, 3.0)):
        store.put({"n": n, "figure": figure})
    again = field["store"].Store("part", ("n",), tmp_path)
    assert [(entry["n"], entry["figure"]) for entry in again.entries] == [(1, 3.0), (2, 2.0)]


def test_the_page_shows_the_figures_on_disk(field: dict[str, ModuleType]) -> None:
    """``python -m field page``, from benchmarks/, writes them in."""
    text = field["page"].PAGE.read_text(encoding="utf-8")
    assert field["page"].filled(text) == text
    with pytest.raises(ValueError, match="one place for the table"):
        field["page"].filled(text.replace("<!-- figures: speed -->", ""))
