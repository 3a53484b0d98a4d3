"""What bench/arrivals.py measures, a function a section; each gives finished rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import peers.arrivals as eager
import torch
from arrival_kernels import ARRIVALS, Traffic
from arrival_rules import RULES, Receive, Rule, heard
from problem import Problem
from timing import Quantiles, Timings, interleave, self_timed
from torch import Tensor

import fastagg

SHORT = 1_000_000
MANY = 64  # answers in one call of receive_many


@dataclass(frozen=True)
class Row:
    """fastagg's time for one arrival beside another's.

    Attributes:
        what: the rule.
        size: d, parameters.
        seconds: fastagg's, p20, p50, p80.
        beside: what it is compared with.
        ratio: fastagg's time over its, round by round: p20, p50, p80; 0 where there is none.
        at_most: what the median of the ratio should not exceed; None where nothing was promised.
        note: what a reader must know.
        others, discarded: as in timing.py.
    """

    section: str
    what: str
    size: int
    threads: int
    seconds: Quantiles | tuple[float, ...] = ()
    beside: str = ""
    ratio: Quantiles | tuple[float, ...] = ()
    at_most: float | None = None
    note: str = ""
    others: float | None = None
    discarded: int = 0


OURS = "fastagg"


def beside_eager(sizes: list[int], rounds: int | None) -> Iterator[Row]:
    """dispatch + receive over the rule's arithmetic in eager torch."""
    for size in sizes:
        for what, rule in RULES.items():
            for keeps in (False, True) if size >= SHORT else (False,):
                yield from _beside_eager(what, rule, size, keeps, rounds or usual(size))


def _beside_eager(what: str, rule: Rule, size: int, keeps: bool, rounds: int) -> Iterator[Row]:
    update = Problem(size).update
    server = rule.make(size)
    clients = heard(size) if what.startswith("ACE") else 1
    runs = {OURS: _turns(_arrival(server), update, clients)}
    models = {}
    for name, make in rule.peers.items():
        models[name] = eager.Model(size, keeps)
        runs[name] = _turns(make(models[name], clients), update, clients)
    for _ in range(max(2 * clients, 20)):
        for run in runs.values():
            run()
    for name, model in models.items():
        _same(f"{what}, {name}", server.flat, model.x, rule.close)
    found = interleave(runs, rounds=rounds)
    note = f"{clients} clients heard" if clients > 1 else ""
    for name in models:
        named = f"{name}, a version kept" if keeps else name
        at_most = rule.at_most if size <= 1_000 else 1.0
        yield _row("eager", what, size, found, name, named, at_most, note)


def many(sizes: list[int], rounds: int | None) -> Iterator[Row]:
    """``receive_many`` of 64, per arrival, over eager; sending the tasks out is not in the time."""
    for size in sizes:
        update = Problem(size).update
        for what in ("FedBuff, M = 10", "ASGD"):
            rule = RULES[what]
            peer = rule.peers["eager"](eager.Model(size, False), 1)
            runs = {OURS: _batches(rule.make(size), update), "eager": _eager_batches(peer, update)}
            found = self_timed(runs, rounds=rounds or usual(size))
            yield _row("many", what, size, found, "eager", "eager", 0.5, f"{MANY} answers a call")


def over_kernels(sizes: list[int], rounds: int | None) -> Iterator[Row]:
    """A whole arrival over its kernels alone: what it may cost more is one look at the update and 5%."""
    for size in sizes:
        for what, make in ARRIVALS.items():
            traffic: Traffic = make(size)
            for _ in range(2 * traffic.clients):
                traffic.whole()
                traffic.kernels()
            runs = {OURS: lambda t=traffic: _own_time(t.whole), "kernels": lambda t=traffic: _own_time(t.kernels)}
            found = self_timed(runs, rounds=rounds or usual(size))
            at_most = (traffic.bytes + 4) / traffic.bytes * 1.05
            note = f"{traffic.bytes:g} bytes a parameter and 4 for the look"
            yield _row("kernels", what, size, found, "kernels", "its kernels alone", at_most, note)


def populations(few: int, many: int, warm: int, arrivals: int, rounds: int) -> Iterator[Row]:
    """One arrival at a server of ``many`` clients over one at a server of ``few``; always another client's."""
    size = 64
    update = Problem(size).update
    for what, make in _presets(size).items():
        runs: dict[str, Callable[[], float]] = {}
        try:
            for name, clients in ((OURS, many), ("few", few)):
                runs[name] = _medians(make(clients), update, clients, warm, arrivals)
            found = self_timed(runs, rounds=rounds)
        except fastagg.FastaggError as error:
            yield Row("clients", what, size, fastagg.get_num_threads(), note=f"{type(error).__name__}: {error}")
            continue
        yield _row("clients", what, size, found, "few", f"{few:,} clients", 1.2, f"{many:,} clients")


def tail(size: int, clients: int, arrivals: int) -> Iterator[Row]:
    """The slowest arrivals over the usual one: ACE with int8 rows, all of them heard; beside each, a pass of torch's
    that says how even the machine was meanwhile."""
    server = fastagg.ACE(torch.zeros(size), lr=1e-3, num_clients=clients, cache="int8", warmup="partial")
    update, busy = Problem(size).update, torch.zeros(size)
    ours: list[float] = []
    passes: list[float] = []
    for arrival in range(clients + arrivals):
        client = arrival % clients
        server.dispatch(client)
        began = time.perf_counter()
        server.receive(client, update)
        ended = time.perf_counter()
        busy.add_(update)
        if arrival >= clients:
            ours.append(ended - began)
            passes.append(time.perf_counter() - ended)
    for what, taken, at_most in (("ACE int8", ours, 2.0), ("torch add_", passes, None)):
        p50, p99, p999 = (_at(taken, q) for q in (0.5, 0.99, 0.999))
        note = f"{clients:,} clients, {arrivals:,} arrivals; p99 {1e3 * p99:.2f} ms, longest {1e3 * max(taken):.2f} ms"
        yield Row(
            "tail", what, size, fastagg.get_num_threads(), (_at(taken, 0.2), p50, _at(taken, 0.8)),
            f"p99.9, {1e3 * p999:.2f} ms, over p50", (p999 / p50,) * 3, at_most, note,
        )  # fmt: skip


def usual(size: int) -> int:
    """Rounds, where none are asked for: more for short steps, as in run.py."""
    return 31 if size < SHORT else 15


# -- pieces ------------------------------------------------------------------------------------------------------------


def _row(
    section: str, what: str, size: int, found: Timings, peer: str, beside: str, at_most: float | None, note: str
) -> Row:
    return Row(
        section, what, size, fastagg.get_num_threads(), found.seconds(OURS), beside, found.ratio(OURS, peer), at_most,
        note, found.others, found.discarded,
    )  # fmt: skip


def _arrival(server: fastagg.Server) -> Receive:
    """A whole arrival: the task goes out, is held until its answer, and is answered."""

    def receive(client: int, update: Tensor) -> None:
        task = server.dispatch(client)
        server.receive(client, update)
        del task

    return receive


def _turns(receive: Receive, update: Tensor, clients: int) -> Callable[[], None]:
    """The next client's arrival."""
    if clients == 1:
        return lambda: receive(0, update)
    at = 0

    def run() -> None:
        nonlocal at
        receive(at, update)
        at = at + 1 if at + 1 < clients else 0

    return run


def _same(what: str, got: Tensor, want: Tensor, close: float) -> None:
    apart = float((got - want).norm() / want.norm())
    if not apart <= close:
        raise AssertionError(f"{what}: the models differ by {apart:.2g} of their norm")


def _batches(server: fastagg.Server, update: Tensor) -> Callable[[], float]:
    answers = [(client, update, None, None) for client in range(MANY)]
    calls = max(1, 100_000 // update.numel())

    def sample() -> float:
        taken = 0.0
        for _ in range(calls):
            for client in range(MANY):
                server.dispatch(client)
            began = time.perf_counter()
            outcomes = server.receive_many(answers)
            taken += time.perf_counter() - began
            if not all(isinstance(one, fastagg.Receipt) for one in outcomes):
                raise AssertionError(f"receive_many: {outcomes[0]!r}")
        return taken / calls / MANY

    return sample


def _eager_batches(receive: Receive, update: Tensor) -> Callable[[], float]:
    calls = max(1, 100_000 // update.numel())

    def sample() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            for client in range(MANY):
                receive(client, update)
        return (time.perf_counter() - began) / calls / MANY

    return sample


def _own_time(run: Callable[[], float], least: float = 5e-3) -> float:
    """The median of as many calls as fill a few milliseconds; each says its own time."""
    taken, until = [run()], time.perf_counter() + least
    while time.perf_counter() < until:
        taken.append(run())
    return statistics.median(taken)


def _presets(size: int) -> dict[str, Callable[[int], fastagg.Server]]:
    start = torch.zeros(size)
    return {
        "FedBuff": lambda n: fastagg.FedBuff(start, num_clients=n),
        "FedBuff, any ids, all of them sent a task": lambda n: _all_sent(fastagg.FedBuff(start), n),
        "FedAsync": lambda n: fastagg.FedAsync(start, num_clients=n),
        "AsyncFedED": lambda n: fastagg.AsyncFedED(start, lam=1.0, eps=1.0, num_clients=n),
        "ACE": lambda n: fastagg.ACE(start, lr=1e-3, num_clients=n, warmup="partial"),
        "ACED, freshness by dispatch": lambda n: _aced(start, n, "dispatch"),
        "ACED, freshness by gradient": lambda n: _aced(start, n, "gradient"),
        "CA2FL": lambda n: fastagg.CA2FL(start, num_clients=n),
    }


def _all_sent(server: fastagg.Server, clients: int) -> fastagg.Server:
    for client in range(clients):
        server.dispatch(client)
    return server


def _aced(start: Tensor, clients: int, freshness: str) -> fastagg.Server:
    return fastagg.ACED(start, lr=1e-3, num_clients=clients, max_delay=10, freshness=freshness, warmup="partial")


def _medians(
    server: fastagg.Server, update: Tensor, clients: int, warm: int, arrivals: int
) -> Callable[[], float]:  # fmt: skip
    """The median time of ``arrivals`` arrivals, after ``warm`` of them that are not timed."""
    at = 0

    def one() -> float:
        nonlocal at
        client = at % clients
        at += 1
        began = time.perf_counter()
        server.dispatch(client)
        server.receive(client, update)
        return time.perf_counter() - began

    for _ in range(warm):
        one()
    return lambda: statistics.median([one() for _ in range(arrivals)])


def _at(taken: list[float], q: float) -> float:
    ordered = sorted(taken)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
