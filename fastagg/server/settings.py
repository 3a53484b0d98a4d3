"""A server's settings: each is declared once, with its type, default, range and meaning.

The keyword arguments of :class:`fastagg.Server` and of the presets, the checks, the documentation and the settings in a
checkpoint all come from these declarations. After a change to one, ``python tools/document.py`` writes its meaning into
the docstrings of ``Server`` and of the presets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypedDict, cast, get_type_hints

import torch

from fastagg import _checks, _keywords
from fastagg._checks import Rule
from fastagg.errors import ConfigError
from fastagg.rules.names import Buffers, ByName, ModelDtype, Weighting


class BaseSettings(TypedDict, total=False):
    """The arguments that every preset takes."""

    clip_norm: Annotated[float | None, Rule(
        "an update with a larger Euclidean norm is scaled down to this norm. None: never.", above=0,
    )]  # fmt: skip
    buffers: Annotated[Buffers | Mapping[str, ByName], Rule(
        "what becomes of BatchNorm statistics: ``mean``, ``weighted``, ``latest``, ``keep``, or by their names. "
        "``mean``: the mean of the clients in a step. ``weighted``: it is weighted as their updates are by "
        "``weighting``. ``latest``: the latest client's. ``keep``: no change. By names: a mapping from patterns of "
        "names to what becomes of these buffers: ``mean`` or ``weighted``, the ``max``, the ``first`` that comes, or "
        "``keep``; for a state_dict it says which arrays are buffers: ``{\"*.cluster_size\": \"mean\"}``. Others "
        "are averaged. With ``Robust`` they follow its rule, or stay.", "mean",
    )]  # fmt: skip
    tied: Annotated[Sequence[Sequence[str | int]] | None, Rule(
        "the names (in a list: the places) of arrays that are one parameter, stored and stepped once. Such as "
        "``[(\"embed.weight\", \"head.weight\")]``. None: a module says it; else arrays that are the same memory.",
    )]  # fmt: skip
    deterministic: Annotated[bool, Rule(
        "for synchronous rules: if True, a round's bits do not depend on the order of its updates. The server keeps "
        "a round's updates, in their own type, until the round is complete. Then it adds them in the order of the "
        "clients' ids. This takes memory for all updates of a round.", False,
    )]  # fmt: skip
    answers_per_step: Annotated[Literal["rule"] | int | None, Rule(
        "how many answers of one client count in a step; another one raises TooSoon, and so does ``dispatch``. "
        "``rule``: 1 where a rule's words are of clients (rounds, robust rules, ``at_least``), else any number. None: "
        "any number.", "rule", least=1, most=2**31 - 1,
    )]  # fmt: skip
    seed: Annotated[int, Rule(
        "the seed of all random numbers of the server.", 0, least=0, most=2**64 - 1,
    )]  # fmt: skip
    model_dtype: Annotated[ModelDtype | None, Rule(
        "``bf16``: the model, and every version that is kept or sent, takes 2 bytes a parameter, not 4. Steps "
        "are computed in fp32, with the moments as they are, and the new model is rounded without bias, so that small "
        "steps count on average. On the CPU, for rules that do not compare an update with a version. None: fp32.",
    )]  # fmt: skip
    device: Annotated[torch.device | str | None, Rule(
        "where the state is and steps run. The default is the CPU, or the CUDA device of the model.", kept=False,
    )]  # fmt: skip
    lease: Annotated[float | None, Rule(
        "seconds after which an unanswered task ends. From then on its answer is refused, and versions that only ended "
        "tasks hold are freed. A client without open tasks that was sent nothing for this time is forgotten (not with "
        "``num_clients``). None: tasks never end. After a restart all leases start again.", above=0, free=True,
    )]  # fmt: skip
    max_open_per_client: Annotated[int | None, Rule(
        "the most open tasks of one client. ``dispatch`` raises Busy beyond it.", least=1, free=True,
    )]  # fmt: skip
    max_clients: Annotated[int | None, Rule(
        "the most clients that are known at a time. ``dispatch`` to another one raises Busy.", least=1, free=True,
    )]  # fmt: skip
    max_waiting: Annotated[int | None, Rule(
        "the most threads that may wait in ``receive`` for other threads. One more raises Busy at once.", least=1,
        free=True,
    )]  # fmt: skip
    max_samples: Annotated[float | None, Rule(
        "for ``weighting=\"samples\"``: a client that states more samples counts as if it had so many. None: it counts "
        "for what it states.", least=1e-30,
    )]  # fmt: skip

    fastest_steps: Annotated[int | None, Rule(
        "H: tasks tell how many local steps to take, at most H, in proportion to the client's speed. They are "
        "``max(1, floor(H*v/v_max))`` for a client that takes v steps a second, as it told with "
        "``dispatch(client, speed=v)``, where v_max is the largest that was told. Without a speed, H. (Async "
        "Local-SGD's dynamic local updates, arXiv 2401.09135. Speeds are not in checkpoints.)",
        least=1, most=2**31 - 1, free=True,
    )]  # fmt: skip


class DelaySettings(BaseSettings, total=False):
    """The arguments of presets without a ``max_delay`` of their own."""

    max_delay: Annotated[int | None, Rule(
        "versions after which a task ends as with ``lease``. (ACED has another setting of this name.)", least=0,
        free=True,
    )]  # fmt: skip


class ClientSettings(DelaySettings, total=False):
    """The arguments of presets that weigh clients in their own way."""

    num_clients: Annotated[int | None, Rule(
        "if given, client ids are the integers 0..num_clients-1, and other ids are refused. Otherwise an id is a "
        "64-bit integer or text of at most 256 characters.", least=1, most=2**31 - 1,
    )]  # fmt: skip


class ActiveSettings(BaseSettings, total=False):
    """ACED's arguments. Its ``max_delay`` is how long a client's cached update counts."""

    weighting: Annotated[Weighting, Rule(
        "``uniform``, ``samples`` or ``tokens``: what an update counts for in a mean. ``samples``: ``num_samples``. "
        "``tokens``: ``num_samples`` is a pair ``(tokens, steps)``, and counts for tokens*tokens/steps (Decoupled "
        "DiLoCo, arXiv 2604.21428).", "uniform",
    )]  # fmt: skip


class WeightSettings(DelaySettings, ActiveSettings, total=False):
    """The arguments of presets that need the number of clients and have it as an argument of their own."""


class ServerSettings(ClientSettings, WeightSettings, total=False):
    """All of them: ``def Mine(params, *, lr: float, **server: Unpack[fastagg.ServerSettings]) -> fastagg.Server``."""


_HINTS = get_type_hints(ServerSettings, include_extras=True)
_FIRST = ("num_clients", "clip_norm", "weighting", "max_samples")  # as in the documentation; then the others
RULES: Mapping[str, Rule] = MappingProxyType({n: _HINTS[n].__metadata__[0] for n in dict.fromkeys((*_FIRST, *_HINTS))})
FREE = tuple(name for name, rule in RULES.items() if rule.free)


def complete(given: Mapping[str, object]) -> ServerSettings:
    """Return all settings: those that are given, checked, and the defaults. Nobody can change them."""
    found: dict[str, Any] = {name: given.get(name, rule.default) for name, rule in RULES.items()}
    if isinstance(modes := found["buffers"], Mapping):
        found["buffers"] = {str(pattern): _checks.fits("buffers", mode, ByName) for pattern, mode in modes.items()}
        if {"mean", "weighted"} <= set(found["buffers"].values()):
            raise ConfigError("buffers: expected 'mean' or 'weighted' for all, got both")
    for name, value in found.items():
        if not isinstance(value, Mapping):
            _checks.fits(name, value, _HINTS[name])
    return cast(ServerSettings, MappingProxyType(found))


def declare(server: type) -> None:
    """Add the settings to the class of servers: to its signature, and as attributes to read."""
    _keywords.passes_on(server.__init__, {name: rule.default for name, rule in RULES.items()})  # type: ignore[misc]
    for name in RULES:
        if name not in vars(server):
            setattr(server, name, property(partial(_setting, name=name), doc=""))


def _setting(server: Any, *, name: str) -> Any:
    return server._parts.settings[name]
