"""Every public call of a server, by name: the one table of operations. Faults are put into them (support/refusing.py,
server/test_torn.py, server/test_reentry.py), folders are filled with them (support/damaged.py), and lives are made of
them (support/simulated.py). What they are drawn with, and what comes of them: fuzz/beside.py.

An operation is called with a server that has an open task of the client, the client, and a number that it is made of.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch

import fastagg
from support.presets import update

Client = int | str
Operation = Callable[[fastagg.Server, Any, int], Any]
RATES = (0.5, 0.25, 1.0)


def sent(server: fastagg.Server, number: int) -> torch.Tensor:
    """The update of a number."""
    return update(number, server.layout.size)


def samples(number: int) -> float:
    return 1.0 + number % 4


def other(client: Client) -> int:
    return 2 if client == 1 else 1


def model(server: fastagg.Server, client: Client, number: int, **how: Any) -> fastagg.Answer:
    """A trained model, or its difference."""
    task, update = server.dispatch(client), sent(server, number)
    update = update if how else server.flat.float() + update.float()
    return fastagg.Answer.to(task, update, samples(number), **how)


def whole(answer: fastagg.Answer, server: fastagg.Server) -> Any:
    """An answer that comes alone."""
    return server.receive_model(answer.sent, answer.update, answer.num_samples, difference=answer.kind == "delta")


def in_chunks(server: fastagg.Server, client: Client, number: int) -> Any:
    data = sent(server, number).float().numpy().tobytes()
    with server.receiving(client, num_samples=samples(number)) as upload:
        for at in range(0, len(data), 500):
            upload.write(data[at : at + 500])
    return upload.receipt


def set_rate(server: fastagg.Server, client: Client, number: int) -> None:
    server.lr = RATES[number % len(RATES)]


CHANGES: dict[str, Operation] = {
    "dispatch": lambda server, client, n: server.dispatch(client),
    "hand_on": lambda server, client, n: server.hand_on(server.dispatch(client), other(client)),
    "receive": lambda server, client, n: server.receive(client, sent(server, n), num_samples=samples(n)),
    "receive, read by Python": lambda server, client, n: server.receive(
        client, sent(server, n), num_samples=samples(n), kind=server.update_kind),
    "receive_many": lambda server, client, n: server.receive_many(
        [(who, sent(server, n + k), None, samples(n)) for k, who in enumerate((client, other(client)))]),
    "receive_model": lambda server, client, n: whole(model(server, client, n), server),
    "receive_model, a difference": lambda server, client, n: whole(model(server, client, n, kind="delta"), server),
    "models": lambda server, client, n: server.receive_many(
        [model(server, who, n + k) for k, who in enumerate((client, other(client)))]),
    "receive_partial": lambda server, client, n: server.receive_partial(
        client, fastagg.Partial(sent(server, n).float(), 1, 1.0)),
    "receiving": in_chunks,
    "close_round": lambda server, client, n: server.close_round(),
    "forget": lambda server, client, n: server.forget(client),
    "expire": lambda server, client, n: server.expire(before=n),
    "lr": set_rate,
    "load_state_dict": lambda server, client, n: server.load_state_dict(server.state_dict()),
}  # fmt: skip
READS: dict[str, Operation] = {
    "version": lambda server, client, n: server.version,
    "flat": lambda server, client, n: server.flat,
    "parameters": lambda server, client, n: server.parameters(),
    "memory": lambda server, client, n: server.memory(),
    "config": lambda server, client, n: server.config(),
    "state_dict": lambda server, client, n: server.state_dict(),
    "deepcopy": lambda server, client, n: copy.deepcopy(server),
}
STORED: dict[str, Operation] = {
    "flush": lambda server, client, n: server.flush(),
    "checkpoint": lambda server, client, n: server.checkpoint(),
}
