"""Measures which share of a round the server takes in NVIDIA FLARE's simulator. Each client has a process, and does not
train.

python bench/shares.py [MEGABYTES [CLIENTS [ROUNDS]]]
python bench/shares.py memory MEGABYTES...

It prints the median seconds of a round with FLARE's aggregation and with fastagg's. It also prints the shares of the
aggregation, of the slowest client, and of the rest, which is mostly transport. A client only adds a number to each
parameter. Clients ask for a task every 0.1 s (FLARE's default: 2 s).

With ``memory`` it prints the largest resident memory of the server's process in three rounds of two clients, in GB,
with and without ``enable_tensor_disk_offload``. With this option, FLARE stores updates on the disk until they are
added. The script says if no update came from the disk.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peak
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

from fastagg.integrations.nvflare import Aggregator

ARRAYS = 20


class Net(torch.nn.Module):
    """A model of ``ARRAYS`` arrays of the same size, with ``size`` fp32 elements in total."""

    def __init__(self, size: int = ARRAYS) -> None:
        super().__init__()
        self.size = size  # FLARE constructs the model again from its attributes
        self.layers = torch.nn.ParameterList(torch.zeros(size // ARRAYS) for _ in range(ARRAYS))


class Timed(ModelAggregator):  # type: ignore[misc]
    """Runs FLARE's aggregation or fastagg's, and prints the times of each round."""

    def __init__(self, whose: str) -> None:
        super().__init__()
        self.whose = whose
        self.of_fastagg = Aggregator(at_once=1 if "memory" in whose else 4) if "fastagg" in whose else None
        self.of_flare = WeightedAggregationHelper()
        self.busy = self.client = self.begun = 0.0
        self.lazy = False

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        super().handle_event(event_type, fl_ctx)
        if self.of_fastagg is not None:
            self.of_fastagg.handle_event(event_type, fl_ctx)

    def accept_model(self, model: FLModel) -> None:
        self.lazy = self.lazy or any(hasattr(value, "materialize") for value in model.params.values())
        self.client, now = max(self.client, model.metrics["seconds"]), time.perf_counter()
        if self.of_fastagg is not None:
            self.of_fastagg.accept_model(model)
        else:
            self.of_flare.add(model.params, 1.0, model.meta["client_name"], 0)
        self.busy += time.perf_counter() - now

    def aggregate_model(self) -> FLModel:
        now = time.perf_counter()
        if self.of_fastagg is not None:
            found = self.of_fastagg.aggregate_model()
        else:
            found, self.of_flare = FLModel(ParamsType.FULL, self.of_flare.get_result()), WeightedAggregationHelper()
        after = time.perf_counter()
        row = {"round": after - self.begun, "aggregation": self.busy + after - now, "client": self.client}
        row["peak"], row["lazy"] = peak.resident("VmHWM") / 1e9, self.lazy
        row["megabytes"] = sum(value.nbytes for value in found.params.values()) / 1e6
        print("BENCH " + json.dumps(row), flush=True)
        self.begun, self.busy, self.client = after, 0.0, 0.0
        return found

    def reset_stats(self) -> None:
        if self.of_fastagg is not None:
            self.of_fastagg.reset_stats()


def client() -> None:
    """Run a client, which adds 0.001 to every parameter of a task."""
    import nvflare.client as flare

    flare.init()
    while flare.is_running() and (task := flare.receive()) is not None:
        now = time.perf_counter()
        params = {name: torch.as_tensor(value) + 0.001 for name, value in task.params.items()}
        flare.send(flare.FLModel(params=params, metrics={"seconds": time.perf_counter() - now}))


def job(whose: str, size: int, clients: int, rounds: int, folder: str) -> None:
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.client.config import ExchangeFormat
    from nvflare.recipe import SimEnv

    tensors: Any = {"server_expected_format": ExchangeFormat.PYTORCH, "enable_tensor_disk_offload": "offload" in whose}
    recipe = FedAvgRecipe(
        name="shares", model=Net(size), min_clients=clients, num_rounds=rounds, train_script=__file__,
        train_args="client", aggregator=Timed(whose), **(tensors if "memory" in whose else {}),
    )  # fmt: skip
    recipe._job.to_server({"server": {"task_request_interval": 0.1}})
    recipe.execute(SimEnv(num_clients=clients, workspace_root=folder))


def measured(whose: str, megabytes: int, clients: int, rounds: int) -> list[dict[str, float]]:
    """Run a job. Return its rounds, without the first round, which also waits for processes to start."""
    with tempfile.TemporaryDirectory() as folder:
        call = f"import shares; shares.job({whose!r}, {megabytes * 250_000}, {clients}, {rounds + 1}, {folder!r})"
        given = {"capture_output": True, "text": True, "check": False, "cwd": Path(__file__).parent}
        done = subprocess.run([sys.executable, "-c", call], **given)  # type: ignore[call-overload]
    rows = [json.loads(line) for line in re.findall(r"BENCH (\{.*\})", done.stdout + done.stderr)][1:]
    if not rows:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    if rows[0]["megabytes"] != megabytes:
        sys.exit(f"the model has {rows[0]['megabytes']} MB, expected {megabytes}")
    return rows


def memory(*sizes: int) -> None:
    print("| FLARE's server |", " | ".join(f"{size} MB" for size in sizes), "|")
    print("|---|" + "---:|" * len(sizes))
    for whose in ("FLARE", "FLARE, disk offload", "fastagg", "fastagg, disk offload"):
        runs = [measured(f"{whose}, memory", size, 2, 2) for size in sizes]
        row = [max(one["peak"] for one in rows) for rows in runs]
        in_vain = (
            " (nothing was on the disk)" if "offload" in whose and not any(rows[-1]["lazy"] for rows in runs) else ""
        )
        print(f"| {whose}{in_vain} | {' | '.join(f'{most:.2f}' for most in row)} |", flush=True)


def main(megabytes: int = 45, clients: int = 4, rounds: int = 5) -> None:
    print(f"{megabytes} MB, {clients} clients")
    print("| | seconds a round | aggregation | slowest client | transport and the rest |")
    print("|---|---:|---:|---:|---:|")
    for whose in ("FLARE", "fastagg"):
        rows = measured(whose, megabytes, clients, rounds)
        whole, *parts = (statistics.median(row[key] for row in rows) for key in ("round", "aggregation", "client"))
        shares = [part / whole for part in (*parts, whole - sum(parts))]
        print(f"| {whose} | {whole:.2f} | " + " | ".join(f"{share:.0%}" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client()
    elif sys.argv[1:2] == ["memory"]:
        memory(*map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:4]))
