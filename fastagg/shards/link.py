"""The messages between the ranks of a sharded server, over a process group of torch.distributed.

All of them are tensors on the CPU, which gloo carries. Only the model's own tensors may go from card to card (NCCL).

Rank 0 gives *orders*, which nobody answers. Within an order the ranks *settle*: each sends its finding to rank 0, and
rank 0 sends the same answer to all. A rank that has failed reports this instead, whatever the others are settling. So
nobody waits for it, and all raise the same error.

Whoever sends goes on; ranks wait only to receive, rank 0 for the others and they for rank 0. So when a process dies,
its closed connection ends the waiting of rank 0, and that ends the others'. (Whoever waits for gloo to send may wait
for the whole timeout: a write that fails at once ends no waiting.)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from fastagg import errors
from fastagg._types import Foreign, Plain
from fastagg.errors import ConfigError, FastaggError, RankLost

_FRAME = 128  # bytes of a message; the rest of a longer one follows in a second message
_HEAD = 9  # its kind and its length
_ORDER, _FINE, _REFUSED, _LOST, _BUSY = 0, 1, 2, 3, 4
_BEAT = 0.25  # seconds between two signs of life, at most: a dead rank is noticed at the second
_MOST_UNANSWERED = 64  # orders that rank 0 gives ahead of the others
_LOOK = 1e-4  # seconds between two looks at a card's work
_LONGEST = 500  # the most characters of an error that are sent

_FIRST_TAG = 23_000
_servers: dict[str, int] = {}  # how many servers each group has had; every server's messages have a tag of their own
_answers: dict[int, list[Foreign]] = {}  # the last answer of each of them

Combine = Callable[[list[bytes]], bytes]


class Link:
    """One rank's end of the link.

    Args:
        group: the process group, which must have gloo for CPU tensors. None: the default group, or only this process if
            torch.distributed was not started.
        timeout: how many seconds a rank waits for another.

    Attributes:
        rank, size: this process's rank, and the size of the group.
        ranks: the group's ranks, as numbers of the default group.
        carries: where tensors must lie that :meth:`exchange` takes: on the CPU, or on this rank's card.
        traffic: the bytes that this rank has sent and received.
        decided: whether the ranks have agreed to carry out the current order.
        told: whether they have agreed that it is refused.
        beat: how many seconds are between two signs of life.

    Raises:
        ConfigError: this process is not in the group, or the group carries no tensors on the CPU.
    """

    def __init__(self, group: Foreign, timeout: float) -> None:
        self.rank, self.size, self.ranks, self.traffic = 0, 1, [0], 0
        self.carries = torch.device("cpu")
        self.decided = self.told = self._ordered = False
        self.beat = min(_BEAT, timeout / 3)
        self._group: Foreign = None
        self._tag, self._timeout = 0, timedelta(seconds=timeout)
        self._sent: dict[int, list[Foreign]] = {}  # by rank, the messages since its last one: they last until received
        self._lost: RankLost | None = None
        self._behind: BaseException | None = None
        if not (dist.is_available() and dist.is_initialized()):
            if group is not None:
                raise ConfigError("group: torch.distributed was not started (init_process_group)")
            return
        ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        if dist.get_rank() not in ranks:
            raise ConfigError(f"group: this process, rank {dist.get_rank()}, is not in it")
        self.rank, self.size, self.ranks = ranks.index(dist.get_rank()), len(ranks), ranks
        self._group = group if group is not None else dist.group.WORLD
        backends = dist.get_backend_config(self._group)
        if "cpu:" not in backends:
            raise ConfigError(
                f"group: it has {backends}, and orders are tensors on the CPU; start it with both backends, as in "
                'init_process_group("cpu:gloo,cuda:nccl")'
            )
        name = str(self._group.group_name)
        _servers[name] = self._tag = _servers.get(name, _FIRST_TAG) + 1

    # -- orders --------------------------------------------------------------------------------------------------

    def order(self, what: Plain) -> None:
        """Send an order from rank 0 to all others."""
        if len(self._sent.get(1, ())) > _MOST_UNANSWERED:
            self.call("alive")
        text = json.dumps(what, separators=(",", ":")).encode()
        with self._or_lost("giving an order"):
            self._ordered = True
            for rank in range(1, self.size):
                self._send(rank, _ORDER, text)

    def call(self, op: str) -> None:
        """Give an order, and wait until all others have heard it (:meth:`hear`)."""
        text = json.dumps({"op": op, "answer": True}).encode()
        with self._or_lost("giving an order"):
            for rank in range(1, self.size):
                self._send(rank, _ORDER, text)
            for rank in range(1, self.size):
                self._recv(rank)

    def hear(self) -> Plain:
        """Wait for the next order. An idle rank 0 calls from time to time."""
        with self._or_lost("waiting for rank 0's next order"):
            kind, text = self._recv(0)
        if kind != _ORDER:
            self._lose(text.decode() if kind == _LOST else "rank 0 went on while this rank waited for an order")
        found: Plain = json.loads(text)
        if "answer" in found:
            with self._or_lost("answering"):
                self._send(0, _FINE, b"")
            _answers[self._tag] = self._sent[0]  # after the last order this link may be dropped before it is received
        return found

    # -- settling ------------------------------------------------------------------------------------------------

    @contextmanager
    def together(self, order: Plain | None = None, *, finish: bool = False) -> Iterator[None]:
        """Run the block on all ranks. If one fails, it tells the others, and all raise the same error.

        Args:
            order: what rank 0 asks of the others. None if all know it.
            finish: whether rank 0 waits until the others have left the block, too, because it owns what they read.
        """
        self.decided = self.told = False
        self._ordered = order is None or self.rank != 0
        try:
            if order is not None and self.rank == 0:
                self.order(order)
            yield
        except BaseException as error:
            # The others know nothing before the order was given.
            if self.decided and isinstance(error, Exception):
                self.falls_behind(error)  # the others have stepped
            if self.told or self.decided or self._lost is not None or not self._ordered:
                raise
            self._settle(_REFUSED, _written(error), None, error)
            raise
        finally:
            if finish and self.decided and self._lost is None:
                self._finish()

    def settle(self, mine: bytes = b"", combine: Combine | None = None) -> bytes:
        """Return what ``combine`` makes of all ranks' ``mine``, in order, on rank 0. It may refuse.

        Raises:
            FastaggError: a rank, or ``combine``, has failed with this error.
            RankLost: a rank does not answer.
        """
        return self._settle(*self._finding(mine), combine)

    def agree(self) -> None:
        """Agree that all ranks have planned their step. From here on nothing can fail."""
        self.settle()
        self.decided = True

    @contextmanager
    def working(self) -> Iterator[None]:
        """Do something that may take longer than the timeout, such as a checkpoint. The ranks that wait for this one
        are told so, from a thread, and go on waiting."""
        done = threading.Event()
        to = [0] if self.rank else range(1, self.size)

        def tell() -> None:
            while not done.wait(self.beat):
                try:
                    for rank in to:
                        self._send(rank, _BUSY, b"")
                except FastaggError:  # whoever sends the next message hears of it
                    return

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()

    def falls_behind(self, error: BaseException) -> None:
        """Note that this rank could not do what the others did. It reports this when the ranks settle next."""
        self._behind = self._behind or error

    def _finding(self, mine: bytes) -> tuple[int, bytes]:
        if self._behind is None:
            return _FINE, mine
        return _LOST, f"rank {self.rank} could not follow an order: {self._behind}".encode()

    def _finish(self) -> None:
        """Let rank 0 wait until all others have come here. They do not wait."""
        kind, found = self._finding(b"")
        with self._or_lost("finishing an order"):
            if self.rank != 0:
                self._send(0, kind, found)
                return
            others = [self._recv(rank) for rank in range(1, self.size)]
            kind, found = max([(kind, found), *others], key=lambda one: one[0])
            if kind == _LOST:
                raise RankLost(found.decode())

    def _settle(self, kind: int, mine: bytes, combine: Combine | None, error: BaseException | None = None) -> bytes:
        if self.rank == 0:
            kind, found = self._as_first(kind, mine, combine)
        else:
            with self._or_lost("settling"):
                self._send(0, kind, mine)
                kind, found = self._recv(0)
        if kind == _ORDER:
            self._lose("rank 0 went on without this rank")
        if kind == _LOST:
            self._lose(found.decode())
        if kind == _REFUSED:
            self.told = True
            if error is not None and found == _written(error):
                raise error
            raise _read(found)
        return found

    def _as_first(self, kind: int, mine: bytes, combine: Combine | None) -> tuple[int, bytes]:
        with self._or_lost("settling"):
            found = [(kind, mine), *(self._recv(rank) for rank in range(1, self.size))]
        kind, answer = max(found, key=lambda one: one[0])  # the first of them
        if kind == _FINE:
            try:
                answer = combine([one for _, one in found]) if combine is not None else b""
            except BaseException as error:
                kind, answer = _REFUSED, _written(error)
        with self._or_lost("settling"):
            for rank in range(1, self.size):
                self._send(rank, kind, answer)
            for rank in range(1, self.size if kind != _FINE else 1):  # the caller may drop this link now
                for work in self._sent[rank]:
                    self._end(work, rank)
        return kind, answer

    # -- the model -----------------------------------------------------------------------------------------------

    def use_cards(self, cards: Sequence[object], mine: torch.device) -> None:
        """Let tensors go from card to card from now on, if all ranks have a card of their own and the group has NCCL.

        Args:
            cards: by rank, what identifies the card that its model is on; None if it is on none.
            mine: this rank's card.
        """
        apart = None not in cards and len({json.dumps(card) for card in cards}) == self.size
        if self.size > 1 and apart and "cuda:nccl" in dist.get_backend_config(self._group):
            self.carries = mine

    def exchange(self, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]) -> None:
        """Send tensors to other ranks, and fill tensors with what they send. All of it goes at the same time. All ranks
        call it together.

        Args:
            sends, receives: ranks, each with its fp32 tensor on :attr:`carries`. There is at most one tensor each way
                between two ranks.
        """
        with self._or_lost("moving the model between ranks"):
            if self.carries.type == "cuda":
                self._exchange_on_cards(sends, receives)
                return
            begun = [(self._begin(dist.irecv, space, rank), rank) for rank, space in receives]
            begun += [(self._begin(dist.isend, piece, rank), rank) for rank, piece in sends]
            for work, rank in begun:
                self._end(work, rank)

    def _exchange_on_cards(self, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]) -> None:
        given, taken = ([torch.empty(0, device=self.carries) for _ in range(self.size)] for _ in range(2))
        for parts, pairs in ((given, sends), (taken, receives)):
            for rank, tensor in pairs:
                parts[rank] = tensor
                self.traffic += tensor.nbytes
        dist.all_to_all(taken, given, group=self._group)
        # NCCL returns at once, and waits much longer than `timeout` for a rank that is gone.
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self.carries))
        ends = time.monotonic() + self._timeout.total_seconds()
        while not done.query():
            if time.monotonic() > ends:
                raise RankLost("a rank does not send or take its part over NCCL")
            time.sleep(_LOOK)

    # -- messages ------------------------------------------------------------------------------------------------

    def _send(self, rank: int, kind: int, text: bytes) -> None:
        whole = bytes([kind]) + len(text).to_bytes(8, "little") + text
        whole += bytes(max(0, _FRAME - len(whole)))
        for part in (whole[:_FRAME], whole[_FRAME:]):
            if part:
                message = torch.frombuffer(bytearray(part), dtype=torch.uint8)
                self._sent.setdefault(rank, []).append(self._begin(dist.isend, message, rank))

    def _recv(self, rank: int) -> tuple[int, bytes]:
        frame = self._bytes(rank, _FRAME)
        while frame[0] == _BUSY:
            frame = self._bytes(rank, _FRAME)
        self._sent[rank] = []  # it has received all that it answers
        size = int.from_bytes(frame[1:_HEAD], "little")
        text = frame[_HEAD : _HEAD + size]
        if size > len(text):
            text += self._bytes(rank, size - len(text))
        return frame[0], text

    def _bytes(self, rank: int, size: int) -> bytes:
        message = torch.empty(size, dtype=torch.uint8)
        self._end(self._begin(dist.irecv, message, rank), rank)
        return message.numpy().tobytes()

    def _begin(self, how: Callable[..., Foreign], message: Tensor, rank: int) -> Foreign:
        self.traffic += message.nbytes
        try:
            return how(message, self.ranks[rank], group=self._group, tag=self._tag)
        except RuntimeError as error:
            raise _no_answer(rank, error) from error

    def _end(self, work: Foreign, rank: int) -> None:
        try:
            work.wait(self._timeout)
        except RuntimeError as error:
            raise _no_answer(rank, error) from error

    def check(self) -> None:
        """Raise RankLost if a rank is lost already."""
        if self._lost is not None:
            raise RankLost(str(self._lost))

    @contextmanager
    def _or_lost(self, doing: str) -> Iterator[None]:
        """Raise RankLost if a message is interrupted. The ranks may then disagree, so all calls raise it from now
        on."""
        self.check()
        try:
            yield
        except BaseException as error:
            said = f"{doing}: {error}" if isinstance(error, (FastaggError, RuntimeError)) else f"{doing} was cut short"
            self._lost = RankLost(f"{said:.400}")
            self._tell_the_others()
            if isinstance(error, (FastaggError, RuntimeError)):
                raise self._lost from error
            raise

    def _lose(self, why: str) -> NoReturn:
        self._lost = RankLost(why)
        raise self._lost

    def _tell_the_others(self) -> None:
        # Nobody is waited for: a dead or stuck rank will not hear it. The others hear it at once.
        for rank in range(1, self.size) if self.rank == 0 else ():
            with suppress(FastaggError):
                self._send(rank, _LOST, str(self._lost).encode()[: _FRAME - _HEAD])


def _no_answer(rank: int, error: RuntimeError) -> RankLost:
    return RankLost(f"rank {rank} does not answer: {str(error).splitlines()[0]:.200}")


def _written(error: BaseException) -> bytes:
    named = isinstance(error, FastaggError) and hasattr(errors, type(error).__name__)
    name, text = (type(error).__name__, str(error)) if named else ("RunFailed", f"{type(error).__name__}: {error}")
    return json.dumps([name, text[:_LONGEST]]).encode()


def _read(text: bytes) -> FastaggError:
    name, words = json.loads(text)
    found: FastaggError = getattr(errors, name)(words)
    return found
