# %% [markdown]
# # Two releases under one ledger
#
# A hospital publishes a model of readmissions. Half a year later somebody asks whether the ward matters, and a second
# model is published. Each release has its own ε; who protects the patients is the *ledger*, which holds one total for
# everything that is ever released about the table.

# %%
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import dpfastmh as mh

rng = np.random.default_rng(12)
n = 100_000
age, ward = rng.uniform(18, 95, n), rng.choice(["surgery", "medicine", "maternity"], n, p=[0.4, 0.4, 0.2])
eta = -1.0 + 0.02 * (age - 55) + 0.5 * (ward == "medicine") - 0.4 * (ward == "maternity")
table = {"age": age, "ward": ward, "readmitted": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)}

# %% [markdown]
# The total is fixed once. A file will do for one machine; a team shares a database.

# %%
url = f"sqlite:///{tempfile.mkdtemp()}/ledger.db"
ledger = mh.Ledger.create(url, "readmissions", mh.Budget(epsilon=3, delta=1e-6))

# %%
by_age = mh.LogisticRegression(mh.Box(age=(18, 95)), temperature=5)
wards = mh.OneHot("ward", ["surgery", "medicine", "maternity"])
by_ward = mh.LogisticRegression(mh.Box(age=(18, 95)) * wards, temperature=5)

first = mh.sample(by_age, table, target="readmitted", budget=mh.Budget(epsilon=1, delta=1e-6), ledger=ledger)
second = mh.sample(by_ward, table, target="readmitted", budget=mh.Budget(epsilon=2, delta=1e-6), ledger=ledger)

standing = ledger.standing()
print(f"{standing.runs} runs of epsilon = 1 and 2 took epsilon = {standing.epsilon_taken:.2f} together, not 3")
print(f"left for one more: epsilon = {standing.epsilon_left:.2f}")

# %% [markdown]
# What has been released may be compared at no further cost. Does the effect of age change once wards are known?

# %%
for name, posterior in (("without wards", first), ("with wards", second)):
    row = next(row for row in posterior.summary().on("original") if row.name == "age")
    print(f"age, {name:13} {row.mean:.4f}, 90% interval {row.q5:.4f} to {row.q95:.4f}")

# %%
ages = np.linspace(18, 95, 60)
for name in ("surgery", "medicine", "maternity"):
    found = second.predict({"age": ages, "ward": [name] * len(ages)})
    plt.fill_between(ages, found.low, found.high, alpha=0.3)
    plt.plot(ages, found.mean, label=name)
found = first.predict({"age": ages})
plt.plot(ages, found.mean, "k--", label="all, first release")
plt.xlabel("age")
plt.ylabel("chance of readmission")
plt.legend()
plt.show()

# %% [markdown]
# A third release that does not fit is refused before the table is read.

# %%
try:
    mh.sample(by_age, table, target="readmitted", budget=mh.Budget(epsilon=3, delta=1e-6), ledger=ledger)
except ValueError as refusal:
    print(refusal)
