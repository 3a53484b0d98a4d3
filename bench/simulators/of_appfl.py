"""One run of APPFL's virtual-time simulator with its FedBuff.

APPFL runs with ``optimize_memory=False``: its default collects garbage at every call.
"""

from __future__ import annotations

import gc
import logging
import tempfile
from pathlib import Path
from typing import Any

import torch
from appfl.vsim import AsyncSimDriver, ClientProfile
from appfl_agents import agents
from omegaconf import OmegaConf
from simulated import BATCH, COHORT, EPOCHS, LR, UPDATES, data, done, tested

from fastagg.timing import Stopwatch

SETTINGS = {"staleness_fn": "constant", "alpha": 1.0, "K": 5, "optimize_memory": False}


def federation(folder: Path, digits: Any) -> tuple[Any, list[Any]]:
    """Return APPFL's server and its clients."""
    (folder / "net.py").write_text("from simulated import model\n\n\ndef Net():\n    return model()\n")
    (folder / "metric.py").write_text("def accuracy(y_true, y_pred):\n    return (y_pred.argmax(1) == y_true).mean()\n")
    trainer = {
        "mode": "epoch", "num_local_epochs": EPOCHS, "optim": "SGD", "optim_args": {"lr": LR},
        "loss_fn": "CrossEntropyLoss", "train_batch_size": BATCH, "val_batch_size": 500, "train_data_shuffle": True,
        "do_validation": False, "optimize_memory": False, "metric_path": str(folder / "metric.py"),
        "metric_name": "accuracy",
    }  # fmt: skip
    clients = len(digits.clients)
    config = {
        "model_configs": {"model_path": str(folder / "net.py"), "model_name": "Net"},
        "log_configs": {"logging_output_dirname": str(folder / "logs")},
        "server_configs": {"optimize_memory": False},
        "algorithm_configs": {
            "trainer": "VanillaTrainer", "trainer_kwargs": trainer, "device": "cpu", "num_global_epochs": UPDATES,
            "scheduler": "AsyncScheduler", "scheduler_kwargs": {"num_clients": clients, "optimize_memory": False},
            "aggregator": "FedBuffAggregator", "aggregator_kwargs": {"num_clients": clients, **SETTINGS},
        },
    }  # fmt: skip
    made = agents()
    parts = [torch.utils.data.TensorDataset(part.x, part.y) for part in digits.clients]
    server = made.SimServerAgent(OmegaConf.create(config))
    return server, [
        made.SimClientAgent(OmegaConf.create(config), client_id=f"site-{number}", client_dataset=(part, part))
        for number, part in enumerate(parts)
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    digits = data()
    with tempfile.TemporaryDirectory() as folder:
        server, clients = federation(Path(folder), digits)
        profiles = {client.get_id(): ClientProfile(compute_factor=1.0 + n % 3) for n, client in enumerate(clients)}
        gc.freeze()  # APPFL collects garbage when a client gets a model, too: now only over what the run itself makes
        driver = AsyncSimDriver(server, clients, profiles, COHORT, logging.getLogger("vsim"), base_step_time=0.01)
        watch = Stopwatch()
        driver.run()
        done(watch.total, UPDATES, tested(server.model, digits.test))
