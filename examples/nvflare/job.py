"""Federated digits in NVIDIA FLARE's simulator; fastagg does the server's arithmetic.

python job.py              # FedAMS in FLARE's own FedAvg rounds
"""

from __future__ import annotations

import argparse
from pathlib import Path

from model import Digits
from nvflare.app_opt.pt.job_config.base_fed_job import BaseFedJob
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.job_config.script_runner import ScriptRunner
from nvflare.recipe import SimEnv

from fastagg.integrations.nvflare import Aggregator, AsyncController

HERE = Path(__file__).parent
CLIENTS = 4


# A tenth of FedAMS's rate below. With it the model does not oscillate, whichever updates happen to be stale.
FADAS = {"lr": 0.003, "buffer_size": 2, "delay_threshold": 4}


def fedams(turns: int, workspace: str) -> None:
    recipe = FedAvgRecipe(
        name="digits",
        model=Digits(),
        min_clients=CLIENTS,
        num_rounds=turns,
        train_script=str(HERE / "client.py"),
        aggregator=Aggregator("FedAMS", {"lr": 0.03}),
    )
    recipe.execute(SimEnv(num_clients=CLIENTS, workspace_root=workspace))


def fadas(turns: int, workspace: str) -> None:
    job = BaseFedJob(name="digits")
    job.to_server(PTModel(Digits()), id="persistor")
    job.to_server(AsyncController("FADAS", FADAS, versions=turns))
    job.to_server({"server": {"task_request_interval": 0.2}})  # seconds that a client waits between tasks; default: 2
    job.to_clients(ScriptRunner(script=str(HERE / "client.py"), script_args="--slow 3"))
    job.simulator_run(f"{workspace}/digits", n_clients=CLIENTS)


def main() -> None:
    ways = {"fedams": fedams, "fadas": fadas}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=ways)
    parser.add_argument("--turns", type=int, default=40, help="rounds, or versions of the model")
    parser.add_argument("--workspace", default="simulation")
    args = parser.parse_args()
    ways[args.way](args.turns, args.workspace)


if __name__ == "__main__":
    main()
