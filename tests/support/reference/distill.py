"""FedEcho's distillation loss in float64, as in the FedEcho paper, Eqs. 3 and 4."""

import math

import torch
from torch import Tensor

_IGNORED = -100


def soft_targets(logits: Tensor, *, scale: float = 1.0, out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`fastagg.ops.soft_targets`."""
    y = logits.to(torch.float64) * scale
    p = torch.softmax(y, dim=1)
    entropy = -torch.special.xlogy(p, p).sum(dim=1)
    labels = (y == y.amax(dim=1, keepdim=True)).to(torch.uint8).argmax(dim=1)  # the first of equal ones
    probs = torch.empty_like(logits) if out is None else out
    return probs.copy_(p), labels, entropy


def distillation(
    student: Tensor, probs: Tensor, labels: Tensor, entropy: Tensor, rows: Tensor | None, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient with respect to ``student``, in the student's dtype."""
    z = student.to(torch.float64)
    p, label, h = probs.to(torch.float64), labels, entropy
    if rows is not None:
        p, label, h = p[rows], label[rows], h[rows]
    counts = (label != _IGNORED).to(torch.float64)
    total = counts.sum().clamp_min(1.0)
    classes = z.shape[1]
    relative = (h * counts).sum() / total / math.log(classes) if classes > 1 else torch.zeros_like(total)
    alpha = relative * high + (1.0 - relative) * low
    log_q = torch.log_softmax(z, dim=1)
    kl = (torch.special.xlogy(p, p) - torch.where(p > 0, p * log_q, 0.0)).sum(dim=1)
    index = label.clamp_min(0).unsqueeze(1)
    loss = alpha * kl - (1.0 - alpha) * log_q.gather(1, index).squeeze(1)
    gradient = log_q.exp() - alpha * p
    gradient = gradient.scatter_add(1, index, (alpha - 1.0).expand(index.shape))
    share = counts / total
    gradient = torch.where(share.unsqueeze(1) > 0, gradient * share.unsqueeze(1), 0.0)
    return torch.where(share > 0, loss * share, 0.0).sum().to(student.dtype), gradient.to(student.dtype)
