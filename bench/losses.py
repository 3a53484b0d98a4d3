"""FedEcho's distillation loss as rows of the report; its candidates are distillation.py's."""

from __future__ import annotations

from collections.abc import Callable

import distillation
import torch
import turns
from records import Row
from torch import Tensor

CANDIDATES = ["fastagg", "eager: kl_div + cross_entropy", "eager: one log_softmax, log targets", "torch.compile"]


def losses(shape: tuple[int, int], size: int, rounds: int = 15) -> list[Row]:
    """One forward and backward pass for logits of ``shape``; ``size`` is that of the logits whatever is asked.

    Bytes: the logits and the targets are read, the gradient is written.
    """
    student, steps = distillation.candidates(*shape)
    leaf = student.clone().requires_grad_()
    want = steps["fastagg"](student.clone().requires_grad_())
    runs: dict[str, Callable[[], object]] = {}
    skipped: dict[str, str] = {}
    for name, step in steps.items():
        try:
            got = step(student.clone().requires_grad_())
        except Exception as error:  # the compiler's stack raises whatever its layers raise
            if name != "torch.compile":
                raise
            skipped[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            continue
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-8, msg=name)
        runs[name] = _pass(step, leaf)
    rows, classes = shape
    return turns.rows(f"distillation loss [{rows}, {classes}]", runs, rows * classes, 12, rounds, skipped=skipped)


def _pass(step: Callable[[Tensor], Tensor], leaf: Tensor) -> Callable[[], None]:
    def run() -> None:
        leaf.grad = None
        step(leaf)

    return run
