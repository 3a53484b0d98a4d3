"""The time per update from a framework's message to the model, with FedBuff over M updates (FedAvg's mean if M clients
answer). It shows what an integration costs in addition to the step. Peers: NumPy as Flower writes it, Flower's
function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from io import BytesIO
from typing import Any

import numpy as np
import torch
from problem import Built, Candidate, Case, Problem, Skip, resnet18_shapes

import fastagg

M = Problem(0).buffer_size
Arrays = list[np.ndarray]


def _arrays(problem: Problem) -> Arrays:
    pieces = [piece.numpy() for piece in problem.layers(problem.update)]
    shapes = resnet18_shapes()
    if [piece.size for piece in pieces] == [torch.Size(shape).numel() for shape in shapes]:
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    return pieces


def _named(arrays: Arrays) -> dict[str, np.ndarray]:
    return {f"layer{i}": array for i, array in enumerate(arrays)}


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in _named(arrays).items()}


def _encode(array: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _wire(arrays: Arrays) -> list[bytes]:
    return [_encode(array) for array in arrays]


def _decode(data: list[bytes]) -> Arrays:
    return [np.load(BytesIO(piece), allow_pickle=False) for piece in data]


def _same(message: Any) -> Any:
    return message


def _ours(problem: Problem, pack: Callable[[Arrays], Any], unpack: Callable[[Any], Any] = _same) -> Built:
    message = pack(_arrays(problem))
    like = unpack(message)
    named = isinstance(like, dict)
    start = {k: torch.ones(v.shape) for k, v in like.items()} if named else [torch.ones(v.shape) for v in like]
    server = fastagg.FedBuff(start, lr=1.0, buffer_size=M)

    def run() -> None:
        for client in range(M):
            server.dispatch(client)
            server.receive(client, unpack(message))

    return Built(run, lambda: server.flat)


def _mean(results: list[tuple[Arrays, int]]) -> Arrays:
    total = sum(samples for _, samples in results)
    weighted = [[layer * samples for layer in layers] for layers, samples in results]
    return [reduce(np.add, layers) / total for layers in zip(*weighted, strict=True)]


def _peer(problem: Problem, pack: Callable[[Arrays], Any] = _same, unpack: Callable[[Any], Any] = _same,
          aggregate: Callable[[Any], Arrays] = _mean) -> Built:  # fmt: skip
    arrays = _arrays(problem)
    message, model = pack(arrays), [[np.ones(array.shape, np.float32) for array in arrays]]

    def run() -> None:
        mean = aggregate([(unpack(message), 1) for _ in range(M)])
        model[0] = [x + change for x, change in zip(model[0], mean, strict=True)]

    return Built(run, lambda: torch.from_numpy(np.concatenate([x.ravel() for x in model[0]])))


def _flower(problem: Problem) -> Built:
    try:
        from flwr.server.strategy.aggregate import aggregate
    except ImportError as error:
        raise Skip(str(error)) from error
    return _peer(problem, aggregate=aggregate)


def _candidates() -> list[Candidate]:
    def halves(arrays: Arrays) -> Arrays:
        return [array.astype(np.float16) for array in arrays]

    ours = {
        "fastagg, list of arrays": (partial(_ours, pack=_same), "NumPy fp32, as Flower and FLARE hand them over"),
        "fastagg, dict of arrays": (partial(_ours, pack=_named), "the same by name"),
        "fastagg, dict of tensors": (partial(_ours, pack=_tensors), "a state_dict, as APPFL hands it over"),
        "fastagg, list of fp16 arrays": (partial(_ours, pack=halves), "half the message; widened in the step"),
        "fastagg, list of bytes": (partial(_ours, pack=_wire, unpack=_decode), "np.save's bytes, decoded first"),
    }
    peers = {
        "NumPy as Flower writes it": (_peer, "weigh every list, add them up, divide, add to the model"),
        "NumPy as Flower writes it, bytes": (partial(_peer, pack=_wire, unpack=_decode), "the same, decoded first"),
        "flwr's own aggregate": (_flower, "flwr.server.strategy.aggregate, then added to the model"),
    }
    return [Candidate(name, build, 4, note=note) for name, (build, note) in (ours | peers).items()]


# Counted like FedBuff's whole arrivals. The messages' own bytes are not included.
BYTES = (8 + 12 * (M - 2) + 16) / M
CASES = [
    Case(
        "message to model", BYTES, _candidates, "path", (10_000_000,), apart=2e-3, period=M, devices=("cpu",),
    )
]  # fmt: skip
