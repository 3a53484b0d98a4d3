"""This machine beside torch, in less than a minute: ``fastagg bench --quick``.

Each case is a whole server in fastagg's public API, from the task that goes out to the receipt, beside the plainest
in-place loop of the same rule in eager torch. The loop looks for NaN with one ``dot`` and does nothing else that a
server does: no versions, no receipts, no locks. Both must end at the same model before anything is timed.

A round runs both sides of every case in a fresh random order, and the ratio is taken within the round, so that a noisy
moment does not favour one side. The repository's bench/ measures more rules, more sizes and stronger peers.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastagg import presets
from fastagg.serving.server import Server
from fastagg.storage import memory

SIZES = (100_000, 4_000_000)
ROUNDS = 15
SECONDS = 40.0  # after which no further round begins
FEWEST = 5  # rounds that are measured however long they take
CLIENTS = 8
BUFFER = 4
_LEAST = 2e-3  # seconds that a sample takes at least: short arrivals are repeated

Arrive = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Case:
    """A rule: ``ours`` makes fastagg's server, ``torch`` the plain loop on a model of one's own.

    Both give what handles an arrival. ``peer`` says what stands beside ours.
    """

    name: str
    ours: Callable[[Tensor], Server]
    peer: str
    plain: Callable[[Tensor], Arrive]


@dataclass
class Measured:
    """What was measured of a case at a size.

    Attributes:
        case: its name.
        peer: what stands beside it.
        size: parameters of the model.
        ours, torch: seconds of an arrival, a sample per round.
    """

    case: str
    peer: str
    size: int
    ours: list[float] = field(default_factory=list)
    torch: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times as long torch takes: the median over rounds. Below 1, fastagg is slower."""
        return statistics.median(self._ratios())

    @property
    def spread(self) -> tuple[float, float]:
        """The 20th and the 80th percentile of the rounds' ratios."""
        ordered = sorted(self._ratios())
        return ordered[len(ordered) // 5], ordered[-1 - len(ordered) // 5]

    def _ratios(self) -> list[float]:
        return [theirs / mine for mine, theirs in zip(self.ours, self.torch, strict=True)]


def _finite(update: Tensor) -> None:
    if not float(update @ update) < float("inf"):
        raise ValueError("not finite")


def _fedbuff(x: Tensor) -> Arrive:
    acc, count = torch.zeros_like(x), 0

    def arrive(client: int, update: Tensor) -> None:
        nonlocal count
        _finite(update)
        acc.add_(update)
        count += 1
        if count == BUFFER:
            x.add_(acc, alpha=1.0 / BUFFER)
            acc.zero_()
            count = 0

    return arrive


def _fadas(x: Tensor) -> Arrive:
    acc, m, v, vhat, root = (torch.zeros_like(x) for _ in range(5))
    count = 0

    def arrive(client: int, update: Tensor) -> None:
        nonlocal count
        _finite(update)
        acc.add_(update)
        count += 1
        if count == BUFFER:
            acc.div_(BUFFER)
            m.lerp_(acc, 0.1)
            v.mul_(0.99).addcmul_(acc, acc, value=0.01)
            torch.maximum(vhat, v, out=vhat)
            torch.sqrt(vhat, out=root).add_(1e-8)
            x.addcdiv_(m, root, value=1e-3)
            acc.zero_()
            count = 0

    return arrive


def _asgd(x: Tensor) -> Arrive:
    def arrive(client: int, update: Tensor) -> None:
        _finite(update)
        x.sub_(update, alpha=1e-3)

    return arrive


def _ace(x: Tensor) -> Arrive:
    rows, total = torch.zeros(CLIENTS, len(x)), torch.zeros_like(x)
    seen: set[int] = set()

    def arrive(client: int, update: Tensor) -> None:
        _finite(update)
        total.add_(update).sub_(rows[client])
        rows[client].copy_(update)
        seen.add(client)
        if len(seen) == CLIENTS:  # ACE's first step waits for everybody
            x.sub_(total, alpha=1e-3 / CLIENTS)

    return arrive


def cases() -> list[Case]:
    """The rules that are measured."""
    return [
        Case("ASGD", lambda x: presets.ASGD(x, lr=1e-3), "torch, in place", _asgd),
        Case(
            "FedBuff, 4 updates", lambda x: presets.FedBuff(x, lr=1.0, buffer_size=BUFFER), "torch, in place", _fedbuff
        ),
        Case(
            "FADAS, 4 updates",
            lambda x: presets.FADAS(x, lr=1e-3, buffer_size=BUFFER, betas=(0.9, 0.99), delay_threshold=None),
            "torch, in place",
            _fadas,
        ),
        Case("ACE, fp32 rows", lambda x: presets.ACE(x, lr=1e-3, num_clients=CLIENTS), "torch, in place", _ace),
        Case(
            "ACE, int8 rows",
            lambda x: presets.ACE(x, lr=1e-3, num_clients=CLIENTS, cache="int8"),
            "torch with fp32 rows",
            _ace,
        ),
    ]


def measure(
    sizes: Sequence[int] = SIZES, rounds: int = ROUNDS, told: Callable[[], None] = lambda: None
) -> tuple[list[Measured], float]:
    """Measure all cases at all ``sizes``; ``told`` is called after every round.

    Returns:
        What was measured, and the share (0 to 1) of the machine that other processes used meanwhile. With more than a
        few percent of it the figures say little: threads wait for each other.

    Raises:
        AssertionError: fastagg and the plain loop do not end at the same model, so that nothing may be compared.
    """
    found: dict[tuple[str, int], Measured] = {}
    pairs: dict[tuple[str, int], tuple[Callable[[], None], Callable[[], None], int]] = {}
    for size in sizes:
        updates = [memory.empty(size).normal_(0, 1e-2, generator=_generator(n)) for n in range(3)]
        for case in cases():
            key = case.name, size
            found[key] = Measured(case.name, case.peer, size)
            pairs[key] = _pair(case, size, updates)
    order = list(pairs)
    shuffle = random.Random(0).shuffle
    begun, before = time.monotonic(), _others()
    for number in range(rounds):
        if number >= FEWEST and time.monotonic() - begun > SECONDS:
            break
        shuffle(order)
        for key in order:
            ours, plain, arrivals = pairs[key]
            sides = [(found[key].ours, ours), (found[key].torch, plain)]
            shuffle(sides)
            for samples, run in sides:
                start = time.perf_counter()
                run()
                samples.append((time.perf_counter() - start) / arrivals)
        told()
    taken, after = time.monotonic() - begun, _others()
    return list(found.values()), max(0.0, after - before) / (taken * (os.cpu_count() or 1))


def _others() -> float:
    """Seconds of processor that other processes have used since the machine started; 0 where nobody counts them."""
    try:
        with open("/proc/stat") as file:
            user, nice, system = (int(word) for word in file.readline().split()[1:4])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


def _pair(case: Case, size: int, updates: list[Tensor]) -> tuple[Callable[[], None], Callable[[], None], int]:
    """Both sides of a case, warm and checked against each other, and how many arrivals a call is."""
    start, x = torch.zeros(size), memory.empty(size).zero_()
    server, plain = case.ours(start), case.plain(x)

    def ours(turns: int) -> None:
        for turn in range(turns):
            client = turn % CLIENTS
            server.dispatch(client)
            server.receive(client, updates[turn % 3])

    def theirs(turns: int) -> None:
        for turn in range(turns):
            plain(turn % CLIENTS, updates[turn % 3])

    warm = 2 * CLIENTS
    ours(warm)
    theirs(warm)
    # Rows in int8 round each update by up to half a level of its block's largest element.
    tolerance = 1e-2 if "int8" in case.name else 1e-5
    error = float((server.flat - x).norm() / x.norm())
    assert error < tolerance, f"{case.name} at {size}: fastagg and torch differ by {error:.1e}"
    begun = time.perf_counter()
    theirs(CLIENTS)
    ours(CLIENTS)
    arrivals = CLIENTS * max(1, round(_LEAST / max(1e-9, time.perf_counter() - begun)))
    return (lambda: ours(arrivals)), (lambda: theirs(arrivals)), arrivals


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
