"""A folder that a reproduction fills piece by piece, so that an interrupted run goes on where it stopped.

Every *piece* is a set of numbers that takes a while to compute, kept as ``pieces/NAME.npz`` and not computed again.
``settings.json`` says what the pieces were made with; a folder made with other settings, or by another version, is
refused.
"""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh import __version__
from dpfastmh.outputs import OutputError, replace_file

FloatArray = npt.NDArray[np.float64]
Numbers = dict[str, npt.NDArray[Any]]
THREADS = 2


class Claim(NamedTuple):
    """A claim of the paper in our words, what we measured, and what became of it."""

    text: str
    measured: str
    verdict: str  # of ``verdict``


class Section(NamedTuple):
    """One figure with its numbers and claims. ``columns`` and ``rows`` become NAME.csv and, if short, a table."""

    name: str
    title: str
    text: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    claims: tuple[Claim, ...] = ()
    tabled: bool = False  # show the numbers on the page


class Work:
    """The folder, how much to run, and whom to tell."""

    def __init__(self, folder: str | os.PathLike[str], *, quick: bool, tell: Callable[[str], None] = lambda _: None):
        self.folder, self.quick, self._say = Path(folder), quick, tell
        self._began = time.monotonic()
        self._open({"what": "dpfastmh reproduce", "version": __version__, "quick": quick})

    def _open(self, settings: dict[str, Any]) -> None:
        marker = self.folder / "settings.json"
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError(f"{self.folder} is a file: choose a folder")
        if marker.exists():
            try:
                found = json.loads(marker.read_text(encoding="utf-8"))
            except ValueError:
                raise OutputError(f"{marker} cannot be read: choose another folder") from None
            if found != settings:
                raise OutputError(
                    f"{self.folder} was made with other settings ({_short(found)}; now {_short(settings)}): "
                    "choose another folder"
                )
            return
        if self.folder.exists() and any(self.folder.iterdir()):
            raise OutputError(f"{self.folder} holds other files: choose a new folder")
        (self.folder / "pieces").mkdir(parents=True, exist_ok=True)
        replace_file(marker, (json.dumps(settings, indent=2) + "\n").encode())

    def tell(self, text: str) -> None:
        self._say(f"[{time.monotonic() - self._began:5.0f} s] {text}")

    def piece(self, name: str, compute: Callable[[], Mapping[str, npt.ArrayLike]]) -> Numbers:
        """What ``compute`` returned, now or in an earlier run."""
        path = self.folder / "pieces" / f"{name}.npz"
        if path.exists():
            try:
                with np.load(path) as stored:
                    return dict(stored)
            except (ValueError, OSError, zipfile.BadZipFile):
                self.tell(f"{path.name} cannot be read and is made again")
        self.tell(name)
        numbers = {key: np.asarray(value) for key, value in compute().items()}
        path.parent.mkdir(exist_ok=True)
        held = io.BytesIO()
        np.savez_compressed(held, **numbers)  # type: ignore[arg-type]
        replace_file(path, held.getvalue())
        return numbers

    def has(self, part: str) -> bool:
        """Was this part finished in an earlier run?"""
        return (self.folder / "pieces" / f"{part}.done").exists()

    def finish(self, part: str) -> None:
        replace_file(self.folder / "pieces" / f"{part}.done", b"")

    def pick(self, quick: Any, full: Any) -> Any:
        return quick if self.quick else full


def verdict(held: bool, partly: bool = False) -> str:
    return "held" if held else "in part" if partly else "did not hold"


def together(function: Callable[[int], Any], seeds: Iterable[int]) -> list[Any]:
    """``function`` of every seed, two at a time; the compiled loops release the interpreter's lock."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, seeds))


def _short(settings: Any) -> str:
    if not isinstance(settings, dict):
        return "unknown"
    return f"version {settings.get('version')}, {'quick' if settings.get('quick') else 'full'}"
