"""Rows in files and on a cluster, up to N = 10⁸: ``run.py --only rows [--rows N]``; 15 minutes, 10 GB of disk.

The table is made and deleted here: Parquet of nine float32 features and a target of two classes, ten million rows a
file. Nine features and the intercept are the ten columns of a row, 4 GB at N = 10⁸. *Cold* means that the kernel was
told to forget the files' pages (``posix_fadvise``), *warm* that they have just been read. The sequential read that sums
are compared with is one thread's, from the beginning to the end of both files, in the same state; what as many threads
as sums have can read is printed beside it. Sums on a cluster are taken of ten million rows at most.

Memory and whole runs are measured in processes of their own: ``rows.py --one WHAT FOLDER``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from measure import Row, cpu_microseconds, interleaved, wall_seconds

PART = "rows"
COLUMNS = 9
FILE_ROWS = 10_000_000
LARGEST = 100_000_000
CLUSTER_ROWS = 10_000_000


def results(quick: bool) -> Iterator[Row]:
    largest = 1_000_000 if quick else LARGEST
    smaller = [n for n in (10_000, 100_000, 1_000_000, 10_000_000) if n < largest]
    if 100_000 not in smaller:
        raise SystemExit("the steps of a table of 100,000 rows are what others are compared with: give more rows")
    with tempfile.TemporaryDirectory(prefix="dpfastmh-rows-", dir=os.environ.get("DPFASTMH_BENCH_DIR")) as where:
        home = Path(where)
        yield from _small_sizes(home, smaller)
        yield from _largest(home, largest, quick)
        shutil.rmtree(home / "rows")
        yield from _cluster(home, 200_000 if quick else min(largest, CLUSTER_ROWS))


def _name(n: int) -> str:
    return f"N={n:.0e}".replace("e+0", "e").replace("e+", "e")


# -- data --------------------------------------------------------------------------------------------------------------
def make_table(folder: Path, n: int, files: int | None = None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rng, theta = np.random.default_rng(1), np.linspace(-0.5, 0.5, COLUMNS).astype(np.float32)
    each = FILE_ROWS if files is None else -(-n // files)
    for number, first in enumerate(range(0, n, each)):
        rows, writer = min(each, n - first), None
        for start in range(0, rows, 1 << 18):
            x = rng.random((min(1 << 18, rows - start), COLUMNS), dtype=np.float32) * 2 - 1
            y = (rng.random(len(x)) < 1 / (1 + np.exp(-(x @ theta)))).astype(np.int8)
            part = pa.table({f"x{j}": x[:, j] for j in range(COLUMNS)} | {"y": y})
            if writer is None:
                writer = pq.ParquetWriter(
                    folder / f"{number:03}.parquet", part.schema, compression="none", use_dictionary=False
                )
            writer.write_table(part)
        assert writer is not None
        writer.close()


def model_of() -> object:
    import dpfastmh as mh

    return mh.LogisticRegression(mh.Box({f"x{j}": (-1.0, 1.0) for j in range(COLUMNS)}))


def opened(folder: Path) -> object:
    from dpfastmh.data.mapped import MappedRows, projection_of

    model = model_of()
    return MappedRows(folder, model, projection_of(model, "y"))


# -- one process each --------------------------------------------------------------------------------------------------
def status(key: str) -> float:
    return int(re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024  # type: ignore[index]


def one(what: str, home: str, engine: str = "mapped") -> None:
    """Run in a process of its own; prints seconds and MB above the bare interpreter."""
    bare = status("VmRSS")
    import dpfastmh as mh
    from dpfastmh.planning import BudgetTooSmall

    folder, model = Path(home), model_of()
    began = time.perf_counter()
    facts: dict[str, float] = {}
    if what == "ingest":
        mh.ingest(model, folder / "table", folder / "rows", target="y")
    else:
        budget = mh.Budget(1.0, 1e-9)
        try:
            found = mh.sample(model, folder / "rows", target="y", engine=engine, budget=budget)
            facts = {"steps": found.privacy.steps, "effective": min(row.ess for row in found.summary())}
        except BudgetTooSmall:  # of ten thousand rows it now and then is, after the noisy start
            facts = {"steps": 0}
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "above": status("VmHWM") - bare} | facts))


def alone(what: str, home: Path, engine: str = "mapped") -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", what, str(home), engine], check=True, capture_output=True, text=True
    )
    return dict(json.loads(done.stdout))


# -- what is measured --------------------------------------------------------------------------------------------------
def _small_sizes(home: Path, sizes: list[int]) -> Iterator[Row]:
    for n in sizes:
        make_table(home / "table", n)
        alone("ingest", home)
        for engine in ("memory", "mapped"):
            alone("fit", home, engine)  # compiled
            runs = [alone("fit", home, engine) for _ in range(3 if n < 10_000_000 else 1)]
            done = [run for run in runs if run["steps"]]
            steps = ", ".join(f"{run['steps']:,.0f}" for run in done)
            note = f"{steps} steps, {runs[0]['above']:.0f} MB above the interpreter"
            if len(done) < len(runs):
                note += f"; the budget was too small for {len(runs) - len(done)} of {len(runs)} runs"
            seconds = median(run["seconds"] for run in done or runs)
            yield Row(PART, f"{_name(n)}: private fit at ε=1, {engine}", seconds, "s", "", note)
        if n == 100_000:
            shutil.copytree(home / "rows", home / "small")
        shutil.rmtree(home / "rows")


def _largest(home: Path, n: int, quick: bool) -> Iterator[Row]:
    make_table(home / "table", n)
    found = alone("ingest", home)
    size = (home / "rows" / "x.bin").stat().st_size + (home / "rows" / "y.bin").stat().st_size
    note = f"{found['seconds']:.0f} s, {size / 1e9:.1f} GB, {found['above']:.0f} MB above the interpreter"
    yield Row(PART, f"{_name(n)} × 10: ingest of Parquet", n / found["seconds"] / 1e6, "Mrows/s", "", note)
    shutil.rmtree(home / "table")
    yield from _sums(home / "rows", n, size, 3)
    _forget(home / "rows")
    found = alone("fit", home)
    note = f"{found['steps']:,.0f} steps, {found['effective']:.0f} effective draws, from cold files"
    yield Row(PART, f"{_name(n)}: private fit at ε=1, mapped", found["seconds"], "s", "<= 300", note)
    yield Row(PART, f"{_name(n)}: memory of that above the interpreter", found["above"], "MB", "<= 1024")
    yield from _steps(home, n, 5 if quick else 9)


def _forget(folder: Path) -> None:
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(folder: Path) -> None:
    """The whole of both files, by as many threads as sums use, which ask the disk for as much ahead."""
    jobs: list[tuple[int, int, int]] = []
    step = 8 << 20
    files = [os.open(folder / name, os.O_RDONLY) for name in ("x.bin", "y.bin")]
    for file in files:
        size = os.fstat(file).st_size
        jobs += [(file, start, min(step, size - start)) for start in range(0, size, step)]

    def read(job: tuple[int, int, int]) -> None:
        file, start, size = job
        os.posix_fadvise(file, start + 4 * step, step, os.POSIX_FADV_WILLNEED)
        held = bytearray(min(size, 655_360))
        for at in range(start, start + size, len(held)):
            os.preadv(file, [memoryview(held)[: min(len(held), start + size - at)]], at)

    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        list(pool.map(read, jobs))
    for file in files:
        os.close(file)


def _read_in_order(folder: Path) -> None:
    """Both files from the beginning to the end, by one thread."""
    held = memoryview(bytearray(1 << 20))
    for name in ("x.bin", "y.bin"):
        with open(folder / name, "rb", buffering=0) as file:
            while file.readinto(held):
                pass


def _sums(folder: Path, n: int, size: int, repeats: int) -> Iterator[Row]:
    from dpfastmh.steps.reference import integer_sums

    rows, model = opened(folder), model_of()
    point = np.linspace(-0.4, 0.5, COLUMNS + 1)
    integer_sums(model, rows, point, order=1)  # type: ignore[arg-type]

    def cold(work: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            _forget(folder)
            return wall_seconds(work)

        return run

    jobs: dict[str, Callable[[], object]] = {
        "read": lambda: _read_in_order(folder),
        "threads": lambda: _read(folder),
        "G": lambda: integer_sums(model, rows, point, order=1),  # type: ignore[arg-type]
        "G and H": lambda: integer_sums(model, rows, point, order=2),  # type: ignore[arg-type]
    }
    for state in ("cold", "warm"):
        if state == "warm":
            _read(folder)
        timed = {
            name: cold(work) if state == "cold" else (lambda work=work: wall_seconds(work))  # type: ignore[misc]
            for name, work in jobs.items()
        }
        times = {name: median(found) for name, found in interleaved(timed, repeats).items()}
        for name in ("G", "G and H"):
            share = times["read"] / times[name]
            rates = [size / times[one] / 1e9 for one in (name, "read", "threads")]
            note = (
                f"{times[name]:.2f} s, {rates[0]:.2f} GB/s; reading {rates[1]:.2f} GB/s, by threads {rates[2]:.2f} GB/s"
            )
            yield Row(
                PART, f"{_name(n)}: sums {name}, {state}: share of the sequential read", share, "×", ">= 0.6", note
            )


def _steps(home: Path, n: int, repeats: int) -> Iterator[Row]:
    """Steps once the passes are done: processor time of the chain's thread, and wall-clock time."""
    import dpfastmh as mh
    from dpfastmh.steps.reference import mode

    model = model_of()
    samplers = {}
    for name, folder in (("1e5", home / "small"), ("all", home / "rows")):
        rows = opened(folder)
        centre, hessian = mode(model, rows, steps=6)  # type: ignore[arg-type]
        method = mh.DPFastMH(mh.Coordinates(1.0 / np.sqrt(np.diag(hessian))), laziness=0.25)
        sampler = method.on(model, rows, reference=centre)  # type: ignore[arg-type]
        samplers[name] = sampler, sampler.init(centre)
        sampler.run(samplers[name][1], 100_000, thin=100)
    steps = 1_000_000
    walls: dict[str, list[float]] = {name: [] for name in samplers}

    def timed(name: str) -> float:
        sampler, state = samplers[name]
        began = time.perf_counter()
        found = cpu_microseconds(lambda: sampler.run(state, steps, thin=100), steps)[0]
        walls[name].append((time.perf_counter() - began) / steps * 1e6)
        return found

    times = interleaved({name: (lambda name=name: timed(name)) for name in samplers}, repeats)  # type: ignore[misc]
    small, large = median(times["1e5"]), median(times["all"])
    wall = median(walls["all"]), median(walls["1e5"])
    note = f"{large:.3f} and {small:.3f} µs of processor time; wall-clock {wall[0]:.3f} and {wall[1]:.3f}"
    yield Row(
        PART, f"{_name(n)} over N=1e5, mapped: a step once the passes are done", large / small, "×", "<= 1.5", note
    )


# -- a cluster of two workers ------------------------------------------------------------------------------------------
def _cluster(home: Path, n: int) -> Iterator[Row]:
    from distributed import Client, LocalCluster

    import dpfastmh as mh
    from dpfastmh.steps.reference import integer_sums

    model = model_of()
    make_table(home / "table", n, files=10)
    point = np.linspace(-0.4, 0.5, COLUMNS + 1)
    times: dict[tuple[str, int], float] = {}
    worked: dict[tuple[str, int], list[float]] = {}
    for workers in (1, 2):
        with (
            LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
            Client(cluster) as client,
        ):
            rows = mh.DaskRows(client, home / "table", model, target="y")  # type: ignore[arg-type]
            for order, name in ((1, "G"), (2, "G and H")):
                work = partial(integer_sums, model, rows, point, order=order)  # type: ignore[arg-type]
                work()
                before = client.run(time.process_time)
                times[name, workers] = median(wall_seconds(work) for _ in range(9))
                after = client.run(time.process_time)
                worked[name, workers] = [(after[one] - before[one]) / 9 for one in after]
            if workers == 2:
                yield from _cluster_steps(model, rows, home / "table")
    for name, target in (("G", ""), ("G and H", ">= 1.6")):
        one, two = times[name, 1], times[name, 2]
        busy = " and ".join(f"{seconds:.3f}" for seconds in worked[name, 2])
        note = f"{one:.3f} and {two:.3f} s; of processor time {worked[name, 1][0]:.3f} s, and {busy} s"
        yield Row(PART, f"{_name(n)}: sums {name}, two workers over one", one / two, "×", target, note)


def _cluster_steps(model: object, rows: object, table: Path) -> Iterator[Row]:
    import dpfastmh as mh
    from dpfastmh.data.loading import load
    from dpfastmh.steps.reference import mode

    held = load(model, table, target="y").rows  # type: ignore[arg-type]
    centre, hessian = mode(model, held, steps=6)  # type: ignore[arg-type]
    sd = 1.0 / np.sqrt(np.diag(hessian))
    for what, method, steps, first in (
        ("second order", mh.DPFastMH(mh.Coordinates(sd), laziness=0.25), 1_000_000, 200_000),
        ("minibatches of about 60 rows", mh.TunaMH(mh.RandomWalk(1e-8), lam=60.0), 100_000, 50_000),
    ):
        chains, reference = {}, centre if what == "second order" else None
        for name, source in (("memory", held), ("dask", rows)):
            sampler = method.on(model, source, reference=reference)  # type: ignore[arg-type]
            state = sampler.init(centre)
            sampler.run(state, first, thin=100)  # until bulks are as large as they become
            chains[name] = partial(wall_seconds, partial(sampler.run, state, steps, thin=100))
        found = {name: median(took) for name, took in interleaved(chains, 5).items()}
        note = ", ".join(f"{name} {steps / took:,.0f} steps/s" for name, took in found.items())
        yield Row(PART, f"two workers over memory: {what}", found["dask"] / found["memory"], "×", "<= 2", note)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        raise SystemExit("asked for by run.py --only rows")
