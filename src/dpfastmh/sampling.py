"""Private sampling: a noisy Newton start, chains that run until their shares of the budget are spent, what they yield.

Everything in this file is on the public side: it sees a model, public numbers, and what ``PrivateRecords`` releases.

1. *Start*: G and H are released with noise at a few points, each a noisy Newton step from the last. H also says how
   wide the posterior is, and with that what the rest of the budget buys (``dpfastmh.planning``): too little is refused.
2. *Adaptation*: a small part of every chain's share tries the moves; how often they were accepted, which everybody may
   know, corrects their lengths.
3. *Main phase*: fixed moves around a fixed reference, until the share is spent.

Models without proven derivatives skip the first part: they start where they are told, or in the middle of their
parameter box, and find the length of their moves from acceptances alone.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh import __version__
from dpfastmh.budget import Budget
from dpfastmh.checkpoint import (
    BEGUN,
    FINISHED,
    MAIN,
    OPENED,
    Checkpoint,
    Keeper,
    check_new,
)
from dpfastmh.data.engine import RowEngine, RowsLost
from dpfastmh.data.mapped import is_row_folder, load_rows, projection_of
from dpfastmh.methods import Coordinates, DPFastMH, DPFastMHFull, Method, ProposalLike
from dpfastmh.models import GLM, Energy, Model
from dpfastmh.planning import (
    STEPS_CAP,
    BudgetTooSmall,
    Moves,
    Settings,
    Start,
    acceptance,
    choose_moves,
    most_steps,
    plan,
    replace_setting,
    too_small,
)
from dpfastmh.posterior import FEWEST, Posterior, Privacy, diagnostic
from dpfastmh.priors import energy_derivatives
from dpfastmh.privacy.boundary import PrivateRecords, PrivateSteps, Released
from dpfastmh.privacy.filter import RenyiFilter, Share
from dpfastmh.privacy.releases import newton_direction
from dpfastmh.run_state import Recorder
from dpfastmh.signals import interrupts_set, terminated_like_interrupted

if TYPE_CHECKING:
    from dpfastmh.data.fingerprint import Fingerprint
    from dpfastmh.ledger import Ledger, Reservation

__all__ = ["BudgetTooSmall", "Settings", "plan", "sample"]

FloatArray = npt.NDArray[np.float64]

MOST_DRAWS = 2_000  # kept of each chain, unless more are asked for
CHUNK_SECONDS = 0.25  # of a chain's work between two looks at signals and the clock, by the public speed figure;
BLIND_STEPS = 5_000  # for models without derivatives so many steps
BLIND_SECONDS = 1e-5  # public speed figure of an evaluated step of a model without derivatives
TARGET = 0.42  # acceptance that models without derivatives aim at
ROUNDS = 10  # of their adaptation,
SEARCH_SHARE = 0.1  # which ends once it has taken this much of a chain's budget
PILOT_SHARE = 0.01  # of a chain's budget, for finding out what a step costs
ENGINES = ("auto", "memory", "mapped")
METHODS: dict[str, type[Method]] = {method.name: method for method in (DPFastMH, DPFastMHFull)}


class Progress(NamedTuple):
    """What a progress display may show: released quantities, but for the display's own clock."""

    phase: str  # "start", "adapt", "main"
    spent: float  # ε so far
    epsilon: float  # of the budget
    steps: int
    draws: int
    share: float  # of the phase, 0 to 1
    effective: Callable[[], float] = lambda: math.nan  # least effective draws of a coefficient so far; takes a moment


Watcher = Callable[[Progress], None]


# -- the warm start --------------------------------------------------------------------------------------------------
def warm_start(
    records: PrivateRecords, account: Share, settings: Settings, watch: Callable[[float], None] = lambda share: None
) -> Start:
    """Noisy Newton steps from the prior's centre, all charged to ``account``.

    Each round releases G at the current point; some release H too. Near the mode every round's θ_t − P⁻¹(G_t + prior)
    estimates the mode with an error of P⁻¹·noise, so the last rounds are averaged with weights ∝ their ρ.
    """
    model = records.model
    assert isinstance(model, GLM)
    prior = model.prior_table
    p = len(model.parameters)
    rho = account.left / account.alpha * (1.0 - 1e-9)
    weights = np.array(settings.gradient_weights)
    gradient_rho = rho * (1.0 - settings.hessian_share) * weights / weights.sum()
    hessian_rho = rho * settings.hessian_share / len(settings.hessian_rounds)
    point, precision, noise = np.zeros(p), np.eye(p), 0.0
    estimates = []
    for number, share in enumerate(gradient_rho):
        slope, curvature = energy_derivatives(prior, point)
        if number in settings.hessian_rounds:
            hessian, spread = records.noisy_hessian(point, hessian_rho, account)
            # noise has eigenvalues up to about √(2p)·sd: raise what lies below its scale
            precision = _floored(hessian, 0.5 * spread * math.sqrt(2.0 * p))
        whole = precision + np.diag(curvature)
        gradient, noise = records.noisy_gradient(point, share, account)
        cap = 4.0 * math.sqrt(p)
        point = point + newton_direction(gradient + slope, whole, 1e-9 * float(np.trace(whole)) / p, cap)
        estimates.append(point)
        watch((number + 1) / len(weights))
    last = settings.last_weights
    point = np.average(np.array(estimates[-last.size :]), axis=0, weights=last)
    whole = precision + np.diag(energy_derivatives(prior, point)[1])
    covariance = np.linalg.inv(whole)
    noise_of_mean = noise * math.sqrt(last[-1] / last.sum())
    error = noise_of_mean * np.sqrt(np.diag(covariance @ covariance) / np.diag(covariance))
    return Start(point, whole, error)


def _floored(matrix: FloatArray, floor: float) -> FloatArray:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)


# -- sampling --------------------------------------------------------------------------------------------------------
def sample(
    model: Model,
    x: Any = None,
    y: Any = None,
    *,
    budget: Budget,
    engine: RowEngine | str = "auto",
    target: str | None = None,
    unit: str | None = None,
    max_rows_per_unit: int = 1,
    missing: Mapping[str, Any] | None = None,
    method: str = "dp-fast-mh",
    proposal: ProposalLike | None = None,
    start: npt.ArrayLike | None = None,
    laziness: float | None = None,
    chains: int = 2,
    draws: int | None = None,
    max_time: float | None = None,
    settings: Settings | None = None,
    seed: int | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: Watcher | None = None,
    ledger: Ledger | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    every: float = 60.0,
) -> Posterior:
    """Draws from the posterior at a total privacy cost of at most ``budget``, everything counted.

    Parameters
    ----------
    model, x, y
        A model and its records, as arrays; or x is a table, and its column ``target`` is y: a mapping of columns, a
        file, anything with the Arrow stream interface (pandas, Polars, PyArrow, DuckDB), or a folder of rows made by
        ``dpfastmh ingest``.
    engine
        Where the rows of such a folder are: "memory", "mapped" (read as they are needed), or "auto", in memory if they
        take up less than half of what is free. Or rows that live elsewhere, such as ``DaskRows(...)``, in place of x.
    unit, max_rows_per_unit
        Who is protected: the table's column that says whose row it is. Rows of a unit past the first
        ``max_rows_per_unit`` are dropped. Without it every row is a unit of its own.
    missing
        Public values for missing cells, by column; without one a missing cell is refused.
    method
        "dp-fast-mh" (the cheapest exact batch for each move) or "dp-fast-mh-full" (all rows, every time).
    proposal, start, laziness
        Moves, starting point and κ by hand; otherwise chosen from released quantities.
    draws, max_time
        End before the budget does: after so many kept draws of all chains (2,000 of a chain are kept unless this asks
        for more), or after the number of steps that take about
        so many seconds by the planner's public speed figure. What is not spent is reported as not spent.
    seed
        For tests only: results are **not private** and say so.
    force
        Allow δ above 1/N.
    progress
        Called with a ``Progress`` from time to time. An interrupt (Ctrl-C) ends the run with what was released so far.
    ledger
        A ``dpfastmh.Ledger`` that the run's whole budget is set aside in before its first release; what it did not
        spend goes back when it ends.
    checkpoint, every
        A new file for the run's state, written every so many seconds: ``resume`` goes on from it after a crash, at no
        further cost. It is as secret as the table. An interrupt, SIGTERM too, then writes it and ends without draws.
    """
    file = checkpoint if isinstance(checkpoint, Checkpoint | None) else Checkpoint(checkpoint, every)
    if file is not None:
        check_new(file.path)
    settings = _settled(settings, laziness)
    if not _whole(chains) or not (draws is None or _whole(draws)):
        raise ValueError(f"chains={chains}, draws={draws}: each must be a whole number above 0")
    if max_time is not None and not 0.0 < max_time < math.inf:
        raise ValueError(f"max_time={max_time}: it must be a number of seconds above 0")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: private sampling has {', '.join(METHODS)}")
    if unit is None and max_rows_per_unit != 1:
        raise ValueError(f"max_rows_per_unit is {max_rows_per_unit!r} without a unit column: name it with unit")
    start = _checked_start(model, start)
    outcome = target
    if isinstance(engine, RowEngine):
        unit, outcome = unit or engine.unit, engine.outcome
    if ledger is not None:
        ledger.check(budget, unit)
    fingerprint = None if ledger is None else ledger.fingerprint()
    records = records_of(model, x, y, engine, target, unit, max_rows_per_unit, missing, seed, threads, fingerprint)
    budget.check_rows(records.units, force=force)
    cap = min(STEPS_CAP, budget.most_steps() // chains - 100)
    if cap < 1000:
        raise ValueError(f"epsilon={budget.epsilon:g} is too large for delta={budget.delta:g}: lower epsilon")
    if isinstance(model, GLM) and proposal is None:
        refused = _hopeless(model, records, budget, chains, max_time, method, settings)
        if refused:
            raise BudgetTooSmall(f"{refused} Nothing was spent.")
    keeper = None if file is None else Keeper.create(file)
    hold = None
    if ledger is not None:
        cap = max(1000, min(cap, ledger.steps_left // 2 // chains - 100))  # the other half for whoever runs meanwhile
        try:
            hold = ledger.reserve(
                budget,
                steps=chains * cap + 100,
                units=records.units,
                unit=unit,
                columns=records.fingerprint(),
                private=records.private,
                model=type(model.loss if isinstance(model, GLM) else model).__name__,
                run_id=None if keeper is None else keeper.run_id,
            )
        except BaseException:
            if keeper is not None:
                keeper.close()
            raise
    account = RenyiFilter(budget, steps_cap=chains * cap + 100) if hold is None else hold.account
    run = Run(
        model=model,
        records=records,
        account=account,
        budget=budget,
        method=METHODS[method],
        chains=chains,
        cap=cap,
        draws=draws,
        max_time=max_time,
        settings=settings,
        seed=seed,
        progress=progress,
        unit=unit or ("row" if records.rows_per_unit == 1 else "unit"),
        outcome=outcome,
        table=_table(x, outcome, unit, missing, records),
        keeper=keeper,
        hold=hold,
        dataset=None if ledger is None else ledger.dataset,
    )
    if isinstance(model, GLM) and proposal is None:
        return run.through(lambda: run.plan_from_release(start))
    return run.through(lambda: run.take_as_told(proposal, start))


def _table(x: Any, target: str | None, unit: str | None, missing: Any, records: PrivateRecords) -> dict[str, Any]:
    """For a checkpoint: where and how the table was read."""
    engine = records.whereabouts()
    values = engine.pop("missing", missing) or {}
    filled = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    return {"data": _where(x), "target": target, "unit": unit, "missing": filled, "engine": engine}


def _where(x: Any) -> str | None:
    """Where a table that is a file can be read again."""
    path = getattr(x, "where", x)  # a table that was opened already says where it is
    found = isinstance(path, str | os.PathLike) and os.fspath(path) != "-" and os.path.exists(path)
    return os.path.abspath(path) if found else None


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _checked_start(model: Model, start: npt.ArrayLike | None) -> FloatArray | None:
    """The start as finite numbers, one for each parameter: a mistake must not come out after releases were paid for."""
    if start is None:
        return None
    try:
        point = np.array(start, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        point = np.full(1, math.nan)
    p = len(model.parameters)
    if point.size != p or not np.isfinite(point).all():
        raise ValueError(f"start is {start!r}: give {p} finite numbers, one for each parameter")
    box = model.parameter_box
    if box is not None and not (np.all(box[0] <= point) and np.all(point <= box[1])):
        raise ValueError("start lies outside the parameter box: start inside it")
    return point


def _settled(settings: Settings | None, laziness: float | None) -> Settings:
    settings = settings or Settings()
    return settings if laziness is None else replace_setting(settings, laziness=laziness)


def records_of(
    model: Model,
    x: Any,
    y: Any,
    engine: RowEngine | str,
    target: str | None,
    unit: Any,
    k: int,
    missing: Any,
    seed: int | None,
    threads: Any,
    fingerprint: Fingerprint | None,
) -> PrivateRecords:
    """The private side, loaded from arrays or a table, or rows that live elsewhere."""
    options: dict[str, Any] = {"seed": seed, "threads": threads, "fingerprint": fingerprint}
    if isinstance(engine, RowEngine):
        if not (x is None and y is None and target is None and unit in (None, engine.unit) and not missing):
            raise ValueError("engine holds the rows already: leave out the table, target, unit and missing")
        engine.check(model)
        if fingerprint is not None:
            fingerprint.merge(engine.cells(model))
        return PrivateRecords(model, engine, units=engine.units, rows_per_unit=engine.rows_per_unit, **options)
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}: choose one of {', '.join(ENGINES)}, or give a DaskRows")
    if is_row_folder(x):
        if y is not None:
            raise ValueError("a folder of rows holds its target: leave y out")
        projection = projection_of(model, target, unit, k, missing)
        rows, units, most = load_rows(x, model, projection, engine=engine, fingerprint=fingerprint)
        return PrivateRecords(model, rows, units=units, rows_per_unit=most, **options)
    if engine == "mapped":
        raise ValueError('engine "mapped" reads a folder of rows: make one of the table with "dpfastmh ingest"')
    if x is None:
        raise ValueError("no records: give a table or arrays as x, or rows that live elsewhere as engine")
    if target is not None:
        from dpfastmh.data.loading import load

        if y is not None or not isinstance(model, GLM):
            raise ValueError("target names a column of the table x of a regression model: leave y out")
        loaded = load(model, x, target=target, unit=unit, max_rows_per_unit=k, missing=missing, fingerprint=fingerprint)
        return PrivateRecords(model, loaded.rows, units=loaded.units, rows_per_unit=loaded.rows_per_unit, **options)
    if unit is not None or missing:
        raise ValueError(
            "unit and missing name columns of a table: give the table as x and the target's name as target"
        )
    arrays = model.load(x, y)
    if fingerprint is not None:
        fingerprint.add_arrays(x, y, model.columns)
    return PrivateRecords(model, arrays, units=arrays.x.shape[0], rows_per_unit=1, **options)


def _hopeless(
    model: GLM,
    records: PrivateRecords,
    budget: Budget,
    chains: int,
    max_time: float | None,
    method: str,
    settings: Settings,
) -> str:
    """Why not even the nominal design would give the draws asked for; empty where it would."""
    if settings.least_draws <= 0.0:
        return ""
    found = plan(
        model,
        units=records.units,
        budget=budget,
        max_rows_per_unit=records.rows_per_unit,
        chains=chains,
        max_time=max_time,
        method=method,
        settings=settings,
    )
    return "" if found.effective.min() >= settings.least_draws else found.advice


@dataclass
class Run:
    """One call of ``sample``, from the first release to the last."""

    model: Model
    records: PrivateRecords | None  # None where nothing is left to do but to look at the draws
    account: RenyiFilter
    budget: Budget
    method: type[Method]
    chains: int
    cap: int  # steps of one chain
    draws: int | None
    max_time: float | None
    settings: Settings
    seed: int | None
    progress: Watcher | None
    unit: str
    outcome: str | None
    table: dict[str, Any]  # where and how the table was read
    keeper: Keeper | None
    hold: Reservation | None  # of a ledger
    dataset: str | None  # its name there

    def __post_init__(self) -> None:
        self.stop = threading.Event()
        self.keep = max(MOST_DRAWS, math.ceil((self.draws or 0) / self.chains))  # draws of one chain
        self.lock = threading.Lock()
        self.warnings: list[str] = []
        self.facts: dict[str, Any] = {}
        self.moves: Moves | None = None
        self.width: FloatArray | None = None  # of moves whose length has to be found
        self.thin = 0  # not known yet
        self.base: float | None = None  # what had been paid before the main phase
        self.reference: FloatArray | None = None
        self.parts: list[list[Released]] = [[] for _ in range(self.chains)]  # of the main phase
        self.recorder = Recorder(self, self.keeper)
        if self.records is not None:
            self.units, self.rows_per_unit = self.records.units, self.records.rows_per_unit

    # -- from the first release to the last --------------------------------------------------------------------------
    def through(self, opening: Callable[[], None]) -> Posterior:
        """``opening`` finds a start and opens the chains, unless a checkpoint has done so."""
        keeper, ended = self.keeper, False
        with terminated_like_interrupted() if keeper else nullcontext():
            try:
                self.recorder.begin()
                opening()
                if self.base is None:
                    self.recorder.save(OPENED)
                    self.try_moves()
                    self.base = self.account.charged
                    self.recorder.save(MAIN)
                posterior = self.finish()
                ended = True
                return posterior
            except KeyboardInterrupt:
                if keeper and keeper.phase != BEGUN:
                    trouble = f" ({keeper.trouble})" if keeper.trouble else ""
                    raise KeyboardInterrupt(f"stopped{trouble}; dpfastmh resume {keeper.path} goes on") from None
                spent = self.account.epsilon_spent()
                raise KeyboardInterrupt(f"stopped, and no draws are kept. Spent: epsilon = {spent:.3g}.") from None
            except RowsLost as error:
                if keeper and keeper.phase in (OPENED, MAIN):
                    raise RowsLost(f"{error}. Once they can be had, dpfastmh resume {keeper.path} goes on") from error
                spent = self.account.epsilon_spent()
                raise RowsLost(f"{error}. The run ended; spent: epsilon = {spent:.3g}.") from error
            finally:
                if self.hold and (ended or not keeper or keeper.phase not in (OPENED, MAIN)):
                    self.hold.settle()  # shares that were not settled, of chains that an error cut off, count in full
                if keeper:
                    if keeper.phase == BEGUN or (ended and self.hold and keeper.phase != FINISHED):
                        # nobody could go on from it; or it is out of date, and recovering it would give back too much
                        keeper.discard()
                    keeper.close()

    # -- how to move -------------------------------------------------------------------------------------------------
    def plan_from_release(self, start: npt.ArrayLike | None) -> None:
        """Warm start, planned moves, and a pilot that corrects them."""
        model, settings, account = self.model, self.settings, self.account
        assert isinstance(model, GLM)
        assert self.records is not None
        share = account.reserve("warm start", account.limit * settings.warm_share, 100)
        try:
            found = warm_start(self.records, share, settings, lambda part: self.tell("start", part, 0, 0))
        finally:
            account.settle(share)  # nothing runs on it any more; what it charged stays charged
        rho = account.left / account.alpha / self.chains
        moves = choose_moves(
            model,
            found,
            rho,
            self.units,
            self.rows_per_unit,
            settings,
            seconds=self.max_time or settings.patience,
            full=self.method is DPFastMHFull,
        )
        self.check_worth(moves)
        self.facts = {
            "point": found.point.tolist(),
            "error": found.error.tolist(),
            "precision": found.precision.tolist(),
            "dispersion": settings.dispersion,
        }
        point = found.point if start is None else np.asarray(start, dtype=np.float64)
        starts = _dispersed(point, found.covariance, self.chains, settings.dispersion, self.seed)
        self.open(Coordinates(moves.scales), moves.laziness, starts, reference=found.point)
        self.most = int(most_steps(moves, self.max_time, self.cap))
        self.thin = max(1, math.ceil(1.3 * min(moves.steps, self.most) / self.keep))
        self.moves = moves

    def check_worth(self, moves: Moves) -> None:
        """Refuse to go on where the rest of the budget would not buy one draw: it stays unspent."""
        draws = moves.effective(self.chains)
        worst = int(np.argmin(draws))
        if draws[worst] < self.settings.least_draws:
            # effective draws are in proportion to temperature, to ρ (ε² where ε is small) and to units
            lacking = self.settings.least_draws / draws[worst]
            epsilon = _epsilon_for(self.budget, lacking)
            advice = too_small(
                float(draws[worst]), self.model.temperature * lacking, epsilon, math.ceil(self.units * lacking)
            )
            raise BudgetTooSmall(
                f"along {self.model.parameters[worst]!r} the posterior is too narrow for the rest of this budget. "
                f"{advice} Spent on finding out: epsilon = {self.account.epsilon_spent():.3g}."
            )

    def take_as_told(self, proposal: ProposalLike | None, start: npt.ArrayLike | None) -> None:
        """No warm start: a given or central point, given moves or ones whose length is found from acceptances."""
        model, p = self.model, len(self.model.parameters)
        box = model.parameter_box
        if start is None and box is None:
            raise ValueError(f"{type(model).__name__} has no parameter box: give a start")
        point = np.asarray(np.add(*box) / 2.0 if start is None and box is not None else start, dtype=np.float64)
        reference = point if model.has_expansion and start is not None else None
        kappa = self.settings.laziness or 0.25
        starts = [point.reshape(-1) for _ in range(self.chains)]
        self.most = self.cap
        if self.max_time is not None:
            self.most = max(1, int(min(self.cap, self.max_time / (BLIND_SECONDS * kappa))))
        if proposal is None:
            self.width = np.full(p, 1.0) if box is None else (box[1] - box[0]) / 10.0
            proposal = Coordinates(self.width)
        self.open(proposal, kappa, starts, reference=reference)

    def open(
        self, proposal: ProposalLike, laziness: float, starts: Sequence[FloatArray], *, reference: FloatArray | None
    ) -> None:
        """Fixed shares, one for each chain, and the chains."""
        account, count = self.account, self.chains
        assert self.records is not None
        self.rule, self.reference = self.method(proposal, laziness=laziness, **self.method_options()), reference
        self.shares = [account.reserve(f"chain {k + 1}", account.left / (count - k), self.cap) for k in range(count)]
        self.running: list[PrivateSteps] = [
            self.records.chain(self.rule, starts[k], self.shares[k], reference=reference, number=k)
            for k in range(count)
        ]
        self.recorder.mark_all()

    def method_options(self) -> dict[str, Any]:
        return {"thrift": self.settings.thrift} if self.method is DPFastMH else {}

    def try_moves(self) -> None:
        """The pilot: correct planned moves, or find the length of blind ones; then how many draws to keep."""
        if self.moves is not None:
            self.correct(self.moves)
        if self.width is not None:
            self.search(self.width)
        if not self.thin:
            self.thin = self.thin_from_pilot()
        self.recorder.mark_all()

    def correct(self, moves: Moves) -> None:
        """Try the moves; where a coordinate's acceptance is far from what was planned, mend its length.

        Acceptance a(s) falls with the length s in conditional sd, so its inverse tells how long the moves really are.
        Four standard errors must lie between, and one correction is held to a factor of 8 down and 2 up.
        """
        steps = int(self.settings.adapt_share * min(moves.steps, self.most))
        if steps < 1:
            return
        pilots = self.together(steps)
        tried = np.sum([pilot.tried for pilot in pilots], axis=0) * moves.laziness
        accepted = np.sum([pilot.accepted for pilot in pilots], axis=0)
        planned = acceptance(moves.own)
        with np.errstate(divide="ignore", invalid="ignore"):
            off = (accepted - planned * tried) / np.sqrt(planned * (1.0 - planned * moves.laziness) * tried)
            seen = np.interp(-accepted / tried, -acceptance(_LENGTHS), _LENGTHS)
            factor = np.clip(moves.own / seen, 0.125, 2.0)
        wrong = (np.abs(off) > 4.0) & np.isfinite(factor)
        if wrong.any():
            scales = np.where(wrong, moves.scales * factor, moves.scales)
            for chain in self.running:
                chain.rescale(scales)

    def search(self, width: FloatArray) -> None:
        """Robbins-Monro on the logarithm of each length, towards the target acceptance, all chains together.

        A turn ends early once it has taken its part of ``SEARCH_SHARE``: with little to spend, turns are short.
        """
        scales = width.copy()
        steps = 60.0 * width.size / self.rule.laziness
        for turn in range(ROUNDS):
            pilots = self.trial(steps, SEARCH_SHARE / ROUNDS)
            tried = np.maximum(np.sum([pilot.tried for pilot in pilots], axis=0) * self.rule.laziness, 1.0)
            accepted = np.sum([pilot.accepted for pilot in pilots], axis=0)
            scales = scales * np.exp(4.0 / (1.0 + turn) ** 0.6 * (accepted / tried - TARGET))
            for chain in self.running:
                chain.rescale(scales)
            if any(share.spent > SEARCH_SHARE * share.limit for share in self.shares):
                break

    def thin_from_pilot(self) -> int:
        """Keep at most ``self.keep`` draws of a chain, from what up to a thousand evaluated steps cost."""
        pilots = self.trial(1000.0 / self.rule.laziness, PILOT_SHARE)
        price = sum(pilot.spent for pilot in pilots) / max(sum(pilot.steps for pilot in pilots), 1)
        left = min(share.left for share in self.shares)
        expected = min(float(self.most), left / price) if price > 0.0 else float(self.most)
        return max(1, math.ceil(1.3 * expected / self.keep))

    def trial(self, steps: float, part: float) -> list[Released]:
        """Up to this many trial steps of every chain, fewer where they would take about this part of a share.

        A few steps tell what one costs, and with that how many more there may be.
        """
        before = [share.spent for share in self.shares]
        most, made, piece = math.ceil(steps), 0, math.ceil(4.0 / self.rule.laziness)
        found: list[Released] = []
        while made < most and piece >= 1:
            piece = min(piece, most - made)
            found += self.together(piece)
            made += piece
            taken = max((s.spent - b) / s.limit for s, b in zip(self.shares, before, strict=True))
            piece = most if taken <= 0.0 else int(min(made * (part / taken - 1.0), float(most)))
        return found

    # -- the main phase ----------------------------------------------------------------------------------------------
    def finish(self) -> Posterior:
        """Run every chain to the end of its share, or of what was asked for."""
        most = max(1, self.most // self.thin) * self.thin
        if self.draws is not None:
            most = min(most, math.ceil(self.draws / self.chains) * self.thin)
        chunk = max(1, self.steps_at_once() // self.thin) * self.thin
        made = [sum(part.steps for part in parts) for parts in self.parts]

        def whole(number: int) -> None:
            chain, parts = self.running[number], self.parts[number]
            # whoever is stopped makes one chunk at least, so that no chain is without a draw
            while made[number] < most and not (parts and (self.stop.is_set() or parts[-1].closed)):
                part = chain.run(min(chunk, most - made[number]), thin=self.thin)
                parts.append(part)
                made[number] += part.steps
                self.recorder.mark_if_wanted(number)
                steps = sum(made)
                self.tell("main", max(steps / (most * self.chains), self.paid()), steps, steps // self.thin)
            self.recorder.mark_end(number)

        if self.records is not None:
            self.in_threads(whole, self.recorder.save_in_time)
            if self.keeper and self.stop.is_set():
                self.recorder.save(MAIN)
                raise KeyboardInterrupt
            for share in self.shares:
                self.account.settle(share)
            self.recorder.save(FINISHED)
        self.tell("done", 1.0, sum(made), sum(made) // self.thin)
        assert self.base is not None
        return self.posterior(self.parts, self.base)

    def steps_at_once(self) -> int:
        """Steps of a chain between two looks at signals and the clock, from the public speed figure."""
        if self.moves is None:
            return BLIND_STEPS
        return int(min(50_000.0, CHUNK_SECONDS * self.moves.steps / self.moves.seconds))

    def together(self, steps: int) -> list[Released]:
        """Trial steps of all chains; their draws are not kept."""
        found = self.in_threads(lambda number: self.running[number].run(steps, thin=steps))
        if self.keeper and self.stop.is_set():
            raise KeyboardInterrupt  # the pilot is part of the same run, and made again when that goes on
        self.tell("adapt", 1.0, steps, 0)
        return found

    def in_threads(self, work: Callable[[int], Any], meanwhile: Callable[[], None] = lambda: None) -> list[Any]:
        """``work(0), ..., work(chains − 1)`` at once. An interrupt makes every chain end after its present chunk."""
        stopped = self.stop.is_set()
        with interrupts_set(self.stop), ThreadPoolExecutor(self.chains) as pool:
            try:
                futures = [pool.submit(work, number) for number in range(self.chains)]
                pause = 0.1 if self.keeper is None else min(0.1, self.keeper.checkpoint.every / 4.0)
                while wait(futures, timeout=pause).not_done:  # a waiting thread wakes up to see signals
                    meanwhile()
            except BaseException:  # of a handler that is not ours: do not wait for the end of the budget
                self.stop.set()
                raise
        if self.stop.is_set() and not stopped and self.keeper is None:
            self.warnings.append("The run was interrupted: draws end where it was, and so does what was spent.")
        return [future.result() for future in futures]

    def tell(self, phase: str, share: float, steps: int, draws: int) -> None:
        if self.progress is None:
            return
        with self.lock:
            spent = self.account.epsilon_at(self.account.charged)
            self.progress(
                Progress(phase, spent, self.budget.epsilon, steps, draws, min(share, 1.0), self.effective_so_far)
            )

    def paid(self) -> float:
        """The part of the chains' shares that is spent."""
        return sum(share.spent for share in self.shares) / sum(share.limit for share in self.shares)

    def effective_so_far(self) -> float:
        """The least effective draws of a coefficient so far; NaN while there are too few to tell."""
        chains = [np.concatenate([_none(self.model), *(part.draws for part in parts)]) for parts in self.parts]
        kept = min(map(len, chains))
        least = np.nan if kept < FEWEST else np.fmin.reduce(diagnostic("ess", np.stack([c[:kept] for c in chains])))
        return float(least)

    # -- what comes out ----------------------------------------------------------------------------------------------
    def posterior(self, results: list[list[Released]], base: float) -> Posterior:
        """``base`` is what had been paid before the main phase."""
        account, budget, model = self.account, self.budget, self.model
        draws = [np.concatenate([_none(model), *(part.draws for part in parts)]) for parts in results]
        kept = min(len(chain) for chain in draws)
        if kept == 0 and self.stop.is_set():
            raise KeyboardInterrupt
        if kept == 0:
            raise BudgetTooSmall(
                "the budget ended before the first draw was kept: raise epsilon or the temperature. "
                f"Spent: epsilon = {account.epsilon_spent():.3g}."
            )
        every = math.ceil(kept / self.keep)
        held = np.stack([chain[every - 1 : kept : every] for chain in draws])
        privacy = Privacy(
            epsilon=budget.epsilon,
            delta=budget.delta,
            epsilon_spent=account.epsilon_spent(),
            delta_spent=account.delta_spent(),
            alpha=account.alpha,
            rdp_spent=account.spent,
            units=self.units,
            unit=self.unit,
            max_rows_per_unit=self.rows_per_unit,
            method=self.method.name,
            exact_target=_target(model),
            private=self.seed is None,
            temperature=model.temperature,
            chains=self.chains,
            steps=sum(part.steps for parts in results for part in parts),
            draws=held.shape[0] * held.shape[1],
            releases=tuple({"what": c.what, "rdp": c.rdp, "count": c.count} for c in account.releases),
            library_version=__version__,
        )
        return Posterior(
            names=model.parameters,
            draws=held,
            accepted=np.array([np.sum([part.accepted for part in parts], axis=0) for parts in results]),
            tried=np.array([np.sum([part.tried for part in parts], axis=0) for parts in results]),
            spending=self.spending(results, base),
            privacy=privacy,
            model=model if isinstance(model, GLM) else None,
            warnings=tuple(self.warnings),
            start=self.facts | {"laziness": self.rule.laziness, "thin": self.thin * every},
            outcome=self.outcome,
        )

    def spending(self, results: list[list[Released]], base: float) -> FloatArray:
        """(steps, ε) after every round of chunks, as if the chains took turns."""
        steps, spent = 0, base
        rows = [(0.0, self.account.epsilon_at(base))]
        for turn in range(max(len(parts) for parts in results)):
            for part in (parts[turn] for parts in results if turn < len(parts)):
                steps += part.steps
                spent += part.spent
            rows.append((float(steps), self.account.epsilon_at(min(spent, self.account.spent))))
        return np.array(rows)


_LENGTHS = np.geomspace(0.02, 20.0, 60)


def _none(model: Model) -> FloatArray:
    return np.empty((0, len(model.parameters)))


def _target(model: Model) -> str:
    """What is sampled exactly: a user's energy may be held to its bound, and whether it was is private."""
    if isinstance(model, Energy):
        return "clampable"
    return "posterior" if model.temperature == 1.0 else "tempered"


def _epsilon_for(budget: Budget, factor: float) -> float:
    """The ε at this δ that buys ``factor`` times the ρ, by bisection."""
    from dpfastmh.budget import gaussian_limit_rho

    wanted = factor * gaussian_limit_rho(budget)
    low, high = budget.epsilon, budget.epsilon * max(factor, 1.0) + 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_limit_rho(Budget(middle, budget.delta)) < wanted else (low, middle)
    return high


def _dispersed(
    point: FloatArray, covariance: FloatArray, chains: int, dispersion: float, seed: int | None
) -> list[FloatArray]:
    """Starts around the released point, in mirrored pairs, so that their mean is the point; the noise is public."""
    rng = np.random.default_rng(None if seed is None else [seed, 7])
    root = np.linalg.cholesky(covariance)
    starts = []
    for k in range(chains):
        if k % 2 == 0:
            shift = dispersion * (root @ rng.standard_normal(point.size))
        starts.append(point + (shift if k % 2 == 0 else -shift))
    return starts if chains > 1 else [point]
