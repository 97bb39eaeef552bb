"""What a reader of the draws should know, found in released numbers alone, each as a warning with a type of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dpfastmh.posterior import Posterior

FEW_EFFECTIVE = 100.0  # effective draws, below which a mean is off by more than a tenth of a standard deviation
LARGE_RHAT = 1.05
HARDLY_ANY = 10.0  # effective draws, below which not even a sign is told
FEW_DRAWS = 20  # kept of each chain

CURES = "a larger epsilon, more records, a higher temperature or fewer columns give more"


class PosteriorWarning(UserWarning):
    """Something in the draws limits what may be concluded from them."""


class FewEffectiveDraws(PosteriorWarning):
    """The budget bought so few effective draws that the noise of sampling blurs the means."""


class ChainsDisagree(PosteriorWarning):
    """The chains have not forgotten where they started."""


class BudgetEndedEarly(PosteriorWarning):
    """The budget ended before the chains could yield a usable number of draws."""


class NeverMoved(PosteriorWarning):
    """Not one proposed move of a coefficient was accepted: its draws are its start."""


def findings(posterior: Posterior) -> list[PosteriorWarning]:
    """All that applies, the gravest first."""
    found = [_ended_early(posterior), _never_moved(posterior), _disagree(posterior), _few_effective(posterior)]
    return [warning for warning in found if warning is not None]


def precision(posterior: Posterior) -> str:
    """What the noise of the privacy budget did to the means, in words; empty where too few draws tell nothing.

    A mean's standard error is r posterior standard deviations: the two together are √(1+r²) times the latter.
    """
    ess, ratio = posterior.ess(), posterior.mcse() / posterior.sds
    if np.isnan(ess).all():
        return ""
    worst, best = int(np.nanargmin(ess)), int(np.nanargmax(ess))
    off = float(np.nanmax(ratio))
    widened = 100.0 * (np.sqrt(1.0 + off * off) - 1.0)
    target = "posterior" if posterior.privacy.temperature == 1.0 else "tempered target"
    return (
        f"The budget bought {ess[worst]:,.0f} effective draws of {posterior.names[worst]}, the least, and "
        f"{ess[best]:,.0f} of {posterior.names[best]}, the most. A mean here is therefore off by a standard error of "
        f"at most {off:.2g} standard deviations of the {target}: added to it, the uncertainty of that coefficient is "
        f"{widened:.2g}% larger than with a budget without limit."
        + (" The chains have not met, so that it may be more." if ess[worst] < HARDLY_ANY else "")
    )


def _ended_early(posterior: Posterior) -> PosteriorWarning | None:
    kept = posterior.draws.shape[1]
    if kept >= FEW_DRAWS:
        return None
    return BudgetEndedEarly(
        f"The budget ended after {kept} draws of each chain: the output shows little more than the start. "
        f"{_upper(CURES)}."
    )


def _never_moved(posterior: Posterior) -> PosteriorWarning | None:
    still = (posterior.tried.sum(axis=0) > 0) & (posterior.accepted.sum(axis=0) == 0)
    if not still.any():
        return None
    names = _some([name for name, stuck in zip(posterior.move_names, still, strict=True) if stuck])
    return NeverMoved(f"No move of {names} was accepted: these draws only repeat the start. {_upper(CURES)}.")


def _disagree(posterior: Posterior) -> PosteriorWarning | None:
    rhat = posterior.rhat()
    bad = rhat > LARGE_RHAT
    if not bad.any():
        return None
    names = _some([name for name, poor in zip(posterior.names, bad, strict=True) if poor])
    return ChainsDisagree(
        f"The chains disagree about {names} (R-hat up to {np.nanmax(rhat):.3f}, {LARGE_RHAT} is tolerable): their "
        f"spread is not yet that of the target. Read the means with the Monte Carlo error beside them; {CURES} draws."
    )


def _few_effective(posterior: Posterior) -> PosteriorWarning | None:
    ess = posterior.ess()
    poor = ess < FEW_EFFECTIVE
    if not poor.any():
        return None
    worst = int(np.nanargmin(ess))
    names = _some([name for name, few in zip(posterior.names, poor, strict=True) if few])
    ten = ": with ten effective draws or so, 90% intervals hold the truth some 84% of the time"
    return FewEffectiveDraws(
        f"Few effective draws of {names}: {ess[worst]:.0f} for {posterior.names[worst]}, so that its mean may be off "
        f"by {1.0 / np.sqrt(ess[worst]):.2f} standard deviations and its interval is rough, as a rule too "
        f"narrow{ten if ess[worst] < 3.0 * HARDLY_ANY else ''}. {_upper(CURES)}."
    )


def _some(names: list[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
