"""The base classes of all directions.

A direction is a frozen dataclass of settings. A running server adds a small state, whose native part (csrc/engine)
remembers updates. That part plans, runs and commits a step in one native call. Python code runs before that call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fastagg import ops
from fastagg._build import native
from fastagg._checks import SettingRule
from fastagg._types import Move, Native, Plain, State
from fastagg.errors import ConfigError, NonFiniteUpdate
from fastagg.registry import RulePart
from fastagg.rules import results
from fastagg.rules.names import Kind
from fastagg.rules.privacy import NoiseKey
from fastagg.rules.staleness import Facts, Staleness
from fastagg.storage.cache import ClientCache
from fastagg.storage.cell import SwapCell
from fastagg.storage.pieces import Pieces


class Material(NamedTuple):
    """The arguments from which a direction builds its state.

    Attributes:
        size: d.
        device: the device of all vectors.
        seed: the seed of all random numbers.
        buffer_size: the number of elements of the model's running statistics.
        memory: the allocator of the engine's vectors.
        key: the key of a private rule's noise, 32 bytes.
        ends: the place after each tensor's last element, in the flat vector.
    """

    size: int
    device: torch.device
    seed: int
    buffer_size: int
    memory: Native
    key: NoiseKey
    ends: list[int]


class Arrival(NamedTuple):
    """An update before it is applied, for the Python code of a direction."""

    facts: Facts
    weight: float  # staleness weight s(tau)
    cosine: float  # the cosine between (x_t - x_s) and the update, if the direction measures it; else 0
    control: Pieces | None  # the change of the client's control variate (FedAC)
    # For directions that run models. Returns the client's running statistics, and the server's after this update.
    statistics: Callable[[], tuple[Tensor, Tensor]]
    room: int  # how many more updates the step needs, this one included
    total: float  # the sum of the weights of the updates in the buffer


class Findings(Protocol):
    """Python's results for one update, for the engine (csrc/engine/extension.h). None: the engine's own value
    counts."""

    update: Pieces | None  # the vector to step along, in place of the update
    norm: float | None
    weight: float | None
    reported_weight: float | None  # the weight in the receipt, if it is not the step's weight
    share: float | None
    waits: bool  # whether the update waits, so that there is no step
    gain: float | None  # the clipping factor, if Python has already clipped the update
    moves: list[Move] | None
    finish: Callable[[Tensor], object] | None  # changes the next version in place, before anybody gets it


class DirectionState:
    """The state of a direction in a running server.

    Attributes:
        native: the engine's part of the state.
    """

    asks = False  # whether the engine calls `before` for every update

    def __init__(self, native: Native) -> None:
        self.native = native

    def before(self, arrival: Arrival, findings: Findings) -> None:
        """Set Python's results for an update in ``findings``.

        This method may raise. It must not change any visible state.
        """

    def memory(self) -> dict[str, int]:
        """Return the bytes of each part. Most directions have one entry, ``direction``."""
        return {"direction": self.native.nbytes()}

    def finite(self) -> bool:
        return True

    def state_dict(self, *, rows: bool = True) -> State:
        """Return plain data and tensors, which may be shared. ``rows``: whether to include a client cache's rows."""
        return dict(self.native.state())

    def load_state_dict(self, state: State) -> None:
        """Inverse of :meth:`state_dict`, for a new state. Tensors are copied."""
        self.native.load(state)


@dataclass(frozen=True)
class Direction(RulePart):
    """Base class of the directions. A user's own direction defines :meth:`combine`. The package's have kernels.

    Attributes:
        kind: ``delta`` or ``gradient``. A delta, ``x_i^K - x_s``, is added to the model. A gradient is subtracted.
        needs_base: whether an update is combined with the version that it was trained from. The server then keeps
            this version while a client may answer it.
        measures: whether :class:`Arrival` must hold the cosine. Versions are then kept as with ``needs_base``.
        takes_control: whether an update includes a change of the client's control variate.
        synchronous: whether all updates of a step must start from the current version.
        buffered: whether a step uses several updates, so that a round can be closed early.
        reads_momentum: whether an update is combined with the optimizer's m.
        in_kernels: whether one pass computes the direction and the step, so that no Python can run in between.
        counts: whether :class:`fastagg.Facts` must hold how often a client has taken part.
        takes: the vectors that clients send besides an update (``receive(..., extra=)``): for each name the number of
            elements. None: d elements.
        clients: the number of clients, if the direction keeps data for each client, else None.
    """

    kind: Kind = field(default="delta", kw_only=True)
    needs_base: ClassVar[bool] = False
    measures: ClassVar[bool] = False
    takes_control: ClassVar[bool] = False
    synchronous: ClassVar[bool] = False
    buffered: ClassVar[bool] = False
    reads_momentum: ClassVar[bool] = False
    in_kernels: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    takes: ClassVar[Mapping[str, int | None]] = {}

    @property
    def clients(self) -> int | None:
        return None

    @property
    def counts_clients(self) -> bool:
        """Whether only one answer of a client counts in a step, because the rule is defined over clients."""
        return False

    @property
    def compares(self) -> bool:
        """Whether a step depends on the distances between whole updates."""
        return False

    @property
    def sign(self) -> float:
        """The factor with which an update is added to the model: 1 or -1."""
        return 1.0 if self.kind == "delta" else -1.0

    def check(self, staleness: Staleness, clip_norm: float | None, weighting: str) -> None:
        """Refuse settings of the server that do not work with this direction.

        Raises:
            ConfigError: a setting does not work with this direction.
        """

    def settings(self) -> Plain:
        """Return all settings as plain data. A checkpoint restores the direction from this data."""
        return asdict(self)

    def combine(
        self, update: Tensor, facts: Facts, state: dict[str, Tensor]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return the vector to step along. A user's own direction defines this method, in plain torch.

        Args:
            update: fp32 [d], already clipped and weighted. Do not change it.
            facts: see :class:`fastagg.Facts`.
            state: the state that this method returned last. {} at first.

        Returns:
            The direction, fp32 [d], with the sign of the updates, or None to wait for more updates; and the new state.
        """
        raise NotImplementedError(f"{type(self).__name__} is no direction of its own")

    def send(self, client: int | str, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors, by name, that go with a client's next task besides the model
        (:attr:`fastagg.Dispatch.extra`). Nobody may change these tensors afterwards. ``state`` is the last state from
        :meth:`combine`. It may hold tensors for each client, under names of your choice."""
        return {}

    def start(self, material: Material) -> DirectionState:
        """Return the direction's state for a new server.

        Raises:
            ConfigError: this is not one of the package's directions and has no :meth:`combine`.
        """
        if type(self).combine is Direction.combine:
            raise ConfigError(
                f"direction: {type(self).__name__} has no method combine(update, facts, state); see docs/rules.md"
            )
        return OwnState(self, material)


@dataclass(frozen=True)
class PerClient(Direction):
    """Base class of the directions that keep data for each client, with kernels. Client ids are 0..n-1."""

    num_clients: Annotated[int, SettingRule(least=1, most=2**31 - 1)]
    in_kernels: ClassVar[bool] = True

    @property
    def clients(self) -> int | None:
        return self.num_clients


class SumState(DirectionState):
    """A sum over clients, and the engine's data about each client.

    Attributes:
        sum: the vector, [d].
        cache: the clients' rows. None: the server keeps no rows.
        resummation: the object that keeps the rows' sum from drifting, or None.
    """

    sum: Tensor
    cache: ClientCache | None = None
    resummation: Native = None

    def used(self, state: State) -> list[int]:
        """Return the cache's slots that are in ``state``, the native part's state."""
        raise NotImplementedError

    def memory(self) -> dict[str, int]:
        rows = 0 if self.cache is None else self.cache.nbytes()
        return {"direction": rows + self.sum.nbytes + self.native.nbytes()}

    def finite(self) -> bool:
        return bool(torch.isfinite(self.sum).all())

    def state_dict(self, *, rows: bool = True) -> State:
        state = {**self.native.state(), "sum": self.sum}
        if self.cache is not None:
            state["cache"] = self.cache.state_dict(self.used(state), data=rows)
            state["scrub"] = None if self.resummation is None else self.resummation.state()
        return state

    def load_state_dict(self, state: State) -> None:
        if self.cache is not None:
            self.cache.load_state_dict(state["cache"])
        if self.resummation is not None and state["scrub"] is not None:
            self.resummation.load(state["scrub"])
        self.sum.copy_(state["sum"])
        super().load_state_dict(state)


class OwnState(DirectionState):
    """A user's own direction in plain torch. The vector that it returns becomes the update of a step."""

    asks = True
    tensors = SwapCell[dict[str, Tensor]]()

    def __init__(self, setting: Direction, material: Material) -> None:
        super().__init__(native.engine.Single(sign=setting.sign))
        self.setting, self.material = setting, material
        self.tensors = {}

    def before(self, arrival: Arrival, findings: Findings) -> None:
        facts, rule, material = arrival.facts, self.setting, self.material
        update, factor = facts.update.flat(torch.float32), facts.gain * arrival.weight
        clipped, facts = facts.gain, replace(facts, gain=1.0, norm=ops.inspect(facts.update).norm)
        answer = rule.combine(update if factor == 1.0 else update * factor, facts, dict(self.tensors))
        along, state = results.pair(rule, "combine", answer)
        findings.moves = [(self, "tensors", state)]
        if along is None:
            findings.waits = True
            return
        pieces = Pieces([results.vector(rule, "combine", along, material.size, material.device)])
        seen = ops.inspect(pieces)
        if not seen.finite:
            raise NonFiniteUpdate(f"combine: {type(self.setting).__name__} gave a direction with NaN or infinity")
        # `combine` got the update clipped and weighted, so the engine must do neither.
        findings.update, findings.norm = pieces, seen.norm
        findings.weight, findings.reported_weight = 1.0, arrival.weight
        findings.gain = clipped

    def sent(self, client: int | str) -> dict[str, Tensor]:
        return results.tensors(self.setting, "send", self.setting.send(client, dict(self.tensors)))

    def memory(self) -> dict[str, int]:
        return {"direction": sum(tensor.nbytes for tensor in self.tensors.values())}

    def state_dict(self, *, rows: bool = True) -> State:
        return {"tensors": dict(self.tensors)}

    def load_state_dict(self, state: State) -> None:
        self.tensors = {str(k): v.to(self.material.device, copy=True) for k, v in state["tensors"].items()}


def resummation_of(cache: ClientCache, material: Material) -> Native:
    """Return the object that keeps a sum over the cache's rows from drifting."""
    return native.engine.Resummation(cache.native, memory=material.memory, owner=cache)
