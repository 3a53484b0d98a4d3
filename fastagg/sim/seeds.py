"""Random numbers keyed by what they are for, not by when they are drawn.

Every draw in a run comes from a generator made from (seed, stream, key...): the delay of client 7's third
dispatch is the same number whatever the other clients did before. So two methods with the same seed see the
same clients, the same delays and the same arrivals, training clients in another order (or several at once)
changes nothing, and a resumed run needs counters only, no generator states.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class _Hashed(ISeedSequence):
    """Seeds a bit generator with words that are random already: a seventh of the time of NumPy's own SeedSequence."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self._words[:n_words]


@lru_cache(maxsize=256)
def _stream(name: str) -> int:
    # crc32 rather than hash(): Python salts hash() of strings per process.
    return crc32(name.encode())


def generator(seed: int, stream: str, *key: int) -> np.random.Generator:
    """Return a fresh NumPy generator for ``stream`` (e.g. "delay") and ``key`` (e.g. client, dispatch number)."""
    numbers = (seed, _stream(stream), *key)
    digest = blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=32).digest()
    words: Any = _Hashed(np.frombuffer(digest, np.uint64))  # NumPy's stubs know no seed sequence but its own
    return np.random.Generator(np.random.PCG64(words))


def integer(seed: int, stream: str, *key: int) -> int:
    """Return a 31-bit seed for other libraries (torch.manual_seed, scikit-learn's random_state)."""
    return int(generator(seed, stream, *key).integers(2**31 - 1))
