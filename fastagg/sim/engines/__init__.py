"""Where clients train: in this process, by its threads, or on Ray. Results do not depend on it."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from fastagg import _checks, _extras
from fastagg.errors import ConfigError

Name = Literal["here", "ray"]
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
