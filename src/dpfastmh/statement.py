"""The promise in words: what a privacy statement's numbers mean for somebody whose record is in the table."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfastmh.posterior import Privacy

NOT_PRIVATE = "NOT PRIVATE"
BANNER = "NOT PRIVATE: these results carry no privacy guarantee and must not be shared as if they did."


def record_name(privacy: Privacy) -> str:
    """What one unit of protection is called in a sentence."""
    if privacy.max_rows_per_unit > 1:
        return f"everything one {privacy.unit} contributed (at most {privacy.max_rows_per_unit} rows)"
    return "one person's record" if privacy.unit == "row" else f"the record of one {privacy.unit}"


def short(number: float) -> str:
    """At most three digits, and 1e-6 rather than 1e-06."""
    return re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].replace('+', '')}{m[2]}", f"{number:.3g}")


def factor(epsilon: float) -> str:
    """e^ε for reading."""
    if epsilon > 13.0:
        return f"more than {10 ** math.floor(epsilon / math.log(10)):,}"
    value = math.exp(epsilon)
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def certainty(epsilon: float) -> str:
    """How sure somebody may become of one of two equally likely possibilities: e^ε/(1+e^ε)."""
    percent = 100.0 / (1.0 + math.exp(-epsilon))
    return f"{percent:.0f}%" if percent < 99 else f"{percent:.1f}%" if percent < 99.95 else "practically certain"


def chance(delta: float) -> str:
    """δ for reading: one in so many."""
    return f"{short(delta)} (one in {_grouped(round(1.0 / delta))})"


def _grouped(number: int) -> str:
    names = {10**9: "a billion", 10**6: "a million", 10**3: "a thousand"}
    return names.get(number, f"{number:,}")


def promise(privacy: Privacy) -> list[str]:
    """The statement, a sentence or two at a time. The first one is the promise itself."""
    if not privacy.private:
        return [
            BANNER,
            "The run was made with a known seed, or by a method that promises nothing. Run it again without a seed, "
            "by a private method, to obtain results that can be shared.",
        ]
    epsilon, delta, record = privacy.epsilon, privacy.delta, record_name(privacy)
    strength = (
        "can hardly tell"
        if epsilon <= 1.0
        else "can tell with limited confidence only"
        if epsilon <= 3.0
        else "is limited in telling"
    )
    sentences = [
        f"Someone who sees these results, whatever else they know, {strength} whether {record} was replaced by "
        f"another: the odds of any conclusion change by at most a factor e^ε = {factor(epsilon)}, except with "
        f"probability δ = {chance(delta)}.",
        f"Put as a bet: whoever held two versions of {record} to be equally likely ends up at most "
        f"{certainty(epsilon)} sure of either.",
    ]
    if epsilon > 3.0:
        sentences.append(
            f"ε = {epsilon:g} is a wide limit. It is a guarantee for the worst case; a smaller ε promises more."
        )
    sentences.append(
        f"The promise covers everything in these results together: the start, every chain, warm-up included. Promised "
        f"were ε = {epsilon:g} and δ = {short(delta)}; spent were ε = {privacy.epsilon_spent:.4g} and "
        f"δ = {short(privacy.delta_spent)}."
    )
    return sentences


def not_covered(privacy: Privacy) -> list[str]:
    """What the promise does not say."""
    several = privacy.max_rows_per_unit > 1
    return [
        f"The number of {'units' if several else 'records'} ({privacy.units:,}), the columns, their bounds and "
        "categories, the model and the settings count as public. They must have been chosen without looking at the "
        "table." + (" How many rows there are is private and appears nowhere." if several else ""),
        "What the table shows about people in general is not hidden. It would be learned from anybody else's records "
        "just as well.",
        "Whoever runs the analysis sees more than is released: progress, error messages, how long it takes. Running "
        "times and memory use are outside the promise.",
        "Costs add up. Other results from the same table, another run of this one included, spend more; that sum is "
        "for the table's owner to keep.",
        "Records of different units that depend on each other (a household, say) are protected one by one, not as a "
        "group.",
    ]


def temperature_note(temperature: float) -> str:
    """What tempering does to the numbers; empty at temperature 1."""
    if temperature == 1.0:
        return ""
    return (
        f"The target is tempered at T = {temperature:g}: every record counts as 1/{temperature:g} of one. The standard "
        f"deviations are about √T = {math.sqrt(temperature):.3g} times the posterior's and the intervals are wider by "
        "as much; do not read them as posterior intervals."
    )
