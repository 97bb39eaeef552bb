"""Try to catch every method giving away more than it charges for.

Each line of the table is a claim and the strongest evidence found against it: exact sums over everything that one
accept bit can do, and lower bounds on epsilon from the frequencies of the compiled chain and of whole private runs on
two neighbouring tables. "holds" means that the evidence stays below the claim, not that the claim is proved. No
records are read: the audit makes its own, as different as two neighbouring tables can be.

The paper's algorithm as published is audited too. Its claim fails, which is a finding and not an error. The command
fails (exit code 1) only if a claim of this library's own is violated.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfastmh.audit import Finding

EXAMPLES = """examples:
  dpfastmh audit                                  all methods, under a minute
  dpfastmh audit --method dp-fast-mh --thorough   one method, for many minutes
  dpfastmh audit --json > audit.json              for machines
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--method",
        nargs="+",
        metavar="NAME",
        help="dp-fast-mh, dp-fast-mh-full, penalty, published, mh; all of them unless given",
    )
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_const", dest="effort", const="quick", help="a few seconds")
    effort.add_argument("--thorough", action="store_const", dest="effort", const="thorough", help="tens of minutes")
    parser.set_defaults(effort="default")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--seed", type=_seed, help="repeat the same accept bits (noise of releases is never seeded)")


def _seed(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative: give a whole number of at least 0")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Audit, print the table, and fail if a claim of ours does."""
    from dpfastmh import audit

    with _progress() as tell:
        findings = audit.run(arguments.method, effort=arguments.effort, seed=arguments.seed, progress=tell)
    broken = audit.violations(findings)
    if arguments.json:
        print(json.dumps({"findings": [one.as_dict() for one in findings], "violated": len(broken)}, indent=2))
    else:
        print(table(findings))
    for finding in broken:
        print(f"dpfastmh audit: VIOLATED: {finding.method}, {finding.what}", file=sys.stderr)
    return 1 if broken else 0


class _progress:
    """What is being examined, on standard error: one changing line on a terminal, else a line for each part."""

    def __enter__(self) -> _progress:
        from rich.console import Console

        console = Console(stderr=True)
        self._status = console.status("") if console.is_terminal else None
        if self._status is not None:
            self._status.start()
        return self

    def __call__(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()


def table(findings: list[Finding]) -> str:
    """method | what | claim | lower bound | verdict, and below it the reasons that some findings carry."""
    lines = [("method", "what", "claim", "lower bound", "verdict")]
    for one in findings:
        lines.append((one.method, one.what, _claim(one), _number(one.lower), one.verdict))
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    lines.insert(1, tuple("-" * width for width in widths))  # type: ignore[arg-type]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    notes = [f"{one.method}, {one.what.split(':')[0]}: {one.note}." for one in findings if one.note]
    sampled = max((one.error for one in findings), default=0.0)
    if sampled:
        text += ["", f"A sampled lower bound is above the truth with a chance of at most {sampled:g}."]
    return "\n".join([*text, *([""] if notes else []), *notes])


def _claim(finding: Finding) -> str:
    if finding.claim is None:
        return "none"
    if finding.measure == "sensitivity":
        return f"Δ = {_number(finding.claim)}"
    if finding.measure != "epsilon":
        return f"D{finding.measure.split()[-1]} = {_number(finding.claim)}"
    delta = f", δ = {finding.delta:g}" if finding.delta else ""
    return f"ε = {_number(finding.claim)}{delta}"


def _number(value: float) -> str:
    return "unbounded" if math.isinf(value) else f"{value:.4g}"
