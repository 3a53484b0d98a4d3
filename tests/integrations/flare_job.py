"""Run one of the tests' jobs in FLARE's simulator: ``python flare_job.py WAY WORKSPACE``."""

# ruff: noqa: E402
from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "nvflare"
sys.path[:0] = [str(HERE), str(EXAMPLE)]

import job
from flare_recorded import RecordedAggregator, RecordedController
from model import Digits
from nvflare.app_opt.pt.job_config.base_fed_job import BaseFedJob
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.job_config.script_runner import ScriptRunner


def asynchronous(workspace: str) -> None:
    """Five sites, four of which misbehave (flare_client.py)."""
    flare = BaseFedJob(name="digits")
    flare.to_server(PTModel(Digits()), id="persistor")
    flare.to_server(RecordedController("FADAS", job.FADAS, versions=48, timeout=8, checkpoint=f"{workspace}/server.pt"))
    flare.to_clients(ScriptRunner(script=str(HERE / "flare_client.py")))
    flare.simulator_run(f"{workspace}/digits", n_clients=5)


def resumed(workspace: str) -> None:
    """Four sites; the server saves every version, and goes on from where it was killed."""
    flare = BaseFedJob(name="digits")
    flare.to_server(PTModel(Digits()), id="persistor")
    settings = {"versions": 32, "timeout": 8, "checkpoint": f"{workspace}/server.pt", "save_every": 1}
    flare.to_server(RecordedController("FADAS", job.FADAS, **settings))
    flare.to_clients(ScriptRunner(script=str(EXAMPLE / "client.py")))
    flare.simulator_run(f"{workspace}/digits", n_clients=job.CLIENTS)


if __name__ == "__main__":
    way, workspace = sys.argv[1:]
    if way == "rounds":
        job.Aggregator = RecordedAggregator
        job.fedams(10, workspace)
    elif way == "collab":
        job.collab(40, workspace)
    else:
        {"asynchronous": asynchronous, "resumed": resumed}[way](workspace)
