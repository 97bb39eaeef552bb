"""Random streams: secure by default, reproducible only by name.

Every stream is AES in counter mode. ``secure_streams`` keys it from the operating system and forgets the key;
``insecure_streams`` derives it from a seed, and whatever is made with it is marked *not private*. Proposals (public),
batch sizes and rows (private) and acceptance (private) come from separate streams, so that none can be inferred from
another and the same rows are drawn wherever they live. The one place outside a running program where a stream's state
may be is a checkpoint, which is secret for that reason.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
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


_PARTS = {"state": np.uint8, "seed": np.uint64, "counter": np.uint64}  # AESCounter's buffer, round keys and counters
_BUFFER = 64  # bytes


def stream_state(stream: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
    """SECRET. Where a stream stands, key included: whoever holds this knows every number to come. For checkpoints."""
    found = stream.bit_generator.state
    rest = [found["s"]["offset"], found["has_uint32"], found["uinteger"]]
    return {name: np.array(found["s"][name], kind) for name, kind in _PARTS.items()} | {
        "rest": np.array(rest, np.int64)
    }


def restore_stream(stream: np.random.Generator, state: Mapping[str, npt.NDArray[Any]]) -> None:
    """Put a stream where ``stream_state`` found it; ValueError for what cannot be a state."""
    held: Any = stream.bit_generator.state
    for name, kind in _PARTS.items():
        if state[name].dtype != kind or state[name].shape != held["s"][name].shape:
            raise ValueError("the state of a random stream has another form")
        held["s"][name] = state[name].copy()
    offset, has_half, half = (int(part) for part in state["rest"])
    if not (0 <= offset <= _BUFFER and offset % 8 == 0 and has_half in (0, 1) and 0 <= half < 2**32):
        raise ValueError("the state of a random stream is out of range")
    held["s"]["offset"], held["has_uint32"], held["uinteger"] = offset, has_half, half
    stream.bit_generator.state = held
