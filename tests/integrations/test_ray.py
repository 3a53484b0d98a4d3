"""Parts and leaves on a real Ray of two nodes: what is acknowledged stays and counts once, whoever dies when."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import Residual, same
from torch import nn

import fastagg

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402

from fastagg.integrations.ray import Leaves, Parts  # noqa: E402

SIZE = sum(p.numel() for p in Residual().parameters())
SETTINGS: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One Ray for all tests: starting it takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # where actors find `support`
        patch.chdir(sys.prefix)  # Ray's workers look for packages in the current folder first
        node = {"num_cpus": 4, "object_store_memory": 100 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        cluster.add_node(**node)
        ray.init(address=cluster.address, **SETTINGS)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def fadas(part: Any) -> fastagg.Server:
    return fastagg.FADAS(part, lr=0.05, buffer_size=2, delay_threshold=1)


def parts(folder: Path, count: int = 2, make: Any = fadas, **settings: Any) -> Parts:
    torch.manual_seed(0)
    return Parts(fastagg.parts(Residual(), count), make, folder, **settings)


def pid(actors: Parts, number: int) -> int:
    return int(ray.get(actors._actors[number].run.remote(lambda server: os.getpid())))


def update(turn: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(turn)) * 0.1


def test_parts_are_on_both_nodes_and_equal_servers_of_this_process(cluster: Cluster, tmp_path: Path) -> None:
    torch.manual_seed(0)
    cut = fastagg.parts(Residual(), 3)
    servers = [fadas(part) for part in cut]
    with closing(parts(tmp_path, 3)) as actors:
        assert len(set(actors._each(lambda server: ray.get_runtime_context().get_node_id()))) == 2
        for turn in range(6):
            client = turn % 2
            tasks, plain = actors.dispatch(client), [server.dispatch(client) for server in servers]
            params = cut.join(task.params for task in tasks.values())
            assert same(params, cut.join(task.params for task in plain))
            trained = {name: array + torch.rand(array.shape).to(array.dtype) for name, array in params.items()}
            pieces = {i: tasks[i].delta(piece) for i, piece in enumerate(cut.split(trained))}
            outcomes = actors.receive(tasks, pieces, num_samples=3)
            for i, (server, task) in enumerate(zip(servers, plain, strict=True)):
                assert outcomes[i] == server.receive(client, pieces[i], task=task.id)
        assert actors.versions == [server.version for server in servers] == [3, 3, 3]
        assert same(actors.parameters(), cut.join(server.parameters() for server in servers))
        # a part by itself
        tasks = actors.dispatch("fragment", only=[1])
        assert list(tasks) == [1]
        assert list(actors.receive(tasks, {1: cut.split(update(0))[1]})) == [1]
        assert list(actors.receive(actors.dispatch("fragment", only=[1]), update(0))) == [1]
        assert actors.versions == [3, 4, 3]


@pytest.fixture(scope="module")
def buffers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """Two parts in which every update is a step, shared by tests, because an actor takes seconds to start."""
    model = {"a.w": torch.zeros(300_000), "b.w": torch.zeros(20), "c.w": torch.zeros(200_000)}
    make = lambda part: fastagg.FedBuff(part, buffer_size=1)  # noqa: E731
    with closing(Parts(fastagg.parts(model, 2), make, tmp_path_factory.mktemp("buffers"))) as actors:
        yield actors


def test_a_refused_update_changes_no_part_and_a_parts_own_refusal_is_told(buffers: Parts) -> None:
    before, versions, tasks = buffers.parameters(), buffers.versions, buffers.dispatch("ann")
    good = buffers.cut.split(torch.ones(500_020))
    for wrong, error in (
        (torch.full((20,), float("nan")), fastagg.NonFiniteUpdate),
        (torch.ones(7), fastagg.ShapeMismatch),
        (torch.ones(20, dtype=torch.complex64), fastagg.DTypeMismatch),
    ):
        with pytest.raises(error, match=r"b\.w"):
            buffers.receive(tasks, {0: good[0], 1: {**good[1], "b.w": wrong}})
        with pytest.raises(error, match=r"b\.w"):
            buffers.receive(tasks, {**good[0], **good[1], "b.w": wrong})
    with pytest.raises(fastagg.ConfigError, match=r"not sent the parts \[2\]"):
        buffers.receive(tasks, {2: good[0]})
    with pytest.raises(fastagg.ShapeMismatch, match="shape"):
        buffers.receive(tasks, torch.ones(3))
    assert buffers.versions == versions and same(buffers.parameters(), before)
    huge = {name: array * 1e37 for name, array in good[1].items()}
    outcomes = buffers.receive(tasks, {0: good[0], 1: huge})
    assert outcomes[0].version == versions[0] + 1 and isinstance(outcomes[1], fastagg.UpdateTooLarge)
    outcomes = buffers.receive(tasks, {0: good[0], 1: good[1]})  # its task is still open, the other one counted
    assert isinstance(outcomes[0], fastagg.AlreadyCounted) and outcomes[1].version == versions[1] + 1
    with pytest.raises(fastagg.UnknownClient):
        buffers.dispatch(3.5)  # type: ignore[arg-type]


def test_all_types_and_layouts_of_arrays_arrive(buffers: Parts) -> None:
    model = {name: array.clone() for name, array in buffers.parameters().items()}
    plain = [fastagg.FedBuff(part, buffer_size=1) for part in fastagg.parts(model, 2)]
    flat = torch.randn(500_020, generator=torch.Generator().manual_seed(0))
    for given in (flat, flat.numpy(), flat.half(), flat.bfloat16(), torch._neg_view(flat), flat.repeat(2, 1).T[:, 1]):
        for server, piece in zip(plain, buffers.cut.split(given), strict=True):
            server.dispatch(0)
            server.receive(0, piece)
        assert {0, 1} == buffers.receive(buffers.dispatch(0), given).keys()
    assert same(buffers.parameters(), buffers.cut.join(server.parameters() for server in plain))


def notes(server: fastagg.Server) -> None:
    receive = server.receive

    def noted(client: Any, given: Any, *rest: Any, **more: Any) -> Any:
        server.__dict__["writable"] = [array.flags.writeable for array in given.values()]
        return receive(client, given, *rest, **more)

    server.receive = noted  # type: ignore[method-assign]


def test_an_update_is_read_where_ray_has_it(buffers: Parts) -> None:
    """Only what lies in Ray's store is read-only, and only what is small does not."""
    buffers._each(notes)
    buffers.receive(buffers.dispatch(0), torch.ones(500_020))
    assert [any(seen) for seen in buffers._each(lambda server: server.writable)] == [False, False]


def test_ray_tasks_share_the_actors_and_a_second_driver_is_refused(cluster: Cluster, buffers: Parts) -> None:
    folder = buffers._each(lambda server: server.folder.parent)[0]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster.address, folder],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "Busy" in done.stdout and "another program serves this part" in done.stdout
    versions = buffers.versions

    @ray.remote
    def worker(client: str, given: torch.Tensor) -> list[int]:
        return [one.version for one in buffers.receive(buffers.dispatch(client), given).values()]

    ray.get([worker.remote(name, torch.ones(500_020)) for name in "ab"])
    assert buffers.versions == [version + 2 for version in versions]


DRIVER = """
import sys, ray, torch, fastagg
from fastagg.integrations.ray import Parts
ray.init(address=sys.argv[1], log_to_driver=False)
try:
    Parts(fastagg.parts(torch.zeros(9), 1), lambda part: fastagg.FADAS(part), sys.argv[2])
except fastagg.Busy as error:
    print("Busy", error)
"""


class Killer:
    """Kills actors of parts, at random moments, until it has killed enough."""

    def __init__(self, actors: Parts, kills: int, seed: int) -> None:
        self.actors, self.left, self.random = actors, kills, random.Random(seed)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while self.left:
            number = self.random.randrange(len(self.actors._actors))
            process = pid(self.actors, number)  # it waits for the restart
            time.sleep(self.random.random() * 0.05)
            if self.random.random() < 0.25:
                ray.kill(self.actors._actors[number], no_restart=False)
            else:
                os.kill(process, signal.SIGKILL)
            self.left -= 1


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_actors_are_killed_and_each_part_has_the_bits_of_one_server(
    cluster: Cluster, tmp_path: Path, kills: int
) -> None:
    """Every answer counts once, at the version that its task had, and the model is that of one server by part that was
    never killed, with the same history. Meanwhile checkpoints are written."""
    draw, turn, twice = random.Random(1), 0, 0
    actors = parts(tmp_path / "state", checkpoint_every=4096)
    plain = [fadas(part) for part in fastagg.parts(actors.parameters(), 2)]
    open_tasks: dict[int, tuple[Any, list[Any]]] = {}
    killer = Killer(actors, kills, seed=2)
    while killer.left or turn < 40:
        client = draw.randrange(4)
        if client in open_tasks:
            tasks, mine = open_tasks.pop(client)
            turn += 1
            outcomes = actors.receive(tasks, update(turn))
            for number, piece in enumerate(actors.cut.split(update(turn))):
                receipt, outcome = plain[number].receive(client, piece, task=mine[number].id), outcomes[number]
                if isinstance(outcome, fastagg.AlreadyCounted):  # it counted, and the actor died before it said so
                    twice += 1
                    assert outcome.version in (None, receipt.version)
                else:
                    assert outcome == receipt
            if draw.random() < 0.1:  # and once more, as a client does whose connection broke
                assert all(
                    isinstance(one, fastagg.AlreadyCounted) for one in actors.receive(tasks, update(turn)).values()
                )
        tasks, mine = actors.dispatch(client), [server.dispatch(client) for server in plain]
        assert [task.version for task in tasks.values()] == [task.version for task in mine]
        open_tasks[client] = tasks, mine
    killer.thread.join()
    assert actors.versions == [server.version for server in plain]
    assert same(actors.parameters(), actors.cut.join(server.parameters() for server in plain))
    actors.close()
    print(f"{kills} kills, {turn} answers, {twice} of them answered twice")


def test_an_actor_that_dies_between_the_step_and_the_answer_counts_it_once(cluster: Cluster, tmp_path: Path) -> None:
    mark = tmp_path / "died"

    def make(part: Any) -> fastagg.Server:
        server = fastagg.FedBuff(part, buffer_size=1)
        receive = server.receive

        def dies(*given: Any, **more: Any) -> Any:
            receipt = receive(*given, **more)
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return receipt

        server.receive = dies  # type: ignore[method-assign]
        return server

    with closing(parts(tmp_path / "state", 1, make)) as actors:
        outcomes = actors.receive(actors.dispatch("ann"), update(0))
        assert isinstance(outcomes[0], fastagg.AlreadyCounted) and outcomes[0].version == 1
        assert mark.exists() and actors.versions == [1]


def test_a_folder_that_is_away_is_refused_and_one_whose_actor_is_gone_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    first = parts(tmp_path)
    tasks = first.dispatch("ann")
    (tmp_path / "part-1").rename(tmp_path / "away")  # as on another node
    os.kill(pid(first, 1), signal.SIGKILL)
    outcomes = first.receive(tasks, update(0))
    assert outcomes[0].update_norm > 0 and isinstance(outcomes[1], fastagg.CheckpointError)
    with pytest.raises(fastagg.CheckpointError, match=r"part-1: none on node .*the part's past is elsewhere"):
        first.dispatch("ann")
    (tmp_path / "away").rename(tmp_path / "part-1")
    assert first.receive(tasks, update(0))[1].update_norm > 0

    ray.kill(first._actors[0])
    other = first.dispatch("bob", only=[1])
    outcomes = first.receive({0: tasks[0], **other}, update(1))
    assert isinstance(outcomes[0], fastagg.RunFailed) and outcomes[1].version == 1
    for call in (lambda: first.versions, lambda: first.dispatch("cid"), first.close):
        with pytest.raises(fastagg.RunFailed, match="gone for good"):
            call()
    with closing(parts(tmp_path)) as second:
        assert second.versions == [0, 1]
        assert isinstance(second.receive(tasks, update(0))[0], fastagg.AlreadyCounted)
    shutil.rmtree(tmp_path / "part-1")
    with pytest.raises(fastagg.CheckpointError, match=r"those of \[1\] are not where"):
        parts(tmp_path)
    assert not (tmp_path / "part-1").exists()


def test_what_make_refuses_is_raised_and_no_actor_stays(cluster: Cluster, tmp_path: Path) -> None:
    cut = fastagg.parts(Residual(), 2)
    one = type(cut)(cut.layout, cut[:1])
    with pytest.raises(fastagg.ConfigError, match="by_part=True"):
        Parts(one, lambda part: fastagg.FedBuff(part, clip_norm=1.0), tmp_path)
    assert not any(tmp_path.glob("*/checkpoint-*"))


# -- leaves ------------------------------------------------------------------------------------------------------------


def root() -> fastagg.Server:
    torch.manual_seed(0)
    return fastagg.FADAS(Residual(), lr=0.05, buffer_size=4, delay_threshold=2, weighting="samples", clip_norm=9.0)


CLIENTS: dict[int | str, list[int | str]] = {"north": [0, 1], "south": [2, 3]}


def train(client: Any, task: Any) -> tuple[torch.Tensor, float]:
    time.sleep(0.05)
    generator = torch.Generator().manual_seed(100 * task.version + client)
    return torch.randn(SIZE, generator=generator) - 0.1 * task.flat, client + 1


def test_leaves_equal_one_process_also_if_one_is_killed(cluster: Cluster) -> None:
    server, history = root(), []
    with closing(Leaves(server, CLIENTS, train)) as leaves:
        for leaf, receipt, refused in leaves.sums():
            assert isinstance(receipt, fastagg.Receipt) and not refused
            history.append(leaf)
            if len(history) == 5:
                ray.kill(leaves._actors["north"], no_restart=False)
            if len(history) >= 24 and "north" in history[6:]:
                break
    alone = root()
    tasks = {leaf: alone.dispatch(leaf) for leaf in CLIENTS}
    for leaf in history:
        folded = fastagg.Leaf(Residual(), weighting="samples", clip_norm=9.0)
        for client in CLIENTS[leaf]:
            folded.fold(*train(client, tasks[leaf]))
        alone.receive_partial(leaf, folded.take(), tasks[leaf].version)
        tasks[leaf] = alone.dispatch(leaf)
    assert server.version == alone.version == len(history) // 2 and torch.equal(server.flat, alone.flat)


def test_a_leaf_refuses_clients_and_the_root_sums_and_both_are_told(cluster: Cluster) -> None:
    def bad(client: Any, task: Any) -> Any:
        return torch.full((3,), float("nan") if client in (0, 2, 3) else 1.0), None

    server = fastagg.FedBuff(torch.zeros(3), buffer_size=1)
    with closing(Leaves(server, {"a": [0, 1], "b": [2, 3]}, bad)) as leaves:
        seen: dict[Any, Any] = {}
        for leaf, outcome, refused in leaves.sums():
            seen[leaf] = outcome, refused
            if len(seen) == 2:
                break
        (one, some), (none, all) = seen["a"], seen["b"]
        assert one.applied and some.keys() == {0} and isinstance(some[0], fastagg.NonFiniteUpdate)
        assert isinstance(none, fastagg.ConfigError) and all.keys() == {2, 3}
        assert all[2].args == some[0].args
        ray.kill(leaves._actors["a"])
        with pytest.raises(fastagg.RunFailed, match="gone for good"):
            for _ in leaves.sums():
                pass


def test_leaves_go_on_after_what_train_raises(cluster: Cluster, tmp_path: Path) -> None:
    mark = tmp_path / "raised"

    def ones(client: Any, task: Any) -> Any:
        if task.version == 2 and not mark.exists():
            mark.touch()
            raise ZeroDivisionError("in a client's code")
        return torch.ones(3) * client, None

    server = fastagg.FedBuff(torch.zeros(3), buffer_size=2)
    with closing(Leaves(server, {"a": [1, 2]}, ones)) as leaves:
        with pytest.raises(ZeroDivisionError, match="client's code"):
            for _, receipt, _ in leaves.sums():
                assert receipt.applied
        assert server.flat.tolist() == [3.0] * 3
        assert next(leaves.sums())[1].version == 3
    assert server.flat.tolist() == [4.5] * 3


def test_the_page_on_scaling_runs(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    first, second = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"torch": torch, "fastagg": fastagg, "model": nn.Linear(3, 2)}
    found["train"] = lambda client, task: (task.delta({n: p + 0.1 for n, p in task.params.items()}), 10)
    exec(compile(first, "docs/scaling.md", "exec"), found)
    found["leaves"].close()
    assert found["server"].version == 3
    exec(compile(second.replace("(model, 4)", "(model, 2)"), "docs/scaling.md", "exec"), found)
    assert found["parts"].versions == [1, 1] and all(one.applied for one in found["outcomes"].values())
    found["parts"].close()
