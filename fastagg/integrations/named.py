"""Settings that are not plain data, given by name in configuration files."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from fastagg._types import Plain
from fastagg.distill import Distillation
from fastagg.errors import ConfigError


def resolved(settings: Mapping[str, object] | None) -> Plain:
    """A preset's settings; ``distill: "module:function"`` becomes what that function returns (FedEcho).

    Raises:
        ConfigError: there is no such function, or it does not return a :class:`fastagg.Distillation`.
    """
    found = dict(settings or {})
    name = found.get("distill")
    if not isinstance(name, str):
        return found
    module, _, function = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"distill: expected 'module:function', got {name!r}: {error}") from None
    made = make()
    if not isinstance(made, Distillation):
        raise ConfigError(f"distill: {name} returned a {type(made).__name__}, no fastagg.Distillation")
    return {**found, "distill": made}
