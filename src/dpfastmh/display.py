"""What the custodian sees while a private run goes on: phase, steps, effective draws, time left, budget spent and left.

For the screen of whoever runs the program, on standard error: a live picture on a terminal, a line from time to time
elsewhere. Rates and times depend on private coins, so nothing of this is written to a file. A display that fails must
not end a run that has spent budget: it falls silent instead.
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from dpfastmh.sampling import Progress

PHASES = {
    "": "reading the table",
    "start": "finding the start (noisy Newton)",
    "adapt": "trying moves",
    "main": "sampling",
    "done": "done",
}
EVERY = 2.0  # seconds between plain lines
SILENCE = 3.0  # seconds without news before the main phase, after which compilation is named as a likely reason
SOON = 0.5  # seconds of a phase before rates and times left are worth showing
BAR = 24


class Display:
    """A context whose ``update`` takes the sampler's ``Progress``; quiet, plain or live."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet
        self.progress: Progress | None = None
        self.phase = ""
        self.phase_began = self.told = time.monotonic()
        self.shown = -math.inf
        self.effective = math.nan
        self.effective_due = -math.inf
        self.live: Any = None

    def __enter__(self) -> Display:
        with suppress(Exception):
            if not self.quiet and self.stream.isatty():
                self.live = _live(self.stream, self.picture)
                self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(Exception):
            if self.live is not None:
                self.live.stop()

    def update(self, progress: Progress) -> None:
        """Take the news; a terminal shows them at its next refresh, anything else a line if it is time for one."""
        if self.quiet:
            return
        with suppress(Exception):
            now = time.monotonic()
            self.told = now
            if progress.phase != self.phase:
                self.phase, self.phase_began, self.shown = progress.phase, now, -math.inf
            self.progress = progress
            if self.live is None and now - self.shown >= EVERY:
                self.shown = now
                print(f"dpfastmh: {'; '.join(self.lines(now, bar=0))}", file=self.stream, flush=True)

    def picture(self) -> Any:
        """The lines of a terminal, cut at its width."""
        from rich.text import Text

        try:
            lines = self.lines(time.monotonic(), bar=max(0, min(BAR, self.live.console.width - 42)))
        except Exception:
            lines = []
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")

    def lines(self, now: float, bar: int) -> list[str]:
        """Where the run is, what it has found and what it has spent, with a bar of so many characters."""
        progress = self.progress
        text = PHASES.get(self.phase, self.phase)
        if self.phase in ("", "start", "adapt") and now - self.told > SILENCE:
            text += ", a first run compiles for some seconds"
        if progress is None:
            return [text]
        lines = [text]
        if self.phase == "main":
            taken = now - self.phase_began
            lines = [f"{text}: {self.pace(progress, taken)}{progress.steps:,} steps", self.found(progress, now)]
        spent, total = min(progress.spent, progress.epsilon), progress.epsilon
        shown = f"{_bar(spent / total, bar)} " if bar else ""
        return [*lines, f"epsilon {shown}{spent:.3g} of {total:g} spent, {total - spent:.3g} left"]

    def pace(self, progress: Progress, taken: float) -> str:
        """Time left and steps per second, as far as they can be told."""
        if taken < SOON:
            return ""
        left = taken * (1.0 - progress.share) / max(progress.share, 1e-6)
        return f"about {_duration(left)} left, {_short(progress.steps / taken)} steps/s, "

    def found(self, progress: Progress, now: float) -> str:
        """Draws so far. To count the effective ones takes time, of which this takes at most a tenth."""
        if now >= self.effective_due:
            began = time.monotonic()
            self.effective = progress.effective()
            self.effective_due = now + max(1.0, 10.0 * (time.monotonic() - began))
        kept = f"{progress.draws:,} draws kept"
        return kept if math.isnan(self.effective) else f"{kept}, worth at least {self.effective:,.0f} independent ones"


def _bar(share: float, width: int) -> str:
    full = round(min(max(share, 0.0), 1.0) * width)
    return "━" * full + "╌" * (width - full)


def _short(rate: float) -> str:
    """At most three digits and a letter."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= size:
            return f"{rate / size:.3g}{letter}"
    return f"{rate:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"


def _live(stream: TextIO, picture: Any) -> Any:
    from rich.console import Console
    from rich.live import Live

    return Live(get_renderable=picture, console=Console(file=stream), refresh_per_second=8, transient=True)
