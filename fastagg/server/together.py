"""Checks that the parts and settings of a new server can be combined. Server calls each check, which may raise
ConfigError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fastagg import registry
from fastagg.errors import ConfigError
from fastagg.model import Layout
from fastagg.ops.checks import OPTIMIZERS
from fastagg.ops.place import on_cuda
from fastagg.rules.directions import Direction
from fastagg.rules.optimizers import Optimizer
from fastagg.rules.staleness import Staleness
from fastagg.server.settings import ServerSettings


def check(direction: Direction, optimizer: Optimizer, staleness: Staleness, settings: ServerSettings) -> None:
    """Check each part, and refuse parts or settings that contradict each other."""
    for part in (direction, optimizer, staleness):
        registry.check_settings(part)
    optimizer.check()
    direction.check(staleness, settings["clip_norm"], settings["weighting"])
    if optimizer.has_own_step and direction.in_kernels:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} has a step in Python, and {type(direction).__name__} makes its "
            "direction in the same pass as the step; use one of fastagg's optimizers, or another direction"
        )
    if getattr(direction, "privacy", None) is not None and optimizer.has_own_step:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} has a step in Python, which could fail after it has seen a step's "
            "noise; with privacy use one of fastagg's optimizers"
        )
    has_momentum = "m" in OPTIMIZERS.get(optimizer.kernel, ()) and optimizer.moment_format == "fp32"
    if direction.reads_momentum and not has_momentum:
        raise ConfigError(
            f"optimizer: {type(direction).__name__} turns updates towards a momentum in fp32, and this one has none; "
            "use Nesterov or another optimizer with a momentum, and moments='fp32'"
        )
    if getattr(optimizer, "look_ahead", False) and compares_versions(direction, staleness):
        raise ConfigError(
            "look_ahead: clients are sent another model than the server's, and this rule compares both; leave it out"
        )
    known, size = settings["num_clients"], getattr(direction, "at_least", None) or getattr(direction, "size", None)
    each = answers_per_step(direction, settings)
    if known is not None and size is not None and each is not None and known * each < size:
        raise ConfigError(
            f"num_clients: {known} clients with {'one answer' if each == 1 else f'{each} answers'} each never fill a "
            f"step of {size}; take fewer a step, or answers_per_step=None"
        )
    if settings["deterministic"] and not direction.synchronous:
        raise ConfigError(
            "deterministic: it needs a synchronous rule. If updates are applied as they come, their order is part of "
            f"the algorithm, got direction {type(direction).__name__}"
        )


def answers_per_step(direction: Direction, settings: Mapping[str, Any]) -> int | None:
    """Return how many answers of one client may count in a step, by ``answers_per_step``. None: any number."""
    number = settings["answers_per_step"]
    if number == "rule":
        return 1 if direction.counts_clients else None
    return None if number is None else int(number)


def check_bf16(direction: Direction, optimizer: Optimizer, staleness: Staleness, device: torch.device) -> None:
    """Refuse a model in bf16 (``model_dtype``) on a CUDA device, or if a rule in Python or a comparison of versions
    reads the model."""
    own = next((part for part, is_own in (
        (direction, type(direction).combine is not Direction.combine), (optimizer, optimizer.has_own_step),
        (staleness, staleness.looks),
    ) if is_own), None)  # fmt: skip
    if on_cuda(device):
        what = f"only one on the CPU is kept so, and this server is on {device}"
    elif own is not None:
        what = f"{type(own).__name__} is a rule of its own in Python, which is given the model in fp32"
    elif compares_versions(direction, staleness):
        what = "this rule compares an update, or a client's model, with a version in fp32"
    else:
        return
    raise ConfigError(f"model_dtype: {what}; leave it out")


def compares_versions(direction: Direction, staleness: Staleness) -> bool:
    """Return whether a rule reads the version from which an update was trained, besides the update."""
    return direction.needs_base or direction.measures or staleness.measures


def check_statistics(direction: Direction, layout: Layout, settings: ServerSettings) -> None:
    """Refuse a private server whose versions would contain clients' running statistics, which have no noise."""
    private = getattr(direction, "privacy", None) is not None
    if private and settings["buffers"] != "keep" and layout.has_buffers:
        raise ConfigError(
            "buffers: clients' running statistics would be handed out without noise; with privacy write buffers='keep'"
        )


def check_part(direction: Direction, staleness: Staleness, settings: ServerSettings) -> None:
    """Refuse a server for one part of a model (:func:`fastagg.parts`) if its rule or a setting needs whole updates."""
    if getattr(direction, "privacy", None) is not None:
        raise ConfigError("privacy: every part would show a client once more; use one server for the whole model")
    if settings["clip_norm"] is not None:
        what, needs = "clip_norm", "the norm of the whole update"
    elif staleness.measures:
        what, needs = f"staleness {type(staleness).__name__}", "how far the whole model has moved"
    elif direction.measures:
        what, needs = f"direction {type(direction).__name__}", "the cosine of the whole update"
    elif direction.compares:
        what, needs = f"direction {type(direction).__name__}", "the distances between whole updates"
    else:
        return
    raise ConfigError(
        f"{what}: it needs {needs}, and a part knows its own, which is another rule; if you mean that one, write "
        "fastagg.parts(model, count, by_part=True)"
    )
