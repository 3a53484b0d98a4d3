"""FedEcho's distillation loss, one forward and backward pass, compared with torch.

Candidates get the teachers' probabilities (or their logarithm) as input, because a server computes them once per flush.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from problem import Built, Candidate, Case, Problem, Skip
from torch import Tensor
from torch.nn import functional

from fastagg import ops
from fastagg.ops import SoftTargets

SHAPES = ((128, 10), (128, 100), (512, 32_000))
ALPHA = 0.5


def _ours(z: Tensor, targets: SoftTargets, _: Tensor) -> Tensor:
    return ops.distillation_loss(z, targets, alpha=ALPHA)


def _eager(z: Tensor, targets: SoftTargets, _: Tensor) -> Tensor:
    kl = functional.kl_div(functional.log_softmax(z, 1), targets.probs, reduction="batchmean")
    return ALPHA * kl + (1 - ALPHA) * functional.cross_entropy(z, targets.labels)


def _shared(z: Tensor, targets: SoftTargets, logs: Tensor) -> Tensor:
    q = functional.log_softmax(z, 1)
    kl = functional.kl_div(q, logs, reduction="batchmean", log_target=True)
    return ALPHA * kl + (1 - ALPHA) * functional.nll_loss(q, targets.labels)


def _plain(z: Tensor, probs: Tensor, labels: Tensor) -> Tensor:
    q = functional.log_softmax(z, 1)
    kl = functional.kl_div(q, probs, reduction="batchmean")
    return ALPHA * kl + (1 - ALPHA) * functional.nll_loss(q, labels)


def _built(problem: Problem, shape: tuple[int, int], loss: Callable[..., Tensor] | None) -> Built:
    generator = torch.Generator().manual_seed(0)
    teacher, student = (3 * torch.randn(shape, generator=generator).to(problem.device) for _ in range(2))
    targets = ops.soft_targets(teacher)
    logs, z = targets.probs.log(), student.clone().requires_grad_()
    if loss is None:
        torch._dynamo.reset()
        fast = torch.compile(_plain)
        try:
            fast(z, targets.probs, targets.labels).backward()
        except Exception as error:  # each layer of the compiler raises its own errors
            raise Skip(f"torch.compile failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}") from error

    def run() -> None:
        z.grad = None
        value = fast(z, targets.probs, targets.labels) if loss is None else loss(z, targets, logs)
        value.backward()

    return Built(run, lambda: z.grad.view(-1))


def _candidates(shape: tuple[int, int]) -> list[Candidate]:
    def bind(loss: Callable[..., Tensor] | None) -> Callable[[Problem], Built]:
        return partial(_built, shape=shape, loss=loss)

    return [
        Candidate("fastagg", bind(_ours), 4),
        Candidate("eager: kl_div + cross_entropy", bind(_eager), 8),
        Candidate("eager: one log_softmax, log targets", bind(_shared), 8),
        Candidate("torch.compile", bind(None), 6),
    ]


# The logits and the targets are read, and the gradient is written.
CASES = [
    Case(
        f"distillation loss [{rows}, {classes}]", 12, partial(_candidates, (rows, classes)), "path", (rows * classes,),
        apart=1e-4,
    )
    for rows, classes in SHAPES
]  # fmt: skip
