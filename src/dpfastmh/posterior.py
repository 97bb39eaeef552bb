"""What comes out of ``sample``: released numbers and nothing else, with what a reader wants to do with them.

A ``Posterior`` holds draws of the coefficients of the *scaled* features, public counts, the privacy statement and the
public side of the model. It never holds rows, energies, batch sizes or timings: ``__post_init__`` refuses whatever is
not on the list of released facts, so a private number cannot ride along into a file or a report.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh.statement import NOT_PRIVATE, temperature_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpfastmh.findings import PosteriorWarning
    from dpfastmh.models import GLM
    from dpfastmh.prediction import Prediction

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

START_FACTS = frozenset(
    {
        "point",  # where the warm start ended: post-processing of noisy sums
        "precision",  # the noisy Hessian with the prior's
        "error",  # how far off the point may be, from the noise's known scale
        "noise",  # standard deviations of the releases, set before they were made
        "rho",  # their costs
        "rounds",
        "dispersion",  # of the chains' starts, public randomness
        "scales",  # of the moves
        "laziness",
        "thin",
    }
)
RELEASE_FACTS = frozenset({"what", "rdp", "count"})
SCALES = ("scaled", "original")


class PosteriorError(ValueError):
    """A posterior that cannot be, or something it cannot do. One line."""


@dataclass(frozen=True)
class Privacy:
    """The privacy statement of a run: what was promised, to whom, and what was paid for. ``privacy.json`` is this."""

    epsilon: float
    delta: float
    epsilon_spent: float
    delta_spent: float
    alpha: float
    rdp_spent: float
    units: int  # public; the number of rows is not, where a unit can hold several
    unit: str
    max_rows_per_unit: int
    method: str
    exact_target: str
    private: bool
    temperature: float
    chains: int
    steps: int
    draws: int
    releases: tuple[dict[str, Any], ...]
    library_version: str
    neighbouring: str = "replace-one"

    def __post_init__(self) -> None:
        for release in self.releases:
            _only(release, RELEASE_FACTS, "a release")
            if not {"what", "rdp"} <= release.keys():
                raise PosteriorError(
                    f"a release says what it was and its rdp, not only {', '.join(release) or 'nothing'}"
                )


def _only(facts: Mapping[str, Any], allowed: frozenset[str], what: str) -> None:
    """Fail closed on anything that is not on the list."""
    for name in facts:
        if name not in allowed:
            raise PosteriorError(
                f"{name!r} is not among the released facts of {what}: it must stay on the private side"
            )


class Row(NamedTuple):
    """One coefficient on one scale. ``mcse`` is the standard error of ``mean`` from the finite number of draws."""

    name: str
    scale: str
    mean: float
    sd: float
    q5: float
    q95: float
    ess: float
    mcse: float
    rhat: float


@dataclass(frozen=True)
class Summary:
    """A table of coefficients. Prints itself; ``to_csv`` and ``to_pandas`` carry it further."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def on(self, scale: str) -> tuple[Row, ...]:
        """The rows of one scale, "scaled" or "original"."""
        return tuple(row for row in self.rows if row.scale == scale)

    def __str__(self) -> str:
        width = max([len("original scale"), *(len(row.name) for row in self.rows)]) + 1
        head = f"{'mean':>11}{'sd':>10}{'5%':>11}{'95%':>11}{'ess':>7}{'mcse':>10}{'rhat':>7}"
        lines = [self.title]
        for scale in SCALES:
            if rows := self.on(scale):
                lines += ["", f"{scale + ' scale':<{width}}{head}"]
                lines += [_text_row(row, width) for row in rows]
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)

    __repr__ = __str__

    def csv(self) -> str:
        """The table as CSV; a number that cannot be had (too few draws) is an empty cell."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in self.rows:
            writer.writerow([row.name, row.scale, *("" if math.isnan(x) else repr(float(x)) for x in row[2:])])
        return out.getvalue()

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        from dpfastmh.outputs import replace_file

        return replace_file(path, self.csv().encode())

    def to_pandas(self) -> Any:
        """A pandas data frame (pandas must be installed)."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(Row._fields))


def _text_row(row: Row, width: int) -> str:
    def number(value: float, places: int) -> str:
        return f"{value:>{places}.4g}" if math.isfinite(value) else f"{'-':>{places}}"

    ess = f"{row.ess:>7.0f}" if math.isfinite(row.ess) else f"{'-':>7}"
    rhat = f"{row.rhat:>7.2f}" if math.isfinite(row.rhat) else f"{'-':>7}"
    middle = number(row.mean, 11) + number(row.sd, 10) + number(row.q5, 11) + number(row.q95, 11)
    return f"{row.name:<{width}}{middle}{ess}{number(row.mcse, 10)}{rhat}"


@dataclass(frozen=True)
class Posterior:
    """Draws of the coefficients of the scaled features, chain by chain, with the privacy statement."""

    names: tuple[str, ...]
    draws: FloatArray  # (chain, draw, coefficient)
    accepted: IntArray  # (chain, coefficient or direction): accepted moves
    tried: IntArray  # the same: proposed moves, lazy ones included, so that no private coin shows
    spending: FloatArray  # (k, 2): steps made so far by all chains, ε spent so far
    privacy: Privacy
    model: GLM | None = None  # the public side: loss, domain, classes, prior, temperature
    warnings: tuple[str, ...] = ()
    start: dict[str, Any] | None = None  # public facts of the warm start
    outcome: str | None = None  # the name of the target column
    missing: dict[str, str | int | float | bool] = field(default_factory=dict)  # public values of missing cells
    _diagnostics: dict[str, FloatArray] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        count, chains = len(self.names), self.draws.shape[0] if self.draws.ndim == 3 else 0
        if self.draws.ndim != 3 or self.draws.shape[2] != count or not count or not chains:
            raise PosteriorError(
                f"draws of shape {self.draws.shape} for {count} names: give (chain, draw, coefficient)"
            )
        if not self.draws.shape[1] or not np.isfinite(self.draws).all():
            raise PosteriorError("there are no draws, or some are not finite")
        if self.accepted.shape != self.tried.shape or self.tried.ndim != 2 or len(self.tried) != chains:
            raise PosteriorError("accepted and tried must have one row for each chain and the same shape")
        if np.any(self.accepted < 0) or np.any(self.accepted > self.tried):
            raise PosteriorError("accepted moves must lie between 0 and the moves tried")
        if self.spending.ndim != 2 or self.spending.shape[1] != 2:
            raise PosteriorError(f"spending of shape {self.spending.shape}: give (k, 2), steps and epsilon")
        if self.model is not None and tuple(self.model.parameters) != tuple(self.names):
            raise PosteriorError("the model's coefficients are not those of the draws")
        _only(self.start or {}, START_FACTS, "the start")

    def __repr__(self) -> str:
        what = f"{self.outcome}: " if self.outcome else ""
        return f"<Posterior {what}{self.title}; {len(self.names)} coefficients, see summary()>"

    # -- words -------------------------------------------------------------------------------------------------------
    @property
    def word(self) -> str:
        """What was sampled: only temperature 1 is the posterior."""
        return "posterior" if self.privacy.temperature == 1.0 else f"tempered ({self.privacy.temperature:g})"

    @property
    def title(self) -> str:
        """One line that names these draws, with a warning in front where nothing protects them."""
        chains, draws = self.draws.shape[:2]
        text = f"{self.word}, {chains} chain{'s' if chains > 1 else ''} of {draws:,} draws"
        if not self.privacy.private:
            return f"{NOT_PRIVATE}: {text}"
        return f"{text}, epsilon = {self.privacy.epsilon_spent:.4g} spent of {self.privacy.epsilon:g}"

    # -- numbers -----------------------------------------------------------------------------------------------------
    @property
    def means(self) -> FloatArray:
        return np.asarray(self.draws.mean(axis=(0, 1)))

    @property
    def sds(self) -> FloatArray:
        """Standard deviations about the mean of all chains."""
        return _sds(self.draws)

    @property
    def acceptance(self) -> FloatArray:
        """Share of proposed moves that were accepted (chain, move); NaN where none was proposed."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.accepted / np.where(self.tried > 0, self.tried, np.nan))

    @property
    def move_names(self) -> tuple[str, ...]:
        """Names of what the counts count: coefficients moved one by one, or numbered directions."""
        count = self.tried.shape[1]
        return self.names if count == len(self.names) else tuple(f"direction {k}" for k in range(count))

    def ess(self) -> FloatArray:
        """Effective draws of each coefficient's mean, all chains together; NaN where they cannot be told."""
        return self._diagnostic("ess", self.draws)

    def mcse(self) -> FloatArray:
        """Standard error of each mean from the finite number of draws."""
        return self._diagnostic("mcse", self.draws)

    def rhat(self) -> FloatArray:
        """Rank-normalised split R-hat of each coefficient."""
        return self._diagnostic("rhat", self.draws)

    def _diagnostic(self, what: str, draws: FloatArray, scale: str = "scaled") -> FloatArray:
        key = f"{what} {scale}"
        if key not in self._diagnostics:
            self._diagnostics[key] = diagnostic(what, draws)
        return self._diagnostics[key]

    @property
    def original(self) -> FloatArray | None:
        """The draws per unit of the original columns, with the matching intercept.

        None for models that are not regressions, and where the scaling's shift has no intercept to go to.
        """
        from dpfastmh.domain import DomainError

        if self.model is None:
            return None
        chains, draws, _ = self.draws.shape
        domain = self.model.domain
        try:
            by_class = domain.original(self.draws.reshape(chains, draws, self.model.predictors, len(domain)))
        except DomainError:
            return None
        return by_class.reshape(self.draws.shape)

    def summary(self) -> Summary:
        """Mean, standard deviation, 90% interval, effective draws, Monte Carlo error and R-hat, on both scales.

        Its notes say what the privacy budget did to precision, and what limits the conclusions.
        """
        from dpfastmh.findings import precision

        rows = self._rows("scaled", self.draws)
        original = self.original
        if original is not None:
            rows += self._rows("original", original)
        notes = [precision(self), temperature_note(self.privacy.temperature)]
        notes += [*self.warnings, *map(str, self.findings())]
        return Summary(self.title, tuple(rows), tuple(note for note in notes if note))

    def _rows(self, scale: str, draws: FloatArray) -> list[Row]:
        low, high = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
        columns = [draws.mean(axis=(0, 1)), _sds(draws), low, high]
        columns += [self._diagnostic(what, draws, scale) for what in ("ess", "mcse", "rhat")]
        numbers = np.column_stack(columns)
        return [Row(name, scale, *map(float, row)) for name, row in zip(self.names, numbers, strict=True)]

    def findings(self) -> list[PosteriorWarning]:
        """Typed warnings about what may be concluded, from released numbers alone."""
        from dpfastmh.findings import findings

        return findings(self)

    # -- prediction --------------------------------------------------------------------------------------------------
    def predict(self, x: Any, *, interval: float = 0.9, predictive: bool = False) -> Prediction:
        """Probabilities or means for new records, with the central ``interval``.

        Classes: probabilities. Counts and numbers: the mean. The interval is that of the probability or mean;
        ``predictive=True`` widens it to the outcome itself. Columns are read and projected onto the public domain as
        the table's were: a number outside its bounds counts as the bound.
        """
        from dpfastmh.prediction import predict

        return predict(self, x, interval=interval, predictive=predictive)

    # -- files -------------------------------------------------------------------------------------------------------
    def to_datatree(self) -> Any:
        """A DataTree as ArviZ reads it; the privacy statement is in its attributes."""
        from dpfastmh.netcdf import to_datatree

        return to_datatree(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a netCDF file, whole or not at all. ``Posterior.load`` and ArviZ read it."""
        from dpfastmh.netcdf import to_bytes
        from dpfastmh.outputs import replace_file

        return replace_file(path, to_bytes(self))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Posterior:
        """A posterior from a file that ``save`` wrote. Reading runs no code from the file."""
        from dpfastmh.netcdf import load

        return load(path)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the report, one page of HTML that needs nothing else."""
        from dpfastmh.report import write_report

        return write_report(self, path)

    # -- pictures ----------------------------------------------------------------------------------------------------
    def plot_forest(self, *, scale: str = "scaled") -> Figure:
        """Means with 50% and 90% intervals."""
        from dpfastmh import plots

        return plots.forest(self, scale=scale)

    def plot_density(self, names: tuple[str, ...] | list[str] | None = None) -> Figure:
        """Marginal densities with the prior."""
        from dpfastmh import plots

        return plots.grid(self, plots.density, names)

    def plot_trace(self, names: tuple[str, ...] | list[str] | None = None) -> Figure:
        """Draws in the order they were made."""
        from dpfastmh import plots

        return plots.grid(self, plots.trace, names)

    def plot_spending(self) -> Figure:
        """ε spent over the steps of all chains."""
        from dpfastmh import plots

        return plots.spending(self)

    def plot_acceptance(self) -> Figure:
        """Accepted share of the proposed moves."""
        from dpfastmh import plots

        return plots.acceptance(self)


PRIVACY_FIELDS = tuple(f.name for f in fields(Privacy))


def _sds(draws: FloatArray) -> FloatArray:
    count = draws.shape[0] * draws.shape[1]
    return np.asarray(draws.std(axis=(0, 1), ddof=1 if count > 1 else 0))


FEWEST = 8  # draws of a chain from which diagnostics are computed


def diagnostic(what: str, draws: FloatArray) -> FloatArray:
    """ "ess" and "mcse" of the mean (split chains, without ranks) or "rhat" (ranks, split), by arviz-stats.

    NaN for a coefficient that never moved and where a chain has fewer than eight draws.
    """
    out = np.full(draws.shape[2], np.nan)
    moving = np.flatnonzero(np.ptp(draws, axis=(0, 1)) > 0.0)
    if draws.shape[1] < FEWEST or not moving.size:
        return out
    from arviz_stats.base import array_stats

    arranged = np.ascontiguousarray(np.moveaxis(draws[:, :, moving], 2, 0))
    function = getattr(array_stats, what)
    with np.errstate(all="ignore"):
        out[moving] = function(arranged, chain_axis=1, draw_axis=2, method="rank" if what == "rhat" else "mean")
    return np.where(np.isfinite(out), out, np.nan)
