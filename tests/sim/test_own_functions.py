"""Functions of one's own in a run, and the algorithms in examples/simulator_algorithms."""

import ast
import copy
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import fastagg
from fastagg.errors import ConfigError
from fastagg.sim.clients.own import UserFunctions
from fastagg.sim.recipes.config import load
from fastagg.sim.runs.result import Folder
from fastagg.sim.runs.run import run
from fastagg.sim.runs.simulation import Simulation

from .test_resume import Killed, Stop

FOLDER = Path(__file__).parents[2] / "examples" / "simulator_algorithms"
PERSONAL = ("fedper", "fedrep", "ditto", "pfedme", "apfl")
PLAIN = ("fedprox", "scaffold", "feddyn", "fednova", "fedsam", "ef_topk")
KEPT = ("scaffold", "feddyn", "fednova")  # what clients keep is with the server, whose rule takes it
ASYNCHRONOUS = {"asmu": None, "psa": "with_sketch", "fa": None, "area": None, "fair": "with_loss"}
SMALL = {"run.versions": 3, "run.evaluate_every": 1, "client.epochs": 1, "run.checkpoint_every": 0.0}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(FOLDER)
    yield
    for name in [*PERSONAL, *PLAIN, "dp_fedavg", "asynchronous", "views"]:
        sys.modules.pop(name, None)


def config(name, **more):
    if name in ASYNCHRONOUS:
        keys = {"algorithm": {"name": f"asynchronous:{name}"}, "run.uploads": 30, "run.versions": "none"}
        if train := ASYNCHRONOUS[name]:
            keys["own.train"] = f"asynchronous:{train}"
        keys["participation"] = {"rule": "concurrency", "concurrency": 5}
        return load(FOLDER / "recipe.toml", {**SMALL, **keys, **more})
    keys = {"own.change": f"{name}:change"} if name == "dp_fedavg" else {"own.train": f"{name}:train"}
    if name in PERSONAL:
        keys["own.personal"] = f"{name}:personal"
    if name in KEPT:
        keys["algorithm"] = {"name": f"{name}:server", "clients_per_round": 10}
    return load(FOLDER / "recipe.toml", {**SMALL, **keys, **more})


@pytest.mark.parametrize("name", [*PERSONAL, *PLAIN, "dp_fedavg", *ASYNCHRONOUS])
def test_an_algorithm_is_resumed_to_the_bit(name, tmp_path):
    whole = run(config(name), tmp_path / "whole")
    with pytest.raises(Killed):
        run(config(name), tmp_path / "cut", Stop(17))
    cut = run(config(name), tmp_path / "cut", resume="go on")
    assert cut.rows == whole.rows and cut.clients == whole.clients
    assert all(torch.equal(cut.model[key], array) for key, array in whole.model.items())
    assert Folder(tmp_path / "cut", cut.config).read().clients == cut.clients
    assert whole.rows[-1].loss < whole.rows[0].loss


@pytest.mark.parametrize("name", [*PERSONAL, *PLAIN, "dp_fedavg", "asynchronous", "views"])
def test_no_rule_and_no_client_has_more_than_30_lines(name):
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    for part in ast.parse("\n".join(lines)).body:
        assert sum(bool(line.strip()) for line in lines[part.lineno - 1 : part.end_lineno]) <= (
            24 if name == "views" else 30
        )


def test_what_law_sampling_and_rule_are_told_is_resumed_to_the_bit(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    views = import_module("views")
    own = {
        "delay": views.diurnal,
        "sampling": views.oort,
        "own": UserFunctions(train=views.with_loss),
        "algorithm": views.deadline,
    }
    more = {"participation": {"rule": "concurrency", "concurrency": 5}, "run.uploads": 60, "run.versions": "none"}
    recipe = {**SMALL, **more}
    whole = fastagg.sim.run(str(FOLDER / "recipe.toml"), recipe, out=tmp_path / "whole", **own)
    turns = iter(range(23))
    stop = lambda: next(turns, None) is None  # noqa: E731
    fastagg.sim.run(str(FOLDER / "recipe.toml"), recipe, out=tmp_path / "cut", stop=stop, **own)
    cut = fastagg.sim.run(str(FOLDER / "recipe.toml"), recipe, out=tmp_path / "cut", resume="go on", **own)
    assert cut.rows == whole.rows and cut.clients == whole.clients and whole.rows[-1].version > 3
    assert set(whole.delays) - {0}


def test_a_view_is_what_happened():
    seen = []

    def law(client, number, steps, rng, view):
        looked.extend(view.of(other) for other in np.arange(3))
        seen.append((client, number, steps, view))
        was.extend(copy.deepcopy(looked[-3:]))
        return 1.0 + client % 3

    looked, was, loss = [], [], torch.zeros(1)

    def train(model, data, task, state):
        return task.delta(model), state, {"loss": loss.fill_(task.number)}

    fastagg.sim.run(asynchronous(algorithm=FEDBUFF), delay=law, own=UserFunctions(train=train))
    assert looked == was  # nothing changes later
    clients = seen[-1][3]._history.state_dict()["clients"]
    assert {type(own["client"]) for own in clients} == {int}  # as a checkpoint needs
    last = {}
    for client, number, _, view in seen:
        assert view.client.client == client and view.client.tasks == number + 1 and view.client.sent == view.time
        assert view.client.answers == number == len(last.setdefault(client, []))
        if number:
            assert view.client.duration == 1.0 + client % 3
            assert view.client.arrived == last[client][-1] + view.client.duration <= view.time
            assert view.client.extra["loss"] == number - 1 and view.client.delay <= view.version - view.client.version
        last[client].append(view.time)


def test_in_a_round_a_view_has_each_client_s_own_time_and_a_rule_that_of_the_answer():
    seen, told = [], []

    def law(client, number, steps, rng, view):
        seen.append((number, view.client))
        return 1.0 + client % 3

    @fastagg.register
    @dataclass(frozen=True)
    class Durations(fastagg.Direction):
        takes: ClassVar = {"duration": 1, "client": 1, "delay": 1}

        def combine(self, update, facts, state):
            told.append([float(facts.extra[name]) for name in ("client", "duration", "delay")])
            return update, state

    fastagg.sim.run(config("fedprox", **{"run.versions": 4}), delay=law)
    assert any(number for number, _ in seen)
    assert all(own.duration == 1.0 + own.client % 3 for number, own in seen if number)
    seen.clear()
    fastagg.sim.run(
        asynchronous(algorithm=FEDBUFF),
        algorithm=lambda model: fastagg.Server(model, Durations(), fastagg.SGD(1.0)), delay=law,
    )  # fmt: skip
    assert told and all(duration == 1.0 + client % 3 for client, duration, _ in told)
    assert any(delay for *_, delay in told)


def test_a_rule_of_one_s_own_says_how_many_local_steps():
    steps = []

    @fastagg.register
    @dataclass(frozen=True)
    class Steps(fastagg.Direction):
        def combine(self, update, facts, state):
            return update, state

        def send(self, client, state):
            return {"local_steps": torch.tensor([1.0 + client % 2])}

    def law(client, number, count, rng):
        steps.append((client, count))
        return 1.0

    rule = {"algorithm": lambda model: fastagg.Server(model, Steps(), fastagg.SGD(1.0)), "delay": law}
    result = fastagg.sim.run(asynchronous(algorithm=FEDBUFF), **rule)
    assert result.summary["fused"] is True
    assert steps and all(count == 1 + client % 2 for client, count in steps)


def test_scaffold_s_control_variate_is_the_mean_of_the_clients():
    simulation = Simulation(config("scaffold"))
    for _ in range(30):
        simulation.step()
    held = simulation.server.state_dict()["direction"]["tensors"]
    own = torch.stack([array for name, array in held.items() if name.startswith("c ")])
    assert own.abs().max() > 0
    torch.testing.assert_close(held["c"], own.sum(0) / 20, rtol=1e-4, atol=1e-6)


def test_fedasmu_and_fedfa_are_their_formulas(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    rules, draw = import_module("asynchronous"), torch.Generator().manual_seed(0)
    changes = torch.randn(9, 4, generator=draw, dtype=torch.float64)
    for rule in (rules.FedASMU(), rules.FedFa()):
        x, trained = torch.zeros(4).double(), []
        server, sent = fastagg.Server(torch.zeros(4), rule, fastagg.SGD(1.0)), {0: x, 1: x}
        for client in sent:
            server.dispatch(client)
        for count, change in enumerate(changes):  # in turn, so that each update but the first is one version old
            client = count % 2
            receipt = server.receive(client, change.float())
            trained.append(sent[client] + change)
            if isinstance(rule, rules.FedASMU):
                xi = 1 / (receipt.version * (receipt.delay + 1)) ** 0.5 + 0.1
                x = x + xi / (1 + xi) * (trained[-1] - x)
            elif count >= 4:
                x = torch.stack(trained[-5:]).mean(0)
            server.dispatch(client)
            sent[client] = x
            torch.testing.assert_close(server.flat.double(), x, rtol=1e-5, atol=1e-6)


def test_area_keeps_the_exact_mean_of_what_clients_sent_last():
    simulation = Simulation(config("area", participation={"rule": "all"}, **{"run.uploads": 90}))
    for _ in range(80):
        simulation.step()
    held = simulation.server.state_dict()["direction"]["tensors"]
    last = [held.get(f"client {client}", held["first"]) for client in range(20)]
    torch.testing.assert_close(simulation.server.flat, torch.stack(last).mean(0), rtol=1e-4, atol=1e-5)


def test_fedper_s_heads_are_never_averaged_nor_sent():
    simulation = Simulation(config("fedper"))
    first = {name: array.clone() for name, array in simulation.server.parameters().items()}
    head = list(first)[-2:]
    for _ in range(20):
        simulation.step()
    last = simulation.server.parameters()
    assert all(torch.equal(first[name], last[name]) == (name in head) for name in first)
    assert simulation.bytes_up == 20 * sum(array.nbytes for name, array in first.items() if name not in head)
    assert simulation.bytes_down == 20 * sum(array.nbytes for array in first.values())


def test_fedprox_s_term_is_the_recipe_s_own():
    mine = run(config("fedprox", **{"own.keywords.mu": 0.3}))
    theirs = run(load(FOLDER / "recipe.toml", {**SMALL, "client.mu": 0.3, "run.fused": False}))
    for name, array in theirs.model.items():
        torch.testing.assert_close(mine.model[name], array, rtol=1e-4, atol=1e-6)


def test_what_cannot_be_saved_and_other_workers_are_refused():
    plain = load(FOLDER / "recipe.toml", SMALL)
    with pytest.raises(ConfigError, match="a state of object cannot be saved"):
        fastagg.sim.run(plain, own=UserFunctions(train=lambda model, data, task, state: (task.delta(model), object())))
    with pytest.raises(ConfigError, match=r"workers is 2, but .*own.train trains them"):
        run(config("ditto"), workers=2)


def asynchronous(name="rule", **more):
    keys = {
        "algorithm": {"name": f"own_rules:{name}"}, "participation": {"rule": "concurrency", "concurrency": 5},
        "run.uploads": 30, "run.versions": None,
    }  # fmt: skip
    return load(FOLDER / "recipe.toml", {**SMALL, **keys, **more})


RULES = """
import fastagg


def rule(model, *, num_clients, seed, lr=1.0):
    return fastagg.FedBuff(model, lr=lr, buffer_size=2, num_clients=num_clients, seed=seed)


def half(model, *, rule, num_clients, seed, lr, buffer_size, distill=None):
    more = {"distill": distill} if rule == "FedEcho" else {}
    policy, clients = fastagg.Polynomial(0.5), {"num_clients": num_clients}
    preset = getattr(fastagg, rule)
    return preset(model, lr=lr, buffer_size=buffer_size, seed=seed, staleness=policy, **clients, **more)


def untyped(model, **keywords):
    return fastagg.FedBuff(model, lr=1.0, buffer_size=2)
"""


@pytest.fixture
def rules(tmp_path, monkeypatch):
    (tmp_path / "own_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_rules", None)


def test_arguments_of_a_rule_of_one_s_own_are_checked(rules):
    with pytest.raises(ConfigError, match="own_rules:rule has no such keyword"):
        run(asynchronous(algorithm={"name": "own_rules:rule", "beta": 1.0}))
    with pytest.raises(ConfigError, match=r"untyped: its \*\*keywords do not say"):
        run(asynchronous("untyped"))


def test_own_loss_and_metric_say_what_the_rows_say():
    loss, settings = torch.nn.functional.cross_entropy, asynchronous(algorithm=FEDBUFF, **{"run.fused": False})
    own = UserFunctions(loss=loss, metric=lambda outputs, labels: (outputs.argmax(1) == labels).float().mean().item())
    for mine, theirs in zip(fastagg.sim.run(settings, own=own).rows, run(settings).rows, strict=True):
        assert (mine.version, mine.time) == (theirs.version, theirs.time)
        assert (mine.accuracy, mine.loss) == pytest.approx((theirs.accuracy, theirs.loss), rel=1e-5)
    least = UserFunctions(loss=loss, metric=lambda outputs, labels: -1.0)
    assert {row.accuracy for row in fastagg.sim.run(settings, own=least).rows} == {-1.0}


FEDBUFF = {"name": "FedBuff", "lr": 1.0, "buffer_size": 2}


@pytest.mark.parametrize("name", ["FedBuff", "FedEcho", "CA2FL", "FedAC"])
def test_a_recipe_describes_a_policy_of_staleness(name, rules):
    """The same run as with the policy's object, which a function makes; and delays count."""
    algorithm = {"name": name, "buffer_size": 2, "lr": 0.1}
    more = {"unlabelled": {"share": 0.2}, "run": {"versions": 10, "evaluate_every": 5}}
    half = {"staleness": {"name": "Polynomial", "a": 0.5}}
    made_by = {"name": "own_rules:half", "rule": name}
    plain, described, made = (
        run(asynchronous(algorithm={**algorithm, **given}, **more)) for given in ({}, half, made_by)
    )
    assert described.rows == made.rows != plain.rows
    with pytest.raises(ConfigError, match="staleness Polynomial: unknown setting 'b'; known: a"):
        run(asynchronous(algorithm={**algorithm, "staleness": {"name": "Polynomial", "b": 1}}, **more))
