"""Predicts the time in which a real federation reaches an accuracy, from another run's times: python bench/replay.py

Flower trains the model of examples/flower with eight clients on this machine. The clients sleep so long that training
and other load matter little. The server writes when tasks were sent and answered (``fastagg.watch(times=)``). For each
pair of rules, the simulator runs one rule with the other rule's times. The script compares when the simulated and the
real run reach the target. It takes about six minutes, and needs fastagg and flwr[simulation].
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

import fastagg
from fastagg import sim
from fastagg.integrations import flower
from fastagg.sim.clock.delays import read_times
from fastagg.sim.data.federated import FederatedData, Samples

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "flower"))
from digits import task as digits

SLEEPS = (2.0, 2.4, 2.8, 3.4, 4.0, 5.0, 12.0, 20.0)  # seconds that each client sleeps, times 0.75 to 1.25
TRAINING = {"steps": 5, "lr": 0.0015}
VERSIONS, BUFFER, SEEDS = 80, 4, 5
RULES = {
    "FedBuff": {"lr": 1.0, "buffer_size": BUFFER},
    "FADAS": {"lr": 0.002, "buffer_size": BUFFER, "delay_threshold": 4, "eps": 1e-3},
}


def client_app() -> ClientApp:
    """Return a plain Flower client, which sleeps before it trains."""
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        part, config = int(context.node_config["partition-id"]), message.content["config"]
        time.sleep(SLEEPS[part] * random.uniform(0.75, 1.25) * config["slow"])
        model, (x, y) = digits.network(), digits.data(part, len(SLEEPS))
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        digits.train(model, x, y, seed=len(SLEEPS) * config["server-round"] + part, **TRAINING)
        records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(RecordDict(records), reply_to=message)

    return app


def real(rule: str, times: Path) -> dict[int, tuple[float, float]]:
    """Run Flower for all versions. Return version -> (seconds since the first task, accuracy)."""
    found: dict[int, tuple[float, float]] = {}
    app, began = ServerApp(), list[float]()

    def make(model: object) -> fastagg.Server:
        return fastagg.watch(getattr(fastagg, rule)(model, **RULES[rule]), times=times)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        model, (x, y) = digits.network(), digits.data(-1, 1)

        def evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
            began.append(time.monotonic())  # the first version is evaluated when the first tasks go out
            model.load_state_dict(arrays.to_torch_state_dict())
            found[version] = began[-1] - began[0], digits.accuracy(model, x, y)
            return MetricRecord({"accuracy": found[version][1]})

        # First a task for each process, so that it loads its libraries.
        first = partial(fastagg.FedBuff, buffer_size=len(SLEEPS))
        for server, versions, slow in ((first, 1, 0.0), (make, VERSIONS, 1.0)):
            strategy = flower.AsyncStrategy(server, min_available_nodes=len(SLEEPS))
            arrays, config = ArrayRecord(digits.network().state_dict()), ConfigRecord({"slow": slow})
            found.clear(), began.clear()
            strategy.start(grid, arrays, num_rounds=versions, train_config=config, evaluate_fn=evaluate)

    # Each client has a process in Flower's engine, so that clients sleep at the same time.
    run_simulation(app, client_app(), len(SLEEPS), backend_config={"client_resources": {"num_cpus": 0.25}})
    return found


def predicted(rule: str, times: Path, seed: int) -> dict[int, tuple[float, float]]:
    """Return version -> (seconds, accuracy) of a simulated run with the times of the file."""
    parts = range(len(SLEEPS))
    data = FederatedData([Samples(*digits.data(i, len(SLEEPS))) for i in parts], Samples(*digits.data(-1, 1)), 10)
    config = {
        "name": "replay",
        "seed": seed,
        "algorithm": {"name": rule, **RULES[rule]},
        "data": {"name": "digits", "clients": len(SLEEPS)},
        "client": {**TRAINING, "batch_size": 32, "momentum": 0.9},
        "delay": {"name": "measured", "file": str(times)},
        "run": {"versions": VERSIONS, "evaluate_every": 1},
    }

    def model(shape: object, classes: int) -> nn.Module:
        return digits.network()

    result = sim.run(config, data=data, model=model)
    return {row.version: (row.time, row.accuracy) for row in result.rows}


def reached(found: dict[int, tuple[float, float]], target: float) -> float:
    """Return the seconds until the first version with at least this accuracy. NaN: there is none."""
    return min((seconds for seconds, accuracy in found.values() if accuracy >= target), default=float("nan"))


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, help="a folder for the files of times")
    options.add_argument("--target", type=float, default=0.8)
    chosen = options.parse_args()
    folder, target = chosen.out or Path(tempfile.mkdtemp()), chosen.target
    folder.mkdir(parents=True, exist_ok=True)
    happened = {rule: real(rule, folder / f"{rule}.csv") for rule in RULES}
    for rule, found in happened.items():
        version = min((v for v, (_, accuracy) in found.items() if accuracy >= target), default=None)
        firsts = [times[0] for times in read_times(folder / f"{rule}.csv").values()]
        print(f"{rule}: version {version} reaches {target:.0%}; first tasks took {statistics.fmean(firsts):.1f} s")
    print(f"\n| seconds to {target:.0%} | real | times of | predicted | difference |\n|---|---:|---|---:|---:|")
    for rule, found in happened.items():
        seconds = reached(found, target)
        for other in RULES:
            said = [reached(predicted(rule, folder / f"{other}.csv", seed), target) for seed in range(SEEDS)]
            middle = statistics.median(said)
            spread = f"{min(said):.1f} to {max(said):.1f}"
            print(f"| {rule} | {seconds:.1f} | {other} | {middle:.1f} ({spread}) | {middle / seconds - 1:+.1%} |")


if __name__ == "__main__":
    main()
