"""Compares this machine with torch in less than a minute: ``fastagg bench --quick``.

Each case is a whole server in fastagg's public API, from the task to the receipt. It is compared with the plainest
in-place loop of the same rule in eager torch. The loop looks for NaN with one ``dot`` and does no other work of a
server: no versions, no receipts, no locks. Both must end at the same model before anything is timed.

A round runs both sides of every case in a new random order. The ratio is computed within the round, so that a
disturbance does not favour one side. The repository's bench/ measures more rules, more sizes and stronger peers.
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
from fastagg.server.server import Server
from fastagg.storage import memory

SIZES = (100_000, 4_000_000)
ROUNDS = 15
SECONDS = 40.0  # after this time no new round begins
FEWEST = 5  # at least so many rounds are measured, however long they take
CLIENTS = 8
BUFFER = 4
_LEAST = 2e-3  # the least time of a sample in seconds: short arrivals are repeated

Arrive = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Case:
    """A rule: ``ours`` makes fastagg's server, ``plain`` makes the plain loop, on a model of its own.

    Both return a function that handles an arrival. ``peer`` names the other side. ``tolerance`` is the largest allowed
    difference between the two models, relative to their norm.
    """

    name: str
    ours: Callable[[Tensor], Server]
    peer: str
    plain: Callable[[Tensor], Arrive]
    tolerance: float = 1e-5


@dataclass
class Measured:
    """The measurements of a case at one size.

    Attributes:
        case: the case's name.
        peer: the name of the other side.
        size: the number of the model's parameters.
        ours, torch: the seconds of an arrival, one sample per round.
    """

    case: str
    peer: str
    size: int
    ours: list[float] = field(default_factory=list)
    torch: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Return torch's time divided by fastagg's: the median over rounds. Below 1, fastagg is slower."""
        return statistics.median(self._ratios())

    @property
    def spread(self) -> tuple[float, float]:
        """Return the 20th and the 80th percentile of the rounds' ratios."""
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
    rows, total = [torch.zeros_like(x) for _ in range(CLIENTS)], torch.zeros_like(x)
    seen: set[int] = set()

    def arrive(client: int, update: Tensor) -> None:
        _finite(update)
        total.add_(update).sub_(rows[client])
        rows[client].copy_(update)
        seen.add(client)
        if len(seen) == CLIENTS:  # ACE's first step waits for all clients
            x.sub_(total, alpha=1e-3 / CLIENTS)

    return arrive


# With int8 rows each update is rounded by up to one level of its block's scale.
CASES = (
    Case("ASGD", lambda x: presets.ASGD(x, lr=1e-3), "torch, in place", _asgd),
    Case("FedBuff, 4 updates", lambda x: presets.FedBuff(x, lr=1.0, buffer_size=BUFFER), "torch, in place", _fedbuff),
    Case(
        "FADAS, 4 updates",
        lambda x: presets.FADAS(x, lr=1e-3, buffer_size=BUFFER, betas=(0.9, 0.99), delay_threshold=None),
        "torch, in place",
        _fadas,
    ),
    Case("ACE, fp32", lambda x: presets.ACE(x, lr=1e-3, num_clients=CLIENTS), "torch, in place", _ace),
    Case(
        "ACE, int8",
        lambda x: presets.ACE(x, lr=1e-3, num_clients=CLIENTS, cache="int8"),
        "torch with an fp32 cache",
        _ace,
        1e-2,
    ),
)


def measure(
    sizes: Sequence[int] = SIZES, rounds: int = ROUNDS, told: Callable[[], None] = lambda: None,
    cases: Sequence[Case] = CASES,
) -> tuple[list[Measured], float]:  # fmt: skip
    """Measure ``cases`` at all ``sizes``. ``told`` is called after every round.

    Returns:
        The measurements, and the share (0 to 1) of the machine that other processes used meanwhile. If this is more
        than a few percent, the figures mean little, because threads wait for each other.

    Raises:
        AssertionError: fastagg and the plain loop do not end at the same model, so they cannot be compared.
    """
    found: dict[tuple[str, int], Measured] = {}
    pairs: dict[tuple[str, int], tuple[Callable[[], None], Callable[[], None], int]] = {}
    for size in sizes:
        updates = [memory.empty(size).normal_(0, 1e-2, generator=_generator(n)) for n in range(3)]
        for case in cases:
            key = case.name, size
            pairs[key] = _pair(case, size, updates)
            found[key] = Measured(case.name, case.peer, size)
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
    """Return the seconds of processor that other processes have used since the start; 0 if they are not counted."""
    try:
        with open("/proc/stat") as file:
            user, nice, system = (int(word) for word in file.readline().split()[1:4])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


def _pair(case: Case, size: int, updates: list[Tensor]) -> tuple[Callable[[], None], Callable[[], None], int]:
    """Return both sides of a case, warmed up and checked against each other, and the number of arrivals per call."""
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
    error = float((server.flat - x).norm() / x.norm())
    assert error < case.tolerance, f"{case.name} at {size}: fastagg and {case.peer} differ by {error:.1e}"
    begun = time.perf_counter()
    theirs(CLIENTS)
    ours(CLIENTS)
    arrivals = CLIENTS * max(1, round(_LEAST / max(1e-9, time.perf_counter() - begun)))
    return (lambda: ours(arrivals)), (lambda: theirs(arrivals)), arrivals


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
