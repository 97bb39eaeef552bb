"""Real tables at equal (ε, δ): how well predicted, how honest the intervals.

*Prediction*: every method learns from the same part and is judged on the same held-out part, several times with fresh
noise: log-loss, accuracy, calibration error (mean distance between predicted and found shares in 20 groups of equal
size). Methods that give draws predict the average over them.

*Intervals*: the part to learn from is taken as the population, whose coefficients are known (its posterior mode);
tables of the same size are drawn from it with replacement, and the share of coefficients inside their 90% intervals is
counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
from scipy.special import expit

import dpfastmh as mh
from field.alternatives import PRIOR_SD, RIVALS, Case, Fit, Setting, minimiser
from field.store import Entry, Store, significant
from field.tables import TABLES, FloatArray, Table

EPSILONS = (1.0, 2.0, 4.0)
REPEATS = {"adult": 8, "flights": 3}
TABLES_DRAWN = {"adult": 30, "flights": 10}


def run(
    tables: Iterable[str], epsilons: Iterable[float], rivals: Iterable[str], store: Store, quick: bool, seed: int = 7
) -> None:
    for name in tables:
        table = TABLES[name]()
        if quick:
            parts = (part[:20_000] for part in (table.x, table.y, table.test_x, table.test_y))
            table = Table(name, table.domain, *parts, table.delta)
        x, test_x = table.scaled(table.x), table.scaled(table.test_x)
        truth = minimiser(x, table.y, 1.0 / PRIOR_SD**2)
        best = judged(Fit(truth), test_x, table.test_y)
        store.put({"table": name, "epsilon": None, "method": "no privacy"} | best)
        print(line(store.entries[-1]), flush=True)
        for epsilon in epsilons:
            for rival in rivals:
                case = Case(table, x, table.y, mh.Budget(epsilon, table.delta), np.random.default_rng(seed))
                entry: Entry = {"table": name, "epsilon": epsilon, "delta": table.delta, "method": rival}
                entry |= _prediction(rival, case, test_x, 2 if quick else REPEATS[name])
                if entry.pop("intervals"):
                    entry |= _coverage(rival, case, truth, entry["setting"], 3 if quick else TABLES_DRAWN[name])
                store.put(entry)
                print(line(store.find(table=name, epsilon=epsilon, method=rival)[0]), flush=True)


def line(entry: Entry) -> str:
    if "outcome" in entry:
        return f"{entry['table']:8} ε={entry['epsilon']!s:5}{entry['method']:20}{entry['outcome']}"
    spread = f" ± {entry['spread']:.5f}" if "spread" in entry else ""
    text = f"{entry['table']:8} ε={entry['epsilon']!s:5}{entry['method']:20}"
    text += (
        f"log-loss {entry['log_loss']:.5f}{spread}, accuracy {entry['accuracy']:.4f}, off {entry['calibration']:.4f}"
    )
    if "coverage" in entry:
        text += f", coverage {entry['coverage']:.3f}, width {entry['width']:.2f}"
    return text + (f", {entry['seconds']:.2g} s, {entry['setting']}, {entry['refused']} refused" if spread else "")


# -- prediction ------------------------------------------------------------------------------------------------------
def judged(fit: Fit, x: FloatArray, y: FloatArray) -> Entry:
    """Log-loss, accuracy and calibration error on held-out rows."""
    eta = x @ fit.point
    chance = expit(eta)
    if fit.draws is not None:
        kept = fit.draws[:: max(1, len(fit.draws) // 200)]
        chance = np.mean([expit(x @ theta) for theta in kept], axis=0)
    chance = np.clip(chance, 1e-12, 1.0 - 1e-12)
    groups = np.array_split(np.argsort(chance), 20)
    return {
        "log_loss": float(-np.mean(y * np.log(chance) + (1.0 - y) * np.log1p(-chance))),
        "accuracy": float(np.mean((chance > 0.5) == (y > 0.5))),
        "calibration": float(np.mean([abs(chance[group].mean() - y[group].mean()) for group in groups])),
    }


def _prediction(rival: str, case: Case, test_x: FloatArray, repeats: int) -> Entry:
    """The best setting by mean log-loss over ``repeats`` fits with fresh noise."""
    entries: list[Entry] = []
    for setting in RIVALS[rival].settings(case):
        scores, seconds, refused, intervals = [], [], 0, False
        for _ in range(repeats):
            begun = time.perf_counter()
            try:
                fit = RIVALS[rival].fit(case, setting)
            except mh.BudgetTooSmall:
                refused += 1
                continue
            seconds.append(time.perf_counter() - begun)
            scores.append(judged(fit, test_x, case.table.test_y))
            intervals = fit.draws is not None
        if scores:
            losses = [score["log_loss"] for score in scores]
            entry = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
            entry["spread"] = float(np.std(losses, ddof=1)) if len(losses) > 1 else 0.0
            entry |= {"seconds": significant(float(np.median(seconds)))}
            entry |= {"setting": setting, "refused": refused, "repeats": repeats, "intervals": intervals}
            entries.append(entry)
    if not entries:
        return {"outcome": f"refused {repeats} of {repeats} times", "intervals": False}
    return min(entries, key=lambda entry: entry["log_loss"])


# -- intervals -------------------------------------------------------------------------------------------------------
def _coverage(rival: str, case: Case, truth: FloatArray, setting: Setting, drawn: int) -> Entry:
    """Share of 90% intervals that hold the population's coefficients; their median width over the posterior's own."""
    chance = expit(case.x @ truth)
    hessian = (case.x * (chance * (1.0 - chance))[:, None]).T @ case.x + np.eye(truth.size) / PRIOR_SD**2
    full_width = 2.0 * 1.6449 * np.sqrt(np.diag(np.linalg.inv(hessian)))
    inside, widths = [], []
    for _ in range(drawn):
        table = case.table.sample(case.rng)
        fresh = case._replace(table=table, x=table.scaled(table.x), y=table.y)
        try:
            draws = RIVALS[rival].fit(fresh, setting).draws
        except mh.BudgetTooSmall:
            continue
        assert draws is not None
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        inside.append((low <= truth) & (truth <= high))
        widths.append((high - low) / full_width)
    found = np.array(inside)
    return {
        "coverage": significant(float(found.mean())),
        "coverage_by_coefficient": [significant(float(share), 2) for share in found.mean(axis=0)],
        "width": significant(float(np.median(widths))),
        "tables_drawn": len(found),
    }
