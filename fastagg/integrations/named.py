"""What is given by name: settings that are not plain data, their defaults, and clients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from fastagg import _checks, _keywords, registry
from fastagg._types import Plain
from fastagg.distill import Distillation
from fastagg.errors import ConfigError, UnknownClient
from fastagg.integrations import imported
from fastagg.server.server import Server

# How the rounds of each framework weigh clients and their running statistics: the defaults of a preset with rounds.
ROUNDS: Mapping[str, Plain] = {
    "flower": {"weighting": "samples", "buffers": "weighted"},
    "nvflare": {"weighting": "samples", "buffers": "weighted"},
    "appfl": {"weighting": "uniform", "buffers": "mean"},
}


def as_in(framework: str, make: Callable[..., Server]) -> Plain:
    """The defaults of ``make`` in this framework: those of :data:`ROUNDS`, if it is a preset with rounds. The
    asynchronous presets keep the weights of their papers."""
    if make not in registry.presets().values() or "clients_per_round" not in inspect.signature(make).parameters:
        return {}
    return {name: value for name, value in ROUNDS[framework].items() if name in _keywords.of(make).settings}


def check_names(given: Iterable[str], known: Iterable[str], refused: Mapping[str, str]) -> None:
    """Check the names of an adapter's settings. ``refused``: those without an effect here, and what to write."""
    for name in given:
        if name in refused:
            raise ConfigError(f"{name}: {refused[name]}")
        if name not in known:
            raise ConfigError(_checks.unknown("setting", name, known))


def check_settings(make: Callable[..., Server], settings: Mapping[str, object]) -> None:
    """Check a rule's settings before there is a model. A preset is tried on one number; what only a model or the
    program's own code can tell is not looked at."""
    tried = {name: value for name, value in settings.items() if name not in ("buffers", "tied")}
    try:
        if make not in registry.presets().values():
            inspect.signature(make).bind(None, **settings)
        elif "distill" not in settings:
            make(torch.zeros(1, dtype=torch.float32, device="cpu"), **tried)
    except TypeError as error:
        kind = "a synchronous" if settings.get("clients_per_round", 1) is None else "an asynchronous"
        raise ConfigError(f"algorithm: expected {kind} preset and its settings: {error}") from None


def resolved(settings: Mapping[str, object] | None) -> Plain:
    """A preset's settings; ``distill: "module:function"`` becomes what that function returns (FedEcho)."""
    found = dict(settings or {})
    name = found.get("distill")
    if not isinstance(name, str):
        return found
    made = imported("distill", name)()
    if not isinstance(made, Distillation):
        raise ConfigError(f"distill: {name} returned a {type(made).__name__}, no fastagg.Distillation")
    return {**found, "distill": made}


def number_of(server: Server, client: int | str, names: Sequence[int | str] | None, setting: str) -> int | str:
    """A client's id: its name, or its place in ``names``, if the rule keeps a row for each client.

    Args:
        setting: what gave ``names``, for the error.
    """
    if server.num_clients is None:
        return client
    if names is None or client not in names:
        raise UnknownClient(f"client {client!r}: this rule needs the names of all clients, and {setting} is {names}")
    return list(names).index(client)
