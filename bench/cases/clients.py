"""Arrivals for different numbers of clients, each from another client: ACE by the format of its rows, and the memory
per client; and servers of a million clients compared with servers of a hundred."""

from __future__ import annotations

import random
from functools import partial

import machine
import torch
from peers import grid, whole
from peers.arrivals import Model, ace
from problem import Built, Candidate, Case, Problem, Skip

import fastagg
from cases.ace import ROW_BYTES
from cases.arrival import arrival, in_turn

LR = 0.1
PEER = "torch eager, fp32 cache"


def _room(problem: Problem, clients: int, row: float) -> None:
    needs, free = (clients * row + 12) * problem.size, machine.available_bytes(problem.device)
    if needs > 0.8 * free:
        raise Skip(f"needs {needs / 2**30:.0f} GiB, {free / 2**30:.0f} are free")


def _order(clients: int) -> list[int]:
    return random.Random(0).sample(range(clients), clients)


def _ours(problem: Problem, clients: int, format: str) -> Built:
    _room(problem, clients, ROW_BYTES[format])
    server = fastagg.ACE(
        torch.zeros(problem.size), lr=LR, num_clients=clients, cache=format, warmup="partial"
    )  # fmt: skip
    # int4's levels, which all formats represent exactly
    receive, order = arrival(server, grid(problem, "int4")), _order(clients)
    cache = server._running.extension.state.cache
    return Built(
        in_turn(lambda at: receive(order[at]), clients), lambda: server.flat[: whole(problem.size)], warm=clients,
        told=lambda: {"kept": cache.nbytes() / cache.slots / problem.size},
    )  # fmt: skip


def _peer(problem: Problem, clients: int) -> Built:
    _room(problem, clients, 4)
    model, update, order = Model(problem.zeros(), False), grid(problem, "int4"), _order(clients)
    receive = ace(model, LR, torch.zeros(clients, problem.size))
    run = in_turn(lambda at: receive(order[at], update), clients)
    return Built(run, lambda: model.x[: whole(problem.size)], warm=clients, told=lambda: {"kept": 4.0})


def _candidates(clients: int) -> list[Candidate]:
    return [
        *(
            Candidate(f"fastagg, {format} rows", partial(_ours, clients=clients, format=format), 6 + clients * row / 4)
            for format, row in ROW_BYTES.items()
        ),
        Candidate(PEER, partial(_peer, clients=clients), 4 + clients),
    ]


def _population(problem: Problem, rule: str, clients: int) -> Built:
    more = {"lr": 1e-3, "warmup": "partial"} if rule == "ACE" else {}
    server = getattr(fastagg, rule)(torch.zeros(problem.size), num_clients=clients, **more)
    return Built(in_turn(arrival(server, problem.update), clients), None, warm=5_000)


def _populations(rule: str) -> list[Candidate]:
    return [
        Candidate("fastagg", partial(_population, rule=rule, clients=1_000_000), 0),
        Candidate("fastagg, 100 clients", partial(_population, rule=rule, clients=100), 0),
    ]


CASES = [
    *(
        Case(
            f"ACE of {clients} clients", 0, partial(_candidates, clients), "path", (100_000, 10_000_000), lr=LR,
            apart=0.02, devices=("cpu",),
        )
        for clients in (10, 100, 1000)
    ),
    *(
        Case(f"{rule} of a million clients", 0, partial(_populations, rule), "path", (64,), devices=("cpu",))
        for rule in ("FedBuff", "ACE")
    ),
]  # fmt: skip
