"""The compiled entry points, in two editions.

For the library's own models the machine code is kept on disk: Numba's key for it holds ``source_stamp``, so that any
change to any source file makes a new entry. A user's model is compiled once in each process and never written down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import njit

from dpfastmh.steps.chain import compile_advance, refresh
from dpfastmh.steps.dispatch import source_stamp
from dpfastmh.steps.feed import draw_rows, read_rows
from dpfastmh.steps.reference import (
    sum_file_contributions,
    sum_row_contributions,
    sum_row_differences,
    sum_row_energies,
)


class Loops(NamedTuple):
    advance: Callable[..., Any]
    settle: Callable[..., Any]
    sum_contributions: Callable[..., Any]
    sum_files: Callable[..., Any]
    sum_energies: Callable[..., Any]
    sum_differences: Callable[..., Any]
    draw: Callable[..., Any]
    read: Callable[..., Any]


def _editions(cache: bool) -> Loops:
    stamp = source_stamp() if cache else 0
    compile_loop = njit(cache=cache, nogil=True, error_model="numpy")

    @compile_loop
    def settle(model, reference, place, memory):
        stamp  # noqa: B018
        refresh(model, reference, place, memory)

    @compile_loop
    def sum_contributions(model, rows, room, point, first, last, order, gradient_grid, hessian_grid, gradient, hessian):
        stamp  # noqa: B018
        grids = gradient_grid, hessian_grid
        sum_row_contributions(model, rows, room, point, first, last, order, *grids, gradient, hessian)

    @compile_loop
    def sum_files(
        model, rows, files, classes, room, point, first, last, order, gradient_grid, hessian_grid, gradient, hessian
    ):
        stamp  # noqa: B018
        where, grids = (files, classes, room, point, first, last), (gradient_grid, hessian_grid)
        return sum_file_contributions(model, rows, *where, order, *grids, gradient, hessian)

    @compile_loop
    def sum_energies(model, rows, work, theta, first, last):
        stamp  # noqa: B018
        return sum_row_energies(model, rows, work, theta, first, last)

    @compile_loop
    def sum_differences(model, rows, work, theta, proposal, bound):
        stamp  # noqa: B018
        return sum_row_differences(model, rows, work, theta, proposal, bound)

    @compile_loop
    def draw(stream, count, index, keep):
        stamp  # noqa: B018
        draw_rows(stream, count, index, keep)

    @compile_loop
    def read(file, width, order, index, first, last, address):
        stamp  # noqa: B018
        return read_rows(file, width, order, index, first, last, address)

    sums = sum_contributions, sum_files, sum_energies, sum_differences
    return Loops(compile_advance(cache, stamp), settle, *sums, draw, read)


SHIPPED = _editions(cache=True)
OWN = _editions(cache=False)
