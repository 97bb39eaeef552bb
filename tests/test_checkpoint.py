"""Checkpoints: the same run to the bit, refusals in one line, secrets where they belong, and no wrong result ever."""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crashing
import dpfastmh as mh
from dpfastmh import checkpoint as checkpoints
from dpfastmh import outputs
from dpfastmh.checkpoint import (
    HASH,
    MAGIC,
    Checkpoint,
    CheckpointError,
    CheckpointWarning,
    Contents,
    Keeper,
    encode,
    model_mark,
    read,
    recorded,
)
from dpfastmh.cli import main
from dpfastmh.description import describe, model_from
from dpfastmh.methods import Coordinates, Directions, DPFastMH, RandomWalk
from dpfastmh.posterior import Posterior
from dpfastmh.privacy.boundary import PrivateRecords, Secret
from dpfastmh.privacy.filter import BudgetExceeded, RenyiFilter
from dpfastmh.resuming import resume
from dpfastmh.sampling import Progress, sample
from energies import free_mean

X, Y, MODEL, BUDGET = crashing.X, crashing.Y, crashing.MODEL, crashing.BUDGET


def same(one: Posterior, other: Posterior) -> bool:
    return crashing.written(one) == crashing.written(other)


def interrupt_at(phase: str, number: int = 1, how: int = signal.SIGINT) -> Callable[[Progress], None]:
    """A watcher that sends this process a signal when ``phase`` is shown for the ``number``-th time."""
    seen = []

    def watch(progress: Progress) -> None:
        seen.append(progress.phase)
        if progress.phase == phase and seen.count(phase) == number:
            os.kill(os.getpid(), how)

    return watch


@pytest.fixture(scope="module")
def undisturbed() -> Posterior:
    return crashing.fit(None)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint of a run stopped in its main phase."""
    path = tmp_path_factory.mktemp("stopped") / "run.checkpoint"
    with pytest.raises(KeyboardInterrupt):
        crashing.fit(path, progress=interrupt_at("main", 6))
    assert recorded(path).phase == "main"
    return path.read_bytes()


@pytest.fixture
def file(tmp_path: Path, stopped: bytes) -> Path:
    path = tmp_path / "run.checkpoint"
    path.write_bytes(stopped)
    return path


# -- the same run ----------------------------------------------------------------------------------------------------
def test_a_checkpoint_changes_nothing(tmp_path: Path, undisturbed: Posterior) -> None:
    assert same(crashing.fit(tmp_path / "c"), undisturbed)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("phase", "number"), [("main", 1), ("main", 9), ("adapt", 1)])
def test_stopped_and_resumed(tmp_path: Path, undisturbed: Posterior, how: int, phase: str, number: int) -> None:
    path = tmp_path / "run.checkpoint"
    with pytest.raises(KeyboardInterrupt, match=re.escape(f"stopped; dpfastmh resume {path} goes on")):
        crashing.fit(path, progress=interrupt_at(phase, number, how))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["run.checkpoint"]
    with pytest.raises(KeyboardInterrupt):
        resume(path, X, Y, progress=interrupt_at("main", 3, how))
    assert same(resume(path, X, Y, threads=1), undisturbed)
    assert same(resume(path), undisturbed)  # finished: the draws are in it, and no table is needed


def test_sigterm_is_left_alone_without_a_checkpoint() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []
    crashing.fit(None, draws=4, progress=lambda progress: seen.append(signal.getsignal(signal.SIGTERM)))
    assert set(seen) == {before} == {signal.getsignal(signal.SIGTERM)}


def test_a_checkpoint_moves_on_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again in the main phase, each time farther."""
    charged, save = [], Keeper.save

    def counting(self: Keeper, phase: str, *state: Any) -> None:
        save(self, phase, *state)
        if phase == "main":
            charged.append(recorded(self.path).charged)

    monkeypatch.setattr(Keeper, "save", counting)
    crashing.fit(tmp_path / "c")
    assert charged == sorted(charged)
    assert len(set(charged)) > 1


def test_the_time_of_a_checkpoint_decides_nothing(tmp_path: Path, undisturbed: Posterior) -> None:
    for number, every in enumerate((0.001, 0.03, 1e6)):
        path = tmp_path / f"{number}"
        assert same(
            sample(MODEL, X, Y, budget=BUDGET, seed=17, settings=crashing.SETTINGS, checkpoint=path, every=every),
            undisturbed,
        )


def test_draws_are_the_total(tmp_path: Path) -> None:
    whole = crashing.fit(None, draws=400)
    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        crashing.fit(path, draws=400, progress=interrupt_at("main", 2))
    found = resume(path, X, Y)
    assert same(found, whole)
    assert found.privacy.draws == 400


def blind(kind: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Models and moves that go without the warm start."""
    if kind == "mixture":
        return mh.Mixture(), (np.random.default_rng(1).normal(0, 1, 3_000),), {"max_time": 0.05}
    if kind == "energy":
        x = np.random.default_rng(7).uniform(-1, 1, (2_000, 1))
        return free_mean(), (x,), {"start": [0.0], "proposal": Coordinates(0.02), "max_time": 0.05}
    proposal = {
        "directions": Directions(np.array([[1.0, 0, 0], [1, 1, 1]]), [0.1, 0.2]),
        "basis": RandomWalk([0.05, 0.05], np.array([[1.0, 0, 0], [0, 1, 1]])),
        "joint": RandomWalk(0.05),
    }[kind]
    return MODEL, (X, Y), {"start": np.zeros(3), "proposal": proposal, "max_time": 0.1}


@pytest.mark.parametrize("kind", ["mixture", "energy", "directions", "basis", "joint"])
def test_other_models_and_moves(kind: str, tmp_path: Path) -> None:
    model, data, options = blind(kind)
    whole = sample(model, *data, budget=BUDGET, seed=3, **options)
    for phase, number in (("adapt", 1), ("main", 2)):
        path = tmp_path / phase
        with pytest.raises(KeyboardInterrupt):
            sample(
                model, *data, budget=BUDGET, seed=3, checkpoint=path, progress=interrupt_at(phase, number), **options
            )
        if not isinstance(model, mh.GLM):
            with pytest.raises(CheckpointError, match="model of your own: give it"):
                resume(path, *data)
        assert same(resume(path, *data, model=model), whole)


def test_a_model_can_be_told_from_another(tmp_path: Path) -> None:
    models = [MODEL, mh.LogisticRegression(mh.Box.unit(2)), mh.Mixture(), mh.Mixture(bound="paper"), blind("energy")[0]]
    assert len({model_mark(model) for model in models}) == len(models)
    assert model_mark(blind("energy")[0]) == model_mark(models[-1])  # the same functions, compiled again
    for model in models[:2]:
        assert model_mark(model_from(json.loads(json.dumps(describe(model))))) == model_mark(model)


PARTS = ["acceptance counter", "proposals counter", "counts counter", "rows counter", "memory spent", "place theta"]
PARTS += ["scale"]


@pytest.mark.parametrize("part", PARTS)
def test_every_secret_part_counts(part: str, tmp_path: Path) -> None:
    """Negative control: a run that goes on without one of its parts is another. (The mixture reads rows all along.)"""
    model, x = mh.Mixture(), np.random.default_rng(1).normal(0, 1, 3_000)
    options: dict[str, Any] = {"budget": BUDGET, "seed": 4, "proposal": Coordinates(0.5), "max_time": 0.1}
    path = tmp_path / "c"
    whole = sample(model, x, **options)
    with pytest.raises(KeyboardInterrupt):
        sample(model, x, checkpoint=path, progress=interrupt_at("main", 2), **options)
    held = read(path)
    array = held.arrays[f"chain 0 secret {part}"]
    if array.dtype.kind == "f":
        other = 1.0 - 1.1 * array
    else:
        other = array ^ array.dtype.type(1) if array.dtype.kind == "u" else (array + 1) % 3_000
    path.write_bytes(encode(Contents(held.head, held.arrays | {f"chain 0 secret {part}": other})))
    assert same(resume(path, x, model=model), whole) == (part == "memory spent")  # begins anew in every chunk


def test_rows_drawn_ahead_are_part_of_a_snapshot() -> None:
    """A sampler taken up elsewhere goes on alike; without the rows that were drawn ahead it soon does not."""
    method = DPFastMH(Coordinates(0.05), full_batch=False)
    model = mh.LogisticRegression(mh.Box.unit(2))
    first, second = (method.on(model, X, Y, seed=seed) for seed in (1, 2))
    state, parted = first.init(np.zeros(3)), {"ahead": 0, "ahead_keep": 0}
    for _ in range(12):
        state = first.run(state, 40)[0]
        held, stood = first.snapshot(), first.init(np.zeros(3)).like(state.arrays())
        expected = first.run(state, 30)[1]
        second.restore(held)
        assert np.array_equal(second.run(stood, 30)[1], expected)
        for name in parted:
            second.restore(held | {name: held[name][::-1].copy()})
            parted[name] += not np.array_equal(second.run(stood, 30)[1], expected)
    assert min(parted.values()) > 0


# -- the filter ------------------------------------------------------------------------------------------------------
def test_charges_come_back_exactly_and_within_the_limit() -> None:
    account = RenyiFilter(BUDGET, steps_cap=1000)
    share = account.reserve("a share", 0.1, 100)
    share.charge("bits", 0.1 / 3, 2)
    account.charge("sums", 1 / 3, 1)
    again = RenyiFilter(BUDGET, steps_cap=1000)
    again.restore(account.state())
    twin = again.reserve("a share", 0.1, 100)
    twin.restore(share.state())
    assert (again.spent, again.steps, twin.spent, twin.left) == (account.spent, account.steps, share.spent, share.left)
    account.settle(share)
    again.settle(twin)
    assert again.releases == account.releases
    assert again.state() == account.state()
    with pytest.raises(ValueError, match="has been used"):
        again.restore(account.state())
    fresh = RenyiFilter(BUDGET, steps_cap=1000)
    with pytest.raises(BudgetExceeded):
        fresh.restore([("too much", Fraction(10**6), 1)])
    for bad in [("x", Fraction(-1), 1), ("", Fraction(1), 1), ("x", Fraction(1), 0)]:
        with pytest.raises(ValueError, match=r"negative|name|count"):
            fresh.restore([bad])
    with pytest.raises(TypeError):
        pickle.dumps(fresh)


def test_what_was_charged_can_be_asked_for(file: Path, undisturbed: Posterior) -> None:
    before = recorded(file)
    assert re.fullmatch("[0-9a-f]{32}", before.run_id)
    assert not before.finished
    resume(file, X, Y)
    after = recorded(file)
    assert after.run_id == before.run_id
    assert after.finished
    assert 0 < before.charged < after.charged
    assert float(after.charged) == pytest.approx(undisturbed.privacy.rdp_spent, rel=1e-12)


# -- refusals --------------------------------------------------------------------------------------------------------
def test_another_table_model_or_version_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = X.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("not the one that this run began with", lambda: resume(file, swapped, Y)),
        ("not the one that this run began with", lambda: resume(file, X, 1 - Y)),
        ("not the one that this run began with", lambda: resume(file, X[:-1], Y[:-1])),
        ("the run of another model", lambda: resume(file, X, Y, model=mh.LogisticRegression(mh.Box.unit(2)))),
        ("does not say where the table is", lambda: resume(file)),
    ]
    before = file.read_bytes()
    for words, attempt in cases:
        with pytest.raises(ValueError, match=words) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    for name in ("dpfastmh", "numpy", "sources"):
        other = checkpoints.built() | {name: "0.0"}
        monkeypatch.setattr(checkpoints, "built", lambda other=other: other)
        with pytest.raises(CheckpointError, match=r"written (with|by)"):
            resume(file, X, Y)
        monkeypatch.undo()
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_places_where_no_checkpoint_can_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before a table is read, let alone anything spent."""
    there = tmp_path / "there"
    there.write_bytes(b"")
    for path, words in [(there, "exists already: go on with"), (tmp_path / "no" / "c", "does not exist, create it")]:
        with pytest.raises(CheckpointError, match=words):
            sample(MODEL, "no table", budget=BUDGET, checkpoint=path)
    monkeypatch.setattr(outputs.os, "access", lambda *_: False)
    with pytest.raises(CheckpointError, match="no permission to write"):
        sample(MODEL, "no table", budget=BUDGET, checkpoint=tmp_path / "c")
    monkeypatch.undo()
    for every in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(CheckpointError, match="every="):
            sample(MODEL, "no table", budget=BUDGET, checkpoint=tmp_path / "c", every=every)


def test_a_file_that_cannot_be_written_is_found_out_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only file system says yes to every question and no to every write; for root it is the only kind."""

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("something was released")

    monkeypatch.setattr(PrivateRecords, "noisy_gradient", never)
    monkeypatch.setattr(PrivateRecords, "noisy_hessian", never)
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "_write", refuse)
        with pytest.raises(OSError, match=r"cannot be written \(read-only file system\)"):
            crashing.fit(tmp_path / "c")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.os, "open", refuse)
        with pytest.raises(OSError, match=r"cannot be locked \(read-only file system\)"):
            crashing.fit(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_in_the_warm_start_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"no draws are kept\. Spent: epsilon"):
        crashing.fit(tmp_path / "c", progress=interrupt_at("start", 3, signal.SIGTERM))
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_after_the_warm_start_leaves_nothing(tmp_path: Path) -> None:
    x = np.random.default_rng(12).uniform(-1, 1, (30_000, 1)) * np.ones((1, 6)) * 0.05
    model = mh.LogisticRegression(mh.Box.unit(6), mh.Normal(scale=1e3))
    with pytest.raises(mh.BudgetTooSmall, match="Spent on finding out"):
        sample(model, x, np.arange(30_000) % 2, budget=mh.Budget(0.3, 1e-6), seed=13, checkpoint=tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


# -- a full disk -----------------------------------------------------------------------------------------------------
def test_a_full_disk_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Posterior
) -> None:
    path, write = tmp_path / "c", outputs._write

    def full(where: Path, content: bytes, mode: int = 0o666) -> None:
        write(where, content[:100], mode)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def watch(progress: Progress) -> None:
        if progress.phase == "main":
            monkeypatch.setattr(outputs, "_write", full)

    with pytest.warns(
        CheckpointWarning, match=r"cannot be written \(no space left on device\).*The run goes on"
    ) as caught:
        assert same(crashing.fit(path, progress=watch), undisturbed)
    assert len(caught) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    monkeypatch.setattr(outputs, "_write", write)
    assert recorded(path).phase == "main"
    assert same(resume(path, X, Y), undisturbed)  # from the state before the disk was full


def test_interrupted_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Posterior) -> None:
    path, stop = tmp_path / "c", interrupt_at("main", 4)

    def watch(progress: Progress) -> None:
        if progress.phase == "main":
            monkeypatch.setattr(outputs, "_write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        stop(progress)

    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(KeyboardInterrupt, match=r"stopped \(.*full.*\); dpfastmh resume"),
    ):
        crashing.fit(path, progress=watch)
    monkeypatch.undo()
    assert same(resume(path, X, Y), undisturbed)


# -- two at once -----------------------------------------------------------------------------------------------------
def test_two_processes_on_one_checkpoint(file: Path, undisturbed: Posterior) -> None:
    context = crashing.server()
    ours, theirs = context.Pipe()
    holder = context.Process(target=_hold, args=(str(file), theirs))
    holder.start()
    assert ours.recv() == "held"
    with pytest.raises(CheckpointError, match="in use by another run"):
        resume(file, X, Y)
    with pytest.raises(CheckpointError, match="exists already"):
        crashing.fit(file)
    holder.kill()  # whatever ends a process ends its lock
    holder.join()
    assert same(resume(file, X, Y), undisturbed)
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def _hold(path: str, line: Any) -> None:
    keeper, _ = Keeper.reopen(path)
    line.send("held")
    time.sleep(60)
    keeper.close()


def test_many_threads_and_one_lock(tmp_path: Path) -> None:
    """The lock file comes and goes, and still only one at a time holds it."""
    holders, most, refused = [0], [0], [0]

    def contend() -> None:
        for _ in range(150):
            try:
                keeper = Keeper.create(Checkpoint(tmp_path / "c"))
            except CheckpointError:
                refused[0] += 1
                continue
            holders[0] += 1
            most[0] = max(most[0], holders[0])
            time.sleep(1e-5)
            holders[0] -= 1
            keeper.close()

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert list(tmp_path.iterdir()) == []


# -- damage ----------------------------------------------------------------------------------------------------------
def mutated(content: bytes, dice: random.Random) -> bytes:
    """Cut short, bits flipped, bytes overwritten, inserted, removed, or blocks exchanged."""
    kind, at = dice.randrange(6), dice.randrange(len(content))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]
    length = dice.randrange(1, 600)
    if kind == 2:
        return content[:at] + dice.randbytes(length) + content[at + length :]
    if kind == 3:
        return content[:at] + dice.randbytes(length) + content[at:]
    if kind == 4:
        return content[:at] + content[at + length :]
    other = dice.randrange(len(content))
    return content[:at] + content[other : other + length] + content[at + length :]


def refusal(path: Path) -> str | None:
    """The one line with which a checkpoint is refused; None where the run went on."""
    line = None
    try:
        resume(path, X, Y)
    except (ValueError, OSError, BudgetExceeded) as error:
        line = str(error)
    assert line is None or (10 < len(line) < 400 and "\n" not in line)
    return line


def test_two_thousand_damaged_checkpoints_are_refused(file: Path, stopped: bytes) -> None:
    dice, seen = random.Random(8), set()
    for _ in range(2_000):
        content = mutated(stopped, dice)
        if content == stopped:
            continue
        file.write_bytes(content)
        line = refusal(file)
        assert line is not None
        with pytest.raises(CheckpointError):
            recorded(file)
        seen.add(re.sub(r"/\S+", "FILE", line))
    assert {"FILE is damaged: it was cut short or changed after it was written"} < seen


def resealed(content: bytes) -> bytes:
    body = content[:-HASH]
    return body + hashlib.sha256(body).digest()


def test_damage_behind_a_valid_hash_breaks_nothing_either(
    file: Path, stopped: bytes, undisturbed: Posterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash is no seal. Whatever the head says: one line, or a run within its limits. No traceback, no crash."""
    monkeypatch.setattr(mh.sampling.Run, "finish", lambda self: None)  # what counts is that it could be taken up
    dice, went_on = random.Random(9), 0
    start = len(MAGIC) + 8
    head_end = start + int.from_bytes(stopped[len(MAGIC) : start], "little")
    for number in range(600):
        if number % 2:
            head = bytearray(stopped[start:head_end])
            for _ in range(dice.randrange(1, 4)):
                head[dice.randrange(len(head))] = dice.choice(b'0123456789,:[]{}"-.e')
            content = stopped[: len(MAGIC)] + len(head).to_bytes(8, "little") + bytes(head) + stopped[head_end:]
        else:
            content = mutated(stopped, dice)
        file.write_bytes(resealed(content))
        went_on += refusal(file) is None
    assert went_on > 20


def test_numbers_that_compiled_code_would_trip_over_are_refused(file: Path) -> None:
    held = read(file)

    def with_part(name: str, change: Callable[[np.ndarray], Any]) -> str:
        array = held.arrays[name].copy()
        array = np.asarray(change(array) if (found := change(array)) is None else found)
        file.write_bytes(encode(Contents(held.head, held.arrays | {name: array})))
        line = refusal(file)
        assert line is not None, name
        return line

    secret = "chain 0 secret "
    assert "not rows of this table" in with_part(f"{secret}ahead", lambda a: a + 10**6)
    assert "not rows of this table" in with_part(f"{secret}ahead", lambda a: -a - 2)
    assert "out of range" in with_part(f"{secret}place", lambda a: a + 64)
    assert "out of range" in with_part(f"{secret}rows rest", lambda a: a + 4)
    assert "another form" in with_part(f"{secret}place delta", lambda a: a[:-1])
    assert "not finite" in with_part(f"{secret}place offset", lambda a: a * np.nan)
    assert "finite ones" in with_part(f"{secret}place theta", lambda a: a * np.nan)
    assert "another form" in with_part(f"{secret}counts seed", lambda a: a[:3])
    assert "scales" in with_part(f"{secret}scale", lambda a: -a)
    assert refusal(file)


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "c"
    for content in (
        b"",
        b"\x80\x04\x95",
        pickle.dumps({"a": 1}),
        MAGIC,
        MAGIC + bytes(100),
        b"dpfastmh checkpoint 2\n",
    ):
        path.write_bytes(content)
        assert refusal(path)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    with pytest.raises(FileNotFoundError):
        resume(tmp_path / "missing", X, Y)
    path.write_bytes(b"dpfastmh checkpoint 2\n")
    with pytest.raises(CheckpointError, match="another format"):
        read(path)


def test_loading_runs_no_code(file: Path) -> None:
    """The modules that read a checkpoint know no pickle, and a checkpoint holds nothing but numbers and JSON."""
    for module in (checkpoints, outputs):
        text = Path(str(module.__file__)).read_text()
        assert not re.search(r"\b(pickle|marshal|exec|eval|__import__|import_module)\b(?! is)", text)
    held = read(file)
    assert {array.dtype.name for array in held.arrays.values()} <= set(checkpoints.KINDS)
    with pytest.raises(CheckpointError, match="no place for it"):
        encode(Contents({}, {"x": np.array([object()])}))


# -- secrets ---------------------------------------------------------------------------------------------------------
def test_a_finished_checkpoint_holds_released_numbers_only(file: Path) -> None:
    before = read(file)
    secret = {name for name in before.arrays if "secret" in name or name.startswith("table")}
    assert len(secret) > 40
    resume(file, X, Y)
    after = read(file)
    assert {name.split(" ", 2)[-1] for name in after.arrays} == {"draws", "steps", "spent", "tried", "accepted"}
    raw = file.read_bytes()
    for name in secret:
        if before.arrays[name].nbytes >= 32 and np.unique(before.arrays[name]).size > 4:
            assert before.arrays[name].tobytes() not in raw, name
    assert before.arrays["table key"].tobytes().hex() not in json.dumps(after.head)


def test_secrets_are_opened_where_they_may_be() -> None:
    """``Secret.open`` is called by the boundary and by the checkpoint, and by nobody else in the library."""
    package = Path(str(mh.__file__)).parent
    opening = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"secret\w*\.open\(\)|Secret\.open", path.read_text(), re.IGNORECASE)
    }
    assert opening == {"checkpoint.py", "privacy/boundary.py"}
    secret = Secret({"x": np.arange(3)})
    assert repr(secret) == "<Secret>"
    assert not [name for name in dir(secret) if not name.startswith("_") and name != "open"]
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)


def test_nothing_secret_is_in_a_result_a_warning_or_an_output(tmp_path: Path, undisturbed: Posterior) -> None:
    """Stream keys, row numbers and sums are looked for, byte by byte, in all that a resumed run gives out."""
    from dpfastmh.report import write_outputs

    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt) as stop:
        crashing.fit(path, progress=interrupt_at("main", 6))
    held = read(path).arrays
    keys = [value for name, value in held.items() if name.endswith((" seed", " counter", "key", "table", " ahead"))]
    found = resume(path, X, Y)
    write_outputs(found, tmp_path / "out")
    given_out = pickle.dumps(found) + b"".join(p.read_bytes() for p in (tmp_path / "out").iterdir())
    given_out += str(stop.value).encode() + repr(found).encode() + str(found.summary()).encode()
    assert len(keys) > 16
    for value in keys:
        for piece in (value.tobytes()[:16], value.tobytes()[-16:]):
            assert len(set(piece)) < 5 or piece not in given_out
    assert not [item for item in gc.get_referents(found) if isinstance(item, Secret | Keeper)]


def test_file_modes(tmp_path: Path) -> None:
    """0600 from the first moment, whatever the umask; the lock too."""
    seen, path = set(), tmp_path / "c"

    def watch(progress: Progress) -> None:
        seen.update((p.name.split(".")[-1], stat.S_IMODE(p.stat().st_mode)) for p in tmp_path.iterdir())

    opened = []

    def spy(name: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        if flags & os.O_CREAT:
            opened.append(mode)
        return real(name, flags, mode, **rest)

    real, before = os.open, os.umask(0)
    try:
        os.open = spy  # type: ignore[assignment]
        crashing.fit(path, progress=watch)
    finally:
        os.open = real
        os.umask(before)
    assert {mode for _, mode in seen} == {0o600}
    assert {"c", "lock"} <= {name for name, _ in seen}
    assert set(opened) == {0o600}


# -- the command line ------------------------------------------------------------------------------------------------
SCHEMA = """model = "logistic"
target = "y"
[columns.a]
bounds = [-1, 1]
[columns.b]
bounds = [-1, 1]
[columns.y]
categories = [0, 1]
"""


@pytest.fixture
def custodian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    np.savetxt(tmp_path / "t.csv", np.c_[X, Y], delimiter=",", header="a,b,y", comments="", fmt=["%.9f", "%.9f", "%d"])
    (tmp_path / "t.toml").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FIT = ["fit", "t.csv", "--schema", "t.toml", "--epsilon", "8", "--delta", "1e-6", "--temperature", "20"]
FIT += ["--quiet", "--draws", "400"]


def stop_in_main(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfastmh.display import Display

    stop = interrupt_at("main", 2, signal.SIGTERM)
    monkeypatch.setattr(Display, "update", lambda self, progress: stop(progress))


def test_fit_and_resume_from_the_command_line(
    custodian: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [*FIT, "--seed", "3", "-o"]
    assert main([*whole, "whole"]) == 0
    with monkeypatch.context() as patch:
        stop_in_main(patch)
        assert main([*whole, "out", "--checkpoint", "run.checkpoint", "--every", "0.01"]) == 1
    assert capsys.readouterr().err.endswith("dpfastmh fit: stopped; dpfastmh resume run.checkpoint goes on\n")
    assert not (custodian / "out").exists()
    assert main([*whole, "out", "--checkpoint", "run.checkpoint"]) == 1
    assert "exists already: go on with dpfastmh resume run.checkpoint" in capsys.readouterr().err
    assert main(["resume", "run.checkpoint", "--quiet"]) == 0
    for name in ("summary.csv", "privacy.json"):
        assert (custodian / "out" / name).read_bytes() == (custodian / "whole" / name).read_bytes()
    assert np.array_equal(*(Posterior.load(custodian / f / "posterior.nc").draws for f in ("out", "whole")))
    assert main(["resume", "run.checkpoint"]) == 1
    assert "out exists already" in capsys.readouterr().err
    assert main(["resume", "run.checkpoint", "-o", "again", "--quiet"]) == 0


def test_resume_refuses_in_one_line(
    custodian: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        stop_in_main(patch)
        assert main([*FIT, "-o", "out", "--checkpoint", "c"]) == 1
    table = (custodian / "t.csv").read_text()
    (custodian / "other.csv").write_text(table.replace("\n-0.", "\n0.", 1))
    (custodian / "wide.toml").write_text(SCHEMA.replace("[-1, 1]", "[-2, 2]"))
    (custodian / "filled.toml").write_text(SCHEMA.replace("bounds = [-1, 1]", "bounds = [-1, 1]\nmissing = 0.0", 1))
    cases = [
        (["--data", "other.csv"], "its rows or their order have changed"),
        (["--data", "gone.csv"], "gone.csv"),
        (["--schema", "wide.toml"], "the run of another model: give the model, or schema"),
        (["--schema", "filled.toml"], "the run of another schema than filled.toml"),
        (["--every", "0"], "every=0"),
        (["-o", "t.csv"], "exists already"),
    ]
    capsys.readouterr()
    for options, words in cases:
        assert main(["resume", "c", "--quiet", *options]) == 1, options
        line = capsys.readouterr().err
        assert words in line, options
        assert line.count("\n") == 1
    (custodian / "t.toml").rename(custodian / "moved.toml")
    (custodian / "t.csv").rename(custodian / "moved.csv")
    assert main(["resume", "c", "--quiet", "--data", "moved.csv", "--schema", "moved.toml"]) == 0


def test_a_schema_cannot_run_code(custodian: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trap = custodian / "sprung"
    for evil in (
        f"model = \"__import__('os').system('touch {trap}')\"\n",
        f"!!python/object/apply:os.system ['touch {trap}']\n",
        SCHEMA.replace('"y"', f"\"y; import os; os.system('touch {trap}')\""),
        SCHEMA.replace("[-1, 1]", f"[\"os.system('touch {trap}')\", 1]", 1),
    ):
        (custodian / "evil.toml").write_text(evil)
        assert main(["check", "t.csv", "--schema", "evil.toml"]) == 1
        assert capsys.readouterr().err.count("\n") == 1
    assert not trap.exists()


def test_a_saved_posterior_cannot_run_code(tmp_path: Path, undisturbed: Posterior) -> None:
    """A pickled object in place of an array, of an attribute, or of the file itself is never brought to life."""
    import h5py

    trap = tmp_path / "sprung"

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (trap,))

    bomb, path = pickle.dumps(Bomb()), tmp_path / "p.nc"
    path.write_bytes(bomb)
    with pytest.raises(ValueError, match="not a posterior"):
        Posterior.load(path)
    for where in ("privacy", "model", "start", "format"):
        undisturbed.save(path)
        with h5py.File(path, "a") as tree:
            tree.attrs[where] = np.void(bomb)
        with pytest.raises(ValueError, match="posterior saved by dpfastmh"):
            Posterior.load(path)
    undisturbed.save(path)
    with h5py.File(path, "a") as tree:
        del tree["posterior/coefficients"]
        tree["posterior"].create_dataset("coefficients", data=np.void(bomb))
    with pytest.raises(ValueError, match="posterior saved by dpfastmh"):
        Posterior.load(path)
    assert not trap.exists()


def test_errors_about_cells_stay_on_the_screen(custodian: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal may quote a cell to the custodian; it leaves no file behind that could."""
    secret = "Dr-Jane-Roe"
    (custodian / "t.csv").write_text(f"a,b,y\n0.1,0.2,1\n{secret},0.2,0\n")
    before = {p.name for p in custodian.iterdir()}
    assert main([*FIT, "-o", "out", "--checkpoint", "c"]) == 1
    assert {p.name for p in custodian.iterdir()} == before


def test_the_library_logs_nothing() -> None:
    """No logging, and no printing but by the command line and its display."""
    package = Path(str(mh.__file__)).parent
    talkative = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"^\s*(import logging|from logging|print\()", path.read_text(), re.MULTILINE)
    }
    assert not {name for name in talkative if not name.startswith(("commands/", "cli.py", "display.py"))}


# -- a disk that is really full, and really read-only ----------------------------------------------------------------
@pytest.mark.slow
def test_on_a_small_and_on_a_read_only_file_system(tmp_path: Path, undisturbed: Posterior) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True)
    assert made.returncode == 0, "this test needs the right to mount a tmpfs"
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CheckpointWarning)
            assert same(crashing.fit(mount / "c"), undisturbed)
            assert same(resume(mount / "c", X, Y), undisturbed)
        assert any("no space left on device" in str(warning.message) for warning in caught)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        with pytest.raises((OSError, CheckpointError), match=r"read-only|no permission"):
            crashing.fit(mount / "d")
    finally:
        subprocess.run(["umount", str(mount)], check=True)


# -- with a ledger ---------------------------------------------------------------------------------------------------
def test_a_ledger_waits_for_a_stopped_run(tmp_path: Path, undisturbed: Posterior) -> None:
    """The reservation outlives the process; what the resumed run did not spend comes back when it ends, once."""
    url, path = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "c"
    ledger = mh.Ledger.create(url, "t", mh.Budget(20.0, 1e-4))
    options: dict[str, Any] = {"budget": BUDGET, "seed": 17, "settings": crashing.SETTINGS, "draws": 600}
    like = mh.Ledger.create(f"sqlite:///{tmp_path}/like.db", "t", mh.Budget(20.0, 1e-4))
    whole = sample(MODEL, X, Y, ledger=like, **options)
    with pytest.raises(KeyboardInterrupt):
        sample(MODEL, X, Y, ledger=ledger, checkpoint=path, progress=interrupt_at("main", 2), **options)
    held = mh.Ledger(url, "t").standing().taken
    assert held > 0.0
    with pytest.raises(CheckpointError, match="has its budget from the ledger's data set 't': resume it with the same"):
        resume(path, X, Y)
    other = mh.Ledger.create(f"sqlite:///{tmp_path}/other.db", "t", mh.Budget(20.0, 1e-4))
    with pytest.raises(ValueError, match="knows no run"):
        resume(path, X, Y, ledger=other)
    assert same(resume(path, X, Y, ledger=mh.Ledger(url, "t")), whole)
    taken = mh.Ledger(url, "t").standing().taken
    assert like.standing().taken == taken < held
    assert same(resume(path, ledger=mh.Ledger(url, "t")), whole)
    assert mh.Ledger(url, "t").standing().taken == taken
    assert mh.Ledger(url, "t").verify() == []


def test_a_ledger_gets_back_what_a_dead_run_had_not_paid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, path = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "c"
    ledger = mh.Ledger.create(url, "t", mh.Budget(20.0, 1e-4))
    with pytest.raises(KeyboardInterrupt):
        sample(MODEL, X, Y, budget=BUDGET, ledger=ledger, checkpoint=path, progress=interrupt_at("main", 2))
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    assert main(["ledger", "recover", "--ledger", url, "--dataset", "t", "--checkpoint", str(path)]) == 0
    assert not path.exists()
    with pytest.raises(ValueError, match="is recovered in the ledger: it cannot go on"):
        resume(copy, X, Y, ledger=mh.Ledger(url, "t"))
    assert "its checkpoint is worth nothing now" in capsys.readouterr().out


def test_results_of_a_run_that_was_ended_at_less_than_it_spent_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the stopped run's checkpoint goes on to the end elsewhere, out of the ledger's sight, while the run is
    recovered from the original. What it put out was not paid for in full: its finished checkpoint gives nothing out."""
    monkeypatch.setattr("dpfastmh.sampling.CHUNK_SECONDS", 1e-3)  # many chunks, and a stop among them
    url, path, copy = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "c", tmp_path / "copy"
    ledger = mh.Ledger.create(url, "t", mh.Budget(20.0, 1e-4))
    options: dict[str, Any] = {"budget": BUDGET, "settings": crashing.SETTINGS, "ledger": ledger}
    with pytest.raises(KeyboardInterrupt):
        sample(MODEL, X, Y, checkpoint=path, progress=interrupt_at("main", 2), **options)
    stopped = recorded(path)
    for file in tmp_path.glob("ledger.db*"):
        shutil.copy(file, tmp_path / file.name.replace("ledger", "elsewhere"))
    shutil.copy(path, copy)
    resume(copy, X, Y, ledger=mh.Ledger(f"sqlite:///{tmp_path}/elsewhere.db", "t"))
    assert recorded(copy).charged > stopped.charged
    mh.Ledger(url, "t").recover(stopped.run_id, stopped.charged, stopped.alpha)
    with pytest.raises(ValueError, match="was ended at less than it spent"):
        resume(copy, ledger=mh.Ledger(url, "t"))


@pytest.mark.parametrize("kept", [True, False], ids=["ledger", "none"])
def test_a_settled_run_leaves_no_checkpoint_that_is_out_of_date(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovering from it would give back what the run has spent. Without a ledger it does no harm."""
    save = checkpoints.Keeper.save

    def last_one_fails(self: Any, phase: str, *state: Any) -> None:
        if phase == checkpoints.FINISHED:
            self.trouble = "the disk is full"
            raise outputs.OutputError(self.trouble)
        save(self, phase, *state)

    monkeypatch.setattr(checkpoints.Keeper, "save", last_one_fails)
    path = tmp_path / "c"
    ledger = mh.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", "t", mh.Budget(20.0, 1e-4)) if kept else None
    with pytest.warns(checkpoints.CheckpointWarning, match="disk is full"):
        sample(MODEL, X, Y, budget=BUDGET, settings=crashing.SETTINGS, draws=100, checkpoint=path, ledger=ledger)
    assert path.exists() is not kept
