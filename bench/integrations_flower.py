"""Compares Flower's FedAvg and FedAdam with fastagg's on the same ten replies: time, memory, low-precision errors."""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as theirs
from flwr.supercore.task_identity import TaskIdentity
from integrations_common import CLIENTS, compare
from results import Row

import fastagg
from fastagg.integrations.flower import SyncStrategy, read, write

STRATEGIES: dict[str, Callable[[], Any]] = {
    "Flower FedAvg": theirs.FedAvg,
    "fastagg FedAvg": partial(SyncStrategy, fastagg.FedAvg),
    "Flower FedAdam": partial(theirs.FedAdam, eta=0.01, beta_1=0.9, beta_2=0.99),
    "fastagg FedAdam": partial(SyncStrategy, partial(fastagg.FedAdam, lr=0.01, weighting="samples")),
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Return ResNet-18's arrays for ten classes: 11.2 M parameters."""
    found: dict[str, tuple[int, ...]] = {"stem": (64, 3, 7, 7)}
    width = 64
    for stage, out in enumerate((64, 128, 256, 512)):
        for block in range(2):
            found |= {f"{stage}.{block}.a": (out, width, 3, 3), f"{stage}.{block}.b": (out, out, 3, 3)}
            if width != out:
                found[f"{stage}.{block}.shortcut"] = (out, width, 1, 1)
            width = out
    norms = {f"{name}.norm.{part}": (shape[0],) for name, shape in found.items() for part in "wb"}
    return {**found, **norms, "head": (10, 512), "head.b": (10,)}


def size() -> int:
    """Return the number of parameters."""
    return sum(math.prod(shape) for shape in shapes().values())


def start() -> dict[str, torch.Tensor]:
    """Return the first model."""
    draw = torch.Generator().manual_seed(0)
    return {name: 0.05 * torch.randn(shape, generator=draw) for name, shape in shapes().items()}


class Nodes:
    """The part of a grid that sampling needs."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))


class Rounds:
    """One strategy that gets the same replies in every round."""

    def __init__(self, make: Callable[[], Any], start: ArrayRecord, replies: list[RecordDict]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0  # as in a ServerApp
        self.strategy, self.start, self.replies = make(), start, replies
        self.pending: list[Message] = []
        self.loss = theirs.FedAvg().train_metrics_aggr_fn(replies, "num-examples")["loss"]
        self.result: ArrayRecord | None = None

    def prepare(self) -> None:
        """Do what precedes a call: the round is configured, and the clients have answered."""
        config = ConfigRecord()
        sent = self.strategy.configure_train(1, self.result or self.start, config, Nodes(len(self.replies)))
        sent = sorted(sent, key=lambda message: message.metadata.dst_node_id)
        self.pending = [Message(reply, reply_to=message) for reply, message in zip(self.replies, sent, strict=True)]

    def aggregate(self) -> None:
        """Do only the aggregation call."""
        if not self.pending:  # the timer's own warm-up call
            self.prepare()
        self.result, metrics = self.strategy.aggregate_train(1, self.pending)
        self.pending = []
        assert metrics is not None and metrics["loss"] == self.loss, "a reply was left out"


def replies(start: dict[str, torch.Tensor], clients: int, *, noise: float = 0.01) -> list[RecordDict]:
    """Return trained models, each with its number of samples."""
    records = []
    for client in range(clients):
        draw = torch.Generator().manual_seed(client)
        moved = {n: a + (noise * torch.randn(a.shape, generator=draw)).to(a.dtype) for n, a in start.items()}
        metrics = MetricRecord({"num-examples": 100 + client, "loss": float(client)})
        records.append(RecordDict({"arrays": write(moved), "metrics": metrics}))
    return records


def resident(field: str) -> int:
    """Return this process's resident bytes: ``VmRSS`` is the current value, ``VmHWM`` the peak since forget_peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Reset the peak."""
    Path("/proc/self/clear_refs").write_text("5")


def at_rest() -> int:
    """Return the resident bytes after all freed memory was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident("VmRSS")


def memory(name: str) -> tuple[float, float]:
    """Return the models held between two rounds, without the messages, and the additional models at the call's peak.

    It runs in its own process, because memory freed by others could be reused unnoticed.
    """
    logging.getLogger("flwr").setLevel(logging.ERROR)
    model, arrays = 4 * size(), start()
    record, given = write(arrays), replies(arrays, CLIENTS)
    del arrays
    empty = at_rest()
    rounds = Rounds(STRATEGIES[name], record, given)
    for _ in range(3):
        rounds.prepare()
        before = at_rest()
        forget_peak()
        rounds.aggregate()
        peak = resident("VmHWM")
    return (before - empty) / model, (peak - before) / model


def alone(name: str) -> tuple[float, float]:
    """Run :func:`memory` in its own process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(memory, name).result()


def errors(dtype: torch.dtype) -> list[str]:
    """Return the largest error of the mean of 100 clients, in units in the last place of the model's own type."""
    model = {"w": (100 + torch.randn(20_000, generator=torch.Generator().manual_seed(7))).to(dtype)}
    given = replies(model, 100, noise=0.5)
    values = torch.stack([read(reply["arrays"])["w"].double() for reply in given])
    weights = torch.tensor([reply["metrics"]["num-examples"] for reply in given], dtype=torch.float64)
    exact = (values * weights[:, None]).sum(0) / weights.sum()
    place = 2.0 ** torch.floor(torch.log2(exact.abs())) * torch.finfo(dtype).eps
    found = []
    for name in ("Flower FedAvg", "fastagg FedAvg"):
        rounds = Rounds(STRATEGIES[name], write(model), given)
        try:
            rounds.prepare()
            rounds.aggregate()
            assert rounds.result is not None
            off = (read(rounds.result)["w"].double() - exact).abs() / place
            found.append(f"{off.max():.2f} (mean {off.mean():.2f})")
        except Exception as error:  # the error that Flower's users would see
            found.append(f"fails: {type(error).__name__}: {error}")
    return found


def report(rounds: int) -> list[Row]:
    """Run the comparison. It prints the errors of low-precision means first."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for dtype in (torch.float16, torch.bfloat16):
        theirs_, ours = errors(dtype)
        print(f"{dtype}: error of the mean of 100 clients in units of the last place: Flower {theirs_}, fastagg {ours}")
    peaks = {name: alone(name)[1] for name in STRATEGIES}
    arrays = start()
    record, given = write(arrays), replies(arrays, CLIENTS)
    running = {name: Rounds(make, record, given) for name, make in STRATEGIES.items()}
    for one in running.values():
        one.prepare()
        one.aggregate()
    # Both must be equal before they are timed. The FedAdams differ: Flower's bias correction is one round ahead.
    ours, own = (read(running[f"{whose} FedAvg"].result or record) for whose in ("fastagg", "Flower"))
    for name in ours:
        torch.testing.assert_close(ours[name], own[name].to(torch.float32))
    return compare(
        "Flower",
        {name: one.aggregate for name, one in running.items()},
        rounds,
        peaks,
        before={name: one.prepare for name, one in running.items()},
        size=size(),
    )
