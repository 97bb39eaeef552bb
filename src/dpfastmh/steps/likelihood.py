"""What a model gives the compiled chain, a tile of rows at a time.

Four operations, each chosen by the model's class while the loop compiles:

* ``gather``     — read the tile's rows: predictors of the current state and of the move;
* ``changes``    — the energy differences dU_i = (U(θ′; x_i) − U(θ; x_i))/τ of the tile;
* ``energies``   — the energies U(θ; x_i)/τ of consecutive rows, for the full batch;
* ``remainders`` — dU_i less its expansion around the reference, for control variates;

and ``bounds``, the public bounds on the first and the last of these. Only ``bounds`` may be seen outside.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpfastmh.losses import (
    SCALAR_LOSSES,
    Softmax,
    change,
    curvature,
    record_bound,
    slope,
    value,
)
from dpfastmh.steps.dispatch import generic, generic_inlined
from dpfastmh.steps.elementary import bits_of, compiled, exp, expm1, fused, inlined, log, log1p
from dpfastmh.steps.memory import dot, dot2, dot3
from dpfastmh.steps.support import spread

TILE = 64
WIDTH = 16  # vectorised loops run over whole groups of so many rows; the surplus is computed and not counted
ROUNDER = 1.5 * 2.0**52
SURPLUS = int(np.float64(ROUNDER).view(np.int64))
FARTHEST = 300.0  # nats by which one move may change one record's likelihood; farther moves are never made


class Rows(NamedTuple):
    """PRIVATE. The records as the loop sees them: features, targets, and c_i over its public maximum where used."""

    x: np.ndarray  # (N, d) float32 or float64, inside the domain
    y: np.ndarray  # (N,) of the same kind
    share: np.ndarray  # (N,) or (0,): c_i / c in (0, 1]
    alias: np.ndarray  # (N,) or (0,): partner of each cell of the alias table
    threshold: np.ndarray  # (N,) or (0,): probability of keeping the cell itself
    weight: float  # mean batch size over r + b: N, or Σ c_i/c where rows are drawn by c_i


class Work(NamedTuple):
    """PRIVATE. Buffers of one chain for one tile."""

    index: np.ndarray  # row numbers
    keep: np.ndarray  # uniforms that thin the rows
    eta: np.ndarray  # (predictors, TILE) at the current state, or at the reference
    offset: np.ndarray  # (predictors, TILE) current state less reference
    step: np.ndarray  # (predictors, TILE) change by the move
    y: np.ndarray
    change: np.ndarray  # dU_i, or its remainder
    expansion: np.ndarray  # the part of dU_i that the sums over all rows already hold
    row: np.ndarray  # (d,) one row's features
    product: np.ndarray  # (p,)
    slopes: np.ndarray  # (predictors,)
    curvatures: np.ndarray  # (predictors, predictors)
    ahead: np.ndarray  # ring of row numbers already asked for
    ahead_keep: np.ndarray
    place: np.ndarray  # (1,) where the ring is read next


@inlined
def padded(n):
    """n rows rounded up to whole groups, so that no loop over a tile has a slow scalar end. TILE is a whole group."""
    return (n + WIDTH - 1) & -WIDTH


def make_work(predictors: int, features: int) -> Work:
    return Work(
        index=np.zeros(TILE, np.int64),
        keep=np.zeros(TILE),
        eta=np.zeros((predictors, TILE)),
        offset=np.zeros((predictors, TILE)),
        step=np.zeros((predictors, TILE)),
        y=np.zeros(TILE),
        change=np.zeros(TILE),
        expansion=np.zeros(TILE),
        row=np.zeros(features),
        product=np.zeros(predictors * features),
        slopes=np.zeros(predictors),
        curvatures=np.zeros((predictors, predictors)),
        ahead=np.full(TILE, -1, np.int64),
        ahead_keep=np.zeros(TILE),
        place=np.zeros(1, np.int64),
    )


class Reference(NamedTuple):
    """PRIVATE but for ``point``. θ̂ and the integer sums of the records' quantised g_i and h_i, as floats."""

    order: int  # 0: none
    point: np.ndarray  # (p,)
    gradient: np.ndarray  # (p,)  G/τ
    hessian: np.ndarray  # (p, p) H/τ, or (0, 0)
    image: np.ndarray  # (q, p) H·direction for each direction of the proposal; H itself where moves follow the axes
    gradient_grid: float  # cell of the grid, before τ
    hessian_grid: float


class Place(NamedTuple):
    """PUBLIC. Where the chain stands and where it would go; ``spreads`` holds s(θ), s(θ − θ̂), then both for θ′."""

    theta: np.ndarray
    proposal: np.ndarray
    delta: np.ndarray  # θ′ − θ; zero but for the coordinate that moves
    offset: np.ndarray  # θ − θ̂
    offset_next: np.ndarray  # θ′ − θ̂
    spreads: np.ndarray  # (4,)


class Bounds(NamedTuple):
    """PUBLIC. Bounds b of a move, on |dU_i| and on the remainders of order 1 and 2; symmetric in θ and θ′."""

    first: float
    order1: float
    order2: float


@generic_inlined
def gather(model, rows, work, start, stop, place, coordinate):
    """Read rows work.index[start:stop]."""


@generic_inlined
def changes(model, rows, work, n, place):
    """work.change[:n] = dU_i of the gathered rows."""


@generic
def energies(model, rows, work, first, n, theta):
    """work.change[:n] = U(θ; x_i)/τ for rows first, ..., first+n−1. Models of differences only have none."""


@generic_inlined
def gather_reference(model, rows, work, start, stop, place, coordinate, reference):
    """As ``gather``, with the expansion point kept apart from the offset to the current state."""


@generic_inlined
def remainders(model, rows, work, n, place, coordinate, reference, order):
    """work.change[:n] = dU_i less its quantised expansion around the reference."""


@generic_inlined
def bounds(model, place, coordinate, reference):
    """The public Bounds of a move; leaves the spreads of the proposal in ``place``."""


@generic_inlined
def charged_for(model, place, coordinate):
    """PUBLIC. Is the rounding of energies, of G·δ and of H(θ − θ̂) within what a step is charged for?

    The answers are the same for the reverse move and do not depend on the way to θ: detailed balance asks for that. The
    proofs are in docs/guarantee.md, "Floating point". Asked after ``bounds``, where privacy is claimed.
    """


@generic
def locate(model, place):
    """Set the spreads of the current state, s(θ) and s(θ − θ̂), where the model uses them."""


# -- generalised linear models ---------------------------------------------------------------------------------------
class GLMTable(NamedTuple):
    """A loss over linear predictors, with what is public about a record."""

    loss: Any
    support: Any  # SupportTable
    simple: bool  # the domain is one box, so spreads move in O(1)
    unit: np.ndarray  # (d,) s(e_j)
    narrowest: float  # min s(e_j)
    l1: float
    l2: float
    l3: float
    known: float  # |x·θ| up to which energies are known to 2⁻³³
    inverse_temperature: float


@generic_inlined
def predictors(loss):
    """How many linear predictors a record has; known while compiling for scalar losses."""


@predictors.of(*SCALAR_LOSSES)
def _one_predictor(loss):
    return 1


@predictors.of(Softmax)
def _class_predictors(loss):
    return loss.classes - 1


@generic
def tile_changes(loss, eta, step, y, n, out):
    """Energy differences of a tile of predictors."""


@tile_changes.of(*SCALAR_LOSSES)
def _scalar_changes(loss, eta, step, y, n, out):
    for t in range(padded(n)):
        out[t] = change(loss, eta[0, t], step[0, t], y[t])


@tile_changes.of(Softmax)
def _softmax_changes(loss, eta, step, y, n, out):
    """log Σ_k P_k e^{δ_k − δ_y} = log1p(Σ_k P_k (e^{δ_k − δ_y} − 1)), without cancellation for small moves; where the
    sum comes near −1 the two energies are far apart and are subtracted."""
    for t in range(n):
        label = int(y[t]) - 1
        own = step[label, t] if label >= 0 else 0.0
        top = _top(loss, eta, step, 0.0, t)
        total = exp(-top)
        moved = total * expm1(-own)
        for k in range(loss.classes - 1):
            weight = exp(eta[k, t] - top)
            total += weight
            moved += weight * expm1(step[k, t] - own)
        if moved > -0.5 * total:
            out[t] = log1p(moved / total)
        else:
            out[t] = _softmax_value(loss, eta, step, 1.0, t, label) - _softmax_value(loss, eta, step, 0.0, t, label)


@inlined
def _top(loss, eta, step, moved, t):
    top = 0.0
    for k in range(loss.classes - 1):
        top = max(top, eta[k, t] + moved * step[k, t])
    return top


@compiled
def _softmax_value(loss, eta, step, moved, t, label):
    """L(η + moved·step; y) of one row."""
    top = _top(loss, eta, step, moved, t)
    total = exp(-top)
    for k in range(loss.classes - 1):
        total += exp(eta[k, t] + moved * step[k, t] - top)
    own = eta[label, t] + moved * step[label, t] if label >= 0 else 0.0
    return top + log(total) - own


@generic
def tile_values(loss, eta, y, n, out):
    """Energies of a tile of predictors, up to a constant of the record."""


@tile_values.of(*SCALAR_LOSSES)
def _scalar_values(loss, eta, y, n, out):
    for t in range(n):
        out[t] = value(loss, eta[0, t], y[t])


@tile_values.of(Softmax)
def _softmax_values(loss, eta, y, n, out):
    for t in range(n):
        out[t] = _softmax_value(loss, eta, eta, 0.0, t, int(y[t]) - 1)


@generic
def derivatives(loss, eta, y, t, slopes, curvatures):
    """Gradient (m,) and second derivative (m, m) of one row's energy in its m predictors."""


@derivatives.of(*SCALAR_LOSSES)
def _scalar_derivatives(loss, eta, y, t, slopes, curvatures):
    slopes[0] = slope(loss, eta[0, t], y[t])
    curvatures[0, 0] = curvature(loss, eta[0, t], y[t])


@derivatives.of(Softmax)
def _softmax_derivatives(loss, eta, y, t, slopes, curvatures):
    """P − e_y and diag(P) − PPᵀ, without class 0."""
    m = loss.classes - 1
    top = _top(loss, eta, eta, 0.0, t)
    total = exp(-top)
    for k in range(m):
        slopes[k] = exp(eta[k, t] - top)
        total += slopes[k]
    for k in range(m):
        slopes[k] /= total
    for k in range(m):
        for other in range(m):
            curvatures[k, other] = -slopes[k] * slopes[other]
        curvatures[k, k] += slopes[k]
    label = int(y[t]) - 1
    if label >= 0:
        slopes[label] -= 1.0


@generic
def tile_derivatives(loss, eta, y, n, slopes, curvatures):
    """``derivatives`` of a tile: slopes (m, n) and curvatures (m·m, n)."""


@tile_derivatives.of(*SCALAR_LOSSES)
def _scalar_tile_derivatives(loss, eta, y, n, slopes, curvatures):
    for t in range(padded(n)):
        at, outcome = eta[0, t], y[t]  # read once: the compiler then sees what slope and curvature share
        slopes[0, t] = slope(loss, at, outcome)
        curvatures[0, t] = curvature(loss, at, outcome)


@tile_derivatives.of(Softmax)
def _softmax_tile_derivatives(loss, eta, y, n, slopes, curvatures):
    m = loss.classes - 1
    slope_row, curvature_row = np.empty(m), np.empty((m, m))
    for t in range(n):
        derivatives(loss, eta, y, t, slope_row, curvature_row)
        for k in range(m):
            slopes[k, t] = slope_row[k]
            for other in range(m):
                curvatures[k * m + other, t] = curvature_row[k, other]


@gather.of(GLMTable)
def _glm_gather(model, rows, work, start, stop, place, coordinate):
    theta, delta = place.theta, place.delta
    d = rows.x.shape[1]
    m = predictors(model.loss)
    for t in range(start, stop):
        i = work.index[t]
        work.y[t] = rows.y[i]
        if coordinate >= 0:
            for k in range(m):
                work.eta[k, t] = dot(rows.x, i, theta[k * d : (k + 1) * d])
                work.step[k, t] = 0.0
            k = coordinate // d
            work.step[k, t] = rows.x[i, coordinate - k * d] * delta[coordinate]
        else:
            for k in range(m):
                work.eta[k, t], work.step[k, t] = dot2(
                    rows.x, i, theta[k * d : (k + 1) * d], delta[k * d : (k + 1) * d]
                )


@changes.of(GLMTable)
def _glm_changes(model, rows, work, n, place):
    tile_changes(model.loss, work.eta, work.step, work.y, n, work.change)
    for t in range(padded(n)):
        work.change[t] *= model.inverse_temperature


@energies.of(GLMTable)
def _glm_energies(model, rows, work, first, n, theta):
    d = rows.x.shape[1]
    for t in range(n):
        work.y[t] = rows.y[first + t]
        for k in range(predictors(model.loss)):
            work.eta[k, t] = dot(rows.x, first + t, theta[k * d : (k + 1) * d])
    tile_values(model.loss, work.eta, work.y, n, work.change)
    for t in range(n):
        work.change[t] *= model.inverse_temperature


@gather_reference.of(GLMTable)
def _glm_gather_reference(model, rows, work, start, stop, place, coordinate, reference):
    """η̂ = x·θ̂, w = x·u with u = θ − θ̂, and x·δ."""
    offset, delta = place.offset, place.delta
    d = rows.x.shape[1]
    for t in range(start, stop):
        i = work.index[t]
        work.y[t] = rows.y[i]
        for k in range(predictors(model.loss)):
            block = slice(k * d, (k + 1) * d)
            if coordinate >= 0:
                work.eta[k, t], work.offset[k, t] = dot2(rows.x, i, reference.point[block], offset[block])
                mine = coordinate // d == k
                work.step[k, t] = rows.x[i, coordinate - k * d] * delta[coordinate] if mine else 0.0
            else:
                work.eta[k, t], work.offset[k, t], work.step[k, t] = dot3(
                    rows.x, i, reference.point[block], offset[block], delta[block]
                )


@remainders.of(GLMTable)
def _glm_remainders(model, rows, work, n, place, coordinate, reference, order):
    """r_i = dU_i − q(g_i)·δ − ½ (2u + δ)ᵀ q(h_i) δ with u = θ − θ̂ and q the rounding to the public grid."""
    offset, delta = place.offset, place.delta
    d = rows.x.shape[1]
    m = predictors(model.loss)
    slopes, curvatures = work.slopes, work.curvatures
    for t in range(n):
        for j in range(d):
            work.row[j] = rows.x[work.index[t], j]
        derivatives(model.loss, work.eta, work.y, t, slopes, curvatures)
        expansion = 0.0
        for k in range(m):
            expansion += _first_order(work, d, k, slopes[k], delta, coordinate, reference.gradient_grid)
        if order == 2:
            expansion += _second_order(work, d, m, curvatures, offset, delta, coordinate, reference.hessian_grid)
        work.expansion[t] = expansion
    for k in range(m):
        for t in range(n):
            work.eta[k, t] += work.offset[k, t]
    tile_changes(model.loss, work.eta, work.step, work.y, n, work.change)
    for t in range(n):
        work.change[t] = (work.change[t] - work.expansion[t]) * model.inverse_temperature


@inlined
def whole(a, b):
    """a·b to the nearest whole number, ties to even, rounded once, and ``SURPLUS`` more; |a·b| up to 2⁵⁰.

    Beside 1.5·2⁵² the spacing of doubles is 1, so that their last bits count. Vectorises on every processor, where a
    conversion does not; what sums over many rows have too much is taken off the whole sum.
    """
    return bits_of(fused(a, b, ROUNDER))


@inlined
def quantised(a, b, grid):
    """The multiple of ``grid``, a power of two, nearest to a·b: the same one that ``whole(a/grid, b)`` counts."""
    return (fused(a / grid, b, ROUNDER) - ROUNDER) * grid


@inlined
def quantised_product(c, larger, smaller, grid):
    """q(h_ab) of c·x_a·x_b. The factor with the larger of the two numbers a and b comes first, so that q(h) is
    symmetric, and so that sums over rows scale a column once for all columns before it."""
    return (fused(c / grid * larger, smaller, ROUNDER) - ROUNDER) * grid


@inlined
def _first_order(work, d, k, slope_k, delta, coordinate, grid):
    """Σ_j q(g_kj) δ_kj for predictor k."""
    if coordinate >= 0:
        if coordinate // d != k:
            return 0.0
        return quantised(slope_k, work.row[coordinate - k * d], grid) * delta[coordinate]
    total = 0.0
    for j in range(d):
        total += quantised(slope_k, work.row[j], grid) * delta[k * d + j]
    return total


@inlined
def _second_order(work, d, m, curvatures, offset, delta, coordinate, grid):
    """½ Σ_ab (2u + δ)_a q(h_ab) δ_b, by columns b."""
    first = coordinate if coordinate >= 0 else 0
    last = coordinate + 1 if coordinate >= 0 else m * d
    for a in range(m * d):
        work.product[a] = 0.0
    for b in range(first, last):
        kb = b // d
        x_b, move = work.row[b - kb * d], delta[b]
        for ka in range(m):
            c = curvatures[ka, kb]
            for j in range(d):
                a, x_a = ka * d + j, work.row[j]
                work.product[a] += quantised_product(c, x_a if a > b else x_b, x_b if a > b else x_a, grid) * move
    total = 0.0
    for a in range(m * d):
        total += work.product[a] * (2.0 * offset[a] + delta[a])
    return 0.5 * total


@bounds.of(GLMTable)
def _glm_bounds(model, place, coordinate, reference):
    """b = (bound on |L change|)/τ, b_1 = L2 s(δ) m/τ and b_2 = ½ L3 s(δ) m²/τ, m = max(s(θ − θ̂), s(θ′ − θ̂)).

    Proof of the last two: the remainder is ∫₀¹ δ·(∇L(z_t) − expansion of ∇L at θ̂) dt along the move, and Taylor's
    theorem bounds the bracket by L2|x·(z_t − θ̂)|, resp. ½ L3 |x·(z_t − θ̂)|²; s is convex, so s(z_t − θ̂) ≤ m.
    Added to b_1 and b_2: half a cell of the grid for each quantised number (‖u‖₁ ≤ p·s(u)/min s(e_j), and
    2u + δ = u + u′), and the rounding of the subtraction.
    """
    spreads = place.spreads
    classes = _spread_classes(model)
    if coordinate >= 0:
        length = abs(place.delta[coordinate])
        size = model.unit[coordinate % model.unit.size] * length
    else:
        size = spread(model.support, classes, place.delta)
        length = 0.0
        for j in range(place.delta.size):
            length += abs(place.delta[j])
    if not model.l1 * size <= FARTHEST:
        return Bounds(np.inf, np.inf, np.inf)
    spreads[2] = _next_spread(model, classes, place.theta, place.proposal, coordinate, spreads[0])
    first = record_bound(model.loss, model.l1, max(spreads[0], spreads[2]), size) * model.inverse_temperature
    if reference.order == 0:
        return Bounds(first, np.inf, np.inf)
    spreads[3] = _next_spread(model, classes, place.offset, place.offset_next, coordinate, spreads[1])
    reach = max(spreads[1], spreads[3]) * (1.0 + 1e-12)
    slack = 0.5 * reference.gradient_grid * length + 4e-15 * size * (model.l1 + model.l2 * reach)
    order1 = model.l2 * size * reach + slack
    order2 = np.inf
    if reference.order == 2:
        slack += 0.5 * reference.hessian_grid * length * place.theta.size * reach / model.narrowest
        order2 = 0.5 * model.l3 * size * reach * reach + slack
    return Bounds(first, order1 * model.inverse_temperature, order2 * model.inverse_temperature)


@charged_for.of(GLMTable)
def _glm_charged_for(model, place, coordinate):
    """Energies are known to 2⁻³³ up to ``model.known``; G·δ while Ŝ ≤ 30 s(δ); H(θ − θ̂) if also Ŝ·L2·M̂ ≤ L1·s(δ).

    Ŝ = Σ β_j|δ_j|, and M̂ the larger Σ β_j|θ_j − θ̂_j| of the move's two ends. For a coordinate Ŝ = s(δ), so that all
    moves are held to one region, L2·M̂ ≤ L1, and no move since H(θ − θ̂) was computed afresh has left it (``refresh``).
    """
    d = model.unit.size
    here, there, moved = 0.0, 0.0, 0.0
    if coordinate >= 0:
        size = moved = model.unit[coordinate % d] * abs(place.delta[coordinate])
    else:
        for j in range(place.delta.size):
            moved += model.unit[j % d] * abs(place.delta[j])
        size = spread(model.support, _spread_classes(model), place.delta)
    if coordinate >= 0 and model.simple:
        here, there = place.spreads[1], place.spreads[3]
    else:
        for j in range(place.offset.size):
            here += model.unit[j % d] * abs(place.offset[j])
            there += model.unit[j % d] * abs(place.offset_next[j])
    energies_known = max(place.spreads[0], place.spreads[2]) <= model.known
    gradient_known = moved <= 30.0 * size
    inside = model.l2 * max(here, there) <= model.l1
    if coordinate < 0:
        inside = moved * model.l2 * max(here, there) <= model.l1 * size
    return energies_known, gradient_known, gradient_known and inside


@inlined
def _spread_classes(model):
    """``spread`` counts classes: 1 for a single predictor."""
    return 1 if predictors(model.loss) == 1 else predictors(model.loss) + 1


@inlined
def _next_spread(model, classes, now, following, coordinate, current):
    """The spread after the move: O(1) for one coordinate on a box, where it is a plain sum."""
    if coordinate >= 0 and model.simple:
        return current + model.support.half[coordinate] * (abs(following[coordinate]) - abs(now[coordinate]))
    return spread(model.support, classes, following)


@locate.of(GLMTable)
def _glm_locate(model, place):
    classes = _spread_classes(model)
    place.spreads[0] = spread(model.support, classes, place.theta)
    place.spreads[1] = spread(model.support, classes, place.offset)
