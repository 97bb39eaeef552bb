"""exp, log and their relatives in plain arithmetic, so that the compiler runs them on whole tiles of rows at once.

The C library's functions are calls, and a loop that holds a call is not vectorised. These are branch-free and within
4 units in the last place over the stated ranges (tests compare them with mpmath-grade references). Nothing here uses
fast-math: a row's value never depends on its place in a tile, on the number of threads or on the partition it is in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.registry import CPUDispatcher
from numba.extending import intrinsic

# divisions follow IEEE, so that no branch stops vectorisation; unpacking a model's tables for a call from Python would
# be a fifth of all that is compiled
INNER = {"nopython": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class Inner(CPUDispatcher):
    """A function for compiled code. A way in from Python is made when Python first calls it: tests do."""

    def __call__(self, *arguments: Any) -> Any:
        return self._from_python(*arguments)

    @functools.cached_property
    def _from_python(self) -> Callable[..., Any]:
        inner = self
        return njit(lambda *arguments: inner(*arguments), error_model="numpy")  # type: ignore[no-any-return]


def compiled(function: Callable[..., Any]) -> Inner:
    """A function that other compiled code calls."""
    return Inner(function, targetoptions=INNER)


def inlined(function: Callable[..., Any]) -> Inner:
    """A helper that dissolves into the loop that calls it."""
    return Inner(function, targetoptions={**INNER, "forceinline": True})


LOG2E = 1.4426950408889634
LN2_HI = 6.93147180369123816490e-01
LN2_LO = 1.90821492927058770002e-10
EXP_LIMIT = 700.0


@intrinsic
def bits_of(typingctx, x):
    """The 64 bits of a double as an integer."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def from_bits(typingctx, n):
    """The double that these 64 bits spell."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def fused(typingctx, a, b, c):
    """a·b + c rounded once."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic
def nearest(typingctx, x):
    """The nearest integer, ties to even, as a double."""

    def codegen(context, builder, signature, args):
        function = builder.module.declare_intrinsic("llvm.rint", [ir.DoubleType()])
        return builder.call(function, args)

    return types.float64(types.float64), codegen


@inlined
def _expm1_reduced(r):
    """e^r − 1 for |r| ≤ ln2/2: r + r²·(Taylor to order 13; the remainder is below 2⁻⁵⁵ of the result)."""
    p = 1.0 / 6227020800.0
    p = fused(p, r, 1.0 / 479001600.0)
    p = fused(p, r, 1.0 / 39916800.0)
    p = fused(p, r, 1.0 / 3628800.0)
    p = fused(p, r, 1.0 / 362880.0)
    p = fused(p, r, 1.0 / 40320.0)
    p = fused(p, r, 1.0 / 5040.0)
    p = fused(p, r, 1.0 / 720.0)
    p = fused(p, r, 1.0 / 120.0)
    p = fused(p, r, 1.0 / 24.0)
    p = fused(p, r, 1.0 / 6.0)
    p = fused(p, r, 0.5)
    return fused(p, r * r, r)


@inlined
def exp(x):
    """e^x; x is held to ±700, where the result is still a normal number. NaN stays NaN."""
    x = min(max(x, -EXP_LIMIT), EXP_LIMIT)
    k = nearest(x * LOG2E)
    r = fused(-k, LN2_LO, fused(-k, LN2_HI, x))
    scale = from_bits((int(k) + 1023) << 52)
    return fused(_expm1_reduced(r), scale, scale)


@inlined
def expm1(x):
    """e^x − 1 without cancellation: 2^k (e^r − 1) + (2^k − 1)."""
    x = min(max(x, -EXP_LIMIT), EXP_LIMIT)
    k = nearest(x * LOG2E)
    r = fused(-k, LN2_LO, fused(-k, LN2_HI, x))
    scale = from_bits((int(k) + 1023) << 52)
    return fused(_expm1_reduced(r), scale, scale - 1.0)


@inlined
def log(x):
    """log x for positive normal x: x = 2^k m with m in [√½, √2), f = (m−1)/(m+1), log m = 2 artanh f."""
    n = bits_of(x)
    k = (n - 0x3FE6A09E667F3BCD) >> 52
    m = from_bits(n - (k << 52))
    f = (m - 1.0) / (m + 1.0)
    s = f * f
    p = 1.0 / 23.0
    p = fused(p, s, 1.0 / 21.0)
    p = fused(p, s, 1.0 / 19.0)
    p = fused(p, s, 1.0 / 17.0)
    p = fused(p, s, 1.0 / 15.0)
    p = fused(p, s, 1.0 / 13.0)
    p = fused(p, s, 1.0 / 11.0)
    p = fused(p, s, 1.0 / 9.0)
    p = fused(p, s, 1.0 / 7.0)
    p = fused(p, s, 1.0 / 5.0)
    p = fused(p, s, 1.0 / 3.0)
    # m − 1 is exact, and log m = (m−1) − f·((m−1) − 2 s p): the large term carries no rounding of the division
    head = m - 1.0
    tail = f * (head - 2.0 * s * p)
    return fused(float(k), LN2_HI, head - (tail - float(k) * LN2_LO))


@inlined
def log1p(x):
    """log(1 + x) for x > −1: the rounding of 1 + x is put back, first order being enough."""
    u = 1.0 + x
    return log(u) + (x - (u - 1.0)) / u


@inlined
def sigmoid(x):
    """1/(1 + e^−x)."""
    return 1.0 / (1.0 + exp(-x))


@inlined
def softplus(x):
    """log(1 + e^x), without overflow and without losing a small result."""
    return max(x, 0.0) + log1p(exp(-abs(x)))


@inlined
def softplus_change(x, step):
    """softplus(x + step) − softplus(x) without cancellation, for |step| ≤ 700.

    From the lower of the two points, a = |step| up: log1p((e^a − 1) σ(lower)), all terms positive.
    """
    lower = min(x, x + step)
    rise = log1p(expm1(abs(step)) * sigmoid(lower))
    return rise if step >= 0.0 else -rise
