"""What Ctrl-C (SIGINT) and SIGTERM do to a run. Only a program's main thread can ask; elsewhere all is as it was."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Any


@contextmanager
def _handled(handlers: dict[int, Handler]) -> Iterator[None]:
    """These handlers inside, the former ones afterwards."""
    if threading.current_thread() is not threading.main_thread():  # which no signal reaches
        handlers = {}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does."""
    with _handled({signal.SIGTERM: _interrupt}):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C does nothing: what is being written has been paid for."""
    with _handled({signal.SIGINT: signal.SIG_IGN}):
        yield


@contextmanager
def interrupts_set(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C, and SIGTERM where it does the same, set ``stop`` and raise nothing: an exception could come between the
    start of a thread and the note that it was started. A program's own handlers stay."""

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()

    ours = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _interrupt}
    with _handled({number: note for number, usual in ours.items() if signal.getsignal(number) == usual}):
        yield
