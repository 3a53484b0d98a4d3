"""Functions that compare, replace and save a server's model and state. Adapters and their sessions call them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fastagg._types import Arrays, State
from fastagg.errors import ShapeMismatch
from fastagg.server import checkpoint
from fastagg.server.server import Server
from fastagg.storage.pieces import as_tensor


def holds(server: Server, arrays: Arrays) -> bool:
    """Whether ``arrays`` equal the server's model. Floating-point numbers are compared in fp32."""
    model, named = _named(server.parameters()), _named(arrays)
    return model.keys() == named.keys() and all(_equal(array, named[name]) for name, array in model.items())


def put(server: Server, arrays: Arrays) -> None:
    """Replace the server's model by ``arrays``. Moments and the version stay. The server must have no open task."""
    model, named = _named(server.parameters()), _named(arrays)
    for name, array in model.items():
        shape = tuple(getattr(named.get(name), "shape", array.shape))
        if tuple(array.shape) != shape:
            raise ShapeMismatch(f"array {name!r}: expected shape {list(array.shape)}, got {list(shape)}")
    pieces, state = server.layout.take(arrays, server.device), server.state_dict(copy=False)
    buffers = {"values": pieces.buffers, "counters": pieces.counters, "sum": None, "most": None, "count": 0}
    server.load_state_dict({**state, "flat": pieces.flat, "buffers": {**state["buffers"], **buffers}})


def drop_round(server: Server) -> None:
    """Drop the updates that have come since the last step, so that they do not count. The server must have no open
    task."""
    state = server.state_dict(copy=False)
    buffers = {**state["buffers"], "sum": None, "most": None, "count": 0, "rows": []}
    tasks, direction = dict(state["tasks"]), {**state["direction"], "versions": [], "total": 0.0, "acc": None}
    direction.pop("held", None)
    # A client of the undone round is recorded as if it had last taken part in the step before. The client's true last
    # step is not known, but it is not later.
    if "participation" in tasks:
        history = tasks["participation"]
        since = history["version"] == state["version"]
        times = history["times"] - history["in_step"] * since
        columns = {"step": history["step"] - 1 * since, "version": history["version"] - 1 * since, "times": times}
        columns["in_step"] = torch.where(since, torch.ones_like(times), history["in_step"])
        clients = [client for client, count in zip(history["clients"], times.tolist(), strict=True) if count]
        tasks["participation"] = {"clients": clients, **{name: column[times > 0] for name, column in columns.items()}}
    server.load_state_dict({**state, "tasks": tasks, "direction": direction, "buffers": buffers, "round": []})


def resume(server: Server, state: State) -> int:
    """Load a checkpoint's ``state``. The state's open tasks end, because their answers cannot come any more.

    Returns:
        The number of tasks that were open.
    """
    server.load_state_dict(state)
    tasks = checkpoint.open_tasks(state)
    for client, version in tasks:
        server.forget(client, version)
    return len(tasks)


def tensors(arrays: Arrays) -> Arrays:
    """Return a model with each array as a torch tensor, for a file. Lists stay lists, and dicts stay dicts."""
    if isinstance(arrays, Mapping):
        return {name: as_tensor(array) for name, array in arrays.items()}
    return [as_tensor(array) for array in arrays] if isinstance(arrays, list) else as_tensor(arrays)


def _named(arrays: Arrays) -> Mapping[object, Arrays]:
    if isinstance(arrays, Mapping):
        return arrays
    return dict(enumerate(arrays if isinstance(arrays, (list, tuple)) else [arrays]))


def _equal(mine: Arrays, theirs: Arrays) -> bool:
    own, other = as_tensor(mine), as_tensor(theirs)
    if own.is_floating_point() and other.is_floating_point():
        own, other = own.to(torch.float32), other.to(torch.float32)
    return torch.equal(own.cpu(), other.detach().cpu())
