"""PRIVATE. Whose row is it: the rows that count of people who have several.

The first ``most`` rows of each unit, in the order of the table, are kept, the rest dropped. Whether a row is kept
depends on the rows of its own unit alone: replacing all rows of one unit by others changes nothing for anybody else,
which is what makes a unit a record of the privacy guarantee. The number of units is public; how many rows they hold is
not.

Memory is bounded: 12 bytes a unit for numbers and times, which stand for themselves, and 20 for text, whatever its
length, which is hashed to 128 bits (BLAKE2b under a fresh secret key): any two of n ids are taken for one with a
probability of n²/2¹²⁹, 10⁻²³ for 10⁸ units, far below what is set aside for rounding. Text ids count as they are
written: " 7" and "7" are two units.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfastmh.data.cells import MISSING
from dpfastmh.data.tables import Batch, TableError

Keys = npt.NDArray[Any]  # int64, or 16 bytes each
Counts = npt.NDArray[np.uint32]


class Units:
    """Counts the rows of each unit while batches go by.

    Sorted runs of (key, rows so far), each more than twice as long as the next one: a batch's new keys are a new run,
    and runs are merged like the digits of a counter, so that every key is moved a logarithmic number of times.
    """

    def __init__(self, column: str, most: int, text: bool) -> None:
        self.column, self.most, self.text = column, most, text
        self._runs: list[tuple[Keys, Counts]] = []
        self._kind: str | None = None
        self._key = secrets.token_bytes(32)

    @property
    def count(self) -> int:
        """Units seen so far."""
        return sum(len(keys) for keys, _ in self._runs)

    def keep(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which rows of the batch are among the first ``most`` of their unit."""
        keys, inverse = self._encode(batch)
        fresh = np.bincount(inverse, minlength=len(keys))
        before = self._seen(keys, fresh)
        order = np.argsort(inverse, kind="stable")
        rank = np.empty(len(inverse), np.int64)
        rank[order] = np.arange(len(inverse)) - np.repeat(np.cumsum(fresh) - fresh, fresh)
        return np.asarray(before[inverse] + rank < self.most)

    def _seen(self, keys: Keys, fresh: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Rows of each unit before this batch; ``fresh`` more are then added."""
        before = np.zeros(len(keys), np.int64)
        new = np.ones(len(keys), np.bool_)
        for run, counts in self._runs:
            place = np.minimum(np.searchsorted(run, keys), len(run) - 1)
            known = run[place] == keys
            before[known] = counts[place[known]]
            counts[place[known]] = np.minimum(before[known] + fresh[known], self.most)
            new &= ~known
        if new.any():
            self._runs.append((keys[new], np.minimum(fresh[new], self.most).astype(np.uint32)))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            (one, many), (other, more) = self._runs.pop(), self._runs.pop()
            joined, counted = np.concatenate([other, one]), np.concatenate([more, many])
            order = np.argsort(joined, kind="stable")
            self._runs.append((joined[order], counted[order]))
        return before

    def _encode(self, batch: Batch) -> tuple[Keys, npt.NDArray[np.int64]]:
        """The distinct keys of a batch, sorted, and each row's place among them."""
        import pyarrow as pa

        ids = batch.cells[self.column]
        if pa.types.is_dictionary(ids.type):
            ids = ids.dictionary_decode()
        ids, kind = _canonical(ids, f"{batch.where}: unit {self.column!r}")
        self._refuse_missing(ids, batch)
        if self._kind not in (None, kind):
            raise TableError(
                f"{batch.where}: unit {self.column!r} is {kind} here and {self._kind} before: write all ids alike"
            )
        self._kind = kind
        encoded = ids.dictionary_encode()
        distinct, codes = encoded.dictionary, encoded.indices.to_numpy()
        if pa.types.is_large_binary(distinct.type):
            digests = [hashlib.blake2b(one, digest_size=16, key=self._key).digest() for one in distinct.to_pylist()]
            keys = np.array(digests, dtype="S16")
        else:
            keys = distinct.to_numpy(zero_copy_only=False).view(np.int64)
        order = np.argsort(keys)
        place = np.empty(len(keys), np.int64)
        place[order] = np.arange(len(keys))
        return keys[order], place[codes]

    def _refuse_missing(self, ids: Any, batch: Batch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        missing = pc.is_null(ids, nan_is_null=True)
        if self.text:
            forms = pa.array([form.encode() for form in MISSING], pa.large_binary())
            missing = pc.or_(missing, pc.is_in(ids, value_set=forms))
        if pc.any(missing).as_py():
            row = batch.first + pc.index(missing, True).as_py() + 1
            raise TableError(
                f"{batch.where}: unit {self.column!r}, row {row}: missing: say whose row it is, or drop it"
            )


def _canonical(ids: Any, where: str) -> tuple[Any, str]:
    """Ids as int64, float64 or bytes, and what they are: within one table all must be of one kind."""
    import pyarrow as pa

    types, kind = pa.types, ids.type
    if types.is_boolean(kind):
        return ids.cast(pa.int8()).cast(pa.int64()), "boolean"
    if types.is_uint64(kind):
        return ids.view(pa.int64()), "uint64"
    if types.is_integer(kind):
        return ids.cast(pa.int64()), "an integer"
    if types.is_floating(kind):
        return pa.array(ids.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0), "a float"  # −0 is 0
    if types.is_temporal(kind) and not types.is_interval(kind):
        wide = pa.int32() if kind.bit_width == 32 else pa.int64()
        return ids.cast(wide).cast(pa.int64()), str(kind)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return ids.cast(pa.large_string()).cast(pa.large_binary()), "text"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return ids.cast(pa.large_binary()), "binary"
    if types.is_decimal(kind):
        return ids.cast(pa.large_string()).cast(pa.large_binary()), str(kind)
    if types.is_null(kind):
        return ids.cast(pa.int64()), "missing"
    raise TableError(f"{where} is of type {kind}: ids are numbers, text or times")
