"""A FLARE client for tests: it trains as in the example, or misbehaves, depending on the site's name."""

import os
import sys
import time
from pathlib import Path

import nvflare.client as flare
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "nvflare"))  # the simulator's job brings its own copy

from client import Trainer

AWAY = Path(os.environ.get("FASTAGG_TEST_RECORD", "record.pt")).parent  # who is away writes a file here
SETTLED = 12.0  # seconds after which the server has dropped the task of a client that is away (its timeout is 8)


def away(site: str) -> None:
    (AWAY / f"{site}.away").touch()


def settled() -> bool:
    """Both sites that go away have been away for longer than a task may take."""
    files = [AWAY / f"{site}.away" for site in ("site-4", "site-5")]
    return all(file.exists() and time.time() - file.stat().st_mtime > SETTLED for file in files)


def keep_the_job_going(turn: int) -> None:
    """Answer at once at first, and slowly until both have been away, so that the job cannot end before."""
    until = time.monotonic() + (0.4 if turn < 12 else 5.0)
    while time.monotonic() < until and not settled():
        time.sleep(0.1)


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
        if "--ends" in sys.argv:
            time.sleep(4.0 if site == "site-1" else 0.2)
            flare.send(reply)
            continue
        if site == "site-2" and turn in (1, 2, 3):
            reply.params = {name: value * torch.nan for name, value in reply.params.items()}
        if site == "site-3" and turn > 0:
            reply.params["more"] = torch.zeros(3)
        if site == "site-4" and turn == 1:
            away(site)
            time.sleep(11)  # away for longer than its task's timeout, then back
        if site == "site-5" and turn == 4:
            away(site)
            os._exit(1)  # it dies in the middle of a task, without a message
        if site in ("site-1", "site-2"):
            keep_the_job_going(turn)
        turn += 1
        flare.send(reply)
    print(f"{site}: reached the end of its script", flush=True)


if __name__ == "__main__":
    main()
