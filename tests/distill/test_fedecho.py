"""FedEcho (its Algorithm 1) against the transcription, and what distillation must never break."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import inside
from support.distilled import Echo, TanhNetwork
from support.models import Residual, same
from support.properties import examples
from support.traces import Case, Driven, cases, drive
from torch import Tensor, nn

import fastagg
from fastagg.errors import CheckpointError, ConfigError, NonFiniteUpdate, ShapeMismatch

INPUTS, HIDDEN, CLASSES, SAMPLES = 4, 5, 3, 9
NETWORK = TanhNetwork(INPUTS, HIDDEN, CLASSES)
U = torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(0))
HOW: dict[str, Any] = {"lr": 0.01, "eps": 1e-3}  # a large eps: Adam's first step is a sign otherwise, all or nothing


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def distillation(**changes: Any) -> fastagg.Distillation:
    return fastagg.Distillation(**{"model": network(), "unlabelled": U, "batch_size": SAMPLES, **HOW, **changes})


def echo(num_clients: int = 4, **changes: Any) -> fastagg.Server:
    settings = {name: changes.pop(name) for name in ("lr", "buffer_size", "cache", "seed") if name in changes}
    return fastagg.FedEcho(network(), num_clients=num_clients, distill=distillation(**changes), **settings)


def play(server: fastagg.Server, arrivals: int, seed: int = 0, first: int = 0) -> None:
    """Clients in a fixed random order, two tasks ahead of their answers."""
    rng = np.random.default_rng(seed)
    n = server.num_clients or 1
    order, scales = rng.integers(0, n, 1000), rng.uniform(0.01, 0.3, 1000)
    for i in range(first, first + arrivals):
        client = int(order[i])
        task = server.dispatch(client)
        delta = np.random.default_rng([seed, i]).standard_normal(server.layout.size) * scales[i]
        server.receive(client, torch.from_numpy(delta.astype(np.float32)), version=task.version)


@given(
    case=cases(size=st.just(NETWORK.size), max_length=25),
    buffer_size=st.integers(1, 4),
    steps=st.integers(1, 3),
    clip=st.sampled_from([None, 5.0, 0.01]),
    alpha=st.sampled_from([(0.2, 0.8), (0.0, 0.0), (1.0, 1.0)]),
)
@examples(60)
def test_traces(case: Case, buffer_size: int, steps: int, clip: float | None, alpha: tuple[float, float]) -> None:
    # Where student and teacher agree, Adam steps by lr/eps times a gradient that is rounding alone; ten times it would
    # grow from step to step, in both of the two and differently.
    distill = distillation(steps=steps, clip_norm=clip, alpha=alpha, eps=0.05)
    ours = fastagg.FedEcho(case.x0, distill=distill, num_clients=case.num_clients, buffer_size=buffer_size, lr=0.5)
    theirs = Driven(case.x0, {"name": "Single"}, {"name": "SGD", "lr": 0.5})
    theirs.model = Echo(
        theirs.x, NETWORK, U.double().numpy(), buffer_size, 0.5, steps=steps, alpha=alpha, clip=clip, distill_lr=0.01,
        eps=0.05,
    )  # fmt: skip
    got = drive(ours, case, lambda s: s.flat.double().numpy().copy(), torch.from_numpy)
    want = drive(theirs, case, lambda s: s.x.copy())
    for a, b in zip(got, want, strict=True):
        assert (a.sent_version, a.applied, a.version, a.delay) == (b.sent_version, b.applied, b.version, b.delay)
        np.testing.assert_allclose(a.x, b.x, rtol=0, atol=2e-4 * max(1.0, np.abs(b.x).max()))


@pytest.mark.parametrize("inside", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_what_a_program_is_in_the_middle_of_changes_no_bit(inside: Any) -> None:
    plain, other = echo(buffer_size=2), echo(buffer_size=2)
    play(plain, 7)
    with inside():
        play(other, 7)
    assert same(other.state_dict(), plain.state_dict()) and other.version == 3


@pytest.mark.parametrize("cache", ["fp32", "bf16", "int8", "int4"])
def test_the_teacher_is_the_mean_of_what_is_stored(cache: str) -> None:
    server = echo(cache=cache, buffer_size=3)
    play(server, 20)
    teachers = inside.direction(server).teachers
    known = [slot for slot in teachers.slots if slot >= 0]
    mean = torch.stack([inside.row_in(teachers.cache, slot).double() for slot in known]).mean(dim=0)
    torch.testing.assert_close(teachers.now.sum / len(known), mean, rtol=0, atol=1e-15)
    assert teachers.now.heard == len(known) > 1


def test_a_version_that_was_sent_does_not_change_while_it_is_distilled() -> None:
    server = echo(buffer_size=1, steps=3)
    task = server.dispatch(0)
    before = task.flat.clone()
    server.dispatch(1)
    server.receive(0, torch.full((NETWORK.size,), 0.1))
    assert torch.equal(task.flat, before) and not torch.equal(server.flat, before)
    server.receive(1, torch.full((NETWORK.size,), 0.1))  # rebuilt from the version it was sent


def test_resume_is_no_interruption(tmp_path: Path) -> None:
    how: dict[str, Any] = {"buffer_size": 3, "steps": 4, "batch_size": 4, "cache": "int8"}
    whole, first = echo(**how), echo(**how)
    play(whole, 17)
    play(first, 8)
    first.save(tmp_path / "s.pt")
    with pytest.raises(CheckpointError, match="distill="):
        fastagg.load(tmp_path / "s.pt")
    distill = distillation(steps=4, batch_size=4)
    second = fastagg.load(tmp_path / "s.pt", distill=distill)
    play(second, 9, first=8)
    assert torch.equal(whole.flat, second.flat)
    assert same(whole.state_dict()["direction"], second.state_dict()["direction"])
    with pytest.raises(CheckpointError, match="unlabelled"):
        fastagg.load(tmp_path / "s.pt", distill=distillation(unlabelled=U + 1))


def test_batchnorm_statistics() -> None:
    """A teacher has its client's statistics, the student the server's of the new version."""
    images = torch.randn(6, 1, 5, 5, generator=torch.Generator().manual_seed(3))
    model = Residual().eval()
    seen: list[Tensor] = []

    def forward(module: nn.Module, inputs: Tensor) -> Any:
        seen.append(module.state_dict()["stem.1.running_mean"].clone())
        return module(inputs)

    distill = fastagg.Distillation(model, images, forward=forward, steps=1)
    server = fastagg.FedEcho(model, distill=distill, num_clients=2, buffer_size=2)
    seen.clear()
    for client, mean in ((0, 1.0), (1, 3.0)):
        task = server.dispatch(client)
        trained = copy.deepcopy(model)
        trained.stem[1].running_mean.fill_(mean)
        server.receive(client, task.delta(trained))
    assert [float(s[0]) for s in seen] == [1.0, 3.0, 2.0]
    assert float(server.parameters()["stem.1.running_mean"][0]) == 2.0
    assert not model.training and next(model.parameters()).grad is None


def test_tokens_have_rows_of_their_own_and_padding_none() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 11)

        def forward(self, ids: Tensor, attention_mask: Tensor) -> Any:
            return type("Output", (), {"logits": self.head(self.embed(ids))})

    ids = torch.arange(15).view(5, 3) % 7
    mask = torch.ones(5, 3, dtype=torch.int64)
    mask[:, 2] = 0

    def run(ids: Tensor) -> Tensor:
        distill = fastagg.Distillation(Tagger(), {"ids": ids, "attention_mask": mask}, lr=0.1, steps=2)
        server = fastagg.FedEcho(Tagger(), distill=distill, num_clients=2, buffer_size=1)
        server.dispatch(0)
        server.receive(0, torch.full((server.layout.size,), 0.1))
        return server.flat.clone()

    other = ids.clone()
    other[:, 2] = 6
    assert torch.equal(run(ids)[7 * 4 :], run(other)[7 * 4 :])  # the head's part: padding teaches it nothing
    assert not torch.equal(run(ids), run((ids + 1) % 7))


def test_large_vocabularies_stay_on_the_host_and_give_the_same() -> None:
    here, there = echo(buffer_size=2), echo(buffer_size=2, offload=True)
    for server in (here, there):
        play(server, 6)
    assert torch.equal(here.flat, there.flat)


def test_memory_shows_logits_versions_and_one_model() -> None:
    server = echo(num_clients=4, buffer_size=2)
    play(server, 3)
    held, record = server.memory(), server.distillation
    assert record is not None and record.flushes == 1 and record.distillation_seconds > 0 and record.loss > 0
    row = SAMPLES * CLASSES
    assert held["logits"] == 5 * 256 * 4 + 8 * row  # rows padded to a block, a spare one among them, and the sum
    assert held["model"] == 4 * NETWORK.size
    server.dispatch(0)
    assert server.memory()["versions"] == 0  # the current version is the model
    play(server, 2, first=1)
    assert server.memory()["versions"] == 4 * NETWORK.size
    assert held["total"] == sum(v for k, v in held.items() if k != "total")


# -- what is refused, and that nothing changes then ------------------------------------------------------------


class Broken(nn.Module):
    """The network, which can be told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.fault = network(), ""

    def forward(self, x: Tensor) -> Any:
        z = self.inner(x)
        if self.fault == "always" or (self.fault == "training" and torch.is_grad_enabled()):
            raise RuntimeError("out of memory, say")
        if self.fault == "nan":
            z = z * torch.nan
        if self.fault == "nan gradient" and torch.is_grad_enabled():
            z = z * torch.nan
        if self.fault == "classes":
            return torch.cat([z, z], dim=1)
        return None if self.fault == "none" else z


@pytest.mark.parametrize(
    ("fault", "error", "match"),
    [
        ("always", RuntimeError, "out of memory"),
        ("training", RuntimeError, "out of memory"),
        ("nan", NonFiniteUpdate, "logits"),
        ("nan gradient", NonFiniteUpdate, "distillation"),
        ("classes", ShapeMismatch, "logits"),
        ("none", ConfigError, "logits"),
    ],
)
def test_a_failure_leaves_everything_as_it_was(fault: str, error: type[Exception], match: str) -> None:
    model = Broken()
    distill = fastagg.Distillation(model, U, steps=3, **HOW)
    server = fastagg.FedEcho(Broken(), distill=distill, num_clients=3, buffer_size=2, cache="int8", buffers="mean")
    play(server, 5)  # one is in the buffer: the next one flushes
    server.dispatch(2)
    before = server.state_dict()
    inside.direction(server).student.module.fault = fault
    with pytest.raises(error, match=match):
        server.receive(2, torch.full((NETWORK.size,), 0.01))
    assert same(before, server.state_dict())
    inside.direction(server).student.module.fault = ""
    twin = fastagg.FedEcho(Broken(), distill=distill, num_clients=3, buffer_size=2, cache="int8")
    twin.load_state_dict(before)
    for s in (server, twin):
        s.receive(2, torch.full((NETWORK.size,), 0.01))
    assert torch.equal(server.flat, twin.flat)


# -- unlabelled data ------------------------------------------------------------


def images(count: int, size: int = 8) -> Tensor:
    return torch.randint(0, 256, (count, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_unlabelled_data_from_anywhere(tmp_path: Path) -> None:
    from fastagg.distill.unlabelled import load

    pixels = images(5)
    want = pixels.unsqueeze(1).float() / 255
    np.savez(tmp_path / "m.npz", x_train=pixels.numpy(), y_train=np.zeros(5))
    np.save(tmp_path / "m.npy", pixels.numpy())
    torch.save(pixels, tmp_path / "m.pt")
    dataset = torch.utils.data.TensorDataset(pixels, torch.zeros(5))
    for source in (pixels, pixels.numpy(), dataset, *(tmp_path / f"m.{end}" for end in ("npz", "npy", "pt"))):
        torch.testing.assert_close(load(source, None, (1, 8, 8), 0), want)
    resized = load(pixels, 3, (3, 4, 4), 0)
    assert isinstance(resized, Tensor) and resized.shape == (3, 3, 4, 4)
    torch.testing.assert_close(resized[:, 0], resized[:, 2])
    drawn = [load(pixels, 2, None, seed) for seed in (0, 0, 1, 2, 3)]
    assert torch.equal(drawn[0], drawn[1]) and any(not torch.equal(drawn[0], d) for d in drawn[2:])  # type: ignore[arg-type]
