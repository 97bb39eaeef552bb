# %% [markdown]
# # Which flights are late?
#
# A million rows, ε = 2, and the posterior itself: at temperature 1, with so many records that one record's part is
# small enough for exact draws to be affordable.
#
# With the file `flights-3m.parquet` of the npm package `vega-datasets` beside this script (`npm pack vega-datasets`),
# three million flights of the year 2001 are read from it. Without it, a million flights are made up that are late for
# the same reasons.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import dpfastmh as mh

HUBS = ["ATL", "ORD", "LAX", "DFW", "SFO"]
FILE = Path("flights-3m.parquet")


def from_file():
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(FILE)
    hour = np.asarray(pc.add(pc.hour(table["date"]), pc.divide(pc.minute(table["date"]), 60.0)))
    origin = np.asarray(table["origin"])
    return hour, np.asarray(table["distance"], float), origin, np.asarray(table["delay"]) > 15


def made_up(n=1_000_000):
    rng = np.random.default_rng(2001)
    hour, distance = np.clip(rng.normal(14, 4.5, n), 0, 24), rng.gamma(1.6, 450, n)
    origin = rng.choice([*HUBS, "BOS", "SEA", "PHL"], n)
    eta = 0.09 * (hour - 14) + 0.3 * np.log10(np.maximum(distance, 20) / 500) + 0.2 * np.isin(origin, HUBS) - 1.5
    chance = 1 / (1 + np.exp(-eta))
    return hour, distance, origin, rng.random(n) < chance


hour, distance, origin, late = from_file() if FILE.exists() else made_up()
table = {
    "hour": hour,
    "log_distance": np.log10(np.maximum(distance, 20.0)),
    "origin": np.where(np.isin(origin, HUBS), origin, "other"),  # a public list; all others are one category
    "late": late.astype(int),
}
print(f"{len(late):,} flights")

# %% [markdown]
# Public knowledge: a day has 24 hours, no flight within the country is shorter than 20 or longer than 5,000 miles, and
# the five airports were known to be the largest. A logarithm fills its bounds better than miles do, most of which are
# few: what fills its bounds costs less. δ is far below one over the number of flights.

# %%
domain = mh.Box(hour=(0, 24), log_distance=(1.3, 3.7)) * mh.OneHot("origin", ["other", *HUBS])
model = mh.LogisticRegression(domain)
budget = mh.Budget(epsilon=2, delta=1e-8)
posterior = mh.sample(model, table, target="late", budget=budget)
print(posterior.summary())

# %%
posterior.plot_forest()

# %% [markdown]
# The chance of a delay by the hour of departure, with 90% intervals:

# %%
hours = np.linspace(0, 24, 49)
found = posterior.predict({"hour": hours, "log_distance": np.full(49, 2.8), "origin": ["ORD"] * 49})
plt.fill_between(hours, found.low, found.high, alpha=0.3)
plt.plot(hours, found.mean)
plt.xlabel("scheduled hour")
plt.ylabel("chance of being late, from ORD")
plt.show()
