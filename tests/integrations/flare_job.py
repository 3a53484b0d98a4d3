"""Run one of the tests' jobs in FLARE's simulator: ``python flare_job.py WAY WORKSPACE``."""

# ruff: noqa: E402
import sys
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "nvflare"
sys.path[:0] = [str(HERE), str(HERE.parent), str(EXAMPLE)]

import job
from model import Digits
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_opt.pt.job_config.base_fed_job import BaseFedJob
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.client.config import TransferType
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner
from support.flare_recorded import RecordedAggregator, RecordedController

from fastagg.integrations.nvflare import AsyncController


def digits(**settings: str) -> BaseFedJob:
    """A job whose server has the model, and whose clients wait a fifth of a second between tasks, not FLARE's two."""
    flare = BaseFedJob(name="digits", **settings)
    flare.to_server(PTModel(Digits()), id="persistor")
    flare.to_server({"server": {"task_request_interval": 0.2}})
    return flare


def asynchronous(workspace: str) -> None:
    """Five sites, four of which misbehave (flare_client.py)."""
    flare = digits()
    # No client is given up for good, however slowly the sites start on this machine.
    patient = {"timeout": 8, "retry_after": 0.5, "max_failures": None, "max_in_a_row": None}
    flare.to_server(RecordedController("FADAS", job.FADAS, versions=48, checkpoint=f"{workspace}/server.pt", **patient))
    flare.to_clients(ScriptRunner(script=str(HERE / "flare_client.py")))
    flare.simulator_run(f"{workspace}/digits", n_clients=5)


def ending(workspace: str) -> None:
    """Four sites. One takes four seconds longer for a task, so that it is out when the job ends."""
    flare = digits()
    flare.to_server(AsyncController("FADAS", job.FADAS, versions=6, checkpoint=f"{workspace}/server.pt"))
    flare.to_clients(ScriptRunner(script=str(HERE / "flare_client.py"), script_args="--ends"))
    flare.simulator_run(f"{workspace}/digits", n_clients=job.CLIENTS)


def resumed(workspace: str) -> None:
    """Four sites. The server saves every version, and continues from the version at which it was killed."""
    flare = digits()
    settings = {"versions": 32, "timeout": 8, "checkpoint": f"{workspace}/server.pt", "save_every": 1}
    flare.to_server(RecordedController("FADAS", job.FADAS, **settings))
    flare.to_clients(ScriptRunner(script=str(EXAMPLE / "client.py")))
    flare.simulator_run(f"{workspace}/digits", n_clients=job.CLIENTS)


def goals(workspace: str) -> None:
    """Differences through two of FLARE's filters, until the clients' accuracy is good enough."""
    flare = digits(key_metric="accuracy")
    ends = {"stop": {"metric": "clients/accuracy", "target": 0.85}, "best": f"{workspace}/best.pt"}
    settings = {"buffer_size": 2, "weighting": "samples"}
    flare.to_server(RecordedController("FedBuff", settings, versions=400, checkpoint=f"{workspace}/server.pt", **ends))
    flare.to_clients(ScriptRunner(script=str(EXAMPLE / "client.py"), params_transfer_type=TransferType.DIFF))
    for one in (PercentilePrivacy(percentile=10, gamma=0.05), ExcludeVars(["hidden.bias"])):
        flare.to_clients(one, tasks=["train"], filter_type=FilterType.TASK_RESULT)
    flare.simulator_run(f"{workspace}/digits", n_clients=job.CLIENTS)


def failing(workspace: str, algorithm: str, *arguments: str) -> None:
    """A job that fails whatever its clients do."""
    flare = digits()
    sites = [f"site-{number}" for number in range(1, job.CLIENTS + 1)]
    settings = {"lr": 0.1, "num_clients": job.CLIENTS} if algorithm == "ACE" else {}
    limits = {"max_failures": 2, "retry_after": 0.2, "checkpoint": f"{workspace}/server.pt"}
    flare.to_server(AsyncController(algorithm, settings, clients=sites, **limits))
    flare.to_clients(ScriptRunner(script=str(HERE / "flare_client.py"), script_args=" ".join(arguments)))
    flare.simulator_run(f"{workspace}/digits", n_clients=job.CLIENTS)


if __name__ == "__main__":
    way, workspace = sys.argv[1:]
    if way == "rounds":
        job.Aggregator = RecordedAggregator
        job.fedams(10, workspace)
    else:
        {
            "asynchronous": asynchronous, "ending": ending, "resumed": resumed, "goals": goals,
            "plain under ACE": lambda where: failing(where, "ACE"),
            "crashing": lambda where: failing(where, "FADAS", "--crash"),
        }[way](workspace)  # fmt: skip
