"""THE PRIVATE BOUNDARY. Everything that can leave the private side leaves through this file.

``PrivateRecords`` holds the rows. Three things come out of it, each charged before it leaves:

1. ``noisy_gradient`` — Σ g_i at a public point, with discrete Gaussian noise;
2. ``noisy_hessian``  — Σ h_i at a public point, likewise;
3. ``PrivateChain.run`` — the accept bits of a chain, in the form of the states they lead to and counts of acceptances.

A fourth thing comes out, but only into a checkpoint, a file as secret as the table: ``snapshot`` gives a ``Secret``,
which the rest of the library can hand on and cannot read. Nothing of it is ever part of a result.

Beside these, ``PrivateRecords.fingerprint`` goes to the custodian's ledger and nowhere else.

A chain's states are a function of public proposals and of its accept bits. What it keeps for itself, and never returns:
the sums G and H, energies, row numbers, batch sizes, which steps were skipped by the lazy coin, and how long anything
took. The public side of the library is handed these two objects and sealed secrets, and nothing else.

**Rounding.** (i) A word of 64 bits decides each bit: the filter sets (1+e^ε)·steps·2⁻⁶³ of δ aside. (ii) ℓ is the
sum of the other records' part, which is a sum of whole numbers and therefore has the same value under both neighbours,
and of this unit's part. Weights are whole multiples of 2⁻⁴⁸ and energies of 2⁻³², which moves a row's part by less than
``CELLS``, and so does the rounding of σ(ℓ), an error of ℓ below 2⁻⁴⁹. The expansion's G·δ + v·δ + ½δᵀHδ is computed in
floating point from whole-number sums over N rows, with at most 1,024 accepted increments and p products; one unit's
part is off by a share below N·(1100 + 16p)·2⁻⁵² of its bound as long as θ stays near θ̂, which ``charged_for`` sees to
in the loop (docs/guarantee.md has the proof). Row numbers and thinning are off by relative N·2⁻⁶⁴, for all rows at once
where their number is private. ``widening`` is four times the sum of these; every bound is charged (1 + widening) times
over.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dpfastmh import losses, randomness
from dpfastmh.models import GLM, Model
from dpfastmh.privacy.accept_bit import Acceptance, Batch, CostTable, cost_table
from dpfastmh.privacy.filter import Share
from dpfastmh.privacy.releases import (
    GaussianSum,
    gradient_sensitivity,
    hessian_sensitivity,
    softmax_curvature_norm,
    softmax_slope_norm,
    triangle_from_matrix,
    triangle_multiplicity,
    triangle_to_matrix,
)

if TYPE_CHECKING:
    from dpfastmh.data.engine import RowEngine
    from dpfastmh.data.fingerprint import Fingerprint
    from dpfastmh.methods import Method, Sampler, State
    from dpfastmh.steps.chain import Meter
    from dpfastmh.steps.likelihood import Reference, Rows

FloatArray = npt.NDArray[np.float64]
CELLS = 2.0**-31
LEAST_LAZINESS = 1e-6  # the lazy coin has 53 bits: below, its own rounding would be a part of what is charged
HASHED = 1 << 24  # bytes of the table that one thread hashes at a time
LARGEST_BOUND = 8.0  # of one unit: moves that could change its log-likelihood by more are never made


class Released(NamedTuple):
    """What a chain gives out: functions of public proposals and accept bits."""

    draws: FloatArray  # (draw, parameter)
    position: FloatArray
    steps: int
    tried: npt.NDArray[np.int64]  # by coordinate or direction
    accepted: npt.NDArray[np.int64]
    spent: float  # Rényi cost of these steps
    closed: bool  # the next step would have passed the share's limit


class Secret:
    """Private arrays on their way into a checkpoint or out of one. ``open`` is for ``dpfastmh.checkpoint`` and here."""

    __slots__ = ("__arrays",)

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.__arrays = dict(arrays)

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> Any:
        raise TypeError("what a checkpoint keeps secret cannot be pickled or copied")

    def open(self) -> dict[str, npt.NDArray[Any]]:
        return dict(self.__arrays)


class PrivateSteps(Protocol):
    """All that the public side may do with a chain over records it cannot see."""

    def run(self, steps: int, *, thin: int = 1) -> Released: ...

    def rescale(self, scale: FloatArray) -> None: ...

    def snapshot(self) -> Secret: ...

    def restore(self, secret: Secret) -> None: ...


class PrivateRecords:
    """The records of a model. ``units`` (people, say) is public; the number of rows they hold is not."""

    __slots__ = (
        "__fingerprint",
        "__reference",
        "__rows",
        "__seed",
        "__sums",
        "model",
        "rows_per_unit",
        "threads",
        "units",
    )

    def __init__(
        self,
        model: Model,
        rows: Rows | RowEngine,
        *,
        units: int,
        rows_per_unit: int = 1,
        seed: int | None = None,
        threads: int | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        self.model, self.units, self.rows_per_unit, self.threads = model, units, rows_per_unit, threads
        self.__rows = rows
        self.__seed = seed
        self.__fingerprint = fingerprint
        self.__reference: Reference | None = None
        self.__sums: tuple[FloatArray, npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def __repr__(self) -> str:
        return f"<PrivateRecords: {self.units} units of {self.model!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("private records cannot be pickled or copied: they would leave the private side")

    @property
    def private(self) -> bool:
        """False where a seed makes the randomness known."""
        return self.__seed is None

    def whereabouts(self) -> dict[str, Any]:
        """For a checkpoint: where the rows are, in words, and nothing of what they are."""
        from dpfastmh.steps.likelihood import Rows

        return {"name": "memory"} if isinstance(self.__rows, Rows) else self.__rows.whereabouts()

    def fingerprint(self) -> dict[str, str]:
        """NOT A RELEASE: keyed hashes of the table's columns, for the custodian's ledger, which is as secret as the
        table. Empty unless the records were loaded for one."""
        return {} if self.__fingerprint is None else self.__fingerprint.digests()

    def snapshot(self) -> Secret:
        """For a checkpoint: a keyed fingerprint of the table, and its key."""
        key = secrets.token_bytes(32)
        return Secret({"key": _bytes(key), "table": _bytes(self.__hash_of_rows(key))})

    def check(self, secret: Secret) -> None:
        """ValueError unless this is the table of a ``snapshot``, rows in the same order."""
        held = secret.open()
        if set(held) != {"key", "table"}:
            raise ValueError("the fingerprint of the run's table is missing")
        if not np.array_equal(held["table"], _bytes(self.__hash_of_rows(held["key"].tobytes()[:64]))):
            raise ValueError("the table is not the one that this run began with: its rows or their order have changed")

    def __hash_of_rows(self, key: bytes) -> bytes:
        """A keyed hash of the projected rows; of those in memory in blocks that threads hash side by side."""
        from dpfastmh.steps.likelihood import Rows

        if not isinstance(self.__rows, Rows):
            far = self.__rows
            header = repr((self.units, self.rows_per_unit, far.count, far.features, far.targets, far.dtype.str))
            return hashlib.blake2b(header.encode() + far.identity(key), key=key, digest_size=32).digest()
        header = repr((self.units, self.rows_per_unit, [(part.shape, part.dtype.str) for part in self.__rows[:5]]))
        whole = hashlib.blake2b(header.encode(), key=key, digest_size=32)
        with ThreadPoolExecutor(self.threads or os.cpu_count() or 1) as pool:
            for part in self.__rows[:5]:
                data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
                blocks = [data[start : start + HASHED] for start in range(0, len(data), HASHED)]
                for digest in pool.map(lambda block: hashlib.blake2b(block, key=key, digest_size=32).digest(), blocks):
                    whole.update(digest)
        return whole.digest()

    def noisy_gradient(self, point: FloatArray, rho: float, account: Share) -> tuple[FloatArray, float]:
        """Σ ∇U_i(θ)/τ + noise at a zCDP cost of ``rho``, and the noise's standard deviation."""
        from dpfastmh.steps.reference import grids

        release = GaussianSum(
            "gradient",
            gradient_sensitivity(self._slope(point), self._glm.domain.norm2(), 1.0, self.rows_per_unit),
            grids(self.model.table(), self._most_rows)[0],
            rho,
            self.units,
            np.ones(point.size),
            self.rows_per_unit,
        )
        return self._release(release, account, lambda: self._sums(point, 1)[0])

    def noisy_hessian(self, point: FloatArray, rho: float, account: Share) -> tuple[FloatArray, float]:
        """Σ ∇²U_i(θ)/τ + symmetric noise at a zCDP cost of ``rho``, and the standard deviation on the diagonal."""
        from dpfastmh.steps.reference import grids

        model = self._glm
        d, m = len(model.domain.features), model.predictors
        curvature = softmax_curvature_norm(m + 1) if isinstance(model.loss, losses.Softmax) else model.loss.constants[1]
        release = GaussianSum(
            "hessian",
            hessian_sensitivity(
                curvature, model.domain.norm2(), 1.0, convex=model.loss.convex, rows_per_unit=self.rows_per_unit
            ),
            grids(self.model.table(), self._most_rows)[1],
            rho,
            self.units,
            triangle_multiplicity(d, m),
            self.rows_per_unit,
        )

        def sums() -> npt.NDArray[np.int64]:
            return triangle_from_matrix(self._sums(point, 2)[1], d, m)

        numbers, sd = self._release(release, account, sums)
        return triangle_to_matrix(numbers, d, m), sd

    def chain(
        self, method: Method, start: FloatArray, account: Share, *, reference: FloatArray | None, number: int = 0
    ) -> PrivateChain:
        """A chain from a public start, paying from ``account``. ``reference`` is a public expansion point."""
        if method.acceptance == "penalty" and account.coin_bits > 53:
            raise ValueError("penalty acceptance is decided by 53 random bits: give the filter coin_bits=53")
        sampler = method.on(
            self.model,
            self.__rows,
            reference=self._sums_at(reference, method),
            seed=self.__seed,
            chain_number=number,
            threads=self.threads,
            public_rows=self._most_rows,
            meter=make_meter(self.model, method, account.alpha, self.units, self.rows_per_unit, also=account.also),
        )
        return PrivateChain(sampler, sampler.init(start), account)

    def reopen(
        self, method: Method, secret: Secret, account: Share, *, reference: FloatArray | None, number: int = 0
    ) -> PrivateChain:
        """The chain of a ``snapshot``, paying from a share that stands where that chain's share stood."""
        position = secret.open().get("place theta")
        if position is None:
            raise ValueError("the chain's state lacks a part")
        found = self.chain(method, position, account, reference=reference, number=number)
        found.restore(secret)
        return found

    def _sums(self, point: FloatArray, order: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """G and H at a point. One pass gives both, so they are kept until another H is asked for; each release of them
        is charged all the same."""
        from dpfastmh.steps.reference import integer_sums

        if self.__sums is not None and np.array_equal(self.__sums[0], point):
            return self.__sums[1:]
        gradient, hessian, _, _ = integer_sums(self.model, self.__rows, point, order=order, **self._sizes)
        if order == 2:
            self.__sums = (point.copy(), gradient, hessian)
        return gradient, hessian

    def _sums_at(self, point: FloatArray | None, method: Method) -> Reference | None:
        """The sums around an expansion point, taken once for all chains that move along the axes."""
        from dpfastmh.steps.reference import make_reference

        if point is None:
            return None
        directions = method.proposal.compiled(point.size, self.model.parameter_box).directions
        if directions.size:
            return make_reference(self.model, self.__rows, point, directions, **self._sizes)
        if self.__reference is None or not np.array_equal(self.__reference.point, point):
            self.__reference = make_reference(self.model, self.__rows, point, directions, **self._sizes)
        return self.__reference

    @property
    def _glm(self) -> GLM:
        if not isinstance(self.model, GLM):
            raise TypeError(f"{type(self.model).__name__} has no gradient of known sensitivity: give a start instead")
        return self.model

    @property
    def _most_rows(self) -> int:
        return self.units * self.rows_per_unit

    @property
    def _sizes(self) -> dict[str, Any]:
        return {"threads": self.threads, "public_rows": self._most_rows}

    def _slope(self, point: FloatArray) -> float:
        """sup |L′| at a public point: σ(s(θ)) for the logistic loss, ½ at θ = 0."""
        model = self._glm
        if isinstance(model.loss, losses.Softmax):
            return softmax_slope_norm(model.predictors + 1)
        if isinstance(model.loss, losses.Logistic):
            return 1.0 / (1.0 + math.exp(-min(model.domain.support(point), 700.0)))
        return float(model.loss.constants[0])

    def _release(self, release: GaussianSum, account: Share, sums: Any) -> tuple[FloatArray, float]:
        inverse = 1.0 / self.model.temperature
        noise = None if self.__seed is None else randomness.insecure_noise(self.__seed, account.steps)
        numbers = release.release(sums(), account, insecure_rng=noise)
        return numbers * inverse, release.noise_sd * inverse


class PrivateChain:
    """One chain over private records: it can only be run, and only while its share lasts."""

    __slots__ = ("__running", "__sampler", "__state", "_account")

    def __init__(self, sampler: Sampler, state: State, account: Share) -> None:
        self.__sampler, self.__state, self._account = sampler, state, account
        self.__running = threading.Lock()

    def rescale(self, scale: FloatArray) -> None:
        """Make moves of another length from here on: a public choice, computed from released quantities."""
        proposal = self.__sampler.proposal
        scales = np.ascontiguousarray(np.broadcast_to(scale, proposal.scale.shape), dtype=np.float64)
        if not (np.isfinite(scales).all() and (scales >= 0.0).all()):
            raise ValueError("the scales of moves must be finite and not negative")
        self.__sampler.proposal = proposal._replace(scale=scales)

    def __reduce__(self) -> Any:
        raise TypeError("a private chain cannot be pickled or copied: its state holds sums over records")

    def snapshot(self) -> Secret:
        """For a checkpoint: all that decides what this chain will do. Its share's charges are kept beside it."""
        with self.__running:
            return Secret(self.__sampler.snapshot() | self.__state.arrays())

    def restore(self, secret: Secret) -> None:
        """Go on from a ``snapshot``: the same steps follow as did there. ValueError if it is not of such a chain."""
        with self.__running:
            arrays = secret.open()
            try:
                following = self.__state.like(arrays)
                self.__sampler.restore(arrays)
            except KeyError:
                raise ValueError("the chain's state lacks a part") from None
            self.__state = following

    def run(self, steps: int, *, thin: int = 1) -> Released:
        """At most ``steps`` steps, fewer if the share ends. Their cost is entered before anything is returned."""
        with self.__running:  # two threads in one chain would share its coins
            return self.__run(steps, thin)

    def __run(self, steps: int, thin: int) -> Released:
        account = self._account
        account.check_process()
        allowed = min(steps, account.steps_cap - account.steps)
        if allowed < 1:
            nothing = np.zeros(self.__sampler.proposal.scale.size, np.int64)
            empty = np.empty((0, len(self.__sampler.model.parameters)))
            return Released(empty, self.__state.position, 0, nothing, nothing, 0.0, True)
        following, draws, info, spent = self.__sampler.run_metered(
            self.__state, allowed, thin=thin, limit=account.running_limit(allowed)
        )
        if info.steps:
            account.charge_sum("accept bits", spent, info.steps)
        self.__sampler.check_rows()  # after the charge: where rows were lost, nothing comes out, and the steps are paid
        self.__state = following
        return Released(
            draws,
            following.position,
            info.steps,
            info.tried_by_direction,
            info.accepted_by_direction,
            spent,
            info.steps < steps,
        )


def _bytes(content: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8)


def widening(parameters: int, rows: int, rows_per_unit: int = 1) -> float:
    """The relative allowance for rounding; see the head of this file."""
    own = 4.0 * (rows * (1100.0 + 16.0 * parameters) * 2.0**-52 + rows * 2.0**-64 + 2.0**-50)
    # the number of rows is private: beside another number of them everybody else's rows are picked a little otherwise
    return own if rows_per_unit == 1 else own + 4.0 * (rows * 2.0**-32) ** 2


@lru_cache(maxsize=32)
def _table(
    alpha: float, largest: float, batch: Batch, acceptance: Acceptance, variance: float | None, x: float, **shared: Any
) -> CostTable:
    """``cost_table``, once for all chains that move alike."""
    return cost_table(alpha, largest, batch=batch, x=x, acceptance=acceptance, variance=variance, **shared)


def make_meter(
    model: Model,
    method: Method,
    alpha: float,
    units: int,
    rows_per_unit: int = 1,
    *,
    also: tuple[float, ...] = (),
) -> Meter:
    """What each kind of step costs at order α (and pro rata at those in ``also``), from public numbers alone."""
    from dpfastmh.steps.chain import Meter

    if method.acceptance == "metropolis":
        raise ValueError('Metropolis acceptance cannot be private: a sure acceptance gives a record away; use "barker"')
    acceptance: Acceptance = "barker" if method.acceptance == "barker" else "penalty"
    full, mini = method.batches()
    ratio = method.rates(units)[1]
    if mini and acceptance != "barker":
        raise ValueError("penalty acceptance is private on the full batch only: use DPFastMHFull, or barker")
    if mini and not 1e-3 <= ratio <= 1.0:
        raise ValueError(f"ratio is {ratio:g}: a private minibatch needs x = Nb/λ of 0.001 to 1; use DPFastMH")
    if not method.laziness >= LEAST_LAZINESS:
        raise ValueError(f"laziness is {method.laziness:g}: a private chain needs at least {LEAST_LAZINESS:g}")
    shared: dict[str, Any] = {
        "also": also,
        "laziness": method.laziness,
        "rows_per_unit": rows_per_unit,
        "shift": rows_per_unit * CELLS,
    }
    variance = None if acceptance == "barker" else method.variance
    largest = LARGEST_BOUND / rows_per_unit * 1.01
    refused = CostTable(np.full(1, math.inf), 0.0, -1.0, 1.0, 0.0, 0.0, 0.0)
    expands = mini and model.has_expansion
    return Meter(
        True,
        0.0,
        _table(alpha, largest, "full", acceptance, variance, 1.0, **shared) if full else refused,
        _table(alpha, largest, "minibatch", "barker", None, ratio, **shared) if mini else refused,
        _table(alpha, 2.0 * largest, "control-variate", "barker", None, 1.0, **shared) if expands else refused,
        widening(len(model.parameters), units * rows_per_unit, rows_per_unit),
        LARGEST_BOUND / rows_per_unit,
    )
