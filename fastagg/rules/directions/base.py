"""The base classes of all directions. Servers call them for each update and each checkpoint.

A direction is a frozen dataclass of settings. For each server it makes a state. The state's native part (csrc/engine)
keeps updates, and plans, runs and commits a step in one native call. A direction's Python code runs before that call,
except :attr:`Findings.finish`, which runs before the commit.
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
        size: d, the number of parameters.
        device: the device of all vectors.
        seed: the seed of all random numbers.
        buffer_size: the number of elements of the model's running statistics.
        memory: the allocator of the engine's vectors.
        key: the key of a private rule's noise, 32 bytes.
        ends: for each tensor, the index after its last element in the flat vector.
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
    weight: float  # the staleness weight s(tau)
    cosine: float  # the cosine between the update and the model's change since the task, or 0 if it is not measured
    control: Pieces | None  # the change of the client's control variate (FedAC). None: the client sent no change.
    # Returns the client's running statistics and the server's statistics after this update, for rules that run models.
    statistics: Callable[[], tuple[Tensor, Tensor]]
    room: int  # the number of updates that the step still needs, including this one
    total: float  # the sum of `Facts.share` over the updates that are in the buffer


class Findings(Protocol):
    """Python's results for one update, for the engine (csrc/engine/extension.h). In place of a None, the engine uses
    its own value."""

    update: Pieces | None  # the vector to step along, in place of the update
    norm: float | None  # the norm of the update, or of the vector that replaces the update
    weight: float | None  # the weight of the update in the step
    reported_weight: float | None  # the weight in the receipt, if it differs from `weight`
    share: float | None  # the value to use in place of `Facts.share`
    waits: bool  # whether no step is made with this update, because the rule waits for more
    gain: float | None  # the clipping factor, if Python has already clipped the update
    moves: list[Move] | None  # changes of Python's state, which the commit makes
    finish: Callable[[Tensor], object] | None  # may change the next version in place, before other code gets it


class DirectionState:
    """The state of a direction in a running server.

    Attributes:
        native: the engine's part of the state.
    """

    asks = False  # whether the engine calls `before` for every update

    def __init__(self, native: Native) -> None:
        self.native = native

    def before(self, arrival: Arrival, findings: Findings) -> None:
        """Set Python's results for an update in ``findings``. This method may raise an error. It must not change any
        visible state."""

    def memory(self) -> dict[str, int]:
        """Return the number of bytes of each part of the state. Most directions have one part, ``direction``."""
        return {"direction": self.native.nbytes()}

    def finite(self) -> bool:
        return True

    def state_dict(self, *, rows: bool = True) -> State:
        """Return the state as plain data and tensors. The tensors may share this object's memory. ``rows``: whether to
        include the rows of a client cache."""
        return dict(self.native.state())

    def load_state_dict(self, state: State) -> None:
        """Load a state that :meth:`state_dict` returned into a new object. Tensors are copied."""
        self.native.load(state)


@dataclass(frozen=True)
class Direction(RulePart):
    """Base class of the directions. A user's own direction defines :meth:`combine`. The package's directions do not.

    Attributes:
        kind: ``delta`` or ``gradient``. A delta, the trained model minus the one that was sent, is added to the model.
            A gradient is subtracted.
        needs_base: whether an update is combined with the version from which it was trained. The server then keeps each
            version as long as a client may send an update that was trained from it.
        measures: whether :class:`Arrival` must have ``cosine``. The server then keeps versions as with ``needs_base``.
        takes_control: whether an update includes a change of the client's control variate.
        synchronous: whether all updates of a step must be trained from the current version.
        buffered: whether a step uses several updates, so that a round can be closed early.
        reads_momentum: whether an update is combined with the optimizer's m.
        in_kernels: whether one pass computes the direction and the step, so that no Python can run in between.
        counts: whether :class:`fastagg.Facts` must have ``taken_part``.
        takes: the vectors that clients send besides an update (``receive(..., extra=)``): by name, the number of
            elements, or None for d elements.
        clients: the number of clients, if the direction keeps data for each client. Otherwise None.
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
        """Whether at most one answer of each client counts in a step, because the rule combines clients."""
        return False

    @property
    def compares(self) -> bool:
        """Whether a step depends on the distances between whole updates."""
        return False

    @property
    def sign(self) -> float:
        """The factor of updates when they are added to the model: 1 for deltas, -1 for gradients."""
        return 1.0 if self.kind == "delta" else -1.0

    def check(self, staleness: Staleness, clip_norm: float | None, weighting: str) -> None:
        """Raise ConfigError if one of these settings of the server does not work with this direction."""

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
            state: the state that this method returned last. {} before the first update.

        Returns:
            The direction and the new state. The direction is fp32 [d] and has the sign of the updates: a direction of
            gradients is subtracted from the model. None in place of the direction: wait for more updates.
        """
        raise NotImplementedError(f"{type(self).__name__} is no direction of its own")

    def send(self, client: int | str, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors, by name, that are sent to ``client`` with the next task (:attr:`fastagg.Dispatch.extra`).
        These tensors must not be changed later. ``state`` is the last state that :meth:`combine` returned. A state may
        have tensors for each client, under names of your choice."""
        return {}

    def start(self, material: Material) -> DirectionState:
        """Return the direction's state for a new server.

        Raises:
            ConfigError: this is a user's own direction, and has no :meth:`combine`.
        """
        if type(self).combine is Direction.combine:
            raise ConfigError(
                f"direction: {type(self).__name__} has no method combine(update, facts, state); see docs/rules.md"
            )
        return OwnState(self, material)


@dataclass(frozen=True)
class PerClient(Direction):
    """Base class of the package's directions that keep data for each client. Client ids are 0..n-1."""

    num_clients: Annotated[int, SettingRule(least=1, most=2**31 - 1)]
    in_kernels: ClassVar[bool] = True

    @property
    def clients(self) -> int | None:
        return self.num_clients


class SumState(DirectionState):
    """A sum over clients, and the engine's data about each client.

    Attributes:
        sum: the sum, fp32 [d].
        cache: the stored updates of the clients, called rows. None: the server keeps no rows.
        resummation: recomputes a part of the sum from the rows at each update, so that rounding errors do not
            accumulate. None: the sum is not recomputed in this way.
    """

    sum: Tensor
    cache: ClientCache | None = None
    resummation: Native = None

    def used(self, state: State) -> list[int]:
        """Return the slots of the cache that ``state``, the state of the native part, uses."""
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
    """The state of a user's own direction. The engine steps along the vector that ``combine`` returns."""

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
        # `combine` got a clipped and weighted update, so the engine must neither clip nor weight the result.
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
    """Return the object that recomputes a sum over the cache's rows (see :class:`SumState`)."""
    return native.engine.Resummation(cache.native, memory=material.memory, owner=cache)
