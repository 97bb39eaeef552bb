"""``roofline.c``, compiled when the benchmark runs and called through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FLAGS = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
SOURCE = Path(__file__).with_name("roofline.c")


class Run(NamedTuple):
    draws: np.ndarray
    acceptance: float
    rows_per_step: float


class Roofline:
    """TunaMH for logistic regression in C. ``columns`` and ``real`` fix the number of columns and the dots' type."""

    def __init__(self, directory: Path, *, columns: int | None = None, real: str = "double") -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise RuntimeError("no C compiler found: the minibatch benchmark compares with C, install cc")
        library = directory / f"roofline-{columns or 'any'}-{real}.so"
        options = [f"-DREAL={real}", *([f"-DCOLUMNS={columns}"] if columns else [])]
        subprocess.run([compiler, *FLAGS, *options, "-o", library, SOURCE, "-lmvec", "-lm"], check=True)
        self._advance = ctypes.CDLL(str(library)).advance
        self._advance.restype = ctypes.c_long
        pointer, whole, real_number = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
        data: list[Any] = [pointer, pointer, whole, whole, real_number, real_number, real_number]
        self._advance.argtypes = [*data, pointer, ctypes.c_uint64, whole, whole, pointer, pointer]

    def run(
        self, rows: Any, theta: np.ndarray, *, lam: float, scale: float, steps: int, seed: int, thin: int = 10
    ) -> Run:
        """``steps`` steps under a Normal(0, 2.5) prior."""
        x, y = rows.x, rows.y
        if not (x.dtype == y.dtype == np.float32 and x.flags.c_contiguous and y.flags.c_contiguous):
            raise ValueError("the C loop reads contiguous float32 rows and targets")
        position, draws, read = theta.copy(), np.empty((steps // thin, theta.size)), ctypes.c_long(0)
        accepted = self._advance(
            x.ctypes.data, y.ctypes.data, *x.shape, lam, scale, 2.5,
            position.ctypes.data, seed, steps, thin, draws.ctypes.data, ctypes.byref(read),
        )  # fmt: skip
        return Run(draws, accepted / steps, read.value / steps)
