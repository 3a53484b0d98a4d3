"""A server's model as Flower's records, and Flower's history of a run in the form of a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from fastagg import registry
from fastagg._types import Arrays, Plain, State
from fastagg.errors import ConfigError
from fastagg.integrations import as_in
from fastagg.integrations.flower.records import write
from fastagg.integrations.models import holds as holds
from fastagg.integrations.models import put as put
from fastagg.integrations.models import resume as resume
from fastagg.server.server import Server

Make = Callable[..., Server]

# Clients in a synchronous round are Flower's to choose: it ends with its replies, never because it is full.
OPEN = 2**31 - 1


def made(make: Make | Server, model: Arrays, *, rounds: bool) -> Server:
    """The server that ``make``, a preset or a :func:`functools.partial` of one, builds for a model.

    Args:
        rounds: whether the strategy has rounds. Then presets weight clients by examples by default, as Flower does.
    """
    if not isinstance(make, Server):
        make = _called(make, model, rounds)
    own = not type(make.direction).__module__.startswith("fastagg.")  # a rule of the user's own, which may be either
    if not own and make.direction.synchronous != rounds:
        raise _other(type(make.direction).__name__, rounds)
    return make


def preset_of(make: object) -> str:
    """The name of the preset that ``make`` is or binds; empty for a Server or another function."""
    function = getattr(make, "func", make)
    return next((name for name, known in registry.presets().items() if known is function), "")


def _called(make: Make, model: Arrays, rounds: bool) -> Server:
    name, settings = preset_of(make), Plain()
    if rounds:
        settings["clients_per_round"] = OPEN
    if name:
        taken = inspect.signature(getattr(make, "func", make)).parameters
        if rounds != ("clients_per_round" in taken):
            raise _other(name, rounds)
        if rounds:  # as Flower weighs
            defaults = as_in("flower", registry.presets()[name])
            settings |= {key: how for key, how in defaults.items() if key not in getattr(make, "keywords", {})}
            if "weighting" not in defaults:  # it keeps every update, and knows how many it can; None has no end either
                settings["clients_per_round"] = None
    try:
        inspect.signature(make).bind(model, **settings)
    except (TypeError, ValueError) as error:  # not an error of the user's own parts, which the call below may raise
        raise ConfigError(f"server: expected a fastagg preset with its settings (functools.partial): {error}") from None
    server = make(model, **settings)
    if not isinstance(server, Server):
        raise ConfigError(f"server: expected a fastagg.Server or a preset, got {type(server).__name__}")
    return server


def _other(name: str, rounds: bool) -> ConfigError:
    if rounds:
        return ConfigError(f"server: expected a rule with rounds, got {name}, which has none: AsyncStrategy runs it")
    return ConfigError(f"server: {name} is a synchronous rule; SyncStrategy runs those")


def record(model: Arrays) -> ArrayRecord:
    """A model in the form of ``server.parameters()``, with every array in its original dtype."""
    return write([model] if isinstance(model, Tensor) else model)


def outgoing(server: Server) -> ArrayRecord:
    return record(server.parameters())


def formed(server: Server, named: Mapping[str, Tensor]) -> Arrays:
    form = server.layout.form
    if form in ("module", "state_dict"):
        return named
    arrays = list(named.values())
    return arrays[0] if form == "flat" and len(arrays) == 1 else arrays


_HISTORY = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def history(result: Result) -> State:
    return {"history": {name: {n: dict(row) for n, row in getattr(result, name).items()} for name in _HISTORY}}


def restore(result: Result, state: State) -> None:
    for name, rows in state.get("history", {}).items():
        getattr(result, name).update({number: MetricRecord(row) for number, row in rows.items()})
