"""One run of fastagg's simulator, or of the plain torch loop: python bench/simulators_here.py fastagg|plain"""

from __future__ import annotations

import sys
import time

import torch
from cases import simulator
from simulators_task import GIVEN, UPDATES, data, done

from fastagg.sim.simulation import run


def fastagg_run() -> float:
    return float(run(GIVEN).rows[-1].loss)


if __name__ == "__main__":
    torch.set_num_threads(1)
    data()  # the first import of scikit-learn takes longer than the run
    begun = time.perf_counter()
    loss = {"fastagg": fastagg_run, "plain": lambda: simulator.plain(GIVEN)}[sys.argv[1]]()
    done(time.perf_counter() - begun, UPDATES, loss)
