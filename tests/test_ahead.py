"""The loop compiled by a second process: it must be the one that a fit calls, and no fit may depend on it."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dpfastmh as mh
from dpfastmh.steps import ahead
from dpfastmh.steps.compiled import SHIPPED

MODEL = mh.LogisticRegression(mh.Box(a=(-1, 1), b=(-1, 1)))


def fit() -> None:
    rng = np.random.default_rng(0)
    table = {"a": rng.uniform(-1, 1, 5000), "b": rng.uniform(-1, 1, 5000), "y": rng.integers(0, 2, 5000)}
    mh.sample(MODEL, table, target="y", budget=mh.Budget(8, 1e-6), seed=1)


def test_the_second_process_compiles_what_a_fit_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(pickle.dumps(MODEL))))
    ahead.main()
    before = set(SHIPPED.advance.signatures)
    fit()
    assert set(SHIPPED.advance.signatures) == before


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "import time; time.sleep(60)"])
def test_a_process_that_fails_or_hangs_costs_nothing(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return genuine([*command[:-1], program], **options)  # type: ignore[call-overload, no-any-return]

    genuine = subprocess.Popen
    monkeypatch.setattr(ahead, "known", lambda loop: False)
    monkeypatch.setattr(ahead, "processors", lambda: 2)
    monkeypatch.setattr(ahead, "LONGEST", 0.5)
    monkeypatch.setattr(ahead.subprocess, "Popen", start)
    ahead.begin(MODEL)
    began = time.monotonic()
    fit()
    assert not ahead._processes
    assert time.monotonic() - began < 50.0  # never the sleeper's minute


def test_a_process_that_cannot_be_made_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "known", lambda loop: False)
    monkeypatch.setattr(ahead, "processors", lambda: 2)
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    assert not ahead.begin(MODEL)


def test_nothing_is_begun_where_it_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead.subprocess, "Popen", lambda *_, **__: pytest.fail("begun"))
    monkeypatch.setattr(ahead, "known", lambda loop: True)
    assert not ahead.begin(MODEL)
    monkeypatch.setattr(ahead, "known", lambda loop: False)
    monkeypatch.setattr(ahead, "processors", lambda: 1)
    assert not ahead.begin(MODEL)


def test_known_is_what_was_compiled_since_the_source_changed(tmp_path: Path) -> None:
    folder, source = tmp_path / "cache", tmp_path / "loop.py"
    folder.mkdir()
    source.write_text("")
    code = SimpleNamespace(co_filename=str(source))
    loop = SimpleNamespace(
        stats=SimpleNamespace(cache_path=str(folder)),
        py_func=SimpleNamespace(__qualname__="make.<locals>.run", __code__=code),
    )
    assert not ahead.known(loop)
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    kept = folder / f"loop.make.locals.run-7.{version}.nbi"
    kept.write_text("")
    assert ahead.known(loop)
    os.utime(kept, (1, 1))
    assert not ahead.known(loop)
    loop.stats.cache_path = None
    assert ahead.known(loop)


@pytest.mark.slow
def test_a_first_fit_finds_the_loop_that_the_second_process_left(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_ahead as t\n"
        "t.ahead.processors = lambda: 2\n"
        "assert not t.ahead.known(t.SHIPPED.advance) and t.ahead.begin(t.MODEL)\n"
        "t.fit()\n"
        "hits, misses = t.SHIPPED.advance.stats.cache_hits, t.SHIPPED.advance.stats.cache_misses\n"
        "assert (sum(hits.values()), sum(misses.values())) == (1, 0), (hits, misses)\n"
        "assert t.ahead.known(t.SHIPPED.advance) and not t.ahead.begin(t.MODEL)\n"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent)]
    subprocess.run(command, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, check=True, timeout=300)
