"""Rows that live elsewhere, as the compiled loop sees them: a ring of rows read ahead, and two calls for more.

The private row stream decides which rows are used, in which order, whatever the chain does; so they can be read in bulk
before they are needed. The ring holds the rows themselves: number k of the stream is in the k-th place handed out, and
its place is its row number as far as the model's operations are concerned. Two functions of ``dpfastmh.data.engine``
are called by address: ``refill`` when the ring is empty, and ``total`` for a sum over all rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dpfastmh.steps.chain import ENERGY, ENERGY_CELL, KNOWN, full_ratio, lost, take_rows
from dpfastmh.steps.elementary import compiled
from dpfastmh.steps.memory import pick_and_uniform, prefetch_entry, prefetch_row

ENERGIES, DIFFERENCES = 0, 1  # what ``total`` is asked for
NEXT, END, BROKEN = range(3)  # entries of ``clock``
SOON = 32  # places between a row that is used and one that is asked for

_I64 = ir.IntType(64)


class FarRows(NamedTuple):
    """PRIVATE. A ring of rows read ahead; the first six fields are those of ``Rows``."""

    x: np.ndarray
    y: np.ndarray
    share: np.ndarray  # (0,)
    alias: np.ndarray  # (0,)
    threshold: np.ndarray  # (0,)
    weight: float  # the number of all rows
    keep: np.ndarray  # uniforms that thin the rows
    clock: np.ndarray  # (3,) the next place, the end of those that are filled, whether reading failed
    asked: np.ndarray  # (2p + 1,) θ, θ′ and b of a sum
    answer: np.ndarray  # (2,) the sum, and whether the model has energies
    refill: int  # addresses of functions of one word
    total: int


@intrinsic
def call(typingctx, address, argument):
    """The function at an address, of one 64-bit word and without a result. It may change any array."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [_I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def read_at(typingctx, file, address, size, offset):
    """``pread`` of the C library: the number of bytes read, or −1."""

    def codegen(context, builder, signature, args):
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(_I64, [ir.IntType(32), byte, _I64, _I64])
        function = cgutils.get_or_insert_function(builder.module, kind, "pread")
        number = builder.trunc(args[0], ir.IntType(32))
        return builder.call(function, [number, builder.inttoptr(args[1], byte), args[2], args[3]])

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@compiled
def draw_rows(stream, count, index, keep):
    """The next rows of the private stream, just as the loop draws them from memory: numbers and thinning uniforms."""
    for k in range(index.size):
        index[k], keep[k] = pick_and_uniform(stream, count)


@compiled
def read_rows(file, width, order, index, first, last, address):
    """Row index[order[k]] of a file, of ``width`` bytes, to place order[k] behind ``address``, for first ≤ k < last.

    False where the file ends too early or cannot be read.
    """
    for k in range(first, last):
        place = order[k]
        if not read_all(file, address + place * width, width, index[place] * width):
            return False
    return True


@compiled
def read_all(file, goal, left, at):
    """``left`` bytes of a file from ``at`` on, to the address ``goal``; False where it ends before."""
    while left > 0:
        got = read_at(file, goal, left, at)
        if got <= 0:
            return False
        left, at, goal = left - got, at + got, goal + got
    return True


@take_rows.of(FarRows)
def _take_far_rows(rows, stream, work, start, stop):
    for t in range(start, stop):
        if rows.clock[NEXT] == rows.clock[END]:
            call(rows.refill, 0)
        place = rows.clock[NEXT]
        work.index[t] = place
        work.keep[t] = rows.keep[place]
        rows.clock[NEXT] = place + 1
        soon = min(place + SOON, rows.clock[END] - 1)
        prefetch_row(rows.x, soon)
        prefetch_entry(rows.y, soon)


@lost.of(FarRows)
def _is_lost(rows):
    return rows.clock[BROKEN] != 0


@full_ratio.of(FarRows)
def _far_full_ratio(rows, model, work, place, memory, bound):
    p = place.theta.size
    for j in range(p):
        rows.asked[j] = place.proposal[j]
    call(rows.total, ENERGIES)
    following = rows.answer[0]
    if rows.answer[1] == 0:
        for j in range(p):
            rows.asked[j] = place.theta[j]
            rows.asked[p + j] = place.proposal[j]
        rows.asked[2 * p] = bound
        call(rows.total, DIFFERENCES)
        return -ENERGY_CELL * rows.answer[0], 0
    if memory.integers[KNOWN] == 0:
        for j in range(p):
            rows.asked[j] = place.theta[j]
        call(rows.total, ENERGIES)
        memory.integers[ENERGY] = rows.answer[0]
        memory.integers[KNOWN] = 1
    return ENERGY_CELL * float(memory.integers[ENERGY] - following), following
