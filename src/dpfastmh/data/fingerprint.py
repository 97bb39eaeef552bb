"""PRIVATE. A keyed fingerprint of a table, column by column: is it the one that a ledger knows under this name?

Every cell becomes a word that does not depend on the file's format: a number its single-precision value, a category its
text (a whole or true-or-false category its number), a missing cell a word of its own, whatever is filled in for it.
Words are scrambled and added up: how many there are, Σ s(w) and Σ s(w)² modulo 2⁶⁴ (``Cells``). A column's fingerprint
is a keyed hash of these three. So it depends neither on the order of rows nor on how they are parted, nor on the bounds
that a model declares, nor on other columns: the same table is known again as CSV or Parquet, sorted or not, ingested or
on a cluster, whichever of its columns a model reads. Sums of parts are added. What it does not notice is cells that
changed places within a column, and changes beyond single precision.

*Two columns that differ.* Their sums agree if Σ m_w s(w) = 0 for the differences m_w of how often each w occurs, and
Σ m_w s(w)² = 0. For a random s the first has a probability of 2^(v−64), 2^v being the largest power of two that divides
every m_w: 2⁻⁶⁴ for one cell that was mended, 2⁻⁴⁴ where a million cells (2²⁰ exactly, of each of two values) were
exchanged for each other. s is one fixed scrambler for everybody, not a secret one: the sums guard against mistakes, and
who sets out to make two tables that are taken for one can. That costs no privacy: what a ledger promises does not rest
on fingerprints.

*Why the key comes last.* Sums are taken where cells go by once: while a table is ingested, or on a cluster, years
before a ledger with a key of its own asks for them. They are kept beside the rows themselves (in a folder's manifest)
and are as secret. In the ledger there are hashes only.

The fingerprint depends on the records without noise. **It is not a release**: it belongs into the ledger, which is as
secret as the table. Who knows the key can test guesses of a whole column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Sums = dict[str, tuple[int, int, int]]  # of each column: cells, and two sums modulo 2⁶⁴
MISSING = np.uint64(0x7FC0_0000)  # no finite number in single precision has these bits
MASK = np.uint64(0x9E37_79B9_7F4A_7C15)  # so that no usual cell is a word of zeros
CHUNK = 16_384  # cells at a time: what is computed on the way stays in the cache


class Cells:
    """Adds up the cells of each column while they go by."""

    def __init__(self) -> None:
        self.sums: Sums = {}

    def __reduce__(self) -> Any:
        raise TypeError("a fingerprint under way cannot be pickled or copied: it depends on private records")

    def merge(self, sums: Mapping[str, Sequence[int]]) -> None:
        """Cells that were added up elsewhere."""
        for column, part in sums.items():
            held = self.sums.get(column, (0, 0, 0))
            self.sums[column] = (held[0] + part[0], (held[1] + part[1]) % 2**64, (held[2] + part[2]) % 2**64)

    def add_numbers(self, column: str, values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> None:
        """Cells of a column of numbers; those marked ``missing`` may hold anything."""
        for start in range(0, len(values), CHUNK):
            part = slice(start, start + CHUNK)
            with np.errstate(over="ignore", invalid="ignore"):
                single = np.asarray(values[part], dtype=np.float32) + np.float32(0.0)  # −0 is 0
            words = single.view(np.uint32).astype(np.uint64)
            if missing is not None:
                words[missing[part]] = MISSING
            self._add(column, words)

    def add_categories(
        self,
        column: str,
        categories: Sequence[str | int | bool],
        positions: npt.NDArray[np.int64],
        missing: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Cells of a column of categories, as positions among them."""
        known = np.array([self._word(category) for category in categories], dtype=np.uint64)
        for start in range(0, len(positions), CHUNK):
            part = slice(start, start + CHUNK)
            words = known[positions[part]]
            if missing is not None:
                words[missing[part]] = MISSING
            self._add(column, words)

    def add_arrays(self, x: Any, y: Any, names: Sequence[str]) -> None:
        """Records as arrays: the columns of x, by ``names`` or by number, and the target."""
        if hasattr(x, "keys"):
            for name in x.keys():  # noqa: SIM118 - of a data frame, only keys() is sure to mean its columns
                if not names or name in names:
                    self.add(str(name), np.asarray(x[name]))
        else:
            values = np.asarray(x)
            columns = values[:, None] if values.ndim == 1 else values
            for j in range(columns.shape[1]):
                self.add(names[j] if j < len(names) else f"column {j + 1}", columns[:, j])
        if y is not None:
            targets = np.asarray(y)
            for j, column in enumerate(targets.reshape(len(targets), -1).T):
                self.add(f"target {j + 1}", column)

    def add(self, column: str, values: npt.NDArray[Any]) -> None:
        """Cells as Python hands them over: numbers, or what is compared by its text."""
        if values.dtype.kind in "biuf":
            self.add_numbers(column, values)
            return
        distinct, positions = np.unique(values.astype(str), return_inverse=True)
        self.add_categories(column, [str(one) for one in distinct], positions)

    def _word(self, category: str | int | bool) -> int:
        if isinstance(category, str):
            return int.from_bytes(hashlib.blake2b(category.encode(), digest_size=8).digest(), "little")
        return int(np.float32(int(category)).view(np.uint32))

    def _add(self, column: str, words: Words) -> None:
        """Scramble each word (two rounds of multiply and shift) and add; all modulo 2⁶⁴."""
        words = words ^ MASK
        for shift, odd in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53)):
            words ^= words >> np.uint64(shift)
            words *= np.uint64(odd)
        words ^= words >> np.uint64(32)
        first = int(words.sum())
        words *= words
        self.merge({column: (words.size, first, int(words.sum()))})


class Fingerprint(Cells):
    """What a ledger with this key knows a table by."""

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self._key = key

    def digests(self) -> dict[str, str]:
        """The fingerprint of every column, in hexadecimal. For the ledger alone: not a release."""
        found = {}
        for column, (cells, first, second) in sorted(self.sums.items()):
            text = f"{cells} {first:x} {second:x} {column}".encode()
            found[column] = hashlib.blake2b(text, key=self._key, digest_size=16).hexdigest()
        return found
