r"""Encoded updates: whole rounds and arrivals, and the client's encoder. An upload is read from its bytes each time.

All of it, two threads (a minute or two for each case and size):
pytest bench/ --case "round in int8" --case "arrival of top-k*" --case "ACE int8 from int8" --case "fp32 round*" \
  --case "encoder int8" --sizes 1e5,1e6,1e7,1e8 --threads 2
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch
from problem import Built, Candidate, Case, Problem
from torch import Tensor

import fastagg
from cases.arrival import BUFFER, FEDBUFF_SERVER, in_turn

SIZES = (100_000, 1_000_000, 10_000_000, 100_000_000)
BLOCK, CLIENTS = 256, 4
TOP = fastagg.TopK(0.01, "bf16")
Upload = Callable[[], Any]


def _upload(problem: Problem, format: Any) -> Upload:
    """Return what makes an update of what has come: from fp32 nothing has to be made. Each upload of a round has bytes
    of its own, or they would all lie in a cache."""
    if format is None:
        return lambda: problem.update
    encoded = fastagg.encode(problem.update.cpu(), format, seed=1)
    uploads = cycle([encoded.to_bytes() for _ in range(BUFFER)])
    return lambda: fastagg.Encoded.from_bytes(next(uploads))


def _arrivals(server: fastagg.Server, upload: Upload) -> Callable[[int], None]:
    def receive(client: int) -> None:
        server.dispatch(client)
        server.receive(client, upload())

    return receive


def _round(problem: Problem, format: Any) -> Built:
    server = FEDBUFF_SERVER(problem.zeros())
    run = in_turn(_arrivals(server, _upload(problem, format)), BUFFER, BUFFER)
    return Built(run, None if format is TOP else lambda: server.flat)


def _waiting(problem: Problem, format: Any) -> Built:
    """Ten arrivals that make no step."""
    server = fastagg.FedBuff(torch.zeros(problem.size), buffer_size=BUFFER + 1)
    run = in_turn(_arrivals(server, _upload(problem, format)), BUFFER, BUFFER)
    return Built(run, None, before=server.close_round)


def _ace(problem: Problem, format: Any) -> Built:
    server = fastagg.ACE(torch.zeros(problem.size), lr=problem.lr, num_clients=CLIENTS, cache="int8", warmup="partial")
    run = in_turn(_arrivals(server, _upload(problem, format)), CLIENTS)
    return Built(run, lambda: server.flat, warm=CLIENTS)


def _many(problem: Problem, together: bool) -> Built:
    server = FEDBUFF_SERVER(torch.zeros(problem.size))
    answers = [(client, problem.update) for client in range(BUFFER)]

    def run() -> None:
        for client in range(BUFFER):
            server.dispatch(client)
        if together:
            server.receive_many(answers)
        else:
            for answer in answers:
                server.receive(*answer)

    return Built(run, lambda: server.flat)


def _codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes and scales of whole blocks of int8, rounded without bias, as torch makes them."""
    blocks = torch.nn.functional.pad(x, (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True).div_(127.0)
    return (blocks / scales).add_(torch.rand_like(blocks)).floor_().clamp_(-127, 127).to(torch.int8), scales


def _torch(problem: Problem, whole: bool) -> Built:
    """Decode an upload, whole or block by block so that it stays in the cache, and add it up; then torch's fused SGD.
    Scales that are not finite are refused."""
    codes, scales = _codes(problem.update)
    model, total = torch.zeros(codes.numel()), torch.zeros(codes.shape)
    block = len(codes) if whole else 4096
    scratch = torch.empty(block, BLOCK)

    def one(k: int) -> None:
        if not bool(torch.isfinite(scales).all()):
            raise ValueError("not finite")
        for at in range(0, len(codes), block):
            decoded = scratch[: len(codes[at : at + block])]
            torch.mul(codes[at : at + block], scales[at : at + block], out=decoded)
            total[at : at + block].add_(decoded)
        if k % BUFFER == BUFFER - 1:
            torch._fused_sgd_(
                [model], [total.view(-1)], [], weight_decay=0.0, momentum=0.0, lr=1.0 / BUFFER, dampening=0.0,
                nesterov=False, maximize=True, is_first_step=False,
            )  # fmt: skip
            total.zero_()

    return Built(in_turn(one, BUFFER, BUFFER), lambda: model[: problem.size])


def _encoder(problem: Problem) -> Built:
    return Built(lambda: fastagg.encode(problem.update, "int8", seed=1), None)


def _encoder_torch(problem: Problem) -> Built:
    return Built(lambda: _codes(problem.update), None)


def _pair(build: Callable[..., Built], format: Any, vectors: float) -> list[Candidate]:
    return [
        Candidate("fastagg", partial(build, format=format), vectors),
        Candidate("fastagg, fp32", partial(build, format=None), vectors),
    ]


def _case(name: str, candidates: list[Candidate], period: int = 1, bytes_: float = 0, **more: Any) -> Case:
    return Case(name, bytes_, lambda: candidates, "path", SIZES, period=period, **{"devices": ("cpu",), **more})


CASES = [
    _case(
        "round in int8",
        [
            *_pair(_round, "int8", 11),
            Candidate("fastagg, top-k 1%", partial(_round, format=TOP), 4),
            Candidate("torch, decoded whole", partial(_torch, whole=True), 6, devices=("cpu",)),
            Candidate("torch, decoded in blocks", partial(_torch, whole=False), 5, devices=("cpu",)),
        ],
        BUFFER, apart=0.02, devices=("cpu", "cuda"),
    ),
    _case("arrival of top-k 1%", _pair(_waiting, TOP, 5), BUFFER),
    _case("ACE int8 from int8", _pair(_ace, "int8", 13), apart=0.02),
    _case(
        "fp32 round in one call",
        [
            Candidate("fastagg", partial(_many, together=True), 5),
            Candidate("fastagg, one by one", partial(_many, together=False), 5),
        ],
        BUFFER,
    ),
    _case(
        "encoder int8",
        [Candidate("fastagg", _encoder, 2), Candidate("torch eager", _encoder_torch, 6)], bytes_=5 + 4 / BLOCK,
    ),
]  # fmt: skip
