"""What a server of any size needs, and what ends first.

Nothing here knows a rule's formula or a limit of the package. Four small servers of the rule run on this machine, and
their memory, log and files say what a parameter and a client cost. What is possible is asked by doing it: a sum of
several updates is handed in, slices and a folder are opened, and whatever refuses says why.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from fastagg import _checks, registry
from fastagg._build import native
from fastagg.durable.opening import open as open_folder
from fastagg.errors import ConfigError, FastaggError
from fastagg.server.server import Server
from fastagg.shards.group import _bounds, sharded
from fastagg.shards.leaves import Leaf
from fastagg.storage.tiered import Tiered, bytes_of
from fastagg.timing import Stopwatch

TRAINING = 600.0  # seconds that a client trains, if nothing is said
FP32 = 4  # bytes of a parameter that is sent, each way
_SIZES, _CLIENTS = (1 << 17, 1 << 18), (12, 24)  # of the servers that are asked
_TINY, _MANY = 256, (4096, 8192)  # and of those for the cost of a client
_REMEMBERED = 1 << 14  # ended tasks, which are no client's cost
_LOGGED = (1 << 18, 1 << 20)  # of those with a log
_FRAMES = 8  # cached updates that they have in memory, if there are more on a disk
_TIMED = 1 << 22  # parameters that no cache of a processor holds
_KEPT = 2  # checkpoints; as many versions of a cached update may lie on the disk
_SCRUB = 1.25  # cached updates on a disk that an answer reads: its own, and a quarter that the sum is checked with
Make = Callable[[Any, int, int, Path], Server]  # of a model, its size, clients, a folder


class Need(NamedTuple):
    """How much is needed of something, and how much there is."""

    needed: float
    there: float

    @property
    def share(self) -> float:
        """1 when it is used up."""
        return self.needed / self.there


@dataclass(frozen=True)
class Plan:
    """What a server needs. :func:`plan` makes it.

    Attributes:
        rule: its name.
        needs: of one machine: ``memory`` and ``disk space`` in bytes; ``log``, ``disk`` (cached updates), ``network
            in`` and ``network out`` in bytes a second; ``processor`` in seconds of work a second. Each is a pair,
            ``needed`` and ``there``.
        rate: the most answers a second, of so many ``ranks``.
        ranks: how many machines of :func:`fastagg.sharded` hold it; 0: it cannot be cut into so many slices.
        leaves: how many machines take the answers in (:class:`fastagg.Leaf`); 0: the server does.
        first: the need that ends first.
        change: what to do about it; empty: there is enough.
        refused: what the package refuses to do with this rule, and its words.
        carries: which other program carries what.
    """

    rule: str
    needs: Mapping[str, Need]
    rate: float
    ranks: int
    leaves: int
    first: str
    change: str
    refused: Mapping[str, str]
    carries: Mapping[str, str]


class _Costs(NamedTuple):
    """What was found: ``fixed + parameter * d + client * n + both * d * n`` bytes of memory, and so on."""

    memory: tuple[float, float, float, float]
    log: tuple[float, float]  # bytes of an answer: fixed, and of a parameter
    row: float  # bytes of a parameter of a cached update on a disk; 0: none is
    versions: bool  # whether a version stays while a client may answer it
    refused: dict[str, str]
    seconds: tuple[float, float]

    def bytes(self, size: float, clients: float) -> float:
        """Of a server whose models are all sent: it has the version before the last one, too."""
        fixed, parameter, client, both = self.memory
        return fixed + (parameter + FP32) * size + client * clients + both * size * clients


def plan(
    rule: str = "FedBuff", *, clients: float, parameters: float, per_day: float = 1.0, in_flight: float | None = None,
    memory: int | str = "512GB", disk: int | str = "30TB", writes: int | str = "1GB", network: int | str = "1.25GB",
    durability: str = "arrival", seconds: tuple[float, float] | None = None, **settings: Any,
) -> Plan:  # fmt: skip
    """Say what a server needs for so many clients, what ends first, and what to change.

    :func:`fastagg.sim.advise` says which rule learns best; this says what a rule costs.

    Args:
        rule: the name of a preset, such as ``"ACE"``.
        clients: how many there are.
        parameters: of the model.
        per_day: answers of a client a day.
        in_flight: clients that train at the same time. None: each trains for 10 minutes.
        memory: bytes of a machine.
        disk: bytes of its disk.
        writes: bytes a second that the disk writes.
        network: bytes a second, each way.
        durability: as for :func:`fastagg.open`; ``none``: no log.
        seconds: of an answer: fixed, and for each parameter. None: measured on this machine.
        settings: of the preset. ``lr`` may be left out.

    Raises:
        ConfigError: an argument is refused.

    Example:
        >>> found = fastagg.plan("FedBuff", clients=1e8, parameters=1e7, buffer_size=1000, seconds=(5e-6, 0.8e-9))
        >>> found.first, found.leaves > 1, found.ranks
        ('log', True, 1)
    """
    numbers = {"clients": clients, "parameters": parameters, "per_day": per_day}
    if in_flight is not None:
        numbers["in_flight"] = in_flight
    for name, value in numbers.items():
        _checks.number(name, value, above=0)
    _checks.one_of("durability", durability, ("none", "step", "arrival"))
    there = {name: bytes_of(name, given) for name, given in
             {"memory": memory, "disk": disk, "writes": writes, "network": network}.items()}  # fmt: skip
    found = _costs(rule, settings, seconds)
    rate = clients * per_day / 86400
    training = min(clients, rate * TRAINING if in_flight is None else in_flight)
    rows, row = found.row > 0, found.row * parameters
    held = found.bytes(parameters, clients) + training * (row + FP32 * parameters * found.versions)
    logged = (found.log[0] + found.log[1] * parameters) * (durability != "none")
    refused, ranks = dict(found.refused), math.ceil(held / there["memory"])
    model: Any = SimpleNamespace(has_buffers=False, size=int(parameters))
    if ranks > 1 and "sharded" not in refused:
        refused |= _refusal("sharded", lambda: _bounds(model, ranks))
    ranks = 0 if ranks > 1 and "sharded" in refused else max(1, ranks)
    needs = {
        "memory": Need(held, there["memory"]),
        "disk space": Need(_KEPT * (row * clients + held * (durability != "none")), there["disk"]),
        "log": Need(rate * logged, there["writes"]),
        "disk": Need(rate * (logged + (1 + _SCRUB) * row) * rows, there["writes"]),
        "network in": Need(rate * FP32 * parameters, there["network"]),
        "network out": Need(rate * FP32 * parameters, there["network"]),
        "processor": Need(rate * (found.seconds[0] + found.seconds[1] * parameters), 1.0),
    }
    stock = {name: needs[name].share for name in ("memory", "disk space")}
    flows = {name: need.share for name, need in needs.items() if name not in stock}
    ends = stock if max(stock.values()) > 1 else flows
    first = max(ends, key=lambda name: ends[name])
    leaves = 0 if "leaves" in refused else math.ceil(max(flows[name] for name in ("log", "network in", "processor")))
    cut = max(1, ranks)
    each = {**{name: share / cut for name, share in flows.items()},
            "processor": rate * (found.seconds[0] + found.seconds[1] * parameters / cut)}  # fmt: skip
    change = _change(first, refused, leaves, ranks, on_disk=rows) if ends[first] > 1 else ""
    carries = _carries(rate, parameters, leaves, ranks, flows["network out"])
    most = rate / max(each.values())
    refused.pop("a disk", None)  # nobody asked for one
    return Plan(rule, needs, most, ranks, leaves if leaves > 1 else 0, first, change, refused, carries)


def _change(first: str, refused: Mapping[str, str], leaves: int, ranks: int, *, on_disk: bool) -> str:
    slices = f"fastagg.sharded on {ranks} machines" if ranks else f"more memory: {refused['sharded']}"
    leaf = f"{leaves} leaves (fastagg.Leaf)" if leaves else ""
    store = "cache=fastagg.Tiered(...), which keeps cached updates on a disk, or int4; else "
    return {
        "memory": ("fewer clients in training at once; else " if on_disk else "" if "a disk" in refused else store)
        + slices,
        "disk space": "int4, or a rule that keeps nothing of a client",
        "log": leaf or 'durability="step" or "none"; faster disks',
        "disk": "int4; faster disks",
        "network in": leaf or "updates in fp16; a faster network; fastagg.sharded on several hosts",
        "network out": "an object store or CDN for models",
        "processor": leaf or "fastagg.sharded",
    }[first]


def _carries(rate: float, parameters: float, leaves: int, ranks: int, out: float) -> dict[str, str]:
    each = FP32 * parameters
    found = {"updates": f"a log (Kafka, NATS JetStream) with offsets: {rate:,.3g} updates a second"}
    found["models"] = (
        f"an object store with a CDN: {in_bytes(each)} a version go in once, {in_bytes(rate * each)} a second come out"
        if out > 0.1 else "the server itself"
    )  # fmt: skip
    found["leaves"] = f"{leaves} actors of Ray, or a plain deployment of processes" if leaves > 1 else "none"
    found["slices"] = f"torch.distributed, {ranks} ranks" if ranks > 1 else "none"
    return found


def in_bytes(count: float) -> str:
    """Return a number of bytes with three digits and a unit."""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    place = min(len(units) - 1, max(0, int(math.log10(max(count, 1) * 1.0005) // 3)))
    return f"{float(f'{count / 1000**place:.3g}'):,g} {units[place]}"


def _refusal(what: str, act: Callable[[], object]) -> dict[str, str]:
    try:
        act()
    except FastaggError as error:
        return {what: str(error)}
    return {}


_known: dict[str, _Costs] = {}  # what was found: a rule's costs do not change while a program runs


def _costs(rule: str, settings: Mapping[str, Any], seconds: tuple[float, float] | None) -> _Costs:
    key = f"{rule} {sorted(settings.items(), key=str)!r} {seconds}"
    if key not in _known:
        with TemporaryDirectory(prefix="fastagg-plan-") as folder:
            _known[key] = _asked(rule, settings, Path(folder), seconds)
    return _known[key]


def _maker(rule: str, settings: Mapping[str, Any]) -> Make:
    preset = registry.presets().get(rule)
    if preset is None:
        raise ConfigError(_checks.wrong("rule", f"one of {', '.join(registry.presets())}", rule))
    takes = inspect.signature(preset).parameters

    def make(model: Any, size: int, clients: int, folder: Path) -> Server:
        given = {"lr": 0.1, "num_clients": clients}
        given = {name: value for name, value in given.items() if name in takes} | dict(settings)
        if isinstance(cache := given.get("cache"), Tiered):
            stride = native.engine.Tiers.stride(cache.format, size)
            given["cache"] = replace(cache, path=folder / "rows", memory=_FRAMES * stride)
        server: Server = preset(model, **given)
        return server

    return make


def _asked(rule: str, settings: Mapping[str, Any], folder: Path, seconds: tuple[float, float] | None) -> _Costs:
    make, (small, large), (few, many) = _maker(rule, settings), _SIZES, _CLIENTS
    held: dict[tuple[int, int], float] = {}
    row, versions = 0.0, False
    for size, clients in (*product([_TINY], _MANY), *product(_SIZES, _CLIENTS)):
        with closing(make(torch.zeros(size), size, clients, folder / f"{size}-{clients}")) as server:
            for _ in range(_REMEMBERED if size == _TINY else 0):
                _answers(server, 1, size)
            _answers(server, clients, size)
            held[size, clients] = server.memory()["total"]
            versions = server._running.extension.keeps_model
            if rows := getattr(server._running.extension.state, "rows", None):
                row = rows.native.stride(rows.setting.format, size) / size
                held[size, clients] -= _FRAMES * row * size  # how many there are follows from what is in flight
    a, b, c, d = (held[one] for one in product(_SIZES, _CLIENTS))
    both = (d - c - b + a) / ((large - small) * (many - few))
    client = (held[_TINY, _MANY[1]] - held[_TINY, _MANY[0]]) / (_MANY[1] - _MANY[0]) - both * _TINY
    parameter = (c - a) / (large - small) - both * few
    fixed = a - parameter * small - client * few - both * small * few
    logged = []
    for size in _LOGGED:
        at = folder / f"logged-{size}"
        with open_folder(at / "state", partial(make, torch.zeros(size), size, few, at), "arrival") as server:
            _answers(server, few, size)  # a new folder has a small file first
            before = server._in_log("plan").journal.written
            _answers(server, few, size)
            logged.append((server._in_log("plan").journal.written - before) / few)
    part = (logged[1] - logged[0]) / (_LOGGED[1] - _LOGGED[0])

    root, leaf = make(torch.zeros(small), small, few, folder / "root"), Leaf(torch.zeros(small))
    model = torch.zeros(large)
    version = root.dispatch(0).version
    leaf.fold(torch.zeros(small))
    cut = partial(sharded, lambda own: make(own, large, few, folder / "cut"), model)
    refused = {
        **_refusal("leaves", lambda: root.receive_partial(0, leaf.take(), version)),
        **_refusal("a disk", lambda: _maker(rule, {**settings, "cache": Tiered()})(model, large, few, folder / "disk")),
        **_refusal("sharded", lambda: cut().close()),
    }
    if "sharded" not in refused:
        refused |= _refusal("sharded with a folder", lambda: open_folder(folder / "both", cut).close())
    memory, log = (max(0.0, fixed), parameter, client, both), (max(0.0, logged[0] - part * _LOGGED[0]), part)
    return _Costs(memory, log, row, versions, refused, seconds or _timed(make, folder))


def _answers(server: Server, clients: int, size: int) -> None:
    update = torch.full((size,), 0.01)
    for client in range(clients):
        version = server.dispatch(client).version
        server.receive(client, update, version, num_samples=1)


def _timed(make: Make, folder: Path) -> tuple[float, float]:
    """Seconds of an answer on this machine: fixed, and for each parameter."""
    took = {}
    for size in (1000, _TIMED):
        times, update = [], torch.full((size,), 0.01)
        with closing(make(torch.zeros(size), size, 2, folder / f"time-{size}")) as server:
            for turn in range(12):
                version = server.dispatch(turn % 2).version
                watch = Stopwatch()
                server.receive(turn % 2, update, version, num_samples=1)
                times.append(watch.total)
        took[size] = median(times[4:])
    return took[1000], max(0.0, took[_TIMED] - took[1000]) / _TIMED
