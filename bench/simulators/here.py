"""One run of fastagg's simulator, or of the plain torch loop: here.py fastagg|plain"""

from __future__ import annotations

import sys
from typing import Any

import torch
from cases import simulator
from simulated import GIVEN, UPDATES, WARM, done

from fastagg.sim.runs.run import run
from fastagg.timing import Stopwatch


def simulated(given: Any) -> float:
    return float(run(given).rows[-1].loss)


if __name__ == "__main__":
    torch.set_num_threads(1)
    act = {"fastagg": simulated, "plain": simulator.plain}[sys.argv[1]]
    act(simulator.recipe(simulator.MODELS[0][1], WARM))
    watch = Stopwatch()
    loss = act(GIVEN)
    done(watch.total, UPDATES, loss)
