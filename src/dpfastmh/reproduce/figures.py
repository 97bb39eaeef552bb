"""Figures of a reproduction, each as SVG and PNG. Private methods solid, references without privacy dashed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy.typing as npt

from dpfastmh.outputs import replace_file
from dpfastmh.plots import PAPER, canvas, style
from dpfastmh.reproduce.work import FloatArray, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "ours": "#15805b",
    "published": "#c2590f",
    "published-full": "#e0a030",
    "dp-penalty": "#2468b4",
    "dp-barker": "#7d4fc0",
    "dp-sgld": "#b03060",
    "dp-hmc": "#00808f",
    "exact draws": "#5c6875",
    "mh": "#1d2733",
    "tuna-mh": "#8a8a8a",
}
MARKERS = {"ours": "o", "published": "s", "published-full": "D", "dp-penalty": "^", "dp-barker": "v"}
DASHED = (0, (5, 3))
NOT_PRIVATE = ("mh", "tuna-mh")


class Panel(NamedTuple):
    """Lines over a common axis: {method: (x, y)}; ``level`` draws {method: y} as horizontal references."""

    title: str
    across: str
    up: str
    lines: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]
    level: Mapping[str, float] = {}
    log: str = ""  # "x", "y" or "xy"


def save_panels(work: Work, name: str, panels: Sequence[Panel], columns: int = 2) -> None:
    rows = -(-len(panels) // columns)
    with style():
        figure, axes = canvas(4.8 * columns, 2.9 * rows, PAPER, rows, columns)
        for ax, panel in zip(axes, panels, strict=False):
            draw_panel(ax, panel)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        save(work, name, figure)


def draw_panel(ax: Axes, panel: Panel) -> None:
    for method, (x, y) in panel.lines.items():
        dashed = method in NOT_PRIVATE
        marker = "" if dashed else MARKERS.get(method, "o")
        colour = COLOURS.get(method)
        ax.plot(x, y, color=colour, ls=DASHED if dashed else "-", marker=marker, ms=3.5, lw=1.4, label=method)
    for method, y in panel.level.items():
        ax.axhline(y, color=COLOURS.get(method, PAPER.muted), ls=DASHED, lw=1.1, label=method)
    for letter, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        if letter in panel.log:
            ax.set(**{f"{letter}scale": "log"})
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(_two_and_five if letter == "y" else _none)
            axis.set_tick_params(which="minor", labelsize=7, labelcolor=PAPER.muted)
    ax.set_title(panel.title, color=PAPER.ink)
    ax.set_xlabel(panel.across)
    ax.set_ylabel(panel.up)
    ax.grid(color=PAPER.line, lw=0.5)
    ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _two_and_five(value: float, _: object) -> str:
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _none(value: float, _: object) -> str:
    """Across, labels between the powers of ten would run into each other."""
    return ""


def save_densities(work: Work, name: str, draws: Mapping[str, FloatArray]) -> None:
    """Shaded histograms over the parameter square, side by side."""
    columns = min(4, len(draws))
    rows = -(-len(draws) // columns)
    with style():
        figure, axes = canvas(2.3 * columns, 2.4 * rows, PAPER, rows, columns)
        for ax, (label, points) in zip(axes, draws.items(), strict=False):
            ax.hist2d(
                points[:, 0], points[:, 1], bins=60, range=[[-1.5, 2.2], [-2.6, 2.6]], cmap="Blues", rasterized=True
            )
            ax.set_title(label, color=PAPER.ink)
            ax.set_xlabel("θ₁")
            ax.set_ylabel("θ₂")
        for ax in axes[len(draws) :]:
            ax.set_axis_off()
        save(work, name, figure)


def save(work: Work, name: str, figure: Figure) -> None:
    for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 110})):
        held = io.BytesIO()
        figure.savefig(held, format=kind, facecolor="white", **options)
        replace_file(work.folder / f"{name}.{kind}", held.getvalue())
