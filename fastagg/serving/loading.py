"""A server from a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from fastagg import registry
from fastagg.distill import Distillation
from fastagg.errors import CacheError, CheckpointError, ConfigError, FastaggError, MissingPart
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
        CheckpointError: no checkpoint, damaged, or of another format; or it has a part that is not registered
            (:func:`fastagg.register`).
        CacheError: its rows are on a disk, and another server uses them.
    """
    try:
        return server_from(checkpoint.read(Path(path)), device, distill)
    except CheckpointError as error:
        raise error if str(path) in str(error) else CheckpointError(f"{path}: {error}") from error


def server_from(
    state: dict[str, Any], device: torch.device | str | None = None, distill: Distillation | None = None
) -> Server:
    """The server whose :meth:`Server.state_dict` this is; the rest as in :func:`load`.

    Raises:
        CheckpointError: as there.
    """
    try:
        config, layout = dict(state["config"]), Layout.from_spec(state["layout"])
        checkpoint.check_claims(state, config, layout)
        if "distill" in config["direction"]:
            if distill is None:
                raise ConfigError("it is FedEcho's: give load() its distill= again, with the same unlabelled data")
            config["direction"] = {**config["direction"], "distill": distill}
        parts = {key: registry.part(key, config.pop(key)) for key in ("direction", "optimizer", "staleness")}
        return Server(Taken(layout, state), **parts, **config, device=device)
    except (CheckpointError, CacheError):
        raise
    except MissingPart as error:
        raise CheckpointError(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, FastaggError) as error:
        raise CheckpointError(f"the checkpoint is damaged: {error}") from error
