"""Synchronous rounds of any robust rule, for the table `robust`."""

from __future__ import annotations

from typing import Any, Unpack

import fastagg
from fastagg.ops.combine import RobustSettings


def robust(
    params: Any, *, rule: Any, clients_per_round: int, seed: int = 0, **settings: Unpack[RobustSettings]
) -> fastagg.Server:
    """Return a server whose steps are along ``rule``."""
    along = fastagg.Robust(rule, clients_per_round, synchronous=True, **settings)
    return fastagg.Server(params, along, fastagg.SGD(1.0), seed=seed)
