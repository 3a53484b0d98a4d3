"""What a function of the user's own may know: the clock, the versions, and each client's history.

A delay law and a sampling rule get it as their argument ``view``, if they have one. A rule names in ``takes`` what it
wants of it, by the names of the fields; it gets numbers, because a log holds what a rule got.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fastagg._types import State

if TYPE_CHECKING:
    from fastagg.server.server import Server


@dataclass(frozen=True)
class ClientView:
    """A client as the server knows it.

    Attributes:
        client, samples: its number, and how many samples it trains on.
        tasks, answers: how many tasks were sent to it, and how many it answered.
        sent, arrived: the virtual time of its last task and of its last answer; None: there is none.
        duration, version, delay: of its last answer: the time that its task took, the version that it was trained
            from, and the versions made since. None: there is none.
        extra: what it sent besides its last update, tensors by name.
    """

    client: int
    samples: int
    tasks: int = 0
    answers: int = 0
    sent: float | None = None
    arrived: float | None = None
    duration: float | None = None
    version: int | None = None
    delay: int | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """``time`` is virtual, ``version`` the server's, ``client`` the one that it is about; None in sampling, which asks
    ``of(client)``."""

    time: float
    version: int
    client: ClientView | None
    _history: History = field(repr=False)

    def of(self, client: int) -> ClientView:
        return self._history.of(client)


class History:
    """Keeps the last of each client's tasks and answers, so that it does not grow with their number."""

    def __init__(self, server: Server, sizes: Sequence[int]) -> None:
        self._server, self._sizes, self._clients = server, sizes, dict[int, ClientView]()
        self._takes: dict[int, float] = {}  # how long each client's open task takes

    def of(self, client: int) -> ClientView:
        return self._clients.get(client) or ClientView(client, self._sizes[client])

    def view(self, time: float | None = None, client: int | None = None) -> View:
        """Return the view of a client at a time: by default when its last task was sent."""
        own = None if client is None else self.of(client)
        time = own.sent if time is None and own is not None else time
        return View(time or 0.0, self._server.version, own, self)

    def send(self, client: int, time: float) -> None:
        own = self.of(client)
        self._clients[client] = replace(own, tasks=own.tasks + 1, sent=time)

    def last(self, client: int, duration: float) -> None:
        """Note how long the task takes that was sent last. In rounds all are received when the slowest is done."""
        self._takes[client] = duration

    def answer(self, client: int, time: float, version: int, delay: int, extra: Mapping[str, Tensor] | None) -> None:
        own = self.of(client)
        self._clients[client] = replace(
            own, answers=own.answers + 1, arrived=time, duration=self._takes.pop(client, None), version=version,
            delay=delay, extra=extra or {},
        )  # fmt: skip

    def facts(
        self, takes: Collection[str], client: int, time: float, start: int, sent: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Return what a rule ``takes`` of an answer to a task of version ``start``: what the client ``sent``, and else
        the field of the view of this name, 0 if it is not known. ``duration`` and ``delay`` are this answer's."""
        view = self.view(time, client)
        known: dict[str, Any] = {own.name: getattr(view.client, own.name) for own in fields(ClientView)}
        known |= {"time": view.time, "version": view.version, "arrived": time}
        known |= {"duration": self._takes.get(client), "delay": view.version - start, **sent}
        return {name: 0.0 if known[name] is None else known[name] for name in takes if name in known}

    def state_dict(self) -> State:
        clients = [{f.name: getattr(own, f.name) for f in fields(own)} for own in self._clients.values()]
        return {"clients": clients, "takes": dict(self._takes)}

    def load_state_dict(self, state: State) -> None:
        self._clients = {own["client"]: ClientView(**own) for own in state["clients"]}
        self._takes = dict(state["takes"])
