"""An answer to a task, in the form in which adapters and :meth:`fastagg.Server.receive_many` pass it to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from fastagg.rules.names import Kind
from fastagg.server.dispatch import Client, Dispatch, Samples, check_task

AnswerKind = Kind | Literal["model", "partial"]


class Answer(NamedTuple):
    """One client's answer to one task. Name the fields: ``Answer("ann", update, num_samples=10)``.

    Attributes:
        client, update, version, num_samples, task, offset, incarnation: as in :meth:`fastagg.Server.receive`.
        kind: the kind of ``update``: ``delta``, ``gradient``, ``model`` (a trained model) or ``partial`` (a leaf's sum,
            :class:`fastagg.Partial`). None: the sender does not state whether it is a delta or a gradient.
        sent: the task from which a ``model`` was trained.
        control, extra: as in :meth:`fastagg.Server.receive`.
        measures: whether the receipt of a delta must have the delta's norm. If False, the delta is added as fast as a
            model.
        still: as in :meth:`fastagg.Server.receive`. A trained model is then added to the sum in place, too.
    """

    client: Client
    update: Any
    version: int | None = None
    num_samples: Samples | None = None
    task: int | None = None
    offset: int | None = None
    incarnation: int | None = None
    kind: AnswerKind | None = None
    sent: Dispatch | None = None
    control: Any = None
    extra: Mapping[str, Any] | None = None
    measures: bool = True
    still: bool = False

    @classmethod
    def to(cls, task: Dispatch, update: Any, num_samples: Samples | None = None, **more: Any) -> Answer:
        """Return the answer to ``task``. The answer counts once. By default ``update`` is the trained model.

        Raises:
            ConfigError: ``task`` is not a task of a server.

        Example:
            >>> server = fastagg.FedAvg(torch.zeros(2), clients_per_round=2)
            >>> tasks = [server.dispatch(client) for client in ("ann", "bob")]
            >>> answers = [fastagg.Answer.to(task, task.params + 1.0, num_samples=10) for task in tasks]
            >>> [receipt.applied for receipt in server.receive_many(answers)]
            [False, True]
        """
        check_task(task)
        known = {"version": task.version, "task": task.id, "incarnation": task.incarnation, "kind": "model"}
        return cls(task.client, update, num_samples=num_samples, **{**known, "sent": task, **more})
