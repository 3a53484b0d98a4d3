"""Clients of Flower and FLARE that encode what they send: the server steps by what is decoded, and nothing is lost."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import fastagg

START = {"w": np.linspace(-1, 1, 900, dtype=np.float32).reshape(30, 30), "b": np.zeros(7, np.float32)}
SIZE, NODES, ROUNDS = 907, [3, 5, 8], 4
FORMATS: list[Any] = ["int8", "sign", fastagg.TopK(0.1, "int8")]


def trained(model: dict[str, np.ndarray], node: int) -> dict[str, np.ndarray]:
    """Towards a place of each node's own."""
    place = {name: np.cos(node + np.arange(a.size, dtype=np.float32)).reshape(a.shape) for name, a in model.items()}
    return {name: np.asarray(0.7 * a + 0.3 * place[name], np.float32) for name, a in model.items()}


def flat(model: dict[str, np.ndarray]) -> torch.Tensor:
    return torch.cat([torch.from_numpy(np.array(model[name])).reshape(-1) for name in START])


def followed(sent: list[tuple[int, torch.Tensor, torch.Tensor]], rounds: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Compare each round's step with the mean of what came. Return what each client has not sent."""
    left = {node: torch.zeros(SIZE) for node in NODES}
    for number in range(ROUNDS):
        steps = []
        for node, change, decoded in sent[number * len(NODES) : (number + 1) * len(NODES)]:
            left[node] += change - decoded
            steps.append(decoded)
        torch.testing.assert_close(
            rounds[number + 1] - rounds[number], torch.stack(steps).mean(0), rtol=1e-4, atol=1e-5
        )
    return left


class Grid:
    """Flower's nodes with mods, each with a context that Flower keeps."""

    def __new__(cls, *chain: Any) -> Any:
        from flwr.app import Context, Message, MetricRecord, RecordDict
        from flwr.client.mod import make_ffn
        from support.flower_apps import CollectingGrid

        from fastagg.integrations.flower import write

        def fit(message: Message, context: Context) -> Message:
            node = message.metadata.dst_node_id
            arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
            new = trained(arrays, node)
            found.changes.append((node, flat(new) - flat(arrays)))
            found.rounds.append(flat(arrays))
            metrics = MetricRecord({"num-examples": 1})
            return Message(RecordDict({"arrays": write(new), "metrics": metrics}), reply_to=message)

        def answer(message: Message) -> Any:
            node = message.metadata.dst_node_id
            back = call(message, found.contexts.setdefault(node, Context(1, node, {}, RecordDict(), {})))
            if back.has_error():
                found.errors.append(back.error.reason)
                return back.error
            found.got.append({name: array.numpy() for name, array in back.content["arrays"].items()})
            return back.content

        found: Any = CollectingGrid(answer, NODES)
        found.changes, found.rounds, found.got, found.contexts, found.errors = [], [], [], {}, []
        call = make_ffn(fit, list(chain))
        return found


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_flowers_mod_sends_what_is_decoded_and_keeps_the_rest(format: Any) -> None:
    pytest.importorskip("flwr")
    from fastagg.integrations import flower

    grid = Grid(flower.EncodingMod(format))
    strategy = flower.SyncStrategy(fastagg.FedAvg, fraction_evaluate=0.0)
    result = strategy.start(grid, flower.write(START), num_rounds=ROUNDS)
    rounds = [*grid.rounds[:: len(NODES)], flat({name: array.numpy() for name, array in result.arrays.items()})]
    decoded = [fastagg.Encoded.from_arrays(one).decode() for one in grid.got]
    left = followed([(*change, came) for change, came in zip(grid.changes, decoded, strict=True)], rounds)
    for node, context in grid.contexts.items():
        assert context.state["fastagg-encoding"] == {"count": ROUNDS}
        if format == "int8":
            assert len(context.state) == 1 and left[node].abs().max() < 0.05
        else:
            kept = flower.read(context.state["fastagg-encoding-residual"])["residual"]
            torch.testing.assert_close(kept, left[node], rtol=1e-4, atol=1e-5)


def test_a_model_with_statistics_is_refused_by_flowers_mod() -> None:
    pytest.importorskip("flwr")
    from fastagg.integrations import flower

    grid = Grid(flower.EncodingMod())
    strategy = flower.AsyncStrategy(partial(fastagg.FedBuff, buffer_size=1), max_failures=1, retry_after=0)
    model = {**START, "bn.running_mean": np.zeros(3, np.float32)}
    with pytest.raises(fastagg.RunFailed):
        strategy.start(grid, flower.write(model), num_rounds=1)
    assert grid.errors and all(
        "ConfigError: an encoded update holds no running statistics" in one for one in grid.errors
    )


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_flares_filter_sends_what_is_decoded_and_keeps_the_rest(format: Any, whole: bool) -> None:
    pytest.importorskip("nvflare")
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils

    from fastagg.integrations.nvflare import Aggregator, Encoder

    named = {"format": format} if isinstance(format, str) else {"format": "topk", "share": 0.1, "values": "int8"}
    filters = {node: Encoder(**named) for node in NODES}
    aggregator, params, sent, rounds = Aggregator("FedAvg"), dict(START), [], [flat(START)]
    for number in range(ROUNDS):
        for node in NODES:
            aggregator.sent(str(node), FLModel(ParamsType.FULL, params, current_round=number))
        for node in NODES:
            context, new = FLContext(), trained(params, node)
            task = DXO(DataKind.WEIGHTS, data=params).to_shareable()
            context.set_prop(FLContextKey.TASK_DATA, task, private=True, sticky=False)
            filters[node].handle_event(EventType.BEFORE_TASK_EXECUTION, context)
            turned = {name: a if whole else a - params[name] for name, a in reversed(new.items())}  # in another order
            kind = DataKind.WEIGHTS if whole else DataKind.WEIGHT_DIFF
            came = filters[node].process(DXO(kind, data=turned).to_shareable(), FLContext())
            arrays = from_shareable(came).data
            sent.append((node, flat(new) - flat(params), fastagg.Encoded.from_arrays(arrays).decode()))
            reply = FLModelUtils.from_shareable(came)
            reply.current_round, reply.meta["client_name"] = number, str(node)
            aggregator.accept_model(reply)
        params = dict(aggregator.aggregate_model().params)
        rounds.append(flat(params))
    left = followed(sent, rounds)
    for node, one in filters.items():
        if format == "int8":
            assert one._feedback is None and left[node].abs().max() < 0.05
        else:
            torch.testing.assert_close(one._feedback.residual, left[node], rtol=1e-4, atol=1e-5)
    with pytest.raises(fastagg.ConfigError, match="the task had no model"):
        filters[3].process(DXO(DataKind.WEIGHTS, data=START).to_shareable(), FLContext())
