"""MNIST 7 against 9: accuracy and batch size against ε a step, and the effect of the batch bound K."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfastmh.baselines import Published
from dpfastmh.baselines.common import public_constant, record_constants
from dpfastmh.baselines.published import batch_bounds
from dpfastmh.methods import RandomWalk
from dpfastmh.reproduce.figures import Panel, save_panels
from dpfastmh.reproduce.mixture import LAM, PRIVATE, Make, method, target
from dpfastmh.reproduce.tasks import DELTA, PER_STEP, RADIUS, DigitsTask, MixtureTask, run, tuned
from dpfastmh.reproduce.work import Claim, FloatArray, Numbers, Section, Work, together, verdict

UPPER = 225.0  # K of the authors' program
STEP = 4.3e-4 * RADIUS  # theirs, in units of the ball


def sections(work: Work) -> list[Section]:
    return [against_epsilon(DigitsTask(work))]


def running_accuracy(task: DigitsTask, draws: FloatArray) -> float:
    """Of the mean of all draws so far, the first half of the run left out."""
    return task.accuracy(draws[len(draws) // 2 :].mean(axis=0))


def make_method(task: DigitsTask, name: str, epsilon: float, upper: float = UPPER) -> Make:
    if name == "published":
        return lambda s: Published(RandomWalk(s), lam=LAM, upper=upper, epsilon=epsilon, delta=DELTA)
    return method(name, epsilon, task.size)


def measured(task: DigitsTask, name: str, epsilon: float, upper: float = UPPER) -> Numbers:
    """Accuracy, batch and acceptance of one setting; private Barker starts at the mode, as if a fit were free."""
    work = task.work

    def compute() -> dict[str, Any]:
        make = make_method(task, name, epsilon, upper)
        start = np.asarray(task.truth["mode"]) if name == "dp-barker" else task.origin
        scale = tuned(make, task.model, task.rows, start, STEP, work.pick(60, 150), target(name))
        steps, seeds = work.pick((1_500, 1), (20_000, 2))
        found = together(
            lambda s: run(make(scale), task.model, task.rows, start, steps, s, thin=steps // 500), range(seeds)
        )
        return {
            "scale": scale,
            "accuracy": [running_accuracy(task, f.draws) for f in found],
            "rows": [f.rows for f in found],
            "acceptance": [f.acceptance for f in found],
            "seconds": [f.seconds for f in found],
        }

    label = f"-{upper:g}" if name == "published" else ""
    return work.piece(f"mnist-{name}-{epsilon:g}{label}", compute)


def line(part: Numbers, size: int) -> tuple[float, ...]:
    middle = {key: float(np.median(values)) for key, values in part.items()}
    return (middle["scale"], middle["acceptance"], middle["accuracy"], middle["rows"] / size, middle["seconds"])


COLUMNS = ("step", "acceptance", "accuracy", "share of rows read", "seconds")


def against_epsilon(task: DigitsTask) -> Section:
    """Figures (a) and (b)."""
    work = task.work
    epsilons = work.pick((0.05, 1.0), (0.05, 0.25, 1.0, 4.0))
    found = {name: [measured(task, name, e) for e in epsilons] for name in PRIVATE}
    free = {name: measured(task, name, PER_STEP) for name in ("mh", "tuna-mh")}

    def middle(name: str, key: str) -> FloatArray:
        return np.array([np.median(part[key]) for part in found[name]])

    accuracy = {name: middle(name, "accuracy") for name in PRIVATE}
    share = {name: middle(name, "rows") / task.size for name in PRIVATE}
    across = "ε of a step"
    level = {name: float(np.median(part["accuracy"])) for name, part in free.items()}
    panels = [
        Panel("(a) test accuracy", across, "accuracy", {n: (epsilons, accuracy[n]) for n in PRIVATE}, level, "x"),
        Panel("(b) batch", across, "rows read, share of the data", {n: (epsilons, share[n]) for n in PRIVATE}, log="x"),
    ]
    save_panels(work, "mnist-epsilon", panels)
    rows: list[tuple[Any, ...]] = []
    for name in PRIVATE:
        rows += [(name, e, *line(part, task.size)) for e, part in zip(epsilons, found[name], strict=True)]
    rows += [(name, "", *line(part, task.size)) for name, part in free.items()]
    own = accuracy["published"]
    behind = [f"{e:g}: {a:.3f} against {b:.3f}" for e, a, b in zip(epsilons, own, accuracy["dp-penalty"], strict=True)]
    claims = (
        Claim(
            "Accuracy rises with ε.",
            "; ".join(f"ε = {e:g}: {a:.3f}" for e, a in zip(epsilons, own, strict=True)),
            verdict(bool(np.all(np.diff(own) > -0.003)), bool(own[-1] > own[0])),
        ),
        Claim(
            "The published algorithm is more accurate than the private penalty method at the same ε a step.",
            "ε = " + "; ".join(behind),
            verdict(bool(np.all(own >= accuracy["dp-penalty"])), bool(np.any(own >= accuracy["dp-penalty"]))),
        ),
        Claim(
            "At small ε it reads less than a fifth of the data.",
            f"{100 * share['published'][0]:.0f}% at ε = {PER_STEP:g}",
            verdict(bool(share["published"][0] < 0.2)),
        ),
        Claim(
            "Private Barker needs nearly all data at small ε.",
            "; ".join(f"ε = {e:g}: {100 * s:.0f}%" for e, s in zip(epsilons, share["dp-barker"], strict=True)),
            verdict(bool(share["dp-barker"][0] > 0.5)),
        ),
    )
    text = (
        f"{task.size:,} images, 50 scores, {work.pick(1500, 20000):,} steps from 0 (private Barker: from the "
        f"mode, as if its "
        f"variational start were free), λ = 10, K = {UPPER:g}, c = ‖x‖ of each record. Accuracy is that of the "
        f"mean of "
        "the second half of the draws on 2,037 test images. Steps tuned to 60% acceptance (private Barker: 40%), "
        "in units of the ball's radius."
    )
    columns = ("method", "epsilon a step", *COLUMNS)
    return Section("mnist-epsilon", "MNIST: accuracy and batch against ε", text, columns, rows, claims)


# -- the effect of K -------------------------------------------------------------------------------------------------
def choice_of_k(work: Work) -> list[Section]:
    """Figure (c): accuracy and batch against K, with the three readings of K marked."""
    task = DigitsTask(work)
    constants = record_constants(task.model, task.rows)
    text_k, appendix, _ = batch_bounds(PER_STEP, float(constants.sum()), float(constants.max()))
    bounds = work.pick((100.0, 400.0), (25.0, text_k, 150.0, UPPER, appendix, 1000.0))
    found = [measured(task, "published", PER_STEP, float(round(k))) for k in bounds]
    lines = [line(part, task.size) for part in found]
    accuracy, share = np.array([part[2] for part in lines]), np.array([part[3] for part in lines])
    panels = [
        Panel("(c) accuracy against K", "K", "accuracy", {"published": (bounds, accuracy)}, log="x"),
        Panel("(c) batch against K", "K", "rows read, share of the data", {"published": (bounds, share)}, log="x"),
    ]
    save_panels(work, "choice-of-k", panels)
    claims = (
        Claim(
            "Accuracy and batch both rise as K falls.",
            "; ".join(f"K = {k:.0f}: {a:.3f}, {100 * s:.0f}%" for k, a, s in zip(bounds, accuracy, share, strict=True)),
            verdict(
                bool(np.all(np.diff(share) <= 0.01) and np.all(np.diff(accuracy) <= 0.003)),
                bool(share[0] > share[-1] or accuracy[0] > accuracy[-1]),
            ),
        ),
        sensitivities(work, task),
    )
    text = (
        f"Published at ε = {PER_STEP:g} a step with K from {bounds[0]:.0f} to {bounds[-1]:.0f}. The text's "
        f"formula εC/(6 max c) "
        f"gives {text_k:.0f}, the appendix's εC/max c gives {appendix:.0f}, the authors' program has {UPPER:g}."
    )
    rows = [(float(round(k)), *part) for k, part in zip(bounds, lines, strict=True)]
    return [Section("choice-of-k", "MNIST: the upper batch bound K", text, ("K", *COLUMNS), rows, claims, True)]


def sensitivities(work: Work, digits: DigitsTask) -> Claim:
    """Δ(ℓ₂) = 2 max c·M against Δ(ℓ₁) = 2 log(1 + CM/λ) over random moves of both tasks."""
    task = MixtureTask(work)
    parts, below = [], []
    for name, model, rows, step, p in (
        ("mixture", task.published, task.rows, 0.06, 2),
        ("MNIST", digits.model, digits.rows, STEP, 50),
    ):
        own = record_constants(model, rows)
        moves = np.linalg.norm(np.random.default_rng(4).normal(size=(10_000, p)), axis=1) * step
        first = 2.0 * np.log1p(own.sum() * moves / LAM)
        second = 2.0 * float(own.max()) * moves
        below.append(float(np.mean(second < first)))
        parts.append(
            f"{name}: {100 * below[-1]:.1f}% of moves, medians {np.median(second):.2g} and {np.median(first):.2g}"
        )
        assert own.max() <= public_constant(model) * (1.0 + 1e-9)
    return Claim(
        "The full batch is less sensitive than the minibatch in general.",
        "; ".join(parts),
        verdict(min(below) > 0.95, min(below) > 0.5),
    )
