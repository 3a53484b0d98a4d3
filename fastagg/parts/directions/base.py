"""What every direction has in common.

Each direction is a frozen setting and, once a server starts it, a small state. ``arrive`` either keeps the update
for later or hands one fused kernel call to ``apply``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fastagg import _checks
from fastagg.parts.staleness import Staleness
from fastagg.storage.pieces import Pieces

KINDS = ("delta", "gradient")


class Arrival(NamedTuple):
    """An update that passed every check."""

    client: int | str
    update: Pieces
    version: int  # the version it was trained from
    now: int  # the server's version
    gain: float  # clipping factor
    weight: float  # staleness weight s(tau)
    share: float  # its weight in a mean: the client's number of samples, or 1
    base: Tensor | None  # the model it was trained from, where the direction asked for it
    cosine: float  # between (x_t - x_s) and the update, where the direction measures it; else 0
    control: Pieces | None = None  # the change of the client's control variate (FedAC)
    # For directions that run models: the client's running statistics, and those the server will have after this update.
    buffers: Callable[[], tuple[Tensor, Tensor]] | None = None
    verdict: Tensor | None = None  # what the device decides about the update (fastagg.ops.judge); None: all is decided


class Apply(Protocol):
    """Runs the optimizer on a direction with one kernel, and moves to the next version.

    ``kernel`` is :func:`fastagg.ops.step_` or :func:`fastagg.ops.cached_step_` and ``direction`` its keywords;
    ``versions`` are those of all updates in the step. Returns the learning rate it took. With ``kernel`` None
    nothing is applied but the version moves on, as the loops of paper 002 do. ``then`` may go on changing the new
    model [d] before it is anybody's; if it raises, nothing was applied. ``into`` is a vector [d] that the direction
    gives up: the next version may be written there, even where the step reads it.
    """

    def __call__(
        self,
        kernel: Callable[..., Any] | None,
        update: Pieces,
        versions: Sequence[int],
        then: Callable[[Tensor], None] | None = None,
        into: Tensor | None = None,
        **direction: Any,
    ) -> float: ...


class DirectionState(Protocol):
    """What a running server holds of its direction."""

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        """Take one update; the step size if the model changed, else None.

        Errors may be raised only before anything changes.
        """

    def memory(self) -> dict[str, int]:
        """Bytes of tensors held, by what they are; most have one entry, ``direction``."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data and tensors; tensors may be shared."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; tensors are copied."""


@dataclass(frozen=True)
class Direction:
    """Base of the directions.

    Attributes:
        kind: ``delta``, ``x_i^K - x_s``, which is added to the model, or ``gradient``, which is subtracted.
        needs_base: whether updates are combined with the version they were trained from, which is then kept while
            any client holds it (:class:`fastagg.serving.versions.VersionStore`).
        measures: whether :class:`Arrival` must hold the cosine; versions are then kept as with ``needs_base``.
        takes_control: whether updates come with a change of the client's control variate.
        runs_models: whether :class:`Arrival` must hold ``buffers``.
        clients: number of clients, where the direction keeps something of each; else None.
    """

    kind: str = field(default="delta", kw_only=True)
    needs_base: ClassVar[bool] = False
    measures: ClassVar[bool] = False
    takes_control: ClassVar[bool] = False
    runs_models: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _checks.one_of("kind", self.kind, KINDS)

    @property
    def clients(self) -> int | None:
        return None

    @property
    def sign(self) -> float:
        """What an update is multiplied by to be added to the model."""
        return 1.0 if self.kind == "delta" else -1.0

    def check(self, staleness: Staleness, clip_norm: float | None, weighting: str) -> None:
        """Refuse settings of the server that make no sense with this direction.

        Raises:
            ConfigError: and why.
        """

    def settings(self) -> dict[str, Any]:
        """All settings as plain data, from which a checkpoint makes the direction again."""
        return asdict(self)

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        """The state of a server with ``size`` parameters and ``buffer_size`` running statistics on ``device``."""
        raise NotImplementedError(f"{type(self).__name__} is no direction of its own")
