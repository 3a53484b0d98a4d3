"""Asynchronous federated learning of handwritten digits in APPFL's virtual-time simulator; one of four clients is slow.

python run.py
"""

from __future__ import annotations

import logging

import torch
from appfl.agent import SimClientAgent, SimServerAgent
from appfl.vsim import AsyncSimDriver, ClientProfile
from omegaconf import OmegaConf
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

CLIENTS = 4
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16


def main() -> float:
    """Return the accuracy on images that no client has."""
    torch.manual_seed(0)
    config = OmegaConf.load("config.yaml")
    server, clients, profiles = SimServerAgent(config), [], {}
    for number in range(CLIENTS):
        part = slice(number, 1500, CLIENTS)
        data = TensorDataset(images[part], labels[part])
        clients.append(SimClientAgent(config, client_id=f"site-{number}", client_dataset=(data, data)))
        profiles[f"site-{number}"] = ClientProfile(compute_factor=1.0 if number else 10.0)
    driver = AsyncSimDriver(server, clients, profiles, CLIENTS, logging.getLogger("vsim"), base_step_time=0.01)
    driver.run()
    server.model.load_state_dict(server.aggregator.get_parameters())
    right = server.model(images[1500:]).argmax(1) == labels[1500:]
    return right.float().mean().item()


if __name__ == "__main__":
    print(f"accuracy {main():.0%}")
