"""Smallest effective sample size per second of wall-clock time, beside the NUTS samplers of the field.

Logistic regression on one synthetic table for all: features uniform on [−1, 1]^d, coefficients from −½ to ½, a
Normal(0, 2.5) prior. Peers run in their own environment (``nuts.py``), one process each, one chain that may use every
processor, compilation not counted, ended after ten minutes. Ours:

- *not private*: TunaMH with second-order control variates and joint moves shaped by the Hessian at the mode. Warm-up
  is Newton's method from 0 (every row read several times) and 5,000 steps.
- *private*: ``dpfastmh.sample``, as a user calls it, at ε = 2: two chains, everything charged. Its draws are bought
  with ε, not with time, so that what matters is the time of the whole run.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

import dpfastmh as mh
from control_variates import JOINT_LAMBDA, joint_moves
from dpfastmh.methods import TunaMH
from dpfastmh.steps.reference import mode
from field.store import Entry, Store, significant
from measure import FloatArray, effective_draws, logistic_data

HERE = Path(__file__).resolve().parent
PEERS_PYTHON = HERE.parents[1] / ".venv-peers" / "bin" / "python"
OURS, PRIVATE = "dpfastmh, not private", "dpfastmh, private, ε = 2"
PEERS = ("numpyro-f32", "numpyro-f64", "blackjax", "nutpie")
SAMPLERS = (OURS, PRIVATE, *PEERS)
SIZES = (100_000, 1_000_000, 10_000_000)
COLUMNS = (5, 10, 50)
WARM_UP, DRAWS, STEPS, THIN = 500, 1_000, 500_000, 5


def run(
    sizes: Iterable[int], columns: Iterable[int], samplers: Iterable[str], limit: float, store: Store, quick: bool
) -> None:
    for n in sizes:
        for d in columns:
            for sampler in samplers:
                entry: Entry = {"rows": n, "columns": d, "sampler": sampler, "limit": limit}
                entry |= _peer(sampler, n, d, limit, quick) if sampler in PEERS else _ours(sampler, n, d, quick)
                store.put(entry)
                print(line(store.find(rows=n, columns=d, sampler=sampler)[0]), flush=True)


def line(entry: Entry) -> str:
    head = f"N={entry['rows']:<11,}d={entry['columns']:<4}{entry['sampler']:26}"
    if "rate" not in entry:
        return f"{head}{entry['outcome']}"
    return (
        f"{head}{entry['rate']:>9.4g} ESS/s, with warm-up {entry['rate_all']:>9.4g}"
        f"   warm-up {entry['warm_up']:.3g} s, sampling {entry['sampling']:.3g} s, ESS {entry['ess']:.0f},"
        f" load {entry['load']}"
    )


def rates(ess: float, warm_up: float, sampling: float) -> Entry:
    return {
        "ess": significant(ess),
        "warm_up": significant(warm_up),
        "sampling": significant(sampling),
        "rate": significant(ess / sampling),
        "rate_all": significant(ess / (warm_up + sampling)),
    }


# -- ours ------------------------------------------------------------------------------------------------------------
def _ours(sampler: str, n: int, d: int, quick: bool) -> Entry:
    """Once on a small table, so that nothing is compiled on the clock, then on the real one."""
    work: Callable[[int, int, int], Entry] = _not_private if sampler == OURS else _private
    steps = STEPS // 10 if quick else STEPS
    if sampler == OURS:
        work(2_000, d, 20_000)
    else:
        work(max(n // 10, 20_000), d, steps)  # also fills the table of costs, which depends on the budget alone
    return work(n, d, steps)


def _not_private(n: int, d: int, steps: int) -> Entry:
    x, y, _ = logistic_data(n, d)
    model = mh.LogisticRegression(mh.Box.unit(d), mh.Normal(2.5), intercept=False)
    rows = model.load(x, y)
    del x, y
    begun = time.perf_counter()
    centre, hessian = mode(model, rows)
    sampler = TunaMH(joint_moves(hessian), lam=JOINT_LAMBDA).on(model, rows, reference=centre)
    state, _, _ = sampler.run(sampler.init(centre), 5_000)
    warm_up = time.perf_counter() - begun
    begun = time.perf_counter()
    _, draws, _ = sampler.run(state, steps, thin=THIN)
    return rates(effective_draws(draws[None]), warm_up, time.perf_counter() - begun)


def _private(n: int, d: int, steps: int) -> Entry:
    x, y, _ = logistic_data(n, d)
    model = mh.LogisticRegression(mh.Box.unit(d), mh.Normal(2.5), intercept=False)
    started: list[float] = []
    begun = time.perf_counter()

    def watch(progress: object) -> None:
        if getattr(progress, "phase", "") == "adapt" or not started:
            started[:] = [time.perf_counter()]

    try:
        found = mh.sample(model, x, y, budget=mh.Budget(2.0, min(1e-6, 0.01 / n)), progress=watch)
    except mh.BudgetTooSmall as refusal:
        return {"outcome": "refused: " + str(refusal).split(".")[0]}
    done = time.perf_counter()
    return rates(effective_draws(found.draws), started[0] - begun, done - started[0])


# -- the field -------------------------------------------------------------------------------------------------------
def _peer(sampler: str, n: int, d: int, limit: float, quick: bool) -> Entry:
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "data.npz", Path(folder) / "out.npz"
        x, y, _ = logistic_data(n, d)
        np.savez(data, x=x, y=y)
        del x, y
        share = 5 if quick else 1
        command = [str(PEERS_PYTHON), str(HERE / "nuts.py"), sampler, str(data), str(out)]
        command += [f"--warm-up={WARM_UP // share}", f"--draws={DRAWS // share}", f"--limit={limit:g}"]
        try:
            done = subprocess.run(command, timeout=limit, capture_output=True, text=True, env=os.environ, check=False)
        except subprocess.TimeoutExpired:
            return {"outcome": f"not done after {limit:g} s"}
        if done.returncode == 3:
            least = done.stderr.strip().splitlines()[-1].removeprefix("TOO SLOW ")
            return {"outcome": f"would pass {limit:g} s: {least}"}
        if done.returncode:
            return {"outcome": "failed: " + (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
        with np.load(out) as file:
            draws: FloatArray = file["draws"].astype(float)
            facts = json.loads(str(file["facts"]))
    compiling = {"compiling": significant(facts["compiling"])}
    return rates(effective_draws(draws[None]), facts["warm_up"], facts["sampling"]) | compiling
