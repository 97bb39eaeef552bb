"""Writing results so that they are there whole or not at all.

A run's budget is spent by the time its results are written, so nothing here may leave half a file behind or touch what
was there before: everything is written next to its destination, flushed to the disk, and put in place by one rename.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class OutputError(OSError):
    """A result that could not be written. One line: where, why, and that nothing was left behind."""


def check_new_folder(folder: str | os.PathLike[str]) -> Path:
    """Refuse a folder that could not be created later: call this before a budget is spent."""
    path = Path(folder)
    if path.exists() or path.is_symlink():
        raise OutputError(f"{path} exists already: choose another folder, results are never overwritten")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise OutputError(f"{path}: the folder {parent} does not exist, create it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: no permission to write in {parent}")
    return path


def check_room(folder: str | os.PathLike[str], size: int) -> None:
    """Refuse a folder whose disk has no room for this many bytes, or takes none: found out by writing them."""
    path = Path(folder)
    probe = _beside(path)
    try:
        _write(probe, bytes(size))
    except OSError as error:
        raise OutputError(
            f"{path} could not be written ({_reason(error)}): make room or choose another folder; nothing was spent"
        ) from None
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def create_folder(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> Path:
    """A new folder with these files, or an `OutputError` and no trace."""
    path = check_new_folder(folder)
    building = _beside(path)
    try:
        building.mkdir()
        for name, content in files.items():
            _write(building / name, content)
        sync_folder(building)
        check_new_folder(path)  # somebody may have made it meanwhile; a rename would replace an empty one
        os.rename(building, path)
        sync_folder(path.absolute().parent)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({_reason(error)}): nothing was left behind") from None
    finally:
        if building.exists():
            shutil.rmtree(building, ignore_errors=True)
    return path


def replace_file(path: str | os.PathLike[str], content: bytes, *, mode: int = 0o666) -> Path:
    """One file with this content, replacing what was there only once the new one is safely on the disk.

    ``mode`` is the new file's from the moment it exists, less what the process's umask takes away.
    """
    target = Path(path)
    building = _beside(target)
    try:
        _write(building, content, mode)
        os.replace(building, target)
        sync_folder(target.absolute().parent)
    except OSError as error:
        raise OutputError(f"{target} cannot be written ({_reason(error)}): nothing was changed") from None
    finally:
        building.unlink(missing_ok=True)
    return target


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove what an interrupted ``replace_file`` of this file left beside it; nobody else may be writing it."""
    target = Path(path)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        left.unlink(missing_ok=True)


def _write(path: Path, content: bytes, mode: int = 0o666) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush what a folder lists to the disk."""
    if os.name != "posix":
        return  # elsewhere folders cannot be opened to be flushed
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
