"""Sums over all rows: the gradient G, the Hessian H and the energy, as integers on public grids.

Each record's g_i and h_i is rounded to a grid that depends on public constants alone, and whole numbers are added: the
sums are the same in any order, on any number of threads and from any partition of the rows. The chain's remainders use
the same rounded g_i and h_i, so the rounding costs no exactness.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfastmh.steps.chain import energy_sum
from dpfastmh.steps.elementary import compiled, nearest
from dpfastmh.steps.likelihood import GLMTable, Reference, Rows, derivatives, make_work, predictors
from dpfastmh.steps.memory import dot

if TYPE_CHECKING:
    from dpfastmh.models import Model

BLOCK = 1 << 16


@compiled
def sum_row_contributions(model, rows, point, first, last, order, gradient_grid, hessian_grid, gradient, hessian):
    """Add rows first, ..., last−1 to the integer sums; H on and below the diagonal."""
    d = rows.x.shape[1]
    m = predictors(model.loss)
    eta, slopes, curvatures = np.empty((m, 1)), np.empty(m), np.empty((m, m))
    target = np.empty(1)
    row = np.empty(d)
    for i in range(first, last):
        for k in range(m):
            eta[k, 0] = dot(rows.x, i, point[k * d : (k + 1) * d])
        target[0] = rows.y[i]
        derivatives(model.loss, eta, target, 0, slopes, curvatures)
        for j in range(d):
            row[j] = rows.x[i, j]
        for k in range(m):
            s = slopes[k] / gradient_grid
            for j in range(d):
                gradient[k * d + j] += int(nearest(s * row[j]))
        if order == 2:
            for ka in range(m):
                for kb in range(ka + 1):
                    c = curvatures[ka, kb] / hessian_grid
                    for j in range(d):
                        stop = j + 1 if ka == kb else d
                        for other in range(stop):
                            hessian[ka * d + j, kb * d + other] += int(nearest(c * (row[j] * row[other])))


@compiled
def sum_row_energies(model, rows, work, theta, first, last):
    return energy_sum(model, rows, work, theta, first, last)[0]


def grid(largest: float, rows: int) -> float:
    """A power of two such that ``rows`` numbers up to ``largest`` add up within 54 bits, and one within 50."""
    bits = min(50, 54 - math.ceil(math.log2(max(rows, 2))))
    return 2.0 ** (math.ceil(math.log2(largest)) - bits)


def grids(table: GLMTable, rows: int) -> tuple[float, float]:
    """Cells for g_i = L′x and h_i = L″xxᵀ, from public constants."""
    half = float(table.support.half.max())
    return grid(table.l1 * half, rows), grid(table.l2 * half * half, rows)


def integer_sums(
    model: Model,
    rows: Rows,
    point: np.ndarray,
    *,
    order: int = 2,
    threads: int | None = None,
    public_rows: int | None = None,
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """PRIVATE. (G, H, their cells): integer sums at ``point``, H symmetric; the same whatever ``threads``."""
    from dpfastmh.steps.compiled import SHIPPED

    table, p, n = model.table(), point.size, rows.x.shape[0]
    gradient_grid, hessian_grid = grids(table, public_rows or n)
    point = np.ascontiguousarray(point, dtype=np.float64)

    def part(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        g = np.zeros(p, np.int64)
        h = np.zeros((p, p) if order == 2 else (0, 0), np.int64)
        SHIPPED.sum_contributions(table, rows, point, first, last, order, gradient_grid, hessian_grid, g, h)
        return g, h

    parts = in_parts(part, n, threads)
    gradient = sum(g for g, _ in parts)
    hessian = sum(h for _, h in parts)
    if order == 2:
        hessian = np.tril(hessian) + np.tril(hessian, -1).T
    return gradient, hessian, gradient_grid, hessian_grid


def total_energy(model: Model, rows: Rows, theta: np.ndarray, *, threads: int | None = None) -> int:
    """PRIVATE. Σ U_i(θ)/τ in cells of 2⁻³², modulo 2⁶⁴; the same whatever ``threads``."""
    from dpfastmh.steps.compiled import OWN, SHIPPED

    loops, table = SHIPPED if model.shipped else OWN, model.table()
    theta = np.ascontiguousarray(theta, dtype=np.float64)
    width = getattr(model, "predictors", 1)

    def part(first: int, last: int) -> int:
        return int(loops.sum_energies(table, rows, make_work(width, rows.x.shape[1]), theta, first, last))

    total = sum(in_parts(part, rows.x.shape[0], threads)) % 2**64
    return total - 2**64 if total >= 2**63 else total


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
    rows: Rows,
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
    model: Model, rows: Rows, start: np.ndarray | None = None, *, steps: int = 50
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
