"""The client's part of ACE with client caches, FedAC and FedProx. Users call this module in local training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class GradientDifference:
    """The state of a client of ACE with client caches (the ACE paper, Algorithm a.5) that sends ``g_new - g_prev``.

    ``g_prev`` is the sum of the returned fp32 differences, so that rounding errors do not accumulate.

    Example:
        >>> sender = fastagg.clients.GradientDifference()
        >>> sender.difference(torch.ones(2)), sender.difference(torch.ones(2))
        (tensor([1., 1.]), tensor([0., 0.]))
    """

    def __init__(self) -> None:
        self._sent: Tensor | None = None

    def difference(self, gradient: Tensor) -> Tensor:
        """Return the difference to send for a new flat gradient ([d], fp32). The first gradient is sent whole.

        Raises:
            ValueError: the gradient's length has changed.
        """
        gradient = gradient.detach().reshape(-1).to(torch.float32)
        if self._sent is None:
            self._sent = gradient.clone()
            return gradient.clone()
        if gradient.shape != self._sent.shape:
            raise ValueError(f"gradient: expected {self._sent.numel()} elements, got {gradient.numel()}")
        change = gradient - self._sent
        self._sent += change
        return change

    def state_dict(self) -> dict[str, Tensor | None]:
        """Return the state. Its tensor is not a copy, so the next :meth:`difference` changes it."""
        return {"sent": self._sent}

    def load_state_dict(self, state: dict[str, Tensor | None]) -> None:
        """Load a state that :meth:`state_dict` returned. The tensor is copied."""
        sent = state["sent"]
        self._sent = None if sent is None else sent.clone()


class DriftCorrection:
    """A client of FedAC, which is a reconstruction here (:func:`fastagg.FedAC`). The client's state is the control
    variate ``c_i``, and :meth:`correct` corrects trained models."""

    def __init__(self) -> None:
        self.control: Tensor | None = None  # c_i, zero at first

    def correct(
        self, start: Tensor, trained: Tensor, server: Tensor, *, steps: int, lr: float
    ) -> tuple[Tensor, Tensor]:
        """Correct a locally trained model for drift, and update ``c_i``.

        Args:
            start: x_s, the model that the client was sent, flat [d].
            trained: y, the model after ``steps`` local steps, flat [d].
            server: C, the task's ``control``, [d].
            steps: E, the number of local steps, >= 1.
            lr: eta_l, the learning rate of the local steps, > 0.

        Returns:
            The delta to send, ``y - lr*(C - c_i) - x_s``, and the change of the control variate, ``c_new - c_i`` with
            ``c_new = (x_s - y)/(E*lr) - (C - c_i)``.
        """
        mine = torch.zeros_like(start) if self.control is None else self.control
        gap = server - mine
        new = (start - trained) / (steps * lr) - gap
        self.control = new
        return trained - lr * gap - start, new - mine


def add_proximal_gradient_(module: nn.Module, start: Iterable[Tensor], mu: float) -> None:
    """Add ``mu*(x - x_t)`` to the gradients. This is FedProx's term ``(mu/2)*|x - x_t|^2`` (AsyncFedED, Eq. 39).

    Call this function between ``backward()`` and the local optimizer's step.

    Args:
        module: the model in training. Parameters without a gradient are skipped.
        start: the parameters at the start of the training, in the order of ``module.parameters()``.
        mu: the weight of the term, >= 0.
    """
    for parameter, anchor in zip(module.parameters(), start, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - anchor, alpha=mu)
