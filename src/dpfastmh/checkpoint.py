"""Checkpoints: a run's state in one file, so that a crash costs neither draws nor budget. **The file is a secret.**

A checkpoint holds what decides the rest of a run: the random streams with their keys, the rows drawn ahead, where the
chains stand with the sums they remember, what has been paid, and the draws released so far. From the moment the first
one with chains in it is written, everything the run will put out is a fixed function of the table and of that file. So
a resumed run is the same run, evaluated once: it costs nothing more, and the draws are the same to the last bit.
Whoever reads the file can work out which coins were thrown, and with that much about single records: it belongs where
the table is. A finished checkpoint holds released numbers only.

*Phases.* ``begun``: paid for nothing yet, or lost in the search for a start; cannot be resumed, because the noise of
the releases there is not ours to repeat. ``opened``: the start is found and the chains stand on it. ``main``: chains
on their way. ``finished``: all that is left is to look at the draws.

*Format.* One line that names it, the length of a JSON head, the head, the arrays it lists one after another, and the
SHA-256 of all that. Reading it runs no code. The hash finds damage; it is no seal against whoever may write the file.

*Locks.* A run holds ``.NAME.lock`` beside the file for as long as it lives, whatever ends it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dpfastmh import __version__
from dpfastmh.outputs import OutputError, remove_unfinished, replace_file

if TYPE_CHECKING:
    from dpfastmh.models import Model
    from dpfastmh.privacy.boundary import Secret

__all__ = ["Checkpoint", "CheckpointError", "CheckpointWarning", "Contents", "Keeper", "Recorded", "read", "recorded"]

NAME = b"dpfastmh checkpoint "
MAGIC = NAME + b"1\n"
HASH = 32  # bytes at the end
KINDS = ("float64", "int64", "uint64", "uint8")  # of arrays
BEGUN, OPENED, MAIN, FINISHED = "begun", "opened", "main", "finished"
PHASES = (BEGUN, OPENED, MAIN, FINISHED)
Arrays = dict[str, npt.NDArray[Any]]
Charges = list[tuple[str, Fraction, int]]
T = TypeVar("T")


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, read or gone on from. One line: which, why, what to do."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the run goes on without it."""


class Contents(NamedTuple):
    """What a file holds: a head of plain JSON, and arrays by name."""

    head: dict[str, Any]
    arrays: Arrays


class Recorded(NamedTuple):
    """What others may want to know of a run, from its checkpoint."""

    run_id: str
    charged: Fraction  # Rényi divergence paid for when the file was written; the run may have gone on since
    alpha: float  # its order
    finished: bool  # then ``charged`` is all that the run ever spent
    phase: str


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a run writes its checkpoint; ``notes`` are carried along for whoever resumes it."""

    path: str | os.PathLike[str]
    every: float = 60.0
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.every, int | float) and 0.0 < self.every < math.inf):
            raise CheckpointError(f"every={self.every!r}: the seconds between checkpoints must be above 0")


# -- the format ------------------------------------------------------------------------------------------------------
def encode(contents: Contents) -> bytes:
    """The file as bytes."""
    listed = [[name, array.dtype.name, list(array.shape)] for name, array in contents.arrays.items()]
    head = json.dumps(contents.head | {"arrays": listed}, ensure_ascii=False).encode()
    parts = [MAGIC, len(head).to_bytes(8, "little"), head]
    for name, array in contents.arrays.items():
        if array.dtype.name not in KINDS:
            raise CheckpointError(f"{name} is of {array.dtype}: a checkpoint has no place for it")
        parts.append(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    body = b"".join(parts)
    return body + hashlib.sha256(body).digest()


def decode(content: bytes, what: str = "the checkpoint") -> Contents:
    """``encode`` backwards; CheckpointError for whatever ``encode`` would not have written."""
    if not content.startswith(MAGIC):
        if content.startswith(NAME):
            raise CheckpointError(f"{what} has another format: go on with the version of dpfastmh that wrote it")
        raise CheckpointError(f"{what} is not a checkpoint of dpfastmh")
    body, seal = content[:-HASH], content[-HASH:]
    if hashlib.sha256(body).digest() != seal:
        raise CheckpointError(f"{what} is damaged: it was cut short or changed after it was written")
    with damage_is_one_line(what):
        start = len(MAGIC) + 8
        length = int.from_bytes(body[len(MAGIC) : start], "little")
        head = json.loads(body[start : start + length])
        position, arrays = start + length, {}
        for name, kind, shape in head.pop("arrays"):
            if kind not in KINDS or not all(type(size) is int and size >= 0 for size in shape):
                raise ValueError(f"an array of {kind!r}")
            size = math.prod(shape) * np.dtype(kind).itemsize
            if position + size > len(body):
                raise ValueError("an array is cut short")
            found = np.frombuffer(body, np.dtype(kind).newbyteorder("<"), math.prod(shape), position)
            arrays[name] = found.astype(kind).reshape(shape)
            position += size
        if position != len(body) or head["phase"] not in PHASES:
            raise ValueError("its parts do not add up")
        return Contents(head, arrays)


@contextmanager
def damage_is_one_line(what: str) -> Iterator[None]:
    """Whatever goes wrong while a file's contents are taken apart is the file's fault."""
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{what} is damaged or not a checkpoint of a run: {reason}") from None


def read(path: str | os.PathLike[str]) -> Contents:
    """What a checkpoint holds. A file that is missing or forbidden is an OSError of its own."""
    return decode(Path(path).read_bytes(), str(path))


def recorded(path: str | os.PathLike[str]) -> Recorded:
    """The run of a checkpoint and what it had paid when the file was written; asks for no lock."""
    head = read(path).head
    with damage_is_one_line(str(path)):
        paid = [*head["filter"]["charges"], *(charge for chain in head["chains"] for charge in chain["charges"])]
        charged = sum((cost for _, cost, _ in charges_in(paid)), Fraction(0))
        run_id, alpha, phase = head["run_id"], float(head["filter"]["alpha"]), head["phase"]
        if not isinstance(run_id, str) or not alpha > 1.0:
            raise ValueError("it does not say which run it is of")
        return Recorded(run_id, charged, alpha, phase == FINISHED, phase)


# -- plain forms -----------------------------------------------------------------------------------------------------
def charges_out(charges: Charges) -> list[list[Any]]:
    """Exact fractions as text."""
    return [[what, f"{cost.numerator:x}/{cost.denominator:x}", count] for what, cost, count in charges]


def charges_in(charges: Sequence[Any]) -> Charges:
    found = []
    for what, cost, count in charges:
        numerator, denominator = (int(part, 16) for part in cost.split("/"))
        if numerator < 0 or denominator < 1:
            raise ValueError("a charge is negative")
        found.append((str(what), Fraction(numerator, denominator), int(count)))
    return found


def secret_out(secret: Secret, prefix: str) -> Arrays:
    """A secret's arrays, each under its own name: the one place where they go into a file."""
    return {f"{prefix} {name}": value for name, value in secret.open().items()}


def secret_in(arrays: Arrays, prefix: str) -> Secret:
    from dpfastmh.privacy.boundary import Secret

    return Secret({k.removeprefix(f"{prefix} "): v for k, v in arrays.items() if k.startswith(f"{prefix} ")})


def plain(item: Any) -> dict[str, Any]:
    """A dataclass of numbers, tuples and arrays as JSON takes it."""
    values = {part.name: getattr(item, part.name) for part in fields(item)}
    return {name: value if value is None else np.asarray(value).tolist() for name, value in values.items()}


def from_plain(kind: Callable[..., T], values: Mapping[str, Any], listed: Callable[[Any], Any] = np.array) -> T:
    """``plain`` backwards; ``listed`` makes what the class holds of a list."""
    return kind(**{name: listed(value) if isinstance(value, list) else value for name, value in values.items()})


def built() -> dict[str, str]:
    """What has to be the same for a run to go on to the bit: this library's sources, and those that draw numbers."""
    import numba
    import randomgen

    from dpfastmh.steps.dispatch import source_stamp

    return {
        "dpfastmh": __version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
        "randomgen": randomgen.__version__,
        "sources": f"{source_stamp():x}",
    }


def check_built(found: Mapping[str, str], what: str) -> None:
    """Refuse a checkpoint of other versions: the run would not be the same run."""
    for name, version in built().items():
        held = found[name]
        if held != version and name == "sources":
            raise CheckpointError(f"{what} was written by other sources of dpfastmh {__version__}: go on with those")
        if held != version:
            raise CheckpointError(f"{what} was written with {name} {held}, and this is {version}: install that one")


def model_mark(model: Model) -> str:
    """A hash of everything about a model that a run depends on. Of a user's functions it is the code that counts, not
    what the code refers to."""
    prior = [part.tolist() for part in model.prior_table]
    box = None if model.parameter_box is None else [np.asarray(edge).tolist() for edge in model.parameter_box]
    functions = [_code(function) for function in getattr(model, "functions", ())]
    text = repr((type(model).__name__, model.parameters, model.temperature, prior, box, functions, _numbers(model)))
    return hashlib.sha256(text.encode()).hexdigest()


def _numbers(model: Model) -> str:
    """The model as the compiled loop sees it; for a user's own that is a class of its own in every process."""

    def flat(item: Any) -> Any:
        if isinstance(item, tuple):
            name = type(item).__name__ if model.shipped else ""
            return (name, *(flat(part) for part in item))
        return item.tolist() if isinstance(item, np.ndarray | np.generic) else item

    from dpfastmh.description import describe
    from dpfastmh.models import GLM

    return repr((flat(model.table()), describe(model) if isinstance(model, GLM) else None))


def _code(function: Any) -> str:
    code = getattr(getattr(function, "py_func", function), "__code__", None)
    return _of_code(code) if isinstance(code, CodeType) else repr(type(function))


def _of_code(code: CodeType) -> str:
    constants = [_of_code(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return repr((code.co_code, constants, code.co_names, code.co_varnames))


# -- the file of a run -----------------------------------------------------------------------------------------------
class Keeper:
    """Holds a run's checkpoint: its lock, and the writing."""

    def __init__(self, checkpoint: Checkpoint, run_id: str) -> None:
        self.checkpoint, self.run_id = checkpoint, run_id
        self.path = Path(checkpoint.path)
        self.phase = BEGUN
        self.trouble = ""  # why the last attempt to write failed
        self._lock: int | None = _locked(self.path)

    @classmethod
    def create(cls, checkpoint: Checkpoint) -> Keeper:
        """For a new run: the file must not be there yet. Call ``check_new`` earlier to find that out for free."""
        check_new(checkpoint.path)
        keeper = cls(checkpoint, secrets.token_hex(16))
        if keeper.path.exists():  # it came between the question and the lock
            keeper.close()
            check_new(checkpoint.path)
        remove_unfinished(keeper.path)
        return keeper

    @classmethod
    def reopen(cls, path: str | os.PathLike[str], every: float | None = None) -> tuple[Keeper, Contents]:
        """For a run that goes on; nobody else may be at it."""
        read(path)  # a file that is no checkpoint is none of our business: leave no lock beside it
        keeper = cls(Checkpoint(path), "")
        try:
            contents = read(path)
            with damage_is_one_line(str(path)):
                head = contents.head
                keeper.run_id, keeper.phase = str(head["run_id"]), head["phase"]
                keeper.checkpoint = Checkpoint(path, head["every"] if every is None else every, head["notes"])
            remove_unfinished(path)
        except BaseException:
            keeper.close()
            raise
        return keeper, contents

    def save(self, phase: str, head: Mapping[str, Any], arrays: Arrays) -> None:
        """Put a new state in the place of the old one; OutputError leaves the old one as it was."""
        whole = {
            "phase": phase,
            "run_id": self.run_id,
            "every": self.checkpoint.every,
            "notes": dict(self.checkpoint.notes),
            "built": built(),
            **head,
        }
        try:
            replace_file(self.path, encode(Contents(whole, arrays)), mode=0o600)
        except OutputError as error:
            self.trouble = str(error)
            raise
        self.phase, self.trouble = phase, ""

    def discard(self) -> None:
        """Remove a file that nobody can go on from."""
        with suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            with suppress(OSError):
                _lock_path(self.path).unlink()  # while it is still held
            os.close(self._lock)
            self._lock = None


def check_new(path: str | os.PathLike[str]) -> None:
    """Refuse a place where a new checkpoint cannot go, before anything is spent."""
    target = Path(path)
    if target.exists() or target.is_symlink():
        raise CheckpointError(
            f"{target} exists already: go on with dpfastmh resume {target}, or choose another file for a new run"
        )
    parent = target.absolute().parent
    if not parent.is_dir():
        raise CheckpointError(f"{target}: the folder {parent} does not exist, create it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CheckpointError(f"{target}: no permission to write in {parent}")


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _locked(path: Path) -> int:
    """An exclusive lock that ends with the process. It is on a file of its own, because the checkpoint is replaced."""
    try:
        import fcntl
    except ImportError:
        raise CheckpointError("checkpoints need file locks, which this system does not have") from None
    lock = _lock_path(path)
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OutputError(f"{path} cannot be locked ({(error.strerror or str(error)).lower()})") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle
        except FileNotFoundError:
            pass  # its last holder removed it between our two steps: try again
        except OSError:
            os.close(handle)
            raise CheckpointError(f"{path} is in use by another run: wait for it to end, or stop it") from None
        os.close(handle)
