"""A user's own energy in the compiled loop: one table class for each pair of functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher

from dpfastmh.steps.chain import ratio_from_differences, ratio_in_memory
from dpfastmh.steps.likelihood import (
    Bounds,
    bounds,
    changes,
    charged_for,
    gather,
    gather_reference,
    locate,
    remainders,
)

_numbers = itertools.count()


def table_class(difference: Callable[..., float], bound: Callable[..., float]) -> Any:
    """A new NamedTuple class whose operations call these two functions, compiled if they are not yet."""
    compiled_difference = difference if isinstance(difference, Dispatcher) else njit(error_model="numpy")(difference)
    compiled_bound = bound if isinstance(bound, Dispatcher) else njit(error_model="numpy")(bound)

    # Numba names machine code after its types: two energies under one name would run each other's code
    EnergyTable: Any = NamedTuple(f"EnergyTable{next(_numbers)}", [("inverse_temperature", float)])

    @gather.of(EnergyTable)
    def _gather(model, rows, work, start, stop, place, coordinate):
        pass

    @changes.of(EnergyTable)
    def _changes(model, rows, work, n, place):
        for t in range(n):
            found = compiled_difference(rows.x[work.index[t]], place.theta, place.proposal)
            work.change[t] = found * model.inverse_temperature

    ratio_in_memory.of(EnergyTable)(ratio_from_differences)

    @bounds.of(EnergyTable)
    def _bounds(model, place, coordinate, reference):
        """The user's bound, made symmetric whatever the user wrote: detailed balance must not rest on a claim."""
        there = compiled_bound(place.theta, place.proposal)
        back = compiled_bound(place.proposal, place.theta)
        first = max(there, back) if there >= 0.0 and back >= 0.0 else np.inf
        return Bounds(first * model.inverse_temperature, np.inf, np.inf)

    @charged_for.of(EnergyTable)
    def _charged_for(model, place, coordinate):
        """Differences are what the user's function returns: there is nothing to round before they are held to ±b."""
        return True, True, True

    @locate.of(EnergyTable)
    def _locate(model, place):
        pass

    @gather_reference.of(EnergyTable)
    def _gather_reference(model, rows, work, start, stop, place, coordinate, reference):
        pass

    @remainders.of(EnergyTable)
    def _remainders(model, rows, work, n, place, coordinate, reference, order):
        pass

    return EnergyTable
