"""The server: a strategy of Flower's or of fastagg's, with a clock and a look at its memory in each round."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from integrations_flower import STRATEGIES, at_rest, forget_peak, resident, size, start

import fastagg
from fastagg.integrations import flower

app = ServerApp()


def measured(strategy: Any) -> Any:
    """``strategy``, whose rounds are printed: seconds in all, seconds of aggregation, memory at rest and at most."""
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    fold = getattr(strategy, "_fold", None)
    state: dict[str, float] = {}

    def configure_train(*given: Any) -> Any:
        state.update(rest=at_rest(), busy=0.0, round=time.perf_counter())
        forget_peak()
        return configure(*given)

    def timed_fold(*given: Any) -> Any:  # fastagg's folds while replies come: in between it waits for them
        began = time.perf_counter()
        try:
            return fold(*given)
        finally:
            state["end"] = time.perf_counter()
            state["busy"] += state["end"] - began

    def aggregate_train(*given: Any) -> Any:
        state["end"] = time.perf_counter()
        result = aggregate(*given)
        now = time.perf_counter()
        row = {
            "round": now - state["round"],
            "aggregation": state["busy"] + now - state["end"],
            "after the last reply": now - state["end"] + (state["busy"] if fold is None else 0.0),
            "held": state["rest"] / (4 * size()),
            "peak": (resident("VmHWM") - state["rest"]) / (4 * size()),
        }
        print("BENCH " + json.dumps(row), flush=True)
        return result

    strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train
    if fold is not None:
        strategy._fold = timed_fold
    return strategy


@app.main()
def main(grid: Grid, context: Context) -> None:
    name, rounds, nodes = (context.run_config[key] for key in ("strategy", "rounds", "nodes"))
    initial = flower.write(start())
    if name in STRATEGIES:
        strategy = STRATEGIES[str(name)]()
        strategy.min_available_nodes, strategy.fraction_evaluate = int(nodes), 0.0
        strategy.min_train_nodes = int(nodes)
        measured(strategy).start(grid, initial, num_rounds=int(rounds), timeout=600)
    else:
        while len(list(grid.get_node_ids())) < int(nodes):
            time.sleep(0.5)
        rule = partial(getattr(fastagg, str(name)), buffer_size=int(nodes))
        began = time.perf_counter()
        flower.AsyncStrategy(rule).start(grid, initial, num_rounds=None, num_updates=int(rounds) * int(nodes))
        rate = int(rounds) * int(nodes) / (time.perf_counter() - began)
        print("BENCH " + json.dumps({"updates per second": rate}), flush=True)
    print("BENCH done", flush=True)
