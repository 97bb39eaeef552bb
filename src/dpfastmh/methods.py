"""The algorithms by name.

A *method* says how moves are proposed, what the log-ratio is computed from, and how it is accepted. ``method.on(model,
x, y)`` binds it to records and returns a ``Sampler`` with ``init``, ``step`` and a fast ``run``; both give the same
draws. These samplers are the raw algorithms: they look at records freely and promise no privacy.

    sampler = TunaMH(RandomWalk(0.01), chi=1e-5).on(model, x, y)
    state = sampler.init(theta)
    state, info = sampler.step(state)
    state, draws, info = sampler.run(state, 10_000, thin=10)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from dpfastmh import randomness
from dpfastmh.data.engine import Feed, RowEngine
from dpfastmh.models import Model
from dpfastmh.privacy.accept_bit import CostTable
from dpfastmh.steps import ahead, chain
from dpfastmh.steps.likelihood import Place, Reference, Rows, make_work

if TYPE_CHECKING:
    from dpfastmh.steps.chain import Memory, Streams

FloatArray = npt.NDArray[np.float64]


class MethodError(ValueError):
    """A method that cannot be run as asked. One line: what, where, what to do."""


# -- proposals -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RandomWalk:
    """θ′ = θ + scale∘z, or θ + Σ_k scale_k z_k basis_k for a given basis (rows); z standard normal."""

    scale: float | Sequence[float] | FloatArray
    basis: npt.ArrayLike | None = None

    def compiled(self, p: int, box: tuple[FloatArray, FloatArray] | None) -> chain.Proposal:
        directions = _directions(self.basis, p)
        kind = chain.JOINT if self.basis is None else chain.BASIS
        return _proposal(kind, self.scale, directions, p, box)


@dataclass(frozen=True)
class Coordinates:
    """One coordinate, chosen uniformly, moves by scale_j·z."""

    scale: float | Sequence[float] | FloatArray

    def compiled(self, p: int, box: tuple[FloatArray, FloatArray] | None) -> chain.Proposal:
        return _proposal(chain.COORDINATE, self.scale, _directions(None, p), p, box)


@dataclass(frozen=True)
class Directions:
    """A move scale_k·z along one of the given directions (rows), chosen uniformly."""

    directions: npt.ArrayLike
    scale: float | Sequence[float] | FloatArray = 1.0

    def compiled(self, p: int, box: tuple[FloatArray, FloatArray] | None) -> chain.Proposal:
        return _proposal(chain.DIRECTIONS, self.scale, _directions(self.directions, p), p, box)


ProposalLike = RandomWalk | Coordinates | Directions


def _directions(rows: npt.ArrayLike | None, p: int) -> FloatArray:
    if rows is None:
        return np.zeros((0, p))
    found = np.ascontiguousarray(rows, dtype=np.float64)
    if found.ndim != 2 or found.shape[1] != p or found.shape[0] < 1 or not np.isfinite(found).all():
        raise MethodError(f"directions have shape {found.shape}: give finite rows of {p} numbers, one per parameter")
    return found


def _proposal(
    kind: int, scale: Any, directions: FloatArray, p: int, box: tuple[FloatArray, FloatArray] | None
) -> chain.Proposal:
    count = directions.shape[0] or p
    scales = np.asarray(scale, dtype=np.float64)
    if scales.ndim > 1 or (scales.ndim == 1 and scales.size != count):
        raise MethodError(f"scale has shape {scales.shape}: give one number, or {count} of them")
    if not (np.isfinite(scales).all() and (scales >= 0).all() and scales.any()):
        raise MethodError("scale must be finite, not negative and not zero throughout")
    low, high = (np.zeros(0), np.zeros(0)) if box is None else box
    if not (low.size == high.size and low.size in (0, p) and np.all(low < high)):
        raise MethodError(f"the parameter box needs {p} lower and {p} upper ends, each lower one below its upper one")
    filled = np.ascontiguousarray(np.broadcast_to(scales, count))
    return chain.Proposal(kind, filled.copy(), directions, np.asarray(low, float), np.asarray(high, float))


# -- states ----------------------------------------------------------------------------------------------------------
class State(NamedTuple):
    """Where a chain stands. ``memory`` is private: it holds sums over records."""

    place: Place
    memory: Memory

    @property
    def position(self) -> FloatArray:
        return self.place.theta.copy()

    def copy(self) -> State:
        place = Place(*(a.copy() for a in self.place))
        return State(place, type(self.memory)(*(a.copy() for a in self.memory)))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything in it by name; no array is ever written to once its state has been handed out."""
        return {f"place {name}": value for name, value in self.place._asdict().items()} | {
            f"memory {name}": value for name, value in self.memory._asdict().items()
        }

    def like(self, arrays: Mapping[str, npt.NDArray[Any]]) -> State:
        """A state of the same form with the numbers of ``arrays``; ValueError where the forms differ."""
        held = self.arrays()
        for name, value in held.items():
            if arrays[name].shape != value.shape or arrays[name].dtype != value.dtype:
                raise ValueError("the chain's state has another form")
            if not np.isfinite(arrays[name]).all():
                raise ValueError("the chain's state is not finite")
        parts = [arrays[name].copy() for name in held]
        size = len(self.place)
        return State(Place(*parts[:size]), type(self.memory)(*parts[size:]))


class Info(NamedTuple):
    """What happened since the last state. Only ``accepted`` may leave a private run."""

    steps: int
    accepted: int
    evaluated: int  # steps that looked at data at all
    rows: int  # rows read by minibatches
    full_batches: int
    tried_by_direction: npt.NDArray[np.int64]
    accepted_by_direction: npt.NDArray[np.int64]

    @property
    def acceptance(self) -> float:
        return self.accepted / max(self.steps, 1)


def no_meter() -> chain.Meter:
    """For samplers that promise no privacy: nothing is charged and nothing stops them."""
    none = CostTable(np.zeros(1), 1.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    return chain.Meter(False, math.inf, none, none, none, 0.0, sys.float_info.max)


AHEAD = ("ahead", "ahead_keep", "place")  # of the work buffers: what outlives a step
UNREAD = ("unread rows", "unread keep")  # of a feed


class Sampler:
    """A method bound to records. Each sampler is one chain: it owns its random streams."""

    def __init__(
        self,
        model: Model,
        rows: Rows | RowEngine,
        rule: chain.Rule,
        proposal: chain.Proposal,
        reference: Reference,
        streams: Streams,
        meter: chain.Meter | None = None,
    ) -> None:
        from dpfastmh.steps.compiled import OWN, SHIPPED

        self._feed = Feed(rows, model, streams) if isinstance(rows, RowEngine) else None
        self._rows: Any = rows if self._feed is None else self._feed.rows
        if isinstance(rows, Rows):
            model.check(rows)
        p, q = len(model.parameters), proposal.scale.size
        if reference.point.size != p or (reference.order == 2 and reference.image.shape != (q, p)):
            raise MethodError("the reference was made for another model or proposal: give its point instead")
        self.model, self.rule, self.proposal = model, rule, proposal
        self._meter = no_meter() if meter is None else meter
        self._reference, self._streams = reference, streams
        features = rows.features if isinstance(rows, RowEngine) else rows.x.shape[1]
        self._loops = SHIPPED if model.shipped else OWN
        self._table = model.table()
        self._work = make_work(getattr(model, "predictors", 1), features)

    def init(self, position: npt.ArrayLike) -> State:
        """A state at ``position``."""
        theta = np.array(position, dtype=np.float64).reshape(-1)
        p = len(self.model.parameters)
        if theta.size != p or not np.isfinite(theta).all():
            raise MethodError(f"position has {theta.size} numbers: give {p} finite ones, {self.model.parameters}")
        if self.proposal.low.size and not np.all((theta >= self.proposal.low) & (theta <= self.proposal.high)):
            raise MethodError("position lies outside the parameter box: start inside it")
        count = self.proposal.scale.size
        place = Place(theta, theta.copy(), np.zeros(p), np.zeros(p), np.zeros(p), np.zeros(4))
        memory = chain.Memory(
            np.zeros(p),
            np.zeros(p),
            np.zeros(count),
            np.zeros(7, np.int64),
            np.zeros(count, int),
            np.zeros(count, int),
            np.zeros(1),
            np.zeros(1),
        )
        self._loops.settle(self._table, self._reference, place, memory)
        return State(place, memory)

    def snapshot(self) -> dict[str, npt.NDArray[Any]]:
        """SECRET. What decides the chain's future beside its state: the four streams, rows drawn ahead, the scales."""
        found = {"scale": self.proposal.scale.copy()}
        if self._feed is not None:  # it draws from the row stream as it reads ahead: ask it first
            found |= dict(zip(UNREAD, self._feed.unread(), strict=True))
        for name, stream in self._streams._asdict().items():
            found |= {f"{name} {part}": value for part, value in randomness.stream_state(stream).items()}
        return found | {name: getattr(self._work, name).copy() for name in AHEAD}

    def restore(self, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from a ``snapshot`` of a sampler of the same model, rows and method; ValueError where it is not one."""
        for name in AHEAD:
            held = getattr(self._work, name)
            if snapshot[name].dtype != held.dtype or snapshot[name].shape != held.shape:
                raise ValueError("the rows drawn ahead have another form")
        rows, first = snapshot["ahead"], int(snapshot["place"][0])
        if not (np.all(rows >= (0 if rows[0] >= 0 else -1)) and np.all(rows < self._rows.x.shape[0])):
            raise ValueError("the rows drawn ahead are not rows of this table")
        if not 0 <= first < rows.size:
            raise ValueError("the place among the rows drawn ahead is out of range")
        scale = snapshot["scale"]
        if scale.shape != self.proposal.scale.shape or not (np.isfinite(scale).all() and (scale >= 0.0).all()):
            raise ValueError("the scales of the moves have another form")
        if self._feed is not None:
            self._feed.resume(*(snapshot[name] for name in UNREAD))
        for name, stream in self._streams._asdict().items():
            parts = {key.removeprefix(f"{name} "): v for key, v in snapshot.items() if key.startswith(f"{name} ")}
            randomness.restore_stream(stream, parts)
        for name in AHEAD:
            getattr(self._work, name)[...] = snapshot[name]
        self.proposal = self.proposal._replace(scale=np.array(scale, dtype=np.float64))

    def step(self, state: State) -> tuple[State, Info]:
        """One transition."""
        state, _, info = self.run(state, 1)
        return state, info

    def run(self, state: State, steps: int, *, thin: int = 1) -> tuple[State, FloatArray, Info]:
        """``steps`` transitions; draws after every ``thin`` of them, as an array (draw, parameter)."""
        following, draws, info, _ = self.run_metered(state, steps, thin=thin, limit=math.inf)
        self.check_rows()
        return following, draws, info

    def check_rows(self) -> None:
        """Raise what kept the last run from rows that live elsewhere, if anything did."""
        if self._feed is not None:
            self._feed.check()

    def run_metered(
        self, state: State, steps: int, *, thin: int, limit: float
    ) -> tuple[State, FloatArray, Info, float]:
        """As ``run``, ending before the step that would take the cost past ``limit``; and the cost.

        It may have ended for want of rows too: ask ``check_rows`` once the cost has been entered.
        """
        if not (isinstance(steps, Integral) and isinstance(thin, Integral) and steps >= 0 and thin >= 1):
            raise MethodError(f"steps={steps!r}, thin={thin!r}: whole numbers, steps not negative, thin at least 1")
        p, q = len(self.model.parameters), self.proposal.scale.size
        if state.place.theta.size != p or state.memory.normal.size != q:
            raise MethodError(f"the state belongs to another sampler: this one has {p} parameters, {q} directions")
        following = state.copy()
        following.memory.spent[0] = 0.0
        draws = np.empty((steps // thin, following.place.theta.size))
        ahead.wait()
        made = self._loops.advance(
            self._table,
            self._rows,
            self.rule,
            self._meter._replace(limit=limit),
            self.proposal,
            self.model.prior_table,
            self._reference,
            following.place,
            following.memory,
            self._work,
            self._streams,
            steps,
            thin,
            draws,
        )
        info = _info(state.memory, following.memory)
        return following, draws[: made // thin], info, float(following.memory.spent[0])


def _info(before: Memory, after: Memory) -> Info:
    change = after.integers - before.integers
    accepted = after.accepted - before.accepted
    return Info(
        steps=int(change[chain.STEPS]),
        accepted=int(accepted.sum()),
        evaluated=int(change[chain.EVALUATED]),
        rows=int(change[chain.TOUCHED]),
        full_batches=int(change[chain.FULLS]),
        tried_by_direction=after.tried - before.tried,
        accepted_by_direction=accepted,
    )


def run_chains(
    samplers: Sequence[Sampler], states: Sequence[State], steps: int, *, thin: int = 1
) -> list[tuple[State, FloatArray, Info]]:
    """Several chains at once, one thread each, over the same rows."""
    with ThreadPoolExecutor(len(samplers)) as pool:
        return list(pool.map(lambda pair: pair[0].run(pair[1], steps, thin=thin), zip(samplers, states, strict=True)))


MOST_VARIANCE = 400.0  # of the penalty noise; there even a move that changes nothing is accepted once in 10²³ times


# -- methods ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Method:
    """What all methods share: a symmetric proposal and an optional laziness κ (1: never lazy)."""

    proposal: ProposalLike = field(kw_only=False)
    laziness: float = 1.0
    acceptance: str = "metropolis"
    variance: float = 1.0
    thrift: float = field(default=0.0, repr=False)
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not isinstance(self.proposal, ProposalLike):
            raise MethodError(f"proposal is {self.proposal!r}: give RandomWalk, Coordinates or Directions")
        if not (_is_number(self.laziness) and 0.0 < self.laziness <= 1.0):
            raise MethodError(f"laziness is {self.laziness!r}: it is the probability of a real step, in (0, 1]")
        if self.acceptance not in ACCEPTANCE:
            raise MethodError(f"acceptance is {self.acceptance!r}: choose one of {', '.join(ACCEPTANCE)}")
        if not (_is_number(self.variance) and 0.0 < self.variance <= MOST_VARIANCE):
            raise MethodError(f"variance is {self.variance!r}: the penalty noise needs one in (0, {MOST_VARIANCE:g}]")
        if not (_is_number(self.thrift) and 0.0 <= self.thrift < math.inf):
            raise MethodError(f"thrift is {self.thrift!r}: it is a finite share, 0 for none")

    def batches(self) -> tuple[bool, bool]:
        """May the full batch be used, may minibatches?"""
        raise NotImplementedError

    def rates(self, size: int) -> tuple[float, float, float]:
        """(λ/N, x, χ): the rate per row is the largest of λ/N, b/x and χNb²."""
        return 0.0, math.inf, 0.0

    def rule(self, size: int, order: int) -> chain.Rule:
        """The public rule for ``size`` rows and an expansion of this order (0: none)."""
        full, mini = self.batches()
        rate, ratio, chi = self.rates(size)
        allowed = np.array([full, mini, mini and order >= 1, mini and order >= 2])
        return chain.Rule(
            ACCEPTANCE[self.acceptance],
            self.variance,
            self.laziness,
            allowed,
            rate,
            ratio,
            chi,
            self.thrift,
            float(size),
        )

    def on(
        self,
        model: Model,
        x: Any,
        y: Any = None,
        *,
        reference: npt.ArrayLike | Reference | None = None,
        order: int = 2,
        per_record: str | None = None,
        seed: int | None = None,
        chain_number: int = 0,
        threads: int | None = None,
        public_rows: int | None = None,
        meter: chain.Meter | None = None,
    ) -> Sampler:
        """A sampler over these records. ``reference``: a fixed point for control variates of this ``order``."""
        if isinstance(x, RowEngine) and per_record is not None:
            raise MethodError(
                f"per_record is {per_record!r}, and bounds that differ by record are kept for rows in memory alone: "
                "leave it out, or load the rows"
            )
        if isinstance(x, Rows | RowEngine) and not (y is None and per_record is None):
            raise MethodError("the rows are loaded already: leave out y and per_record, or give a table")
        rows = x if isinstance(x, Rows | RowEngine) else model.load(x, y, per_record=per_record)
        p = len(model.parameters)
        proposal = self.proposal.compiled(p, model.parameter_box)
        size = (rows.x.shape[0] if isinstance(rows, Rows) else rows.count) if public_rows is None else public_rows
        found = self._reference(model, rows, reference, order, proposal, threads, size)
        streams = randomness.secure_streams() if seed is None else randomness.insecure_streams(seed, chain_number)
        return Sampler(model, rows, self.rule(size, found.order), proposal, found, streams, meter)

    def _reference(
        self,
        model: Model,
        rows: Rows | RowEngine,
        point: Any,
        order: int,
        proposal: chain.Proposal,
        threads: int | None,
        size: int,
    ) -> Reference:
        from dpfastmh.steps.reference import make_reference, no_reference

        p = len(model.parameters)
        if point is None:
            return no_reference(p)
        if isinstance(point, Reference):
            return point
        if order not in (1, 2):
            raise MethodError(f"order is {order!r}: control variates have order 1 or 2")
        if not model.has_expansion:
            raise MethodError(f"{type(model).__name__} has no proven derivatives: leave the reference out")
        at = np.asarray(point, dtype=np.float64).reshape(-1)
        if at.size != p or not np.isfinite(at).all():
            raise MethodError(f"reference has {at.size} numbers: give {p} finite ones")
        return make_reference(model, rows, at, proposal.directions, order=order, threads=threads, public_rows=size)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


ACCEPTANCE = {"metropolis": chain.METROPOLIS, "barker": chain.BARKER, "penalty": chain.PENALTY}


@dataclass(frozen=True, kw_only=True)
class MetropolisHastings(Method):
    """ℓ = Σ_i (U_i(θ) − U_i(θ′)) from every record, accepted with min(1, e^ℓ) unless another rule is named.

    The energy of the current state is kept, so a step reads every row once.
    """

    name: ClassVar[str] = "mh"

    def batches(self) -> tuple[bool, bool]:
        return True, False


@dataclass(frozen=True, kw_only=True)
class TunaMH(Method):
    """Exact minibatch Metropolis-Hastings (Zhang, Cooper & De Sa 2020).

    With C = Nc and b = cM(θ, θ′), the batch is B ~ Poisson(λ + CM); λ is given, or λ = χC²M². Larger λ or χ means a
    larger batch and a chain closer to full-batch Metropolis-Hastings. With a ``reference`` the same is done to the
    remainders of an expansion.
    """

    lam: float | None = None
    chi: float | None = None
    name: ClassVar[str] = "tuna-mh"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.lam is None) == (self.chi is None):
            raise MethodError("give TunaMH either lam or chi")
        given = self.chi if self.lam is None else self.lam
        if not (_is_number(given) and 0.0 < given < math.inf):
            raise MethodError(f"lam={self.lam!r}, chi={self.chi!r}: it must be a finite number above 0")

    def batches(self) -> tuple[bool, bool]:
        return False, True

    def rates(self, size: int) -> tuple[float, float, float]:
        return (self.lam or 0.0) / size, math.inf, self.chi or 0.0


@dataclass(frozen=True, kw_only=True)
class DPFastMH(Method):
    """The library's own: Barker acceptance on the cheapest of full batch, minibatch and control variates.

    The rate per row is b/x with ratio x ≤ √2, where one record's influence on acceptance is monotone (x = 1 unless
    given); 1/(1+e^−ℓ) protects acceptance and rejection alike. Around a reference the rate is raised until the
    remainders widen the privacy shift by at most half the share ``thrift``. What a step costs is in
    ``dpfastmh.privacy``.
    """

    acceptance: str = "barker"
    ratio: float = 1.0
    full_batch: bool = True
    thrift: float = 0.1
    name: ClassVar[str] = "dp-fast-mh"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (_is_number(self.ratio) and 0.0 < self.ratio <= math.sqrt(2.0)):
            raise MethodError(f"ratio is {self.ratio!r}: x lies in (0, √2], where acceptance is monotone in a record")

    def batches(self) -> tuple[bool, bool]:
        return self.full_batch, True

    def rates(self, size: int) -> tuple[float, float, float]:
        return 0.0, self.ratio, 0.0


@dataclass(frozen=True, kw_only=True)
class DPFastMHFull(Method):
    """DP-Fast MH on the full batch: Barker acceptance of the exact ratio."""

    acceptance: str = "barker"
    name: ClassVar[str] = "dp-fast-mh-full"

    def batches(self) -> tuple[bool, bool]:
        return True, False


METHODS = {method.name: method for method in (DPFastMH, DPFastMHFull, TunaMH, MetropolisHastings)}
