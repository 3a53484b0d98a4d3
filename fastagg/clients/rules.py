"""The client's part of ACE with client caches, FedAC and FedProx, for use in local training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class GradientDifference:
    """A client of ACE with client caches (the ACE paper, Algorithm a.5), which sends ``g_new - g_prev``.

    ``g_prev`` is stored as the server has received it, including rounding, so that errors do not accumulate.

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
        """Return the state. The tensor is not a copy, so it changes later."""
        return {"sent": self._sent}

    def load_state_dict(self, state: dict[str, Tensor | None]) -> None:
        """Load a state of :meth:`state_dict`. The tensor is copied."""
        sent = state["sent"]
        self._sent = None if sent is None else sent.clone()


class DriftCorrection:
    """A client of FedAC: its control variate ``c_i``, and the correction after local training.

    A reconstruction, see :func:`fastagg.FedAC`.
    """

    def __init__(self) -> None:
        self.control: Tensor | None = None  # c_i, zero at first

    def correct(
        self, start: Tensor, trained: Tensor, server: Tensor, *, steps: int, lr: float
    ) -> tuple[Tensor, Tensor]:
        """Correct a locally trained model for drift.

        Args:
            start: x_s, the model that the client was sent, flat [d].
            trained: y, after ``steps`` local steps of learning rate ``lr``, flat [d].
            server: C, the task's ``control``, [d].
            steps: E, >= 1.
            lr: eta_l, > 0.

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
    """FedProx's local term: add ``mu*(x - x_t)`` to the gradients (AsyncFedED, Eq. 39: ``(mu/2)*|x - x_t|^2``).

    Call this function between ``backward()`` and the local optimizer's step.

    Args:
        module: the model in training. Parameters without a gradient are skipped.
        start: the parameters at the start of the training, in the order of ``module.parameters()``.
        mu: >= 0.
    """
    for parameter, anchor in zip(module.parameters(), start, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - anchor, alpha=mu)
