"""``validate="deferred"``: a GPU server that never waits for its device to say whether an update was fit to use."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fastagg.errors import ConfigError
from fastagg.parts.directions import Direction
from fastagg.parts.staleness import Staleness
from fastagg.serving.dispatch import Client, Receipt

MODES = ("sync", "deferred")


def refuse(direction: Direction, staleness: Staleness, deterministic: bool) -> None:
    """Refuse algorithms that need a number on the host before they can step.

    Raises:
        ConfigError: and why.
    """
    reason = None
    if direction.measures:
        reason = "weighs an update by its direction"
    elif direction.runs_models:
        reason = "runs the client's model"
    elif getattr(staleness, "sketch", None) is not None:
        reason = f"{type(staleness).__name__}(sketch=...) follows the model by its updates"
    elif deterministic:
        reason = "deterministic=True keeps a round's updates until it is complete"
    if reason is not None:
        raise ConfigError(f'validate="deferred": not for a server that waits anyway: it {reason}')


class DeferredReceipt(Receipt):
    """A receipt whose numbers are still on their way: reading one of them waits for the device.

    ``kept`` is False where the update had an element that is not finite (or norm zero, or too stale, with
    :class:`fastagg.Euclidean`): it then counted as zero, a client cache kept that client's row, and the version moved
    on.
    """

    def __init__(
        self, client: Client, version: int, delay: int, lr: float | None, weight: float, scales: bool, verdict: Tensor
    ) -> None:
        known = {"client": client, "version": version, "delay": delay}
        self.__dict__.update(known, _verdict=verdict, _given=(lr, weight, scales))

    def __getattr__(self, name: str) -> Any:
        if name not in ("applied", "step_size", "update_norm", "weight", "kept"):
            raise AttributeError(name)
        norm2, _, _, _, weight, keep = self._verdict.tolist()
        lr, given, scales = self._given
        self.__dict__.update(
            kept=bool(keep), update_norm=math.sqrt(norm2) if norm2 >= 0 else norm2, weight=weight * given,
            step_size=lr if lr is None or not scales else lr * weight,
            applied=lr is not None and (bool(keep) or not scales),
        )  # fmt: skip
        return self.__dict__[name]
