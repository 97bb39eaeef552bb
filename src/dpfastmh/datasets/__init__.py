"""Data that ships with the package, each with what is publicly known about it.

``adult.npz``, and the same people in readable units in ``adult.csv.gz`` with the schema ``adult.toml``: the Adult
census table of the UCI Machine Learning Repository (B. Becker and R. Kohavi, 1996), licensed CC BY 4.0; 48,842 people,
derived columns as listed in ``adult`` and in the schema.

``mnist79.npz``: made from the MNIST database of handwritten digits (Y. LeCun and C. Cortes), licensed CC BY-SA 3.0, and
under the same licence; the images of sevens and nines, reduced to 50 numbers each as described in ``mnist79``.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpfastmh.domain import Ball, Box, Domain


class Dataset(NamedTuple):
    """Features in the file's units, the target, and the public domain of the features."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    domain: Domain


# as files, for the command line
ADULT_TABLE = Path(__file__).with_name("adult.csv.gz")
ADULT_SCHEMA = Path(__file__).with_name("adult.toml")
DEMO_SCHEMA = Path(__file__).with_name("adult_demo.toml")  # fewer columns, for ``dpfastmh demo``


def adult() -> Dataset:
    """Adult: does a person earn more than 50,000 dollars a year?

    Columns: age as (years − 38)/14, and its square; education as (years − 10)/2.6; hours a week as (h − 40)/12; male;
    married; capital gain and loss as log(1 + dollars)/8. The bounds are those of the questionnaire, to four decimals:
    ages 17 to 90, 1 to 16 years of education, 1 to 99 hours, dollars up to its caps. ``adult.toml`` has the same in
    years, hours and logarithms of dollars, so that its scaled features differ from these by those decimals only.
    """
    with files(__name__).joinpath("adult.npz").open("rb") as file, np.load(file) as table:
        x, y = table["X"][:, 1:], table["y"]
    domain = Box(
        age=(-1.5, 3.7143),
        age_squared=(0.0, 13.7959),
        education=(-3.4615, 2.3077),
        hours=(-3.25, 4.9167),
        male=(0.0, 1.0),
        married=(0.0, 1.0),
        gain=(0.0, 1.4391),
        loss=(0.0, 1.0474),
    )
    return Dataset(np.ascontiguousarray(x), y, domain)


MNIST_RADIUS = 8.0
MNIST_CELL = 2.0**-11  # scores are kept as whole multiples of this


class TrainTest(NamedTuple):
    """Records to learn from and records to be judged by, with the public domain of both."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.int64]
    test_x: npt.NDArray[np.float64]
    test_y: npt.NDArray[np.int64]
    domain: Ball
    radius: float


def mnist79() -> TrainTest:
    """Is a handwritten digit a nine (1) or a seven (0)? 12,214 training and 2,037 test images.

    Pixels on [0, 1], less the mean training image, projected on the first 50 principal components of the training
    images; mean and components are taken to be public. A score vector longer than the public radius 8 (2% of the
    training images) is scaled back to it; the domain counts scores in units of that radius.
    """
    with files(__name__).joinpath("mnist79.npz").open("rb") as file, np.load(file) as table:
        x, test_x = (_into_ball(table[name] * MNIST_CELL) for name in ("train", "test"))
        y, test_y = (table[name].astype(np.int64) for name in ("train_labels", "test_labels"))
    domain = Ball(MNIST_RADIUS, [f"score{j + 1}" for j in range(x.shape[1])])
    return TrainTest(x, y, test_x, test_y, domain, MNIST_RADIUS)


def _into_ball(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x * np.minimum(1.0, MNIST_RADIUS / norm))
