"""The noise of private rules: ChaCha20's words as they are specified, and what is made of them in float64."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Words = npt.NDArray[np.uint32]
_CALLS, _BLOCK = 64, 1024
_CONSTANTS = np.frombuffer(b"expand 32-byte k", np.uint32)
_ROUNDS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def chacha20(key: bytes, counters: npt.NDArray[np.uint64], nonce: int) -> _Words:
    """Return ChaCha20's words, [16, n], for counters of 64 bits [n] and a nonce of 64 bits (Bernstein 2008)."""
    start = np.empty((16, len(counters)), np.uint32)
    start[:4], start[4:12] = _CONSTANTS[:, None], np.frombuffer(key, np.uint32)[:, None]
    start[12], start[13] = counters & np.uint64(2**32 - 1), counters >> np.uint64(32)
    start[14], start[15] = nonce & (2**32 - 1), nonce >> 32
    words = start.copy()
    for _ in range(10):
        for a, b, c, d in _ROUNDS:
            for one, other, into, left in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                words[one] += words[other]
                mixed = words[into] ^ words[one]
                words[into] = (mixed << np.uint32(left)) | (mixed >> np.uint32(32 - left))
    return words + start


def step_key(key: bytes, incarnation: int, version: int) -> bytes:
    """Return the key of the step that makes this version."""
    return chacha20(key, np.array([incarnation], np.uint64), version)[:8].tobytes()


def normals(key: bytes, size: int) -> Tensor:
    """Return the normal numbers of a step with this key, float64 [size] (Box and Muller 1958)."""
    blocks = -(-size // _BLOCK)
    words = chacha20(key, np.arange(blocks * _CALLS, dtype=np.uint64), 0).reshape(16, blocks, _CALLS)
    found = np.concatenate(_pairs(words[:8], words[8:]))
    return torch.from_numpy(np.ascontiguousarray(found.swapaxes(0, 1)).reshape(-1)[:size].copy())


def count_normal(key: bytes) -> float:
    """Return the normal number of a step's count of updates that were not clipped."""
    words = chacha20(key, np.zeros(1, np.uint64), 1)
    return float(_pairs(words[0], words[1])[0][0])


def _pairs(a: _Words, b: _Words) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    low = ((a & np.uint32(255)) << np.uint32(9)) | ((b & np.uint32(255)) << np.uint32(1)) | np.uint32(1)
    u = (a >> np.uint32(8)) * 2.0**-24 + low * 2.0**-41
    radius = np.sqrt(-2.0 * np.log(u))
    within = (((b >> np.uint32(7)) & np.uint32(0x7FFFFE)) | np.uint32(1)).astype(np.float64) - 2.0**22
    angle = (b >> np.uint32(30)) * (math.pi / 2) + within * 2.0**-22 * (math.pi / 4)
    return radius * np.cos(angle), radius * np.sin(angle)


def correlated(given: Tensor, omega: tuple[float, ...], theta: tuple[float, ...]) -> Tensor:
    """Return ``C^-1 given`` for independent noise [steps, d] in float64, by the matrix C (:class:`fastagg.BLT`)."""
    steps = len(given)
    c = [1.0] + [sum(w * r ** (t - 1) for w, r in zip(omega, theta, strict=True)) for t in range(1, steps)]
    matrix = torch.tensor([[c[row - k] if row >= k else 0.0 for k in range(steps)] for row in range(steps)])
    return torch.linalg.solve_triangular(matrix.to(torch.float64), given.to(torch.float64), upper=False)
