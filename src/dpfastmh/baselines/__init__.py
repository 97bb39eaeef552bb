"""The systems that DP-Fast MH was compared with, and the published algorithm itself, each with an honest total.

    from dpfastmh.baselines import BASELINES

    method = BASELINES["dp-penalty"](RandomWalk(0.1), sigma=10.0).within(Budget(1, 1e-5), steps=10_000, size=50_000)
    sampler = method.on(model, x, y)
    state, draws, info = sampler.run(sampler.init(start), 10_000)

Metropolis-Hastings and TunaMH are in ``dpfastmh.methods``; exact sampling on a grid is ``exact.ExactPosterior``.
"""

from __future__ import annotations

from dpfastmh.baselines.barker import Barker, DPBarker
from dpfastmh.baselines.common import Baseline
from dpfastmh.baselines.dp_hmc import DPHMC
from dpfastmh.baselines.dp_sgld import DPSGLD
from dpfastmh.baselines.exact import ExactPosterior
from dpfastmh.baselines.penalty import DPPenalty, Penalty
from dpfastmh.baselines.published import Published, PublishedFull

BASELINES: dict[str, type[Baseline]] = {
    method.name: method for method in (Published, PublishedFull, Penalty, DPPenalty, Barker, DPBarker, DPSGLD, DPHMC)
}

__all__ = [
    "BASELINES",
    "DPHMC",
    "DPSGLD",
    "Barker",
    "Baseline",
    "DPBarker",
    "DPPenalty",
    "ExactPosterior",
    "Penalty",
    "Published",
    "PublishedFull",
]
