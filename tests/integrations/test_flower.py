"""Flower's strategies on fastagg: what a reply does to the server, without and with Flower's own processes."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import fastagg

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from grids import FakeGrid

from fastagg.integrations import flower

D = 6


def initial() -> ArrayRecord:
    return ArrayRecord(
        {"w": flower.records._array(torch.arange(4.0).view(2, 2)), "b": flower.records._array(torch.ones(2))}
    )


def trained(message, step=None, samples=10):
    """What an unmodified Flower client sends back: its model moved by a step that depends on node and version."""
    node = message.metadata.dst_node_id
    arrays = message.content["arrays"].to_torch_state_dict()
    step = 0.1 * node if step is None else step
    arrays = {name: array + step for name, array in arrays.items()}
    return RecordDict(
        {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": samples, "loss": float(node)})}
    )


def test_fedavg_is_the_weighted_mean():
    grid = FakeGrid(lambda m: trained(m, samples=m.metadata.dst_node_id), [1, 2, 3])
    strategy = flower.SyncStrategy(fastagg.FedAvg, fraction_evaluate=0.0)
    result = strategy.start(grid, initial(), num_rounds=1)
    mean = (1 * 0.1 + 2 * 0.2 + 3 * 0.3) / 6
    got = result.arrays.to_torch_state_dict()
    torch.testing.assert_close(got["w"], torch.arange(4.0).view(2, 2) + mean)
    torch.testing.assert_close(got["b"], torch.ones(2) + mean)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx((1 + 4 + 9) / 6)


def test_asynchronous():
    grid = FakeGrid(trained, [1, 2, 3], delay=lambda node: node)
    strategy = flower.AsyncStrategy(partial(fastagg.FedBuff, buffer_size=2), poll=0)
    result = strategy.start(grid, initial(), num_rounds=5)
    assert strategy.server.version == 5 and strategy.updates == 10
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]
