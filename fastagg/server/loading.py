"""Makes a server from a checkpoint (``fastagg.load``)."""

from __future__ import annotations

import os

import torch

from fastagg import _checks, registry
from fastagg._types import State
from fastagg.distill import Distillation
from fastagg.errors import CheckpointError, ConfigError, FastaggError, MissingPart
from fastagg.model import Layout, SavedModel
from fastagg.server import checkpoint
from fastagg.server.server import Server
from fastagg.server.settings import RULES


def load(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    distill: Distillation | None = None,
) -> Server:
    """Return the server that :meth:`Server.save` wrote to ``path``. It continues from the saved state.

    Its model is a dict, a list or a flat tensor, because a checkpoint does not contain an nn.Module's code.
    ``device``: the device of the state. None: the CPU. ``distill``: only for FedEcho, with the same unlabelled data,
    because the checkpoint contains neither the data nor code. The settings of this ``distill`` apply from then on.

    Raises:
        CheckpointError: there is no checkpoint, the file is damaged or has another format, or the server uses a part
            that is not registered (:func:`fastagg.register`).

    Example:
        >>> fastagg.ACE(torch.zeros(2), lr=0.1, num_clients=3).save("ace.pt")
        >>> fastagg.load("ace.pt").direction.cache
        'fp32'
    """
    path = _checks.path("path", path)
    try:
        return server_from(checkpoint.read(path), device, distill)
    except CheckpointError as error:
        raise error if str(path) in str(error) else CheckpointError(f"{path}: {error}") from error


def server_from(
    state: State,
    device: torch.device | str | None = None,
    distill: Distillation | None = None,
    key: bytes | None = None,
) -> Server:
    """Return a server with ``state``, the result of :meth:`Server.state_dict`. ``key``: the key of a private server's
    noise. None: a new key. ``device`` and ``distill`` are those of :func:`load`, and so are the errors."""
    try:
        config, layout = dict(state["config"]), Layout.from_spec(state["layout"])
        checkpoint.check_claims(state, config, layout)
        if "distill" in config["direction"]:
            if distill is None:
                raise ConfigError("it is FedEcho's: give load() its distill= again, with the same unlabelled data")
            config["direction"] = {**config["direction"], "distill": distill}
        parts = {key: registry.part(key, config.pop(key)) for key in ("direction", "optimizer", "staleness")}
        known = {name: value for name, value in config.items() if name in RULES}
        return Server(SavedModel(layout, state, key), **parts, **known, device=device)
    except CheckpointError:
        raise
    except MissingPart as error:
        raise CheckpointError(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, FastaggError) as error:
        raise CheckpointError(f"the checkpoint is damaged: {error}") from error
