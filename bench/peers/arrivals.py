"""A server's arithmetic for one arrival in eager torch: in place, no allocation, one ``dot`` that looks for NaN.

It favours the peer: it has no tasks, versions, delays, locks, names or shapes. If a version is kept for clients in
flight, the step writes the next version directly to another vector, which is cheaper than copying first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Receive = Callable[[int, Tensor], None]


class Model:
    """The vector that arrivals change, in place or as a new version each time.

    Attributes:
        x: the current version, [d].
        keeps: whether a client may still hold it; then it must not change.
    """

    def __init__(self, start: Tensor, keeps: bool) -> None:
        self.x, self.keeps = start, keeps

    def add(self, direction: Tensor, lr: float) -> None:
        """``x <- x + lr * direction``."""
        if self.keeps:
            self.x = torch.add(self.x, direction, alpha=lr)
        else:
            self.x.add_(direction, alpha=lr)

    def add_ratio(self, over: Tensor, under: Tensor, lr: float) -> None:
        """``x <- x + lr * over / under``."""
        if self.keeps:
            self.x = torch.addcdiv(self.x, over, under, value=lr)
        else:
            self.x.addcdiv_(over, under, value=lr)


def look(update: Tensor) -> None:
    """Read an update once: NaN and infinity remain in the sum of squares. On a device the host does not wait for it."""
    if update.is_cuda:
        torch._assert_async(torch.isfinite(torch.dot(update, update)))
    elif not math.isfinite(torch.dot(update, update).item()):
        raise ValueError("update: NaN or infinity")


def fedbuff(model: Model, lr: float, buffer_size: int) -> Receive:
    """Step along the mean of every M updates."""
    acc, held = torch.empty_like(model.x), 0

    def receive(client: int, update: Tensor) -> None:
        nonlocal held
        look(update)
        if held:
            acc.add_(update)
        else:
            acc.copy_(update)
        held += 1
        if held == buffer_size:
            model.add(acc, lr / buffer_size)
            held = 0

    return receive


def asgd(model: Model, lr: float) -> Receive:
    """Step along every gradient."""

    def receive(client: int, gradient: Tensor) -> None:
        look(gradient)
        model.add(gradient, -lr)

    return receive


def fadas(model: Model, lr: float, betas: tuple[float, float], eps: float) -> Receive:
    """AMSGrad for every update (M = 1), one operation after the other."""
    m, v, vhat, root = (torch.zeros_like(model.x) for _ in range(4))
    b1, b2 = betas

    def receive(client: int, update: Tensor) -> None:
        look(update)
        m.lerp_(update, 1 - b1)
        v.mul_(b2).addcmul_(update, update, value=1 - b2)
        torch.maximum(vhat, v, out=vhat)
        torch.sqrt(vhat, out=root).add_(eps)
        model.add_ratio(m, root, lr)

    return receive


def fadas_fused(model: Model, lr: float, betas: tuple[float, float], eps: float) -> Receive:
    """The same with torch's fused kernel, called without its optimizer class.

    It corrects Adam's bias. At the step number that it gets, the corrections are exactly 1.
    """
    m, v, vhat = (torch.zeros_like(model.x) for _ in range(3))
    late = [torch.tensor(1e6, device=model.x.device)]

    def receive(client: int, update: Tensor) -> None:
        look(update)
        if model.keeps:
            model.x = model.x.clone()
        torch._fused_adam_(
            [model.x], [update], [m], [v], [vhat], late, lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=0.0,
            eps=eps, amsgrad=True, maximize=True, grad_scale=None, found_inf=None,
        )  # fmt: skip

    return receive


def fedasync(model: Model, alpha: float) -> Receive:
    """Move towards the client's model, which started from the current version."""
    base = model.x.clone()

    def receive(client: int, update: Tensor) -> None:
        look(update)
        if model.keeps:  # the previous version is the client's base, unchanged
            model.x = torch.lerp(model.x, model.x, alpha).add_(update, alpha=alpha)
        else:
            model.x.mul_(1 - alpha).add_(base, alpha=alpha).add_(update, alpha=alpha)
            base.copy_(model.x)

    return receive


def ace(model: Model, lr: float, rows: Tensor) -> Receive:
    """Step along the mean of the rows heard so far. The sum is updated by the change of one row."""
    total, heard = torch.zeros_like(model.x), set[int]()

    def receive(client: int, gradient: Tensor) -> None:
        look(gradient)
        row = rows[client]
        if client in heard:
            total.sub_(row)
        heard.add(client)
        row.copy_(gradient)
        total.add_(gradient)
        model.add(total, -lr / len(heard))

    return receive
