"""From a framework's message to the model: what an integration costs beyond the step.

The algorithm is FedBuff over M updates (FedAvg's mean, when M clients answer); figures are per update.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from io import BytesIO
from typing import Any

import numpy as np
import torch
import turns
from problem import Problem, resnet18_shapes
from records import Row

import fastagg

Run = Callable[[], object]
FORMS = {
    "fastagg, list of arrays": "NumPy fp32, as Flower and FLARE hand them over",
    "fastagg, dict of arrays": "the same by name",
    "fastagg, dict of tensors": "a state_dict, as APPFL hands it over",
    "fastagg, list of fp16 arrays": "half the message; widened in the step",
    "fastagg, list of bytes": "np.save's bytes, decoded first: Flower's and gRPC's wire",
}
PEERS = {
    "NumPy as Flower writes it": "weigh every list, add them up, divide, add to the model",
    "NumPy as Flower writes it, bytes": "the same, decoded first",
    "flwr's own aggregate": "flwr.server.strategy.aggregate, then added to the model",
}
CANDIDATES = {**FORMS, **PEERS}


def messages(_case: Any, size: int, rounds: int = 15) -> list[Row]:
    """Every form and the peers; the models are compared first."""
    problem = Problem(size)
    arrays = _arrays(problem)
    names = [f"layer{i}" for i in range(len(arrays))]
    named = dict(zip(names, arrays, strict=True))
    wire = [_encode(array) for array in arrays]
    forms: dict[str, tuple[Any, Callable[[], Any]]] = {
        "fastagg, list of arrays": (arrays, lambda: arrays),
        "fastagg, dict of arrays": (named, lambda: named),
        "fastagg, dict of tensors": _tensors(names, arrays),
        "fastagg, list of fp16 arrays": _halves(arrays),
        "fastagg, list of bytes": (arrays, lambda: [_decode(piece) for piece in wire]),
    }
    runs: dict[str, Run] = {}
    models: dict[str, Callable[[], torch.Tensor]] = {}
    for name, (like, message) in forms.items():
        server = fastagg.FedBuff(_zeros(like), lr=1.0, buffer_size=problem.buffer_size)
        runs[name] = _traffic(server, message, problem.buffer_size)
        models[name] = lambda server=server: server.flat  # type: ignore[misc]
    skipped = {}
    for name, build in _peers(arrays, wire, problem).items():
        if isinstance(build, str):
            skipped[name] = build
        else:
            runs[name], models[name] = build
    want = None
    for name, run in runs.items():
        run()
        got = models[name]()
        want = got.clone() if want is None else want
        rtol = 2e-3 if "fp16" in name else 1e-4
        torch.testing.assert_close(got, want, rtol=rtol, atol=1e-6, msg=f"{name}: another model")
    m = problem.buffer_size
    bytes_ = 4 + (8 + 12 * (m - 2) + 16) / m  # as servers.py counts FedBuff: the messages' own bytes are not in it
    return turns.rows(
        "message to model", runs, size, bytes_, rounds, period=m, notes=CANDIDATES, leader=next(iter(FORMS)),
        skipped=skipped,
    )  # fmt: skip


def _arrays(problem: Problem) -> list[np.ndarray]:
    pieces = [piece.numpy() for piece in problem.layers(problem.update)]
    shapes = resnet18_shapes()
    if [piece.size for piece in pieces] == [torch.Size(shape).numel() for shape in shapes]:
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    return pieces


def _tensors(names: list[str], arrays: list[np.ndarray]) -> tuple[Any, Callable[[], Any]]:
    tensors = {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}
    return tensors, lambda: tensors


def _halves(arrays: list[np.ndarray]) -> tuple[Any, Callable[[], Any]]:
    halves = [array.astype(np.float16) for array in arrays]
    return arrays, lambda: halves


def _zeros(like: Any) -> Any:
    if isinstance(like, dict):
        return {name: torch.zeros(value.shape) for name, value in like.items()}
    return [torch.zeros(value.shape) for value in like]


def _traffic(server: fastagg.Server, message: Callable[[], Any], period: int) -> Run:
    def run() -> None:
        for client in range(period):
            server.dispatch(client)
            server.receive(client, message())

    return run


def _peers(
    arrays: list[np.ndarray], wire: list[bytes], problem: Problem
) -> dict[str, tuple[Run, Callable[[], torch.Tensor]] | str]:
    def peer(aggregate: Callable[[list[Any]], list[Any]], message: Callable[[], list[Any]]) -> Any:
        model = [[np.zeros(array.shape, np.float32) for array in arrays]]

        def run() -> None:
            mean = aggregate([(message(), 1) for _ in range(problem.buffer_size)])
            model[0] = [x + change for x, change in zip(model[0], mean, strict=True)]

        return run, lambda: torch.from_numpy(np.concatenate([x.ravel() for x in model[0]]))

    own: Any = "flwr is not installed"
    try:
        from flwr.server.strategy.aggregate import aggregate

        own = peer(aggregate, lambda: arrays)
    except ImportError as error:
        own = f"{error}"
    return {
        "NumPy as Flower writes it": peer(_mean, lambda: arrays),
        "NumPy as Flower writes it, bytes": peer(_mean, lambda: [_decode(piece) for piece in wire]),
        "flwr's own aggregate": own,
    }


def _mean(results: list[tuple[list[np.ndarray], int]]) -> list[np.ndarray]:
    total = sum(samples for _, samples in results)
    weighted = [[layer * samples for layer in layers] for layers, samples in results]
    return [reduce(np.add, layers) / total for layers in zip(*weighted, strict=True)]


def _encode(array: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _decode(data: bytes) -> np.ndarray:
    return np.load(BytesIO(data), allow_pickle=False)
