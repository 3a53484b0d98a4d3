"""Settings that are not plain data, given by name in configuration files."""

from __future__ import annotations

from collections.abc import Mapping

from fastagg._types import Plain
from fastagg.distill import Distillation
from fastagg.errors import ConfigError
from fastagg.integrations import imported


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
