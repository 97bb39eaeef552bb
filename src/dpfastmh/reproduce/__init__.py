"""The paper's experiments again, from real runs, and a comparison of private methods at equal *total* (ε, δ).

    from dpfastmh import reproduce

    reproduce.run(["mixture", "scoreboard"], "out")

writes figures (SVG, PNG), their numbers (CSV) and one page into a folder that an interrupted run goes on with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dpfastmh.reproduce.work import Section, Work

PARTS = ("mixture", "mnist", "choice-of-k", "theory", "scoreboard")


def run(
    parts: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    quick: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Path:
    """Run these parts into ``folder``; the page shows every part that the folder holds by then."""
    from dpfastmh.reproduce import bounds, mixture, mnist, page, scoreboard

    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise ValueError(f"parts are {list(parts)!r}: choose some of {', '.join(PARTS)}")
    sections = {
        "theory": bounds.sections,
        "choice-of-k": mnist.choice_of_k,
        "mixture": mixture.sections,
        "mnist": mnist.sections,
        "scoreboard": scoreboard.sections,
    }
    work = Work(folder, quick=quick, tell=tell)
    found: list[Section] = []
    for part in PARTS:
        if part in parts or work.has(part):
            found += sections[part](work)
            work.finish(part)
    page.write(work, found)
    work.tell(f"done: {work.folder / 'index.html'}")
    return work.folder / "index.html"
