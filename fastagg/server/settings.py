"""A server's settings: each is declared once, with its type, default, range and meaning.

The keyword arguments of :class:`fastagg.Server` and of the presets, the checks, the documentation and the settings in a
checkpoint all come from these declarations.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypedDict, cast, get_type_hints

import torch

from fastagg import _checks
from fastagg.rules.names import Buffers, ByName, Validate, Weighting, words


class Rule(NamedTuple):
    """What a setting may be.

    Attributes:
        meaning: its documentation.
        default: its value if it is not given.
        least, above, most: its range, for numbers.
        whole: whether it is a whole number.
        words: the texts that it may be.
        free: whether it may change from one opening of a folder to the next: it does not affect the model.
        kept: whether a checkpoint has it.
    """

    meaning: str
    default: Any = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    whole: bool = False
    words: tuple[str, ...] = ()
    free: bool = False
    kept: bool = True

    def check(self, name: str, value: object) -> Any:
        """Return the value."""
        if value is None and self.default is None:
            return None
        if name == "buffers" and isinstance(value, Mapping):
            modes = {str(pattern): _checks.one_of(name, mode, words(ByName)) for pattern, mode in value.items()}
            if {"mean", "weighted"} <= set(modes.values()):
                raise _checks.ConfigError("buffers: expected 'mean' or 'weighted' for all, got both")
            return modes
        if self.words:
            _checks.one_of(name, value, self.words)
        elif self.whole:
            _checks.whole(name, value, least=int(self.least or 0), most=None if self.most is None else int(self.most))
        elif self.least is not None or self.above is not None:
            _checks.number(name, value, least=self.least, above=self.above)
        elif isinstance(self.default, bool):
            return _checks.flag(name, value)
        return value


class BaseSettings(TypedDict, total=False):
    """The arguments that every preset takes."""

    clip_norm: Annotated[float | None, Rule(
        "an update with a larger Euclidean norm is scaled down to this norm. None: never.", above=0,
    )]  # fmt: skip
    buffers: Annotated[Buffers | Mapping[str, ByName], Rule(
        "the new BatchNorm statistics: the ``mean`` of the clients in a step, their mean ``weighted`` as their updates "
        "are by ``weighting``, the ``latest`` client's, or ``keep`` for no change. Or a mapping from patterns of names "
        "to what becomes of these buffers: ``mean`` or ``weighted``, the ``max``, the ``first`` that comes, or "
        "``keep``; for a state_dict it says which arrays are buffers: ``{\"*.cluster_size\": \"mean\"}``. Others "
        "are averaged.", "mean", words=words(Buffers),
    )]  # fmt: skip
    tied: Annotated[Sequence[Sequence[str | int]] | None, Rule(
        "the names (in a list: the places) of arrays that are one parameter, stored and stepped once: "
        "``[(\"embed.weight\", \"head.weight\")]``. None: a module says it; else arrays that are the same memory.",
    )]  # fmt: skip
    deterministic: Annotated[bool, Rule(
        "for synchronous rules only. If True, the bits of a round's result do not depend on the order in which updates "
        "come. The server keeps a round's updates, in their own type, until the round is complete. Then it adds them "
        "in the order of the clients' ids. This takes memory for all updates of a round.", False,
    )]  # fmt: skip
    validate: Annotated[Validate, Rule(
        "``sync``: ``receive`` waits for the check and refuses an update that is not finite. ``deferred``, for a CUDA "
        "device: ``receive`` does not wait for the device. An update that is not finite then counts as zero, and its "
        "receipt reports this. On the CPU ``deferred`` is the same as ``sync``.", "sync", words=words(Validate),
        free=True,
    )]  # fmt: skip
    seed: Annotated[int, Rule(
        "the seed of all random numbers of the server.", 0, least=0, most=2**64 - 1, whole=True,
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
        "the most open tasks of one client. ``dispatch`` raises Busy beyond it.", least=1, whole=True, free=True,
    )]  # fmt: skip
    max_clients: Annotated[int | None, Rule(
        "the most clients that are known at a time. ``dispatch`` to another one raises Busy.", least=1, whole=True,
        free=True,
    )]  # fmt: skip
    max_waiting: Annotated[int | None, Rule(
        "the most threads that may wait in ``receive`` for other threads. One more raises Busy at once.", least=1,
        whole=True, free=True,
    )]  # fmt: skip
    max_samples: Annotated[float | None, Rule(
        "for ``weighting=\"samples\"``: a client that states more samples counts as if it had so many. None: it counts "
        "for what it states.", least=1e-30,
    )]  # fmt: skip

    fastest_steps: Annotated[int | None, Rule(
        "H: tasks tell how many local steps to take, ``max(1, floor(H*v/v_max))`` for a client that takes v steps a "
        "second, as it told with ``dispatch(client, speed=v)``, where v_max is the largest that was told. Without a "
        "speed, H. (Async Local-SGD's dynamic local updates, arXiv 2401.09135. Speeds are not in checkpoints.)",
        least=1, most=2**31 - 1, whole=True, free=True,
    )]  # fmt: skip


class DelaySettings(BaseSettings, total=False):
    """The arguments of presets without a ``max_delay`` of their own."""

    max_delay: Annotated[int | None, Rule(
        "versions after which a task ends as with ``lease``. (ACED has another setting of this name.)", least=0,
        whole=True, free=True,
    )]  # fmt: skip


class ClientSettings(DelaySettings, total=False):
    """The arguments of presets that weigh clients in their own way."""

    num_clients: Annotated[int | None, Rule(
        "if given, client ids are the integers 0..num_clients-1, and other ids are refused. Otherwise an id is a "
        "64-bit integer or text of at most 256 characters.", least=1, most=2**31 - 1, whole=True,
    )]  # fmt: skip


_weighting = Rule(
    "``uniform``, or ``samples`` for means weighted by ``num_samples``; ``tokens``: ``num_samples`` is a pair "
    "``(tokens, steps)``, and counts for tokens*tokens/steps (Decoupled DiLoCo, arXiv 2604.21428).",
    "uniform",
    words=words(Weighting),
)


class ActiveSettings(BaseSettings, total=False):
    """ACED's arguments. Its ``max_delay`` is how long a client's cached update counts."""

    weighting: Annotated[Weighting, _weighting]


class WeightSettings(DelaySettings, total=False):
    """The arguments of presets that need the number of clients and have it as an argument of their own."""

    weighting: Annotated[Weighting, _weighting]


class ServerSettings(ClientSettings, WeightSettings, total=False):
    """All of them: ``def Mine(params, *, lr: float, **server: Unpack[fastagg.ServerSettings]) -> fastagg.Server``."""


def _declared() -> Mapping[str, Rule]:
    hints = get_type_hints(ServerSettings, include_extras=True)
    order = ["num_clients", "clip_norm", "weighting", "max_samples"]  # as in the documentation; then the others
    names = [*order, *(name for name in hints if name not in order)]
    return MappingProxyType({name: hints[name].__metadata__[0] for name in names})


RULES = _declared()
FREE = tuple(name for name, rule in RULES.items() if rule.free)


def complete(given: Mapping[str, object]) -> ServerSettings:
    """Return all settings: those that are given, checked, and the defaults. Nobody can change them."""
    found = {name: rule.check(name, given.get(name, rule.default)) for name, rule in RULES.items()}
    return cast(ServerSettings, MappingProxyType(found))


def declare(server: type) -> None:
    """Add the settings to the class of servers: to its documentation, its signature, and as attributes to read."""
    lines = [f"        {name}: {rule.meaning}" for name, rule in RULES.items()]
    refusals = "ConfigError, ShapeMismatch, DTypeMismatch, NonFiniteUpdate: a setting or the model is refused."
    server.__doc__ = "\n".join([str(server.__doc__).rstrip(), *lines, "", "    Raises:", f"        {refusals}", "    "])
    start: Any = server.__init__  # type: ignore[misc]
    own = inspect.signature(start)
    plain = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=rule.default) for name, rule in RULES.items()
    ]
    start.__signature__ = own.replace(parameters=[*plain, *more])
    for name, rule in RULES.items():
        if name not in vars(server):
            setattr(server, name, property(partial(_setting, name=name), doc=rule.meaning))


def _setting(server: Any, *, name: str) -> Any:
    return server._parts.settings[name]
