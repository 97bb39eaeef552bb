"""The paper's Gaussian mixture (N = 50,000, temperature 500): our settings against those its authors published.

Their chain is emulated as a minibatch chain with λ = 10, rows drawn by their own bounds c_i, step .06 and Metropolis
acceptance: no noise and no privacy claim, but also none of the full-batch steps that their program takes about half the
time. That program makes about 870 steps a second on the machine this was written on. Effective sample sizes are over
four chains, two started in each mode, the smaller of the two coordinates; with two modes they are rough even so.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from dpfastmh.methods import DPFastMH, Method, RandomWalk, TunaMH
from dpfastmh.models import Mixture
from measure import FloatArray, Row, cpu_microseconds, effective_draws, spread

PART = "mixture"
SCALE = 0.3
PUBLISHED_STEP = 0.06
STARTS = ([0.0, 1.0], [1.0, -1.0], [0.0, 1.0], [1.0, -1.0])


class _Measured(NamedTuple):
    steps_per_second: list[float]
    effective_per_step: float
    sd: FloatArray
    rows: float


def results(quick: bool) -> Iterator[Row]:
    x, steps = mixture_records(50_000), 150_000 if quick else 1_000_000
    theirs = _measure(Mixture(bound="paper"), x, TunaMH(RandomWalk(PUBLISHED_STEP), lam=10.0), "alias", steps)
    ours = _measure(Mixture(), x, DPFastMH(RandomWalk(SCALE), full_batch=False), None, steps)
    speed = median(ours.steps_per_second)
    note = f"{spread(ours.steps_per_second)}; {ours.rows:.0f} rows a step; {speed / 870:.0f}× the authors' 870"
    yield Row(PART, f"ours, scale {SCALE}, x=1, Barker", speed, "steps/s", ">= 87000", note)
    gain = ours.effective_per_step / theirs.effective_per_step
    note = f"ours {ours.effective_per_step:.2g}, theirs {theirs.effective_per_step:.2g}, {len(STARTS)} × {steps} steps"
    yield Row(PART, "ESS per step over the emulation of the authors' settings", gain, "×", ">= 1", note)
    gap = float(np.max(np.abs(ours.sd / theirs.sd - 1.0)))
    note = f"sd ours {np.round(ours.sd, 3).tolist()}, theirs {np.round(theirs.sd, 3).tolist()}: both chains are exact"
    yield Row(PART, "gap of the two chains' posterior sd", gap, "", "" if quick else "<= 0.05", note)
    note = f"{theirs.rows:.0f} rows a step"
    yield Row(PART, "the emulation in our loop", median(theirs.steps_per_second), "steps/s", "", note)


def mixture_records(n: int) -> FloatArray:
    """½N(0, 2) + ½N(1, 2), those within [−3, 3]."""
    rng = np.random.default_rng(1)
    x = rng.normal(0.0, np.sqrt(2.0), 4 * n) + rng.integers(0, 2, 4 * n)
    return x[np.abs(x) <= 3.0][:n]


def _measure(model: Mixture, x: FloatArray, method: Method, per_record: str | None, steps: int) -> _Measured:
    rows = model.load(x, per_record=per_record)
    draws, speeds, read = [], [], []
    for start in STARTS:
        sampler = method.on(model, rows)
        state, _, _ = sampler.run(sampler.init(start), 1_000)
        micro, (_, kept, info) = cpu_microseconds(partial(sampler.run, state, steps, thin=10), steps)
        draws.append(kept)
        speeds.append(1e6 / micro)
        read.append(info.rows / steps)
    together = np.stack(draws)
    effective = effective_draws(together) / (len(STARTS) * steps)
    return _Measured(speeds, effective, together.reshape(-1, 2).std(axis=0), float(np.mean(read)))
