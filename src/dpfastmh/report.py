"""``report.html``: one page that says what was found, what it cost and what it is worth, and needs nothing else.

The page is put together from released numbers only: it is a function of a `Posterior`, which holds no others. It loads
nothing (a content security policy in it forbids even trying), runs no script, and follows the reader's light or dark
scheme, pictures included: matplotlib draws them in marks that become the page's own colours.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from html import escape
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfastmh import plots
from dpfastmh.description import describe, model_name
from dpfastmh.findings import FEW_EFFECTIVE, HARDLY_ANY, LARGE_RHAT, findings, precision
from dpfastmh.netcdf import privacy_record, to_bytes
from dpfastmh.outputs import create_folder, replace_file
from dpfastmh.posterior import Posterior, Row
from dpfastmh.statement import BANNER, NOT_PRIVATE, not_covered, promise, short, temperature_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpfastmh.models import GLM

# what the statement's releases are, for a reader who is no specialist
RELEASED = {
    "hessian": "hessian: noisy curvature of the likelihood, for the start",
    "gradient": "gradient: noisy slope of the likelihood, for the start",
    "accept bits": "accept bits: whether a proposed move was accepted",
}
MOST_CARDS = 24  # coefficients with pictures of their own
OUTPUTS = ("posterior.nc", "summary.csv", "privacy.json", "report.html")

KINDS = {
    "logistic": "logistic regression",
    "student-t": "Student-t regression",
    "huber": "Huber regression",
    "logistic-error": "regression with logistic errors",
    "poisson": "Poisson regression",
    "softmax": "softmax regression",
}


def write_report(posterior: Posterior, path: str | os.PathLike[str]) -> Path:
    """The report as one HTML file, whole or not at all."""
    return replace_file(path, report(posterior).encode())


def write_outputs(posterior: Posterior, folder: str | os.PathLike[str]) -> Path:
    """``posterior.nc``, ``summary.csv``, ``privacy.json`` and ``report.html`` in a new folder, all of them or none."""
    return create_folder(
        folder,
        {
            "posterior.nc": to_bytes(posterior),
            "summary.csv": posterior.summary().csv().encode(),
            "privacy.json": (json.dumps(privacy_record(posterior), indent=2, allow_nan=False) + "\n").encode(),
            "report.html": report(posterior).encode(),
        },
    )


def load_libraries() -> None:
    """Import what ``write_outputs`` needs, which takes a second or two."""
    for name in ("arviz_base", "arviz_stats", "h5netcdf", "matplotlib.figure"):
        import_module(name)


def report(posterior: Posterior) -> str:
    """The page."""
    sections = (_results, _privacy, _precision, _densities, _chains, _model, _again)
    warning = "" if posterior.privacy.private else f"{NOT_PRIVATE}: "
    assets = files("dpfastmh") / "report_assets"
    return Template((assets / "page.html").read_text("utf-8")).substitute(
        title=escape(f"{warning}{_headline(posterior)}"),
        style=(assets / "style.css").read_text("utf-8"),
        banner="" if posterior.privacy.private else f'<div class="banner" role="alert">{escape(BANNER)}</div>',
        kicker=escape(f"dpfastmh {posterior.privacy.library_version} · {posterior.word} · {posterior.privacy.method}"),
        headline=escape(f"{warning}{_headline(posterior)}"),
        lead=_lead(posterior),
        facts=_facts(posterior),
        sections="\n".join(section(posterior) for section in sections),
        footer=escape(
            "This page holds released numbers only: draws, public counts and the privacy statement. "
            "It loads nothing from the network."
        ),
    )


# -- the top of the page ---------------------------------------------------------------------------------------------
def _headline(posterior: Posterior) -> str:
    what = "the posterior" if posterior.privacy.temperature == 1.0 else "the tempered target"
    about = f"What the records say about {posterior.outcome}" if posterior.outcome else "What the records say"
    return about if posterior.model is not None else f"Draws from {what}"


def _lead(posterior: Posterior) -> str:
    privacy, model = posterior.privacy, posterior.model
    units = f"{privacy.units:,} " + ("records" if _one_row(posterior) else f"units ({privacy.unit})")
    kind = "Draws of " + f"{len(posterior.names)} parameters" if model is None else f"A {KINDS[model_name(model)]}"
    target = f" of {posterior.outcome}" if posterior.outcome else ""
    text = f"{kind}{target}, from {units}"
    if privacy.private:
        text += f", at a total privacy cost of at most ε = {short(privacy.epsilon)} (δ = {short(privacy.delta)})"
    return _prose(f"{text}. {_clear_signs(posterior)}")


def _one_row(posterior: Posterior) -> bool:
    return posterior.privacy.max_rows_per_unit == 1 and posterior.privacy.unit == "row"


def _clear_signs(posterior: Posterior) -> str:
    """Which coefficients have a sign beyond doubt; of those with hardly any effective draws nothing is said."""
    constants = _constants(posterior)
    features = [j for j, name in enumerate(posterior.names) if name not in constants]
    ess = posterior.ess()
    shown = [j for j in features if not ess[j] < HARDLY_ANY]
    if len(shown) < len(features):
        few = len(features) - len(shown)
        unclear = f"{few} of {len(features)} coefficients have too few effective draws to say anything about their sign"
        return f"{unclear}. {_signs(posterior, shown, 'the others')}".strip()
    return _signs(posterior, shown, f"{len(shown)} coefficients")


def _signs(posterior: Posterior, shown: list[int], among: str) -> str:
    low, high = np.quantile(posterior.draws, [0.05, 0.95], axis=(0, 1))
    clear = [j for j in shown if low[j] > 0.0 or high[j] < 0.0]
    strength = np.abs(posterior.means) / np.maximum(posterior.sds, 1e-300)
    clear.sort(key=lambda j: -float(strength[j]))
    if not shown:
        return ""
    if not clear:
        return f"Of {among}, none has a 90% interval that leaves out zero."
    words = [f"{posterior.names[j]} ({'positive' if low[j] > 0 else 'negative'})" for j in clear[:4]]
    more = f" and {len(clear) - 4} more" if len(clear) > 4 else ""
    many = "has a 90% interval that leaves" if len(clear) == 1 else "have 90% intervals that leave"
    return f"Of {among}, {len(clear)} {many} out zero: {', '.join(words)}{more}."


def _constants(posterior: Posterior) -> set[str]:
    """Names of the coefficients of features that are always 1."""
    if posterior.model is None:
        return set()
    domain = posterior.model.domain
    constant = [f for f, always in zip(domain.features, domain.table().constant, strict=True) if always]
    return {name for name in posterior.names if any(name == c or name.startswith(f"{c}[") for c in constant)}


def _facts(posterior: Posterior) -> str:
    privacy = posterior.privacy
    ess = posterior.ess()
    worst = "not known" if np.isnan(ess).all() else f"{np.nanmin(ess):,.0f}"
    promised = (
        f"of ε = {short(privacy.epsilon)} promised, δ = {short(privacy.delta)}" if privacy.private else "known seed"
    )
    entries = {
        "Privacy spent": (f"ε = {privacy.epsilon_spent:.3g}" if privacy.private else NOT_PRIVATE, promised),
        "Records" if _one_row(posterior) else "Units": (
            f"{privacy.units:,}",
            "" if _one_row(posterior) else f"{privacy.unit}, at most {privacy.max_rows_per_unit} rows each",
        ),
        "Effective draws": (worst, "of the worst-known coefficient"),
        "Draws": (f"{posterior.draws.shape[0]} × {posterior.draws.shape[1]:,}", "chains × draws kept"),
        "Temperature": (
            f"{privacy.temperature:g}",
            "the posterior itself" if privacy.temperature == 1.0 else "tempered: wider than the posterior",
        ),
    }
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_prose(value)}<small>{_prose(note)}</small></dd></div>"
        for name, (value, note) in entries.items()
    )
    return f'<dl class="facts">{cells}</dl>'


# -- sections --------------------------------------------------------------------------------------------------------
def _section(heading: str, *parts: str) -> str:
    name = re.sub(r"[^a-z]+", "-", heading.lower()).strip("-")
    body = "\n".join(part for part in parts if part)
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(heading)}</h2>\n{body}\n</section>'


def _prose(text: str) -> str:
    """Text as HTML: powers raised, equations kept on one line."""
    held = re.sub(r"((?:e\^)?[εδT] = [^\s,;)]*[^\s,;:.)])", r'<span class="whole">\1</span>', escape(text))
    return held.replace("e^ε", "e<sup>ε</sup>")


def _p(text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{_prose(text)}</p>" if text else ""


def _list(items: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{_prose(item)}</li>" for item in items) + "</ul>"


def _results(posterior: Posterior) -> str:
    found = [*posterior.warnings, *(str(finding) for finding in findings(posterior))]
    box = f'<div class="warnings" role="note"><h3>Before you rely on this</h3>{_list(found)}</div>' if found else ""
    summary = posterior.summary()
    scaled, original = summary.on("scaled"), summary.on("original")
    about = {
        "scaled": "Coefficients of the scaled features: a column's public bounds are −1 and 1.",
        "original": "Coefficients per unit of the original columns, with the matching intercept.",
    }
    tables = f'<div class="panel-scaled">{_table(scaled, about["scaled"])}</div>'
    if original:
        tables = (
            '<input class="switch" type="radio" name="scale" id="scale-scaled" checked>'
            '<input class="switch" type="radio" name="scale" id="scale-original">'
            '<div class="tabs"><label for="scale-scaled">Scaled features</label>'
            '<label for="scale-original">Original units</label></div>'
            f'{tables}<div class="panel-original">{_table(original, about["original"])}</div>'
        )
    many = len(posterior.names) > plots.MOST_ROWS
    forest = _figure(
        plots.forest(posterior, palette=plots.MARKS),
        "forest",
        "Coefficients of the scaled features",
        "Mean (dot), 50% interval (thick) and 90% interval (thin) of each coefficient. "
        + "; ".join(
            f"{row.name} {row.mean:.3g}, from {row.q5:.3g} to {row.q95:.3g}" for row in scaled[: plots.MOST_ROWS]
        ),
        "Dot: mean. Thick line: 50% interval. Thin line: 90% interval. Features are scaled by their public bounds, so "
        "that lengths can be compared." + (f" The first {plots.MOST_ROWS} are shown." if many else ""),
    )
    tempered = _p(temperature_note(posterior.privacy.temperature))
    return _section("Results", box, tempered, tables, forest)


def _table(rows: tuple[Row, ...], caption: str) -> str:
    heads = {
        "": "",
        "mean": "mean",
        "sd": "standard deviation",
        "5%": "lower end of the 90% interval",
        "95%": "upper end of the 90% interval",
        "ESS": "effective draws of the mean",
        "MCSE": "Monte Carlo standard error of the mean",
        "R-hat": "agreement of the chains, 1 is perfect",
    }
    head = "".join(f'<th scope="col" title="{why}">{name or "coefficient"}</th>' for name, why in heads.items())
    body = "".join(_table_row(row) for row in rows)
    return (
        f"{_p(caption, 'note')}"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table class="numbers">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _table_row(row: Row) -> str:
    places = _places(row.sd)
    cells = [(_fixed(value, places), False) for value in (row.mean, row.sd, row.q5, row.q95)]
    cells.append((_fixed(row.ess, 0), row.ess < FEW_EFFECTIVE))
    cells.append((_fixed(row.mcse, _places(row.mcse)), False))
    cells.append((_fixed(row.rhat, 2), row.rhat > LARGE_RHAT))
    shown = "".join(f'<td class="poor">{text}</td>' if poor else f"<td>{text}</td>" for text, poor in cells)
    return f'<tr><th scope="row">{escape(row.name)}</th>{shown}</tr>'


def _places(spread: float) -> int:
    """Decimals that show two digits of a standard deviation."""
    if not math.isfinite(spread) or spread <= 0.0:
        return 3
    return min(max(1 - math.floor(math.log10(spread)), 0), 12)


def _fixed(value: float, places: int) -> str:
    return f"{value:,.{places}f}".replace("-", "−") if math.isfinite(value) else "–"


def _privacy(posterior: Posterior) -> str:
    first, *rest = promise(posterior.privacy)
    spent = posterior.privacy
    figure = _spending(posterior) if len(posterior.spending) else ""
    unit = (
        "Two tables are neighbours if one can be had from the other by replacing "
        + ("one record." if _one_row(posterior) else f"all that one unit ({spent.unit}) holds.")
        + f" Costs were added up as Rényi divergence of order {spent.alpha:.4g}, {spent.rdp_spent:.4g} in all:"
    )
    costs = "".join(
        f'<tr><th scope="row">{escape(RELEASED.get(str(release["what"]), str(release["what"])))}</th>'
        f"<td>{_count(release.get('count'))}</td><td>{release['rdp']:.4g}</td></tr>"
        for release in spent.releases
    )
    table = (
        '<div class="scroll" role="region" tabindex="0" aria-label="What was released"><table><thead><tr>'
        '<th scope="col">released</th><th scope="col">times</th><th scope="col">Rényi cost</th></tr></thead>'
        f"<tbody>{costs}</tbody></table></div>"
    )
    exact = {
        "posterior": "Noise went into the start and into which moves are accepted, never onto the draws: the chains "
        "have exactly the posterior as their limit.",
        "tempered": "Noise went into the start and into which moves are accepted, never onto the draws: the chains "
        "have exactly the tempered target as their limit.",
        "clampable": "The energy could be clamped to its stated bound; whether it ever was is private. If it never "
        "was, the target is exact.",
    }.get(spent.exact_target, f"The target: {spent.exact_target}.")
    words = _p(first, "promise") + "".join(_p(text) for text in rest) + _p(exact)
    covered = f"<h3>What it does not cover</h3>{_list(not_covered(spent))}"
    if not spent.private:
        return _section("Privacy", words, figure)
    return _section(
        "Privacy",
        f'<div class="pair"><div>{words}</div>{figure}</div>',
        covered,
        f"<h3>How it was counted</h3>{_p(unit)}{table}",
    )


def _spending(posterior: Posterior) -> str:
    first, last = posterior.spending[0], posterior.spending[-1]
    end = "what was promised." if posterior.privacy.private else "what a run without a seed would have promised."
    return _figure(
        plots.spending(posterior, palette=plots.MARKS),
        "spending",
        "Privacy budget spent over the steps",
        f"ε spent rises from {first[1]:.3g} at step {first[0]:,.0f} to {last[1]:.4g} at step {last[0]:,.0f}.",
        f"ε spent (δ fixed) as the chains went on. What stands at step 0 paid for the start. Dashed: {end}",
    )


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _precision(posterior: Posterior) -> str:
    text = precision(posterior)
    if not text:
        return _section("What the budget did to precision", _p("Too few draws to tell."))
    advice = (
        "The error is that of sampling: it shrinks as one over the square root of the effective draws. Halving it "
        "takes roughly twice the ε, or four times the records. Ends of intervals are less certain than means."
    )
    few = "" if np.nanmin(posterior.ess()) >= FEW_EFFECTIVE else (
        "With fewer than a hundred effective draws the standard deviations and intervals are rough themselves, and "
        "R-hat can miss a disagreement between chains."
    )  # fmt: skip
    spent, promised = posterior.privacy.epsilon_spent, posterior.privacy.epsilon
    left = "" if not posterior.privacy.private or spent > 0.95 * promised else (
        f"Of ε = {short(promised)} only {spent:.3g} was spent: the run ended at its planned steps, at a limit of draws "
        "or time, or was stopped, before the budget did. What was not spent cannot be spent later on this run."
    )  # fmt: skip
    return _section("What the budget did to precision", _p(text), _p(advice), _p(few), _p(left))


def _densities(posterior: Posterior) -> str:
    chains = "".join(
        f'<span class="key chain-{k + 1}"></span>chain {k + 1}' for k in range(min(posterior.draws.shape[0], 4))
    )
    prior = '<span class="key dashed"></span>prior' if posterior.model is not None else ""
    key = (
        '<p class="note"><span class="key ink"></span>all chains<span class="key shade"></span>90% interval'
        f"{chains if posterior.draws.shape[0] > 1 else ''}{prior}</p>"
    )
    return _section("Marginal densities", key, _cards(posterior, plots.density, "density", _density_words))


def _chains(posterior: Posterior) -> str:
    share = 100.0 * posterior.acceptance
    words = "; ".join(
        f"{name} {', '.join(f'{value:.3g}%' for value in column)}"
        for name, column in list(zip(posterior.move_names, share.T, strict=True))[: plots.MOST_ROWS]
    )
    figure = _figure(
        plots.acceptance(posterior, palette=plots.MARKS),
        "acceptance",
        "Accepted share of the proposed moves",
        f"By coefficient, one number for each chain: {words}.",
        "One dot for each chain. Every proposal counts, also those that chance left aside unseen to save budget; "
        "which ones these were is secret.",
    )
    return _section(
        "How the chains ran",
        _p("Chains that have forgotten their start wander over the same range; steps and drifts mean too few draws."),
        _cards(posterior, plots.trace, "trace", _trace_words),
        f"<h3>Acceptance</h3>{figure}",
    )


def _density_words(posterior: Posterior, j: int) -> str:
    low, high = np.quantile(posterior.draws[:, :, j], [0.05, 0.95])
    return f"Mean {posterior.means[j]:.3g}, 90% interval from {low:.3g} to {high:.3g}."


def _trace_words(posterior: Posterior, j: int) -> str:
    means = ", ".join(f"{mean:.3g}" for mean in posterior.draws[:, :, j].mean(axis=1))
    return f"Draws of each chain in order; the chains' means are {means}."


def _cards(posterior: Posterior, draw: Callable[..., None], kind: str, words: Callable[[Posterior, int], str]) -> str:
    shown = range(min(len(posterior.names), MOST_CARDS))
    cards = "".join(
        _figure(
            plots.single(posterior, draw, j, plots.MARKS),
            f"{kind}-{j}",
            f"{kind.capitalize()} of {posterior.names[j]}",
            words(posterior, j),
        )
        for j in shown
    )
    rest = len(posterior.names) - len(shown)
    more = f"The first {MOST_CARDS} are shown; {rest} more are in posterior.nc." if rest else ""
    return f'<div class="cards">{cards}</div>{_p(more, "note")}'


def _model(posterior: Posterior) -> str:
    model = posterior.model
    if model is None:
        return _section("Model", _p(f"{len(posterior.names)} parameters: {', '.join(posterior.names)}."))
    facts = describe(model)
    loss = ", ".join(f"{key} = {value}" for key, value in facts["loss"].items() if key != "name")
    text = f"{KINDS[model_name(model)].capitalize()}{f' ({loss})' if loss else ''}."
    if facts["classes"]:
        first, *others = (str(label) for label in facts["classes"])
        text += (
            f" The event is {others[0]}, against {first}."
            if len(others) == 1
            else f" Classes are compared with {first}: {', '.join(others)}."
        )
    if facts["target_bounds"]:
        low, high = facts["target_bounds"]
        text += f" Outcomes are held to {_number(low)} to {_number(high)}."
    filled = {
        name: f"; missing cells count as {value if isinstance(value, bool | str) else _number(value)}"
        for name, value in posterior.missing.items()
    }
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="text">{escape(known + filled.get(name, ""))}</td></tr>'
        for part in facts["domain"]
        for name, known in _known(part)
    )
    table = (
        '<p class="note">Public before the run, and used as it stands: values outside were moved to the edge.</p>'
        '<div class="scroll" role="region" tabindex="0" aria-label="Public knowledge"><table>'
        '<thead><tr><th scope="col">column</th><th scope="col" class="text">declared</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    return _section("Model and public knowledge", _p(text), table, f"<h3>Prior</h3>{_p(_priors(model))}")


def _known(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is declared about the columns of one part of the domain."""
    ball = f", scaled values within a ball of radius {part['radius']:g}" if part["kind"] == "box-and-ball" else ""
    match part["kind"]:
        case "box" | "box-and-ball":
            return [(name, f"{_number(low)} to {_number(high)}{ball}") for name, low, high in part["bounds"]]
        case "ball":
            return [(name, f"Euclidean norm at most {part['radius']:g}, together") for name in part["columns"]]
        case "one-hot":
            first, *others = (str(category) for category in part["categories"])
            each = ", each" if len(others) > 1 else ""
            return [(part["column"], f"{', '.join(others)}{each} against {first}")]
    return []


def _number(value: float) -> str:
    """A declared number as a person writes it: 150,000."""
    return f"{value:,.10g}".replace("-", "−")


def _priors(model: GLM) -> str:
    """The priors in words, equal ones said once."""
    groups: dict[str, list[str]] = {}
    for name, prior in zip(model.parameters, describe(model)["prior"], strict=True):
        numbers = ", ".join(f"{key} {value:g}" for key, value in prior.items() if key != "kind")
        groups.setdefault(f"{prior['kind']}{f' ({numbers})' if numbers else ''}", []).append(name)
    if len(groups) == 1:
        return f"Every coefficient of the scaled features: {next(iter(groups))}."
    common = max(groups, key=lambda kind: len(groups[kind]))
    rest = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in groups.items() if kind != common)
    return f"{rest}; every other coefficient of the scaled features: {common}."


def _again(posterior: Posterior) -> str:
    privacy = posterior.privacy
    seeded = "" if privacy.private else " The seed is not stored."
    text = (
        "The same call gives other draws of the same target: the noise is fresh each time and was never stored. "
        f"Running it again on the same table costs the same budget again.{seeded}"
    )
    cite = [
        f"dpfastmh {privacy.library_version}: private, exact, fast Bayesian inference (software).",
        "Wanrong Zhang and Ruqi Zhang (2023). DP-Fast MH: Private, Fast, and Accurate Metropolis-Hastings for "
        "Large-Scale Bayesian Inference. Proceedings of the 40th International Conference on Machine Learning (ICML). "
        "arXiv:2303.06171.",
    ]
    record = json.dumps(privacy_record(posterior), indent=2, ensure_ascii=False)
    return _section(
        "Reproduce and cite",
        _p(text),
        f"<pre><code>{escape(_command(posterior))}</code></pre>",
        f"<pre><code>{escape(_call(posterior))}</code></pre>" if posterior.model is not None else "",
        f"<h3>Cite</h3>{_list(cite)}",
        f"<details><summary>Privacy statement as data (privacy.json)</summary><pre>{escape(record)}</pre></details>",
    )


def _command(posterior: Posterior) -> str:
    privacy = posterior.privacy
    words = ["dpfastmh fit DATA --schema SCHEMA.toml", f"--epsilon {privacy.epsilon:g} --delta {short(privacy.delta)}"]
    if privacy.temperature != 1.0:
        words.append(f"--temperature {privacy.temperature:g}")
    if privacy.method != "dp-fast-mh":
        words.append(f"--method {privacy.method}")
    return " ".join([*words, f"--chains {privacy.chains}", "-o OUT"])


def _call(posterior: Posterior) -> str:
    """The model and the call in Python."""
    from dpfastmh.domain import Constant, Product

    model, privacy = posterior.model, posterior.privacy
    assert model is not None
    facts = describe(model)
    parts = model.domain.parts if isinstance(model.domain, Product) else (model.domain,)
    intercept = isinstance(parts[0], Constant) and parts[0].name == "intercept" and len(parts) > 1
    shown = Product(*parts[1:]) if intercept and len(parts) > 2 else parts[1] if intercept else model.domain
    names = {
        "logistic": "LogisticRegression",
        "student-t": "StudentTRegression",
        "huber": "HuberRegression",
        "logistic-error": "LogisticErrorRegression",
        "poisson": "PoissonRegression",
        "softmax": "SoftmaxRegression",
    }
    options = [f"{key}={value!r}" for key, value in facts["loss"].items() if key not in ("name", "classes")]
    options += [f"classes={facts['classes']!r}"] if facts["classes"] else []
    options += [f"target_bounds={tuple(facts['target_bounds'])!r}"] if facts["target_bounds"] else []
    options += [f"prior={_prior_code(facts['prior'])}"]
    options += [f"temperature={model.temperature:g}"] if model.temperature != 1.0 else []
    options += [] if intercept else ["intercept=False"]
    missing = f", missing={posterior.missing!r}" if posterior.missing else ""
    target = repr(posterior.outcome) if posterior.outcome else "TARGET"
    domain = re.sub(r"\b(Box|Ball|OneHot|Constant)\(", r"mh.\1(", repr(shown))
    return (
        "import dpfastmh as mh\n\n"
        f"domain = {domain}\n"
        f"model = mh.{names[facts['loss']['name']]}(domain, {', '.join(options)})\n"
        f"budget = mh.Budget(epsilon={privacy.epsilon:g}, delta={short(privacy.delta)})\n"
        f"posterior = mh.sample(model, TABLE, target={target}, budget=budget, chains={privacy.chains}{missing})\n"
    )


def _prior_code(priors: list[dict[str, Any]]) -> str:
    classes = {"normal": "Normal", "laplace": "Laplace", "student-t": "StudentT", "flat": "Flat"}

    def one(prior: dict[str, Any]) -> str:
        numbers = ", ".join(
            f"{key}={value:g}" for key, value in prior.items() if key != "kind" and (key, value) != ("loc", 0)
        )
        return f"mh.{classes[prior['kind']]}({numbers})"

    written = [one(prior) for prior in priors]
    return written[0] if len(set(written)) == 1 else f"[{', '.join(written)}]"


# -- pictures --------------------------------------------------------------------------------------------------------
COLORS = {
    plots.MARKS.ink: "var(--ink)",
    plots.MARKS.muted: "var(--muted)",
    plots.MARKS.line: "var(--line)",
} | {mark: f"var(--chain-{k + 1})" for k, mark in enumerate(plots.MARKS.chains)}


def _figure(picture: Figure, name: str, title: str, words: str, caption: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    side = ' class="side"' if caption else ""
    return f"<figure{side}>{inline_svg(picture, name, title, words)}{below}</figure>"


def inline_svg(picture: Figure, name: str, title: str, words: str) -> str:
    """A figure as part of the page: no links, colours and letters of the page, a title and a description to be read."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with plots.style():
        draw: Callable[..., object] = FigureCanvasSVG(picture).print_svg
        draw(out, metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert box is not None
    body = svg[svg.index(">") + 1 : svg.rindex("</svg>")]
    body = re.sub(r"font-family:[^;]*;?", "", body)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(?:xlink:)?href="#', f'href="#{name}-', body)
    body = body.replace("url(#", f"url(#{name}-")
    body = re.sub(r"(\.\d\d)\d+", r"\1", body)
    body = re.sub(r"\s*\n\s*", " ", body)
    for mark, color in COLORS.items():
        body = body.replace(mark, color)
    return (
        f'<svg class="plot" viewBox="{box[1]}" role="img" aria-labelledby="{name}-title {name}-words">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-words">{escape(words)}</desc>'
        f"{body}</svg>"
    )
