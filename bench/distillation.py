"""FedEcho's distillation loss, forward and backward, against torch: python bench/distillation.py

Candidates get the teachers' probabilities (or their logarithm) ready made, as a server that prepares them once a flush
would have them. Time is of one forward and backward pass; memory is the most the process grew by while it ran,
each candidate in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from timing import interleave
from torch import Tensor
from torch.nn import functional

from fastagg import ops

SHAPES = ((128, 10), (128, 100), (512, 32_000))
ALPHA = 0.5
Step = Callable[[Tensor], Tensor]


def candidates(rows: int, classes: int) -> tuple[Tensor, dict[str, Step]]:
    """The student's logits, and functions that return the gradient with respect to them."""
    generator = torch.Generator().manual_seed(0)
    teacher, student = (3 * torch.randn(rows, classes, generator=generator) for _ in range(2))
    targets = ops.soft_targets(teacher)
    log_probs = targets.probs.log()

    def backward(loss: Tensor, z: Tensor) -> Tensor:
        loss.backward()
        assert z.grad is not None
        return z.grad

    def eager(z: Tensor) -> Tensor:
        kl = functional.kl_div(functional.log_softmax(z, 1), targets.probs, reduction="batchmean")
        return backward(ALPHA * kl + (1 - ALPHA) * functional.cross_entropy(z, targets.labels), z)

    def shared(z: Tensor) -> Tensor:
        q = functional.log_softmax(z, 1)
        kl = functional.kl_div(q, log_probs, reduction="batchmean", log_target=True)
        return backward(ALPHA * kl + (1 - ALPHA) * functional.nll_loss(q, targets.labels), z)

    def loss(z: Tensor, probs: Tensor, labels: Tensor) -> Tensor:
        q = functional.log_softmax(z, 1)
        kl = functional.kl_div(q, probs, reduction="batchmean")
        return ALPHA * kl + (1 - ALPHA) * functional.nll_loss(q, labels)

    compiled = torch.compile(loss)
    return student, {
        "fastagg": lambda z: backward(ops.distillation_loss(z, targets, alpha=ALPHA), z),
        "eager: kl_div + cross_entropy": eager,
        "eager: one log_softmax, log targets": shared,
        "torch.compile": lambda z: backward(compiled(z, targets.probs, targets.labels), z),
    }


def measure(rows: int, classes: int, rounds: int) -> None:
    """Print a table of one shape."""
    student, steps = candidates(rows, classes)
    want = steps["fastagg"](student.clone().requires_grad_())
    for name, step in steps.items():
        torch.testing.assert_close(step(student.clone().requires_grad_()), want, rtol=1e-4, atol=1e-8, msg=name)
    leaf = student.clone().requires_grad_()

    def run(step: Step) -> Callable[[], object]:
        def once() -> None:
            leaf.grad = None
            step(leaf)

        return once

    timings = interleave({name: run(step) for name, step in steps.items()}, rounds=rounds)
    print(f"\n[{rows}, {classes}], {rounds} rounds, {timings.discarded} discarded\n")
    print("| candidate | ms (p20 to p80) | of fastagg | MB at most |")
    print("|---|---|---|---|")
    for name in steps:
        t, ratio = timings.seconds(name), timings.ratio(name, "fastagg")
        grown = subprocess.run(
            [sys.executable, __file__, "--peak", name, str(rows), str(classes)], capture_output=True, text=True
        )
        peak = grown.stdout.strip() or f"failed: {grown.stderr.strip().splitlines()[-1]}"
        print(
            f"| {name} | {1e3 * t.p50:.3f} ({1e3 * t.p20:.3f} to {1e3 * t.p80:.3f}) | {ratio.p50:.2f} | {peak} |",
            flush=True,
        )


def peak(name: str, rows: int, classes: int) -> None:
    """Print by how many MB this process grows in one pass of ``name``, after a first one that compiles."""
    student, steps = candidates(rows, classes)
    leaf = student.requires_grad_()
    steps[name](leaf)
    leaf.grad = None
    before = _kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    steps[name](leaf)
    print(f"{(_kilobytes('VmHWM') - before) / 1024:.1f}")


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field)))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peak", nargs=3, metavar=("CANDIDATE", "ROWS", "CLASSES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak:
        peak(given.peak[0], int(given.peak[1]), int(given.peak[2]))
        return 0
    for rows, classes in SHAPES:
        measure(rows, classes, given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
