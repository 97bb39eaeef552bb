"""A private fit on a Dask cluster of two workers on this machine: ``make demo-cluster``.

A table of a million simulated patients is written as eight Parquet files, the workers read them, and ``dpfastmh fit``
draws from the posterior as it would from one file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import LocalCluster

from dpfastmh.cli import main as dpfastmh

SCHEMA = """
model = "logistic"
target = "readmitted"
[columns.age]
bounds = [18, 95]
[columns.dose]
bounds = [0, 10]
[columns.sex]
categories = ["F", "M"]
[columns.readmitted]
categories = [0, 1]
"""


def write_table(folder: Path, rows: int = 1_000_000, files: int = 8) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(files):
        n = rows // files
        age, dose, sex = rng.uniform(18, 95, n), rng.uniform(0, 10, n), rng.choice(["F", "M"], n)
        risk = 1 / (1 + np.exp(-(0.04 * (age - 60) - 0.2 * (dose - 5) + 0.3 * (sex == "M"))))
        table = {"age": age, "dose": dose, "sex": sex, "readmitted": (rng.random(n) < risk).astype(int)}
        pq.write_table(pa.table(table), folder / f"{number}.parquet")


def main() -> int:
    with (
        tempfile.TemporaryDirectory() as where,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
    ):
        home = Path(where)
        write_table(home / "patients")
        (home / "patients.toml").write_text(SCHEMA)
        print(f"a scheduler at {cluster.scheduler_address} with two workers", file=sys.stderr)
        began = time.perf_counter()
        told = ["fit", str(home / "patients"), "--schema", str(home / "patients.toml"), "--epsilon", "1"]
        code = dpfastmh([*told, "--delta", "1e-7", "--dask", cluster.scheduler_address, "-o", str(home / "out")])
        print(f"{time.perf_counter() - began:.1f} s; the results go with this demonstration", file=sys.stderr)
        return code


if __name__ == "__main__":
    sys.exit(main())
