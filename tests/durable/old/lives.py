"""Runs of a few servers, in folders and files: the same calls with an older and with the present version of fastagg.
fastagg 0.1.0 wrote lives.tar.xz and lives.json when its log had format 3; this folder's history has the program."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import torch
from support.presets import numbers, update
from torch import Tensor, nn

import fastagg

SIZE = 30
LAST = range(19, 27)  # what was not written then
LARGEST = 2.0  # of the exact sum's updates
Make = Callable[[], fastagg.Server]


def _model() -> Tensor:
    return numbers(0, SIZE, 22)


def _with_statistics() -> dict[str, Tensor]:
    return {"w": _model(), "bn.running_mean": torch.zeros(4), "bn.num_batches_tracked": torch.tensor(0)}


def _echo() -> fastagg.Server:
    net = nn.Linear(5, 5)  # of SIZE parameters
    with torch.no_grad():
        net.weight.copy_(_model()[:25].reshape(5, 5))
        net.bias.copy_(_model()[25:])
    distill = fastagg.Distillation(net, numbers(9, 40, 22).reshape(8, 5), steps=2, lr=0.01, batch_size=4)
    return fastagg.FedEcho(net, distill=distill, num_clients=5, buffer_size=3, cache="bf16")


MAKE: dict[str, Make] = {
    "FedBuff": lambda: fastagg.FedBuff(_model(), buffer_size=3),
    "FedAsync": lambda: fastagg.FedAsync(_model(), policy="polynomial"),
    "ACE": lambda: fastagg.ACE(_model(), lr=0.1, num_clients=5, cache="int8", warmup="partial"),
    "ACED": lambda: fastagg.ACED(_model(), lr=0.1, num_clients=5, cache="bf16", max_delay=2, warmup="partial"),
    "CA2FL": lambda: fastagg.CA2FL(_model(), num_clients=5, buffer_size=2, cache="int4"),
    "FADAS": lambda: fastagg.FADAS(_with_statistics(), lr=0.01, buffer_size=2, delay_threshold=2, moments="8bit"),
    "FedAC": lambda: fastagg.FedAC(_model(), lr=0.01, buffer_size=2),
    "AsyncFedED": lambda: fastagg.AsyncFedED(_model(), lam=1.0, eps=1.0),
    "FedEcho": _echo,
    "exact": lambda: fastagg.FedBuff(_model(), buffer_size=6, exact=LARGEST, clip_norm=1.0),
    "ordered": lambda: fastagg.FedAvg(_model(), clients_per_round=4, deterministic=True),
    "upload": lambda: fastagg.FedBuff(_model(), buffer_size=2, weighting="samples"),
    "Calls": lambda: fastagg.FedBuff(_model(), buffer_size=9),
}
TRAINED = ("FedEcho",)  # its bits depend on torch's matrix products


def play(name: str, server: fastagg.Server, numbered: range) -> None:
    """Answers of three clients whose delays differ, and one of each other call. Client 3 never answers."""
    for number in numbered:
        client = (0, 1, 0, 2, 0, 1)[number % 6]
        if number % 7 == 0:
            server.dispatch(3)
        for one in (0, 1, 2):
            if number % 6 == 0 or one == client:
                server.dispatch(one)
        if name != "Calls" and number == 10:
            server.hand_on(server.dispatch(3), 4)
            server.forget(3, server.version)
            server.lr = server.lr / 2
        if name != "Calls" and number == 15:
            server.expire(before=2)
        given: Any = update(number, SIZE)
        if name == "FADAS":
            given = {
                "w": given.float(), "bn.running_mean": torch.full((4,), number / 8.0),
                "bn.num_batches_tracked": torch.tensor(number),
            }  # fmt: skip
        if name == "exact" and number % 3 == 0:
            leaf = fastagg.Leaf(_model(), exact=LARGEST, clip_norm=1.0)
            for more in (0, 100):
                leaf.fold(update(number + more, SIZE))
            server.receive_partial(client, leaf.take())
        elif name == "upload" and number % 2 == 0:
            with server.receiving(client, num_samples=1 + number, dtype=given.dtype) as upload:
                upload.write(given.view(torch.uint8).numpy().tobytes())
        else:
            control = numbers(number + 50, SIZE, 24) if name == "FedAC" else None
            server.receive(client, given, num_samples=1 + number, control=control)
        if name == "Calls":
            _other_calls(server, number)
        if number in (11, 24) and name in ("FedBuff", "exact"):
            server.close_round()


def _other_calls(server: fastagg.Server, number: int) -> None:
    """A name and a number beyond 63 bits, an update in chunks, the end of a round, and tasks that end."""
    for client in ("ünïcode", 2**63 + number):
        server.dispatch(client)
    with server.receiving("ünïcode") as upload:
        upload.write(update(number, SIZE).float().numpy().tobytes())
    server.receive(2**63 + number, update(number, SIZE))
    server.close_round()
    server.dispatch(7)
    server.hand_on(server.dispatch(8), 9)
    server.forget(8) if number % 2 else server.expire(before=2)
    server.lr = 1.0 / (1 + number)


def parts(server: fastagg.Server) -> dict[str, Tensor]:
    """The numbers of a server's state, by name."""
    state = server.state_dict()
    found = {"flat": state["flat"], **{f"moment {key}": value for key, value in sorted(state["moments"].items())}}
    for key in ("sum", "acc", "control", "change"):
        if isinstance(value := state["direction"].get(key), Tensor):
            found[key] = value
    if "cache" in state["direction"]:
        cache = state["direction"]["cache"]
        found |= {"rows": cache["data"], "scales": cache["scales"]}
    if isinstance(state["buffers"].get("values"), Tensor):
        found["statistics"] = state["buffers"]["values"]
    return found


def found(name: str, server: fastagg.Server) -> dict[str, Any]:
    """What a client or a user can see of a server; of numbers, the digests."""
    tasks = server.state_dict()["tasks"]
    ids = list(tasks["clients"])
    owed = sorted(
        zip((int(ids[k]) for k in tasks["task_client"].tolist()), tasks["task_version"].tolist(), strict=True)
    )
    digests = {
        part: sha256(held.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        for part, held in parts(server).items()
    }
    seen = {"version": server.version, "steps": server.steps, "lr": server.lr, "open": [list(one) for one in owed]}
    return seen if name in TRAINED else {**seen, "parts": digests}
