# %% [markdown]
# # Patients with several visits
#
# A person who comes five times has five rows. Protecting a *row* would give such a person a fifth of the protection, so
# the patient is declared as the unit: the promise then covers all of a patient's rows at once. At most two count.

# %%
import numpy as np

import dpfastmh as mh

rng = np.random.default_rng(4)
patients = 60_000
visits = rng.choice([1, 2, 3, 4], patients, p=[0.6, 0.25, 0.1, 0.05])
patient = np.repeat(np.arange(patients), visits)
age = np.repeat(rng.uniform(18, 95, patients), visits)
stay = np.clip(rng.gamma(2.0, 2.5, len(patient)), 0, 30)
risk = 1 / (1 + np.exp(-(-1.6 + 0.02 * (age - 55) + 0.1 * (stay - 5))))
table = {"patient": patient, "age": age, "stay": stay, "readmitted": (rng.random(len(patient)) < risk).astype(int)}
print(f"{patients:,} patients, {len(patient):,} visits")

# %% [markdown]
# The number of patients is public from now on; the number of visits is not, and appears nowhere. The cost of
# a step grows with the square of the rows that count: two is a compromise between visits thrown away and noise.

# %%
model = mh.LogisticRegression(mh.Box(age=(18, 95), stay=(0, 30)), temperature=20)
budget = mh.Budget(epsilon=2, delta=1e-6)
for rows in (1, 2, 4):
    found = mh.plan(model, units=patients, budget=budget, max_rows_per_unit=rows)
    print(f"{rows} rows of a patient count: {found.effective.min():8.1f} effective draws forecast")

# %%
posterior = mh.sample(model, table, target="readmitted", unit="patient", max_rows_per_unit=2, budget=budget)
print(posterior.summary())
print(f"protected: each {posterior.privacy.unit}, with at most {posterior.privacy.max_rows_per_unit} rows")

# %%
posterior.plot_forest(scale="original")
