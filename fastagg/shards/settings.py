"""The settings that all ranks of a sharded server must share, and those that it cannot have."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fastagg.errors import ConfigError
from fastagg.rules.directions import Direction, Echo
from fastagg.rules.euclidean import Euclidean
from fastagg.server.server import Server
from fastagg.storage.tiered import Tiered


def refuse_unfit(server: Server) -> None:
    """Refuse settings that do not work on a slice.

    Raises:
        ConfigError: the server has such a setting; the message tells why.
    """
    staleness, policy = server.staleness, server._running.extension.policy
    validate = server._parts.settings["validate"]
    reasons = [
        (validate == "deferred", "validate", "no rank steps before all know that the update is finite"),
        (isinstance(getattr(server.direction, "cache", None), Tiered), "cache", "those on a disk are of a whole model"),
        (isinstance(server.direction, Echo), "direction", "FedEcho runs the whole model; no rank has it"),
        (type(server.direction).combine is not Direction.combine, "direction", "your own class would see only a slice"),
        (server.optimizer.has_own_step, "optimizer", "your own class would see only a slice"),
        (getattr(staleness, "sketch", None) is not None, "sketch", "distances are measured; leave it out"),
        (getattr(server._watch, "times", None) is not None, "times", "answers are taken by all ranks; leave it out"),
        (policy.looks and not isinstance(staleness, Euclidean), "staleness", "it would see only a slice"),
    ]  # fmt: skip
    for unfit, setting, why in reasons:
        if unfit:
            raise ConfigError(f"{setting}: not on a sharded server: {why}")


def common(all: list[bytes]) -> bytes:
    """Return what all ranks have reported, as one JSON list. Each reports an object with its ``settings``.

    Raises:
        ConfigError: two ranks differ. The message has the setting and both values.
    """
    said = [json.loads(one) for one in all]
    first = dict(_flat("", said[0]["settings"]))
    for rank, other in enumerate(said):
        theirs = dict(_flat("", other["settings"]))
        for key in sorted(first.keys() | theirs.keys()):
            mine, its = first.get(key, "no such setting"), theirs.get(key, "no such setting")
            if mine != its:
                raise ConfigError(f"{key}: rank {rank} has {its!s:.100}, rank 0 has {mine!s:.100}")
    return json.dumps(said).encode()


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), item)
    else:
        yield name, value
