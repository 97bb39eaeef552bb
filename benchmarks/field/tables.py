"""The real tables: public domain, a part to learn from and a part to be judged by, split once and for all."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import dpfastmh as mh
from dpfastmh import datasets
from dpfastmh.domain import Domain

FloatArray = npt.NDArray[np.float64]
PACKAGE, MEMBER = "vega-datasets@3.2.1", "package/data/flights-3m.parquet"
FLIGHTS = Path(__file__).resolve().parent / ".data" / "flights-3m.parquet"
# the ten airports of the United States with the most passengers in 2000, as published
HUBS = ("ATL", "ORD", "LAX", "DFW", "SFO", "DEN", "LAS", "MSP", "PHX", "DTW")


@dataclass(frozen=True)
class Table:
    """Raw rows in the units of ``domain``, and the same on the scaled features, intercept first, for rivals."""

    name: str
    domain: Domain
    x: FloatArray
    y: FloatArray
    test_x: FloatArray
    test_y: FloatArray
    delta: float

    def scaled(self, x: FloatArray) -> FloatArray:
        return np.asarray(mh.LogisticRegression(self.domain).domain.project(x))

    def sample(self, rng: np.random.Generator) -> Table:
        """As many rows again, drawn with replacement: the part to learn from is the population."""
        picked = rng.integers(0, len(self.y), len(self.y))
        return Table(self.name, self.domain, self.x[picked], self.y[picked], self.test_x, self.test_y, self.delta)


def _split(name: str, domain: Domain, x: FloatArray, y: FloatArray, held: int, delta: float) -> Table:
    order = np.random.default_rng(2026).permutation(len(y))
    test, train = order[:held], order[held:]
    return Table(name, domain, x[train], y[train], x[test], y[test], delta)


def adult() -> Table:
    """48,842 people, 8 columns: more than 50,000 dollars a year?"""
    found = datasets.adult()
    return _split("adult", found.domain, found.x.astype(float), found.y.astype(float), 10_000, 1e-6)


def flights() -> Table:
    """3,000,000 flights of 2001: more than 15 minutes late, from the schedule alone?"""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(_flights_file())
    minute = np.asarray(pc.add(pc.multiply(pc.hour(table["date"]), 60), pc.minute(table["date"])), dtype=float)
    day = np.asarray(pc.day_of_year(table["date"]), dtype=float)
    turn = 2.0 * np.pi * minute / 1440.0
    hubs = [np.asarray(pc.is_in(table[end], value_set=_strings(table, end))) for end in ("origin", "destination")]
    columns = {
        "distance": (np.asarray(table["distance"], dtype=float), (0.0, 5000.0)),
        "day": (day, (1.0, 182.0)),
        "weekend": (np.asarray(pc.greater_equal(pc.day_of_week(table["date"]), 5), dtype=float), (0.0, 1.0)),
        "sin": (np.sin(turn), (-1.0, 1.0)),
        "cos": (np.cos(turn), (-1.0, 1.0)),
        "sin_twice": (np.sin(2.0 * turn), (-1.0, 1.0)),
        "cos_twice": (np.cos(2.0 * turn), (-1.0, 1.0)),
        "from_hub": (hubs[0].astype(float), (0.0, 1.0)),
        "to_hub": (hubs[1].astype(float), (0.0, 1.0)),
    }
    late = (np.asarray(table["delay"]) > 15).astype(float)
    x = np.column_stack([values for values, _ in columns.values()])
    domain = mh.Box({name: bounds for name, (_, bounds) in columns.items()})
    return _split("flights", domain, x, late, 500_000, 1e-7)


TABLES: dict[str, Callable[[], Table]] = {"adult": adult, "flights": flights}


def _strings(table: object, column: str) -> object:
    import pyarrow as pa

    return pa.array(HUBS, table.schema.field(column).type)  # type: ignore[attr-defined]


def _flights_file() -> Path:
    """The parquet file out of an npm package, fetched once."""
    if not FLIGHTS.exists():
        FLIGHTS.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, timeout=600)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as package:
                data = package.extractfile(MEMBER)
                assert data is not None
                part = FLIGHTS.with_suffix(".part")
                part.write_bytes(data.read())
        part.replace(FLIGHTS)
    return FLIGHTS
