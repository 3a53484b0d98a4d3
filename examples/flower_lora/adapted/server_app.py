"""The server. Its model is the adapters (padded), or the adapted layers' weights plus clients' products (stacked)."""

from __future__ import annotations

from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from peft import get_peft_model_state_dict, set_peft_model_state_dict

import fastagg
from adapted.task import LAYERS, RANK, accuracy, adapted, base, data
from fastagg.integrations import flower

app = ServerApp()


def start(how: str) -> ArrayRecord:
    """Return the server's first model."""
    if how == "padded":
        return ArrayRecord(get_peft_model_state_dict(adapted(RANK)))
    return ArrayRecord({name: base().state_dict()[name] for name in LAYERS})


def evaluate(how: str, arrays: ArrayRecord) -> MetricRecord:
    """Return the accuracy on shifted digits of the base with the learnt part."""
    received = arrays.to_torch_state_dict()
    model = adapted(RANK, None if how == "padded" else received)
    if how == "padded":
        set_peft_model_state_dict(model, received)
    return MetricRecord({"accuracy": accuracy(model, *data(-1, 1))})


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    how = str(settings["how"])
    strategy = flower.AsyncStrategy(partial(fastagg.FedBuff, buffer_size=6, weighting="samples"))
    result = strategy.start(
        grid,
        start(how),
        num_rounds=int(settings["versions"]),
        timeout=float(settings["timeout"]),
        train_config=ConfigRecord({"how": how, "steps": settings["steps"], "lr": settings["lr"]}),
        evaluate_fn=lambda version, arrays: evaluate(how, arrays),
    )
    last = max(result.evaluate_metrics_serverapp)
    print(f"{how}: accuracy {result.evaluate_metrics_serverapp[last]['accuracy']:.3f} after {last} versions")
