"""Keep the privacy budget of a table over years and people: everything ever released about it, in one total.

create fixes a data set's total (epsilon, delta), once and for all. Every fit that is given the same --ledger and
--dataset sets its own budget aside in it before it releases anything, and gives back what it did not spend; many fits
cost less than the sum of their epsilon. show says what is left, history lists every run, verify checks that no entry
was changed, close admits no more. recover takes back what a run that died had reserved, as far as its checkpoint proves
that it can never be released.

URL is sqlite:///FILE or postgresql://USER@HOST/DATABASE. A ledger is as secret as the table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfastmh.ledger import Ledger, Run, Standing

EXAMPLES = """examples:
  dpfastmh ledger create --ledger sqlite:///ledger.db --dataset patients --epsilon 4 --delta 1e-6
  dpfastmh fit patients.csv --schema patients.toml --epsilon 1 --delta 1e-6 -o out \\
    --ledger sqlite:///ledger.db --dataset patients
  dpfastmh ledger show --ledger sqlite:///ledger.db --dataset patients
  dpfastmh ledger verify --ledger sqlite:///ledger.db --dataset patients --head 12:3f0a52c19d64be70
  dpfastmh ledger recover --ledger sqlite:///ledger.db --dataset patients --checkpoint run.checkpoint

A password for PostgreSQL is best kept in ~/.pgpass: command lines are seen by others.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=sorted(ACTIONS), help="what to do")
    parser.add_argument("--ledger", required=True, metavar="URL", help="sqlite:///FILE or postgresql://...")
    parser.add_argument("--dataset", required=True, metavar="NAME", help="the data set")
    parser.add_argument("--epsilon", type=float, metavar="E", help="create: the total")
    parser.add_argument("--delta", type=float, metavar="D", help="create: the total")
    parser.add_argument("--unit", metavar="COLUMN", help="create: whose row it is, where people have several")
    parser.add_argument("--head", metavar="NUMBER:SEAL", help="verify: what show printed earlier must still be there")
    parser.add_argument("--checkpoint", metavar="FILE", type=Path, help="recover: of the run that died")
    parser.add_argument("--json", action="store_true", help="show, history: print JSON")


OWN = {"epsilon": "create", "delta": "create", "unit": "create", "head": "verify", "checkpoint": "recover"}


def run(arguments: argparse.Namespace) -> int:
    """One action. An option of another action is a mistake, not ignored."""
    for name, action in OWN.items():
        if getattr(arguments, name) is not None and arguments.action != action:
            raise ValueError(f"--{name} belongs to ledger {action}, not to ledger {arguments.action}")
    if arguments.json and arguments.action not in ("show", "history"):
        raise ValueError("--json belongs to ledger show and ledger history")
    ACTIONS[arguments.action](arguments)
    return 0


def opened(arguments: argparse.Namespace) -> Ledger:
    from dpfastmh.ledger import Ledger

    return Ledger(arguments.ledger, arguments.dataset)


def create(arguments: argparse.Namespace) -> None:
    from dpfastmh.budget import Budget
    from dpfastmh.ledger import Ledger

    if arguments.epsilon is None or arguments.delta is None:
        raise ValueError("create needs --epsilon E and --delta D: the total for all that is ever released")
    budget = Budget(arguments.epsilon, arguments.delta)
    made = Ledger.create(arguments.ledger, arguments.dataset, budget, unit=arguments.unit)
    print(text(made.standing()))


def show(arguments: argparse.Namespace) -> None:
    standing = opened(arguments).standing()
    print(json.dumps(standing._asdict(), allow_nan=False) if arguments.json else text(standing))


def history(arguments: argparse.Namespace) -> None:
    ledger = opened(arguments)
    runs = ledger.runs()
    if arguments.json:
        print(json.dumps([as_record(one) for one in runs], allow_nan=False))
        return
    limit = ledger.standing().limit
    print(f"{'run':10}{'began (UTC)':21}{'by':13}{'model':25}{'epsilon':>8}{'delta':>9}{'of total':>10}  state")
    for one in runs:
        began = one.at[:19].replace("T", " ")
        name = one.model if one.private else f"{one.model} NOT PRIVATE"
        share = f"{one.points[0][1] / 2**64 / limit:.2%}"
        line = f"{one.run_id[:8]:10}{began:21}{one.by[:12]:13}{name[:24]:25}{one.epsilon:>8.4g}{one.delta:>9.2g}"
        print(f"{line}{share:>10}  {STATES[one.status]}")


STATES = {"open": "open: counts in full", "settled": "settled", "recovered": "recovered"}


def verify(arguments: argparse.Namespace) -> None:
    ledger = opened(arguments)
    for worry in ledger.verify(arguments.head):
        print(f"dpfastmh ledger: {worry}", file=sys.stderr)
    standing = ledger.standing()
    print(f"{standing.dataset}: every entry is as it was written; head {standing.head}")


def close(arguments: argparse.Namespace) -> None:
    ledger = opened(arguments)
    ledger.close()
    print(text(ledger.standing()))


def recover(arguments: argparse.Namespace) -> None:
    """End a run that died. Its checkpoint's lock is held meanwhile: nobody is at the run, and nobody can go on."""
    if arguments.checkpoint is None:
        raise ValueError("recover needs --checkpoint FILE, of the run that died; without one nothing comes back")
    ledger = opened(arguments)
    from dpfastmh.checkpoint import Keeper, recorded

    keeper, _ = Keeper.reopen(arguments.checkpoint)
    try:
        found = recorded(arguments.checkpoint)
        ended = ledger.recover(found.run_id, found.charged, found.alpha)
        keeper.discard()
    finally:
        keeper.close()
    print(f"run {ended.run_id[:8]} is ended at what it had paid; its checkpoint is worth nothing now and was removed")
    print(text(ledger.standing()))


ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "create": create,
    "show": show,
    "history": history,
    "verify": verify,
    "close": close,
    "recover": recover,
}


def as_record(one: Run) -> dict[str, Any]:
    return {
        "run": one.run_id,
        "began": one.at,
        "by": one.by,
        "model": one.model,
        "epsilon": one.epsilon,
        "delta": one.delta,
        "units": one.units,
        "private": one.private,
        "state": one.status,
        "curve": [{"alpha": a, "rdp": cells / 2**64} for a, cells in one.points],
        "steps": one.steps,
    }


def text(standing: Standing) -> str:
    """A data set's budget for reading."""
    from dpfastmh.statement import short

    whom = "every row" if standing.unit == "row" else f"every {standing.unit}"
    lines = [
        f"{standing.dataset}: epsilon = {standing.epsilon:g} and delta = {short(standing.delta)} in total, for {whom}",
        f"taken     {standing.taken / standing.limit:7.1%}  of the budget: epsilon = {standing.epsilon_taken:.3g}",
    ]
    if standing.reserved:
        runs = f"{standing.open_runs} run{'s' * (standing.open_runs != 1)}"
        lines.append(
            f"reserved  {standing.reserved / standing.limit:7.1%}  of it (part of the above), by {runs} not ended"
        )
    if standing.closed:
        lines.append("closed: nothing more can be spent")
    elif standing.epsilon_left > 0.0:
        lines.append(f"left      {1 - standing.taken / standing.limit:7.1%}  of it: {_room(standing)}")
    else:
        lines.append("left      nothing")
    lines.append(f"{standing.runs} run{'s' * (standing.runs != 1)}; head {standing.head} (keep it for ledger verify)")
    if standing.not_private:
        lines.append(
            f"NOT PRIVATE: {standing.not_private} of the runs had a seed; the total does not cover their results"
        )
    return "\n".join(lines)


def _room(standing: Standing) -> str:
    return f"one more fit of epsilon = {standing.epsilon_left:.3g} at the same delta, or several smaller ones"
