"""A plain Flower client. It does not import fastagg. It answers with its trained model."""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import data, network, train

app = ClientApp()
torch.set_num_threads(1)


@app.train()
def fit(message: Message, context: Context) -> Message:
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    time.sleep(float(context.node_config.get("slow", 0)))  # a straggler
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config, (x, y) = message.content["config"], data(part, parts)
    steps = config.get("fastagg-local-steps", config["steps"])  # AsyncFedED sets the number of steps itself
    loss = train(model, x, y, steps=steps, lr=config["lr"], seed=parts * config["server-round"] + part)
    records = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(x), "loss": loss}),
    }
    return Message(RecordDict(records), reply_to=message)
