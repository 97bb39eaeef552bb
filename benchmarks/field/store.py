"""Figures on disk: one JSON file for each part, one entry for each setting, so that single entries can be run again."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "results"
Entry = dict[str, Any]


class Store:
    """Entries of one part, told apart by the values of ``keys``. Every ``put`` is on disk when it returns."""

    def __init__(self, name: str, keys: tuple[str, ...], folder: Path = FOLDER) -> None:
        self.path, self.keys = folder / f"{name}.json", keys
        self.entries = self._read()

    def put(self, entry: Entry) -> None:
        """Add an entry, in the place of the one of the same setting, with the machine and how busy it was."""
        self.entries = self._read()  # another process may have added some
        busy = {"load": round(os.getloadavg()[0], 1), "processors": os.cpu_count(), "machine": machine()}
        mine = self._setting(entry)
        for place, old in enumerate(self.entries):
            if self._setting(old) == mine:
                self.entries[place] = entry | busy
                break
        else:
            self.entries.append(entry | busy)
        self.path.parent.mkdir(exist_ok=True)
        lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in self.entries)
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False, suffix=".part") as part:
            part.write(f"[\n{lines}\n]\n")
        os.chmod(part.name, 0o644)
        os.replace(part.name, self.path)

    def find(self, **wanted: Any) -> list[Entry]:
        return [entry for entry in self.entries if all(entry.get(key) == value for key, value in wanted.items())]

    def _read(self) -> list[Entry]:
        return json.loads(self.path.read_text()) if self.path.exists() else []

    def _setting(self, entry: Entry) -> tuple[Any, ...]:
        return tuple(entry[key] for key in self.keys)


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def significant(value: float, digits: int = 3) -> float:
    """Rounded for the file: what a timing is worth."""
    return float(f"{value:.{digits}g}")
