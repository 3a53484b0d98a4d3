"""One run of Flower's simulation engine with its FedAvg, an actor on each core.

The clock begins when a tenth of the rounds is over, because Ray's actors start and load the data in the first ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from simulated import COHORT, EVERY, ROUNDS, data, done, model, tested, train

from fastagg.timing import Stopwatch

CLIENTS = len(data().clients)
WARM = ROUNDS // 10
client, server = ClientApp(), ServerApp()


@cache
def loaded() -> tuple[Any, torch.nn.Module]:
    """Each process loads the data and makes a model once."""
    torch.set_num_threads(1)
    return data(), model()


@client.train()
def fit(message: Message, context: Context) -> Message:
    digits, net = loaded()
    samples = digits.clients[int(context.node_config["partition-id"])]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(net, samples)
    metrics = MetricRecord({"num-examples": len(samples)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    digits, net = loaded()
    watch, ended = Stopwatch(), dict[int, float]()
    losses: list[float] = []

    def test(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number % EVERY == 0:
            net.load_state_dict(arrays.to_torch_state_dict())
            losses.append(tested(net, digits.test))
        ended[number] = watch.total
        return MetricRecord({"loss": losses[-1]})

    strategy = FedAvg(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=ROUNDS, evaluate_fn=test)
    done(ended[ROUNDS] - ended[WARM], (ROUNDS - WARM) * COHORT, losses[-1])


if __name__ == "__main__":
    import of_flower  # under the name by which Ray's workers find its functions

    apps = of_flower.server, of_flower.client
    run_simulation(*apps, CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
