"""Encodes the updates of clients, so that fewer bytes are sent."""

from __future__ import annotations

from collections import defaultdict

import torch

from fastagg._types import State
from fastagg.encoding import Encoded, ErrorFeedback, TopK, encode
from fastagg.errors import ConfigError
from fastagg.model import Layout, ModelState
from fastagg.sim.clients.client import Update
from fastagg.sim.recipes.sections import Encoding
from fastagg.sim.seeds import integer
from fastagg.storage import memory


class UpdateEncoder:
    """Encodes updates, each with its own seed. With error feedback, the encoder keeps the part of each client's updates
    that was not sent."""

    def __init__(self, encoding: Encoding, layout: Layout, seed: int) -> None:
        """Raise ConfigError if an encoding is set and the model has running statistics, which no encoding can hold."""
        self._setting, self._layout, self._seed = encoding, layout, seed
        self._feedback: defaultdict[int, ErrorFeedback] = defaultdict(ErrorFeedback)
        self._nbytes: int | None = None
        if encoding.format == encoding.download == "none":
            return
        if layout.has_buffers:
            raise ConfigError(
                f"encoding.{'download' if encoding.format == 'none' else 'format'}: what is encoded holds no running "
                'statistics, and this model has some; set model.norm = "group", or another model'
            )
        if encoding.format != "none":  # all encoded updates have the same size
            self._nbytes = self._encoded(memory.zeros(layout.size), 0, None).nbytes

    def _encoded(self, update: Update | torch.Tensor, seed: int, feedback: ErrorFeedback | None) -> Encoded:
        setting, flat = self._setting, update.flat if isinstance(update, ModelState) else update
        arrays = self._layout.views(flat, memory.empty(0), [], as_held=True) if isinstance(flat, torch.Tensor) else flat
        format = TopK(setting.share, setting.values) if setting.format == "topk" else setting.format
        return encode(arrays, format, seed=seed, feedback=feedback)  # type: ignore[arg-type]  # format is not "none"

    def size(self, plain: int) -> int:
        """Return the number of bytes that are sent for an update that has ``plain`` bytes before its encoding."""
        return plain if self._nbytes is None else self._nbytes

    def __call__(self, client: int, number: int, update: Update) -> Update | Encoded:
        if self._nbytes is None:
            return update
        feedback = self._feedback[client] if self._setting.feedback else None
        return self._encoded(update, integer(self._seed, "encoding", client, number), feedback)

    def state_dict(self) -> dict[int, State]:
        return {client: feedback.state_dict() for client, feedback in self._feedback.items()}

    def load_state_dict(self, state: dict[int, State]) -> None:
        self._feedback.clear()
        for client, kept in state.items():
            self._feedback[client].load_state_dict(kept)
