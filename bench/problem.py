"""One benchmark problem: a size, a device, an update and the state to step. Also defines candidates and cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import machine
import torch
from torch import Tensor

from fastagg.storage import memory

CPU = torch.device("cpu")
OURS = "fastagg"
ROUNDING = 2e-6  # the largest relative difference between two right results of one step
SIZES = (1_000, 100_000, 10_000_000, 100_000_000)  # parameters: the sizes on the report's first page
Allocate = Callable[[int, torch.device], Tensor]


class Skip(Exception):
    """Raised if a candidate cannot run here. The message has the reason."""


@dataclass(frozen=True)
class Built:
    """A candidate ready to run.

    Attributes:
        run: makes one step, or as many as the case's ``period``.
        result: the vector to compare with the others'. None for a floor, which does less work by intent.
        before: preparation before each run, which is not timed.
        warm: the number of runs before results are compared.
        told: returns further figures after the last run, such as ``kept``, the bytes per parameter and client.
        close: ends the candidate's servers and processes, and removes its folders.
    """

    run: Callable[[], object]
    result: Callable[[], Tensor] | None
    before: Callable[[], object] | None = None
    warm: int = 1
    told: Callable[[], dict[str, float]] = dict
    close: Callable[[], object] = bool


@dataclass(frozen=True)
class Candidate:
    """One way to do an operation.

    Attributes:
        name: the name in the report. Names that begin with `fastagg` are ours.
        build: allocates the state and compiles; raises :class:`Skip` where it cannot run.
        vectors: the most vectors of the model's length that the candidate holds at a time, with temporary ones.
        corrected: whether it applies Adam's bias correction, as torch.optim always does.
        note: a remark for readers.
        devices: the devices on which the candidate runs.
    """

    name: str
    build: Callable[[Problem], Built]
    vectors: float
    corrected: bool = False
    note: str = ""
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass(frozen=True)
class Case:
    """One operation of a server. Each file in ``cases/`` defines a few related cases.

    Attributes:
        bytes: the bytes per parameter that the rule must read and write, each once. A kernel may move more. 0 if the
            work is not counted in bytes.
        candidates: ours first. The others' results must equal the first one's.
        group: ``arrival`` (from dispatch to receipt), ``kernel`` (one pass), ``server`` (of another framework),
            ``disk``, ``processes``, or ``path`` (anything else).
        sizes: the numbers of parameters that are measured; one element if the case has its own size.
        corrected: returns our result with Adam's bias correction, for peers that always apply it.
        exact: returns the float64 result. Ours must equal it within :data:`ROUNDING`, peers within ``rounding``.
        lr: learning rate.
        rounding: the relative difference of elements that rounding may cause.
        apart: if not None, results may differ by this norm, relative to the result's norm. Replaces ``rounding``.
        reads: whether the case writes nothing. It is then compared with the streams that only read.
        period: the number of calls or arrivals in one run. Figures are per call or arrival.
        least: the least seconds of a sample.
        devices: the devices on which fastagg's candidate runs.
        host: whether the host's clock times the case on every device.
        told: whether a run measures and returns its seconds itself.
        peaks: whether each candidate's peak of memory is measured, too.
        floor: the limits that `--floors` checks: the least share of the memory's speed, or a peer and the least
            ratio of its time to ours. They are about two thirds of the values on the report's processors.
    """

    name: str
    bytes: float
    candidates: Callable[[], Sequence[Candidate]]
    group: str = "kernel"
    sizes: tuple[int, ...] = SIZES
    corrected: Callable[[Problem], Tensor] | None = None
    exact: Callable[[Problem], Tensor] | None = None
    lr: float = 1e-3
    rounding: float = ROUNDING
    apart: float | None = None
    reads: bool = False
    period: int = 1
    least: float = 2e-3
    devices: tuple[str, ...] = ("cpu", "cuda")
    host: bool = False
    told: bool = False
    peaks: bool = False
    floor: tuple[float, str, float] | None = None


def plain(size: int, device: torch.device = CPU) -> Tensor:
    """Allocate memory as a user of torch does."""
    return torch.empty(size, device=device)


def huge(size: int, device: torch.device = CPU) -> Tensor:
    """Allocate memory as a fastagg Server does for its state: huge pages, if the system has them."""
    return memory.empty(size) if device.type == "cpu" else plain(size, device)


@dataclass(frozen=True)
class Problem:
    """A step of length ``size`` with FADAS's own settings. The data is a random tile, repeated. Times do not depend on
    data."""

    size: int
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    buffer_size: int = 5
    device: torch.device = field(default=CPU)

    def zeros(self, allocate: Allocate = huge) -> Tensor:
        """Return a new vector of zeros."""
        return allocate(self.size, self.device).zero_()

    def vector(self, kind: str, allocate: Allocate = plain) -> Tensor:
        """Return a new vector of a kind: ``update``, ``x``, ``acc`` or a moment. A kind always has the same values."""
        out, tile = allocate(self.size, self.device), _tile(kind)
        for at in range(0, self.size, tile.numel()):
            piece = out[at : at + tile.numel()]
            piece.copy_(tile[: piece.numel()])
        return out

    def vectors(self, kinds: Iterable[str], allocate: Allocate = plain) -> list[Tensor]:
        """Return a new vector of each kind."""
        return [self.vector(kind, allocate) for kind in kinds]

    @cached_property
    def update(self) -> Tensor:
        """The arriving update, shared by all candidates. It is allocated by torch, as a client's message is."""
        return self.vector("update")

    @cached_property
    def negated(self) -> Tensor:
        """The update's negative, for optimizers that descend."""
        return -self.update

    def layers(self, vector: Tensor) -> list[Tensor]:
        """Return views of ``vector`` with the sizes of ResNet-18's 62 parameters, scaled to this size."""
        return list(torch.split(vector, layer_sizes(self.size)))


def resnet18_shapes() -> list[tuple[int, ...]]:
    """Return the shapes of the ResNet-18 for CIFAR (3x3 stem): 62 arrays, 11,173,962 elements."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    width = 64
    for out in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(out, width, 3, 3), (out,), (out,), (out, out, 3, 3), (out,), (out,)]
            if block == 0 and width != out:
                shapes += [(out, width, 1, 1), (out,), (out,)]
            width = out
    return [*shapes, (10, 512), (10,)]


def layer_sizes(size: int) -> list[int]:
    """Return ResNet-18's layer sizes, scaled to ``size`` elements in total."""
    own = [torch.Size(shape).numel() for shape in resnet18_shapes()]
    sizes = [max(1, n * size // sum(own)) for n in own]
    sizes[-2] += size - sum(sizes)
    return sizes if min(sizes) > 0 else [size]


def batches(candidates: Iterable[Candidate], problem: Problem, shared: float) -> Iterator[list[Candidate]]:
    """Yield candidates in as few groups as memory allows. Every group needs ``shared`` vectors in addition."""
    room = 0.8 * machine.available_bytes(problem.device) / (4 * problem.size) - shared
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


def _tile(kind: str) -> Tensor:
    seed = ("update", "x", "m", "v", "vhat", "acc", "base").index(kind)
    values = torch.randn((1 << 20) + 7, generator=torch.Generator().manual_seed(seed))
    if kind in ("v", "vhat"):
        return values.mul_(1e-2).square_()
    return values if kind in ("x", "base") else values.mul_(1e-2)
