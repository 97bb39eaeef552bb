"""The coin that decides an accept bit: 64 random bits, both outcomes right to 2⁻⁶⁴ and to a relative 2⁻⁴⁹."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp, mpf
from numba import njit

from dpfastmh.steps.chain import barker_coin


@njit(error_model="numpy")
def compiled_coin(ratio, random):  # type: ignore[no-untyped-def]
    return barker_coin(ratio, random)


def coin(ratio: float, random: int) -> bool:
    return bool(compiled_coin(ratio, np.uint64(random)))


def chance(ratio: float, tossed: object = coin) -> Fraction:
    """P(heads) over all 2⁶⁴ words, by bisection: the coin is monotone in its word."""
    first = tossed(ratio, 0)  # type: ignore[operator]
    low, high = 0, 2**64  # words below ``low`` fall as the first one does
    if tossed(ratio, 2**64 - 1) == first:  # type: ignore[operator]
        return Fraction(int(first))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tossed(ratio, middle) == first else (low, middle)  # type: ignore[operator]
    return Fraction(high, 2**64) if first else 1 - Fraction(high, 2**64)


def worst(tossed: object = coin) -> float:
    """The largest error of either outcome in units of 2⁻⁶⁴ + 2⁻⁴⁹·(its probability)."""
    mp.prec = 200
    found = 0.0
    for ratio in [0.0, 1e-300, 1e-9, 0.3, 1.0, 5.0, 20.0, 36.0, 43.0, 44.5, 60.0, 1e6, *np.linspace(0.01, 45, 60)]:
        for signed in (ratio, -ratio):
            heads = chance(signed, tossed)
            for seen, sign in ((heads, -1), (1 - heads, 1)):
                true = 1 / (1 + mp.exp(sign * mpf(signed)))
                error = abs(mpf(seen.numerator) / seen.denominator - true)
                found = max(found, float(error / (mpf(2) ** -64 + true * mpf(2) ** -49)))
    return found


def test_both_outcomes_are_as_likely_as_promised() -> None:
    assert worst() <= 1.0


def test_a_coin_of_53_bits_is_caught() -> None:
    def coarse(ratio: float, random: int) -> bool:
        return (random >> 11) * 2.0**-53 < 1.0 / (1.0 + np.exp(min(-ratio, 700.0)))

    assert worst(coarse) > 100.0


def test_what_is_not_a_number_is_rejected() -> None:
    assert not coin(float("nan"), 0)
    assert not coin(float("nan"), 2**64 - 1)
    assert chance(0.0) == pytest.approx(0.5, abs=2**-60)
