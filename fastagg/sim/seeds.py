"""Random numbers that depend on their purpose, not on the time of the draw.

A random number depends only on the run's seed, on its stream and on its key. The stream is the name of a purpose, such
as "delay". The key is a tuple of integers, such as a client and the number of the client's dispatch. For example, the
draw for the delay of client 7's third dispatch is the same whatever the other clients did before. So two methods with
the same seed have the same clients and draw the same delays. The order in which clients are trained has no effect.
A checkpoint of a run has counters instead of generators. Importing this module imports no torch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from fastagg._build import native

if TYPE_CHECKING:
    import torch


class _HashSeed(ISeedSequence):
    """Seeds a bit generator with random words. This takes a seventh of the time of NumPy's SeedSequence."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        return self._words[:n_words]


_PACK = [struct.Struct(f"<{2 + keys}q").pack for keys in range(8)]


@lru_cache(maxsize=256)
def _stream(name: str) -> int:
    # crc32 rather than hash(): Python salts hash() of strings per process.
    return crc32(name.encode())


def words(seed: int, stream: str, *key: int) -> bytes:
    """Return the 32 bytes that seed the generator of (seed, stream, key). ``key`` has at most seven integers."""
    return blake2b(_PACK[len(key)](seed, _stream(stream), *key), digest_size=32).digest()


def generator(seed: int, stream: str, *key: int) -> np.random.Generator:
    """Return a fresh NumPy generator for ``stream`` (e.g. "delay") and ``key`` (e.g. client, dispatch number)."""
    hashed = _HashSeed(np.frombuffer(words(seed, stream, *key), np.uint64))
    # NumPy's type stubs accept only its own seed sequences
    return np.random.Generator(np.random.PCG64(hashed))  # type: ignore[arg-type]


# The next three functions build no generator, because building one takes longer than a draw.


def uniform(seed: int, stream: str, *key: int) -> float:
    """Return the same value as ``generator(seed, stream, *key).random()``, without building the generator."""
    return native.uniform(words(seed, stream, *key))


def below(count: int, seed: int, stream: str, *key: int) -> int:
    """Return the same value as ``generator(seed, stream, *key).integers(count)``, without building the generator.
    ``count`` must be at least 1 and below 2**32."""
    return native.below(words(seed, stream, *key), count)


def permutations(count: int, size: int, seed: bytes) -> torch.Tensor:
    """Return ``count`` permutations of 0 to size - 1, one after the other, as one int64 vector. They equal the results
    of ``count`` calls of ``permutation(size)`` on the generator that ``seed``, a result of :func:`words`, seeds."""
    import torch

    from fastagg.storage import memory

    orders = memory.empty(count * size, dtype=torch.int64)
    native.permutations(seed, size, count, orders.data_ptr())
    return orders


def integer(seed: int, stream: str, *key: int) -> int:
    """Return a random seed for another library (torch.manual_seed, scikit-learn's random_state), below 2**31 - 1."""
    return below(2**31 - 1, seed, stream, *key)


@contextmanager
def seeded(seed: int, stream: str, *key: int, devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Seed torch's draws in a ``with`` block, on the CPU and ``devices``. Afterwards the generators of the CPU and of
    ``devices`` have their old states."""
    import torch

    several = list(devices)
    with torch.random.fork_rng(devices=several):
        # torch.manual_seed also looks for other devices. Without devices to seed, default_generator.manual_seed is
        # enough, in a tenth of the time.
        (torch.manual_seed if several else torch.default_generator.manual_seed)(integer(seed, stream, *key))
        yield
