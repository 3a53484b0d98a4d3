"""A group of processes, each of which has a slice of one server's model."""

from __future__ import annotations

import itertools
import json
import operator
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fastagg import _checks, ops
from fastagg._build import build_info, native
from fastagg.errors import ConfigError, FastaggError, NotDelivered, NotSharded, RankLost, Reentered
from fastagg.model import Layout, Parsed, Piece
from fastagg.server import engine
from fastagg.server.admission import Said, share
from fastagg.server.dispatch import Client, Dispatch, Partial, Receipt
from fastagg.server.server import Server
from fastagg.server.uploads import Upload
from fastagg.shards import folder, settings
from fastagg.shards.link import Link
from fastagg.shards.logs import Opening, SliceLog
from fastagg.shards.norms import Norms
from fastagg.shards.placing import Placing
from fastagg.shards.updates import SharedUpload, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fastagg.durable.disk import Disk
    from fastagg.durable.log import Durability

Make = Callable[[Any], Server]
Tell = Callable[[Dispatch], None]
Collected = Callable[[Any], Any]
Order = dict[str, Any]
_LOOK = 0.01  # seconds between two looks at whether all ranks have written a checkpoint


class Slice(NamedTuple):
    """The elements of the flat vector that a rank has, and its machine.

    Attributes:
        rank: the rank of its process in the group.
        begin, end: its elements. ``begin`` is a multiple of 65,536.
        host: the name of its machine.
    """

    rank: int
    begin: int
    end: int
    host: str


def sharded(make: Make, model: Any, group: Any = None, *, timeout: float = 60.0) -> Server:
    """Make a server whose model is divided into slices on the processes of a group. All of them call this together.

    Each rank keeps its slice of the model, of the moments, of buffers and of cached updates, on the CPU or on a GPU.
    Results have the same bits as on one process.

    Your program drives rank 0, with the methods of any server. All other ranks call :meth:`Server.follow`, which
    returns when rank 0 closes. ``flat``, ``version``, ``steps``, ``memory``, ``config``, ``control``, ``incarnation``,
    ``slices`` and ``deliver`` work on every rank; what else changes a server raises :class:`fastagg.NotSharded` there.
    All ranks take an update, or none does. Every rank has the same ledger: it hears of every operation, in the same
    order, in about 100 bytes. ``receive_models``, ``state_dict`` and ``load_state_dict`` do not work in a group.

    Args:
        make: makes a server of the piece that it gets, such as ``lambda piece: fastagg.FADAS(piece, lr=0.01)``. It must
            be the same on all ranks.
        model: the whole model, in any form that :class:`fastagg.Server` takes, without running statistics. Rank r takes
            its slice from the model that was given on rank r, so all must be equal. Tensors may also be distributed
            (DTensor, FSDP2) over the ranks of the group: each placed Replicate or Shard(0), on a mesh with further
            dimensions Replicate on those. Then no rank ever holds the whole model.
        group: a process group of torch.distributed. None: the default group, or only this process if none was started.
            It must have gloo for tensors on the CPU (``backend="gloo"`` or ``"cpu:gloo,cuda:nccl"``). If it has NCCL,
            a model's tensors go from GPU to GPU when every rank has a GPU of its own.
        timeout: how many seconds a rank waits for a sign of life of another: a message of a step, or one that it is
            writing a checkpoint. A rank that takes longer for its share of a step is lost. One whose process has ended
            is noticed at once.

    Raises:
        ConfigError: ranks have different settings or models (the message names what differs), the model has fewer
            groups of 65,536 elements than there are ranks, a tensor is placed in another way, or a setting does not
            work with slices.
        RankLost: a rank did not answer. All methods raise it afterwards: load a checkpoint with the remaining ranks.

    Example:
        >>> server = fastagg.sharded(lambda piece: fastagg.FedBuff(piece, buffer_size=1), torch.zeros(100))
        >>> task = server.dispatch("ann")
        >>> server.receive("ann", torch.ones(100)).applied
        True
        >>> server.close()
    """
    _checks.number("timeout", timeout, above=0)
    link = Link(group, timeout)
    norms = Norms(link)
    with link.together():
        placing = Placing(model, link)
        bounds = _bounds(placing.layout, link.size)
        others = json.loads(link.settle(_about_the_model(placing, model, timeout), settings.common))
        link.use_cards([one["card"] for one in others], placing.device)
        server = make(Piece(placing.slice_of(model, bounds), bounds[link.rank][0], norms))
        if not isinstance(server, Server) or server._parts.norms is not norms:
            raise ConfigError(f"make: expected a server of the piece that it was given, got {server!r:.200}")
        settings.refuse_unfit(server)
        said = json.loads(link.settle(_about_the_server(server), settings.common))
        norms.joined = True
        made = Group(link, placing, bounds, [one["host"] for one in said], server, make)
        made.begin(said[0]["incarnations"])
        link.agree()
    server._join(made)
    if link.rank == 0 and link.size > 1:
        beat = threading.Thread(target=_beat, args=(weakref.ref(made), made.closed, link.beat), daemon=True)
        beat.start()
    return server


class Group:
    """What a server in a group has besides its engine: the link to the other ranks, and what they share.

    Attributes:
        layout: the layout of the whole model.
        bounds: by rank, its first element and the end.
        make: makes the server of a slice.
        log: of a server of :func:`fastagg.open`.
        closed: set when this server has been closed.
    """

    def __init__(
        self, link: Link, placing: Placing, bounds: list[tuple[int, int]], hosts: list[str], server: Server, make: Make
    ) -> None:
        self.link, self.layout, self.bounds, self.closed = link, placing.layout, bounds, threading.Event()
        self._placing, self._hosts = placing, hosts
        self._parts, self._running, self._answers = server._parts, server._running, server._answers
        self._engine = server._engine
        self._send = server._dispatch
        self._gate = native.engine.Gate(engine.waiting_of(server._parts.settings))
        one_host = len(set(hosts)) == 1
        self.norms: Norms = server._parts.norms  # type: ignore[assignment]
        self.log: SliceLog | None = None
        self.make = make
        self._checkpoints: dict[int, Any] = {}  # this rank's part of those that are being written, by number
        self._numbers = itertools.count()
        self._updates = Updates(link.rank, self.layout, self._parts.layout, bounds[link.rank], one_host)

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.link.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.link.size

    def begin(self, incarnations: list[list[int]]) -> None:
        """Continue with rank 0's incarnations, because rank 0 makes the tasks."""
        for first, number in incarnations:
            self._engine.begin_incarnation(first, number)
        self._engine.measure()
        self._engine.by_time = False  # rank 0's clock counts, and it tells the others
        if self.rank == 0:
            self._engine.tell()
            self._engine.take_told()  # what happened before is in the state
        else:  # rank 0 says which tasks end
            engine.limit(self._engine, None)

    def slices(self) -> list[Slice]:
        """Return which rank has which elements."""
        return [Slice(i, *bounds, self._hosts[i]) for i, bounds in enumerate(self.bounds)]

    def deliver(self, client: Client, update: Any, version: int, control: Any) -> None:
        """Hold this rank's slice of an answer until rank 0 is told of it."""
        client = self._engine.check_client(client)
        key = client, _checks.whole("version", version, least=0)
        self._updates.hold(key, update, control, known=self._engine.owes(*key))

    def lacks(self, method: str) -> NotSharded:
        """Return the error for a method that needs a whole model."""
        return NotSharded(f"{method}: not in a group, where no rank has the whole model")

    # -- rank 0 --------------------------------------------------------------------------------------------------

    def dispatch(self, client: Client) -> Dispatch:
        """Send the current model. The task has only this rank's slice."""
        with self._leading("dispatch"):
            self._close_if_due()
            task: Dispatch = self._send(client)
            return task

    def leading(self, method: str, act: Callable[..., Any]) -> Callable[..., Any]:
        """Return what does a change of the engine's that is no answer, and tells the others."""

        def led(*given: object) -> Any:
            with self._leading(method):
                return act(*given)

        return led

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        with self._leading("lr"):
            self._engine.lr = rate

    def receive(self, said: Said, update: Any, num_samples: float | None, control: Any) -> Receipt:
        """Take an update: a shared vector, one in memory, or None if every rank holds its slice."""
        with self._leading("receive", limited=True):
            self._close_if_due()
            order = self._order_of(said)
            share(num_samples, self._parts.settings["weighting"])
            order["samples"] = None if num_samples is None else share(num_samples, "samples")
            order["update"] = self._updates.place("update", update)
            if control is not None:
                order["control"] = self._updates.place("control", control)
            receipt = self._receive(order)
        return self._acknowledged(receipt)

    def receive_partial(self, said: Said, partial: Partial) -> Receipt:
        """Take a leaf's sum."""
        with self._leading("receive_partial", limited=True):
            self._close_if_due()
            order = self._order_of(said)
            if partial.exact is not None:
                raise ConfigError("receive_partial: a server in a group takes no exact sums of leaves; hand in updates")
            if self._running.extension.state.native.closes_before(partial.updates):
                self._close_round({"op": "close_round"})
            order["update"] = self._updates.place("update", partial.total)
            order |= {"samples": 1.0, "count": partial.updates, "total": float(partial.weight)}
            receipt = self._receive(order)
        return self._acknowledged(receipt)

    def _acknowledged(self, receipt: Receipt) -> Receipt:
        if self.log is not None:
            self.log.wait(receipt.applied)
        return receipt

    def receiving(self, said: Said, num_samples: float | None, dtype: torch.dtype | None) -> Upload:
        """Take an update in chunks. All ranks share the memory of its chunks."""
        with self._leading("receiving"):
            self._updates.check_host("receiving")
            start, task = self._engine.find(*said)
            said = said._replace(version=start, task=task)
        return SharedUpload(
            self.layout.size, dtype,
            lambda update: self.receive(said, update, num_samples, None),
        )  # fmt: skip

    def close_round(self, if_due: bool = False) -> float | None:
        """Step now along what has come. ``if_due``: only if the round's time is over."""
        with self._leading("close_round"):
            return self._close_if_due() if if_due else self._close_round({"op": "close_round"})

    def _close_if_due(self) -> float | None:
        return self._close_round({"op": "close_round"}) if self._engine.is_due else None

    def save(self, path: Path) -> None:
        """Write a checkpoint: a folder with a file for every slice, and a manifest that lists them."""
        with self._leading("save"):
            self._save({"op": "save", "path": str(path), "name": os.urandom(6).hex()})

    def load(self, path: Path) -> None:
        """Continue from a checkpoint of any number of ranks."""
        with self._leading("load"):
            self._load({"op": "load", "path": str(path)})

    def open(
        self, server: Server, disk: Disk, durability: Durability, *, keep: int, checkpoint_every: int
    ) -> Server:  # fmt: skip
        """:func:`fastagg.open` for this group's ``server``."""
        order: Order = {"op": "open"}
        while self.rank and (order := self.link.hear())["op"] != "open":
            pass
        with self._inside(), self.link.together(order):
            opening = Opening(self, server, disk, durability, keep, checkpoint_every)
            server._leave()
            self.norms.joined = False
            self.log, incarnations = opening.run()
            self.norms.joined = True
            self.begin(incarnations)
            self.link.agree()
        server._join(self)
        return server

    def flush(self) -> None:
        """Wait until all that has happened so far is on all ranks' disks."""
        with self._leading("flush"):
            self._sync({"op": "sync"})

    def checkpoint(self) -> int:
        """Let all ranks write a checkpoint, and wait for them. Return the number of this rank's. The caller holds
        nothing between two looks, so others go on.

        Raises:
            CheckpointError, NotDurable: a rank could not write it. RankLost: a rank is gone.
        """
        assert self.log is not None
        self.log.keeper.refuse_inside("checkpoint()")
        number = next(self._numbers)
        with self._leading("checkpoint"):
            self.link.order({"op": "checkpoint", "number": number})
            self._checkpoints[number] = mine = self.log.keeper.request()
        self.flush()  # a checkpoint waits until all logs have what is in it
        while not self._looked(number):
            time.sleep(_LOOK)
        assert mine.written is not None
        return int(mine.written)

    def _looked(self, number: int) -> bool:
        with self._leading("checkpoint"):
            return self._written({"op": "written", "number": number})

    def _written(self, order: Order) -> bool:
        """Return whether all ranks have written this checkpoint."""
        try:
            with self.link.together(order):
                request = self._checkpoints[order["number"]]
                ready = request.done.is_set()
                if ready and request.error is not None:
                    raise request.error
                done = self.link.settle(str(int(ready)).encode(), min) == b"1"
                self.link.agree()
        except BaseException:
            self._checkpoints.pop(order["number"], None)
            raise
        if done:
            del self._checkpoints[order["number"]]
        return done

    def parameters(self) -> Any:
        """Return a copy of the model, collected from all ranks."""
        with self._leading("parameters"):
            self.link.order({"op": "collect"})
            return self._placing.given_back(self._flat(), self.bounds)

    def close(self) -> None:
        """Release the other ranks. If the caller has interrupted a call of its own, they are released after it."""
        if self.rank != 0 or self.closed.is_set():
            return
        with self._inside():
            if self.closed.is_set():
                return
            self.closed.set()
            with suppress(RankLost):  # no other rank is left
                try:
                    self._sync({"op": "sync"})
                finally:
                    self.link.call("stop")

    @contextmanager
    def _inside(self, *, limited: bool = False) -> Iterator[None]:
        self._gate.enter(limited)
        try:
            yield
        finally:
            self._gate.leave()

    @contextmanager
    def _leading(self, method: str, *, limited: bool = False) -> Iterator[None]:
        if self.rank != 0:
            raise NotSharded(f"{method}: rank 0 is driven, this is rank {self.rank}; call follow() here")
        with self._inside(limited=limited):
            if self.closed.is_set():
                raise RankLost(f"{method}: this server is closed, and the other ranks are gone")
            self.link.check()
            try:
                yield
            finally:
                self._pass_on()

    def _pass_on(self) -> None:
        """Tell the others which operations were executed. Also a call that is refused may have ended tasks."""
        done = [
            [one.kind, one.client, one.version, one.incarnation, one.rate, one.task] for one in self._engine.take_told()
        ]
        if done:
            self.link.order({"op": "do", "operations": done})
            self._release()

    def _order_of(self, said: Said) -> Order:
        said = said._replace(client=self._engine.check_client(said.client))
        version, _ = self._engine.find(*said)
        offset = None if said.offset is None else operator.index(said.offset)
        return {"op": "receive", "client": said.client, "version": version, "offset": offset}

    # -- other ranks ---------------------------------------------------------------------------------------------

    def follow(self, sent: Tell | None, collected: Collected | None) -> None:
        """Do what rank 0 does, until it closes."""
        if self.rank == 0:
            raise NotSharded("follow: rank 0 leads; call its own methods")
        while (order := self.link.hear())["op"] != "stop":
            with self._inside():
                self._obey(order, sent, collected)

    def _obey(self, order: Order, sent: Tell | None, collected: Collected | None) -> None:
        together = {
            "receive": self._receive, "save": self._save, "load": self._load, "close_round": self._close_round,
            "sync": self._sync, "written": self._written,
        }  # fmt: skip
        try:
            if (settled := together.get(order["op"])) is not None:
                settled(order)
            elif order["op"] == "do":
                for operation in order["operations"]:
                    self._execute(sent, *operation)
                self._release()
            elif order["op"] == "checkpoint":
                if self.log is not None:
                    self._checkpoints[order["number"]] = self.log.keeper.request()
            elif order["op"] == "collect":
                model = self._placing.given_back(self._flat(), self.bounds)
                if collected is not None and model is not None:
                    collected(model)
        except RankLost:
            raise
        except Exception as error:
            if order["op"] not in together or not self.link.told:  # otherwise rank 0 raises it, too, for its caller
                self.link.falls_behind(error)

    def _execute(
        self, sent: Tell | None, kind: str, client: Client, version: int, incarnation: int, rate: float, task_id: int
    ) -> None:
        operation = native.log.Operation(
            kind, client=client, version=version, incarnation=incarnation, rate=rate, task=task_id
        )
        task = self._engine.execute(operation)
        if kind == "rate":
            self._running.follow_rate()
        if task is not None and sent is not None:
            sent(task)

    # -- all together --------------------------------------------------------------------------------------------

    def _flat(self) -> Tensor:
        found: Tensor = self._engine.flat
        return found

    def _release(self) -> None:
        """Drop slices of answers whose tasks have ended."""
        self._updates.keep(lambda key: self._engine.owes(*key))

    def _receive(self, order: Order) -> Receipt:
        key = order["client"], order["version"]
        try:
            with self.link.together(order, finish=order["update"] is not None):
                receipt = self._take(order, *self._updates.of(key, order["update"], order.get("control")))
        except NotDelivered:
            raise
        except BaseException:
            self._updates.drop(key)
            raise
        self._updates.drop(key)
        return receipt

    def _take(self, order: Order, parsed: Parsed, control: Tensor | None) -> Receipt:
        said = Said(order["client"], order["version"], offset=order["offset"])
        answer = self._answers.of(parsed, said, order["samples"], control)
        if "count" in order:
            answer.count, answer.total = order["count"], order["total"]
        (outcome,) = self._answers.receive([answer])
        if isinstance(outcome, FastaggError):
            raise outcome
        return outcome

    def _close_round(self, order: Order) -> float | None:
        with self.link.together(order):
            found: float | None = self._engine.close_round()
            return found

    def _sync(self, order: Order) -> None:
        if self.log is None or (self.rank == 0 and self.log.journal.everywhere >= self.log.journal.last):
            return
        with self.link.together(order):
            self.log.sync(self.link)

    def _save(self, order: Order) -> None:
        with self.link.together(order):
            path = Path(order["path"])
            names = [folder.file_name(order["name"], rank) for rank in range(self.size)]
            with self.link.working(), self._engine.reading:
                folder.write_slice(engine.whole(self._parts, self._running), path, names[self.rank])
            self.link.settle()
            if self.rank == 0:
                with self.link.working():
                    folder.write_manifest(path, self.layout, self.bounds, names)
            self.link.agree()

    def _load(self, order: Order) -> None:
        with self.link.together(order), self._engine.inside:
            with self.link.working():
                state = folder.read_slice(
                    Path(order["path"]),
                    self.layout,
                    self.bounds[self.rank],
                    self._parts.layout,
                    self._running.extension.state.sliced,
                )
            fresh = engine.checked(self._parts, self._running, state)
            said = json.dumps(fresh.engine.incarnations).encode()
            incarnations = json.loads(self.link.settle(said, lambda all: all[0]))
            self.link.agree()
            self._running.adopt(fresh)
        self.begin(incarnations)
        self._updates.clear()


# What a message names if ranks were given different models.
_VALUES = "values of the model (seed it alike on all ranks, or load one state_dict there), as a checksum"


def _about_the_model(placing: Placing, model: Any, timeout: float) -> bytes:
    spec = placing.layout.spec()
    about = {
        "parameters": placing.layout.size,
        "model": [spec["form"], spec["entries"]],
        "placed": placing.described(),
        _VALUES: placing.checksum(model),
        "fastagg": build_info()["version"],
        "timeout": timeout,
    }
    return json.dumps({"settings": about, "card": placing.card()}, default=str).encode()


def _about_the_server(server: Server) -> bytes:
    config = {key: value for key, value in server.config().items() if key != "origin"}
    said = {"settings": config, "host": socket.gethostname(), "incarnations": server._engine.incarnations}
    return json.dumps(said, default=str).encode()


def _bounds(layout: Layout, ranks: int) -> list[tuple[int, int]]:
    """Return each rank's elements: whole groups, divided as evenly as possible."""
    if layout.has_buffers:
        raise ConfigError("model: it has running statistics (BatchNorm), which no slice can hold; use another norm")
    groups = -(-layout.size // ops.GROUP)
    if groups < ranks:
        raise ConfigError(
            f"model: {layout.size} parameters are {groups} groups of {ops.GROUP}, fewer than the {ranks} ranks"
        )
    at = [groups * rank // ranks * ops.GROUP for rank in range(ranks)] + [layout.size]
    return list(pairwise(at))


def _beat(held: weakref.ref[Group], closed: threading.Event, every: float) -> None:
    """Call the other ranks, so that a dead one is noticed, and let the logs of an idle server come to the disk."""
    while not closed.wait(every):
        if (group := held()) is None:
            return
        try:
            with group._inside():
                if not closed.is_set():
                    group.link.call("alive")
                    group._sync({"op": "sync"})
        except (RankLost, Reentered):
            return
        except FastaggError:  # rank 0 is not idle, or a disk is full
            pass
        del group
