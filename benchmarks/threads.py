"""Two chains on two threads against one chain on one thread, the same number of steps each: wall-clock time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from statistics import median

from control_variates import joint_moves
from dpfastmh.methods import RandomWalk, Sampler, TunaMH, run_chains
from dpfastmh.steps.reference import mode
from measure import Row, interleaved, logistic_problem, small_move, spread, wall_seconds

PART = "threads"


def results(quick: bool) -> Iterator[Row]:
    n, d, repeats = 1_000_000, 10, 5 if quick else 11
    model, rows, theta = logistic_problem(n, d)
    centre, hessian = mode(model, rows)
    expanded = TunaMH(joint_moves(hessian), lam=0.02)
    yield _speed_up(
        "control variates", [expanded.on(model, rows, reference=centre) for _ in range(2)], centre, 200_000, repeats
    )
    scale, lam = small_move(theta, n, 60)
    plain = TunaMH(RandomWalk(scale), lam=lam)
    yield _speed_up("minibatch of 60", [plain.on(model, rows) for _ in range(2)], centre, 100_000, repeats)


def _speed_up(what: str, samplers: Sequence[Sampler], start: object, steps: int, repeats: int) -> Row:
    states = [sampler.init(start) for sampler in samplers]  # type: ignore[arg-type]
    run_chains(samplers, states, 1_000)
    times = interleaved(
        {
            "one": lambda: wall_seconds(lambda: run_chains(samplers[:1], states[:1], steps, thin=10)),
            "two": lambda: wall_seconds(lambda: run_chains(samplers, states, steps, thin=10)),
        },
        repeats,
    )
    figure = 2.0 * median(times["one"]) / median(times["two"])
    best = 2.0 * min(times["one"]) / min(times["two"])
    note = (
        f"one {spread(times['one'])} s, two {spread(times['two'])} s; {best:.2f} from the fastest of each; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return Row(PART, f"{what}: two chains on two threads", figure, "×", ">= 1.8", note)
