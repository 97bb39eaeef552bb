"""Pictures of a posterior, from released numbers alone, as matplotlib figures.

Each picture is one function. It draws in the colours of a ``Palette``: `PAPER` for a notebook or a page that is always
white, `MARKS` for the report, whose page replaces every mark by a colour of its light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh.posterior import SCALES, PosteriorError
from dpfastmh.statement import NOT_PRIVATE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dpfastmh.posterior import Posterior

FloatArray = npt.NDArray[np.float64]


class Palette(NamedTuple):
    """Colours by what they are for; chains past the fourth begin again."""

    ink: str
    muted: str
    line: str
    chains: tuple[str, str, str, str]


PAPER = Palette("#1d2733", "#5c6875", "#d5dbe1", ("#2468b4", "#c2590f", "#15805b", "#7d4fc0"))
MARKS = Palette("#010101", "#010102", "#010103", ("#010111", "#010112", "#010113", "#010114"))

POINTS = 500  # of a trace; more than a picture can show
MOST_ROWS = 60  # of a forest


def style() -> AbstractContextManager[None]:
    """Matplotlib settings of every picture. Names of columns are shown as they are, never read as formulas."""
    import matplotlib

    return matplotlib.rc_context(
        {
            "font.size": 9.0,
            "font.family": ["sans-serif"],
            "text.parse_math": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 9.5,
            "axes.titlelocation": "left",
            "axes.linewidth": 0.7,
            "axes.unicode_minus": True,
            "axes.formatter.limits": (-4, 5),
            "axes.formatter.use_mathtext": False,
            "lines.solid_capstyle": "round",
            "svg.fonttype": "none",
            "svg.hashsalt": "dpfastmh",
        }
    )


def canvas(
    width: float, height: float, palette: Palette, rows: int = 1, columns: int = 1, left: float | None = None
) -> tuple[Figure, list[Axes]]:
    """A transparent figure of this size in inches, with quiet axes.

    With ``left``, the share of the width left of the axes, margins are fixed: measuring labels takes twice the time.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained" if left is None else None, facecolor="none")
    if left is not None:
        figure.subplots_adjust(left=left, right=0.98, bottom=0.15, top=0.87)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for ax in axes:
        ax.set_facecolor("none")
        ax.tick_params(colors=palette.muted, labelsize=8.5, length=3, width=0.7)
        for spine in ax.spines.values():
            spine.set_color(palette.line)
        ax.title.set_color(palette.ink)
        for label in (ax.xaxis.label, ax.yaxis.label):
            label.set_color(palette.muted)
    return figure, axes


def _headed(posterior: Posterior, figure: Figure, title: str, palette: Palette) -> Figure:
    """A title; draws that nothing protects say so on every picture."""
    if palette is MARKS:  # the page around it has the title and the banner
        return figure
    warning = "" if posterior.privacy.private else f"{NOT_PRIVATE}: "
    figure.suptitle(f"{warning}{title} ({posterior.word})", color=palette.ink, fontsize=9.5, x=0.01, ha="left")
    return figure


# -- coefficients ----------------------------------------------------------------------------------------------------
def forest(posterior: Posterior, *, scale: str = "scaled", palette: Palette = PAPER) -> Figure:
    """Mean (dot), 50% interval (thick) and 90% interval (thin) of every coefficient."""
    draws = _on(posterior, scale)
    shown = list(range(min(len(posterior.names), MOST_ROWS)))
    pooled = draws.reshape(-1, draws.shape[2])[:, shown]
    with style():
        figure, (ax,) = canvas(3.6, 0.62 + 0.24 * len(shown), palette)
        color = palette.chains[0]
        ax.axvline(0.0, color=palette.muted, lw=0.8, ls=(0, (4, 3)), zorder=0)
        outer, inner = np.quantile(pooled, [0.05, 0.95], axis=0), np.quantile(pooled, [0.25, 0.75], axis=0)
        rows = np.arange(len(shown))
        ax.hlines(rows, *outer, color=color, lw=1.1)
        ax.hlines(rows, *inner, color=color, lw=3.4)
        ax.plot(pooled.mean(axis=0), rows, "o", ms=5.2, mfc=color, mec=color, ls="none")
        _named_rows(ax, [posterior.names[j] for j in shown], palette)
        ax.set_xlabel(f"coefficient ({scale} features)" if scale == "scaled" else "coefficient (original units)")
        return _headed(posterior, figure, "Coefficients", palette)


def density(posterior: Posterior, ax: Axes, j: int, palette: Palette) -> None:
    """The marginal density of all chains with its 90% interval shaded, each chain's, and the prior's (dashed)."""
    draws = posterior.draws[:, :, j]
    ax.set_title(posterior.names[j], color=palette.ink)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    if draws.shape[1] < 8 or np.ptp(draws) == 0.0:
        ax.plot(draws.ravel(), np.zeros(draws.size), "|", color=palette.chains[0], ms=12)
        return
    grid, height = smooth(draws.ravel())
    low, high = np.quantile(draws, [0.05, 0.95])
    inside = (grid >= low) & (grid <= high)
    ax.fill_between(grid[inside], height[inside], color=palette.chains[0], alpha=0.22, lw=0)
    if len(draws) > 1:
        for k, chain in enumerate(draws):
            if np.ptp(chain) > 0.0:
                ax.plot(*smooth(chain), color=palette.chains[k % 4], lw=0.8, alpha=0.8)
    ax.plot(grid, height, color=palette.ink, lw=1.5)
    prior = prior_density(posterior, j, grid)
    if prior is not None:
        ax.plot(grid, prior, color=palette.muted, lw=1.1, ls=(0, (4, 2.5)))
    ax.set_ylim(bottom=0.0)
    ax.locator_params(axis="x", nbins=5)


def trace(posterior: Posterior, ax: Axes, j: int, palette: Palette) -> None:
    """Every chain's draws in order."""
    draws = posterior.draws[:, :, j]
    every = max(1, math.ceil(draws.shape[1] / POINTS))
    position = np.arange(0, draws.shape[1], every)
    for k, chain in enumerate(draws):
        ax.plot(position + 1, chain[::every], color=palette.chains[k % 4], lw=0.7, alpha=0.75)
    ax.axhline(float(draws.mean()), color=palette.ink, lw=0.9, ls=(0, (4, 2.5)))
    ax.set_title(posterior.names[j], color=palette.ink)
    ax.set_xlim(1, max(draws.shape[1], 2))
    ax.locator_params(axis="both", nbins=5)


def grid(
    posterior: Posterior, draw: Callable[..., None], names: Sequence[str] | None = None, palette: Palette = PAPER
) -> Figure:
    """One small picture for each of these coefficients (None: of all, at most sixty)."""
    chosen = _indices(posterior, names)
    columns = min(3, len(chosen))
    with style():
        lines = math.ceil(len(chosen) / columns)
        figure, axes = canvas(3.0 * columns, 0.4 + 1.6 * lines, palette, lines, columns)
        for ax, j in zip(axes, chosen, strict=False):
            draw(posterior, ax, j, palette)
        for ax in axes[len(chosen) :]:
            ax.set_axis_off()
        title = "Marginal densities, prior dashed" if draw is density else "Draws in order"
        return _headed(posterior, figure, title, palette)


def single(posterior: Posterior, draw: Callable[..., None], j: int, palette: Palette) -> Figure:
    """One coefficient's small picture."""
    with style():
        figure, (ax,) = canvas(3.3, 1.75, palette, left=0.02 if draw is density else 0.15)
        draw(posterior, ax, j, palette)
        return figure


# -- the run ---------------------------------------------------------------------------------------------------------
def spending(posterior: Posterior, *, palette: Palette = PAPER) -> Figure:
    """ε spent against the steps of all chains; what lies at step 0 paid for the start."""
    steps, spent = posterior.spending.T if len(posterior.spending) else np.zeros((2, 1))
    with style():
        figure, (ax,) = canvas(3.6, 2.1, palette)
        ax.plot(np.r_[0.0, steps], np.r_[0.0, spent], color=palette.chains[0], lw=1.8)
        ax.fill_between(np.r_[0.0, steps], np.r_[0.0, spent], color=palette.chains[0], alpha=0.15, lw=0)
        ax.plot(steps[-1], spent[-1], "o", color=palette.chains[0], ms=4.5)
        promised = posterior.privacy.epsilon
        if math.isfinite(promised):
            ax.axhline(promised, color=palette.ink, lw=1.0, ls=(0, (4, 2.5)))
            ax.annotate(
                f"promised ε = {promised:g}" if posterior.privacy.private else f"ε = {promised:g}, were it private",
                (0.02, promised),
                xycoords=("axes fraction", "data"),
                xytext=(0, -3),
                textcoords="offset points",
                va="top",
                color=palette.ink,
                fontsize=8.5,
            )
            ax.set_ylim(0.0, 1.08 * max(promised, float(spent.max())))
        ax.set_xlim(left=0.0)
        ax.set_xlabel("steps of all chains")
        ax.set_ylabel("ε spent")
        ax.xaxis.set_major_formatter(lambda value, _: _thousands(value))
        ax.locator_params(axis="both", nbins=5)
        return _headed(posterior, figure, "Privacy budget spent", palette)


def acceptance(posterior: Posterior, *, palette: Palette = PAPER) -> Figure:
    """Accepted share of the proposed moves, one dot for each chain."""
    share, names = posterior.acceptance, posterior.move_names
    shown = min(len(names), MOST_ROWS)
    with style():
        figure, (ax,) = canvas(3.6, 0.62 + 0.24 * shown, palette)
        rows = np.arange(shown)
        for k, chain in enumerate(share):
            shift = 0.0 if len(share) == 1 else 0.24 * (k / (len(share) - 1) - 0.5)
            color = palette.chains[k % 4]
            ax.plot(100.0 * chain[:shown], rows + shift, "o", ms=4.6, mfc=color, mec=color, ls="none")
        _named_rows(ax, list(names[:shown]), palette)
        ax.set_xlim(0.0, max(1.0, 115.0 * float(np.nanmax(share, initial=0.0))))
        ax.set_xlabel("accepted, % of proposed moves")
        return _headed(posterior, figure, "Acceptance", palette)


# -- parts -----------------------------------------------------------------------------------------------------------
def smooth(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A kernel density estimate: grid and height."""
    from arviz_stats.base import array_stats

    grid, height, _ = array_stats.kde(values, grid_len=200)
    return np.asarray(grid), np.asarray(height)


def prior_density(posterior: Posterior, j: int, x: FloatArray) -> FloatArray | None:
    """The prior of coefficient j on a grid; None where it is flat or unknown."""
    if posterior.model is None:
        return None
    from dpfastmh import priors

    table = posterior.model.prior_table
    kind, loc, scale, df = table.kind[j], table.loc[j], table.scale[j], table.df[j]
    z = (x - loc) / scale
    if kind == priors.NORMAL:
        return np.asarray(np.exp(-0.5 * z * z) / (scale * math.sqrt(2.0 * math.pi)))
    if kind == priors.LAPLACE:
        return np.asarray(np.exp(-np.abs(z)) / (2.0 * scale))
    if kind == priors.STUDENT_T:
        top = math.lgamma((df + 1.0) / 2.0) - math.lgamma(df / 2.0) - 0.5 * math.log(df * math.pi)
        return np.asarray(np.exp(top - 0.5 * (df + 1.0) * np.log1p(z * z / df)) / scale)
    return None


def _named_rows(ax: Axes, names: list[str], palette: Palette) -> None:
    ax.set_yticks(range(len(names)), [_shortened(name) for name in names])
    for label in ax.get_yticklabels():
        label.set_color(palette.ink)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=palette.line, lw=0.6)
    ax.set_axisbelow(True)
    ax.locator_params(axis="x", nbins=5)


def _shortened(name: str, most: int = 24) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _thousands(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def _on(posterior: Posterior, scale: str) -> FloatArray:
    if scale not in SCALES:
        raise PosteriorError(f'scale is {scale!r}: choose "scaled" or "original"')
    draws: Any = posterior.draws if scale == "scaled" else posterior.original
    if draws is None:
        raise PosteriorError('there is no original scale for this model: use scale="scaled"')
    return np.asarray(draws)


def _indices(posterior: Posterior, names: Sequence[str] | None) -> list[int]:
    if names is None:
        return list(range(min(len(posterior.names), MOST_ROWS)))
    unknown = [name for name in names if name not in posterior.names]
    if unknown or not names or isinstance(names, str):
        raise PosteriorError(f"names {list(names)!r}: choose some of {', '.join(posterior.names)}")
    return [posterior.names.index(name) for name in names]
