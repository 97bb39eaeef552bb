"""Write ``src/dpfastmh/datasets/adult.csv.gz`` from ``adult.npz``: the same people, in units that a person reads."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np

DATASETS = Path(__file__).resolve().parent.parent / "src" / "dpfastmh" / "datasets"
NAMES = "age,age_squared,education_years,hours,male,married,log_gain,log_loss,income"


def main() -> None:
    with np.load(DATASETS / "adult.npz") as table:
        x, y = table["X"][:, 1:].astype(np.float64), table["y"]
    age = np.rint(38 + 14 * x[:, 0]).astype(int)
    education = np.rint(10 + 2.6 * x[:, 2]).astype(int)
    hours = np.rint(40 + 12 * x[:, 3]).astype(int)
    dollars = [np.log1p(np.rint(np.expm1(8 * x[:, j]))) for j in (6, 7)]
    text = io.StringIO()
    text.write(NAMES + "\n")
    for i in range(len(y)):
        gain, loss = (f"{column[i]:.7f}".rstrip("0").rstrip(".") for column in dollars)
        income = ">50k" if y[i] else "<=50k"
        whole = (age[i], (age[i] - 38) ** 2, education[i], hours[i], int(x[i, 4]), int(x[i, 5]))
        text.write(",".join([*map(str, whole), gain, loss, income]) + "\n")
    (DATASETS / "adult.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
