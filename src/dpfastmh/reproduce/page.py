"""``index.html`` of a reproduction: every figure, what the paper says of it, what was measured, whether it held."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from typing import Any

from dpfastmh import __version__
from dpfastmh.outputs import replace_file
from dpfastmh.reproduce.work import Section, Work

STYLE = """
body{font:16px/1.55 system-ui,sans-serif;color:#1d2733;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1,h2{line-height:1.25} img{max-width:100%;height:auto} .scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;margin:1rem 0} th,td{text-align:left;vertical-align:top;
padding:.3rem .8rem .3rem 0;border-bottom:1px solid #d5dbe1} td.verdict{white-space:nowrap;font-weight:600}
.note{color:#5c6875}
"""


def write(work: Work, sections: Sequence[Section]) -> None:
    """The page and one CSV file a section."""
    for section in sections:
        replace_file(work.folder / f"{section.name}.csv", _csv(section).encode())
    kind = "A quick run: far too short to judge a claim by." if work.quick else "A full run."
    parts = "\n".join(_section(section) for section in sections)
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>DP-Fast MH reproduced</title><style>{STYLE}</style></head><body>
<h1>DP-Fast MH reproduced</h1>
<p>{kind} dpfastmh {escape(__version__)}. Every chain here is seeded so that it can be repeated: <strong>none of these
draws is private</strong>. Dashed lines are methods without privacy.</p>
{parts}
</body></html>
"""
    replace_file(work.folder / "index.html", page.encode())


def _csv(section: Section) -> str:
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(section.columns)
    writer.writerows([shown(cell) for cell in row] for row in section.rows)
    return held.getvalue()


def shown(cell: Any) -> str:
    """A number to four digits; infinity as the word that the tables explain."""
    if isinstance(cell, float):
        return "none" if math.isinf(cell) else "" if math.isnan(cell) else f"{cell:.4g}"
    return str(cell)


def _section(section: Section) -> str:
    name = escape(section.name)
    parts = [f"<section><h2>{escape(section.title)}</h2>", f"<p>{escape(section.text)}</p>"]
    parts.append(f'<p><img src="{name}.svg" alt="{escape(section.title)}"></p>')
    if section.claims:
        rows = [(claim.text, claim.measured, claim.verdict) for claim in section.claims]
        parts.append(_table(("claim", "measured", "verdict"), rows, verdict=True))
    if section.tabled:
        parts.append(_table(section.columns, section.rows))
    parts.append(
        f'<p class="note">Numbers: <a href="{name}.csv">{name}.csv</a>, <a href="{name}.png">PNG</a></p></section>'
    )
    return "\n".join(parts)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], verdict: bool = False) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = []
    for row in rows:
        last = len(row) - 1 if verdict else -1
        cells = (f"<td{' class=verdict' if k == last else ''}>{escape(shown(cell))}</td>" for k, cell in enumerate(row))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>'
