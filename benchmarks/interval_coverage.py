"""Do the intervals hold what they promise? 2,000 synthetic tables for each ε, the truth known.

    python benchmarks/interval_coverage.py [--sets 2000] [--epsilon 1] [--epsilon 4]

Every table has its own coefficients (uniform on [−1, 1]) and N = 50,000 rows of three columns, uniform on [−1, 1],
with an intercept; ``dpfastmh.sample`` at temperature 1, δ = 10⁻⁶, everything at its default. Counted is how often the
central 50% and 90% intervals of the draws hold the true coefficient: for all coefficients, and by how many effective
draws the run itself reported for the coefficient, because that is what a user sees. Beside it the same count for the
Gaussian approximation at the exact posterior's mode, which knows the posterior without Monte Carlo error: what the
intervals would be with infinitely many draws. Figures go to ``results/coverage.json`` after every hundred tables.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
from scipy.special import expit
from scipy.stats import norm

import dpfastmh as mh
from dpfastmh.steps.reference import mode
from field.store import FOLDER, Entry, Store, significant
from measure import FloatArray

ROWS, COLUMNS, DELTA = 50_000, 3, 1e-6
LEVELS = (0.5, 0.9)
EDGES = (0.0, 5.0, 10.0, 20.0, 50.0, 100.0, np.inf)  # effective draws


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of intervals over synthetic tables.")
    parser.add_argument("--sets", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where coverage.json is kept")
    options = parser.parse_args()
    store = Store("coverage", ("epsilon", "rows"), options.folder)
    for epsilon in options.epsilon or (1.0, 4.0):
        study(epsilon, options.rows, options.sets, store)


def study(epsilon: float, rows: int, sets: int, store: Store) -> None:
    rng = np.random.default_rng([2026, int(1000 * epsilon), rows])
    budget = mh.Budget(epsilon, DELTA)
    inside: list[FloatArray] = []  # of each run: (level, coefficient), 0 or 1
    exact: list[FloatArray] = []
    effective: list[FloatArray] = []
    refused, begun = 0, time.perf_counter()
    for done in range(1, sets + 1):
        truth = rng.uniform(-1.0, 1.0, COLUMNS + 1)
        x = rng.uniform(-1.0, 1.0, (rows, COLUMNS))
        y = (rng.random(rows) < expit(truth[0] + x @ truth[1:])).astype(float)
        model = mh.LogisticRegression(mh.Box.unit(COLUMNS), mh.Normal(2.5))
        try:
            found = mh.sample(model, x, y, budget=budget)
        except mh.BudgetTooSmall:
            refused += 1
        else:
            inside.append(np.array([_held(truth, found.draws, level) for level in LEVELS]))
            effective.append(np.nan_to_num(found.ess(), nan=1.0))
            centre, hessian = mode(model, model.load(x, y), found.means)
            sd = np.sqrt(np.diag(np.linalg.inv(hessian)))
            exact.append(np.array([abs(truth - centre) <= norm.ppf(0.5 + level / 2) * sd for level in LEVELS]))
        if done % 100 == 0 or done == sets:
            entry: Entry = {"epsilon": epsilon, "rows": rows, "columns": COLUMNS, "delta": DELTA, "temperature": 1.0}
            entry |= {"tables": done, "refused": refused}
            entry |= summary(np.array(inside), np.array(exact), np.array(effective))
            store.put(entry)
            print(f"{time.perf_counter() - begun:.0f} s: {entry}", flush=True)


def _held(truth: FloatArray, draws: FloatArray, level: float) -> FloatArray:
    low, high = np.quantile(draws, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=(0, 1))
    return np.asarray((low <= truth) & (truth <= high))


def summary(inside: FloatArray, exact: FloatArray, effective: FloatArray) -> Entry:
    """Shares by level, and by level within each range of effective draws."""
    whole = {f"{level:.0%}": significant(float(inside[:, k].mean())) for k, level in enumerate(LEVELS)}
    ideal = {f"{level:.0%}": significant(float(exact[:, k].mean())) for k, level in enumerate(LEVELS)}
    ranges: list[Entry] = []
    for low, high in itertools.pairwise(EDGES):
        chosen = (effective >= low) & (effective < high)
        if chosen.any():
            shares = {f"{level:.0%}": significant(float(inside[:, k][chosen].mean())) for k, level in enumerate(LEVELS)}
            ranges.append(
                {"from": low, "to": None if np.isinf(high) else high, "intervals": int(chosen.sum())} | shares
            )
    middle = significant(float(np.median(effective)))
    return {"coverage": whole, "without_error": ideal, "effective_draws": middle, "by_effective_draws": ranges}


if __name__ == "__main__":
    main()
