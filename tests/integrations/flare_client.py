"""A FLARE client for tests: it trains as in the example, or misbehaves, depending on the site's name."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nvflare.client as flare
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "nvflare"))  # the simulator's job brings its own copy

from client import Trainer


def main() -> None:
    flare.init()
    site = flare.get_site_name()
    trainer = Trainer(site)
    turn = 0
    while flare.is_running():
        task = flare.receive()
        if task is None:
            break
        if "--crash" in sys.argv:
            raise RuntimeError("this site's disk is full")
        reply = trainer.answer(task)
        if site == "site-2" and turn in (1, 2, 3):
            reply.params = {name: value * torch.nan for name, value in reply.params.items()}
        if site == "site-3" and turn > 0:
            reply.params["more"] = torch.zeros(3)
        if site == "site-4" and turn == 1:
            time.sleep(11)  # away for longer than its task's timeout, then back
        if site == "site-5" and turn == 4:
            os._exit(1)  # it dies in the middle of a task, without a message
        if site in ("site-1", "site-2"):
            time.sleep(0.4)  # so that on any machine the job takes longer than the task of a site that is away
        turn += 1
        flare.send(reply)


if __name__ == "__main__":
    main()
