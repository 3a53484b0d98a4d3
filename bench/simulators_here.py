"""One run of fastagg's simulator, or of the plain torch loop: python bench/simulators_here.py fastagg|plain"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from cases import simulator
from simulators_task import GIVEN, UPDATES, WARM, done

from fastagg.sim.simulation import run


def simulated(given: Any) -> float:
    return float(run(given).rows[-1].loss)


if __name__ == "__main__":
    torch.set_num_threads(1)
    act = {"fastagg": simulated, "plain": simulator.plain}[sys.argv[1]]
    act(simulator.recipe(simulator.MODELS[0][1], WARM))
    begun = time.perf_counter()
    loss = act(GIVEN)
    done(time.perf_counter() - begun, UPDATES, loss)
