"""A server whose model is divided into slices on several processes."""

from __future__ import annotations

import json
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg._build import build_info, native
from fastagg.errors import Busy, ConfigError, FastaggError, NotDelivered, NotSharded, RankLost
from fastagg.layout import Layout, Piece
from fastagg.parts.names import Kind
from fastagg.serving import admission
from fastagg.serving.dispatch import Client, Dispatch, Receipt
from fastagg.serving.leaves import Partial, facts_of
from fastagg.serving.server import Outcome, Sent, Server, not_answers
from fastagg.serving.shards import folder, settings
from fastagg.serving.shards.link import Link
from fastagg.serving.shards.norms import Norms
from fastagg.serving.shards.placing import Placing
from fastagg.serving.shards.updates import SharedUpload, Updates
from fastagg.serving.uploads import Upload

Make = Callable[[Any], Server]
Tell = Callable[[Dispatch], None]
Collected = Callable[[Any], Any]


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


def sharded(make: Make, model: Any, group: Any = None, *, timeout: float = 60.0) -> ShardedServer:
    """Make a server whose model is divided into slices on the processes of a group. All of them call this together.

    Each rank keeps its slice of the model, of the moments, of buffers and of cached updates, on the CPU or on a GPU.
    Results have the same bits as on one process.

    Args:
        make: makes a server of the piece that it gets, such as ``lambda piece: fastagg.FADAS(piece, lr=0.01)``. It must
            be the same on all ranks.
        model: the whole model, in any form that :class:`fastagg.Server` takes, without running statistics. Rank r takes
            its slice from the model that was given on rank r. Tensors may also be distributed (DTensor, FSDP2) over the
            ranks of the group: each placed Replicate or Shard(0), on a mesh with further dimensions Replicate on those.
            Then no rank ever holds the whole model.
        group: a process group of torch.distributed. None: the default group, or only this process if none was started.
            It must have gloo for tensors on the CPU (``backend="gloo"`` or ``"cpu:gloo,cuda:nccl"``). If it has NCCL,
            a model's tensors go from GPU to GPU when every rank has a GPU of its own.
        timeout: how many seconds a rank waits for another. A rank that takes longer for its share of a step is lost.

    Raises:
        ConfigError: ranks have different settings (the message names the setting), the model has fewer groups of 65,536
            elements than there are ranks, a tensor is placed in another way, or a setting does not work with slices.
        RankLost: a rank did not answer.

    Example:
        >>> server = fastagg.sharded(lambda piece: fastagg.FedBuff(piece, buffer_size=1), torch.zeros(100))
        >>> task = server.dispatch("ann")
        >>> server.receive("ann", torch.ones(100)).applied
        True
        >>> server.close()
    """
    _checks.number("timeout", timeout, above=0)
    return ShardedServer(make, model, Link(group, timeout), timeout)


class ShardedServer:
    """The result of :func:`fastagg.sharded`: a :class:`fastagg.Server` in slices.

    Your program drives rank 0. It has ``dispatch``, ``hand_on``, ``receive``, ``receive_many``, ``receive_partial``,
    ``receiving``, ``close_round``, ``forget``, ``expire``, ``lr``, ``save``, ``load``, ``parameters``, ``snapshot`` and
    ``close``, with the arguments and errors of :class:`fastagg.Server`. All other ranks call :meth:`follow`, which
    returns when rank 0 closes. Every rank has ``flat``, ``version``, ``steps``, ``memory``, ``config``,
    ``update_kind``, ``control``, ``incarnation``, ``slices`` and ``deliver``. All other methods of a server raise
    :class:`fastagg.NotSharded`.

    All ranks take an update, or none does. Every rank keeps the same books: it hears of every update, in the same
    order, in about 100 bytes. Methods may be called from many threads.

    Attributes:
        rank: the rank of this process.
        layout: the layout of the whole model.
        traffic: the bytes that this rank has sent to others and received from them.

    Raises:
        RankLost: from any method, after a rank died, stopped or could not follow. Load a checkpoint with the remaining
            ranks.
    """

    def __init__(self, make: Make, model: Any, link: Link, timeout: float) -> None:
        self._link, self.rank, self._timeout = link, link.rank, timeout
        self._lock: Any = threading.RLock()
        self._closed = threading.Event()
        norms = Norms(link)
        with link.together():
            self._placing = Placing(model, link)
            self.layout = self._placing.layout
            self._bounds = _bounds(self.layout, link.size)
            others = json.loads(link.settle(self._of_the_model(), settings.common))
            link.use_cards([one["card"] for one in others], self._placing.device)
            begin, end = self._bounds[self.rank]
            self._server = make(Piece(self._placing.slice_of(model, self._bounds), begin, norms))
            if not isinstance(self._server, Server) or self._server._norms is not norms:
                raise ConfigError(f"make: expected a server of the piece that it was given, got {self._server!r:.200}")
            settings.refuse_unfit(self._server)
            said = json.loads(link.settle(self._of_the_server(), settings.common))
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

    def _of_the_model(self) -> bytes:
        spec = self.layout.spec()
        about = {
            "parameters": self.layout.size,
            "model": [spec["form"], spec["entries"]],
            "placed": self._placing.described(),
            "fastagg": build_info()["version"],
            "timeout": self._timeout,
        }
        return json.dumps({"settings": about, "card": self._placing.card()}, default=str).encode()

    def _of_the_server(self) -> bytes:
        config = {key: value for key, value in self._server.config().items() if key != "origin"}
        said = {"settings": config, "host": socket.gethostname(), "lives": self._server._core.road.lives}
        return json.dumps(said, default=str).encode()

    def _begin_life(self, lives: list[list[int]]) -> None:
        for first, number in lives:  # rank 0's lives, because rank 0 makes the tasks
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
        """The same as :attr:`fastagg.Server.version`."""
        return self._server.version

    @property
    def steps(self) -> int:
        """The same as :attr:`fastagg.Server.steps`."""
        return self._server.steps

    @property
    def flat(self) -> Tensor:
        """This rank's slice of the model, fp32. Do not write to it; arrivals change it."""
        return self._server.flat

    @property
    def control(self) -> Tensor | None:
        """This rank's slice of FedAC's control variate; None for other algorithms. Do not write to it."""
        return self._server.control

    @property
    def update_kind(self) -> Kind:
        """The same as :attr:`fastagg.Server.update_kind`."""
        return self._server.update_kind

    @property
    def incarnation(self) -> int:
        """The same as :attr:`fastagg.Server.incarnation`. All ranks have the same number."""
        return self._server.incarnation

    @property
    def traffic(self) -> int:
        return self._link.traffic

    def memory(self) -> dict[str, int]:
        """The same as :meth:`fastagg.Server.memory`, for this rank."""
        return self._server.memory()

    def config(self) -> dict[str, Any]:
        """The same as :meth:`fastagg.Server.config`. ``origin`` is this rank's."""
        return self._server.config()

    def slices(self, task: Dispatch | None = None) -> list[Slice]:
        """Return which rank has which elements of the flat vector. It gets this part of an update, see :meth:`deliver`.

        Args:
            task: the task that the update answers. Slices are the same for all tasks.
        """
        return [Slice(i, *bounds, self._hosts[i]) for i, bounds in enumerate(self._bounds)]

    def deliver(self, client: Client, update: Any, version: int, control: Any = None) -> None:
        """Hold this rank's slice of an answer until rank 0 is told of it (``receive(client, None, version)``).

        So the update does not pass through rank 0: a front end on every host takes its own slice. The slice is not
        copied. It is released when the answer was taken or refused, or its task has ended.

        Args:
            client, version: those of the task that it answers.
            update: this rank's slice, flat; fp32, fp16 or bf16; in host memory or on this rank's GPU.
            control: for FedAC, this rank's slice of the change of the control variate.

        Raises:
            UnknownClient: it is no client's id. ShapeMismatch, DTypeMismatch: the update does not fit this slice.
        """
        client = self._server._core.ledger.identify(client)
        self._updates.hold((client, _checks.whole("version", version, least=0)), update, control)

    # -- rank 0 --------------------------------------------------------------------------------------------------

    def dispatch(self, client: Client) -> Dispatch:
        """The same as :meth:`fastagg.Server.dispatch`. The task has only this rank's slice, as ``task.flat``."""
        with self._leading("dispatch"):
            order = self._order("dispatch", client=self._server._core.ledger.identify(client))
            try:
                task = self._server.dispatch(client)
            except FastaggError:  # but tasks that are overdue may have ended, and must end on all ranks
                self._link.order({**order, "refused": True})
                raise
            self._link.order(order)
            self._release()
            return task

    def hand_on(self, task: Dispatch, client: Client) -> Dispatch:
        """The same as :meth:`fastagg.Server.hand_on`."""
        with self._leading("hand_on"):
            found = self._server.hand_on(task, client)
            self._link.order(self._order("hand_on", version=task.version, client=found.client))
            return found

    def forget(self, client: Client, version: int | None = None) -> None:
        """The same as :meth:`fastagg.Server.forget`."""
        with self._leading("forget"):
            client, version = self._server._core.ledger.identify(client), None if version is None else int(version)
            self._server.forget(client, version)
            self._link.order(self._order("forget", client=client, version=version))
            self._release()

    def expire(self, before: int | None = None) -> int:
        """The same as :meth:`fastagg.Server.expire`."""
        with self._leading("expire"):
            before = None if before is None else _checks.whole("before", before, least=0)
            ended = self._server.expire(before)
            self._link.order(self._order("expire", before=before))
            self._release()
            return ended

    @property
    def lr(self) -> float:
        """The same as :attr:`fastagg.Server.lr`."""
        return self._server.lr

    @lr.setter
    def lr(self, rate: float) -> None:
        with self._leading("lr"):
            self._server.lr = rate
            self._link.order(self._order("lr", rate=float(self._server.lr)))

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
        """The same as :meth:`fastagg.Server.receive`. All ranks take the update, or none does.

        Args:
            client, version, num_samples, kind, incarnation: as in :meth:`fastagg.Server.receive`.
            update: a :class:`fastagg.SharedVector`, which every rank reads in place (one host); or None, if every rank
                already holds its slice (:meth:`deliver`). On one host every form that a server takes works, too. It is
                first copied into memory that all ranks share.
            control: for FedAC, in the same forms.

        Raises:
            NotDelivered: a rank does not hold its slice.
            RankLost: a rank does not answer. FastaggError: as in :class:`fastagg.Server`; nothing has changed on any
                rank.
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
            order = self._order("receive", client=client, version=version, samples=samples, update=where)
            if control is not None:
                order["control"] = self._updates.place("control", control)
            return self._receive(order)

    def receive_many(self, answers: Sequence[Sent]) -> list[Outcome]:
        """The same as :meth:`fastagg.Server.receive_many`: :meth:`receive` for one answer after the other.

        Raises:
            RankLost: a rank does not answer. ConfigError: an answer is not such a tuple.
        """
        answers, outcomes = list(answers), list[Outcome]()
        if any(not isinstance(one, (tuple, list)) or not 2 <= len(one) <= 4 for one in answers):
            raise not_answers(answers)
        with self._leading("receive_many"):
            for one in answers:
                try:
                    outcomes.append(self.receive(*one))
                except RankLost:
                    raise
                except FastaggError as error:
                    outcomes.append(error)
        return outcomes

    def receive_partial(
        self, client: Client, partial: Partial, version: int | None = None, *, incarnation: int | None = None
    ) -> Receipt:
        """The same as :meth:`fastagg.Server.receive_partial`. The sum has one of the forms that :meth:`receive` takes.

        So a leaf can put its sum into a :class:`fastagg.SharedVector`; or ``partial.total`` is None, and every rank
        holds its slice of the sum (:meth:`deliver`).
        """
        with self._leading("receive_partial"):
            server = self._server
            facts = facts_of(partial.updates, partial.weight, server)
            if incarnation is not None:
                server._check_life(client, version, incarnation)
            client = server._core.ledger.identify(client)
            version, _ = server._core.ledger.find(client, version)
            where = self._updates.place("update", partial.total)
            return self._receive(self._order("receive", client=client, version=version, update=where, facts=facts))

    def receiving(
        self,
        client: Client,
        version: int | None = None,
        num_samples: float | None = None,
        *,
        kind: Kind | None = None,
        dtype: torch.dtype | None = None,
        incarnation: int | None = None,
    ) -> Upload:
        """The same as :meth:`fastagg.Server.receiving`. All ranks share the memory of its chunks.

        Raises:
            ConfigError: the ranks are on several hosts. Others: as in :meth:`fastagg.Server.receiving`.
        """
        with self._leading("receiving"):
            server = self._server
            self._updates.check_host("receiving")
            server._refuse_other_kind(kind)
            admission.share(num_samples, server.weighting)
            if incarnation is not None:
                server._check_life(client, version, incarnation)
            start, _ = server._core.ledger.find(client, version)
        return SharedUpload(
            self.layout.size, dtype,
            lambda update: self.receive(client, update, start, num_samples, incarnation=incarnation),
        )  # fmt: skip

    def close_round(self) -> float | None:
        """The same as :meth:`fastagg.Server.close_round`."""
        with self._leading("close_round"):
            return self._close_round(self._order("close_round"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: a folder with a file for every slice, and a manifest that lists them.

        All ranks must see the folder. The old checkpoint stays valid until the manifest is replaced in one step. Any
        number of ranks can :meth:`load` it.

        Raises:
            CheckpointError: a rank could not write. The old checkpoint is unchanged.
        """
        with self._leading("save"):
            self._save(self._order("save", path=str(path), name=os.urandom(6).hex()))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from what :meth:`save` wrote, with this or another number of ranks. The server keeps its own
        settings.

        Raises:
            CheckpointError: the checkpoint is damaged, or belongs to another model or algorithm. Nothing has changed.
        """
        with self._leading("load"):
            self._load(self._order("load", path=str(path)))

    def parameters(self) -> Any:
        """Return a copy of the model, in the form in which it was given. It is collected from all ranks.

        A model that was whole is whole, on the device on which it was given. Distributed tensors have the same mesh and
        placements as before, so this rank gets its part of them. The other ranks get theirs in :meth:`follow`.
        """
        with self._leading("parameters"):
            self._link.order(self._order("collect"))
            return self._placing.given_back(self.flat, self._bounds)

    def snapshot(self) -> Any:
        """The same as :meth:`parameters`, because that is a copy."""
        return self.parameters()

    def close(self) -> None:
        """Release the other ranks: their :meth:`follow` returns. A server that has lost a rank is already closed."""
        with self._lock:
            if self.rank == 0 and not self._closed.is_set():
                self._closed.set()
                try:
                    self._link.order({"op": "stop"})
                except RankLost:  # no other rank is left
                    return

    # -- other ranks ---------------------------------------------------------------------------------------------

    def follow(self, sent: Tell | None = None, collected: Collected | None = None) -> None:
        """Do what rank 0 does, until it closes. Call it on every rank except 0.

        Args:
            sent: called with every task that is sent. Its ``flat`` is this rank's slice, which a front end can serve.
            collected: for a model with distributed tensors: called with the model, of which this rank gets its part,
                whenever rank 0 calls :meth:`parameters`. ``module.load_state_dict`` is one.

        Raises:
            RankLost: rank 0, or another rank, is gone.
            NotSharded: this is rank 0.
        """
        if self.rank == 0:
            raise NotSharded("follow: rank 0 leads; call its own methods")
        while (order := self._link.hear())["op"] != "stop":
            with self._lock:
                self._obey(order, sent, collected)

    def _obey(self, order: dict[str, Any], sent: Tell | None, collected: Collected | None) -> None:
        if "at" in order:
            self._server._core.ledger.given_time = order["at"]
        asked = {"receive": self._receive, "save": self._save, "load": self._load, "close_round": self._close_round}
        if (settled := asked.get(order["op"])) is not None:
            try:
                settled(order)
            except RankLost:
                raise
            except Exception as error:  # rank 0 raises it, too, for its caller
                if not self._link.told:
                    self._link.falls_behind(error)
            return
        try:
            if order["op"] == "collect":
                model = self._placing.given_back(self.flat, self._bounds)
                if collected is not None and model is not None:
                    collected(model)
            else:
                self._repeat(order, sent)
        except RankLost:
            raise
        except Exception as error:  # rank 0 succeeded
            self._link.falls_behind(error)

    def _repeat(self, order: dict[str, Any], sent: Tell | None) -> None:
        op, server = order["op"], self._server
        if op == "dispatch":
            try:
                task = server.dispatch(order["client"])
            except FastaggError:
                if "refused" in order:  # by all ranks
                    return
                raise
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
        if op in ("dispatch", "forget", "expire"):
            self._release()

    # -- all together --------------------------------------------------------------------------------------------

    @contextmanager
    def _leading(self, method: str) -> Iterator[None]:
        if self.rank != 0:
            raise NotSharded(f"{method}: rank 0 is driven, this is rank {self.rank}; call follow() here")
        if self._closed.is_set():
            raise RankLost(f"{method}: this server is closed, and the other ranks are gone")
        with self._lock:
            if self._server.lease is not None:  # one clock for all ranks; it stands still during a call
                ledger = self._server._core.ledger
                ledger.given_time = round(ledger.own_time, 6)
            yield

    def _order(self, op: str, **what: Any) -> dict[str, Any]:
        """Return an order to the other ranks. With leases it has the time."""
        if self._server.lease is not None:
            what["at"] = self._server._core.ledger.given_time
        return {"op": op, **what}

    def _release(self) -> None:
        """Drop slices of answers whose tasks have ended. One may be delivered before this rank hears of its task."""
        ledger = self._server._core.ledger
        self._updates.keep(lambda key: key[1] >= ledger.version or ledger.owes(*key))

    def _receive(self, order: dict[str, Any]) -> Receipt:
        server, key = self._server, (order["client"], order["version"])
        try:
            with self._link.together(order, finish=order["update"] is not None):
                parsed, control = self._updates.of(key, order["update"], order.get("control"))
                facts = order.get("facts")  # of a leaf's sum
                share = 1.0 if facts else admission.share(order["samples"], server.weighting)
                receipt = server._received(*key, parsed, share, control, facts)
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
            if "at" in order:
                core.ledger.given_time = order["at"]
                core.ledger.renew()
            lives = self._link.settle(json.dumps(core.road.lives).encode(), lambda all: all[0])
            self._link.agree()
            server._core = core
            server._follow()
            self._begin_life(json.loads(lives))
            self._updates.keep(lambda key: False)


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


def _beat(held: weakref.ref[ShardedServer], closed: threading.Event, every: float) -> None:
    """Send empty orders, so that the other ranks know that rank 0 is alive."""
    while not closed.wait(every):
        if (server := held()) is None:
            return
        try:
            with server._lock:
                if not closed.is_set():
                    server._link.order({"op": "alive"})
        except Busy:  # rank 0 is not idle
            pass
        except FastaggError:
            return
        del server
