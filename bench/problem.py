"""One benchmark problem: a size, an update and the state to step; and what a candidate is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import machine
import torch
from torch import Tensor

from fastagg.storage import memory

Allocate = Callable[[int], Tensor]


class Skip(Exception):
    """A candidate that cannot run here, with the reason."""


@dataclass(frozen=True)
class Built:
    """A candidate ready to run: ``run`` makes one step, ``result`` is the vector to compare with the others'."""

    run: Callable[[], object]
    result: Callable[[], Tensor]
    before: Callable[[], object] | None = None


@dataclass(frozen=True)
class Candidate:
    """One way to do an operation.

    Attributes:
        name: as in the report; `fastagg` is ours.
        build: allocates the state and compiles; raises :class:`Skip` where it cannot run.
        vectors: vectors of length d it holds at its peak, temporaries included.
        corrected: whether it applies Adam's bias correction, as torch.optim always does.
        note: what a reader must know.
    """

    name: str
    build: Callable[[Problem], Built]
    vectors: float
    corrected: bool = False
    note: str = ""


def plain(size: int) -> Tensor:
    """Memory as a user of torch gets it."""
    return torch.empty(size)


def huge(size: int) -> Tensor:
    """Memory as a fastagg Server keeps its state: huge pages, where the system has them."""
    return memory.empty(size)


@dataclass(frozen=True)
class Problem:
    """A step of length ``size`` with FADAS's own settings. The data repeats a random tile: no timing depends on it."""

    size: int
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    buffer_size: int = 5

    def vector(self, kind: str, allocate: Allocate = plain) -> Tensor:
        """A fresh vector: ``update``, ``x``, ``acc`` or a moment; always the same values."""
        out, tile = allocate(self.size), _tile(kind)
        for at in range(0, self.size, tile.numel()):
            piece = out[at : at + tile.numel()]
            piece.copy_(tile[: piece.numel()])
        return out

    def vectors(self, kinds: Iterable[str], allocate: Allocate = plain) -> list[Tensor]:
        """Several of them."""
        return [self.vector(kind, allocate) for kind in kinds]

    @cached_property
    def update(self) -> Tensor:
        """The arriving update, shared by all candidates: in plain memory, as a client's message is."""
        return self.vector("update")

    @cached_property
    def negated(self) -> Tensor:
        """Its negative, for optimizers that descend."""
        return -self.update

    def layers(self, vector: Tensor) -> list[Tensor]:
        """Views of ``vector`` cut like ResNet-18's 62 parameters, scaled to this size."""
        return list(torch.split(vector, layer_sizes(self.size)))


def resnet18_shapes(classes: int = 10) -> list[tuple[int, ...]]:
    """Parameters of the ResNet-18 for CIFAR (3x3 stem): 62 arrays, 11,173,962 elements."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    width = 64
    for out in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(out, width, 3, 3), (out,), (out,), (out, out, 3, 3), (out,), (out,)]
            if block == 0 and width != out:
                shapes += [(out, width, 1, 1), (out,), (out,)]
            width = out
    return [*shapes, (classes, 512), (classes,)]


def layer_sizes(size: int) -> list[int]:
    """ResNet-18's layer sizes scaled to ``size`` elements in all."""
    own = [torch.Size(shape).numel() for shape in resnet18_shapes()]
    sizes = [max(1, n * size // sum(own)) for n in own]
    sizes[-2] += size - sum(sizes)
    return sizes if min(sizes) > 0 else [size]


def batches(candidates: Iterable[Candidate], problem: Problem, shared: float) -> Iterator[list[Candidate]]:
    """Candidates in as few groups as fit into memory together, beside ``shared`` vectors that every group needs."""
    room = 0.8 * machine.available_bytes() / (4 * problem.size) - shared
    group: list[Candidate] = []
    used = 0.0
    for candidate in candidates:
        if group and used + candidate.vectors > room:
            yield group
            group, used = [], 0.0
        group.append(candidate)
        used += candidate.vectors
    if group:
        yield group


def _tile(kind: str, size: int = (1 << 20) + 7) -> Tensor:
    seed = ("update", "x", "m", "v", "vhat", "acc", "base").index(kind)
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    if kind in ("v", "vhat"):
        return values.mul_(1e-2).square_()
    return values if kind in ("x", "base") else values.mul_(1e-2)
