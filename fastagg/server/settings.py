"""A server's settings. Each setting is declared once here, with its type, default and range. The docstring of
:class:`fastagg.Server` explains the settings.

The keyword arguments of Server and of the presets, their checks, and the settings in a checkpoint come from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypedDict, cast, get_type_hints

import torch

from fastagg import _checks, _keywords
from fastagg._checks import SettingRule
from fastagg.errors import ConfigError
from fastagg.rules.names import Buffers, ByName, ModelDtype, Weighting

_MOST = 2**31 - 1


class BaseSettings(TypedDict, total=False):
    """The arguments that every preset takes. :class:`fastagg.Server` explains them."""

    clip_norm: Annotated[float | None, SettingRule(above=0)]
    buffers: Annotated[Buffers | Mapping[str, ByName], SettingRule(default="mean")]
    tied: Annotated[Sequence[Sequence[str | int]] | None, SettingRule()]
    deterministic: Annotated[bool, SettingRule(default=False)]
    answers_per_step: Annotated[Literal["rule"] | int | None, SettingRule(default="rule", least=1, most=_MOST)]
    seed: Annotated[int, SettingRule(default=0, least=0, most=2**64 - 1)]
    model_dtype: Annotated[ModelDtype | None, SettingRule()]
    device: Annotated[torch.device | str | None, SettingRule(kept=False)]
    lease: Annotated[float | None, SettingRule(above=0, free=True)]
    max_open_per_client: Annotated[int | None, SettingRule(least=1, free=True)]
    max_clients: Annotated[int | None, SettingRule(least=1, free=True)]
    max_waiting: Annotated[int | None, SettingRule(least=1, free=True)]
    max_samples: Annotated[float | None, SettingRule(least=1e-30)]
    fastest_steps: Annotated[int | None, SettingRule(least=1, most=_MOST, free=True)]


class DelaySettings(BaseSettings, total=False):
    """The arguments of presets without a ``max_delay`` of their own."""

    max_delay: Annotated[int | None, SettingRule(least=0, free=True)]


class ClientSettings(DelaySettings, total=False):
    """The arguments of presets that have ``weighting`` as an argument of their own."""

    num_clients: Annotated[int | None, SettingRule(least=1, most=_MOST)]


class ActiveSettings(BaseSettings, total=False):
    """ACED's arguments. ACED has a ``max_delay`` of its own, which limits how long a client's cached update counts."""

    weighting: Annotated[Weighting, SettingRule(default="uniform")]


class WeightSettings(DelaySettings, ActiveSettings, total=False):
    """The arguments of presets whose signature has a required ``num_clients`` of its own."""


class ServerSettings(ClientSettings, WeightSettings, total=False):
    """All settings of a server, as types for the keywords of a function of your own:
    ``def Mine(params, *, lr: float, **server: Unpack[fastagg.ServerSettings]) -> fastagg.Server``.

    :class:`fastagg.Server` explains each setting."""


_HINTS = get_type_hints(ServerSettings, include_extras=True)
_FIRST = (
    "num_clients",
    "clip_norm",
    "weighting",
    "max_samples",
)  # the settings that come first in the signature, as in the docstring
RULES: Mapping[str, SettingRule] = MappingProxyType(
    {n: _HINTS[n].__metadata__[0] for n in dict.fromkeys((*_FIRST, *_HINTS))}
)
FREE = tuple(name for name, rule in RULES.items() if rule.free)


def complete(stated: Mapping[str, object]) -> ServerSettings:
    """Check the stated settings, and return all settings as a read-only mapping. Missing settings get their defaults.
    ConfigError: a setting has a wrong value."""
    settings: dict[str, Any] = {name: stated.get(name, rule.default) for name, rule in RULES.items()}
    if isinstance(modes := settings["buffers"], Mapping):
        settings["buffers"] = {str(pattern): _checks.fits("buffers", mode, ByName) for pattern, mode in modes.items()}
        if {"mean", "weighted"} <= set(settings["buffers"].values()):
            raise ConfigError("buffers: expected 'mean' or 'weighted' for all, got both")
    for name, value in settings.items():
        if not isinstance(value, Mapping):
            _checks.fits(name, value, _HINTS[name])
    return cast(ServerSettings, MappingProxyType(settings))


def declare(server: type) -> None:
    """Add the settings to the class ``server``: as keywords of its signature, and as read-only attributes."""
    _keywords.passes_on(server.__init__, {name: rule.default for name, rule in RULES.items()})  # type: ignore[misc]
    for name in RULES:
        if name not in vars(server):
            setattr(server, name, property(partial(_setting, name=name), doc=""))


def _setting(server: Any, *, name: str) -> Any:
    return server._parts.settings[name]
