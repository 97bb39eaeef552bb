"""Sums over all records, released through the Gaussian mechanism, and what is computed from them afterwards.

Private code adds up one contribution per row — a gradient, a Hessian — and lets the total out with noise. Everything
that can leak here goes through `GaussianSum.release`. The noise is OpenDP's exact discrete Gaussian on integers, so
that no rounding of floats gives a record away: contributions are rounded to integer multiples of a public grid γ *row
by row*, and the totals are integers.

**Theorem 1** (sensitivity on the grid). Let a release consist of p numbers, number j standing for c_j equal entries of
an object whose Euclidean (Frobenius) norm is ‖v‖² = Σ_j c_j v_j². Suppose replacing one unit, which holds at most k
rows, moves the sum of the exact contributions by at most Δ in that norm. If each row's contribution is divided by γ
and rounded to the nearest integers, the integer sums move by at most

    Δ_int = Δ/γ + k·√(Σ_j c_j).

*Proof.* Rounding moves each number of each row by at most ½. Only the rows of the replaced unit differ, at most k
before and k after, so number j moves by at most k beyond the exact move: k·√(Σ c_j) in the norm. ∎

**Theorem 2** (cost). Add to number j independent discrete Gaussian noise of scale s/√c_j. The release is ρ-zCDP with
ρ = Δ_int²/(2s²), that is, D_α ≤ αρ for every α > 1.

*Proof.* For integers a, b, D_α(a + N_ℤ(0,t²) ‖ b + N_ℤ(0,t²)) ≤ α(a−b)²/(2t²) (Canonne, Kamath and Steinke 2020):
completing the square gives that value plus log(θ(m)/θ(0))/(α−1) with m = αa+(1−α)b and θ(m) = Σ_n e^{−(n−m)²/(2t²)},
and θ(m) ≤ θ(0) = θ(any integer), because by Poisson summation θ is a sum of cosines with positive weights. Noises
are independent, so divergences add: D_α ≤ (α/2)Σ_j c_j(a_j−b_j)²/s² ≤ αΔ_int²/(2s²). ∎

Contributions are computed in floating point, and the rows they come from are projected in floating point: Δ is widened
by a relative 2⁻³⁰, which covers products of a slope accurate to some ulps and a row of up to 10⁵ numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpfastmh.budget import checked_count, checked_order, checked_real
from dpfastmh.privacy.filter import Share

__all__ = [
    "GaussianSum",
    "gradient_sensitivity",
    "hessian_sensitivity",
    "newton_direction",
    "public_grid",
    "softmax_curvature_norm",
    "softmax_slope_norm",
    "triangle_from_matrix",
    "triangle_multiplicity",
    "triangle_to_matrix",
]

FloatArray = npt.NDArray[np.float64]
Number = TypeVar("Number", np.float64, np.int64)
IntArray = npt.NDArray[np.int64]

_FLOAT_SLACK = 1 + 2.0**-30
_ROUND_UP = 1 + 2.0**-48
# The grid is so fine that rounding adds at most this share to the sensitivity.
_GRID_SHARE = 2.0**-20
# Noise beyond this many scales has a chance below e^{-2000}.
_NOISE_REACH = 64.0


def _positive(value: object, name: str) -> float:
    return checked_real(value, name, "a finite number above 0", 0.0)


def public_grid(sensitivity: float, entries: int, rows_per_unit: int = 1) -> float:
    """A grid γ for contributions: the largest power of two with k·γ·√entries ≤ 2⁻²⁰·Δ.

    `entries` is Σ_j c_j, the entries of the whole object (d for a gradient, d² for a matrix). Rounding then adds one
    millionth to the sensitivity, and a power of two makes division by γ exact.
    """
    root = checked_count(rows_per_unit, "rows_per_unit") * math.sqrt(checked_count(entries, "the number of entries"))
    target = _positive(sensitivity, "the sensitivity") * _GRID_SHARE / root
    if target < 2.0**-1000:
        raise ValueError(f"a sensitivity of {sensitivity:g} is too small for floating point: scale the problem")
    return math.ldexp(1.0, math.frexp(target)[1] - 1)


@dataclass(frozen=True, eq=False)
class GaussianSum:
    """A release of p integer sums under replace-one-unit, at a zCDP cost of `rho` (Theorems 1 and 2 above).

    Parameters, all public
    ----------------------
    what
        The name under which the release is charged.
    sensitivity
        Δ: how far replacing one unit moves the sum of exact contributions, in the norm of Theorem 1. A single unit's
        contribution must be at most Δ in size too, as it is for the sensitivities of this module.
    grid
        γ, see `public_grid`. A row's contribution v enters the sums as round(v/γ).
    rho
        The zCDP cost, which sets the noise.
    units
        The number of units N, to make sure beforehand that no sum can leave 64 bits: a sum that wrapped around would
        have no sensitivity to speak of. (Checked from public figures only: a check of the sums would leak.)
    multiplicity
        c_j, for each number released how many entries it stands for. All ones by `multiplicity=numpy.ones(p)`;
        `triangle_multiplicity` for symmetric matrices.
    rows_per_unit
        k, the rows that a unit may hold; the sensitivity must count them already.
    """

    what: str
    sensitivity: float
    grid: float
    rho: float
    units: int
    multiplicity: npt.NDArray[np.integer[Any] | np.floating[Any]]
    rows_per_unit: int = 1
    integer_sensitivity: float = field(init=False)
    integer_scale: float = field(init=False)

    def __post_init__(self) -> None:
        grid = _positive(self.grid, "the grid")
        rho = _positive(self.rho, "rho")
        copies = np.array(self.multiplicity, dtype=np.float64)
        if copies.ndim != 1 or copies.size == 0 or not np.all((copies >= 1) & (copies == np.rint(copies))):
            raise ValueError("multiplicity must be a non-empty vector of whole numbers of at least 1, one per number")
        if not np.all(copies <= 2.0**31):
            raise ValueError("multiplicity must be below 2**31")
        copies.flags.writeable = False
        rounding = checked_count(self.rows_per_unit, "rows_per_unit") * math.sqrt(float(copies.sum()))
        reach = _positive(self.sensitivity, "the sensitivity") / grid * _FLOAT_SLACK + rounding
        object.__setattr__(self, "multiplicity", copies)
        object.__setattr__(self, "integer_sensitivity", reach * _ROUND_UP)
        object.__setattr__(self, "integer_scale", self.integer_sensitivity / math.sqrt(2 * rho) * _ROUND_UP)
        _positive(self.integer_scale, f"{self.what}: the scale of the noise, which rho={rho:g} sets,")
        largest = checked_count(self.units, "units") * self.integer_sensitivity + _NOISE_REACH * self.integer_scale
        if not largest < 2.0**62:
            raise ValueError(
                f"{self.what}: sums of {self.units} units with their noise may reach {largest:.2g} cells of the grid, "
                "beyond 64-bit integers; use a coarser grid or a larger rho"
            )

    @property
    def noise_sd(self) -> float:
        """σ, the noise in the units of the sum: number j gets a standard deviation of σ/√c_j (about, on a fine grid).

        For a symmetric d×d matrix with `triangle_multiplicity` the noise is σ on the diagonal and σ/√2 off it, the
        Gaussian orthogonal ensemble: of no preferred direction, its largest eigenvalue is about σ·√(2d).
        """
        return self.grid * self.integer_scale

    def rdp(self, alpha: float) -> float:
        """D_α of the release: αρ, rounded up."""
        return math.nextafter(checked_order(alpha) * self.rho, math.inf)

    def release(self, sums: IntArray, account: Share, *, insecure_rng: np.random.Generator | None = None) -> FloatArray:
        """Charge αρ to `account`, then return γ·(sums + noise). BudgetExceeded leaves the sums untouched and unseen.

        `insecure_rng` replaces the noise by rounded normal draws of a seeded generator. It is for tests that must
        repeat: whatever comes out then is **not private**.
        """
        if not isinstance(sums, np.ndarray) or sums.dtype != np.int64 or sums.shape != self.multiplicity.shape:
            shape = getattr(sums, "shape", None)
            kind = getattr(sums, "dtype", type(sums).__name__)
            raise ValueError(
                f"{self.what}: the sums must be {self.multiplicity.size} numbers of int64, got {kind} of shape {shape}"
            )
        if insecure_rng is None:
            mechanisms = self._mechanisms()
            account.charge(self.what, self.rdp(account.alpha))
            noisy = _with_secure_noise(sums, mechanisms)
        else:
            account.charge(self.what, self.rdp(account.alpha))
            noisy = sums + np.rint(insecure_rng.normal(size=sums.size) * self._scales()).astype(np.int64)
        return np.asarray(noisy * self.grid, dtype=np.float64)

    def _scales(self) -> FloatArray:
        """The scale of each number's noise, s/√c_j, rounded up."""
        return np.asarray(self.integer_scale / np.sqrt(self.multiplicity) * _ROUND_UP, dtype=np.float64)

    def _mechanisms(self) -> list[tuple[npt.NDArray[np.intp], Any]]:
        """OpenDP's discrete Gaussian for each scale in use, with the positions that it covers. Reads no data."""
        scales = self._scales()
        return [(np.flatnonzero(scales == scale), _discrete_gaussian(float(scale))) for scale in np.unique(scales)]


def _discrete_gaussian(scale: float) -> Any:
    """OpenDP's exact discrete Gaussian on vectors of 64-bit integers.

    Imported here, and from the modules themselves: ``opendp.prelude`` would bring along whatever scikit-learn, SciPy
    and Polars the machine has, a second of start-up.
    """
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=scale)


def _with_secure_noise(sums: IntArray, mechanisms: list[tuple[npt.NDArray[np.intp], Any]]) -> IntArray:
    noisy = np.empty_like(sums)
    for where, mechanism in mechanisms:
        noisy[where] = mechanism(sums[where].tolist())
    return noisy


def gradient_sensitivity(slope: float, norm2: float, temperature: float = 1.0, rows_per_unit: int = 1) -> float:
    """Δ of the gradient G = Σ_i ∇U_i: 2·L1·s₂·k/τ, for slopes |L'| ≤ L1 = `slope` and rows ‖x‖₂ ≤ s₂ = `norm2`.

    A row's gradient is L'(η)·x/τ, at most L1·s₂/τ in norm; with several predictors it is the outer product of the
    vector of slopes and x, whose Frobenius norm is ‖slopes‖₂·‖x‖₂ (`softmax_slope_norm`). A unit's k rows add up to
    at most k times that, and replacing the unit moves the sum by at most twice that. It is attained by x against −x
    with the same slope, or by slopes L1 and −L1 on one x.

    `slope` need only hold at the public point where the gradient is taken. For the logistic loss |L'(η)| ≤ σ(|η|), so
    at a public θ with |x·θ| ≤ s(θ) on the domain L1 = σ(s(θ)) will do: ½ at θ = 0, a quarter of the cost in ρ.
    """
    rows = checked_count(rows_per_unit, "rows_per_unit")
    size = _positive(slope, "the bound on slopes") * _positive(norm2, "the norm of rows")
    return 2 * size * rows / _positive(temperature, "the temperature") * _ROUND_UP


def hessian_sensitivity(
    curvature: float, norm2: float, temperature: float = 1.0, *, convex: bool, rows_per_unit: int = 1
) -> float:
    """Δ of the Hessian H = Σ_i ∇²U_i in Frobenius norm, for |L''| ≤ L2 = `curvature` and ‖x‖₂ ≤ s₂ = `norm2`.

    A row's Hessian L''(η)·xxᵀ/τ has Frobenius norm at most L2·s₂²/τ; with several predictors it is S⊗xxᵀ/τ, of norm
    ‖S‖_F·‖x‖₂² (`softmax_curvature_norm`). Let c = k·L2·s₂²/τ bound a unit's, and A, B be those before and after.

    - in general ‖A−B‖_F ≤ 2c, attained by A = −B;
    - convex losses: A and B are positive semidefinite, so tr(AB) ≥ 0 and
      ‖A−B‖_F² = ‖A‖_F² + ‖B‖_F² − 2tr(AB) ≤ 2c²: Δ = √2·c, attained by orthogonal rows.

    *What to release.* The upper triangle, with multiplicity 1 on the diagonal and 2 off it (`triangle_multiplicity`):
    that is the Frobenius norm itself. No other weight t² for the off-diagonal is better: replacing e₁ by e₂ (times
    s₂) moves the diagonal alone by √2·c, so no t saves noise on the diagonal; for t² ≤ 2 that stays the worst case,
    since ‖diag‖² + (t²/2)‖off-diag‖² ≤ ‖A−B‖_F² — so noise off the diagonal, σ/t, is least at t² = 2 — and for
    t² > 2 the rows (e₁±e₂)·s₂/√2, which differ off the diagonal alone, by c in each of the two entries, make the
    sensitivity t·c > √2·c: more noise on the diagonal and none less off it.
    """
    rows = checked_count(rows_per_unit, "rows_per_unit")
    size = _positive(curvature, "the bound on curvatures") * _positive(norm2, "the norm of rows") ** 2
    factor = math.sqrt(2.0) if convex else 2.0
    return factor * size * rows / _positive(temperature, "the temperature") * _ROUND_UP


def _checked_classes(classes: int) -> int:
    if checked_count(classes, "the number of classes") < 2:
        raise ValueError(f"softmax needs at least 2 classes, got {classes}")
    return int(classes)


def softmax_slope_norm(classes: int) -> float:
    """sup ‖p − e_y‖₂ over the K−1 classes that have coefficients: √2 for K ≥ 3, and 1 for K = 2.

    For the class without coefficients the vector is p itself, of norm at most Σp ≤ 1. For another y its square is
    (1−p_y)² + Σ_{j≠y} p_j² ≤ (1−p_y)² + (Σ_{j≠y} p_j)² ≤ 2(1−p_y)² ≤ 2, approached when all of p sits on one wrong
    class that has coefficients; with K = 2 there is none, and |p − y| ≤ 1.
    """
    return 1.0 if _checked_classes(classes) == 2 else math.sqrt(2.0) * _ROUND_UP


def softmax_curvature_norm(classes: int) -> float:
    """sup ‖diag(p) − ppᵀ‖_F over the K−1 classes that have coefficients: ½ for K ≥ 3, and ¼ for K = 2.

    The matrix is the covariance of a one-hot vector, hence positive semidefinite: the loss is convex. Over all K
    classes its squared norm is q − 2Σp³ + q² with q = Σp². By Cauchy and Schwarz q² = (Σ p^½p^{3/2})² ≤ Σp³, so it is
    at most q − q² ≤ ¼. Leaving a class out leaves a principal submatrix, of no larger norm; p = (½,½) on two classes
    with coefficients attains ½. With K = 2 the matrix is p(1−p) ≤ ¼.
    """
    return 0.25 if _checked_classes(classes) == 2 else 0.5


def triangle_multiplicity(columns: int, predictors: int = 1) -> IntArray:
    """How many entries of a Hessian each released number stands for.

    A sum of S⊗xxᵀ, S symmetric m×m (m = `predictors`, coefficients ordered predictor by predictor), is symmetric in
    the two predictors and in the two columns separately: m(m+1)/2·d(d+1)/2 different numbers, of multiplicity 1, 2
    or 4. With one predictor: the upper triangle row by row, 1 on the diagonal and 2 off it.
    """
    return np.multiply.outer(_pair_counts(predictors), _pair_counts(columns)).ravel()


def _pair_counts(size: int) -> IntArray:
    rows, columns = np.triu_indices(checked_count(size, "the size of a matrix"))
    return np.where(rows == columns, 1, 2).astype(np.int64)


def _matrix_positions(columns: int, predictors: int) -> npt.NDArray[np.intp]:
    """For every entry of the (md)×(md) matrix, the position of its number among those released."""
    outer, inner = _pair_positions(predictors), _pair_positions(columns)
    pairs = columns * (columns + 1) // 2
    blocks = outer[:, None, :, None] * pairs + inner[None, :, None, :]
    return blocks.reshape(predictors * columns, predictors * columns)


def _pair_positions(size: int) -> npt.NDArray[np.intp]:
    rows, columns = np.triu_indices(size)
    positions = np.empty((size, size), dtype=np.intp)
    positions[rows, columns] = positions[columns, rows] = np.arange(rows.size)
    return positions


def triangle_to_matrix(numbers: FloatArray, columns: int, predictors: int = 1) -> FloatArray:
    """The full symmetric matrix from released numbers in the order of `triangle_multiplicity`."""
    expected = triangle_multiplicity(columns, predictors).size
    if numbers.shape != (expected,):
        raise ValueError(f"expected {expected} numbers of a symmetric matrix, got shape {numbers.shape}")
    return np.asarray(numbers[_matrix_positions(columns, predictors)], dtype=np.float64)


def triangle_from_matrix(matrix: npt.NDArray[Number], columns: int, predictors: int = 1) -> npt.NDArray[Number]:
    """The different numbers of a symmetric matrix, in the order of `triangle_multiplicity`."""
    size = columns * predictors
    if matrix.shape != (size, size):
        raise ValueError(f"expected a matrix of {size}×{size}, got shape {matrix.shape}")
    _, first = np.unique(_matrix_positions(columns, predictors), return_index=True)
    return np.asarray(matrix.ravel()[first], dtype=matrix.dtype)


def newton_direction(gradient: FloatArray, hessian: FloatArray, floor: float, cap: float) -> FloatArray:
    """The step −H⁻¹G from noisy G and H, made safe: eigenvalues below `floor` are raised to it, length at most `cap`.

    Noise may turn small eigenvalues of H negative or tiny, and the step along them into noise magnified; a floor of
    about the size of the noise (`GaussianSum.noise_sd`) bounds it by ‖G‖/floor. This sees released numbers only, so
    it costs nothing (post-processing).
    """
    least, longest = _positive(floor, "the eigenvalue floor"), _positive(cap, "the cap on a step")
    size = gradient.size
    if gradient.shape != (size,) or hessian.shape != (size, size):
        raise ValueError(f"a gradient of shape {gradient.shape} and a Hessian of shape {hessian.shape} do not match")
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(hessian))):
        raise ValueError("the released gradient and Hessian must be finite: check the grid and the noise")
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    step = -vectors @ ((vectors.T @ gradient) / np.maximum(values, least))
    length = float(np.linalg.norm(step))
    return np.asarray(step * min(1.0, longest / length) if length > 0 else step, dtype=np.float64)
