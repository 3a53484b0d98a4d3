"""The server: a strategy of Flower's or of fastagg's, with a clock and a look at its memory in each round."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

from cases import servers
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from peak import at_rest, forget_peak, resident

import fastagg
from fastagg.integrations import flower
from fastagg.integrations.flower.rounds import Gathering
from fastagg.timing import Stopwatch

app = ServerApp()
watch = Stopwatch()


def measured(strategy: Any, grid: Any) -> Any:
    """``strategy``, whose rounds are printed: seconds in all, of aggregation, of calls of the SuperLink, of the slowest
    client, and memory at rest and at most."""
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    fold = Gathering.add if isinstance(strategy, flower.SyncStrategy) else None
    state: dict[str, float] = {}

    def configure_train(*given: Any) -> Any:
        state.update(rest=at_rest(), busy=0.0, round=watch.total, calls=0.0, client=0.0)
        forget_peak()
        return configure(*given)

    def timed_fold(*given: Any) -> Any:  # fastagg's folds while replies come: in between it waits for them
        began = watch.total
        try:
            return fold(*given)
        finally:
            state["end"] = watch.total
            state["busy"] += state["end"] - began

    def called(call: Any, *given: Any) -> Any:
        began = watch.total
        found = call(*given)
        state["calls"] = state.get("calls", 0.0) + watch.total - began
        for reply in found if call is pull else ():
            state["client"] = max(state["client"], reply.content["metrics"].get("seconds", 0.0))
        return found

    def aggregate_train(*given: Any) -> Any:
        state["end"] = watch.total
        result = aggregate(*given)
        now = watch.total
        row = {
            "round": now - state["round"],
            "aggregation": state["busy"] + now - state["end"],
            "after the last reply": now - state["end"] + (state["busy"] if fold is None else 0.0),
            "calls": state["calls"],
            "client": state["client"],
            "held": state["rest"] / (4 * servers.SIZE),
            "peak": (resident("VmHWM") - state["rest"]) / (4 * servers.SIZE),
        }
        print("BENCH " + json.dumps(row), flush=True)
        return result

    push, pull = grid.push_messages, grid.pull_messages
    grid.push_messages, grid.pull_messages = partial(called, push), partial(called, pull)
    strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train
    if fold is not None:
        Gathering.add = timed_fold  # type: ignore[method-assign]
    return strategy


@app.main()
def main(grid: Grid, context: Context) -> None:
    rule, whose, rounds, nodes = (context.run_config[key] for key in ("rule", "whose", "rounds", "nodes"))
    initial = flower.write(servers.model(0))
    if rule in ("FedAvg", "FedAdam"):
        strategy = servers.flower(str(rule), str(whose))
        strategy.min_available_nodes, strategy.fraction_evaluate = int(nodes), 0.0
        strategy.min_train_nodes = int(nodes)
        measured(strategy, grid).start(grid, initial, num_rounds=int(rounds), timeout=600)
    else:
        while len(list(grid.get_node_ids())) < int(nodes):
            time.sleep(0.5)
        made = partial(getattr(fastagg, str(rule)), buffer_size=int(nodes))
        began = watch.total
        flower.AsyncStrategy(made).start(grid, initial, num_rounds=int(rounds))
        print("BENCH " + json.dumps({"round": (watch.total - began) / int(rounds)}), flush=True)
    print("BENCH done", flush=True)
