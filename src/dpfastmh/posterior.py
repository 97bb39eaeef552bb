"""What comes out of ``sample``: released numbers and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Privacy:
    """The privacy statement of a run: what was promised, to whom, and what was paid for."""

    epsilon: float
    delta: float
    epsilon_spent: float
    delta_spent: float
    alpha: float
    rdp_spent: float
    units: int
    unit: str
    max_rows_per_unit: int
    method: str
    exact_target: str
    private: bool
    temperature: float
    chains: int
    steps: int
    draws: int
    releases: tuple[dict[str, Any], ...]
    library_version: str
    neighbouring: str = "replace-one"


@dataclass(frozen=True)
class Posterior:
    """Draws of the coefficients of the scaled features, chain by chain, with the privacy statement."""

    names: tuple[str, ...]
    draws: FloatArray  # (chain, draw, coefficient)
    acceptance: float
    privacy: Privacy
    warnings: tuple[str, ...] = field(default=())

    @property
    def means(self) -> FloatArray:
        return np.asarray(self.draws.mean(axis=(0, 1)))

    @property
    def sds(self) -> FloatArray:
        """Standard deviations about the mean of all chains."""
        return np.asarray(self.draws.std(axis=(0, 1), ddof=1))

    @property
    def target(self) -> str:
        """The word for what was sampled: only temperature 1 is the posterior."""
        return "posterior" if self.privacy.temperature == 1.0 else f"tempered ({self.privacy.temperature:g})"

    def ess(self) -> FloatArray:
        """Effective draws of each coefficient's mean, all chains together."""
        return np.array([effective_draws(self.draws[:, :, j]) for j in range(len(self.names))])

    def summary(self) -> str:
        """A table of means, standard deviations, 90% intervals and effective draws."""
        ess = self.ess()
        lines = [f"{self.target}, {self.draws.shape[0]} chains of {self.draws.shape[1]} draws"]
        if not self.privacy.private:
            lines[0] = "NOT PRIVATE (seeded): " + lines[0]
        width = max(12, *(len(name) for name in self.names)) + 2
        lines.append(f"{'':>{width}}{'mean':>10}{'sd':>9}{'5%':>10}{'95%':>10}{'ess':>7}")
        for j, name in enumerate(self.names):
            column = self.draws[:, :, j]
            low, high = np.quantile(column, [0.05, 0.95])
            lines.append(f"{name:>{width}}{column.mean():10.3f}{self.sds[j]:9.3f}{low:10.3f}{high:10.3f}{ess[j]:7.0f}")
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)


def effective_draws(chains: FloatArray) -> float:
    """Effective number of draws (chain, draw) for the mean, by arviz-stats (rank-free, split chains)."""
    if chains.shape[1] < 8 or np.ptp(chains) == 0.0:
        return float("nan")
    from arviz_stats.base import array_stats

    return float(array_stats.ess(chains, chain_axis=0, draw_axis=1, method="mean"))
