# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
"""What the compared methods share: how one is bound to records, and acceptance under Gaussian noise.

Each method is one file: a frozen dataclass that says how it runs, a compiled loop, and the cost of its steps.
``method.on(model, x, y)`` gives a sampler with ``init``, ``step`` and ``run``, as in ``dpfastmh.methods``. These
samplers look at records freely: what a *release* of their draws costs is ``method.total_epsilon``, in ideal arithmetic,
with the proposals and the number of steps public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dpfastmh import losses, randomness
from dpfastmh.budget import Budget
from dpfastmh.methods import Info, MethodError, ProposalLike, RandomWalk, Sampler, State, _info
from dpfastmh.models import GLM, Mixture, Model
from dpfastmh.steps.chain import BASIS, JOINT
from dpfastmh.steps.dispatch import source_stamp
from dpfastmh.steps.elementary import compiled
from dpfastmh.steps.likelihood import Rows
from dpfastmh.steps.reference import no_reference

FloatArray = npt.NDArray[np.float64]


class Editions(NamedTuple):
    """A compiled loop twice: kept on disk for the library's own models, and made afresh for a user's."""

    shipped: Callable[..., Any]
    own: Callable[..., Any]


def editions(build: Callable[[bool, int], Callable[..., Any]]) -> Editions:
    """``build(cache, stamp)`` compiles a loop that closes over ``stamp`` (see ``dpfastmh.steps.dispatch``)."""
    return Editions(build(True, source_stamp()), build(False, 0))


class BaselineSampler(Sampler):
    """A compared method bound to records: the library's sampler with another loop and rule."""

    def __init__(
        self, model: Model, rows: Rows, rule: Any, loop: Editions, proposal: Any, streams: Any, scratch: Any = ()
    ) -> None:
        super().__init__(model, rows, rule, proposal, no_reference(len(model.parameters)), streams)
        self._loop = loop.shipped if model.shipped else loop.own
        self._scratch = scratch

    def run_metered(
        self, state: State, steps: int, *, thin: int, limit: float
    ) -> tuple[State, FloatArray, Info, float]:
        if not (isinstance(steps, Integral) and isinstance(thin, Integral) and steps >= 0 and thin >= 1):
            raise MethodError(f"steps={steps!r}, thin={thin!r}: whole numbers, steps not negative, thin at least 1")
        if limit != math.inf:
            raise MethodError("this method has no running cost: its total is a function of the number of steps")
        following = state.copy()
        draws = np.empty((steps // thin, following.place.theta.size))
        self._loop(
            self._table,
            self._rows,
            self.rule,
            self.proposal,
            self.model.prior_table,
            self._reference,
            following.place,
            following.memory,
            self._work,
            self._scratch,
            self._streams,
            steps,
            thin,
            draws,
        )
        return following, draws, _info(state.memory, following.memory), math.nan


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A compared method.

    ``exact``: does its chain have the (tempered) posterior as its stationary law? ``private``: does a total (ε, δ) for
    its draws exist? ``claim_holds``: is what its authors claim true? ``why`` says what fails where something does.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = False
    claim_holds: ClassVar[bool] = True
    why: ClassVar[str] = ""

    @property
    def exact(self) -> bool:
        return True

    def on(
        self, model: Model, x: Any, y: Any = None, *, seed: int | None = None, chain_number: int = 0
    ) -> BaselineSampler:
        """A sampler over these records; ``seed`` is for tests and non-private work only."""
        rows = x if isinstance(x, Rows) else model.load(x, y)
        proposal = self.moves().compiled(len(model.parameters), model.parameter_box)
        if proposal.kind not in (JOINT, BASIS):
            raise MethodError(f"{self.name} moves all parameters at once: use RandomWalk")
        streams = randomness.secure_streams() if seed is None else randomness.insecure_streams(seed, chain_number)
        return self.bind(model, rows, proposal, streams)

    def moves(self) -> ProposalLike:
        """How moves are drawn; methods that follow gradients use only its parameter box."""
        return RandomWalk(1.0)

    def bind(self, model: Model, rows: Rows, proposal: Any, streams: Any) -> BaselineSampler:
        raise NotImplementedError

    def total_epsilon(self, steps: int, delta: float, *, size: int) -> float:
        """ε at ``delta`` of ``steps`` steps together on ``size`` records (a public number); ∞ where nothing holds."""
        return math.inf

    def within(self, budget: Budget, steps: int, *, size: int) -> Self:
        """This method with its noise, or batch, set so that ``steps`` steps cost no more than the budget."""
        raise MethodError(f"{self.name} has no total privacy guarantee: {self.why or 'it is not private'}")


@dataclass(frozen=True, kw_only=True)
class RandomWalkBaseline(Baseline):
    """A compared method whose proposals are symmetric and free of the data."""

    proposal: ProposalLike = field(kw_only=False)

    def moves(self) -> ProposalLike:
        return self.proposal


def positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0.0 < value < math.inf:
        raise MethodError(f"{name} is {value!r}: it must be a finite number above 0")


def whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise MethodError(f"{name} is {value!r}: it must be a whole number of at least 1")


def chosen(name: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        raise MethodError(f"{name} is {value!r}: choose one of {', '.join(options)}")


# -- Lipschitz constants: |U(θ′; x_i) − U(θ; x_i)| ≤ c_i ‖θ′ − θ‖₂ -----------------------------------------------------
def public_constant(model: Model) -> float:
    """The largest c_i that a record of the public domain can have; also the largest gradient norm."""
    if isinstance(model, Mixture):
        return float(model.constant(model.half_width)) / model.temperature
    if isinstance(model, GLM) and not isinstance(model.loss, losses.Softmax):
        return float(model.loss.constants[0]) * model.domain.norm2() / model.temperature
    raise MethodError(f"{type(model).__name__} has no constants c_i: use the mixture or a model with one predictor")


def record_constants(model: Model, rows: Rows) -> FloatArray:
    """PRIVATE. The c_i of the records themselves, as the published algorithm takes them."""
    if isinstance(model, Mixture):
        return np.asarray(model.constant(rows.x[:, 0]) / model.temperature)
    largest = public_constant(model)
    norm = np.linalg.norm(np.asarray(rows.x, dtype=np.float64), axis=1)
    assert isinstance(model, GLM)
    own = float(model.loss.constants[0]) * norm / model.temperature
    return np.asarray(np.maximum(own, 1e-6 * largest))  # an empty record is still drawn now and then


# -- acceptance ------------------------------------------------------------------------------------------------------
@compiled
def noisy_metropolis(level, variance):
    """E min(1, e^{a+ξ}), ξ ~ N(0, v): Φ(a/√v) + e^{a+v/2} Φ(−(a+v)/√v), whatever the size of v.

    Where the last factor underflows, e^{a+v/2}·Φ(−z) with z = (a+v)/√v is e^{−a²/2v}/(z√2π) to within 1/z².
    """
    if variance == 0.0:
        return math.exp(min(level, 0.0))
    root = math.sqrt(variance)
    certain = 0.5 * math.erfc(-level / root / math.sqrt(2.0))
    z = (level + variance) / root
    if z > 30.0:
        rest = math.exp(-0.5 * (level / root) ** 2) / (z * math.sqrt(2.0 * math.pi)) * (1.0 - 1.0 / (z * z))
    else:
        rest = math.exp(level + 0.5 * variance) * 0.5 * math.erfc(z / math.sqrt(2.0))
    return min(1.0, certain + rest)
