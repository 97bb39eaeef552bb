"""One NUTS sampler of another library on one table; runs in the peers' environment and knows nothing of dpfastmh.

    python nuts.py numpyro-f32 DATA.npz OUT.npz --warm-up 500 --draws 1000 --limit 600

Logistic regression without an intercept, Normal(0, 2.5) on every coefficient. One chain, which JAX spreads over the
processors. OUT holds the draws and the seconds of warm-up and sampling, without compilation. Before it starts, the
gradient is timed: where three gradients a draw (NUTS takes seven as a rule) would pass the limit, it says so and stops.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

PRIOR_SD = 2.5
LEAST_GRADIENTS = 3  # a draw: two leapfrog steps at least, hardly ever attained


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sampler", choices=SAMPLERS)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--limit", type=float, default=600.0)
    options = parser.parse_args()
    with np.load(options.data) as file:
        x, y = file["x"], file["y"]
    found = SAMPLERS[options.sampler](x, y, options)
    draws = found.pop("draws")
    np.savez(options.out, draws=draws, facts=json.dumps(found))


def give_up_early(seconds: float, options: argparse.Namespace) -> None:
    """Stop where even the fewest gradients of a whole run would pass the limit."""
    least = LEAST_GRADIENTS * seconds * (options.warm_up + options.draws)
    if least > options.limit:
        print(f"TOO SLOW gradient {seconds:.4g} s, at least {least:.0f} s for the run", file=sys.stderr)
        raise SystemExit(3)


# -- JAX -------------------------------------------------------------------------------------------------------------
def jax_problem(x, y, options, double: bool):
    """The data on the device, the log density, and the stretches of time spent on compiling, as they come."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", double)
    kind = jnp.float64 if double else jnp.float32
    x, y = jnp.asarray(x, kind), jnp.asarray(y, kind)

    def log_density(theta, x, y):
        eta = x @ theta
        return jnp.sum(y * eta - jax.nn.softplus(eta)) - 0.5 * jnp.sum(theta**2) / PRIOR_SD**2

    compiling: list[tuple[float, float]] = []

    def listen(event: str, seconds: float, **_: object) -> None:
        if event.startswith("/jax/core/compile/"):
            now = time.perf_counter()
            compiling.append((now - seconds, now))

    gradient = jax.jit(jax.value_and_grad(log_density))
    origin = jnp.zeros(x.shape[1], kind)
    jax.block_until_ready(gradient(origin, x, y))
    begun = time.perf_counter()
    for _ in range(3):
        jax.block_until_ready(gradient(origin, x, y))
    give_up_early((time.perf_counter() - begun) / 3, options)
    jax.monitoring.register_event_duration_secs_listener(listen)
    return x, y, log_density, compiling


def clock(compiling):
    """(seconds without compiling, seconds of compiling) since the last call; stretches lie inside each other."""
    last = [time.perf_counter()]

    def lap() -> tuple[float, float]:
        start, stop = last[0], time.perf_counter()
        compiled, reached = 0.0, start
        for first, until in sorted(compiling):
            compiled += max(0.0, until - max(first, reached))
            reached = max(reached, until)
        last[0] = stop
        return stop - start - compiled, compiled

    return lap


def numpyro(x, y, options, double: bool):
    import jax

    x, y, _, compiling = jax_problem(x, y, options, double)
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model(x, y):
        theta = numpyro.sample("theta", dist.Normal(jnp.zeros(x.shape[1]), PRIOR_SD).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ theta), obs=y)

    run = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=options.warm_up,
        num_samples=options.draws,
        progress_bar=False,
        jit_model_args=True,
    )
    lap = clock(compiling)
    run.warmup(jax.random.PRNGKey(1), x, y)
    jax.block_until_ready(run.post_warmup_state.z)
    warm_up, first = lap()
    run.run(run.post_warmup_state.rng_key, x, y)
    draws = np.asarray(run.get_samples()["theta"])
    sampling, second = lap()
    return {"draws": draws, "warm_up": warm_up, "sampling": sampling, "compiling": first + second}


def blackjax(x, y, options):
    import blackjax as library
    import jax

    x, y, log_density, compiling = jax_problem(x, y, options, False)
    origin = jax.numpy.zeros(x.shape[1], x.dtype)

    @jax.jit
    def adapt(key, x, y):
        window = library.window_adaptation(library.nuts, lambda theta: log_density(theta, x, y))
        (state, parameters), _ = window.run(key, origin, options.warm_up)
        return state, parameters

    @jax.jit
    def sample(keys, state, parameters, x, y):
        step = library.nuts(lambda theta: log_density(theta, x, y), **parameters).step

        def one(state, key):
            state, _ = step(key, state)
            return state, state.position

        return jax.lax.scan(one, state, keys)

    lap = clock(compiling)
    state, parameters = jax.block_until_ready(adapt(jax.random.PRNGKey(1), x, y))
    warm_up, first = lap()
    keys = jax.random.split(jax.random.PRNGKey(2), options.draws)
    draws = np.asarray(sample(keys, state, parameters, x, y)[1])
    sampling, second = lap()
    return {"draws": draws, "warm_up": warm_up, "sampling": sampling, "compiling": first + second}


# -- PyMC's models, sampled by nutpie --------------------------------------------------------------------------------
def nutpie(x, y, options):
    import nutpie as library
    import pymc as pm

    x, y = x.astype(np.float64), y.astype(np.int64)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, PRIOR_SD, shape=x.shape[1])
        pm.Bernoulli("y", logit_p=pm.math.dot(x, theta), observed=y)
    begun = time.perf_counter()
    compiled = library.compile_pymc_model(model)
    compiling = time.perf_counter() - begun
    begun = time.perf_counter()
    x.T @ (x @ np.ones(x.shape[1]) - y)  # the least that a gradient does
    give_up_early(time.perf_counter() - begun, options)
    begun = time.perf_counter()
    trace = library.sample(
        compiled, tune=options.warm_up, draws=options.draws, chains=1, cores=1, seed=1, progress_bar=False,
        save_warmup=True,
    )  # fmt: skip
    spent = time.perf_counter() - begun
    early, late = (float(part["n_steps"].sum()) for part in (trace.warmup_sample_stats, trace.sample_stats))
    draws = trace.posterior["theta"].to_numpy()[0]
    share = early / (early + late)  # of the gradients
    return {"draws": draws, "warm_up": spent * share, "sampling": spent * (1.0 - share), "compiling": compiling}


SAMPLERS = {
    "numpyro-f32": lambda x, y, options: numpyro(x, y, options, False),
    "numpyro-f64": lambda x, y, options: numpyro(x, y, options, True),
    "blackjax": blackjax,
    "nutpie": nutpie,
}

if __name__ == "__main__":
    main()
