"""The program at each site: plain local training of a small classifier of handwritten digits, for FLARE's tasks."""

from __future__ import annotations

import argparse
import time

import nvflare.client as flare
import torch
from model import Digits

from fastagg.sim.data import digits

CLIENTS = 4


class Trainer:
    """One site's data and model."""

    def __init__(self, site: str, slow: float = 0.0) -> None:
        torch.set_num_threads(1)
        self.number = int(site.rsplit("-", 1)[1])
        data = digits.load(CLIENTS, alpha=10.0, seed=0)
        self.mine, self.test, self.model = data.clients[(self.number - 1) % CLIENTS], data.test, Digits()
        self.slow = slow if self.number == 1 else 0.0

    def answer(self, task: flare.FLModel) -> flare.FLModel:
        """Train for two epochs from the model in ``task``. It may have NumPy or torch arrays."""
        self.model.load_state_dict({name: torch.as_tensor(value) for name, value in task.params.items()})
        with torch.no_grad():
            accuracy = (self.model(self.test.x).argmax(1) == self.test.y).float().mean().item()
        where = f"site-{self.number}: task {task.current_round} of {task.total_rounds}"
        print(f"{where}, accuracy before training {accuracy:.3f}", flush=True)
        steps = self.train(epochs=2)
        time.sleep(self.slow)
        meta = {"NUM_STEPS_CURRENT_ROUND": steps}
        return flare.FLModel(params=self.model.state_dict(), metrics={"accuracy": accuracy}, meta=meta)

    def train(self, epochs: int) -> int:
        """Do SGD over shuffled batches of 32. Return the number of steps."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        batches = [batch for _ in range(epochs) for batch in torch.randperm(len(self.mine)).split(32)]
        for batch in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(self.mine.x[batch]), self.mine.y[batch]).backward()
            optimizer.step()
        return len(batches)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that site-1 takes longer for a task")
    slow = parser.parse_args().slow
    flare.init()
    trainer = Trainer(flare.get_site_name(), slow)
    while flare.is_running():
        task = flare.receive()
        if task is None:
            break
        flare.send(trainer.answer(task))


if __name__ == "__main__":
    main()
