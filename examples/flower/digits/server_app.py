"""The server: a strategy, whose rule can be chosen."""

from __future__ import annotations

from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import fastagg
from digits.task import accuracy, data, network, unlabelled
from fastagg.integrations import flower

ASYNCHRONOUS = {
    "FADAS": partial(fastagg.FADAS, lr=0.05, buffer_size=2, delay_threshold=4, eps=1e-3),
    "FedBuff": partial(fastagg.FedBuff, buffer_size=2),
    "FedAsync": partial(fastagg.FedAsync, alpha=0.6),
    "AsyncFedED": partial(fastagg.AsyncFedED, lam=1.0, eps=1.0, local_steps=100),
    "FedEcho": partial(
        fastagg.FedEcho,
        num_clients=8,
        buffer_size=2,
        distill=fastagg.Distillation(network(), unlabelled(), lr=1e-4),
    ),
}
SYNCHRONOUS = {
    "FedAvg": fastagg.FedAvg,
    "FedAMS": partial(fastagg.FedAMS, lr=0.03),
    "FedAdam": partial(fastagg.FedAdam, lr=0.03),
    "FedYogi": partial(fastagg.FedYogi, lr=0.03),
}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings, (x, y) = context.run_config, data(-1, 1)
    model = network()

    def evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model, x, y)})

    rule, checkpoint = str(settings["rule"]), str(settings["checkpoint"]) or None
    if rule in ASYNCHRONOUS:
        strategy = flower.AsyncStrategy(ASYNCHRONOUS[rule], checkpoint=checkpoint)
    else:
        strategy = flower.SyncStrategy(SYNCHRONOUS[rule], checkpoint=checkpoint, fraction_evaluate=0.0)
    result = strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(settings["versions"]),
        timeout=float(settings["timeout"]),
        train_config=ConfigRecord({"steps": settings["steps"], "lr": settings["lr"]}),
        evaluate_fn=evaluate,
    )
    last = max(result.evaluate_metrics_serverapp)
    print(f"{rule}: accuracy {result.evaluate_metrics_serverapp[last]['accuracy']:.3f} after {last} versions")
