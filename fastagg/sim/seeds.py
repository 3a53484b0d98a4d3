"""Random numbers keyed by what they are for, not by when they are drawn.

Every draw in a run comes from a generator made from (seed, stream, key...): the delay of client 7's third
dispatch is the same number whatever the other clients did before. So two methods with the same seed see the
same clients, the same delays and the same arrivals, training clients in another order (or several at once)
changes nothing, and a resumed run needs counters only, no generator states.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np


def generator(seed: int, stream: str, *key: int) -> np.random.Generator:
    """Return a fresh NumPy generator for ``stream`` (e.g. "delay") and ``key`` (e.g. client, dispatch number)."""
    # crc32 rather than hash(): Python salts hash() of strings per process.
    return np.random.default_rng([seed, crc32(stream.encode()), *key])


def integer(seed: int, stream: str, *key: int) -> int:
    """Return a 31-bit seed for other libraries (torch.manual_seed, scikit-learn's random_state)."""
    return int(generator(seed, stream, *key).integers(2**31 - 1))
