# %% [markdown]
# # Who earns more than 50,000 dollars?
#
# The Adult census table, 48,842 people, ships with the library. We fit a logistic regression to it at a total of
# ε = 2: everything below may be published at that price.

# %%

import dpfastmh as mh
from dpfastmh import datasets

table = datasets.adult()
print(table.domain.columns)

# %% [markdown]
# The bounds come from the questionnaire, not from the data. The forecast reads no data at all. The posterior of so many
# people is narrow, and draws from it are dear: so we sample at temperature 20, whose means are the same and whose
# standard deviations are about √20 times the posterior's.

# %%
budget = mh.Budget(epsilon=2, delta=1e-6)
model = mh.LogisticRegression(table.domain, mh.Normal(2.5), temperature=20)
print(mh.plan(model, units=len(table.y), budget=budget).summary())

# %%
posterior = mh.sample(model, table.x, table.y, budget=budget)
print(posterior.summary())

# %% [markdown]
# Means with 50% and 90% intervals, on features scaled to [−1, 1]: a coefficient is the change of the log-odds from the
# middle of a column's range to its end.

# %%
posterior.plot_forest()

# %% [markdown]
# Predictions average over the draws and cost nothing more.

# %%
somebody = {"age": [0.0, 1.0], "age_squared": [0.0, 1.0], "education": [0.0, 2.0], "hours": [0.0, 0.5]}
somebody |= {"male": [0, 1], "married": [0, 1], "gain": [0, 0], "loss": [0, 0]}
found = posterior.predict(somebody)
for chance, low, high in zip(found.mean, found.low, found.high, strict=True):
    print(f"{chance:.2f}, 90% interval {low:.2f} to {high:.2f}")

# %% [markdown]
# What was promised, and what was paid for:

# %%
privacy = posterior.privacy
print(f"epsilon spent {privacy.epsilon_spent:.3f} of {privacy.epsilon}, delta {privacy.delta}")
for release in privacy.releases:
    print(f"  {release['what']:12} {release['count']:>10,} times, Rényi cost {release['rdp']:.3g}")
