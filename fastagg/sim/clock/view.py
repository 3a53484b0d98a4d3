"""Gives a user's own functions the virtual time, the server's version, and each client's history.

A delay law or a sampling rule with an argument ``view`` gets a :class:`View`. A server's rule lists the names of fields
in ``takes``. The rule gets only the values of these fields, because the server's log records everything that it gets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fastagg._types import State

if TYPE_CHECKING:
    from fastagg.server.server import Server


@dataclass(slots=True)
class ClientView:
    """The history of one client.

    Attributes:
        client, samples: the client's number, and its number of training samples.
        tasks, answers: how many tasks were sent to the client, and how many of them it has answered.
        sent, arrived: the virtual times of the client's last task and of its last answer. None: no task, or no answer.
        duration: the virtual time that the client's last answered task took. None: the client has not answered.
        version, delay: the version on which the last answer was trained, and the answer's delay in versions. None: the
            client has not answered.
        extra: the further tensors that the client sent with its last update, by name.
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
    """The state of a run, for a user's own function. ``time``: the virtual time. ``version``: the server's version.
    ``client``: the client for which the function is called. None: the function chooses a client, and can look at each
    client with ``of(client)``."""

    time: float
    version: int
    client: ClientView | None
    _history: History = field(repr=False)

    def of(self, client: int) -> ClientView:
        return self._history.of(client)


class History:
    """Keeps each client's last task and last answer, and no others. ``sizes``: each client's number of samples."""

    def __init__(self, server: Server, sizes: Sequence[int]) -> None:
        self._server, self._sizes, self._clients = server, sizes, dict[int, ClientView]()
        self._takes: dict[int, float] = {}  # the virtual time that each client's open task takes

    def of(self, client: int) -> ClientView:
        own = self._clients.get(client)  # the user's own functions may keep the returned history
        return ClientView(client, self._sizes[client]) if own is None else copy(own)

    def _of(self, client: int) -> ClientView:
        own = self._clients.get(client)
        if own is None:
            own = self._clients[client] = ClientView(client, self._sizes[client])
        return own

    def view(self, time: float | None = None, client: int | None = None) -> View:
        """Return the view of ``client`` (None: of no client) at ``time`` (None: the time of the client's last task)."""
        own = None if client is None else self.of(client)
        time = own.sent if time is None and own is not None else time
        return View(time or 0.0, self._server.version, own, self)

    def send(self, client: int, time: float) -> None:
        own = self._of(client)
        own.tasks, own.sent = own.tasks + 1, time

    def last(self, client: int, duration: float) -> None:
        """Record the duration of a client's last task. In a round, the answer arrives with the slowest client's."""
        self._takes[client] = duration

    def answer(self, client: int, time: float, version: int, delay: int, extra: Mapping[str, Tensor] | None) -> None:
        own = self._of(client)
        own.answers, own.arrived, own.duration = own.answers + 1, time, self._takes.pop(client, None)
        own.version, own.delay, own.extra = version, delay, extra or {}

    def facts(
        self, takes: Collection[str], client: int, time: float, start: int, sent: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Return the values that a server's rule ``takes``, for an answer to a task of version ``start``. A value is a
        tensor that the client ``sent``, or the field of View or ClientView with this name. ``arrived``, ``duration``
        and ``delay`` are those of this answer. ``version`` is the server's. A value of None becomes 0."""
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
