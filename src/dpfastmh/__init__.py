"""dpfastmh: private, exact, fast Bayesian inference.

Names are loaded when first used: importing the package itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Ball": "domain",
    "Box": "domain",
    "Constant": "domain",
    "OneHot": "domain",
    "Flat": "priors",
    "Laplace": "priors",
    "Normal": "priors",
    "StudentT": "priors",
    "Energy": "models",
    "GLM": "models",
    "HuberRegression": "models",
    "LogisticErrorRegression": "models",
    "LogisticRegression": "models",
    "Mixture": "models",
    "PoissonRegression": "models",
    "SoftmaxRegression": "models",
    "StudentTRegression": "models",
    "Coordinates": "methods",
    "Directions": "methods",
    "RandomWalk": "methods",
    "DPFastMH": "methods",
    "DPFastMHFull": "methods",
    "MetropolisHastings": "methods",
    "TunaMH": "methods",
    "run_chains": "methods",
    "DaskRows": "data.cluster",
    "RowEngine": "data.engine",
    "RowsLost": "data.engine",
    "MappedRows": "data.mapped",
    "ingest": "data.ingest",
    "ingest_arrays": "data.ingest",
    "Budget": "budget",
    "Ledger": "ledger",
    "BudgetTooSmall": "planning",
    "Plan": "planning",
    "Posterior": "posterior",
    "Schema": "schema",
    "Settings": "planning",
    "plan": "planning",
    "resume": "resuming",
    "sample": "sampling",
}

_MODULES = ("audit",)

if TYPE_CHECKING:
    from dpfastmh import audit as audit
    from dpfastmh.budget import Budget as Budget
    from dpfastmh.data.cluster import DaskRows as DaskRows
    from dpfastmh.data.engine import RowEngine as RowEngine
    from dpfastmh.data.engine import RowsLost as RowsLost
    from dpfastmh.data.ingest import ingest as ingest
    from dpfastmh.data.ingest import ingest_arrays as ingest_arrays
    from dpfastmh.data.mapped import MappedRows as MappedRows
    from dpfastmh.domain import Ball as Ball
    from dpfastmh.domain import Box as Box
    from dpfastmh.domain import Constant as Constant
    from dpfastmh.domain import OneHot as OneHot
    from dpfastmh.ledger import Ledger as Ledger
    from dpfastmh.methods import Coordinates as Coordinates
    from dpfastmh.methods import Directions as Directions
    from dpfastmh.methods import DPFastMH as DPFastMH
    from dpfastmh.methods import DPFastMHFull as DPFastMHFull
    from dpfastmh.methods import MetropolisHastings as MetropolisHastings
    from dpfastmh.methods import RandomWalk as RandomWalk
    from dpfastmh.methods import TunaMH as TunaMH
    from dpfastmh.methods import run_chains as run_chains
    from dpfastmh.models import GLM as GLM
    from dpfastmh.models import Energy as Energy
    from dpfastmh.models import HuberRegression as HuberRegression
    from dpfastmh.models import LogisticErrorRegression as LogisticErrorRegression
    from dpfastmh.models import LogisticRegression as LogisticRegression
    from dpfastmh.models import Mixture as Mixture
    from dpfastmh.models import PoissonRegression as PoissonRegression
    from dpfastmh.models import SoftmaxRegression as SoftmaxRegression
    from dpfastmh.models import StudentTRegression as StudentTRegression
    from dpfastmh.planning import BudgetTooSmall as BudgetTooSmall
    from dpfastmh.planning import Plan as Plan
    from dpfastmh.planning import Settings as Settings
    from dpfastmh.planning import plan as plan
    from dpfastmh.posterior import Posterior as Posterior
    from dpfastmh.priors import Flat as Flat
    from dpfastmh.priors import Laplace as Laplace
    from dpfastmh.priors import Normal as Normal
    from dpfastmh.priors import StudentT as StudentT
    from dpfastmh.resuming import resume as resume
    from dpfastmh.sampling import sample as sample
    from dpfastmh.schema import Schema as Schema

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, *_MODULES])
