"""Callbacks for Hugging Face's Trainer and Lightning send what a loop written by hand sends, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastagg

EVERY, STEPS = 3, 8  # so the last delta is of two steps


class Loop:
    """A server, and what a client sent to it."""

    def __init__(self, model: nn.Module) -> None:
        self.server = fastagg.FedBuff(model, buffer_size=1, lr=0.5)
        self.sent: list[Tensor] = []

    def exchange(self, update: Tensor | None) -> Tensor:
        if update is not None:
            self.sent.append(update.clone())
            self.server.receive("ann", update)
        return self.server.dispatch("ann").flat


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    net[0].bias.requires_grad_(False)  # it takes no part
    return net


X, Y = torch.randn(STEPS, 4, generator=torch.manual_seed(1)), torch.arange(STEPS) % 2


def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(x), y)


def by_hand() -> tuple[list[Tensor], nn.Module]:
    """Do what the callbacks should do, with Adam, whose moments stay."""
    loop, net = Loop(model(0)), model(1)
    mine = [one for one in net.parameters() if one.requires_grad]

    def load() -> Tensor:
        nn.utils.vector_to_parameters(loop.exchange(None).clone(), mine)
        return nn.utils.parameters_to_vector(mine).detach().clone()

    optimizer, start = torch.optim.Adam(mine, lr=0.1), load()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, X[step : step + 1], Y[step : step + 1]).backward()
        optimizer.step()
        if step % EVERY == EVERY - 1 or step == STEPS - 1:
            loop.server.receive("ann", nn.utils.parameters_to_vector(mine).detach() - start)
            loop.sent.append(nn.utils.parameters_to_vector(mine).detach() - start)
            if step != STEPS - 1:
                start = load()
    return loop.sent, net


def check(loop: Loop, net: nn.Module | None) -> None:
    """``net``: the client's model at the end; None: the framework has loaded another one."""
    sent, expected = by_hand()
    assert len(loop.sent) == len(sent) == 3 and loop.server.version == 3
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(loop.sent, sent, strict=True))
    for mine, theirs in zip(net.parameters() if net else (), expected.parameters(), strict=net is not None):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("loads", [False, True], ids=["", "the best model is loaded at the end"])
def test_hugging_face_trainer(loads: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model(1)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": loss_of(self.net, x, labels)}

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def evaluate(self, *given: Any, **more: Any) -> dict[str, float]:
            return {"eval_loss": float(self.state.global_step)}  # the first checkpoint is the best

    more = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2} if loads else {}
    loop, net = Loop(model(0)), Net()
    trainer = Trainer(
        model=net,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=STEPS, per_device_train_batch_size=1, learning_rate=0.1,
            lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=0.0, use_cpu=True, report_to=[],
            save_strategy="steps" if loads else "no", disable_tqdm=True, **more,
        ),
        train_dataset=[{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)], eval_dataset=[],
        optimizers=(torch.optim.Adam([one for one in net.parameters() if one.requires_grad], lr=0.1), None),
        callbacks=[fastagg.clients.trainer_callback(loop.exchange, every=EVERY)],
    )  # fmt: skip
    trainer._get_train_sampler = lambda *given: torch.utils.data.SequentialSampler(X)
    trainer.train()
    check(loop, None if loads else net.net)
    assert not loads or trainer.state.best_model_checkpoint.endswith("checkpoint-2")


def test_a_model_in_half_precision_sends_what_training_has_changed() -> None:
    """The server's fp32 model is rounded when it is loaded. The rounding is no part of the update."""
    from fastagg.clients.callbacks import _Periodic

    sent: list[Tensor | None] = []

    def exchange(update: Tensor | None) -> Tensor:
        sent.append(update)
        return torch.full((2,), 1 / 3)

    net = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    periodic = _Periodic(exchange, 1)
    periodic.begin(net, 0)
    periodic.stepped(1)
    assert sent[0] is None and sent[1] is not None and not sent[1].any() and sent[1].dtype == torch.float32
