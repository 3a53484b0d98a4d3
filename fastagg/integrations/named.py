"""What is given by name: settings that are not plain data, and clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastagg._types import Plain
from fastagg.distill import Distillation
from fastagg.errors import ConfigError, UnknownClient
from fastagg.integrations import imported
from fastagg.server.server import Server


def resolved(settings: Mapping[str, object] | None) -> Plain:
    """A preset's settings; ``distill: "module:function"`` becomes what that function returns (FedEcho).

    Raises:
        ConfigError: there is no such function, or it does not return a :class:`fastagg.Distillation`.
    """
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

    Raises:
        UnknownClient: it is not among ``names``.
    """
    if server.num_clients is None:
        return client
    if names is None or client not in names:
        raise UnknownClient(f"client {client!r}: this rule needs the names of all clients, and {setting} is {names}")
    return list(names).index(client)
