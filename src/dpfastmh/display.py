"""What the custodian sees while a private run goes on: phase, budget, steps, draws, time left.

For the screen of whoever runs the program, on standard error. Rates and times depend on private coins, so nothing of
this is written to a file. A display that fails must not end a run that has spent budget: it falls silent instead.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from dpfastmh.sampling import Progress

PHASES = {
    "start": "finding the start (noisy Newton)",
    "adapt": "trying moves",
    "main": "sampling",
    "done": "done",
}
EVERY = 2.0  # seconds between plain lines


class Display:
    """A context whose ``update`` takes the sampler's ``Progress``; quiet, plain or live."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet
        self.began = time.monotonic()
        self.shown = -EVERY
        self.phase = ""
        self.phase_began = self.began
        self.live: Any = None

    def __enter__(self) -> Display:
        with suppress(Exception):
            if not self.quiet and self.stream.isatty():
                self.live = _live(self.stream)
                self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(Exception):
            if self.live is not None:
                self.live.stop()

    def update(self, progress: Progress) -> None:
        """Show this, unless it is too soon or nobody looks."""
        if self.quiet:
            return
        with suppress(Exception):
            now = time.monotonic()
            if progress.phase != self.phase:
                self.phase, self.phase_began, self.shown = progress.phase, now, -EVERY
            if self.live is not None:
                self.live.update(self.lines(progress, now), refresh=now - self.shown > 0.1)
                self.shown = now
            elif now - self.shown >= EVERY:
                self.shown = now
                print(f"dpfastmh: {'; '.join(self.lines(progress, now).splitlines())}", file=self.stream, flush=True)

    def lines(self, progress: Progress, now: float) -> str:
        """Two lines: where the run is, and what it has spent."""
        taken = max(now - self.phase_began, 1e-3)
        text = f"{PHASES.get(progress.phase, progress.phase)}"
        if progress.phase == "main":
            left = taken * (1.0 - progress.share) / max(progress.share, 1e-3)
            text += f": {progress.steps:,} steps, {progress.steps / taken:,.0f} steps/s, {progress.draws:,} draws kept"
            text += f", about {left:.0f} s left" if left >= 1.0 else ""
        spent = min(progress.spent, progress.epsilon)
        return f"{text}\nepsilon {_bar(spent / progress.epsilon)} {spent:.3g} of {progress.epsilon:g}"


def _bar(share: float, width: int = 24) -> str:
    full = round(min(max(share, 0.0), 1.0) * width)
    return "━" * full + "╌" * (width - full)


def _live(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.live import Live

    return Live("", console=Console(file=stream), auto_refresh=False, transient=True)
