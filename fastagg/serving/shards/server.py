"""A server whose model lies in slices on several processes."""

from __future__ import annotations

import json
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg._build import build_info, native
from fastagg.errors import Busy, ConfigError, DTypeMismatch, FastaggError, NotDelivered, NotSharded, RankLost
from fastagg.layout import Layout, Piece
from fastagg.parts.names import Kind
from fastagg.serving import admission
from fastagg.serving.dispatch import Client, Dispatch, Receipt
from fastagg.serving.server import Server
from fastagg.serving.shards import folder, settings
from fastagg.serving.shards.link import Link
from fastagg.serving.shards.norms import Norms
from fastagg.serving.shards.updates import Updates

Make = Callable[[Any], Server]
Sent = Callable[[Dispatch], None]


class Slice(NamedTuple):
    """Which elements of the flat vector a rank has, and where it is.

    Attributes:
        rank: of its process in the group.
        begin, end: its elements; ``begin`` is a multiple of 65,536.
        host: the name of its machine.
    """

    rank: int
    begin: int
    end: int
    host: str


def sharded(make: Make, model: Any, group: Any = None, *, timeout: float = 60.0) -> ShardedServer:
    """A server whose model lies in slices on the processes of a group. All of them call this together.

    Each rank keeps its slice of the model, of the moments, of buffers and of clients' rows. Results are those of one
    process, to the bit.

    Args:
        make: makes a server of the piece that it is given, such as ``lambda piece: fastagg.FADAS(piece, lr=0.01)``. It
            must be the same on all ranks.
        model: the whole model, in any form that :class:`fastagg.Server` takes, without running statistics. Rank r takes
            its slice from the model that rank r was given.
        group: a process group of torch.distributed; None for the default one, or, where none was started, for this
            process alone. It must have gloo for tensors on the CPU (``backend="gloo"`` or ``"cpu:gloo,cuda:nccl"``).
        timeout: seconds that a rank waits for another one. A rank that takes longer for its share of a step is lost.

    Raises:
        ConfigError: ranks have different settings (which one is said), the model has fewer groups of 65,536
            elements than there are ranks, or a setting is one that slices cannot have.
        DTypeMismatch: the model holds tensors that are distributed already (DTensor).
        RankLost: a rank did not come.
    """
    _checks.number("timeout", timeout, above=0)
    return ShardedServer(make, model, Link(group, timeout), timeout)


class ShardedServer:
    """What :func:`fastagg.sharded` makes: a :class:`fastagg.Server` in slices.

    Rank 0 is driven: it has ``dispatch``, ``hand_on``, ``receive``, ``close_round``, ``forget``, ``expire``, ``lr``,
    ``save``, ``load``, ``parameters`` and ``close``, with the arguments and errors of :class:`fastagg.Server`. All
    other ranks call :meth:`follow`, which comes back when rank 0 closes. Every rank has ``flat``, ``version``,
    ``steps``, ``memory``, ``config``, ``update_kind``, ``incarnation``, ``slices`` and ``deliver``. What a server has
    beside these raises :class:`fastagg.NotSharded`.

    An arrival is taken by all ranks or by none. Every rank keeps the same ledger: it is told of every arrival, in one
    order, in about 100 bytes. Methods may be called from many threads.

    Attributes:
        rank: of this process.
        layout: of the whole model.
        traffic: bytes that this rank has sent to others and received from them.

    Raises:
        RankLost: from any method, once a rank died, stopped or could not follow. Load a checkpoint with the ranks that
            are left.
    """

    def __init__(self, make: Make, model: Any, link: Link, timeout: float) -> None:
        self._link, self.rank, self._timeout = link, link.rank, timeout
        self._lock: Any = threading.RLock()
        self._closed = threading.Event()
        norms = Norms(link)
        with link.together():
            _refuse_distributed(model)
            self.layout = Layout.of(model)
            self._bounds = _bounds(self.layout, link.size)
            begin, end = self._bounds[self.rank]
            self._server = make(Piece(self.layout.cut(model, begin, end), begin, norms))
            if not isinstance(self._server, Server) or self._server._norms is not norms:
                raise ConfigError(f"make: expected a server of the piece that it was given, got {self._server!r:.200}")
            settings.refuse_unfit(self._server)
            said = json.loads(link.settle(self._said(), lambda all: json.dumps(settings.common(all)).encode()))
            norms.joined = True
            self._hosts = [one["host"] for one in said]
            self._updates = Updates(
                self.rank, self.layout, self._server.layout, (begin, end), len(set(self._hosts)) == 1
            )
            self._begin_life(said[0]["lives"])
            self._server._core.measure_bounds()
            link.agree()
        if self._server.max_waiting is not None:
            self._lock = native.serving.Turn(self._lock, self._server.max_waiting)
        if self.rank == 0 and link.size > 1:
            beat = threading.Thread(target=_beat, args=(weakref.ref(self), self._closed, timeout / 3), daemon=True)
            beat.start()

    def _said(self) -> bytes:
        config = {key: value for key, value in self._server.config().items() if key != "origin"}
        spec = self.layout.spec()
        about = {
            "parameters": self.layout.size,
            "model": [spec["form"], spec["entries"]],
            "fastagg": build_info()["version"],
            "timeout": self._timeout,
        }
        said = {"settings": {**config, **about}, "host": socket.gethostname(), "lives": self._server._core.road.lives}
        return json.dumps(said, default=str).encode()

    def _begin_life(self, lives: list[list[int]]) -> None:
        for first, number in lives:  # rank 0's: tasks are rank 0's word
            self._server._core.road.begin_life(first, number)

    def __repr__(self) -> str:
        return f"<fastagg.ShardedServer, rank {self.rank} of {self._link.size}: {self._server!r}>"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(Server, name):
            raise NotSharded(f"a sharded server has no {name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __enter__(self) -> ShardedServer:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    # -- every rank ----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """As :attr:`fastagg.Server.version`."""
        return self._server.version

    @property
    def steps(self) -> int:
        """As :attr:`fastagg.Server.steps`."""
        return self._server.steps

    @property
    def flat(self) -> Tensor:
        """This rank's slice of the model, fp32. Read it; arrivals change it."""
        return self._server.flat

    @property
    def update_kind(self) -> Kind:
        """As :attr:`fastagg.Server.update_kind`."""
        return self._server.update_kind

    @property
    def incarnation(self) -> int:
        """As :attr:`fastagg.Server.incarnation`; the same on all ranks."""
        return self._server.incarnation

    @property
    def traffic(self) -> int:
        return self._link.traffic

    def memory(self) -> dict[str, int]:
        """As :meth:`fastagg.Server.memory`, of this rank."""
        return self._server.memory()

    def config(self) -> dict[str, Any]:
        """As :meth:`fastagg.Server.config`; ``origin`` is this rank's."""
        return self._server.config()

    def slices(self, task: Dispatch | None = None) -> list[Slice]:
        """Who has which elements of the flat vector, and so who is to be sent which of an update: :meth:`deliver`.

        Args:
            task: the answer's. Slices are the same for all tasks.
        """
        return [Slice(i, *bounds, self._hosts[i]) for i, bounds in enumerate(self._bounds)]

    def deliver(self, client: Client, update: Any, version: int, control: Any = None) -> None:
        """Hold this rank's slice of an answer until rank 0 is told of it (``receive(client, None, version)``).

        The update never passes through rank 0: a front end on every host takes its own slice. It is read where it lies,
        and let go of when the answer was taken or refused.

        Args:
            client, version: of the task that it answers.
            update: this rank's slice, flat; fp32, fp16 or bf16.
            control: for FedAC, this rank's slice of the change of the control variate.

        Raises:
            ShapeMismatch, DTypeMismatch: it is not of this slice.
        """
        self._updates.hold((client, _checks.whole("version", version, least=0)), update, control)

    # -- rank 0 --------------------------------------------------------------------------------------------------

    def dispatch(self, client: Client) -> Dispatch:
        """As :meth:`fastagg.Server.dispatch`. The task's arrays are this rank's slice, ``task.flat`` alone."""
        with self._leading("dispatch"):
            task = self._server.dispatch(client)
            self._link.order({"op": "dispatch", "client": task.client})
            return task

    def hand_on(self, task: Dispatch, client: Client) -> Dispatch:
        """As :meth:`fastagg.Server.hand_on`."""
        with self._leading("hand_on"):
            found = self._server.hand_on(task, client)
            self._link.order({"op": "hand_on", "from": task.client, "version": task.version, "client": found.client})
            return found

    def forget(self, client: Client, version: int | None = None) -> None:
        """As :meth:`fastagg.Server.forget`."""
        with self._leading("forget"):
            client, version = self._server._core.ledger.identify(client), None if version is None else int(version)
            self._server.forget(client, version)
            self._link.order({"op": "forget", "client": client, "version": version})

    def expire(self, before: int | None = None) -> int:
        """As :meth:`fastagg.Server.expire`."""
        with self._leading("expire"):
            before = None if before is None else _checks.whole("before", before, least=0)
            ended = self._server.expire(before)
            self._link.order({"op": "expire", "before": before})
            return ended

    @property
    def lr(self) -> float:
        """As :attr:`fastagg.Server.lr`."""
        return self._server.lr

    @lr.setter
    def lr(self, rate: float) -> None:
        with self._leading("lr"):
            self._server.lr = rate
            self._link.order({"op": "lr", "rate": float(self._server.lr)})

    def receive(
        self,
        client: Client,
        update: Any,
        version: int | None = None,
        num_samples: float | None = None,
        *,
        kind: Kind | None = None,
        control: Any = None,
        incarnation: int | None = None,
    ) -> Receipt:
        """As :meth:`fastagg.Server.receive`, by all ranks or by none.

        Args:
            client, version, num_samples, kind, incarnation: as there.
            update: a :class:`fastagg.SharedVector`, which every rank reads where it lies (one host); or None, if every
                rank holds its slice already (:meth:`deliver`). Any form that a server takes will do on one host: it is
                copied into memory that all ranks share first.
            control: for FedAC, in the same forms.

        Raises:
            NotDelivered: a rank does not hold its slice.
            RankLost: a rank does not answer. FastaggError: as there; nothing has changed on any rank.
        """
        with self._leading("receive"):
            server = self._server
            server._refuse_other_kind(kind or getattr(update, "kind", None))
            admission.share(num_samples, server.weighting)
            if incarnation is not None:
                server._check_life(client, version, incarnation)
            client = server._core.ledger.identify(client)
            version, _ = server._core.ledger.find(client, version)
            where, samples = self._updates.place("update", update), None if num_samples is None else float(num_samples)
            order = {"op": "receive", "client": client, "version": version, "samples": samples, "update": where}
            if control is not None:
                order["control"] = self._updates.place("control", control)
            return self._receive(order)

    def close_round(self) -> float | None:
        """As :meth:`fastagg.Server.close_round`."""
        with self._leading("close_round"):
            return self._close_round({"op": "close_round"})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: a folder with a file of every slice, and a manifest that names them.

        All ranks must see the folder. What was in it counts until the manifest is replaced, which is done at once. Any
        number of ranks can :meth:`load` it.

        Raises:
            CheckpointError: a rank could not write; the checkpoint that was there is as it was.
        """
        with self._leading("save"):
            self._save({"op": "save", "path": str(path), "name": os.urandom(6).hex()})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from what :meth:`save` wrote, with this or another number of ranks. Settings stay this server's own.

        Raises:
            CheckpointError: it is damaged, or belongs to another model or algorithm; nothing was changed.
        """
        with self._leading("load"):
            self._load({"op": "load", "path": str(path)})

    def parameters(self) -> Any:
        """The whole model in the form it came in, collected from all ranks: a copy."""
        with self._leading("parameters"):
            self._link.order({"op": "collect"})
            whole = torch.empty(self.layout.size)
            self._link.collect(self.flat, [whole[begin:end] for begin, end in self._bounds])
            return self.layout.views(whole, torch.empty(0), [])

    def close(self) -> None:
        """Let the other ranks go: their :meth:`follow` comes back. A server that lost a rank is closed already."""
        with self._lock:
            if self.rank == 0 and not self._closed.is_set():
                self._closed.set()
                try:
                    self._link.order({"op": "stop"})
                except RankLost:  # there is nobody to let go
                    return

    # -- other ranks ---------------------------------------------------------------------------------------------

    def follow(self, sent: Sent | None = None) -> None:
        """Do what rank 0 is told, until it closes. On every rank but 0.

        Args:
            sent: called with every task that goes out, whose ``flat`` is this rank's slice: a front end can serve it.

        Raises:
            RankLost: rank 0, or another rank, is gone.
            NotSharded: this is rank 0.
        """
        if self.rank == 0:
            raise NotSharded("follow: rank 0 leads; call its own methods")
        while (order := self._link.hear())["op"] != "stop":
            with self._lock:
                self._obey(order, sent)

    def _obey(self, order: dict[str, Any], sent: Sent | None) -> None:
        asked = {"receive": self._receive, "save": self._save, "load": self._load, "close_round": self._close_round}
        if (settled := asked.get(order["op"])) is not None:
            try:
                settled(order)
            except RankLost:
                raise
            except Exception as error:  # rank 0 raises it, too: it is for whoever called
                if not self._link.told:
                    self._link.falls_behind(error)
            return
        if order["op"] == "collect":
            self._link.collect(self.flat, [])
            return
        try:
            self._repeat(order, sent)
        except Exception as error:  # rank 0 did it
            self._link.falls_behind(error)

    def _repeat(self, order: dict[str, Any], sent: Sent | None) -> None:
        op, server = order["op"], self._server
        if op == "dispatch":
            task = server.dispatch(order["client"])
            if sent is not None:
                sent(task)
        elif op == "hand_on":
            server._core.road.hand_on(order["client"], order["version"])
        elif op == "forget":
            server.forget(order["client"], order["version"])
        elif op == "expire":
            server.expire(order["before"])
        elif op == "lr":
            server.lr = order["rate"]

    # -- all together --------------------------------------------------------------------------------------------

    def _leading(self, method: str) -> Any:
        if self.rank != 0:
            raise NotSharded(f"{method}: rank 0 is driven, this is rank {self.rank}; call follow() here")
        if self._closed.is_set():
            raise RankLost(f"{method}: this server is closed, and the other ranks are gone")
        return self._lock

    def _receive(self, order: dict[str, Any]) -> Receipt:
        server, key = self._server, (order["client"], order["version"])
        try:
            with self._link.together(order):
                parsed, control = self._updates.of(key, order["update"], order.get("control"))
                share = admission.share(order["samples"], server.weighting)
                receipt = server._received(*key, parsed, share, control)
        except NotDelivered:
            raise
        except BaseException:
            self._updates.drop(key)
            raise
        self._updates.drop(key)
        return receipt

    def _close_round(self, order: dict[str, Any]) -> float | None:
        with self._link.together(order):
            return self._server.close_round()

    def _save(self, order: dict[str, Any]) -> None:
        with self._link.together(order):
            path = Path(order["path"])
            names = [folder.file_name(order["name"], rank) for rank in range(self._link.size)]
            folder.write_slice(self._server, path, names[self.rank])
            self._link.settle()
            if self.rank == 0:
                folder.write_manifest(path, self.layout, self._bounds, names)
            self._link.agree()

    def _load(self, order: dict[str, Any]) -> None:
        with self._link.together(order):
            server = self._server
            state = folder.read_slice(Path(order["path"]), self.layout, self._bounds[self.rank], server)
            core = folder.checked(server, state)
            lives = self._link.settle(json.dumps(core.road.lives).encode(), lambda all: all[0])
            self._link.agree()
            server._core = core
            server._follow()
            self._begin_life(json.loads(lives))
            self._updates.clear()


def _bounds(layout: Layout, ranks: int) -> list[tuple[int, int]]:
    """Each rank's elements: whole groups, as many for all as can be."""
    if layout.has_buffers:
        raise ConfigError("model: it has running statistics (BatchNorm), which no slice can hold; use another norm")
    groups = -(-layout.size // ops.GROUP)
    if groups < ranks:
        raise ConfigError(
            f"model: {layout.size} parameters are {groups} groups of {ops.GROUP}, fewer than the {ranks} ranks"
        )
    at = [groups * rank // ranks * ops.GROUP for rank in range(ranks)] + [layout.size]
    return list(pairwise(at))


def _refuse_distributed(model: Any) -> None:
    """Refuse a model whose tensors are in pieces already, and say what to do.

    Raises:
        DTypeMismatch: it is one.
    """
    arrays = model.state_dict() if isinstance(model, torch.nn.Module) else model
    values = (
        arrays.values() if isinstance(arrays, Mapping) else arrays if isinstance(arrays, (list, tuple)) else [arrays]
    )
    if any(hasattr(value, "full_tensor") for value in values):
        raise DTypeMismatch(
            "model: its tensors are distributed (DTensor, FSDP2): give every rank the whole state_dict, as "
            "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) of "
            "torch.distributed.checkpoint.state_dict makes it, and load parameters() back in the same way"
        )


def _beat(held: weakref.ref[ShardedServer], closed: threading.Event, every: float) -> None:
    """An order that asks for nothing, so that the other ranks know that rank 0 is there."""
    while not closed.wait(every):
        if (server := held()) is None:
            return
        try:
            with server._lock:
                if not closed.is_set():
                    server._link.order({"op": "alive"})
        except Busy:  # it is not idle
            pass
        except FastaggError:
            return
        del server
