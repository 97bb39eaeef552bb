"""Peak memory and time of loading a table, each in a process of its own: ``table_memory.py [ROWS [FOLDER]]``.

Prints a JSON object a line, sizes in MB: ``table`` is the table as float32, ``libraries`` what the interpreter takes
once a table of the same kind with 1,000 rows has been loaded, ``above`` the peak beyond that and ``times`` its ratio
to ``table``. The pages of a mapped Arrow file count too, though they belong to the file's cache.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = 8
KINDS = ("parquet", "arrow", "csv", "csv.gz")


def status(key: str) -> float:
    """VmRSS (now) or VmHWM (highest) of this process in MB."""
    return int(re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024  # type: ignore[index]


def write(rows: int, folder: Path, name: str) -> None:
    """The same table as every kind of file: seven numbers, a target of two classes and a unit of three rows each."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    rng = np.random.default_rng(1)
    table = pa.table(
        {f"x{j}": rng.normal(size=rows).round(3) for j in range(COLUMNS - 1)}
        | {"y": rng.integers(0, 2, rows), "person": np.char.add("person ", (np.arange(rows) // 3).astype(str))}
    )
    pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    pyarrow.feather.write_feather(table, folder / f"{name}.arrow")
    pyarrow.csv.write_csv(table, folder / f"{name}.csv")
    with pa.CompressedOutputStream(str(folder / f"{name}.csv.gz"), "gzip") as file:
        pyarrow.csv.write_csv(table, file)


def measure(path: str, unit: str | None) -> None:
    from dpfastmh.domain import Box
    from dpfastmh.models import LogisticRegression

    model = LogisticRegression(Box({f"x{j}": (-4.0, 4.0) for j in range(COLUMNS - 1)}))
    from dpfastmh.data.loading import load

    load(model, path.replace("table.", "small."), target="y", unit=unit, max_rows_per_unit=2)
    libraries = status("VmRSS")
    started = time.perf_counter()
    loaded = load(model, path, target="y", unit=unit, max_rows_per_unit=2)
    seconds = time.perf_counter() - started
    table = loaded.units * (1 if unit is None else 3) * COLUMNS * 4 / 2**20
    above = status("VmHWM") - libraries
    print(
        json.dumps(
            {
                "file": Path(path).name,
                "unit": unit,
                "table": round(table),
                "above": round(above),
                "times": round(above / table, 2),
                "libraries": round(libraries),
                "seconds": round(seconds, 2),
            }
        )
    )


def main(rows: int, folder: Path) -> None:
    write(rows, folder, "table")
    write(1_000, folder, "small")
    for kind in KINDS:
        for unit in ("", "person"):
            subprocess.run([sys.executable, __file__, "--one", str(folder / f"table.{kind}"), unit], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2], sys.argv[3] or None)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000, Path(*sys.argv[2:3] or [temporary]))
