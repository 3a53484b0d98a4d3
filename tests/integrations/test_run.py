"""The contract of a run: one table of mistakes, restarts and limits, through every adapter.

What an adapter lacks is listed with it. Nothing else may differ.
"""

import json
import logging
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fastagg
from fastagg.integrations import run as contract

Model = dict[str, torch.Tensor]
MODEL: Model = {"w": torch.arange(12.0).view(3, 4) / 8, "b": torch.zeros(5)}
FREE, ROUNDS = "FADAS", "FedAMS"


def trained(model: Model, client: int = 1) -> Model:
    return {name: array + client / 8 for name, array in model.items()}


class Adapter:
    """One framework's class. ``play`` makes it and lets clients answer until its model has stepped ``steps`` times.

    Attributes:
        names: the contract's settings that it has, each with its own name if that is another. The others are the
            framework's.
    """

    package, rounds = "", False
    names: str = ""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, monkeypatch

    @property
    def rule(self) -> str:
        return ROUNDS if self.rounds else FREE

    @property
    def words(self) -> dict[str, str]:
        pairs = (name.partition("=") for name in self.names.split())
        return {name: own or name for name, _, own in pairs}

    def named(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {self.words[name]: value for name, value in settings.items()}

    def enter(self, name: str) -> Path:
        """Become the app ``name``. Return its folder, where relative paths are."""
        raise NotImplementedError

    def make(self, rule: Any, settings: dict[str, Any], **more: Any) -> Any:
        raise NotImplementedError

    def play(self, made: Any, steps: int, clients: int = 3, model: Model = MODEL) -> fastagg.Server:
        raise NotImplementedError


class FlowerAsync(Adapter):
    package = "flwr"
    names = "checkpoint best stop concurrency max_in_a_row every=checkpoint_every unknown=checkpiont"
    limit = "num_rounds"

    def enter(self, name: str) -> Path:
        self.patch.setenv("FLWR_HOME", str(self.folder / "home"))
        folder = self.folder / "home" / "apps" / f"us.{name}.1.0.0.abcdef"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n[tool.flwr.app]\npublisher = "us"\n')
        self.patch.setattr(sys, "path", [str(folder), *(p for p in sys.path if "/apps/" not in p)])
        return folder

    def make(self, rule: Any, settings: dict[str, Any], **more: Any) -> Any:
        from fastagg.integrations import flower

        known = fastagg.registry.presets().get(rule, rule)
        if more.get("best") or more.get("stop"):  # which only the start knows whether anybody measures
            more = {**more, "max_in_a_row": 5}
        return getattr(flower, self.kind)(partial(known, **settings) if callable(known) else known, **self.more(more))

    kind = "AsyncStrategy"

    def more(self, more: dict[str, Any]) -> dict[str, Any]:
        return self.named(more)

    def play(self, made: Any, steps: int, clients: int = 3, model: Model = MODEL) -> fastagg.Server:
        from support import flower_apps

        from fastagg.integrations import flower

        grid = flower_apps.FakeGrid(flower_apps.trained, range(1, clients + 1))
        made.start(grid, flower.write(model), num_rounds=steps)
        server: fastagg.Server = made.server
        return server


class FlowerSync(FlowerAsync):
    rounds, kind = True, "SyncStrategy"
    names = "checkpoint best stop max_in_a_row unknown=checkpiont"

    def more(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1, **self.named(more)}


class FlowerClassic(FlowerSync):
    kind, limit = "ClassicStrategy", ""
    names = "checkpoint max_in_a_row unknown=checkpiont"

    def more(self, more: dict[str, Any]) -> dict[str, Any]:
        return self.named(more)

    def play(self, made: Any, steps: int, clients: int = 3, model: Model = MODEL) -> fastagg.Server:
        from flwr.common import Code, FitRes, Parameters, Status

        from fastagg.integrations.flower.records import from_npy, to_npy

        proxies = [SimpleNamespace(cid=str(n)) for n in range(1, clients + 1)]
        manager: Any = SimpleNamespace(num_available=lambda: clients, sample=lambda **_: proxies)
        first = made.initialize_parameters(manager)
        parameters = first or Parameters([to_npy(array)[2] for array in model.values()], "numpy.ndarray")
        for number in range(1, steps + 1):
            if made.server is not None and made.server.version >= steps:
                break
            made.configure_fit(number, parameters, manager)
            arrays = [from_npy(data) for data in parameters.tensors]
            moved = Parameters([to_npy(array + 0.5)[2] for array in arrays], "numpy.ndarray")
            results: Any = [(proxy, FitRes(Status(Code.OK, ""), moved, 9, {})) for proxy in proxies]
            parameters = made.aggregate_fit(number, results, [])[0] or parameters
            made.configure_evaluate(number, parameters, manager)
        server: fastagg.Server = made.server
        return server


class FlareAsync(Adapter):
    package, limit = "nvflare", "versions"
    names = "checkpoint best stop versions timeout end_timeout max_in_a_row every=save_every unknown=checkpiont"

    def enter(self, name: str) -> Path:
        workspace = self.folder / "poc" / "server"
        job = workspace / f"{name}-run"
        job.mkdir(parents=True, exist_ok=True)
        (job / "meta.json").write_text(json.dumps({"name": name}))
        held = SimpleNamespace(get_root_dir=lambda: str(workspace), get_run_dir=lambda _: str(job))
        engine = SimpleNamespace(get_workspace=lambda: held)
        self.context: Any = SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: "4711")
        return workspace / "fastagg" / name

    def make(self, rule: Any, settings: dict[str, Any], **more: Any) -> Any:
        from fastagg.integrations.nvflare import AsyncController

        return AsyncController(rule, settings, **self.named(more))

    def play(self, made: Any, steps: int, clients: int = 3, model: Model = MODEL) -> fastagg.Server:
        traffic, names = made._traffic, [f"site-{n}" for n in range(1, clients + 1)]
        made.versions = traffic.versions = steps
        traffic.run.log = traffic.run.warn = logging.getLogger("fastagg").info
        traffic.start({name: array.numpy() for name, array in model.items()}, self.context)
        while not traffic.is_over(names):
            sent = {name: traffic.send(name) for name in names}
            for name, task in sent.items():
                self.answer(traffic.take, name, task)
        traffic.end()
        server: fastagg.Server = traffic.server
        return server

    def answer(self, take: Any, name: str, task: Any) -> None:
        from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

        arrays = {key: array + 0.5 for key, array in task.params.items()}
        reply = FLModel(ParamsType.FULL, arrays, current_round=task.current_round, meta={"client_name": name})
        take(name, reply) if take.__name__ == "take" else take(reply)


class FlareSync(FlareAsync):
    rounds, limit = True, ""
    names = "checkpoint at_once unknown=checkpiont"

    def make(self, rule: Any, settings: dict[str, Any], **more: Any) -> Any:
        from fastagg.integrations.nvflare import Aggregator

        return Aggregator(rule, settings, **self.named(more))

    def play(self, made: Any, steps: int, clients: int = 3, model: Model = MODEL) -> fastagg.Server:
        from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

        traffic = made._traffic
        traffic.run.log = traffic.run.warn = logging.getLogger("fastagg").info
        made.system_panic, made.fl_ctx = lambda *_: None, self.context
        params: Any = {name: array.numpy() for name, array in model.items()}
        made.begin(params)
        for number in range(steps):
            if traffic.server.version >= steps:
                break
            task = FLModel(ParamsType.FULL, params, current_round=number)
            for n in range(1, clients + 1):
                made.sent(f"site-{n}", task)
            for n in range(1, clients + 1):
                self.answer(made.accept_model, f"site-{n}", task)
            params = made.aggregate_model().params
        server: fastagg.Server = traffic.server
        return server


class AppflAsync(Adapter):
    package, limit = "appfl", ""
    names = "checkpoint best num_clients max_in_a_row every=save_every unknown=checkpiont"

    def enter(self, name: str) -> Path:
        self.output = self.folder / name / "output"
        self.output.mkdir(parents=True, exist_ok=True)
        return self.output

    def make(self, rule: Any, settings: dict[str, Any], **more: Any) -> Any:
        from fastagg.integrations import appfl

        logger: Any = logging.getLogger("fastagg").getChild("appfl")
        logger.log_filepath = str(self.output / "log.txt")
        kind = appfl.SyncAggregator if self.rounds else appfl.Aggregator
        return kind(None, {"algorithm": rule, "settings": settings, **self.named(more)}, logger)

    def play(self, made: Any, steps: int, clients: int = 3, model: Model = MODEL) -> fastagg.Server:
        made._start(dict(model))
        names, turn = [f"c{n}" for n in range(clients)], made.server.version
        while made.server.version < steps and turn < 2 * steps:
            turn += 1
            if self.rounds:
                start = made.get_parameters()
                made.aggregate({name: trained(start, n) for n, name in enumerate(names)})
            else:
                for n, name in enumerate(names):
                    made.aggregate(name, trained(made.get_parameters(client_id=name), n + turn))
        server: fastagg.Server = made.server
        return server


class AppflSync(AppflAsync):
    rounds = True


ADAPTERS = [FlowerAsync, FlowerSync, FlowerClassic, FlareAsync, FlareSync, AppflAsync, AppflSync]


@pytest.fixture(params=ADAPTERS, ids=lambda kind: kind.__name__)
def adapter(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> Adapter:
    pytest.importorskip(request.param.package)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    monkeypatch.chdir(tmp_path)
    made: Adapter = request.param(tmp_path, monkeypatch)
    made.enter("ours")
    return made


NOBODY = {"stop": {"metric": "accuracy", "target": 0.9}, "best": "best.pt"}
# What is wrong, and the words of its refusal. A value is a setting by the contract's name; "rule" and "settings" are
# the rule's.
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no such rule": ({"rule": "FedBest"}, "expected one of fastagg's presets, as 'FADAS', got 'FedBest'"),
    "no rule": ({"rule": 3}, "expected one of fastagg's presets, as 'FADAS', got 3"),
    "another kind of rule": ({"rule": "other"}, "FedAMS is a synchronous rule|FADAS has none"),
    "a setting's name": ({"settings": {"lrr": 0.1}}, "unknown setting 'lrr'; did you mean 'lr'"),
    "a setting's value": ({"settings": {"lr": -1}}, "lr"),
    "an argument's name": ({"unknown": "s.pt"}, "did you mean 'checkpoint'"),
    "no path": ({"checkpoint": 3}, "checkpoint: expected a path"),
    "no such folder": ({"checkpoint": "no/such/s.pt"}, "checkpoint: no such folder: .*/no/such"),
    "a folder": ({"checkpoint": "."}, "checkpoint: nothing can be written to"),
    "best: no such folder": ({"best": {"file": "no/b.pt", "metric": "run/updates"}}, "best: no such folder: .*/no"),
    "best: nobody measures": ({"best": "best.pt"}, "best: nobody measures 'accuracy': .* an evaluation on the server"),
    "stop: nobody measures": ({"stop": NOBODY["stop"]}, "stop: nobody measures 'accuracy'"),
    "stop: clients do not": ({"stop": {"metric": "val/f1", "patience": 2}}, "stop: nobody measures 'val/f1'"),
    "every": ({"every": 0}, "every: expected a whole number >= 1, got 0"),
    "a text": ({"versions": "20"}, "versions: expected a whole number >= 1, got '20'; write 20 without quotes"),
    "timeout": ({"timeout": -1}, "timeout: expected a finite float32 number >= 0"),
    "end_timeout": ({"end_timeout": -1}, "end_timeout: expected a finite float32 number >= 0"),
    "concurrency": ({"concurrency": 0}, "concurrency: expected a whole number >= 1"),
    "num_clients": ({"num_clients": "3"}, "num_clients: expected a whole number >= 1"),
    "at_once": ({"at_once": 0}, "at_once: expected a whole number >= 1"),
    "max_in_a_row": ({"max_in_a_row": 0}, "max_in_a_row: expected a whole number >= 1"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_before_a_client_trains(name: str, adapter: Adapter) -> None:
    wrong, words = MISTAKES[name]
    more = {key: value for key, value in wrong.items() if key not in ("rule", "settings")}
    if not adapter.words.keys() >= more.keys():
        pytest.skip("it has no such setting")
    rule = wrong.get("rule", adapter.rule)
    rule = {"other": FREE if adapter.rounds else ROUNDS}.get(rule, rule)
    with pytest.raises(fastagg.ConfigError, match=words):
        made = adapter.make(rule, wrong.get("settings", {}), **more)
        try:
            adapter.play(made, 1)
        finally:
            server = getattr(made, "server", None) if adapter.package != "appfl" else made._server
            assert server is None or server.version == 0, "a client has trained"


def test_a_file_is_in_the_apps_folder_wherever_the_process_goes(
    adapter: Adapter, monkeypatch: Any, caplog: Any
) -> None:
    """A relative path is found again from another folder, and the log says where it is."""
    folder = adapter.enter("ours")
    server = adapter.play(adapter.make(adapter.rule, {"lr": 0.1}, checkpoint="s.pt"), 2)
    assert fastagg.load(folder / "s.pt").version == server.version >= 2
    assert f"checkpoint {folder / 's.pt'}" in caplog.text
    (adapter.folder / "elsewhere").mkdir()
    monkeypatch.chdir(adapter.folder / "elsewhere")
    caplog.clear()
    again = adapter.play(adapter.make(adapter.rule, {"lr": 0.1}, checkpoint="s.pt"), 4)
    assert again.version >= 4 and f"from {folder / 's.pt'}, version {server.version}" in caplog.text
    assert not list((adapter.folder / "elsewhere").iterdir())


def test_two_apps_do_not_share_a_file(adapter: Adapter) -> None:
    """A relative path is another file in another app. The other one's own file is refused by name, with both paths."""
    ours = adapter.enter("ours")
    adapter.play(adapter.make(adapter.rule, {"lr": 0.1}, checkpoint="s.pt"), 2)
    theirs = adapter.enter("theirs")
    assert ours != theirs
    assert adapter.play(adapter.make(adapter.rule, {"lr": 0.1}, checkpoint="s.pt"), 1).version >= 1
    before = (ours / "s.pt").read_bytes()
    if adapter.package == "appfl":  # which names no apps
        return
    with pytest.raises(fastagg.CheckpointError) as error:
        adapter.play(adapter.make(adapter.rule, {"lr": 0.1}, checkpoint=str(ours / "s.pt")), 3)
    said = str(error.value)
    assert f"{ours / 's.pt'} is of another app" in said and "ours" in said and str(theirs) in said
    assert "remove this file to begin anew" in said and (ours / "s.pt").read_bytes() == before


@pytest.mark.parametrize("what", ["rule", "model"])
def test_another_rules_or_models_checkpoint_is_refused(what: str, adapter: Adapter) -> None:
    folder = adapter.enter("ours")
    adapter.play(adapter.make(adapter.rule, {"lr": 0.1}, checkpoint="s.pt"), 2)
    rule = ("FedAdam" if adapter.rounds else "FedBuff") if what == "rule" else adapter.rule
    model = MODEL if what == "rule" or isinstance(adapter, FlowerClassic) else {"w": torch.zeros(2)}
    if model is MODEL and what == "model":
        pytest.skip("Flower's older API takes the checkpoint's model")
    with pytest.raises(fastagg.CheckpointError, match=f"^{folder / 's.pt'} .*is of another {what}.*remove this file"):
        adapter.play(adapter.make(rule, {"lr": 0.1}, checkpoint="s.pt"), 3, model=model)


def test_a_finished_run_says_so_and_how_to_begin_anew(adapter: Adapter, caplog: Any) -> None:
    """Also one that has gone further than this limit. Nothing is trained."""
    if not adapter.limit:  # type: ignore[attr-defined]
        pytest.skip("the framework counts")
    folder = adapter.enter("ours")
    first = adapter.play(adapter.make(adapter.rule, {"lr": 0.1}, checkpoint="s.pt"), 3)
    for steps in (3, 2):
        caplog.clear()
        again = adapter.play(adapter.make(adapter.rule, {"lr": 0.1}, checkpoint="s.pt"), steps)
        assert torch.equal(again.flat, first.flat) and again.version == first.version
        assert f"{folder / 's.pt'} is finished: {first.version} of {adapter.limit}={steps}" in caplog.text  # type: ignore[attr-defined]
        assert "to begin anew remove the file" in caplog.text


def test_a_round_too_small_for_its_rule_is_skipped(adapter: Adapter, caplog: Any) -> None:
    """Its updates never count, and ``max_in_a_row`` such rounds end the run."""
    if not adapter.rounds:
        pytest.skip("it has no rounds")
    made = adapter.make("Krum", {"num_malicious_nodes": 1}, checkpoint="s.pt")
    assert adapter.play(made, 2, clients=3).version == 0
    assert "this round is skipped, the 1. in a row: krum needs 5..1024 updates" in caplog.text
    assert "the 2. in a row" in caplog.text
    assert adapter.play(adapter.make("Krum", {"num_malicious_nodes": 1}, checkpoint="s.pt"), 3, clients=5).version >= 1
    if "max_in_a_row" in adapter.words:
        made = adapter.make("Krum", {"num_malicious_nodes": 1}, max_in_a_row=2)
        with pytest.raises(fastagg.RunFailed, match="2 rounds in a row were skipped; the last: krum needs 5"):
            adapter.play(made, 3, clients=3)


def test_what_is_waited_for_is_said(adapter: Adapter, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(contract, "MINUTE", 0.02)
    made = adapter.make(adapter.rule, {"lr": 0.1})
    adapter.play(made, 1)
    run = getattr(made, "_traffic", made).run
    run.session.ended.clear()
    contract._pulse(run.session)  # the run's own ended with it
    book = run.session.book
    book.put("k", "node 7", run.server.dispatch(7))
    until = time.monotonic() + 20
    while "waiting for" not in caplog.text and time.monotonic() < until:
        time.sleep(0.01)
    assert "nothing has come in 0.02 s; waiting for" in caplog.text and "node 7" in caplog.text
    run.session.close()


def test_a_client_counts_from_its_first_task(adapter: Adapter) -> None:
    """Also one that comes later, and where nobody has said how many there are."""
    made = adapter.make(adapter.rule, {"lr": 0.1})
    server = adapter.play(made, 2, clients=3)
    again = adapter.make(adapter.rule, {"lr": 0.1})
    assert adapter.play(again, 2, clients=4).version >= 2 <= server.version
    if adapter.package == "appfl" and not adapter.rounds:
        late = made.get_parameters()  # without a name, as APPFL's communicators ask
        updates = made.session.tally.updates
        made.aggregate("late", trained(late, 3))
        assert made.session.tally.updates == updates + 1 and "late" in made.book.known
