"""What passes between the server and its clients' drivers: the task that goes out, the receipt that comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from fastagg.layout import Layout, ModelState

Client = int | str


@dataclass(frozen=True)
class Dispatch:
    """One client's task: train from this version of the model.

    Attributes:
        client: who it is for.
        version: the server version it starts from (``s`` in the papers).
        control: the server's control variate, [d] (FedAC), else None; read it, do not write to it.
        local_steps: how many local steps to take, where the algorithm decides that (AsyncFedED); else None.
    """

    client: Client
    version: int
    local_steps: int | None
    control: Tensor | None = field(repr=False)
    _layout: Layout = field(repr=False)
    _model: ModelState = field(repr=False)

    @cached_property
    def params(self) -> Any:
        """The model in the form the server was given: a dict for ``module.load_state_dict`` (buffers included),
        a list of arrays, or a flat tensor.

        It is the model as it was when dispatched, shared with the server and not copied: read it, do not write to it.
        It stays as it is while the server goes on, for as long as you hold it.
        """
        return self._layout.views(self._model.flat, self._model.buffers, self._model.counters)

    @property
    def flat(self) -> Tensor:
        """Its trainable parameters as one fp32 vector, [d]; read it, do not write to it."""
        return self._model.flat

    def delta(self, trained: Any) -> Any:
        """The update to send after training: ``x_i^K - x_s`` for parameters, the client's own values for buffers.

        Args:
            trained: the model after local training, in the form of ``params`` (or an nn.Module).

        Returns:
            A dict, a list or a flat tensor, as ``params`` is, in fp32; parameters are views of one vector.

        Raises:
            ShapeMismatch, DTypeMismatch: it is not this model.
        """
        return self._layout.difference(trained, self._model.flat)

    def state_dict(self) -> dict[str, Any]:
        """The task as plain data and tensors, for the checkpoint of whoever drives the clients.

        Tensors are shared with the server's own, so ``torch.save`` of both together writes each version once.
        """
        return {
            "client": self.client,
            "version": self.version,
            "local_steps": self.local_steps,
            "control": self.control,
            "model": tuple(self._model),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], layout: Layout) -> Dispatch:
        """Inverse of :meth:`state_dict`; ``layout`` is the server's (``server.layout``)."""
        flat, buffers, counters = state["model"]
        model = ModelState(flat, buffers, counters)
        return cls(state["client"], state["version"], state["local_steps"], state["control"], layout, model)

    def from_difference(self, difference: Any) -> Any:
        """The update to hand to ``receive`` where a framework sends *every* array as a difference from ``params``.

        Parameters stay as they are; buffers become the client's own values again, in their own types.

        Args:
            difference: trained model less ``params``, in the form of ``params``; buffers may be left out, all together.

        Raises:
            ShapeMismatch, DTypeMismatch: it is not this model.
        """
        return self._layout.restored(difference, self._model)


@dataclass(frozen=True)
class Receipt:
    """What became of one update.

    Attributes:
        client: who sent it.
        applied: whether the model changed; False while a buffer fills.
        version: the server version afterwards.
        delay: tau, server versions between the model it was trained from and its use.
        step_size: the learning rate of the step, after the staleness policy; None if there was no step.
        update_norm: Euclidean norm of the update as it came, before clipping; NaN where a trained model was folded in
            without taking its difference (``receive_model``).
        weight: the staleness policy's weight s(tau).
        kept: False only with ``validate="deferred"``: an element was not finite, and the update counted as zero.
    """

    client: Client
    applied: bool
    version: int
    delay: int
    step_size: float | None
    update_norm: float
    weight: float
    kept: bool = field(default_factory=lambda: True)  # no attribute of the class: deferred receipts have none either
