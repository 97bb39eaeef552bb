"""Random streams: secure by default, reproducible only by name.

Every stream is AES in counter mode. ``secure_streams`` keys it from the operating system and forgets the key;
``insecure_streams`` derives it from a seed, and whatever is made with it is marked *not private*. Proposals (public),
batch sizes and rows (private) and acceptance (private) come from separate streams, so that none can be inferred from
another and the same rows are drawn wherever they live.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np
from randomgen import AESCounter

if TYPE_CHECKING:
    from dpfastmh.steps.chain import Streams


def _streams(keys: list[int]) -> Streams:
    from dpfastmh.steps.chain import Streams

    return Streams(*(np.random.Generator(AESCounter(key=key)) for key in keys))


def secure_streams() -> Streams:
    """Four streams with independent 128-bit keys from the operating system."""
    return _streams([secrets.randbits(128) for _ in range(4)])


def insecure_streams(seed: int, chain: int = 0) -> Streams:
    """Four streams made from a seed. For tests and non-private work: whoever knows the seed knows every draw."""
    words = np.random.SeedSequence([seed, chain]).generate_state(8, np.uint64)
    return _streams([int(words[2 * k]) << 64 | int(words[2 * k + 1]) for k in range(4)])


def insecure_noise(seed: int, release: int) -> np.random.Generator:
    """Noise for the release of this number, made from a seed: **not private**."""
    return np.random.default_rng([seed, 2**32 + release])
