"""The task that a server sends, the receipt that it returns for an update, and a leaf's sum. The compiled engine makes
tasks and receipts. ``Pace`` computes how many local steps a task asks for."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from fastagg import _checks
from fastagg._build import native
from fastagg._types import Arrays, State
from fastagg.errors import ConfigError
from fastagg.model import Layout, ModelState
from fastagg.storage.encoded import Encoded

Client = int | str
Download = Literal["bf16", "int8"]  # the formats in which a model can be sent
Samples = float | tuple[float, float]  # the number of samples. With weighting="tokens" also the pair (tokens, steps).


class Dispatch(native.Task):
    """One client's task: train from this version of the model.

    Attributes:
        client: the client's id.
        version: the number of the version that the client starts from (``s`` in the papers).
        id: the task's number, at least 1 and of at most 63 bits. No other task of this server ever has the number, even
            after a restart. An answer that states the id (``task=task.id``) counts once, however often the answer
            comes. None: the id is not known.
        control: the server's control variate, [d] (FedAC), or :attr:`extra` (a user's own rule). Otherwise None. Do not
            write to it.
        local_steps: the number of local steps that the client must take. None: the algorithm does not set a number.
        incarnation: the number of the server's incarnation in which this version was made
            (:attr:`fastagg.Server.incarnation`). A restart may lose a version, and new versions then use the same
            number. If the client sends the incarnation back, the server refuses an answer to a lost version. None: the
            incarnation is not known.
        flat: the trainable parameters as one vector [d], shared with the server, fp32 or of the server's
            ``model_dtype``. Do not write to it.

    Example:
        >>> server = fastagg.FedBuff({"weight": torch.zeros(2)}, buffer_size=1)
        >>> task = server.dispatch("ann")
        >>> trained = {"weight": task.params["weight"] + 1.0}
        >>> task.delta(trained)
        {'weight': tensor([1., 1.])}
    """

    # The engine makes an object for every task (csrc/bindings/records.h), so properties are computed only when used.
    __slots__ = ()

    def __init__(
        self,
        client: Client,
        version: int,
        local_steps: int | None,
        control: Tensor | dict[str, Tensor] | None,
        layout: Layout,
        model: ModelState | None,
        incarnation: int | None = None,
        id: int | None = None,
        encoded: Encoded | None = None,
    ) -> None:
        flat, sent = None if model is None else model.flat, None if encoded is None else encoded.native
        self._fill(client, version, local_steps, control, layout, flat, model, incarnation, id, sent)

    def __repr__(self) -> str:
        steps = "" if self.local_steps is None else f", local_steps={self.local_steps}"
        return f"Dispatch(client={self.client!r}, version={self.version}{steps})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (
            self.client, self.version, self.local_steps, self.control, self._layout, self.model, self.incarnation,
            self.id, self.encoded,
        )  # fmt: skip

    @property
    def encoded(self) -> Encoded | None:
        """The parameters, encoded in the ``format`` of the dispatch. Decoded, they equal :attr:`flat`. None: the
        dispatch had no format."""
        return None if self._encoded is None else Encoded(self._encoded)

    @property
    def extra(self) -> dict[str, Tensor]:
        """The vectors that a user's own rule sends with the model (:meth:`fastagg.Direction.send`), by name. Empty for
        other rules. Do not write to the vectors."""
        return self.control if isinstance(self.control, dict) else {}

    @property
    def model(self) -> ModelState:
        """The task's model as vectors. Do not write to these vectors."""
        state = self._state
        if isinstance(state, ModelState):
            return state
        return ModelState(self.flat, state.values, state.counters)

    @property
    def params(self) -> Arrays:
        """The model in the form of the server's ``params``: a dict for ``module.load_state_dict`` (with buffers),
        a list of arrays, or a flat array. The arrays are torch's, or NumPy's if the server's ``params`` were NumPy's.

        The first use of this property copies the arrays. You may write to them, or pass them to
        ``load_state_dict(..., assign=True)``."""
        if self._params is None:
            self._params = self._layout.as_given(self._layout.copies(*self.model), writable=True)
        return self._params

    @property
    def views(self) -> Arrays:
        """The arrays of :attr:`params` without a copy. They share the server's memory, so do not write to them.

        Use these arrays to read or send the model. They do not change, even if the server makes a step."""
        if self._views is None:
            self._views = self._layout.as_given(self._layout.views(*self.model))
        return self._views

    def share(self, other: Dispatch) -> None:
        """Use the :attr:`views` of ``other``, a task of the same version. This saves the time to make new views."""
        self._views = other.views

    def for_client(self, client: Client, local_steps: int | None, id: int | None = None) -> Dispatch:
        """Return a task of another client with the same model. ``id``: the new task's id. None: the id is not known."""
        return Dispatch(
            client, self.version, local_steps, self.control, self._layout, self.model, self.incarnation, id,
            self.encoded,
        )  # fmt: skip

    def delta(self, trained: object) -> Arrays:
        """Return the update to send after training: ``x_i^K - x_s`` for parameters, the client's values for buffers.

        Args:
            trained: the model after local training, in the form of ``params`` (or an nn.Module).

        Returns:
            A dict, a list or a flat tensor, in the form of ``params``, in fp32. Parameters are views of one vector.

        Raises:
            ShapeMismatch, DTypeMismatch: ``trained`` does not fit this model.
        """
        return self._layout.difference(trained, self.flat)

    def state_dict(self) -> State:
        """Return the task as plain data and tensors, for a checkpoint of a program that simulates clients.

        The tensors share the server's memory. So if one ``torch.save`` writes tasks and the server's state, it writes
        each version once."""
        return {
            "client": self.client,
            "version": self.version,
            "id": self.id,
            "local_steps": self.local_steps,
            "control": self.control,
            "incarnation": self.incarnation,
            "model": tuple(self.model),
            "encoded": None if self._encoded is None else torch.from_numpy(self._encoded.bytes.copy()),
        }

    @classmethod
    def from_state(cls, state: State, layout: Layout) -> Dispatch:
        """Return the task from the result of :meth:`state_dict`. ``layout`` is ``server.layout``."""
        flat, buffers, counters = state["model"]
        model, sent = ModelState(flat, buffers, counters), state.get("encoded")
        return cls(
            state["client"], state["version"], state["local_steps"], state["control"], layout, model,
            state.get("incarnation"), state.get("id"), None if sent is None else Encoded.from_bytes(sent.numpy()),
        )  # fmt: skip

    def from_difference(self, difference: Arrays) -> Arrays:
        """Return the update for ``receive``, if a framework sends *every* array as a difference from ``params``.

        Parameters stay differences. Buffers become the client's values again, in the buffers' own types.

        Args:
            difference: the trained model minus ``params``, in the form of ``params``. All buffers may be left out
                together.

        Raises:
            ShapeMismatch, DTypeMismatch: ``difference`` does not fit this model.
        """
        return self._layout.restored(difference, self.model)


_FASTEST = 10.0  # a speed above this multiple of the median counts as if it were this multiple


class Pace:
    """Computes a client's number of local steps: ``H_i = floor(H*v_i/v_max)``, in 1..H, where v_i is the client's
    speed. ``v_max`` is the largest speed, but at most ten times the median, so that one false speed has little effect.
    The server uses this class if it has the setting ``fastest_steps``.

    Args:
        fastest: H, the number of steps of the fastest client.
        lease: seconds for which a reported speed counts. None: until the client is forgotten.
    """

    def __init__(self, fastest: int, lease: float | None) -> None:
        self.fastest, self.lease = fastest, math.inf if lease is None else lease
        # Client -> the client's speed in local steps a second, and the time of the report. A report is stored here when
        # the client's task has been sent. Before that, a new client's speed is 0, which means: unknown.
        self.speeds: dict[Client, tuple[float, float]] = {}

    def said(self, client: Client, speed: float | None) -> tuple[float, float]:
        """Return the client's speed and the time of its report. ``speed``: the newly reported speed. None: the last
        reported speed counts. With a new speed, ``speeds`` gets an entry for the client. The caller stores the speed in
        this entry when the task has been sent. Also remove other clients' entries that are too old or unknown."""
        now = time.monotonic()
        for other, (rate, when) in list(self.speeds.items()):
            if other != client and (not rate or now - when > self.lease):
                self.speeds.pop(other, None)
        if speed is None:
            return self.speeds.get(client, (0.0, now))
        self.speeds.setdefault(client, (0.0, now))
        return speed, now

    def steps(self, client: Client, speed: tuple[float, float]) -> int:
        """Return how many local steps a client should take. ``speed``: the result of :meth:`said`."""
        if not speed[0]:
            return self.fastest
        others = (rate for other, (rate, _) in list(self.speeds.items()) if other != client and rate)
        rates = sorted([speed[0], *others])
        fastest = min(rates[-1], _FASTEST * rates[(len(rates) - 1) // 2])
        return max(1, math.floor(self.fastest * min(speed[0] / fastest, 1.0) + 1e-9))


_OUTCOME = ("client", "applied", "version", "delay", "step_size", "update_norm", "weight")


class Receipt(native.Receipt):
    """The outcome of one update. Receipts with the same values are equal.

    Attributes:
        client: the sender.
        applied: whether the model changed. False while a buffer fills.
        version: the server's version after this answer.
        delay: tau, the server's version when the update arrived, minus the version that the update was trained from.
        step_size: the learning rate of the step, after the staleness policy. None: there was no step.
        update_norm: Euclidean norm of the update before clipping. NaN if a trained model was added without
            computing its difference (``docs/algorithms.md``, the synchronous rules).
        weight: the weight s(tau) that the staleness policy gives the update.
        task: the id of the answered task (:attr:`Dispatch.id`). None: the receipt has no id, as in copies made by
            ``pickle``. Comparisons of receipts ignore the id.
        durable: whether the update is on the disk now. Only receipts of servers of :func:`fastagg.open` have this.
        digest: the digest of the server's history up to this answer, as hexadecimal digits (``docs/audit.md``). None:
            the answer is not on the disk yet, or at least 65,536 records of the log came later (about 32,768 tasks and
            their answers). Only receipts of servers of :func:`fastagg.open` have this.

    Example:
        >>> server = fastagg.ASGD(torch.zeros(2), lr=0.1)
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.tensor([3.0, 4.0]))
        >>> receipt.applied, receipt.version, receipt.delay, receipt.step_size, receipt.update_norm
        (True, 1, 0, 0.1, 5.0)
    """

    # The engine makes a receipt for every answer, and writes the receipt's fields (csrc/bindings/records.h).
    __slots__ = ()

    def __init__(
        self,
        client: Client,
        applied: bool,
        version: int,
        delay: int,
        step_size: float | None,
        update_norm: float,
        weight: float,
    ) -> None:
        self._fill(client, applied, version, delay, step_size, update_norm, weight)

    if not TYPE_CHECKING:  # hidden from type checkers, so that they still find a misspelt attribute

        def __getattr__(self, name: str) -> object:
            raise _checks.no_attribute(self, name)

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in _OUTCOME)

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, Receipt) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(_OUTCOME, self._values(), strict=True))
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._values()


class Partial(NamedTuple):
    """The result of a leaf: a weighted sum of updates, which the server adds to its buffer's sum.

    Attributes:
        total: ``sum_i n_i * Delta_i``, fp32 [d]. ``n_i`` is update i's weight by the leaf's ``weighting``.
        updates: the number of updates in the sum.
        weight: ``sum_i n_i``, the weight of the sum in the mean.
        clients: the clients that were stated with the updates (:meth:`fastagg.Leaf.fold`), each once. A rule that
            counts clients refuses the sum if one of these clients has already taken part in the step.
    """

    total: Tensor
    updates: int
    weight: float
    clients: tuple[Client, ...] = ()


def check_task(task: object) -> Dispatch:
    """Return ``task``. Raise ConfigError if it is not a :class:`Dispatch`."""
    if not isinstance(task, Dispatch):
        do = "keep it when you send it: task = server.dispatch(client)"
        raise ConfigError(_checks.wrong("task", "what server.dispatch(client) returned", task, do))
    return task
