"""diffprivlib's private logistic regression on one table; runs in the peers' environment.

    python diffprivlib_fit.py DATA.npz EPSILON NORM C

Rows longer than NORM are shortened to it by the estimator. Its coefficients go to standard output.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
from diffprivlib.models import LogisticRegression  # noqa: E402


def main() -> None:
    with np.load(sys.argv[1]) as file:
        x, y = file["x"], file["y"].astype(int)
    epsilon, norm, strength = map(float, sys.argv[2:5])
    model = LogisticRegression(epsilon=epsilon, data_norm=norm, C=strength, fit_intercept=False, max_iter=500)
    model.fit(x, y)
    print(json.dumps(model.coef_[0].tolist()))


if __name__ == "__main__":
    main()
