"""What ledger tests share: a PostgreSQL server of their own, and processes that use a ledger at the same time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

USER = "postgres"


def postgres_programs() -> Path | None:
    """Where Debian's package, or the search path, has the server; None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if found:
        return found[0].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a server of our own on a socket in a temporary folder; it ends with the block."""
    programs = postgres_programs()
    assert programs is not None, "PostgreSQL is not installed: apt-get install postgresql"
    folder = Path(tempfile.mkdtemp(prefix="dpfastmh-pg-"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to be run by root
        shutil.chown(folder, USER, USER)
        as_user = ["runuser", "-u", USER, "--"]
    data, log = folder / "data", folder / "log"

    def call(*words: object) -> None:
        done = subprocess.run([*as_user, *map(str, words)], capture_output=True, text=True, cwd=folder, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        call(programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses='' -k {folder}"
        call(programs / "pg_ctl", "-D", data, "-l", log, "-w", "-t", "120", "-o", options, "start")
        try:
            yield f"postgresql://{USER}@/postgres?host={folder}"
        finally:
            call(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def script(text: str, *words: object) -> subprocess.Popen[str]:
    """A Python process of its own."""
    command = [sys.executable, "-c", text, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outputs(running: Sequence[subprocess.Popen[str]], timeout: float) -> list[str]:
    """What they printed; all must have ended well."""
    found = []
    for process in running:
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == 0, err
        found.append(out)
    return found
