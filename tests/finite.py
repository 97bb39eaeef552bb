"""Chains on a lattice: the library's own kernel, enumerated exactly, and the means to run it there.

A proposal stream of which every normal is ±z₀ turns the compiled chain, unchanged, into a Markov chain on a finite
lattice. ``transitions`` writes its matrix down: energy differences, remainders, bounds, the choice of batch, the rate,
the expansion, the prior and the acceptance probability come from the compiled functions of the library; the law of the
Poisson counts and their weights are restated in ``dpfastmh.theory``.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numba import carray, cfunc, njit, types
from randomgen.wrapper import UserBitGenerator

from dpfastmh import theory
from dpfastmh.methods import Sampler
from dpfastmh.priors import log_prior_change
from dpfastmh.steps import chain, likelihood
from dpfastmh.steps.elementary import compiled
from dpfastmh.steps.reference import total_energy

FloatArray = np.ndarray

# Of a word's 64 bits the normal uses 8 for the cell of its table, 1 for the sign and 52 for the place in the cell; the
# first three pick a direction. All but the sign and those three are held fixed.
_WORD = (1 << 59) | 7
_FREE = np.uint64(0xE000000000000100)


@cfunc(types.uint64(types.voidptr))
def _next_word(address):
    state = carray(address, (2,), np.uint64)
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state[1] ^ ((z ^ (z >> np.uint64(31))) & _FREE)


@cfunc(types.uint32(types.voidptr))
def _no_half_word(address):
    return np.uint32(0)


@cfunc(types.double(types.voidptr))
def _no_double(address):
    return 0.5


def sign_stream(seed: int) -> np.random.Generator:
    """Normals ±z₀ with fair signs, and fair picks among 1, 2, 4 or 8."""
    state = np.array([seed, _WORD], dtype=np.uint64)
    _KEPT_ALIVE.append(state)
    address = state.ctypes.data_as(ctypes.c_void_p)
    return np.random.Generator(UserBitGenerator.from_cfunc(_next_word, _next_word, _no_half_word, _no_double, address))


_KEPT_ALIVE: list[np.ndarray] = []  # the streams hold only the address of their state
SIZE = abs(sign_stream(1).standard_normal())  # z₀


def scale_for(length: float) -> float:
    """The scale for which scale·z₀ is ``length`` to the last bit."""
    near = length / SIZE
    for scale in (near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf)):
        if scale * SIZE == length:
            return float(scale)
    raise AssertionError(f"no scale makes a step of exactly {length}")


def on_lattice(sampler: Sampler, low: Sequence[float], high: Sequence[float], seed: int) -> Sampler:
    """The same sampler, its proposals ±z₀·scale and held to a box."""
    sampler.proposal = sampler.proposal._replace(low=np.array(low, float), high=np.array(high, float))
    sampler._streams = sampler._streams._replace(proposals=sign_stream(seed))
    return sampler


# -- one step, piece by piece ----------------------------------------------------------------------------------------
class Move(NamedTuple):
    delta: FloatArray
    probability: float
    coordinate: int
    direction: int
    normal: FloatArray


def moves_of(proposal: chain.Proposal) -> list[Move]:
    """Every move that a proposal with normals ±z₀ can make."""
    size = proposal.scale * SIZE
    q, p = size.size, proposal.directions.shape[1]
    signs = (1.0, -1.0)
    if proposal.kind in (chain.JOINT, chain.BASIS):
        axes = np.eye(p) if proposal.kind == chain.JOINT else proposal.directions
        normals = [np.array(s) * size for s in itertools.product(signs, repeat=q)]
        return [Move(normal @ axes, 2.0**-q, -1, -1, normal) for normal in normals]
    axes = np.eye(p) if proposal.kind == chain.COORDINATE else proposal.directions
    found = []
    for k, sign in itertools.product(range(q), signs):
        normal = np.zeros(q)
        normal[k] = sign * size[k]
        found.append(Move(normal[k] * axes[k], 0.5 / q, k if proposal.kind == chain.COORDINATE else -1, k, normal))
    return found


@compiled
def _data_pieces(model, rows, work, place, coordinate, reference, out):
    """dU_i and the remainders of both orders; the bounds."""
    likelihood.locate(model, place)
    limit = likelihood.bounds(model, place, coordinate, reference)
    n = rows.x.shape[0]
    for t in range(n):
        work.index[t] = t
    likelihood.gather(model, rows, work, 0, n, place, coordinate)
    likelihood.changes(model, rows, work, n, place)
    for t in range(n):
        out[0, t] = work.change[t]
    for order in range(1, reference.order + 1):
        likelihood.gather_reference(model, rows, work, 0, n, place, coordinate, reference)
        likelihood.remainders(model, rows, work, n, place, coordinate, reference, order)
        for t in range(n):
            out[order, t] = work.change[t]
    return limit.first, limit.order1, limit.order2


@njit
def _choose(rule, limit):
    return chain.choose_batch(rule, limit)


@njit
def _rate(rule, bound, first):
    return chain.rate_per_row(rule, bound, first)


@njit
def _expansion(reference, memory, place, coordinate, direction, order):
    return chain.expansion_ratio(reference, memory, place, coordinate, direction, order)


@njit
def _prior(prior, theta, proposal):
    return log_prior_change(prior, theta, proposal)


@njit
def _chances(kind, ratios, variance):
    out = np.empty(ratios.size)
    for k in range(ratios.size):
        out[k] = chain.acceptance_probability(kind, ratios[k], variance)
    return out


@compiled
def weights(rows, work, index, keep, change, bound, rate):
    """What ``_weigh`` makes of single rows: the summand of each, 0 for a row not kept."""
    out = np.empty(index.size)
    for t in range(index.size):
        work.index[0], work.keep[0], work.change[0] = index[t], keep[t], change[t]
        out[t] = chain.WEIGHT_CELL * chain._weigh(rows, work, 1, bound, rate)
    return out


class Pieces(NamedTuple):
    """What a step at θ towards θ′ would compute from the records."""

    batch: int
    differences: FloatArray  # dU_i or remainders
    bound: float
    rate: float
    expansion: float  # already with the sign it has in ℓ
    prior: float
    first: float  # bound on |dU_i|
    changes: FloatArray  # dU_i in any case


def pieces(sampler: Sampler, theta: FloatArray, move: Move) -> Pieces:
    """The compiled functions, called for one move."""
    place, memory = sampler.init(theta)
    place.delta[:] = move.delta
    place.proposal[:] = place.theta + move.delta
    place.offset_next[:] = place.offset + move.delta
    memory.normal[:] = move.normal
    rows, reference = sampler._rows, sampler._reference
    n = rows.x.shape[0]
    out = np.zeros((3, n))
    limit = likelihood.Bounds(
        *_data_pieces(sampler._table, rows, sampler._work, place, move.coordinate, reference, out)
    )
    batch = _choose(sampler.rule, limit)
    order = max(batch - chain.MINIBATCH, 0)
    bound = limit[order]
    expansion = _expansion(reference, memory, place, move.coordinate, move.direction, order) if order else 0.0
    return Pieces(
        batch,
        out[order],
        bound,
        _rate(sampler.rule, bound, limit.first),
        expansion,
        _prior(sampler.model.prior_table, place.theta, place.proposal),
        limit.first,
        out[0],
    )


def ratio_law(sampler: Sampler, theta: FloatArray, move: Move) -> theory.RatioLaw:
    """The law of ℓ, prior included, for one move; every difference is checked against its bound on the way."""
    found = pieces(sampler, theta, move)
    assert found.batch >= 0
    assert np.all(np.abs(found.changes) <= found.first)
    if found.batch == chain.FULL:
        return theory.certain(-found.changes.sum() + found.prior)
    share = sampler._rows.share if sampler._rows.share.size else 1.0
    law = theory.minibatch_law(found.differences, share * found.bound, share * found.rate)
    return law.shifted(found.expansion + found.prior)


def integer_law(sampler: Sampler, theta: FloatArray, move: Move) -> theory.RatioLaw:
    """The full batch as it is computed: from whole cells of energy."""
    found = pieces(sampler, theta, move)
    before, after = (total_energy(sampler.model, sampler._rows, at) for at in (theta, theta + move.delta))
    return theory.certain(chain.ENERGY_CELL * (before - after) + found.prior)


# -- the chain as a matrix -------------------------------------------------------------------------------------------
def lattice(*axes: Sequence[float]) -> FloatArray:
    """All points of a grid, one to a row; every axis ascends."""
    return np.array(list(itertools.product(*axes)), dtype=np.float64)


Law = Callable[[Sampler, FloatArray, Move], theory.RatioLaw]


class Laws(NamedTuple):
    """The laws of ℓ for every pair of states that a move joins; acceptance and laziness come later."""

    states: FloatArray
    entries: list[tuple[int, int, float, theory.RatioLaw]]  # from, to, probability of the proposal, law

    def transitions(self, balance: theory.Balance, laziness: float = 1.0) -> FloatArray:
        """The transition matrix."""
        n = len(self.states)
        flow = np.zeros((n, n))
        for i, j, probability, law in self.entries:
            flow[i, j] += probability * law.acceptance(balance)
        return theory.transition_matrix(np.ones((n, n)), flow, laziness)


def laws_of(sampler: Sampler, states: FloatArray, law: Law = ratio_law) -> Laws:
    """``law`` for all moves between the states; moves to elsewhere are rejected, as the parameter box rejects them."""
    number = {tuple(state): k for k, state in enumerate(states)}
    entries = []
    for i, state in enumerate(states):
        for move in moves_of(sampler.proposal):
            j = number.get(tuple(state + move.delta))
            if j is not None:
                entries.append((i, j, move.probability, law(sampler, state, move)))
    return Laws(states, entries)


def compiled_balance(rule: chain.Rule) -> theory.Balance:
    """The library's own acceptance probability."""
    return lambda ratios: _chances(rule.acceptance, ratios, rule.variance)


def transitions(sampler: Sampler, states: FloatArray, law: Law = ratio_law) -> FloatArray:
    """The matrix of the chain that ``sampler`` runs."""
    return laws_of(sampler, states, law).transitions(compiled_balance(sampler.rule), sampler.rule.laziness)


def batches_used(sampler: Sampler, states: FloatArray) -> set[int]:
    """Which log-ratios the public rule chooses between these states."""
    number = {tuple(state) for state in states}
    return {
        pieces(sampler, state, move).batch
        for state in states
        for move in moves_of(sampler.proposal)
        if tuple(state + move.delta) in number
    }


# -- running it ------------------------------------------------------------------------------------------------------
def visits(sampler: Sampler, states: FloatArray, steps: int) -> FloatArray:
    """How often the running chain went from one state to another, by ``Sampler.run``."""
    state = sampler.init(states[len(states) // 2])
    _, draws, _ = sampler.run(state, steps)
    draws = np.vstack([states[len(states) // 2], draws])
    path = np.zeros(len(draws), int)
    for axis in range(states.shape[1]):
        levels = np.unique(states[:, axis])
        path = path * levels.size + np.minimum(np.searchsorted(levels, draws[:, axis]), levels.size - 1)
    assert np.array_equal(states[path], draws), "the chain left the lattice"
    count = len(states)
    return np.bincount(path[:-1] * count + path[1:], minlength=count * count).reshape(count, count).astype(float)
