"""A server from a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fastagg.distill import Distillation
from fastagg.errors import CheckpointError, ConfigError, FastaggError
from fastagg.layout import Layout, Taken
from fastagg.serving import checkpoint
from fastagg.serving.server import Server


def load(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    distill: Distillation | None = None,
) -> Server:
    """The server that :meth:`Server.save` wrote to ``path``, ready to go on.

    The model comes back as a dict, a list or a flat tensor (an nn.Module's code is not in a checkpoint). FedEcho's
    ``distill`` must be given again, with the same unlabelled data: neither it nor the code is in the checkpoint, and
    its settings are the ones that hold from then on.

    Raises:
        CheckpointError: no checkpoint, damaged, or of another format.
    """
    state = checkpoint.read(Path(path))
    try:
        config, layout = dict(state["config"]), Layout.from_spec(state["layout"])
        if "distill" in config["direction"]:
            if distill is None:
                raise ConfigError("it is FedEcho's: give load() its distill= again, with the same unlabelled data")
            config["direction"] = {**config["direction"], "distill": distill}
        parts = {key: checkpoint.part(config.pop(key)) for key in ("direction", "optimizer", "staleness")}
        # Only its shapes: what a model's own type cannot hold, fp32 can, so its values come with the state.
        start = torch.zeros(layout.size), torch.zeros(layout.buffer_size), state["buffers"]["counters"]
        arrays = layout.views(*start)
        server = Server(Taken(layout, arrays), **parts, **config, device=device)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, FastaggError) as error:
        raise CheckpointError(f"{path}: the checkpoint is damaged: {error}") from error
    server.load_state_dict(state)
    return server
