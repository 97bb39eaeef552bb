"""Reference moments for the tests of the samplers: posteriors computed by other means than this library's.

Three regressions by NUTS (NumPyro: 4 chains of 20,000 draws after 2,000 of warm-up, double precision), the mixture by
Gauss-Legendre quadrature. Nothing of the library's own sampling code is used; the tables are made by the functions
below, which the tests import as well, and each result carries checksums of the table it belongs to.

    python benchmarks/make_reference_moments.py tests/data adult adult_2000 student_t mixture

NumPyro and JAX are needed for the regressions. They are no dependencies of the library: use a throw-away environment.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

CHAINS, WARM_UP, DRAWS, SEED = 4, 2_000, 20_000, 2024
PRIOR_SCALE = 2.5  # of every coefficient, the intercept among them
STUDENT_DF, STUDENT_SCALE = 4.0, 0.5
ADULT_BOUNDS = np.array(
    [
        (-1.5, 3.7143),
        (0.0, 13.7959),
        (-3.4615, 2.3077),
        (-3.25, 4.9167),
        (0.0, 1.0),
        (0.0, 1.0),
        (0.0, 1.4391),
        (0.0, 1.0474),
    ]
)
MIXTURE_ROWS, MIXTURE_TEMPERATURE, MIXTURE_VARIANCE, MIXTURE_EDGE = 50_000, 500.0, 2.0, 3.0


class Table(NamedTuple):
    """Features as the library scales them, with the constant first, and targets."""

    x: FloatArray
    y: FloatArray


# -- tables ----------------------------------------------------------------------------------------------------------
def adult_table(rows: int | None = None) -> Table:
    """The Adult table that ships with the library, clipped to the public bounds and scaled to [−1, 1] by them."""
    archive = Path(__file__).resolve().parent.parent / "src" / "dpfastmh" / "datasets" / "adult.npz"
    with np.load(archive) as table:
        raw, y = np.asarray(table["X"][:rows, 1:], dtype=np.float64), np.asarray(table["y"][:rows], dtype=np.float64)
    low, high = ADULT_BOUNDS.T
    scaled = (np.clip(raw, low, high) - (low + high) / 2) / ((high - low) / 2)
    return Table(np.column_stack([np.ones(len(y)), scaled]), y)


def student_table(rows: int = 2_000, seed: int = 7) -> Table:
    """y = x·θ + ½ t₄ with four features uniform on [−1, 1], the second leaning on the first."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (rows, 4))
    x[:, 1] = 0.6 * x[:, 0] + 0.4 * x[:, 1]
    normal, chi_square = rng.standard_normal(rows), (rng.standard_normal((rows, 4)) ** 2).sum(axis=1)
    x = np.column_stack([np.ones(rows), x])
    return Table(x, x @ [0.3, 1.0, -0.5, 0.25, 0.0] + STUDENT_SCALE * normal / np.sqrt(chi_square / STUDENT_DF))


def mixture_records(rows: int = MIXTURE_ROWS, seed: int = 11) -> FloatArray:
    """½N(0, 2) + ½N(1, 2), drawn again where it falls outside ±3."""
    rng = np.random.default_rng(seed)
    found = np.empty(0)
    while found.size < rows:
        more = rng.standard_normal(rows) * np.sqrt(MIXTURE_VARIANCE) + (rng.random(rows) < 0.5)
        found = np.concatenate([found, more[np.abs(more) <= MIXTURE_EDGE]])
    return found[:rows]


def checksums(*arrays: FloatArray) -> list[float]:
    """Enough of a table to notice that it is another one."""
    return [float(np.dot(a.ravel(), np.cos(np.arange(a.size)))) for a in arrays]


# -- regressions, by NUTS --------------------------------------------------------------------------------------------
def nuts(table: Table, family: str, seed: int = SEED) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    x, y = jnp.asarray(table.x), jnp.asarray(table.y)

    def model() -> None:
        theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR_SCALE).expand([x.shape[1]]).to_event(1))
        eta = x @ theta
        if family == "logistic":
            numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)
        else:
            numpyro.sample("y", dist.StudentT(STUDENT_DF, eta, STUDENT_SCALE), obs=y)

    started = time.perf_counter()
    sampler = MCMC(
        NUTS(model, dense_mass=True), num_warmup=WARM_UP, num_samples=DRAWS, num_chains=CHAINS,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    sampler.run(jax.random.PRNGKey(seed))
    draws = np.asarray(sampler.get_samples(group_by_chain=True)["theta"])
    flat = draws.reshape(-1, draws.shape[-1])
    centred = flat - flat.mean(axis=0)
    ess = np.array([float(effective_sample_size(draws[..., j])) for j in range(flat.shape[1])])
    ess_square = np.array(
        [float(effective_sample_size(d)) for d in np.moveaxis((draws - flat.mean(axis=0)) ** 2, 2, 0)]
    )
    return {
        "mean": flat.mean(axis=0).tolist(),
        "sd": flat.std(axis=0, ddof=1).tolist(),
        "covariance": (centred.T @ centred / (len(flat) - 1)).tolist(),
        "mcse_mean_in_sd": (ess**-0.5).tolist(),
        "mcse_sd_relative": ((2.0 * ess_square) ** -0.5).tolist(),
        "rhat": [float(split_gelman_rubin(draws[..., j])) for j in range(flat.shape[1])],
        "settings": {
            "by": f"NUTS, NumPyro {numpyro.__version__}, JAX {jax.__version__}, x64, dense mass matrix",
            "chains": CHAINS, "warm_up": WARM_UP, "draws": DRAWS, "seed": seed, "rows": len(table.y),
            "prior": f"Normal(0, {PRIOR_SCALE}) on every coefficient of the scaled features, intercept first",
            "likelihood": family if family == "logistic" else f"student-t, df {STUDENT_DF}, scale {STUDENT_SCALE}",
            "seconds": round(time.perf_counter() - started, 1),
        },
        "checksums": checksums(table.x, table.y),
    }  # fmt: skip


# -- the mixture, by quadrature --------------------------------------------------------------------------------------
def mixture(records: FloatArray, nodes: int = 160) -> dict[str, Any]:
    """Moments over |θ₁|, |θ₂| ≤ 3 of exp(−Σ U/T), U = −log(e^{−(x−θ₁)²/2σ²} + e^{−(x−θ₁−θ₂)²/2σ²}), node by node."""
    coarse, fine = _mixture_moments(records, nodes * 3 // 4), _mixture_moments(records, nodes)
    change = max(abs(a - b) for a, b in zip(coarse["mean"] + coarse["sd"], fine["mean"] + fine["sd"], strict=True))
    fine["settings"] = {
        "by": f"Gauss-Legendre quadrature, {nodes} x {nodes} nodes on [-3, 3]^2",
        "largest_change_from_three_quarters_of_the_nodes": change,
        "rows": len(records), "temperature": MIXTURE_TEMPERATURE, "variance": MIXTURE_VARIANCE, "prior": "flat",
    }  # fmt: skip
    fine["checksums"] = checksums(records)
    return fine


def _mixture_moments(records: FloatArray, nodes: int) -> dict[str, Any]:
    at, weight = np.polynomial.legendre.leggauss(nodes)
    at, weight = MIXTURE_EDGE * at, MIXTURE_EDGE * weight
    log_density = np.empty((nodes, nodes))
    for i, first in enumerate(at):
        near = (records - first) ** 2
        for k, second in enumerate(at):
            gap = (near - (records - first - second) ** 2) / (2.0 * MIXTURE_VARIANCE)
            log_density[i, k] = (np.logaddexp(0.0, gap) - near / (2.0 * MIXTURE_VARIANCE)).sum() / MIXTURE_TEMPERATURE
    mass = np.exp(log_density - log_density.max()) * np.outer(weight, weight)
    mass /= mass.sum()
    first, second = np.meshgrid(at, at, indexing="ij")
    points = np.stack([first.ravel(), second.ravel()])
    mean = points @ mass.ravel()
    centred = points - mean[:, None]
    covariance = (centred * mass.ravel()) @ centred.T
    upper = float(mass[second > 0].sum())
    return {
        "mean": mean.tolist(),
        "sd": np.sqrt(np.diag(covariance)).tolist(),
        "covariance": covariance.tolist(),
        "probability_theta2_positive": upper,
    }


def main(folder: str, *names: str) -> None:
    for name in names:
        if name == "mixture":
            found = mixture(mixture_records())
        elif name == "student_t":
            found = nuts(student_table(), "student-t")
        else:
            found = nuts(adult_table(int(name.split("_")[1]) if "_" in name else None), "logistic")
        (Path(folder) / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(name, found["mean"], found["sd"], found["settings"])


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[2:])
