"""Minibatch steps (TunaMH, logistic regression) against the same algorithm in C, from ten thousand to ten million rows.

The moves are as small as a batch of 60 or 500 rows allows. With a bound that holds for every record, a move of
posterior size needs tens of thousands of rows at N = 10⁶, for us and in C alike: control variates are the answer to
that, here only the cost of a step matters. Both loops start at the same point, read the same arrays and must accept
equally often; a small problem with moves of posterior size checks that both sample the same posterior.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from dpfastmh.methods import RandomWalk, TunaMH
from dpfastmh.models import GLM
from dpfastmh.steps.likelihood import Rows
from measure import (
    FloatArray,
    Row,
    cpu_microseconds,
    effective_draws,
    interleaved,
    logistic_problem,
    small_move,
    spread,
)
from roofline import Roofline

PART = "minibatch"
BATCHES = (60, 500)


def results(quick: bool) -> Iterator[Row]:
    sizes, repeats = ((10_000, 1_000_000), 5) if quick else ((10_000, 1_000_000, 10_000_000), 9)
    with tempfile.TemporaryDirectory() as directory:
        yield from _agreement(Roofline(Path(directory)))
        for d in (10, 50):
            loops = Roofline(Path(directory)), Roofline(Path(directory), columns=d, real="float")
            micro: dict[tuple[int, int], tuple[float, float]] = {}
            for n in sizes:
                model, rows, theta = logistic_problem(n, d)
                for batch in BATCHES:
                    row, micro[n, batch] = _against_c(model, rows, theta, batch, loops, repeats)
                    yield row
                del model, rows
            for batch in BATCHES:
                growth, of_c = (micro[sizes[-1], batch][k] / micro[sizes[0], batch][k] for k in (0, 1))
                what = f"d={d} batch {batch}: N=1e{len(str(sizes[-1])) - 1} over N=1e4"
                yield Row(PART, what, growth, "×", "<= 1.3" if sizes[-1] == 10_000_000 else "", f"C {of_c:.2f}×")


def _against_c(
    model: GLM, rows: Rows, theta: FloatArray, batch: int, loops: tuple[Roofline, Roofline], repeats: int
) -> tuple[Row, tuple[float, float]]:
    n, d = rows.x.shape
    scale, lam = small_move(theta, n, batch)
    steps = 3_600_000 // batch
    chain = _Chain(model, rows, theta, scale, lam)
    accepted: list[float] = []

    def in_c(loop: Roofline, seed: int) -> None:
        accepted.append(loop.run(rows, theta, lam=lam, scale=scale, steps=steps, seed=seed).acceptance)

    chain.advance(1_000)  # compiled, or read from the cache
    chain.acceptance.clear()
    times = interleaved(
        {
            "ours": lambda: cpu_microseconds(lambda: chain.advance(steps), steps)[0],
            "c": lambda: cpu_microseconds(lambda: in_c(loops[0], len(accepted)), steps)[0],
            "fixed": lambda: cpu_microseconds(lambda: in_c(loops[1], len(accepted)), steps)[0],
        },
        repeats,
    )
    gap = abs(float(np.mean(chain.acceptance)) - float(np.mean(accepted)))
    if gap > 0.02:  # over five standard errors
        raise AssertionError(
            f"N={n} d={d} batch {batch}: acceptance differs from C's by {gap:.3f}, so the loops differ"
        )
    ours, c, fixed = (median(times[name]) for name in ("ours", "c", "fixed"))
    note = (
        f"ours {spread(times['ours'])} µs, C {spread(times['c'])}, C for this d in floats {fixed:.3g} "
        f"({ours / fixed:.2f}×); acceptance {np.mean(chain.acceptance):.2f}, C {np.mean(accepted):.2f}"
    )
    what = f"N=1e{len(str(n)) - 1} d={d} batch {batch}: µs a step, ours over C"
    return Row(PART, what, ours / c, "×", "<= 2" if n == 10_000 else "<= 1.5", note), (ours, c)


class _Chain:
    """One of our chains: every call starts at ``theta`` again, with fresh randomness."""

    def __init__(self, model: GLM, rows: Rows, theta: FloatArray, scale: float, lam: float) -> None:
        self._sampler = TunaMH(RandomWalk(scale), lam=lam).on(model, rows)
        self._state = self._sampler.init(theta)
        self.acceptance: list[float] = []

    def advance(self, steps: int) -> FloatArray:
        _, draws, info = self._sampler.run(self._state, steps, thin=10)
        self.acceptance.append(info.acceptance)
        return draws


def _agreement(loop: Roofline, n: int = 500, d: int = 3, steps: int = 400_000) -> Iterator[Row]:
    """Posterior means of both loops on a small problem, in standard errors; sd and acceptance in the note."""
    model, rows, theta = logistic_problem(n, d)
    scale, lam = 0.15, 100.0
    chain = _Chain(model, rows, theta, scale, lam)
    ours = chain.advance(steps)
    c = loop.run(rows, theta, lam=lam, scale=scale, steps=steps, seed=5)
    errors = [draws.var(axis=0) / effective_draws(draws[None]) for draws in (ours, c.draws)]
    z = float(np.max(np.abs(ours.mean(axis=0) - c.draws.mean(axis=0)) / np.sqrt(errors[0] + errors[1])))
    sds = ours.std(axis=0) / c.draws.std(axis=0)
    note = f"sd ours/C {sds.min():.3f} to {sds.max():.3f}; acceptance {chain.acceptance[0]:.3f}, C {c.acceptance:.3f}"
    yield Row(PART, f"N={n} d={d}: largest gap of posterior means", z, "s.e.", "<= 5", note)
