"""Where clients train: in this process, in a pool of processes, or on Ray. Results do not depend on it.

    here        trains when an update is due (the default), or ahead of time in threads
    pool        processes of this machine (pool.py)
    ray         Ray's workers, on this machine or a cluster (the extra ``ray``)

The simulation asks ``ahead`` for updates. A comparison gives its runs to workers, too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Literal, get_args

import torch

from fastagg import _checks, _extras
from fastagg._build import usable_cores
from fastagg.errors import ConfigError
from fastagg.sim.engines.workers import Begin, Workers

Name = Literal["here", "pool", "ray"]
NAMES: tuple[str, ...] = get_args(Name)
MOST = 1024  # workers


def check(name: str, workers: int | None) -> None:
    """Raise ConfigError unless there is such an engine with so many workers; MissingDependency without Ray."""
    _checks.one_of("engine", name, NAMES)
    if workers is not None:
        _checks.whole("workers", workers, least=1, most=MOST)
    if name == "ray":
        _extras.require("engine ray", "ray", _extras.RAY)


def check_device(name: str, device: torch.device) -> None:
    """Raise ConfigError unless the engine can train on ``device``."""
    if name != "here" and device.type != "cpu":
        raise ConfigError(f'run.device is "{device}": engine "{name}" trains on CPUs, choose engine "here"')


def dumps(name: str) -> Callable[[object], bytes]:
    """Return what pickles for this engine's workers: Ray's own takes lambdas, too."""
    if name == "ray":
        from fastagg.sim.engines import ray

        return ray.dumps
    return pickle.dumps


def start(name: str, count: int | None, begin: Begin, *given: object, fresh: bool = False) -> Workers:
    """Start workers of the engine "pool" or "ray". ``count``: how many; None: as many as there are cores.

    With ``fresh`` each task gets a worker of its own.
    """
    if name == "ray":
        from fastagg.sim.engines.ray import Cluster

        return Cluster(count, begin, *given, fresh=fresh)
    from fastagg.sim.engines.pool import Pool

    return Pool(count or usable_cores(), begin, *given, fresh=fresh)
