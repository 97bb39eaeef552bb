# %% [markdown]
# # A regression that outliers cannot move
#
# With Gaussian errors one absurd record can move the answer as far as it likes, and no privacy is possible. The
# pseudo-Huber energy √(1 + r²) is a parabola near 0 and a straight line far out: the pull of a record is bounded, and
# so the fit is both robust and private.

# %%
import numpy as np

import dpfastmh as mh

rng = np.random.default_rng(8)
n = 200_000
area, rooms = rng.uniform(20, 250, n), rng.integers(1, 8, n)
price = 0.30 + 0.018 * area + 0.06 * rooms + 0.25 * rng.standard_t(4, n)
price[rng.random(n) < 0.03] *= 10  # typing errors: a digit too many
table = {"area": area, "rooms": rooms, "price": price}

# %% [markdown]
# Prices in hundred thousands: choose units in which coefficients are about 1. The scale of an error and the bounds
# of the price are public guesses. Least squares, without any privacy, is led astray:

# %%
design = np.column_stack([np.ones(n), area, rooms])
print("least squares:", np.linalg.lstsq(design, price, rcond=None)[0].round(4), "the truth: [0.30, 0.018, 0.06]")

# %%
domain = mh.Box(area=(20, 250), rooms=(1, 7))
model = mh.HuberRegression(domain, mh.Normal(5.0), scale=0.25, target_bounds=(0, 15), temperature=20)
posterior = mh.sample(model, table, target="price", budget=mh.Budget(epsilon=2, delta=1e-7))
for row in posterior.summary().on("original"):
    print(f"{row.name:10} {row.mean:7.4f}, 90% interval {row.q5:7.4f} to {row.q95:7.4f}")

# %% [markdown]
# Tempered at 20, the intervals are about √20 times as wide as the posterior's. The densities, on the scaled features:

# %%
posterior.plot_density()
