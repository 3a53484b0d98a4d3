"""Runs of a few servers, in folders and files: the same calls with an older and with the present version of fastagg."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from support.presets import numbers, update

import fastagg

SIZE = 30
FIRST, SECOND, THIRD, LAST = range(0, 8), range(8, 14), range(14, 19), range(19, 27)


def _with_statistics() -> dict[str, torch.Tensor]:
    return {
        "w": numbers(0, SIZE, 22), "bn.running_mean": torch.zeros(4), "bn.num_batches_tracked": torch.tensor(0)
    }  # fmt: skip


MAKE: dict[str, Callable[[], fastagg.Server]] = {
    "FedBuff": lambda: fastagg.FedBuff(numbers(0, SIZE, 22), buffer_size=3),
    "ACE": lambda: fastagg.ACE(numbers(0, SIZE, 22), lr=0.1, num_clients=4, cache="int8", warmup="partial"),
    "FADAS": lambda: fastagg.FADAS(_with_statistics(), lr=0.01, buffer_size=2, delay_threshold=2),
    "AsyncFedED": lambda: fastagg.AsyncFedED(numbers(0, SIZE, 22), lam=1.0, eps=1.0),
    "Calls": lambda: fastagg.FedBuff(numbers(0, SIZE, 22), buffer_size=9),
}


def play(server: fastagg.Server, numbered: range) -> None:
    """Answers of three clients whose delays differ; a fourth one never answers."""
    for number in numbered:
        client = (0, 1, 0, 2, 0, 1)[number % 6]
        if number % 7 == 0:
            server.dispatch(3)
        for one in (0, 1, 2):
            if number % 6 == 0 or one == client:
                server.dispatch(one)
        given: Any = update(number, SIZE)
        if "bn" in str(server.layout.spec()):
            given = {
                "w": given.float(), "bn.running_mean": torch.full((4,), number / 8.0),
                "bn.num_batches_tracked": torch.tensor(number),
            }  # fmt: skip
        server.receive(client, given, num_samples=2)
        if server.config()["direction"].get("size") == 9:
            _other_calls(server, number)


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


def found(server: fastagg.Server) -> dict[str, Any]:
    """What a client or a user can see of a server, in hexadecimal where it is numbers."""
    state = server.state_dict()
    tasks = state["tasks"]
    ids = list(tasks["clients"])
    owed = sorted(
        zip((int(ids[k]) for k in tasks["task_client"].tolist()), tasks["task_version"].tolist(), strict=True)
    )
    parts = {"flat": state["flat"], **{f"moment {key}": value for key, value in sorted(state["moments"].items())}}
    for key in ("sum", "acc"):
        if isinstance(value := state["direction"].get(key), torch.Tensor):
            parts[key] = value
    if "cache" in state["direction"]:
        cache = state["direction"]["cache"]
        parts |= {"rows": cache["data"], "scales": cache["scales"]}
    if isinstance(state["buffers"].get("values"), torch.Tensor):
        parts["statistics"] = state["buffers"]["values"]
    seen = {name: part.contiguous().view(torch.uint8).numpy().tobytes().hex() for name, part in parts.items()}
    return {"version": server.version, "steps": server.steps, "open": [list(one) for one in owed], **seen}
