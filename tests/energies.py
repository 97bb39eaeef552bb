"""Users' own energies for tests: the mean of normal records, with public bounds of two kinds."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import dpfastmh as mh


@functools.cache  # compiled once in a process
def boxed_mean() -> mh.Energy:
    """Records and mean both within ±3."""

    def difference(row: Any, theta: Any, proposal: Any) -> float:
        return 0.5 * ((row[0] - proposal[0]) ** 2 - (row[0] - theta[0]) ** 2)  # type: ignore[no-any-return]

    def bound(theta: Any, proposal: Any) -> float:
        return abs(proposal[0] - theta[0]) * 6.0  # type: ignore[no-any-return]

    return mh.Energy(["mean"], difference, bound, prior=mh.Normal(), parameter_box=([-3.0], [3.0]))


@functools.cache
def free_mean() -> mh.Energy:
    """Records within ±1, the mean anywhere: the bound grows with it."""

    def difference(row: Any, theta: Any, proposal: Any) -> float:
        return float(0.5 * ((proposal[0] - row[0]) ** 2 - (theta[0] - row[0]) ** 2))

    def bound(theta: Any, proposal: Any) -> float:
        return abs(proposal[0] - theta[0]) * (1.0 + max(abs(theta[0]), abs(proposal[0])))

    return mh.Energy(["mean"], difference, bound, prior=mh.Normal(), project=lambda rows: np.clip(rows, -1, 1))
