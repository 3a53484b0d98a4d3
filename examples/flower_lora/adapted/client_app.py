"""The client. It trains adapters of its own rank and sends only these."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from adapted.task import RANK, adapted, data, rank_of, train
from fastagg import lora

app = ClientApp()
torch.set_num_threads(1)


@app.train()
def fit(message: Message, context: Context) -> Message:
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    config, rank, (x, y) = message.content["config"], rank_of(part), data(part, parts)
    received = message.content["arrays"].to_torch_state_dict()
    if config["how"] == "padded":  # the server's adapters, cut to this client's rank
        model = adapted(rank)
        set_peft_model_state_dict(model, lora.cut(received, rank))
    else:  # the adapted layers' weights; adapters start anew
        model = adapted(rank, received, seed=parts * config["server-round"] + part)
    loss = train(model, x, y, steps=config["steps"], lr=config["lr"], seed=parts * config["server-round"] + part)
    trained = get_peft_model_state_dict(model)
    records = {"metrics": MetricRecord({"num-examples": len(x), "loss": loss})}
    if config["how"] == "padded":
        records["arrays"] = ArrayRecord(lora.padded(trained, RANK))
    else:
        records["arrays"] = ArrayRecord(trained)
        records["config"] = ConfigRecord({"fastagg-kind": "lora"})  # "fastagg-scale": lora_alpha / rank, if it is not 1
    return Message(RecordDict(records), reply_to=message)
