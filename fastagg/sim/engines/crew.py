"""Workers that each take one task after another: whom a task goes to, and what becomes of it when its worker dies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from torch import Tensor

from fastagg.errors import RunFailed
from fastagg.sim.engines.workers import Event, Sent

DEPTH = 2  # tasks that a worker holds: it begins the next one before its last result is read
STARTS = 3  # how many workers may die one after the other before one has begun


Kind = TypeVar("Kind", bound="Worker")


class Order(NamedTuple):
    """A task, and the arrays that go with it as the crew knows them."""

    ticket: int
    task: Sent
    arrays: Sequence[Sent]


class Worker:
    """One of a crew."""

    def __init__(self) -> None:
        self.orders: deque[Order] = deque()  # the first is being done
        self.begun = False


class News(NamedTuple, Generic[Kind]):
    """What a worker says. The value: of "ready" None, of "broken" the Failure it could not begin for, of "died" how;
    the others are an :class:`Event`'s."""

    worker: Kind
    kind: Literal["ready", "broken", "said", "done", "failed", "died"]
    value: Sent


class Crew(ABC, Generic[Kind]):
    """``count`` workers. A task that is lost with its worker is told, not repeated; another worker begins instead.

    With ``fresh`` each task gets a worker of its own, and no task waits at a worker for another.
    """

    def __init__(self, count: int, *, fresh: bool) -> None:
        self.count, self._fresh = count, fresh
        self._workers: list[Kind] = []
        self._waiting: deque[Order] = deque()
        self._tickets = self._deaths = 0

    @abstractmethod
    def put(self, array: Tensor) -> object:
        """Lay an fp32 vector where every worker can read it. Tasks name it by what is returned; it stays as long as
        somebody holds that."""

    def submit(self, task: Sent, arrays: Sequence[Sent] = ()) -> int:
        """Have a task done, after those submitted before; return its ticket."""
        self._tickets += 1
        self._waiting.append(Order(self._tickets, task, arrays))
        self._hand_out()
        return self._tickets

    def wait(self, timeout: float | None = None) -> list[Event]:
        """Return what happened, after ``timeout`` seconds at most (None: when something has); it may be nothing.

        RunFailed if a worker cannot begin.
        """
        events = [event for news in self._listen(timeout) if (event := self._heard(news)) is not None]
        self._hand_out()
        return events

    @abstractmethod
    def stop(self) -> None:
        """Ask the tasks at hand to stop."""

    def close(self) -> None:
        """End all workers at once."""
        self._end(list(self._workers))
        self._workers.clear()
        self._waiting.clear()

    @abstractmethod
    def _start(self) -> Kind:
        """Return another worker."""

    @abstractmethod
    def _give(self, worker: Kind, order: Order) -> None:
        """Send an order. If the worker is dead, `_listen` hears of it."""

    @abstractmethod
    def _listen(self, timeout: float | None) -> Iterator[News[Kind]]: ...

    @abstractmethod
    def _end(self, workers: Sequence[Kind]) -> None:
        """End these workers, dead or alive."""

    def _heard(self, news: News[Kind]) -> Event | None:
        worker, kind, value = news
        if kind == "ready":
            worker.begun = True
            self._deaths = 0
        elif kind == "broken":
            raise value.error("a worker cannot begin")
        elif kind == "died":
            return self._died(worker, value)
        elif kind == "said":
            return Event(worker.orders[0].ticket, "said", value)
        else:
            order = worker.orders.popleft()
            if self._fresh:
                self._leave(worker)
            return Event(order.ticket, kind, value)
        return None

    def _died(self, worker: Kind, how: str) -> Event | None:
        """Others take over what it had not begun."""
        orders = worker.orders
        self._leave(worker)
        if self._fresh:
            return Event(orders[0].ticket, "lost", how)
        lost = Event(orders.popleft().ticket, "lost", how) if worker.begun and orders else None
        if not worker.begun:
            self._deaths += 1
            if self._deaths == STARTS:
                raise RunFailed(f"{STARTS} workers died before they could begin, the last one: {how[:300]}")
        self._waiting.extendleft(reversed(orders))
        self._workers.append(self._start())
        return lost

    def _leave(self, worker: Kind) -> None:
        self._workers.remove(worker)
        self._end([worker])

    def _hand_out(self) -> None:
        while self._waiting:
            if self._fresh:
                if len(self._workers) == self.count:
                    return
                self._workers.append(worker := self._start())
            else:
                worker = min(self._workers, key=lambda one: len(one.orders))
                if len(worker.orders) == DEPTH:
                    return
            order = self._waiting.popleft()
            worker.orders.append(order)
            self._give(worker, order)
