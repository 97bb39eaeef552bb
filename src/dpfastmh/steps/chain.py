"""The transition, compiled: one loop for every model, proposal, log-ratio and acceptance rule.

A step at θ proposes θ′ = θ + δ from a symmetric law and then, with everything public decided first,

1. *public*: rejects moves out of the parameter box, computes the bounds b of the move, chooses the batch;
2. *laziness*: with probability 1 − κ stays, touching no record;
3. *log-ratio* ℓ of the target at θ′ and θ: from the full batch, from a Poisson minibatch, or from control variates;
4. accepts with probability g(ℓ), where g(ℓ) = e^ℓ g(−ℓ).

**Poisson minibatch.** Record i enters s_i ~ Poisson(r + (dU_i + b)/2) times, dU_i = U_i(θ′) − U_i(θ) ∈ [−b, b], and
ℓ = Σ s_i log((2r + b − dU_i)/(2r + b + dU_i)). Exact: under the reverse move dU_i changes sign, the rates exchange
their roles, and Π P(s | forward)/Π P(s | reverse) = exp(−Σ dU_i)^{-1}·e^{-ℓ}, the normalisers cancelling. To draw it,
B ~ Poisson(N(r + b)), each of the B rows is uniform, and kept with probability (r + (dU + b)/2)/(r + b). With bounds
c_i b by record, r_i = c_i r; rows are drawn uniformly and thinned further, or in proportion to c_i by an alias table.

**Control variates.** Around a fixed reference θ̂ the sums G = Σ g_i and H = Σ h_i give the expansion of Σ dU_i at the
cost of a dot product; only the remainders, with their far smaller bound, are left to the minibatch.

The choice of batch looks at bounds and the public size alone, which are symmetric in θ and θ′, so that the mixture of
exact kernels is exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from dpfastmh.priors import log_prior_change, log_prior_change_at
from dpfastmh.privacy.accept_bit import CostTable, look_up
from dpfastmh.steps.dispatch import generic, generic_inlined
from dpfastmh.steps.elementary import compiled, exp, inlined, log, nearest
from dpfastmh.steps.likelihood import (
    TILE,
    Rows,
    bounds,
    changes,
    charged_for,
    energies,
    gather,
    gather_reference,
    locate,
    padded,
    remainders,
)
from dpfastmh.steps.memory import borrow, pick, pick_and_uniform, prefetch_entry, prefetch_row, uniform, word

JOINT, BASIS, COORDINATE, DIRECTIONS = 0, 1, 2, 3
METROPOLIS, BARKER, PENALTY = 0, 1, 2
FULL, MINIBATCH, ORDER1, ORDER2 = 0, 1, 2, 3
ENERGY_CELL = 2.0**-32
WEIGHT_CELL = 2.0**-48
GROUP = 8  # rows asked for and rows read take turns in groups of this size
REFRESH = 1024  # accepted moves between recomputations of what is updated by increments


class Proposal(NamedTuple):
    """PUBLIC. How moves are drawn."""

    kind: int
    scale: np.ndarray  # one per coordinate, or per direction
    directions: np.ndarray  # (q, p) rows; (0, p) where moves follow the axes
    low: np.ndarray  # parameter box, or empty
    high: np.ndarray


class Rule(NamedTuple):
    """PUBLIC. How a move is judged."""

    acceptance: int
    variance: float  # of the penalty noise
    laziness: float  # κ: the probability of looking at the data at all
    allowed: np.ndarray  # (4,) bool: FULL, MINIBATCH, ORDER1, ORDER2
    rate: float  # least rate per row r (λ/N)
    ratio: float  # x: r is at least b/x
    chi: float  # r is at least χ N b²
    thrift: float  # largest share by which an expansion's remainder may widen the privacy shift; 0: no such limit
    size: float  # public number of rows, for the choice of batch


class Meter(NamedTuple):
    """PUBLIC. What a step costs at the filter's order, and how far the chain may go. Without a claim: not active."""

    active: bool
    limit: float
    full: CostTable
    minibatch: CostTable
    expanded: CostTable  # both orders of control variates, at ratio 1
    widening: float  # relative allowance for rounding, see ``privacy.boundary``
    reach: float  # moves with a larger bound are never made; finite


class Streams(NamedTuple):
    """Four independent random streams: only the proposals are public."""

    proposals: np.random.Generator
    counts: np.random.Generator
    rows: np.random.Generator
    acceptance: np.random.Generator


class Memory(NamedTuple):
    """PRIVATE. What the chain keeps between steps beside its place."""

    curvature: np.ndarray  # v = H(θ − θ̂)
    curvature_step: np.ndarray  # Hδ
    normal: np.ndarray  # (q,) the proposal's normals
    integers: np.ndarray  # (7,) by the names below the class
    tried: np.ndarray  # per coordinate or direction
    accepted: np.ndarray
    spent: np.ndarray  # (1,) cost so far; public, as are the two counts above
    farthest: np.ndarray  # (1,) the largest s(θ) since the last refresh; public


# Σ U_i(θ) in whole cells and whether it is known; steps; steps that looked at data; rows read by minibatches; full
# batches; accepted moves since the last refresh
ENERGY, KNOWN, STEPS, EVALUATED, TOUCHED, FULLS, SINCE = range(7)


@inlined
def acceptance_probability(kind, ratio, variance):
    """g(ℓ): Metropolis min(1, e^ℓ); Barker 1/(1 + e^−ℓ); penalty E min(1, e^{ℓ+ξ}) with ξ ~ N(−v/2, v), which is
    Φ((ℓ − v/2)/√v) + e^ℓ Φ(−(ℓ + v/2)/√v)."""
    if kind == METROPOLIS:
        return exp(min(ratio, 0.0))
    if kind == BARKER:
        return 1.0 / (1.0 + exp(-ratio))
    root = math.sqrt(2.0 * variance)
    rising = 0.5 * math.erfc(-(ratio - 0.5 * variance) / root)
    far = (ratio + 0.5 * variance) / root
    # e^ℓ Φ(−·) under- and overflows in its factors long before the product does; beyond 25 both terms sum to 1 or e^ℓ
    if far > 25.0:
        return 1.0
    return min(1.0, rising + math.exp(min(ratio, 700.0)) * 0.5 * math.erfc(far))


@inlined
def barker_coin(ratio, random):
    """True with probability 1/(1 + e^−ℓ), from a random word of 64 bits.

    The rarer outcome has p = 1/(1 + e^|ℓ|) ≤ ½, known to a few units in its last place however small it is, and is
    drawn as word < ⌊p·2⁶⁴⌋: neither outcome's probability is off by more than 2⁻⁶⁴, beside an error of ℓ below 2⁻⁴⁹.
    """
    if ratio != ratio:
        return False
    rare = 1.0 / (1.0 + exp(abs(ratio)))
    happens = random < np.uint64(rare * 18446744073709551616.0)
    return happens if ratio < 0.0 else not happens


@inlined
def draw_move(proposal, stream, normal, place):
    """Writes δ, θ′ and u′; returns which coordinate moves (−1: all) and which direction was used (−1: all)."""
    p = place.theta.size
    if proposal.kind == COORDINATE:
        j = pick(stream, p)
        move = proposal.scale[j] * stream.standard_normal()
        place.delta[j] = move
        place.proposal[j] = place.theta[j] + move
        place.offset_next[j] = place.offset[j] + move
        return j, j
    if proposal.kind == DIRECTIONS:
        k = pick(stream, proposal.directions.shape[0])
        move = proposal.scale[k] * stream.standard_normal()
        normal[k] = move
        for j in range(p):
            place.delta[j] = move * proposal.directions[k, j]
        direction = k
    else:
        direction = -1
        for k in range(proposal.scale.size):
            normal[k] = proposal.scale[k] * stream.standard_normal()
        if proposal.kind == JOINT:
            for j in range(p):
                place.delta[j] = normal[j]
        else:
            for j in range(p):
                place.delta[j] = 0.0
            for k in range(proposal.scale.size):
                for j in range(p):
                    place.delta[j] += normal[k] * proposal.directions[k, j]
    for j in range(p):
        place.proposal[j] = place.theta[j] + place.delta[j]
        place.offset_next[j] = place.offset[j] + place.delta[j]
    return -1, direction


@inlined
def inside(proposal, place, coordinate):
    """Is θ′ in the parameter box? A public question."""
    if proposal.low.size == 0:
        return True
    if coordinate >= 0:
        at = place.proposal[coordinate]
        return proposal.low[coordinate] <= at <= proposal.high[coordinate]
    for j in range(place.theta.size):  # noqa: SIM110 - compiled code has no generator expressions
        if not proposal.low[j] <= place.proposal[j] <= proposal.high[j]:
            return False
    return True


@inlined
def rate_per_row(rule, bound, first):
    """r = max(λ/N, b/x, χ N b²): the rows drawn beyond what the bound asks for.

    ``first`` is the bound on the whole energy difference. With ``thrift`` s > 0 the ratio x is lowered until
    x·b ≤ s·first, so that the Poisson part of an expansion adds at most the share s/2 to the step's privacy shift.
    """
    ratio = rule.ratio
    if rule.thrift > 0.0 and bound < first:
        ratio = min(ratio, rule.thrift * first / bound)
    return max(rule.rate, max(bound / ratio, rule.chi * rule.size * bound * bound))


@inlined
def choose_batch(rule, limit, energies_known=True, gradient_known=True, curvature_known=True):
    """The allowed batch with the fewest expected rows, N(r + b) against N; −1 when none is possible.

    What is known (``charged_for``) is the same for the reverse move, as all else here: both directions choose alike.
    """
    best, fewest = -1, np.inf
    for batch in (ORDER2, ORDER1, MINIBATCH):
        known = batch == MINIBATCH or (gradient_known if batch == ORDER1 else curvature_known)
        if rule.allowed[batch] and known:
            bound = limit.first
            if batch == ORDER1:
                bound = limit.order1
            elif batch == ORDER2:
                bound = limit.order2
            expected = rule.size * (rate_per_row(rule, bound, limit.first) + bound)
            if expected < fewest:
                best, fewest = batch, expected
    # 1e9 nats are 2⁶² cells of energy: beyond that the difference of two energies would not fit into a word
    if rule.allowed[FULL] and energies_known and rule.size <= fewest and rule.size * limit.first < 1e9:
        best = FULL
    return best


@inlined
def _next_row(rows, stream, work, slot):
    """Draw the row that will be used a tile from now, and ask memory for it."""
    i, keep = pick_and_uniform(stream, rows.x.shape[0])
    if rows.alias.size > 0 and uniform(stream) >= rows.threshold[i]:
        i = rows.alias[i]
    work.ahead[slot] = i
    work.ahead_keep[slot] = keep
    prefetch_row(rows.x, i)
    prefetch_entry(rows.y, i)


@generic_inlined
def take_rows(rows, stream, work, start, stop):
    """Hand out the next rows of the private row stream; it never depends on the state."""


@take_rows.of(Rows)
def _take_rows(rows, stream, work, start, stop):
    slot = work.place[0]
    if work.ahead[0] < 0:
        for fresh in range(TILE):
            _next_row(rows, stream, work, fresh)
    for t in range(start, stop):
        work.index[t] = work.ahead[slot]
        work.keep[t] = work.ahead_keep[slot]
        _next_row(rows, stream, work, slot)
        slot = (slot + 1) % TILE
    work.place[0] = slot


@inlined
def _weigh(rows, work, n, bound, rate):
    """Σ over the tile's kept rows of log((2r + b − dU)/(2r + b + dU)), every dU held to ±b, in whole cells of 2⁻⁴⁸.

    Whole numbers, so that what the other rows add up to never depends on one row: the privacy proof conditions on it.
    """
    shared, by_alias = rows.share.size > 0, rows.alias.size > 0
    if shared:
        for t in range(n):
            work.y[t] = rows.share[work.index[t]]
    total = 0
    for t in range(padded(n)):
        c = work.y[t] if shared else 1.0
        b, r = c * bound, c * rate
        change = work.change[t]
        change = min(max(change, -b), b) if change == change else b
        ceiling = r + b if by_alias else rate + bound
        kept = (t < n) & (work.keep[t] * ceiling < r + 0.5 * (change + b))
        middle = 2.0 * r + b
        weight = log((middle - change) / (middle + change))
        total += int(nearest(weight / WEIGHT_CELL)) if kept else 0
    return total


@inlined
def minibatch_ratio(model, rows, work, streams, place, coordinate, bound, rate, reference, order):
    """ℓ by Poisson splitting of the energy differences, or of what an expansion leaves of them; and the rows read."""
    count = streams.counts.poisson(rows.weight * (rate + bound))
    # the sum in two words, upper·2³² + lower: 63 bits of cells are only 32,768 nats, which a poor move can exceed
    upper, lower, done = 0, 0, 0
    while done < count:
        n = min(TILE, count - done)
        for start in range(0, n, GROUP):
            stop = min(n, start + GROUP)
            take_rows(rows, streams.rows, work, start, stop)
            if order > 0:
                gather_reference(model, rows, work, start, stop, place, coordinate, reference)
            else:
                gather(model, rows, work, start, stop, place, coordinate)
        if order > 0:
            remainders(model, rows, work, n, place, coordinate, reference, order)
        else:
            changes(model, rows, work, n, place)
        lower += _weigh(rows, work, n, bound, rate)
        upper += lower >> 32
        lower &= 0xFFFFFFFF
        done += n
    return upper * (WEIGHT_CELL * 2.0**32) + lower * WEIGHT_CELL, count


@inlined
def step_cost(meter, rule, batch, limit):
    """The Rényi cost of this step's accept bit, whatever the lazy coin says: a function of public bounds alone."""
    first = limit.first * (1.0 + meter.widening)
    if batch == FULL:
        return look_up(meter.full, first, 0.0)
    if batch == MINIBATCH:
        return look_up(meter.minibatch, first, 0.0)
    bound = limit.order2 if batch == ORDER2 else limit.order1
    ratio = bound / rate_per_row(rule, bound, limit.first) if bound > 0.0 else 1.0  # a move of no length: 0/0
    return look_up(meter.expanded, first, ratio * bound)


@compiled
def energy_sum(model, rows, work, theta, first, last):
    """Σ over rows of the energy in whole cells of 2⁻³²: the same integer in any order. Sums may wrap; differences of
    sums do not, see ``choose_batch``."""
    total = 0
    for start in range(first, last, TILE):
        n = min(TILE, last - start)
        energies(model, rows, work, start, n, theta)
        for t in range(n):
            total += int(nearest(work.change[t] / ENERGY_CELL))
    return total


@compiled
def difference_sum(model, rows, work, place, bound):
    """Σ dU_i in whole cells over all of ``rows``, for models that have no energies: each dU_i held to ±b."""
    total = 0
    for start in range(0, rows.x.shape[0], TILE):
        n = min(TILE, rows.x.shape[0] - start)
        for t in range(n):
            work.index[t] = start + t
        gather(model, rows, work, 0, n, place, -1)
        changes(model, rows, work, n, place)
        for t in range(n):
            b = bound * rows.share[start + t] if rows.share.size > 0 else bound
            change = work.change[t]
            change = min(max(change, -b), b) if change == change else b
            total += int(nearest(change / ENERGY_CELL))
    return total


@generic
def full_ratio(rows, model, work, place, memory, bound):
    """ℓ = Σ U_i(θ) − Σ U_i(θ′), the first sum kept from the last step where it can be; and the next energy."""


@full_ratio.of(Rows)
def _full_ratio(rows, model, work, place, memory, bound):
    return ratio_in_memory(model, rows, work, place, memory, bound)


@generic
def ratio_in_memory(model, rows, work, place, memory, bound):
    """``full_ratio`` of rows in memory: from energies, unless the model has differences only."""


@ratio_in_memory.of(tuple)
def _from_energies(model, rows, work, place, memory, bound):
    following = energy_sum(model, rows, work, place.proposal, 0, rows.x.shape[0])
    if memory.integers[KNOWN] == 0:
        memory.integers[ENERGY] = energy_sum(model, rows, work, place.theta, 0, rows.x.shape[0])
        memory.integers[KNOWN] = 1
    return ENERGY_CELL * float(memory.integers[ENERGY] - following), following


def ratio_from_differences(model, rows, work, place, memory, bound):
    """For models without energies, which say so by ``ratio_in_memory.of``."""
    return -ENERGY_CELL * difference_sum(model, rows, work, place, bound), 0


@generic_inlined
def lost(rows):
    """Could rows that live elsewhere not be had? Then the step counts for nothing, and the loop ends before it."""


@lost.of(Rows)
def _never_lost(rows):
    return False


@inlined
def expansion_ratio(reference, memory, place, coordinate, direction, order):
    """−G·δ − (v·δ + ½ δᵀHδ), v = H(θ − θ̂): the expansion of Σ dU_i with its sign changed. O(1) for a coordinate."""
    if coordinate >= 0:
        move = place.delta[coordinate]
        total = reference.gradient[coordinate] * move
        if order == 2:
            total += (memory.curvature[coordinate] + 0.5 * reference.hessian[coordinate, coordinate] * move) * move
        return -total
    total = 0.0
    if order == 2:
        _curvature_step(reference, memory, place, direction)
        for j in range(place.delta.size):
            total += (memory.curvature[j] + 0.5 * memory.curvature_step[j]) * place.delta[j]
    for j in range(place.delta.size):
        total += reference.gradient[j] * place.delta[j]
    return -total


@inlined
def _curvature_step(reference, memory, place, direction):
    """Hδ: one known row H·direction, or the sum over the axes."""
    if direction >= 0:
        for j in range(place.delta.size):
            memory.curvature_step[j] = memory.normal[direction] * reference.image[direction, j]
    else:
        for j in range(place.delta.size):
            memory.curvature_step[j] = 0.0
        for k in range(reference.image.shape[0]):
            for j in range(place.delta.size):
                memory.curvature_step[j] += memory.normal[k] * reference.image[k, j]


@inlined
def _keep_move(model, reference, place, memory, coordinate, batch, following, curvature_known):
    """θ ← θ′ and everything that follows from it.

    H(θ − θ̂) moves by increments only along coordinates, and only inside the region where its rounding is charged for:
    after any other move it is computed afresh, so that what is known of it depends on θ and θ′ alone. Spreads move by
    increments until s(θ) has halved: what an increment rounds away stays small beside them.
    """
    if reference.order == 2 and coordinate >= 0:
        for j in range(place.theta.size):
            memory.curvature[j] += place.delta[coordinate] * reference.hessian[coordinate, j]
    if coordinate >= 0:
        place.theta[coordinate] = place.proposal[coordinate]
        place.offset[coordinate] = place.offset_next[coordinate]
    else:
        for j in range(place.theta.size):
            place.theta[j] = place.proposal[j]
            place.offset[j] = place.offset_next[j]
    place.spreads[0], place.spreads[1] = place.spreads[2], place.spreads[3]
    memory.integers[KNOWN] = 1 if batch == FULL else 0
    memory.integers[ENERGY] = following
    memory.integers[SINCE] += 1
    memory.farthest[0] = max(memory.farthest[0], place.spreads[0])
    stale = reference.order == 2 and (coordinate < 0 or not curvature_known)
    if stale or memory.integers[SINCE] >= REFRESH or 2.0 * place.spreads[0] < memory.farthest[0]:
        refresh(model, reference, place, memory)


@compiled
def refresh(model, reference, place, memory):
    """Recompute what accepted moves update by increments, so that rounding cannot pile up."""
    memory.integers[SINCE] = 0
    for j in range(place.theta.size):
        place.offset[j] = place.theta[j] - reference.point[j]
        place.offset_next[j] = place.offset[j]
        place.proposal[j] = place.theta[j]
        place.delta[j] = 0.0
    locate(model, place)
    memory.farthest[0] = place.spreads[0]
    if reference.order == 2:
        for j in range(place.theta.size):
            memory.curvature[j] = 0.0
            for other in range(place.theta.size):
                memory.curvature[j] += reference.hessian[j, other] * place.offset[other]


@inlined
def stay(place, coordinate):
    """Make the buffers agree with θ again after a coordinate's move; joint moves rewrite them whole."""
    if coordinate >= 0:
        place.proposal[coordinate] = place.theta[coordinate]
        place.offset_next[coordinate] = place.offset[coordinate]
        place.delta[coordinate] = 0.0


def compile_advance(cache: bool, stamp: int):
    """The loop, compiled. It closes over ``stamp``, which is thereby part of its key in the disk cache."""

    @njit(cache=cache, nogil=True, error_model="numpy")
    def advance(model, rows, rule, meter, proposal, prior, reference, place, memory, work, streams, steps, thin, draws):
        """Run ``steps`` steps, or fewer if the next would pass the meter's limit or rows are lost; returns how many.

        draws[k] is the state after (k+1)·thin of them. A step is charged before its lazy coin is thrown.
        """
        stamp  # noqa: B018
        model, rows, proposal, prior = borrow(model), borrow(rows), borrow(proposal), borrow(prior)
        reference, place, memory, work = borrow(reference), borrow(place), borrow(memory), borrow(work)
        streams, draws, rule, meter = borrow(streams), borrow(draws), borrow(rule), borrow(meter)
        for step in range(steps):
            coordinate, direction = draw_move(proposal, streams.proposals, memory.normal, place)
            accepted, following, batch = False, 0, -1
            energies_known, gradient_known, curvature_known = True, True, True
            if inside(proposal, place, coordinate):
                limit = bounds(model, place, coordinate, reference)
                # a move beyond reach is never made: the same rule both ways; NaN is beyond reach
                if limit.first < np.inf and limit.first <= meter.reach:
                    if meter.active:
                        energies_known, gradient_known, curvature_known = charged_for(model, place, coordinate)
                    batch = choose_batch(rule, limit, energies_known, gradient_known, curvature_known)
            if meter.active:
                cost = step_cost(meter, rule, batch, limit) if batch >= 0 else 0.0
                if not memory.spent[0] + cost <= meter.limit:
                    stay(place, coordinate)
                    return step
                memory.spent[0] += cost
            counted = max(direction, 0)
            memory.tried[counted] += 1
            memory.integers[STEPS] += 1
            if batch >= 0 and (rule.laziness >= 1.0 or uniform(streams.acceptance) < rule.laziness):
                memory.integers[EVALUATED] += 1
                if batch == FULL:
                    ratio, following = full_ratio(rows, model, work, place, memory, limit.first)
                    memory.integers[FULLS] += 1
                else:
                    order = batch - MINIBATCH
                    bound = limit.order2 if batch == ORDER2 else limit.order1 if batch == ORDER1 else limit.first
                    ratio, count = minibatch_ratio(
                        model,
                        rows,
                        work,
                        streams,
                        place,
                        coordinate,
                        bound,
                        rate_per_row(rule, bound, limit.first),
                        reference,
                        order,
                    )
                    memory.integers[TOUCHED] += count
                    if order > 0:
                        ratio += expansion_ratio(reference, memory, place, coordinate, direction, order)
                if lost(rows):
                    stay(place, coordinate)
                    return step
                if coordinate >= 0:
                    ratio += log_prior_change_at(prior, coordinate, place.theta[coordinate], place.proposal[coordinate])
                else:
                    ratio += log_prior_change(prior, place.theta, place.proposal)
                if rule.acceptance == BARKER:
                    accepted = barker_coin(ratio, word(streams.acceptance))
                else:
                    chance = acceptance_probability(rule.acceptance, ratio, rule.variance)
                    accepted = uniform(streams.acceptance) < chance
            if accepted:
                memory.accepted[counted] += 1
                _keep_move(model, reference, place, memory, coordinate, batch, following, curvature_known)
            stay(place, coordinate)
            if (step + 1) % thin == 0:
                for j in range(place.theta.size):
                    draws[(step + 1) // thin - 1, j] = place.theta[j]
        return steps

    return advance
