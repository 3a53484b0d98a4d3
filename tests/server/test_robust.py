"""Robust rules in a server: what waits, how many, and what buffers become where not everybody is trusted.

The arithmetic: ops/test_combine.py. Every rule, setting, road and restart: tests/fuzz."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastagg

pytestmark = pytest.mark.kernel

RULES: dict[str, dict[str, Any]] = {
    "median": {}, "trimmed": {"trim": 0.25}, "mean_around_median": {"f": 2}, "krum": {"f": 2},
    "multi_krum": {"f": 2, "keep": 3}, "geometric_median": {"iterations": 20}, "centered_clip": {"radius": 2.0},
}  # fmt: skip
SIZE, STATISTICS = 12, 6  # numbers of parameters, and of running statistics
NAMES = ("bn.running_mean", "bn.running_var")
LIES = ("statistics", "both", "update", "nothing")


def arrays(update: np.ndarray, statistics: np.ndarray | None, count: int = 0) -> Any:
    """What a client sends: an update, its statistics and its count; None: it leaves them out."""
    w = torch.tensor(update, dtype=torch.float32)
    if statistics is None:
        return w
    mean, var = torch.tensor(statistics, dtype=torch.float32).split(STATISTICS // 2)
    return {"w": w, NAMES[0]: mean, NAMES[1]: var, "bn.num_batches_tracked": torch.tensor(count)}


def begin() -> dict[str, Tensor]:
    return arrays(np.zeros(SIZE), np.repeat([0.0, 1.0], STATISTICS // 2))  # type: ignore[no-any-return]


def statistics_of(server: fastagg.Server) -> tuple[np.ndarray, int]:
    now: Any = server.parameters()
    return torch.cat([now[name] for name in NAMES]).double().numpy(), int(now["bn.num_batches_tracked"])


def lie(what: str, own: tuple[np.ndarray, int]) -> Any:
    """``statistics``: beside the update that every rule likes best."""
    update = np.zeros(SIZE) if what in ("statistics", "nothing") else np.full(SIZE, 1e3)
    if what == "nothing":
        return arrays(update, None)
    return arrays(update, *own) if what == "update" else arrays(update, np.full(STATISTICS, 1e6), 2**40)


@pytest.mark.parametrize("what", LIES)
@pytest.mark.parametrize("rule", RULES)
def test_liars_move_buffers_as_far_as_honest_clients_do(rule: str, what: str) -> None:
    """Two of nine, for twenty rounds: neither statistics nor counts leave what honest clients send by more than a few
    times how far these are apart."""
    random = np.random.default_rng([*rule.encode(), *what.encode()])
    server = fastagg.Server(begin(), fastagg.Robust(rule, 9, **RULES[rule]))  # type: ignore[arg-type]
    target = np.array([3.0, 2.0, 1.0, 4.0, 0.5, 9.0])
    for turn in range(20):
        for client in range(9):
            server.dispatch(client)
            honest = np.abs(target + random.normal(size=STATISTICS) * 0.1)
            liar = client in (2, 7)
            server.receive(client, lie(what, statistics_of(server)) if liar else
                           arrays(random.normal(size=SIZE), honest, 10 * turn))  # fmt: skip
    found, count = statistics_of(server)
    assert np.abs(found - target).max() < 3.0 and 0 <= count <= 190


def test_a_count_never_ends() -> None:
    """The largest number there is does not keep others from counting on."""
    server = fastagg.FedBuff(begin(), buffer_size=2)
    for turn in range(3):
        for client, count in enumerate((2**63 - 1, turn)):
            server.dispatch(client)
            server.receive(client, arrays(np.ones(SIZE), np.ones(STATISTICS), count))
        assert int(server.parameters()["bn.num_batches_tracked"]) == (turn + 1) * 2**20


def test_kept_buffers_stay_and_take_no_memory() -> None:
    server = fastagg.Server(begin(), fastagg.Robust("krum", 5, f=1), buffers="keep")
    before = server.memory()["buffers"]
    for client in range(5):
        server.dispatch(client)
        server.receive(client, arrays(np.full(SIZE, client), np.full(STATISTICS, 7.0), 9))
        assert server.memory()["buffers"] == before
    found, count = statistics_of(server)
    assert server.version == 1 and count == 0 and not found[: STATISTICS // 2].any()


def test_rows_of_a_damaged_checkpoint() -> None:
    server = fastagg.Server(begin(), fastagg.Robust("median", 3))
    server.dispatch(0)
    server.receive(0, arrays(np.ones(SIZE), np.ones(STATISTICS), 9))
    for rows in ([], [[torch.ones(5), [9]]], [[torch.ones(6), [9, 9]]], [[torch.ones(6) / 0, [9]]], None, 7):
        state = server.state_dict()
        state["buffers"]["rows"] = rows
        with pytest.raises(fastagg.CheckpointError):
            server.load_state_dict(state)


def test_a_leafs_sum_brings_no_statistics() -> None:
    server = fastagg.FedBuff(begin(), buffer_size=2, clip_norm=1.0)
    server.dispatch("leaf")
    total: Any = arrays(np.ones(SIZE), np.full(STATISTICS, 1e6), 2**40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server.receive_partial("leaf", fastagg.Partial(total, 2, 2.0))
    found, count = statistics_of(server)
    assert server.version == 1 and count == 0 and not found[: STATISTICS // 2].any()


LENGTH = 3000  # of updates that wait


def drawn(number: int) -> torch.Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(number))


def test_a_round_has_no_more_updates_than_can_be_combined() -> None:
    server = fastagg.Server(torch.zeros(1), fastagg.Robust("median", None))
    for client in range(1024):
        server.dispatch(client)
        server.receive(client, torch.tensor([float(client)]))
    server.dispatch(2000)
    with pytest.raises(fastagg.ConfigError, match="as many updates as can be combined; call close_round"):
        server.receive(2000, torch.tensor([1.0]))
    server.close_round()
    assert server.flat.item() == 511.5
    server.receive(2000, torch.tensor([1.0]))


def test_updates_wait_as_they_came() -> None:
    """What they count for: tests/fuzz."""
    server = fastagg.Server(torch.zeros(LENGTH), fastagg.Robust("trimmed", 3, trim=0.34))
    for client, (sent, most) in enumerate((
        (drawn(0).half(), 2.0 * LENGTH), (fastagg.encode(drawn(1), "int8", seed=1), 3.1 * LENGTH),
        (drawn(2), 0.0),
    )):  # fmt: skip
        server.dispatch(client)
        assert server.receive(client, sent).applied == (client == 2)
        assert server.memory()["direction"] <= most
