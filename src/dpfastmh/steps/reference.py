"""Sums over all rows: the gradient G, the Hessian H and the energy, as integers on public grids.

Each record's g_i and h_i is rounded to a grid that depends on public constants alone, and whole numbers are added: the
sums are the same in any order, on any number of threads and from any partition of the rows. The chain's remainders use
the same rounded g_i and h_i, so the rounding costs no exactness.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfastmh.steps.chain import difference_sum, energy_sum
from dpfastmh.steps.elementary import compiled, inlined
from dpfastmh.steps.feed import read_all
from dpfastmh.steps.likelihood import (
    SURPLUS,
    GLMTable,
    Place,
    Reference,
    Rows,
    make_work,
    padded,
    predictors,
    tile_derivatives,
    whole,
)
from dpfastmh.steps.memory import LANES, turn, turned_dots

if TYPE_CHECKING:
    from dpfastmh.data.engine import RowEngine
    from dpfastmh.models import Model

BLOCK = 1 << 16
WHOLE, CUT_SHORT, NO_CLASS = range(3)  # what became of a pass over files


def make_room(m: int, d: int) -> np.ndarray:
    """PRIVATE. Buffers of one pass: a line for each column of a tile of rows, as ``sum_row_contributions`` uses them.

    As many rows at a time as the first-level cache takes, in whole groups of ``WIDTH``; columns begin where a cache
    line does, or every other vector would lie across two.
    """
    rows = 64 if m > 1 or d > 64 else 128 if d > 24 else 256
    columns = d + 3 + 2 * m + m * m
    held = np.zeros(columns * rows + LANES)
    skip = -(held.ctypes.data // held.itemsize) % LANES
    return held[skip : skip + columns * rows].reshape(columns, rows)


@compiled
def sum_row_contributions(model, rows, room, point, first, last, order, gradient_grid, hessian_grid, gradient, hessian):
    """Add rows first, ..., last−1 to the integer sums; H on and below the diagonal, what is above it being of no use.

    A tile of rows at a time, by columns.
    """
    d, tile = rows.x.shape[1], room.shape[1]
    m = predictors(model.loss)
    per_gradient_cell, per_hessian_cell = 1.0 / gradient_grid, 1.0 / hessian_grid  # powers of two: exact
    columns, rest = room[:d], room[d:]
    target, scaled, eta, slopes = rest[0], rest[1:3], rest[3 : m + 3], rest[m + 3 : 2 * m + 3]
    curvatures = rest[2 * m + 3 :]
    for start in range(first, last, tile):
        n = min(tile, last - start)
        held = padded(n)
        outcomes = rows.y[start : start + n]
        for t in range(n):
            target[t] = outcomes[t]
        turn(rows.x, start, n, columns)
        for j in range(d):  # rows of zeros up to a whole group: they count for nothing
            for t in range(n, held):
                columns[j, t] = 0.0
        for k in range(m):
            for t in range(0, held, LANES):
                turned_dots(columns, t, point, k * d, eta, k)
        tile_derivatives(model.loss, eta, target, n, slopes, curvatures)
        for k in range(m):
            for t in range(held):
                slopes[k, t] *= per_gradient_cell
            for j in range(d):
                total = 0
                for t in range(held):
                    total += whole(slopes[k, t], columns[j, t])
                gradient[k * d + j] += total - held * SURPLUS
        if order == 2:
            for ka in range(m):
                for kb in range(ka + 1):
                    cells = ka * m + kb
                    for t in range(held):
                        curvatures[cells, t] *= per_hessian_cell
                    for j in range(0, d, 2):
                        beside = min(j + 1, d - 1)
                        for t in range(held):  # the column with the larger number is scaled: see ``quantised_product``
                            scaled[0, t] = curvatures[cells, t] * columns[j, t]
                            scaled[1, t] = curvatures[cells, t] * columns[beside, t]
                        for other in range(0, j + 1 if ka == kb else d, 2):
                            following = min(other + 1, d - 1)
                            found = _sum_second(scaled, columns, other, following, held)
                            row, column = ka * d + j, kb * d + other
                            hessian[row, column] += found[0]
                            if other < following:
                                hessian[row, column + 1] += found[1]
                            if j < beside:
                                hessian[row + 1, column] += found[2]
                            if j < beside and other < following:
                                hessian[row + 1, column + 1] += found[3]


@inlined
def _sum_second(scaled, columns, a, b, n):
    """Sums of both scaled columns times columns a and b: four sums at a time share what they read."""
    first_a, first_b, second_a, second_b = 0, 0, 0, 0
    for t in range(n):
        first, second, x_a, x_b = scaled[0, t], scaled[1, t], columns[a, t], columns[b, t]
        first_a += whole(first, x_a)
        first_b += whole(first, x_b)
        second_a += whole(second, x_a)
        second_b += whole(second, x_b)
    surplus = n * SURPLUS
    return first_a - surplus, first_b - surplus, second_a - surplus, second_b - surplus


@compiled
def sum_file_contributions(
    model, rows, files, classes, room, point, first, last, order, gradient_grid, hessian_grid, gradient, hessian
):
    """As ``sum_row_contributions``, of rows in files, read into ``rows`` a piece at a time, which stays in the cache.

    Returns WHOLE, or CUT_SHORT where a file ends too early, or NO_CLASS where a target is none of ``classes`` (0: any).
    """
    held, d = rows.x.shape
    size = rows.x.itemsize
    for start in range(first, last, held):
        n = min(held, last - start)
        if not read_all(files[0], rows.x.ctypes.data, n * d * size, start * d * size):
            return CUT_SHORT
        if not read_all(files[1], rows.y.ctypes.data, n * size, start * size):
            return CUT_SHORT
        if classes > 0:
            classed = 0
            for t in range(n):
                classed += (rows.y[t] >= 0) & (rows.y[t] < classes)
            if classed < n:
                return NO_CLASS
        sum_row_contributions(model, rows, room, point, 0, n, order, gradient_grid, hessian_grid, gradient, hessian)
    return WHOLE


@compiled
def sum_row_energies(model, rows, work, theta, first, last):
    return energy_sum(model, rows, work, theta, first, last)


@compiled
def sum_row_differences(model, rows, work, theta, proposal, bound):
    p = theta.size
    nothing = np.zeros(p)
    place = Place(theta, proposal, proposal - theta, nothing, nothing, np.zeros(4))
    return difference_sum(model, rows, work, place, bound)


def grid(largest: float, rows: int) -> float:
    """A power of two such that ``rows`` numbers up to ``largest`` add up within 54 bits, and one within 50."""
    bits = min(50, 54 - math.ceil(math.log2(max(rows, 2))))
    return 2.0 ** (math.ceil(math.log2(largest)) - bits)


def grids(table: GLMTable, rows: int) -> tuple[float, float]:
    """Cells for g_i = L′x and h_i = L″xxᵀ, from public constants."""
    half = float(table.support.half.max())
    return grid(table.l1 * half, rows), grid(table.l2 * half * half, rows)


# -- one stretch of rows: what is sent to where rows live --------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class DerivativeSums:
    """PRIVATE. G, and H below its diagonal, of some rows at ``point``, in one array of whole numbers."""

    model: Model
    point: np.ndarray
    order: int
    grids: tuple[float, float]

    @functools.cached_property
    def _table(self) -> Any:  # many stretches of rows are few microseconds long
        return self.model.table()

    def __call__(self, rows: Rows) -> np.ndarray:
        from dpfastmh.steps.compiled import SHIPPED

        found, room, sums = self._blank(rows.x.shape[1])
        SHIPPED.sum_contributions(
            self._table, rows, room, self.point, 0, rows.x.shape[0], self.order, *self.grids, *sums
        )
        return found

    def of_files(self, files: np.ndarray, buffers: Rows, classes: int, first: int, last: int) -> tuple[np.ndarray, int]:
        """The same of rows first, ..., last−1 of files, and what became of them (see ``sum_file_contributions``)."""
        from dpfastmh.steps.compiled import SHIPPED

        found, room, sums = self._blank(buffers.x.shape[1])
        end = SHIPPED.sum_files(
            self._table, buffers, files, classes, room, self.point, first, last, self.order, *self.grids, *sums
        )
        return found, end

    def _blank(self, d: int) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Zeros for the result, buffers, and the result seen as G and H."""
        p = self.point.size
        found = np.zeros(p + p * p if self.order == 2 else p, np.int64)
        return found, make_room(p // d, d), (found[:p], found[p:].reshape((p, p) if self.order == 2 else (0, 0)))


@dataclass(frozen=True, eq=False)
class EnergySum:
    """PRIVATE. Σ U_i(θ)/τ of some rows in whole cells, and 1 (0 where the model has no energies)."""

    model: Model
    theta: np.ndarray

    def __call__(self, rows: Rows) -> np.ndarray:
        if not self.model.has_energies:
            return np.zeros(2, np.int64)
        loops, work = _loops(self.model), _work(self.model, rows)
        found = loops.sum_energies(self.model.table(), rows, work, self.theta, 0, rows.x.shape[0])
        return np.array([found, 1], np.int64)


@dataclass(frozen=True, eq=False)
class DifferenceSum:
    """PRIVATE. Σ dU_i of some rows in whole cells, each held to ±b."""

    model: Model
    theta: np.ndarray
    proposal: np.ndarray
    bound: float

    def __call__(self, rows: Rows) -> np.ndarray:
        work = _work(self.model, rows)
        table = self.model.table()
        found = _loops(self.model).sum_differences(table, rows, work, self.theta, self.proposal, self.bound)
        return np.array([found], np.int64)


def _loops(model: Model) -> Any:
    from dpfastmh.steps.compiled import OWN, SHIPPED

    return SHIPPED if model.shipped else OWN


def _work(model: Model, rows: Rows) -> Any:
    return make_work(getattr(model, "predictors", 1), rows.x.shape[1])


# -- all rows, wherever they live --------------------------------------------------------------------------------------
def total(rows: Rows | RowEngine, part: Callable[[Rows], np.ndarray], threads: int | None = None) -> np.ndarray:
    """PRIVATE. The sum of ``part`` over stretches of all rows; whole numbers, so the same in any order."""
    if not isinstance(rows, Rows):
        return rows.total(part, threads)

    def stretch(first: int, last: int) -> np.ndarray:
        share = rows.share[first:last] if rows.share.size else rows.share
        y = rows.y[first:last] if rows.y.size else rows.y
        return part(rows._replace(x=rows.x[first:last], y=y, share=share))

    return np.sum(in_parts(stretch, rows.x.shape[0], threads), axis=0, dtype=np.int64)


def row_count(rows: Rows | RowEngine) -> int:
    """PRIVATE where units hold several rows."""
    return rows.x.shape[0] if isinstance(rows, Rows) else rows.count


def integer_sums(
    model: Model,
    rows: Rows | RowEngine,
    point: np.ndarray,
    *,
    order: int = 2,
    threads: int | None = None,
    public_rows: int | None = None,
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """PRIVATE. (G, H, their cells): integer sums at ``point``, H symmetric; the same whatever ``threads``."""
    cells = grids(model.table(), public_rows or row_count(rows))
    point, p = np.array(point, dtype=np.float64), point.size
    found = total(rows, DerivativeSums(model, point, order, cells), threads)
    gradient, hessian = found[:p], np.zeros((0, 0), np.int64)
    if order == 2:
        below = found[p:].reshape(p, p)
        hessian = np.tril(below) + np.tril(below, -1).T
    return gradient, hessian, *cells


def total_energy(model: Model, rows: Rows | RowEngine, theta: np.ndarray, *, threads: int | None = None) -> int:
    """PRIVATE. Σ U_i(θ)/τ in cells of 2⁻³², modulo 2⁶⁴; the same whatever ``threads``."""
    return int(total(rows, EnergySum(model, np.array(theta, dtype=np.float64)), threads)[0])


def in_parts(work: Any, n: int, threads: int | None) -> list[Any]:
    """``work(first, last)`` over stretches of the rows, on several threads."""
    count = min(threads or os.cpu_count() or 1, max(1, n // BLOCK))
    edges = [n * k // count for k in range(count + 1)]
    if count == 1:
        return [work(0, n)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, edges[:-1], edges[1:]))


def no_reference(p: int) -> Reference:
    """No expansion point: full batches and plain minibatches only."""
    return Reference(0, np.zeros(p), np.zeros(p), np.zeros((0, 0)), np.zeros((0, 0)), 1.0, 1.0)


def make_reference(
    model: Model,
    rows: Rows | RowEngine,
    point: np.ndarray,
    directions: np.ndarray,
    *,
    order: int = 2,
    threads: int | None = None,
    public_rows: int | None = None,
) -> Reference:
    """PRIVATE. The sums around ``point``, with H·direction ready for every direction of the proposal."""
    gradient, hessian, gradient_grid, hessian_grid = integer_sums(
        model, rows, point, order=order, threads=threads, public_rows=public_rows
    )
    inverse = 1.0 / model.temperature
    curvature = np.ascontiguousarray(hessian * (hessian_grid * inverse))
    image = curvature if directions.size == 0 or order < 2 else np.ascontiguousarray(directions @ curvature)
    return Reference(
        order,
        np.array(point, dtype=np.float64),
        gradient * (gradient_grid * inverse),
        curvature,
        image,
        gradient_grid,
        hessian_grid,
    )


def mode(
    model: Model, rows: Rows | RowEngine, start: np.ndarray | None = None, *, steps: int = 50
) -> tuple[np.ndarray, np.ndarray]:
    """PRIVATE. The posterior mode and the Hessian of −log π there, by halved Newton steps. For non-private work."""
    from dpfastmh.priors import energy_derivatives

    inverse = 1.0 / model.temperature
    theta = np.zeros(len(model.parameters)) if start is None else np.array(start, dtype=np.float64)

    def derivatives_at(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        g, h, g_cell, h_cell = integer_sums(model, rows, point)
        slope, curvature = energy_derivatives(model.prior_table, point)
        return g * (g_cell * inverse) + slope, h * (h_cell * inverse) + np.diag(curvature)

    gradient, hessian = derivatives_at(theta)
    for _ in range(steps):
        values, vectors = np.linalg.eigh(hessian)
        floor = max(values.max(), 1.0) * 1e-10
        move = -vectors @ ((vectors.T @ gradient) / np.maximum(np.abs(values), floor))
        while True:
            following, curvature = derivatives_at(theta + move)
            if np.linalg.norm(following) <= np.linalg.norm(gradient) or np.abs(move).max() < 1e-12:
                break
            move = 0.5 * move
        theta, gradient, hessian = theta + move, following, curvature
        if np.sqrt(abs(gradient @ np.linalg.solve(hessian, gradient))) < 1e-6:
            break
    return theta, hessian
