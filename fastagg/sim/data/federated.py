"""The data of a run: the samples of each client, and the server's test set. Every data set returns a FederatedData."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fastagg.errors import DataError
from fastagg.sim.seeds import generator

# Takes a batch of inputs [B, *shape] and a generator for random draws. Returns a changed batch.
Augmentation = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]


@dataclass(frozen=True)
class Samples:
    """Inputs ``x`` [N, *shape], which are fp32 or tokens of text, and labels ``y`` [N], which are int64. With a user's
    own loss, labels may be fp32.

    If the model generates text, ``y`` [N, length] has the token after each token. Training ignores labels of -100.
    ``augment`` is applied to training batches (see :func:`batches`), never to a test set. None: no augmentation.
    """

    x: torch.Tensor
    y: torch.Tensor
    augment: Augmentation | None = None

    def __len__(self) -> int:
        return self.y.shape[0]  # len() of a tensor takes three times as long

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle only the samples' own numbers, even if ``x`` or ``y`` is a view of a larger tensor."""
        whole = (a.clone() if a.untyped_storage().nbytes() > a.nbytes else a for a in (self.x, self.y))
        return Samples, (*whole, self.augment)

    def to(self, device: torch.device) -> Samples:
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def part(self, index: torch.Tensor) -> Samples:
        return replace(self, x=self.x[index], y=self.y[index])


# Takes a model and the test set. Returns the accuracy (0..1) and the loss.
Score = Callable[[torch.nn.Module, Samples], tuple[float, float]]


def batches(
    samples: Samples, indices: Iterable[torch.Tensor], seed: int, client: int, number: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the inputs and labels of each batch. ``indices`` has the indices of each batch's samples. If the samples
    have ``augment``, the inputs are augmented.

    The random draws of ``augment`` depend only on (seed, client, number), where ``number`` counts the client's
    dispatches. So the order in which clients train has no effect.
    """
    rng = generator(seed, "augment", client, number) if samples.augment else None
    for index in indices:
        x = samples.x[index]
        yield (samples.augment(x, rng) if samples.augment and rng else x), samples.y[index]


@dataclass(frozen=True)
class FederatedData:
    """Each client's training samples, one test set, and the number of label classes.

    ``text``: any object if inputs are tokens. A function that makes a model may take this object. None: inputs are not
    tokens. ``unlabelled``: inputs for distillation, which are not used for training. ``score``: a function that tests a
    model, for data whose measure is not the share of right labels. None: the model is tested by this share. ``tests``:
    for each client, the client's own test samples. None: clients are not tested.

    DataError: there is no client, a set of samples is empty or not a Samples, or ``tests`` is not one set per client.
    """

    clients: Sequence[Samples]
    test: Samples
    classes: int
    text: object | None = None
    unlabelled: torch.Tensor | None = None
    score: Score | None = None
    tests: Sequence[Samples] | None = None

    def __post_init__(self) -> None:
        if not self.clients:
            raise DataError("the data has no clients")
        if self.tests is not None and len(self.tests) != len(self.clients):
            raise DataError(f"there are {len(self.clients)} clients and {len(self.tests)} tests")
        for name, samples in self.parts():
            if not isinstance(samples, Samples) or not all(isinstance(a, torch.Tensor) for a in (samples.x, samples.y)):
                raise DataError(f"{name} is a {type(samples).__name__}, expected Samples(x, y) of two tensors")
            if samples.y.ndim == 0 or len(samples) == 0:
                raise DataError(f"{name} has no samples")

    def parts(self) -> Iterator[tuple[str, Samples]]:
        """Yield all sets of samples, each with its name for messages."""
        yield "the test set", self.test
        yield from ((f"client {number}", samples) for number, samples in enumerate(self.clients))
        yield from ((f"the test of client {number}", samples) for number, samples in enumerate(self.tests or ()))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.test.x.shape[1:])

    def to(self, device: torch.device) -> FederatedData:
        clients = [samples.to(device) for samples in self.clients]
        tests = None if self.tests is None else [samples.to(device) for samples in self.tests]
        return replace(self, clients=clients, test=self.test.to(device), tests=tests)

    def held_out(self, share: float, seed: int) -> FederatedData:
        """Return the data with a random ``share`` of each client's samples as the client's own test samples, instead of
        training samples. With a ``share`` of 0, return the data itself. DataError: a client has only one sample."""
        if not share:
            return self
        clients, tests = [], []
        for number, samples in enumerate(self.clients):
            if len(samples) < 2:
                raise DataError(f"run.client_test: client {number} has one sample, there is none to test it on")
            order = torch.from_numpy(generator(seed, "client-test", number).permutation(len(samples)))
            count = min(max(1, round(share * len(samples))), len(samples) - 1)
            tests.append(samples.part(order[:count]))
            clients.append(samples.part(order[count:]))
        return replace(self, clients=clients, tests=tests)


def split_by_label(
    train: Samples, test: Samples, classes: int, *, clients: int, alpha: float, seed: int, min_samples: int = 2
) -> FederatedData:
    """Divide a training set among ``clients`` as :func:`dirichlet_split` does. ``classes``: the number of labels."""
    parts = dirichlet_split(train.y.numpy(), clients, alpha, seed, min_samples)
    return FederatedData([train.part(torch.from_numpy(part)) for part in parts], test, classes)


def dirichlet_split(
    labels: np.ndarray, clients: int, alpha: float, seed: int, min_samples: int = 1
) -> list[np.ndarray]:
    """Divide the indices of samples among ``clients``. Each class is divided by its own Dirichlet(alpha) draw.

    A small ``alpha`` gives each client few classes (Dir(0.1) is strongly skewed). A large ``alpha`` gives each client
    an even mix. A client with fewer than ``min_samples`` samples then gets random samples of the client that has the
    most samples, until the number is reached. Every index is used exactly once.

    labels: an integer array [N]. Returns ``clients`` sorted int64 arrays. DataError: N < clients * min_samples.
    """
    if len(labels) < clients * min_samples:
        raise DataError(
            f"{len(labels)} samples cannot give each of {clients} clients at least {min_samples}: "
            f"lower the number of clients or min_samples"
        )
    rng = generator(seed, "partition")
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        indices = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        # Rounding the cumulative shares loses no sample. Rounding each client's share could lose some.
        cuts = np.rint(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64)
        for part, chunk in zip(parts, np.split(indices, cuts), strict=True):
            part.extend(int(i) for i in chunk)
    for part in parts:
        while len(part) < min_samples:
            largest = max(parts, key=len)
            part.append(largest.pop(int(rng.integers(len(largest)))))
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]
