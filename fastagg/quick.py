"""Compares this machine with torch in less than a minute: ``fastagg bench --quick``. Also compares one rule with
torch.compile: ``fastagg bench ace-int8``.

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
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastagg import _checks, presets
from fastagg.serving.server import Server
from fastagg.storage import memory

SIZES = (100_000, 4_000_000)
ROUNDS = 15
SECONDS = 40.0  # after this time no new round begins
FEWEST = 5  # at least so many rounds are measured, however long they take
CLIENTS = 8
BUFFER = 4
BLOCK = 256
_LEAST = 2e-3  # the least time of a sample in seconds: short arrivals are repeated

Arrive = Callable[[int, Tensor], None]
Wrap = Callable[
    [Callable[..., Any]], Callable[..., Any]
]  # what a loop's arithmetic goes through: nothing, or a compiler


def _eager(step: Callable[..., Any]) -> Callable[..., Any]:
    return step


def _compile(step: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(step, fullgraph=True, dynamic=False)


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


def _fedbuff(x: Tensor, wrap: Wrap = _eager) -> Arrive:
    acc, count = torch.zeros_like(x), 0
    add = wrap(lambda acc, update: acc.add_(update))

    def flush(x: Tensor, acc: Tensor) -> None:
        x.add_(acc, alpha=1.0 / BUFFER)
        acc.zero_()

    step = wrap(flush)

    def arrive(client: int, update: Tensor) -> None:
        nonlocal count
        _finite(update)
        add(acc, update)
        count += 1
        if count == BUFFER:
            step(x, acc)
            count = 0

    return arrive


def _fadas(x: Tensor, wrap: Wrap = _eager) -> Arrive:
    acc, m, v, vhat, root = (torch.zeros_like(x) for _ in range(5))
    count = 0
    add = wrap(lambda acc, update: acc.add_(update))

    def flush(x: Tensor, acc: Tensor, m: Tensor, v: Tensor, vhat: Tensor, root: Tensor) -> None:
        acc.div_(BUFFER)
        m.lerp_(acc, 0.1)
        v.mul_(0.99).addcmul_(acc, acc, value=0.01)
        torch.maximum(vhat, v, out=vhat)
        torch.sqrt(vhat, out=root).add_(1e-8)
        x.addcdiv_(m, root, value=1e-3)
        acc.zero_()

    step = wrap(flush)

    def arrive(client: int, update: Tensor) -> None:
        nonlocal count
        _finite(update)
        add(acc, update)
        count += 1
        if count == BUFFER:
            step(x, acc, m, v, vhat, root)
            count = 0

    return arrive


def _asgd(x: Tensor, wrap: Wrap = _eager) -> Arrive:
    step = wrap(lambda x, update: x.sub_(update, alpha=1e-3))

    def arrive(client: int, update: Tensor) -> None:
        _finite(update)
        step(x, update)

    return arrive


def _ace(x: Tensor, wrap: Wrap = _eager) -> Arrive:
    rows, total = [torch.zeros_like(x) for _ in range(CLIENTS)], torch.zeros_like(x)

    def exchange(total: Tensor, row: Tensor, update: Tensor) -> None:
        total.add_(update).sub_(row)
        row.copy_(update)

    step = wrap(exchange)
    return _ace_loop(x, total, lambda client, update: step(total, rows[client], update), wrap)


def _ace_int8(x: Tensor, wrap: Wrap = _eager) -> Arrive:
    """ACE with an int8 cache: a scale per 256 elements, random and unbiased rounding, as in fastagg."""
    blocks = -(-len(x) // BLOCK)
    total, padded = torch.zeros_like(x), torch.zeros(blocks, BLOCK)
    rows = [torch.zeros(blocks, BLOCK, dtype=torch.int8) for _ in range(CLIENTS)]
    scales = [torch.zeros(blocks, 1) for _ in range(CLIENTS)]

    def exchange(total: Tensor, row: Tensor, scale: Tensor, padded: Tensor, update: Tensor) -> None:
        padded.view(-1)[: len(total)].copy_(update)
        fresh = padded.abs().amax(1, keepdim=True).div(127.0).clamp_min(2.0**-126)
        q = (padded / fresh + torch.rand_like(padded)).floor().clamp(-127, 127)
        change = q * fresh - row.to(torch.float32) * scale
        row.copy_(q)
        scale.copy_(fresh)
        total.add_(change.view(-1)[: len(total)])

    step = wrap(exchange)

    def arrived(client: int, update: Tensor) -> None:
        step(total, rows[client], scales[client], padded, update)

    return _ace_loop(x, total, arrived, wrap)


def _ace_loop(x: Tensor, total: Tensor, arrived: Callable[[int, Tensor], None], wrap: Wrap) -> Arrive:
    seen: set[int] = set()
    descend = wrap(lambda x, total: x.sub_(total, alpha=1e-3 / CLIENTS))

    def arrive(client: int, update: Tensor) -> None:
        _finite(update)
        arrived(client, update)
        seen.add(client)
        if len(seen) == CLIENTS:  # ACE's first step waits for all clients
            descend(x, total)

    return arrive


Peers = dict[str, tuple[Callable[..., Arrive], float]]  # a loop, and how far its model may be from fastagg's
# With int8 rows each update is rounded by up to one level of its block's scale, and the two sides round differently.
_RULES: dict[str, tuple[str, Callable[[Tensor], Server], Peers]] = {
    "asgd": ("ASGD", lambda x: presets.ASGD(x, lr=1e-3), {"torch, in place": (_asgd, 1e-5)}),
    "fedbuff": (
        "FedBuff, 4 updates",
        lambda x: presets.FedBuff(x, lr=1.0, buffer_size=BUFFER),
        {"torch, in place": (_fedbuff, 1e-5)},
    ),
    "fadas": (
        "FADAS, 4 updates",
        lambda x: presets.FADAS(x, lr=1e-3, buffer_size=BUFFER, betas=(0.9, 0.99), delay_threshold=None),
        {"torch, in place": (_fadas, 1e-5)},
    ),
    "ace-fp32": (
        "ACE, fp32",
        lambda x: presets.ACE(x, lr=1e-3, num_clients=CLIENTS),
        {"torch, in place": (_ace, 1e-5)},
    ),
    "ace-int8": (
        "ACE, int8",
        lambda x: presets.ACE(x, lr=1e-3, num_clients=CLIENTS, cache="int8"),
        {"torch with an fp32 cache": (_ace, 1e-2), "torch with an int8 cache": (_ace_int8, 0.1)},
    ),
}


def cases() -> list[Case]:
    """Return the rules that are measured, each with its first peer."""
    found = []
    for name, ours, peers in _RULES.values():
        peer, (plain, apart) = next(iter(peers.items()))
        found.append(Case(name, ours, peer, plain, apart))
    return found


def asked(rule: str) -> list[Case]:
    """Return one rule with all its peers: eager torch, and its last form compiled by torch.

    Raises:
        ConfigError: there is no such rule.
    """
    name, ours, peers = _RULES[_checks.one_of("bench", rule, tuple(_RULES))]
    found = [Case(name, ours, peer, plain, apart) for peer, (plain, apart) in peers.items()]
    plain, apart = peers[found[-1].peer]
    compiled = found[-1].peer.replace("torch", "torch.compile", 1)
    return [*found, Case(name, ours, compiled, partial(plain, wrap=_compile), apart)]


def measure(
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    told: Callable[[], None] = lambda: None,
    chosen: Sequence[Case] | None = None,
) -> tuple[list[Measured], float]:
    """Measure ``chosen`` cases, or :func:`cases`, at all ``sizes``. ``told`` is called after every round.

    If torch cannot compile a peer here, for example without a C++ compiler, it is left out with a warning.

    Returns:
        The measurements, and the share (0 to 1) of the machine that other processes used meanwhile. If this is more
        than a few percent, the figures mean little, because threads wait for each other.

    Raises:
        AssertionError: fastagg and the plain loop do not end at the same model, so they cannot be compared.
    """
    found: dict[tuple[str, str, int], Measured] = {}
    pairs: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[], None], int]] = {}
    for size in sizes:
        updates = [memory.empty(size).normal_(0, 1e-2, generator=_generator(n)) for n in range(3)]
        for case in cases() if chosen is None else chosen:
            key = case.name, case.peer, size
            try:
                pairs[key] = _pair(case, size, updates)
            except Exception as error:  # each layer of the compiler raises its own errors
                if isinstance(error, AssertionError) or "compile" not in case.peer:
                    raise
                warnings.warn(f"{case.peer} is left out: {str(error).splitlines()[0][:200]}", stacklevel=2)
                continue
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
