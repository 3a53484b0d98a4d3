"""An answer to a task, as adapters and callers of :meth:`fastagg.Server.receive_many` pass it to a server."""

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
        sent: the task from which a ``model`` was trained. For other kinds it has no effect.
        control, extra: as in :meth:`fastagg.Server.receive`.
        measures: whether the receipt of a delta must have the delta's norm. If False, the server may leave out the
            norm, as in :meth:`fastagg.Server.receive_model`, to save a pass over memory.
        still: as in :meth:`fastagg.Server.receive`. If True, a trained model, too, may be added to the sum in place.
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
        """Return an answer to ``task``. However often it is received, it counts once. By default ``update`` is the
        trained model. ``more``: further fields, such as ``kind="delta"``.

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
