"""Private methods at equal *total* (ε, δ = 10⁻⁵), everything counted, on both tasks.

Every method gets the same records, prior, public domain and sharp public bounds, and the accounting that is best for it
(``dpfastmh.baselines.composition``). Its own settings are the best of a few candidates, chosen on the task itself by
runs with other seeds: that choice is free here for every method alike, and would not be in earnest. Where a method's
bias depends on a start, all start at the same public point.

The published algorithm has no row of numbers: no total (ε, δ) of this size holds for it. *Exact draws* pay for
independent draws from the posterior on a grid: a draw is ε-bounded-range with ε = 2 sup b, hence ε²/8-zCDP (Cesar and
Rogers 2021), and m of them compose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpfastmh.baselines import DPHMC, DPSGLD, DPBarker, DPPenalty, ExactPosterior
from dpfastmh.baselines.composition import epsilon_of
from dpfastmh.budget import Budget
from dpfastmh.methods import MethodError, RandomWalk
from dpfastmh.planning import Settings
from dpfastmh.reproduce.figures import Panel, save_panels
from dpfastmh.reproduce.measures import log_loss, mean_error, sd_error
from dpfastmh.reproduce.mixture import MEANS, ours
from dpfastmh.reproduce.tasks import DELTA, RADIUS, DigitsTask, MixtureTask, Run, run
from dpfastmh.reproduce.work import Claim, FloatArray, Numbers, Section, Work, together, verdict
from dpfastmh.sampling import sample

COMPETITORS = ("dp-penalty", "dp-barker", "dp-sgld", "dp-hmc")


class Candidate(NamedTuple):
    """A method without its noise, and how many steps to share the budget among."""

    method: Any
    steps: int

    @property
    def label(self) -> str:
        fields = {k: v for k, v in vars(self.method).items() if k in ("batch", "clip", "step", "leaps", "reach")}
        walk = getattr(self.method, "proposal", None)
        scale = {} if walk is None else {"scale": walk.scale}
        return (
            ", ".join(f"{k} {v:g}" for k, v in {**scale, **fields}.items() if v is not None) + f", {self.steps} steps"
        )


def epsilons(work: Work) -> tuple[float, ...]:
    return work.pick((1.0,), (0.25, 0.5, 1.0, 2.0, 4.0, 8.0))  # type: ignore[no-any-return]


def sections(work: Work) -> list[Section]:
    return [mixture(MixtureTask(work)), digits(DigitsTask(work))]


def contest(
    candidates: list[Candidate],
    budget: Budget,
    size: int,
    play: Callable[[Any, int, int], Run],
    score: Callable[[Run], float],
    tries: int,
    runs: int,
) -> tuple[str, list[Run], float]:
    """The candidate with the least median score over ``tries`` seeds, and its ``runs`` runs with other seeds."""
    best, fewest = None, math.inf
    for candidate in candidates:
        try:
            ready = candidate.method.within(budget, candidate.steps, size=size)
        except (MethodError, ValueError):
            continue  # no noise makes this one affordable
        spent = ready.total_epsilon(candidate.steps, budget.delta, size=size)
        assert spent <= budget.epsilon * (1.0 + 1e-9)
        found = together(lambda s, m=ready, n=candidate.steps: play(m, n, 500 + s), range(tries))  # type: ignore[misc]
        middle = float(np.median([score(one) for one in found]))
        if middle < fewest:
            best, fewest = (candidate, ready, spent), middle
    if best is None:
        return "", [], math.inf
    candidate, ready, spent = best
    return candidate.label, together(lambda s: play(ready, candidate.steps, s), range(runs)), spent


# -- the mixture -----------------------------------------------------------------------------------------------------
def mixture_candidates(name: str, quick: bool, size: int) -> list[Candidate]:
    if name == "dp-penalty":
        return [
            Candidate(DPPenalty(RandomWalk(scale, MEANS), sigma=1.0), steps)
            for scale in ((0.4,) if quick else (0.4, 0.6))
            for steps in ((500,) if quick else (1000, 5000, 20_000))
        ]
    if name == "dp-barker":
        batches = [DPBarker(RandomWalk(scale, MEANS), batch=size) for scale in ((0.2,) if quick else (0.2, 0.4))]
        reaches = [DPBarker(RandomWalk(scale, MEANS), reach=1.0) for scale in ((0.2,) if quick else (0.2, 0.4))]
        return [Candidate(m, n) for m in batches + reaches for n in ((500,) if quick else (1000, 4000))]
    if name == "dp-sgld":
        return [
            Candidate(DPSGLD(batch=size, noise=1.0, clip=clip, step=step), steps)
            for clip in (0.006,)
            for step in ((0.05,) if quick else (0.003, 0.01, 0.03, 0.1))
            for steps in ((100,) if quick else (400, 3000))
        ]
    return [
        Candidate(DPHMC(leaps=leaps, step=step, gradient_noise=1.0, sigma=1.0, clip=0.006), steps)
        for leaps, step in (((2, 0.15),) if quick else ((2, 0.15), (2, 0.25)))
        for steps in ((50,) if quick else (100, 400))
    ]


def mixture_row(task: MixtureTask, name: str, epsilon: float) -> Numbers:
    work, reference = task.work, task.reference
    budget = Budget(epsilon, DELTA)
    tries, runs = work.pick((1, 2), (2, 20 if name == "ours" else 8))

    def play(method: Any, steps: int, seed: int) -> Run:
        return run(method, task.sharp, task.rows, task.start, steps, seed)

    def own(scale: float, seed: int) -> tuple[Run, float]:
        draws, spent, seconds, steps = ours(task, epsilon, scale, seed)
        return Run(draws, seconds, steps, math.nan), spent

    def compute() -> dict[str, Any]:
        if name == "exact draws":
            label, found, spent = exact_draws(task, epsilon, runs)
        elif name == "ours":
            scales = (0.2,) if work.quick else (0.12, 0.2, 0.3)
            tried = {}
            for scale in scales:
                parts = [own(scale, 500 + s)[0] for s in range(tries)]
                tried[scale] = float(np.median([reference.w1(p.draws) for p in parts]))
            best = min(tried, key=lambda scale: tried[scale])
            pairs = [own(best, s) for s in range(runs)]
            found, spent = [pair[0] for pair in pairs], max(pair[1] for pair in pairs)
            label = f"scale {best:g}, about {np.mean([one.acceptance for one in found]):,.0f} steps that look at data"
        else:
            candidates = mixture_candidates(name, work.quick, task.size)
            label, found, spent = contest(
                candidates, budget, task.size, play, lambda one: reference.w1(one.draws), tries, runs
            )
        count = int(np.median([len(one.draws) for one in found])) if found else 0
        return {
            "w1": [reference.w1(one.draws) for one in found],
            "kl": [reference.kl(one.draws) for one in found],
            "floor": reference.kl_floor(count) if count else math.nan,
            "mean": [reference.mean_error(one.draws) for one in found],
            "sd": [reference.sd_error(one.draws) for one in found],
            "rows": [one.rows for one in found],
            "seconds": [one.seconds for one in found],
            "draws": count,
            "spent": spent,
            "label": label,
        }

    return work.piece(f"scoreboard-mixture-{name.replace(' ', '-')}-{epsilon:g}", compute)


def exact_draws(task: MixtureTask, epsilon: float, runs: int) -> tuple[str, list[Run], float]:
    """Independent draws on a grid of 60² points, as many as the budget pays for."""
    axis = np.linspace(-3.0, 3.0, 60)
    grid = np.array([(a, b) for a in axis for b in axis])
    method = ExactPosterior(grid)
    price = method.epsilon(task.sharp)
    count, spent = affordable(price, Budget(epsilon, DELTA))
    if count == 0:
        return "", [], math.inf
    chance = method.probabilities(task.sharp, task.rows)
    found = []
    for seed in range(runs):
        chosen = np.random.default_rng(seed).choice(len(grid), count, p=chance)
        found.append(Run(grid[chosen], 0.0, math.nan, float(task.size)))
    return f"{count} draws at ε = {price:.3g} each", found, spent


def affordable(price: float, budget: Budget) -> tuple[int, float]:
    """How many draws of pure ε ``price`` and bounded range the budget pays for, and what they cost together."""

    def cost(count: int) -> float:
        return min(count * price, epsilon_of(lambda alpha: alpha * price**2 / 8.0, count, budget.delta))

    count = 0
    while cost(count + 1) <= budget.epsilon:
        count += 1
    return count, cost(count) if count else 0.0


def mixture(task: MixtureTask) -> Section:
    work = task.work
    names = ("ours", *COMPETITORS, "exact draws")
    found = {(n, e): mixture_row(task, n, e) for e in epsilons(work) for n in names}
    rows: list[tuple[Any, ...]] = []
    for e in epsilons(work):
        for name in names:
            part = found[name, e]
            rows.append(
                (
                    e,
                    name,
                    *(_middle(part[k]) for k in ("w1", "kl")),
                    float(part["floor"]),
                    *(_middle(part[k]) for k in ("mean", "sd", "rows", "seconds")),
                    str(part["label"]),
                )
            )
        rows.append((e, "published", *[math.inf] * 5, "", "", "no total holds: any δ below 1 − e^−ΣΔ is exceeded"))
    first, verdicts = [], []
    for e in epsilons(work):
        order = sorted(names, key=lambda name, at=e: _middle(found[name, at]["w1"]))  # type: ignore[misc]
        first.append(order[0] == "ours")
        own, other = (_middle(found[n, e]["w1"]) for n in ("ours", next(n for n in order if n != "ours")))
        verdicts.append(f"ε = {e:g}: {own:.4f}, next {next(n for n in order if n != 'ours')} {other:.4f}")
    claims = (
        Claim("Goal: ours is first by W1 at every total ε.", "; ".join(verdicts), verdict(all(first), any(first))),
    )
    panels = [
        Panel(
            f"mixture: {label}",
            "total ε",
            label,
            {n: (epsilons(work), [_middle(found[n, e][key]) for e in epsilons(work)]) for n in names},
            log="xy",
        )
        for key, label in (
            ("w1", "W1"),
            ("kl", "symmetric KL"),
            ("mean", "error of means, sd"),
            ("sd", "error of sd, relative"),
        )
    ]
    save_panels(work, "scoreboard-mixture", panels)
    text = (
        f"Total (ε, δ = 1e-5), medians of {work.pick(2, 8)} runs (ours {work.pick(2, 20)}), everything counted, "
        f"all from the same start and with all draws kept. "
        f"W1 of 20,000 independent draws: {task.reference.w1_floor(20_000):.4f}. Rows are per step; ours releases "
        f"none (its rows are private), so that column is empty for it."
    )
    columns = (
        "total epsilon",
        "method",
        "W1",
        "KL",
        "KL floor",
        "mean error",
        "sd error",
        "rows",
        "seconds",
        "settings",
    )
    return Section("scoreboard-mixture", "Scoreboard: mixture", text, columns, rows, claims, True)


def _middle(values: Any) -> float:
    found = np.asarray(values, dtype=float)
    return float(np.median(found)) if found.size else math.inf


# -- MNIST -----------------------------------------------------------------------------------------------------------
def digits_candidates(name: str, quick: bool, size: int) -> list[Candidate]:
    if name == "dp-penalty":
        return [
            Candidate(DPPenalty(RandomWalk(s), sigma=1.0), n)
            for s in ((0.05,) if quick else (0.01, 0.03, 0.1))
            for n in ((500,) if quick else (1000, 4000))
        ]
    if name == "dp-barker":
        found = [DPBarker(RandomWalk(s), batch=size) for s in ((0.03,) if quick else (0.01, 0.03))]
        found += [DPBarker(RandomWalk(s), reach=1.0) for s in (() if quick else (0.01, 0.03))]
        return [Candidate(m, n) for m in found for n in ((300,) if quick else (1000, 4000))]
    if name == "dp-sgld":
        return [
            Candidate(DPSGLD(batch=size, noise=1.0, clip=clip, step=step), steps)
            for clip in ((0.1,) if quick else (0.1, 0.3, 1.0))
            for step in ((0.03,) if quick else (0.01, 0.03, 0.1))
            for steps in ((30,) if quick else (30, 200))
        ]
    return [
        Candidate(DPHMC(leaps=leaps, step=step, gradient_noise=1.0, sigma=1.0, clip=clip), steps)
        for leaps, step in (((5, 0.02),) if quick else ((5, 0.02), (5, 0.05)))
        for clip in ((0.3,) if quick else (0.3, 1.0))
        for steps in ((30,) if quick else (30, 150))
    ]


def our_digits(task: DigitsTask, epsilon: float, seed: int) -> tuple[Run, float]:
    """Ours: with little to spend nearly all of it goes to the start, since one posterior draw costs more than is "
    "left."""
    little = epsilon <= 1.0
    settings = Settings(
        warm_share=0.95 if little else 0.5,
        hessian_share=0.02 if little else 0.1,
        gradient_weights=(1.0,) * 8,
        hessian_rounds=(0,),
        least_draws=0.0,
    )
    began = time.process_time()
    found = sample(
        task.model, task.x, task.y, budget=Budget(epsilon, DELTA), settings=settings, chains=2, seed=seed, threads=1
    )
    seconds = time.process_time() - began
    draws = found.draws.reshape(-1, found.draws.shape[2])
    return Run(draws, seconds, math.nan, math.nan), found.privacy.epsilon_spent


def digits_row(task: DigitsTask, name: str, epsilon: float) -> Numbers:
    work, budget = task.work, Budget(epsilon, DELTA)
    tries, runs = work.pick((1, 1), (2, 8))

    def play(method: Any, steps: int, seed: int) -> Run:
        return run(method, task.model, task.rows, task.origin, steps, seed)

    def kept(draws: FloatArray) -> FloatArray:
        return draws[len(draws) // 4 :]

    def accuracy(one: Run) -> float:
        return task.accuracy(kept(one.draws).mean(axis=0))

    def compute() -> dict[str, Any]:
        if name == "ours":
            pairs = [our_digits(task, epsilon, seed) for seed in range(2 * runs)]
            found, spent = [pair[0] for pair in pairs], max(pair[1] for pair in pairs)
            label = "2 chains; " + ("95%" if epsilon <= 1.0 else "50%") + " of the budget on the start"
        else:
            candidates = digits_candidates(name, work.quick, task.size)
            label, found, spent = contest(candidates, budget, task.size, play, lambda one: -accuracy(one), tries, runs)
        draws = [one.draws if name == "ours" else kept(one.draws) for one in found]
        truth = task.truth
        return {
            "accuracy": [task.accuracy(d.mean(axis=0)) for d in draws],
            "loss": [log_loss(d, task.test_x, task.test_y) for d in draws],
            "mean": [mean_error(d, truth["mean"], truth["sd"]) for d in draws],
            "sd": [sd_error(d, truth["sd"]) for d in draws],
            "rows": [one.rows for one in found],
            "seconds": [one.seconds for one in found],
            "spent": spent,
            "label": label,
        }

    return work.piece(f"scoreboard-mnist-{name}-{epsilon:g}", compute)


def digits(task: DigitsTask) -> Section:
    work = task.work
    names = ("ours", *COMPETITORS)
    found = {(n, e): digits_row(task, n, e) for e in epsilons(work) for n in names}
    truth = task.accuracy(np.asarray(task.truth["mean"]))
    rows: list[tuple[Any, ...]] = []
    keys = ("accuracy", "loss", "mean", "sd", "rows", "seconds")
    for e in epsilons(work):
        rows += [(e, n, *(_middle(found[n, e][key]) for key in keys), str(found[n, e]["label"])) for n in names]
        rows.append((e, "published", *[math.inf] * 4, "", "", "no total holds: any δ below 1 − e^−ΣΔ is exceeded"))
    near, verdicts = [], []
    for e in epsilons(work):
        best = max(names, key=lambda name, at=e: _middle(found[name, at]["accuracy"]))  # type: ignore[misc]
        own, top = _middle(found["ours", e]["accuracy"]), _middle(found[best, e]["accuracy"])
        near.append(own >= 0.99 * top)
        verdicts.append(f"ε = {e:g}: {own:.4f}, best {best} {top:.4f}")
    claims = (
        Claim(
            "Goal: ours is within 1% of the best accuracy at every total ε.",
            "; ".join(verdicts),
            verdict(all(near), any(near)),
        ),
    )
    panels = [
        Panel(
            f"MNIST: {label}",
            "total ε",
            label,
            {n: (epsilons(work), [_middle(found[n, e][key]) for e in epsilons(work)]) for n in names},
            {"posterior mean": truth} if key == "accuracy" else {},
            log="x" if key == "accuracy" else "xy",
        )
        for key, label in (
            ("accuracy", "accuracy"),
            ("loss", "log-loss"),
            ("mean", "error of means, sd"),
            ("sd", "error of sd, relative"),
        )
    ]
    save_panels(work, "scoreboard-mnist", panels)
    text = (
        f"Total (ε, δ = 1e-5), prior N(0, 2.5²), scores shortened to a public radius of {RADIUS:g}, temperature "
        f"1, start 0, medians of "
        f"{work.pick(1, 8)} runs (ours {work.pick(2, 20)}), the first quarter of every competitor's draws left "
        f"out. Candidates were chosen by accuracy on the test images, "
        "which favours the methods with many candidates; ours has one setting for ε ≤ 1 and one above. The "
        "posterior mean itself has "
        f"accuracy {truth:.4f}. Errors are root mean squares over the 50 coefficients."
    )
    columns = (
        "total epsilon",
        "method",
        "accuracy",
        "log-loss",
        "mean error",
        "sd error",
        "rows",
        "seconds",
        "settings",
    )
    return Section("scoreboard-mnist", "Scoreboard: MNIST 7 against 9", text, columns, rows, claims, True)
