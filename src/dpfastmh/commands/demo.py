"""Two chains on the shipped Adult census table."""

from __future__ import annotations

import argparse
import time

import numpy as np


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demonstration has no options."""


def run(arguments: argparse.Namespace) -> int:
    """Two chains with control variates on Adult, without a privacy budget, and says so."""
    from dpfastmh import Coordinates, LogisticRegression, TunaMH, datasets, run_chains
    from dpfastmh.steps.reference import mode

    table = datasets.adult()
    model = LogisticRegression(table.domain)
    rows = model.load(table.x, table.y)
    center, hessian = mode(model, rows)
    method = TunaMH(Coordinates(2.0 / np.sqrt(np.diag(hessian))), lam=1.0)
    samplers = [method.on(model, rows, reference=center, chain_number=k) for k in range(2)]
    states = [sampler.init(center) for sampler in samplers]
    started = time.perf_counter()
    steps = 400_000
    results = run_chains(samplers, states, steps, thin=100)
    seconds = time.perf_counter() - started
    draws = np.concatenate([part for _, part, _ in results])
    print("NOT PRIVATE: this demonstration samples the exact posterior without a privacy budget.\n")
    print(f"Adult census, {table.x.shape[0]:,} people: log-odds of earning over 50,000 dollars (features in [-1, 1])\n")
    print(f"{'':>14}{'mean':>9}{'sd':>9}{'5%':>9}{'95%':>9}")
    for name, column in zip(model.parameters, draws.T, strict=True):
        low, high = np.quantile(column, [0.05, 0.95])
        print(f"{name:>14}{column.mean():9.3f}{column.std():9.3f}{low:9.3f}{high:9.3f}")
    print(f"\n{2 * steps:,} steps of two chains in {seconds:.1f} s ({2 * steps / seconds:,.0f} steps/s)")
    return 0
