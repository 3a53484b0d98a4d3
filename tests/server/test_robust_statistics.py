"""What buffers become under a rule that does not trust everybody: random histories of rules, liars, settings and roads
beside a model of its own in float64, and what liars reach at most."""

import warnings
from pathlib import Path
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


class Sent:
    """What a client sends: an update, its statistics and its count; None: it leaves them out."""

    def __init__(self, update: np.ndarray, statistics: np.ndarray | None, count: int | None) -> None:
        self.update, self.statistics, self.count = update, statistics, count

    def arrays(self) -> Any:
        if self.statistics is None:
            return torch.tensor(self.update, dtype=torch.float32)
        mean, var = np.split(self.statistics, 2)
        return {
            "w": torch.tensor(self.update, dtype=torch.float32),
            NAMES[0]: torch.tensor(mean, dtype=torch.float32), NAMES[1]: torch.tensor(var, dtype=torch.float32),
            "bn.num_batches_tracked": torch.tensor(self.count),
        }  # fmt: skip


def begin() -> dict[str, Tensor]:
    half = STATISTICS // 2
    return {
        "w": torch.zeros(SIZE), NAMES[0]: torch.zeros(half), NAMES[1]: torch.ones(half),
        "bn.num_batches_tracked": torch.tensor(0),
    }  # fmt: skip


def shares_of(rule: str, u: np.ndarray, f: int = 0, keep: int | None = None, **how: Any) -> np.ndarray | None:
    """What each row counts for, in float64, from the papers' words. None: elements are combined."""
    n = len(u)
    if "krum" in rule:
        apart = ((u[:, None] - u[None]) ** 2).sum(2)
        scores = np.array([np.sort(np.delete(apart[i], i))[: n - f - 2].sum() for i in range(n)])
        best = np.argsort(scores, kind="stable")[: 1 if rule == "krum" else keep or n - f]
        return np.isin(np.arange(n), best) / len(best)
    if rule not in ("geometric_median", "centered_clip"):
        return None
    shares = np.zeros(n)
    for _ in range(how.get("iterations", 3)):
        lengths = np.linalg.norm(u - shares @ u, axis=1)
        if rule == "geometric_median":
            shares = 1 / np.maximum(lengths, 1e-6)
            shares /= shares.sum()
        else:
            moves = np.minimum(1, how["radius"] / np.maximum(lengths, 1e-300)) / n
            shares = shares * (1 - moves.sum()) + moves
    return shares


def combined(rule: str, v: np.ndarray, trim: float = 0.1, f: int = 0, **_: Any) -> np.ndarray:
    rows, n = np.sort(v, axis=0), len(v)
    if rule == "mean_around_median":
        near = np.argsort(np.abs(rows - np.median(v, axis=0)), axis=0, kind="stable")[: n - f]
        return np.take_along_axis(rows, near, 0).mean(0)
    cut = (n - 1) // 2 if rule == "median" else int(trim * n)
    return rows[cut : n - cut].mean(0)


class Model:
    """The server in float64."""

    def __init__(self, rule: str, how: dict[str, Any], clip: float | None) -> None:
        self.rule, self.how, self.clip = rule, how, clip
        self.x, self.own = np.zeros(SIZE), np.repeat([0.0, 1.0], STATISTICS // 2)
        self.count, self.came = 0, list[tuple[np.ndarray, np.ndarray, int]]()

    def receive(self, sent: Sent, weight: float = 1.0) -> None:
        norm = np.linalg.norm(sent.update)
        gain = 1.0 if self.clip is None or norm <= self.clip else self.clip / norm
        v = self.own if sent.statistics is None else self.own + gain * (sent.statistics - self.own)
        count = self.count if sent.count is None else sent.count
        self.came.append((gain * weight * sent.update, v, count))

    def step(self) -> None:
        u, v, counts = (np.array([one[k] for one in self.came]) for k in range(3))
        shares = shares_of(self.rule, u, **self.how)
        if shares is None:
            self.x, self.own = self.x + combined(self.rule, u, **self.how), combined(self.rule, v, **self.how)
        else:
            middle = np.median(v, axis=0)
            far = 10 * np.median(np.abs(v - middle), axis=0)
            self.x = self.x + shares @ u
            self.own = shares @ np.clip(v, middle - far, middle + far) + (1 - shares.sum()) * self.own
        self.count, self.came = int(np.sort(counts)[(len(counts) - 1) // 2]), []

    def compare(self, server: fastagg.Server) -> None:
        now: Any = server.parameters()
        np.testing.assert_allclose(now["w"].double().numpy(), self.x, rtol=2e-5, atol=2e-5)
        found = torch.cat([now[name] for name in NAMES]).double().numpy()
        np.testing.assert_allclose(found, self.own, rtol=2e-5, atol=2e-5)
        assert int(now["bn.num_batches_tracked"]) == self.count
        assert (now["bn.running_var"] >= 0).all()


LIES = ("statistics", "both", "update", "nothing")


def honest(random: np.random.Generator, model: Model) -> Sent:
    statistics = model.own + random.normal(size=STATISTICS) * 0.3
    statistics[STATISTICS // 2 :] = np.abs(statistics[STATISTICS // 2 :])
    update = np.float32(random.normal(size=SIZE)).astype(float)
    if random.random() < 0.1:
        return Sent(update, None, None)
    return Sent(update, np.float32(statistics).astype(float), model.count + int(random.integers(9)))


def lie(random: np.random.Generator, model: Model, what: str) -> Sent:
    """``statistics``: beside the update that every rule likes best."""
    update = np.zeros(SIZE) if what in ("statistics", "nothing") else np.full(SIZE, 1e3)
    if what == "nothing":
        return Sent(update, None, None)
    if what == "update":
        return Sent(update, np.float32(model.own).astype(float), model.count)
    return Sent(update, np.full(STATISTICS, 1e6), 2**40)


ROADS = ("receive", "many", "model", "models")


def answer(server: fastagg.Server, road: str, answers: list[tuple[int, Sent]]) -> None:
    """By one of the roads that answers may take."""
    tasks = {client: server.dispatch(client) for client, _ in answers}
    whole, refused = {}, list[Exception]()
    for client, sent in answers:
        given = sent.arrays()
        if road.startswith("model"):
            trained = given if isinstance(given, Tensor) else given["w"]
            trained = tasks[client].flat + trained
            given = trained if isinstance(given, Tensor) else {**given, "w": trained}
            if isinstance(given, Tensor):
                given = {"w": given}
        whole[client] = given
    if road == "receive":
        for client, given in whole.items():
            server.receive(client, given)
    elif road == "many":
        refused = [one for one in server.receive_many(list(whole.items())) if isinstance(one, Exception)]
    elif road == "model":
        for client, given in whole.items():
            server.receive_model(tasks[client], given)
    else:
        outcomes = server.receive_many([fastagg.Answer.to(tasks[client], given) for client, given in whole.items()])
        refused = [one for one in outcomes if isinstance(one, Exception)]
    assert not refused


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("place", ["memory", "folder", "in order"])
@pytest.mark.parametrize("rule", RULES)
def test_random_histories(rule: str, place: str, seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng([seed, *rule.encode(), *place.encode()])
    clip = None if random.random() < 0.5 else 3.0
    size = 9 if random.random() < 0.7 else None
    how, more = RULES[rule], {"clip_norm": clip, "deterministic": place == "in order"}

    def make() -> fastagg.Server:
        return fastagg.Server(begin(), fastagg.Robust(rule, size, synchronous=True, **how), **more)  # type: ignore[arg-type]

    server = fastagg.open(tmp_path / "folder", make) if place == "folder" else make()
    model = Model(rule, how, clip)
    for _ in range(5):
        count = 9 if size else int(random.integers(7, 12))
        liars = set(random.choice(count, 2, replace=False)) if random.random() < 0.8 else set()
        what = str(random.choice(LIES))
        sent = [lie(random, model, what) if k in liars else honest(random, model) for k in range(count)]
        for one in sent:
            model.receive(one)
        at = 0
        while at < count:
            some = int(random.integers(1, 4))
            answer(server, str(random.choice(ROADS)), list(enumerate(sent))[at : at + some])
            at += some
            if at < count and random.random() < 0.3:
                server = again(server, make, tmp_path / "folder", place)
        if size is None:
            server.close_round()
        model.step()
        model.compare(server)
    if place == "folder":
        server.close()
        with fastagg.open(tmp_path / "folder", make) as server:
            model.compare(server)
        assert fastagg.audit(tmp_path / "folder", make=make)["same"]


def again(server: fastagg.Server, make: Any, path: Path, place: str) -> fastagg.Server:
    """The server from its log, or from its state, in the middle of a round."""
    if place == "folder":
        server.close()
        return fastagg.open(path, make)
    fresh = make()
    fresh.load_state_dict(server.state_dict())
    return fresh


@pytest.mark.parametrize("what", LIES)
@pytest.mark.parametrize("rule", RULES)
def test_liars_move_buffers_as_far_as_honest_clients_do(rule: str, what: str) -> None:
    """Two of nine, for twenty rounds: neither statistics nor counts leave what honest clients send by more than a few
    times how far these are apart."""
    random, model = np.random.default_rng([*rule.encode(), *what.encode()]), Model(rule, RULES[rule], None)
    server = fastagg.Server(begin(), fastagg.Robust(rule, 9, **RULES[rule]))  # type: ignore[arg-type]
    target = np.array([3.0, -2.0, 1.0, 4.0, 0.5, 9.0])
    for turn in range(20):
        for client in range(9):
            if client in (2, 7):
                sent = lie(random, model, what)
            else:
                sent = honest(random, model)
                sent.statistics, sent.count = np.abs(target + random.normal(size=STATISTICS) * 0.1), 10 * turn
            server.dispatch(client)
            server.receive(client, sent.arrays())
    now: Any = server.parameters()
    found = torch.cat([now[name] for name in NAMES]).double().numpy()
    assert np.abs(found - np.abs(target)).max() < 3.0 and 0 <= int(now["bn.num_batches_tracked"]) <= 190


PRESETS: dict[str, Any] = {
    "FedBuff": lambda **more: fastagg.FedBuff(begin(), buffer_size=3, **more),
    "FedAvg": lambda **more: fastagg.FedAvg(begin(), clients_per_round=3, weighting="uniform", **more),
    "ASGD": lambda **more: fastagg.ASGD(begin(), lr=1.0, **more),
    "FedAsync": lambda **more: fastagg.FedAsync(begin(), alpha=0.5, **more),
    "ACE": lambda **more: fastagg.ACE(begin(), lr=1.0, num_clients=3, warmup="partial", **more),
    "CA2FL": lambda **more: fastagg.CA2FL(begin(), lr=1.0, num_clients=3, buffer_size=3, **more),
    "own": lambda **more: fastagg.Server(begin(), Along(), **more),
}


class Along(fastagg.Direction):
    """A rule of a user's own."""

    def combine(self, update: Tensor, facts: Any, state: Any) -> Any:
        return update, state


@pytest.mark.parametrize("road", ["receive", "many"])
@pytest.mark.parametrize("name", PRESETS)
def test_clipping_moves_statistics_by_the_same_factor(name: str, road: str) -> None:
    server = PRESETS[name](clip_norm=2.0)
    random, own, count = np.random.default_rng(3), np.repeat([0.0, 1.0], STATISTICS // 2), 0
    size = getattr(server.direction, "size", None) or getattr(server.direction, "buffer_size", 1)
    for _ in range(3):
        answers: list[tuple[int, Sent]] = []
        for client, first in enumerate((1.0, 8.0, 400.0)):
            update, theirs = np.zeros(SIZE), np.float32(np.abs(random.normal(size=STATISTICS)) * 100).astype(float)
            update[0] = first
            answers.append((client, Sent(update, theirs, 2**40 if client == 2 else count + 5)))
        for at in range(0, 3, size):
            step = [sent for _, sent in answers[at : at + size]]
            own = np.mean([own + min(1, 2 / sent.update[0]) * (sent.statistics - own) for sent in step], axis=0)
            count = min(max(sent.count or 0 for sent in step), count + 2**20)
        answer(server, road, answers)
        now: Any = server.parameters()
        found = torch.cat([now[key] for key in NAMES]).double().numpy()
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=1e-5)
        assert int(now["bn.num_batches_tracked"]) == count
    assert server.version == 9 // size


def test_a_count_never_ends() -> None:
    """The largest number there is does not keep others from counting on."""
    server = fastagg.FedBuff(begin(), buffer_size=2)
    for turn in range(3):
        for client, count in enumerate((2**63 - 1, turn)):
            server.dispatch(client)
            server.receive(client, Sent(np.ones(SIZE), np.ones(STATISTICS), count).arrays())
        assert int(server.parameters()["bn.num_batches_tracked"]) == (turn + 1) * 2**20


@pytest.mark.parametrize("buffers", ["latest", "weighted", {"bn.running_mean": "first", "bn.running_var": "max"}])
def test_no_setting_takes_one_clients_buffers(buffers: Any) -> None:
    """Whoever comes first or last, or sends the largest, may be a liar."""
    server, model = fastagg.FedMedian(begin(), clients_per_round=3, buffers=buffers), Model("median", {}, None)
    random = np.random.default_rng(7)
    for client, what in enumerate(("both", None, None)):
        sent = lie(random, model, what) if what else Sent(np.ones(SIZE), np.full(STATISTICS, 2.0 + client), client)
        server.dispatch(client)
        server.receive(client, sent.arrays(), num_samples=1)
        model.receive(sent)
    model.step()
    model.compare(server)


def test_kept_buffers_stay_and_take_no_memory() -> None:
    server = fastagg.Server(begin(), fastagg.Robust("krum", 5, f=1), buffers="keep")
    before = server.memory()["buffers"]
    for client in range(5):
        server.dispatch(client)
        server.receive(client, Sent(np.full(SIZE, client), np.full(STATISTICS, 7.0), 9).arrays())
        assert server.memory()["buffers"] == before
    now: Any = server.parameters()
    assert server.version == 1 and int(now["bn.num_batches_tracked"]) == 0 and not now[NAMES[0]].any()


def test_rows_of_a_damaged_checkpoint() -> None:
    server = fastagg.Server(begin(), fastagg.Robust("median", 3))
    server.dispatch(0)
    server.receive(0, Sent(np.ones(SIZE), np.ones(STATISTICS), 9).arrays())
    for rows in ([], [[torch.ones(5), [9]]], [[torch.ones(6), [9, 9]]], [[torch.ones(6) / 0, [9]]], None, 7):
        state = server.state_dict()
        state["buffers"]["rows"] = rows
        with pytest.raises(fastagg.CheckpointError):
            server.load_state_dict(state)


def test_a_leafs_sum_brings_no_statistics() -> None:
    server = fastagg.FedBuff(begin(), buffer_size=2, clip_norm=1.0)
    server.dispatch("leaf")
    total: Any = Sent(np.ones(SIZE), np.full(STATISTICS, 1e6), 2**40).arrays()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server.receive_partial("leaf", fastagg.Partial(total, 2, 2.0))
    now: Any = server.parameters()
    assert server.version == 1 and not now[NAMES[0]].any() and int(now["bn.num_batches_tracked"]) == 0


def test_a_control_variate_is_clipped_with_its_update() -> None:
    server = fastagg.FedAC(torch.zeros(4), lr=0.1, buffer_size=1, clip_norm=1.0)
    other = fastagg.FedAC(torch.zeros(4), lr=0.1, buffer_size=1)
    for one, by in ((server, 10.0), (other, 1.0)):
        one.dispatch(0)
        one.receive(0, torch.full((4,), by / 2), control=torch.full((4,), by))
    torch.testing.assert_close(server.flat, other.flat)
    torch.testing.assert_close(server.dispatch(1).control, other.dispatch(1).control)
