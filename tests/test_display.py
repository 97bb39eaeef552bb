"""The progress display: what it says in each phase, at every width, and that it never ends a run."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

from dpfastmh import display
from dpfastmh.display import Display
from dpfastmh.sampling import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def news(phase: str = "main", steps: int = 2_500_000, share: float = 0.25, effective: Any = lambda: 37.2) -> Progress:
    return Progress(phase, 2.5, 4.0, steps, 1_204, share, effective)


def clocked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def test_what_is_said_elsewhere_than_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now, out = clocked(monkeypatch), io.StringIO()
    with Display(stream=out) as shown:
        shown.update(news("start", 0, 0.1))
        shown.update(news("start", 0, 0.2))  # too soon for another line
        now[0] += 1.0
        shown.update(news())
        now[0] += 2.5
        shown.update(news())
        shown.update(news("done", share=1.0))
    spent = "epsilon 2.5 of 4 spent, 1.5 left"
    assert out.getvalue().splitlines() == [
        f"dpfastmh: finding the start (noisy Newton); {spent}",
        f"dpfastmh: sampling: 2,500,000 steps; 1,204 draws kept, worth at least 37 independent ones; {spent}",
        "dpfastmh: sampling: about 8 s left, 1M steps/s, 2,500,000 steps; 1,204 draws kept, worth at least 37 "
        f"independent ones; {spent}",
        f"dpfastmh: done; {spent}",
    ]


def test_a_terminal_shows_all_of_it_at_every_width(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clocked(monkeypatch)
    for width in (12, 30, 60, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        out = Terminal()
        with Display(stream=out) as shown:
            assert shown.live is not None
            shown.update(news())
            now[0] += 10.0
            shown.live.refresh()
            lines = shown.picture().plain.splitlines()
        assert len(lines) == 3
        assert lines[0].startswith("sampling: about 30 s left, 250k steps/s, 2,500,000 steps")
        assert ("━" in lines[2]) == (width > 42)
        if width >= 60:
            assert all(len(line) <= width for line in lines)


def test_compilation_is_named_when_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clocked(monkeypatch)
    shown = Display(stream=io.StringIO())
    assert shown.lines(now[0], 0) == ["reading the table"]
    assert "compiles" in shown.lines(now[0] + 4.0, 0)[0]
    shown.update(news())
    assert not any("compiles" in line for line in shown.lines(now[0] + 4.0, 0))


def test_too_few_draws_to_tell_are_not_called_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch)
    shown = Display(stream=io.StringIO())
    shown.update(news(effective=lambda: math.nan))
    assert shown.lines(100.0, 0)[1] == "1,204 draws kept"


def test_effective_draws_are_not_counted_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = clocked(monkeypatch), [0]

    def slow() -> float:
        calls[0] += 1
        now[0] += 0.5
        return 1.0

    shown = Display(stream=io.StringIO())
    shown.update(news(effective=slow))
    for second in range(10):
        shown.lines(101.0 + second, 0)
    assert calls == [3]  # at 100, 105 and 110 s


def test_nothing_is_said_when_nothing_shall_be() -> None:
    out = Terminal()
    with Display(quiet=True, stream=out) as shown:
        shown.update(news())
    assert out.getvalue() == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_a_display_that_fails_falls_silent(terminal: bool) -> None:
    class Closed(Terminal):
        def isatty(self) -> bool:
            return terminal

        def write(self, text: str) -> int:
            raise OSError("gone")

        def flush(self) -> None:
            raise OSError("gone")

    def broken() -> float:
        raise RuntimeError("no")

    with Display(stream=Closed()) as shown:
        shown.update(news())
        shown.update(news(effective=broken))
        shown.update(news("done"))


@pytest.mark.parametrize(
    ("number", "text"), [(3.0, "3"), (1234.0, "1.23k"), (2_500_000.0, "2.5M"), (4e9, "4G"), (0.5, "0.5")]
)
def test_rates_are_short(number: float, text: str) -> None:
    assert display._short(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (61.0, "61 s"), (600.0, "10 min"), (7200.0, "2.0 h")])
def test_times_are_rough(seconds: float, text: str) -> None:
    assert display._duration(seconds) == text
