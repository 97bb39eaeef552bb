"""requirements.lock pins everything that pyproject.toml asks for, with hashes, and names no place to get it from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PINNED = re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK, re.MULTILINE)


def asked_for() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        listed += extra
    return [Requirement(text) for text in listed]


def test_everything_asked_for_is_locked_at_a_version_that_will_do() -> None:
    for wanted in asked_for():
        versions = [version for name, version in PINNED if name == canonicalize_name(wanted.name)]
        assert versions, f"{wanted.name} is not in requirements.lock: run make lock"
        assert all(version in wanted.specifier for version in versions), f"{wanted}: run make lock"


def test_every_pin_has_hashes_and_no_place_is_named() -> None:
    entries = re.split(r"^(?=[a-z0-9-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) == len(PINNED) > 50
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry[:60]
    assert not re.search(r"://|--(extra-)?index-url|--find-links| @ ", LOCK)
