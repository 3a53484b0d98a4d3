"""The key of a private server's noise, in a file of the server's folder.

A log that is executed again needs the noise that there was, so its key must outlive the process. It is in no checkpoint
and in no record: these are copied and sent around, and whoever has key and model knows the model without its noise.
"""

from __future__ import annotations

from fastagg._types import State
from fastagg.durable.disk import Disk, named
from fastagg.durable.folder import PARTIAL
from fastagg.errors import CheckpointError
from fastagg.rules.privacy import NoiseKey
from fastagg.server.server import Server

KEY = "noise-key"  # 32 bytes; only its owner may read it
_SIZE = 32


def key_of(disk: Disk) -> NoiseKey | None:
    """Return a folder's key; None: it has none."""
    with named(disk.path / KEY):
        if KEY not in disk.names():
            return None
        key = NoiseKey(disk.read_of(KEY))
    if len(key) != _SIZE:
        raise CheckpointError(f"{disk.path / KEY}: expected {_SIZE} bytes, got {len(key)}")
    return key


def take_key(disk: Disk, server: Server, state: State | None) -> None:
    """Let a server draw its noise with the folder's key. ``state``: of the folder's checkpoint; None: there is none,
    and the folder gets the server's own key, if it has no other."""
    if getattr(server.direction, "privacy", None) is None:
        return
    key = key_of(disk)
    if key is not None:
        server._draw_with(key)
    elif state is None:
        with named(disk.path / KEY):
            disk.remove(KEY + PARTIAL)
            disk.put(KEY + PARTIAL, [server._parts.key])
            disk.rename(KEY + PARTIAL, KEY)
            disk.sync_folder()
    else:
        raise CheckpointError(f"{disk.path / KEY}: it is missing: without it the log's steps cannot be made again")
    if state is not None and state["direction"].get("noise_key") != server._running.extension.state.native.key_id:
        raise CheckpointError(f"{disk.path / KEY}: it is not the key of this folder's noise")
