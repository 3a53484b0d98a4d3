"""Who was sent what, and may answer it: the tasks of :mod:`support.model`'s server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class Refused(Exception):
    """The name of the error that a server raises. Nothing has changed."""


@dataclass(eq=False)
class Task:
    client: Any
    version: int
    sent: Vector  # the model that went out
    local_steps: int | None
    ends: float
    end: str = ""  # the error of a later answer


class Book:
    """Open tasks. Limits are in ``settings``, in seconds of ``time`` and in versions."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.version, self.time = settings, 0, 0.0
        self.tasks: list[Task] = []
        self.last: dict[Any, Task] = {}  # what each client was sent last; others are unknown
        self.parts: dict[Any, tuple[int, int]] = {}  # the version at which each client took part last, and how often

    def owed(self, client: Any) -> list[Task]:
        return [task for task in self.tasks if task.client == client]

    def has_room(self, client: Any) -> bool:
        return len(self.owed(client)) < (self.settings.get("max_open_per_client") or math.inf)

    def may_take_part(self, client: Any) -> bool:
        version, times = self.parts.get(client, (-1, 0))
        return version != self.version or times < (self.settings.get("answers_per_step") or math.inf)

    def check_part(self, clients: Iterable[Any]) -> None:
        if not all(map(self.may_take_part, clients)):
            raise Refused("TooSoon")

    def take_part(self, clients: Iterable[Any]) -> None:
        for client in clients:
            version, times = self.parts.get(client, (-1, 0))
            self.parts[client] = self.version, times + 1 if version == self.version else 1

    def is_over(self, task: Task) -> bool:
        most = self.settings.get("max_delay")
        return task.ends <= self.time or (most is not None and self.version - task.version > most)

    def send(self, client: Any, version: int, sent: Vector, steps: int | None) -> Task:
        """A new task, or once more the open one of this version."""
        n = self.settings.get("num_clients")
        if n is not None and not (isinstance(client, int) and 0 <= client < n):
            raise Refused("UnknownClient")
        self.check_part([client])
        ends = self.time + (self.settings.get("lease") or math.inf)
        task = next((task for task in self.owed(client) if task.version == version), None)
        if task is None:
            if not self.has_room(client):
                raise Refused("Busy")
            self.tasks.append(task := Task(client, version, sent, steps, ends))
        task.sent, task.ends, task.local_steps = sent, ends, steps
        self.last[client] = task
        return task

    def find(self, client: Any, version: int | None, task: Task | None = None) -> Task:
        """The open task of a version (None: the last one), or that one."""
        if task is None:
            if client not in self.last:
                raise Refused("UnknownClient")
            version = self.last[client].version if version is None else version
            task = next((task for task in self.owed(client) if task.version == version), None)
        if task is None or (not task.end and self.is_over(task)):
            raise Refused("UnknownVersion")
        if task.end:
            raise Refused(task.end)
        return task

    def end(self, task: Task, end: str = "UnknownVersion") -> None:
        task.end, self.tasks = end, [other for other in self.tasks if other is not task]

    def forget(self, client: Any, version: int | None = None) -> None:
        if client not in self.last:
            raise Refused("UnknownClient")
        for task in self.owed(client) if version is None else [self.find(client, version)]:
            self.end(task)
        if version is None:
            del self.last[client]

    def expire(self, before: int = 0) -> int:
        over = [task for task in self.tasks if task.version < before or self.is_over(task)]
        for task in over:
            self.end(task)
        for client, task in list(self.last.items()):  # it may never come back
            if self.settings.get("num_clients") is None and not self.owed(client) and self.is_over(task):
                self.forget(client)
        return len(over)

    def renew(self) -> None:
        """All leases begin anew."""
        for task in [*self.tasks, *self.last.values()]:
            task.ends = self.time + (self.settings.get("lease") or math.inf)
