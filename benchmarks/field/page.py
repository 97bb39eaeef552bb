"""The tables of ``docs/benchmarks.md``, out of the figures on disk: ``python -m field page``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from field.alternatives import RIVALS
from field.store import FOLDER, Entry, Store

PAGE = FOLDER.parents[1] / "docs" / "benchmarks.md"


def write(page: Path = PAGE, folder: Path = FOLDER) -> None:
    page.write_text(filled(page.read_text(encoding="utf-8"), folder), encoding="utf-8")


def filled(text: str, folder: Path = FOLDER) -> str:
    """The page with every table between its two marks made anew."""
    for name, table in TABLES.items():
        marks = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = marks.subn(partial(_between, table(folder)), text)
        if count != 1:
            raise ValueError(f"the page needs one place for the table {name!r}, it has {count}")
    return text


def _between(made: str, marks: re.Match[str]) -> str:
    return f"{marks[1]}\n{made}\n{marks[2]}"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines += [[str(cell) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def speed(folder: Path) -> str:
    store = Store("field-speed", ("rows", "columns", "sampler"), folder)
    rows = []
    for entry in sorted(store.entries, key=lambda each: (each["rows"], each["columns"])):
        head = [f"{entry['rows']:,}", entry["columns"], entry["sampler"]]
        if "rate" in entry:
            figures = [number(entry[name]) for name in ("rate", "rate_all", "warm_up", "sampling")]
        else:
            figures = [entry["outcome"], "", "", ""]
        rows.append([*head, *figures, entry["load"]])
    return table(("N", "d", "sampler", "ESS/s", "with warm-up", "warm-up, s", "sampling, s", "load"), rows)


def quality(folder: Path) -> str:
    store = Store("field-quality", ("table", "epsilon", "method"), folder)
    rows = []
    order = {"no privacy": -1} | {name: k for k, name in enumerate(RIVALS)}
    for entry in sorted(store.entries, key=lambda e: (e["table"], e["epsilon"] or 0.0, order[e["method"]])):
        warmth = entry.get("setting", {}).get("temperature")
        method = entry["method"] + (f", temperature {warmth:g}" if warmth else "")
        head = [entry["table"], "–" if entry["epsilon"] is None else f"{entry['epsilon']:g}", method]
        if "outcome" in entry:
            rows.append([*head, entry["outcome"], "", "", "", "", ""])
            continue
        error = f" ± {entry['spread'] / entry['repeats'] ** 0.5:.5f}" if "spread" in entry else ""
        figures = [f"{entry['log_loss']:.5f}{error}", f"{entry['accuracy']:.4f}", f"{entry['calibration']:.4f}"]
        inside = [f"{entry['coverage']:.0%}", f"{entry['width']:.2g}"] if "coverage" in entry else ["none", ""]
        rows.append([*head, *figures, *inside, number(entry["seconds"]) if "seconds" in entry else ""])
    head = ("table", "ε", "method", "log-loss", "accuracy", "calibration error", "90% intervals hold", "width", "s")
    return table(head, rows)


def price(folder: Path) -> str:
    store = Store("field-price", ("columns", "method"), folder)
    rows = [
        [entry["columns"], entry["method"], number(entry["over_limit"]), f"{entry['sd']:.2f}", entry["settings"]]
        for entry in store.entries
    ]
    return table(("d", "method", "ρ per draw over the limit", "sd of draws over the posterior's", "settings"), rows)


def coverage(folder: Path) -> str:
    store = Store("coverage", ("epsilon", "rows"), folder)
    rows = []
    for entry in store.entries:
        head = [f"{entry['epsilon']:g}"]
        rows.append([*head, "all", _count(entry), *(_share(entry["coverage"], level) for level in ("50%", "90%"))])
        for part in entry["by_effective_draws"]:
            draws = f"{part['from']:g} to {part['to']:g}" if part["to"] else f"{part['from']:g} or more"
            rows.append([*head, draws, f"{part['intervals']:,}", *(_share(part, level) for level in ("50%", "90%"))])
        ideal = entry["without_error"]
        rows.append([*head, "without Monte Carlo error", _count(entry), *(_share(ideal, k) for k in ("50%", "90%"))])
    return table(("ε", "effective draws", "intervals", "50% intervals hold", "90% intervals hold"), rows)


def _count(entry: Entry) -> str:
    return f"{(entry['tables'] - entry['refused']) * (entry['columns'] + 1):,}"


def _share(shares: Entry, level: str) -> str:
    return f"{100 * shares[level]:.1f}%"


TABLES: dict[str, Callable[[Path], str]] = {"speed": speed, "quality": quality, "price": price, "coverage": coverage}
