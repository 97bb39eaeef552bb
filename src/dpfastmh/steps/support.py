"""The support function s(δ) = sup over the domain of |x·δ|, compiled, for one predictor and for several.

``SupportTable`` comes from ``Domain.table()``. With K classes a parameter vector is K−1 blocks of d, class 0 being the
zero block, and the spread ρ(δ) = max over pairs of classes of s(δ_k − δ_l) takes the place of s.

The two signs are summed apart, h(δ) = sup x·δ and h(−δ): one-hot groups and constants are not symmetric.
"""

from __future__ import annotations

import math

import numpy as np

from dpfastmh.domain import BALL, BOX, ONEHOT, SupportTable
from dpfastmh.steps.elementary import compiled, inlined


@inlined
def _entry(vector, at, other, weight, j):
    return vector[at + j] - weight * vector[other + j]


@compiled
def _box_ball(start, stop, radius, vector, at, other, weight):
    """sup of x·δ over |x_j| ≤ 1, ‖x‖ ≤ R, as min over c of Σ(|δ_j| − c)⁺ + R‖min(|δ|, c)‖.

    The best c is 1/t with x_j = min(1, t|δ_j|) on the sphere: each pass fixes the coordinates that t carries past 1,
    and t only grows, so at most d passes. Every c gives an upper bound: rounding of c cannot undercharge.
    """
    t = 0.0
    for _ in range(stop - start + 1):
        held, free = 0.0, 0.0
        for j in range(start, stop):
            size = abs(_entry(vector, at, other, weight, j))
            if t > 0.0 and t * size >= 1.0:
                held += 1.0
            else:
                free += size * size
        if free == 0.0:
            t = np.inf  # every coordinate at its end still fits into the ball
            break
        if held >= radius * radius:
            break
        following = math.sqrt((radius * radius - held) / free)
        if following <= t:
            break
        t = following
    level = 1.0 / t if t > 0.0 else np.inf
    over, under = 0.0, 0.0
    for j in range(start, stop):
        size = abs(_entry(vector, at, other, weight, j))
        over += max(size - level, 0.0)
        under += min(size, level) ** 2
    return over + radius * math.sqrt(under)


@compiled
def _difference_support(table, vector, at, other, weight):
    """s(vector[at : at+d] − weight·vector[other : other+d]): of weight 0, a single block, or 1, a difference."""
    up, down = 0.0, 0.0
    for block in range(table.kind.size):
        start, stop, kind = table.start[block], table.stop[block], table.kind[block]
        both = 0.0
        if kind == BOX:
            for j in range(start, stop):
                entry = _entry(vector, at, other, weight, j)
                if table.constant[j]:
                    up += entry
                    down -= entry
                else:
                    both += table.half[j] * abs(entry)
        elif kind == BALL:
            for j in range(start, stop):
                both += _entry(vector, at, other, weight, j) ** 2
            both = table.radius[block] * math.sqrt(both)
        elif kind == ONEHOT:
            largest, smallest = 0.0, 0.0
            for j in range(start, stop):
                entry = _entry(vector, at, other, weight, j)
                largest, smallest = max(largest, entry), min(smallest, entry)
            up += largest
            down -= smallest
        else:
            both = _box_ball(start, stop, table.radius[block], vector, at, other, weight)
        up += both
        down += both
    return max(up, down)


@compiled
def spread(table, classes, vector):
    """s(vector) for one predictor (classes = 1), ρ(vector) for classes − 1 predictors; NaN if any of it is."""
    d = table.half.size
    widest = 0.0
    for k in range(max(classes - 1, 1)):
        for other in range(-1, k):  # −1 is class 0, whose block is zero
            weight = 1.0 if other >= 0 else 0.0
            found = _difference_support(table, vector, k * d, max(other, 0) * d, weight)
            if found > widest or found != found:
                widest = found
    return widest


def is_simple(table: SupportTable) -> bool:
    """Boxes and at most one constant: then s(δ) = Σ half_j|δ_j|, which one coordinate changes in O(1)."""
    return bool(np.all(table.kind == BOX) and np.count_nonzero(table.constant) <= 1)
