"""Whole arrivals: a task is sent, held and answered. The peers do the rule's arithmetic in checked eager torch.

The peers (``peers/arrivals.py``) work in place and look for NaN with one ``dot``. If their name says that a version is
kept, they write the next version to another vector, as a server must if a client still holds the current one.

The peers read an update twice, so nobody may write to it meanwhile. ``fastagg`` is told so (``still=True``).
``fastagg, read once`` is not told: it reads each number once, whatever another thread does to the update.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import machine
import peers.arrivals as eager
import torch
from problem import SIZES, Built, Candidate, Case, Problem

import fastagg

LR, BETAS, EPS, BUFFER, CLIENTS, MANY = 1e-3, (0.9, 0.99), 1e-8, 10, 100, 64
MOST = 0.08  # the part of the free memory for one candidate's rows: a group has three of them, and the streams
# Two and three vectors of these begin to miss the caches at some of them.
BETWEEN = (300_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 6_000_000)
Make = Callable[..., fastagg.Server]  # (start, **keywords)
Peer = Callable[[eager.Model, int], eager.Receive]


@cache  # cached, because the first candidate's rows leave less room, but the second must use as many clients
def heard(size: int, device: torch.device) -> int:
    """Return the number of clients: as many as there is room for fp32 rows, for us and for the peer."""
    return max(2, min(CLIENTS, int(MOST * machine.available_bytes(device) / (4 * size))))


def in_turn(receive: Callable[[int], object], clients: int, period: int = 1) -> Callable[[], None]:
    """Return a function that handles the next clients' arrivals."""
    at = 0

    def run() -> None:
        nonlocal at
        for _ in range(period):
            receive(at)
            at = at + 1 if at + 1 < clients else 0

    return run


def arrival(server: fastagg.Server, update: object, still: bool = True) -> Callable[[int], None]:
    """Return a function for one arrival at a server. The task is held until its answer is counted."""

    def receive(client: int) -> None:
        task = server.dispatch(client)
        server.receive(client, update, still=still)
        del task

    return receive


def served(problem: Problem, make: Make, **more: object) -> fastagg.Server:
    return make(torch.zeros(problem.size, device=problem.device), **more)


def _ours(problem: Problem, make: Make, rows: bool, still: bool = True) -> Built:
    clients = heard(problem.size, problem.device) if rows else 1
    server = served(problem, make, num_clients=clients) if rows else served(problem, make)
    run = in_turn(arrival(server, problem.update, still), clients)
    return Built(run, lambda: server.flat, warm=max(2 * clients, BUFFER))


def _peer(problem: Problem, make: Peer, rows: bool, keeps: bool) -> Built:
    model = eager.Model(problem.zeros(), keeps)
    clients = heard(problem.size, problem.device) if rows else 1
    receive = make(model, clients)
    run = in_turn(lambda client: receive(client, problem.update), clients)
    return Built(run, lambda: model.x, warm=max(2 * clients, BUFFER))


def _candidates(make: Make, peers: dict[str, Peer], rows: bool = False) -> list[Candidate]:
    vectors = 4 + (8 if rows else 4)
    return [
        Candidate("fastagg", partial(_ours, make=make, rows=rows), vectors),
        Candidate("fastagg, read once", partial(_ours, make=make, rows=rows, still=False), vectors),
        *(
            Candidate(f"{name}{words}", partial(_peer, make=peer, rows=rows, keeps=bool(words)), vectors)
            for name, peer in peers.items()
            for words in ("", ", a version kept")
        ),
    ]  # fmt: skip


def _many(problem: Problem, make: Make) -> Built:
    """Send tasks to all clients, then call ``receive_many``."""
    server = served(problem, make)
    answers = [(client, problem.update, None, None) for client in range(MANY)]

    def run() -> None:
        for client in range(MANY):
            server.dispatch(client)
        outcomes = server.receive_many(answers)
        if not isinstance(outcomes[0], fastagg.Receipt):
            raise AssertionError(f"receive_many: {outcomes[0]!r}")

    return Built(run, lambda: server.flat)


def _many_peer(problem: Problem, make: Peer) -> Built:
    model = eager.Model(problem.zeros(), False)
    receive = make(model, 1)
    return Built(in_turn(lambda client: receive(client, problem.update), MANY, MANY), lambda: model.x)


FEDBUFF_SERVER = partial(fastagg.FedBuff, lr=1.0, buffer_size=BUFFER)
ASGD = partial(fastagg.ASGD, lr=LR)
FADAS = partial(fastagg.FADAS, lr=LR, buffer_size=1, betas=BETAS, eps=EPS)
FEDASYNC = partial(fastagg.FedAsync, alpha=0.6, policy="constant")
# With a partial warm-up a row takes memory only after its client was heard.
ACE = {
    name: partial(fastagg.ACE, lr=LR, num_clients=CLIENTS, cache=name, warmup="partial") for name in ("fp32", "int8")
}


def _ace_peer(model: eager.Model, clients: int) -> eager.Receive:
    return eager.ace(model, LR, model.x.new_zeros(clients, model.x.numel()))


EAGER: dict[str, Peer] = {
    "FedBuff": lambda model, _: eager.fedbuff(model, 1.0, BUFFER),
    "ASGD": lambda model, _: eager.asgd(model, LR),
    "FADAS": lambda model, _: eager.fadas(model, LR, BETAS, EPS),
    "fused": lambda model, _: eager.fadas_fused(model, LR, BETAS, EPS),
    "FedAsync": lambda model, _: eager.fedasync(model, 0.6),
}
# The first update of a buffer is written, the others are added, and the last is read by the step.
# NaN is looked for in the same pass, so an update is read once.
FEDBUFF = (8 + 12 * (BUFFER - 2) + 16) / BUFFER


def _case(name: str, bytes_: float, candidates: list[Candidate], **more: object) -> Case:
    given = {"group": "arrival", "apart": 1e-4, "sizes": tuple(sorted({*SIZES, *BETWEEN})), **more}
    return Case(name, bytes_, lambda: candidates, **given)  # type: ignore[arg-type]


CASES = [
    _case("arrival FedBuff, M = 10", FEDBUFF, _candidates(FEDBUFF_SERVER, {"torch eager": EAGER["FedBuff"]})),
    _case("arrival ASGD", 12, _candidates(ASGD, {"torch eager": EAGER["ASGD"]})),
    _case(
        "arrival FADAS, M = 1", 36,
        _candidates(FADAS, {"torch eager": EAGER["FADAS"], "torch's fused AMSGrad": EAGER["fused"]}),
    ),
    _case("arrival FedAsync", 16, _candidates(FEDASYNC, {"torch eager": EAGER["FedAsync"]})),
    _case("arrival ACE fp32", 28, _candidates(ACE["fp32"], {"torch eager": _ace_peer}, True)),
    _case(
        "arrival ACE int8", 22,
        _candidates(ACE["int8"], {"torch eager, fp32 cache": _ace_peer}, True), apart=0.02,
    ),
    *(
        _case(
            f"receive_many of {MANY}, {name}", bytes_,
            [
                Candidate("fastagg", partial(_many, make=make), 6),
                Candidate("torch eager", partial(_many_peer, make=EAGER[name]), 4),
            ],
            sizes=(1_000, 100_000), period=MANY,
        )
        for name, bytes_, make in (("FedBuff", FEDBUFF, FEDBUFF_SERVER), ("ASGD", 12, ASGD))
    ),
]  # fmt: skip
