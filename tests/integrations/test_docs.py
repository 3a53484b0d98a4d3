"""Every Python block of docs/integrations runs as it stands there, where its framework is installed.

What a block takes for granted (the reader's model, app, message) is set up before it. The home-made server has tests of
its own (tests/docs/test_own_server.py).
"""

import ast
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import fastagg
from fastagg.integrations.goals import Settings

FOLDER = Path(__file__).parents[2] / "docs" / "integrations"
PAGES = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
BLOCKS = [
    block for text in PAGES.values() for block in re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
]

FLOWER = """
import torch
from support.flower_apps import FakeGrid, trained
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

app, model = ServerApp(), torch.nn.Linear(3, 2)
seen = []


def evaluate(version, arrays):
    seen.append(version)
"""
GOALS = """
from functools import partial

import fastagg
from fastagg.integrations import flower
"""
PRIVATE = (
    GOALS
    + """
import numpy as np
from support.flower_apps import CollectingGrid, node
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

arrays, grid = ArrayRecord({"w": Array(np.zeros(3, np.float32))}), CollectingGrid(node, [1, 2, 3])
"""
)
GRADIENTS = """
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
import numpy as np
from flwr.app import Array

gradients, metrics = {"w": Array(np.zeros(2))}, MetricRecord({"num-examples": 3})
"""
MODEL = "import torch\nnet = torch.nn.Linear(3, 2)\n"
FLARE = """
from fastagg.integrations.nvflare import AsyncController
"""
TRAINER = """
from types import SimpleNamespace

import torch

added = []
trainer = SimpleNamespace(add_callback=added.append, model=torch.nn.Linear(3, 2))
"""
WORKER = """
from types import SimpleNamespace
client = SimpleNamespace(exchange=lambda update: 0 if update is None else 7 + update)
train = lambda model: model + 1
"""
PFL = MODEL + "net.loss = net.metrics = lambda *_: None  # as pfl asks of a module\n"

POISONED = """
import torch
from fastagg.integrations import preset

server = preset("{name}")(torch.zeros(8), size=5)
for client in range(5):
    task = server.dispatch(client)
    server.receive_model(task, torch.full((8,), -1e6 if client == 2 else 1.0))
assert server.version == 1 and torch.equal(server.flat, torch.ones(8)), server.flat
"""

# What a block is known by: the framework it needs, what comes before it, and what shows that it worked.
KNOWN: dict[str, tuple[str, str, str]] = {
    "@app.main()": ("flwr", FLOWER, "main(FakeGrid(trained, [1, 2, 3]), None); assert max(seen) == 200"),
    "evaluate_clients_every=10": ("flwr", GOALS, "assert strategy.run.settings.best.metric == 'clients/accuracy'"),
    "DifferentialPrivacy": ("flwr", PRIVATE, "assert strategy.server.version == 50"),
    "trackers.made(": ("tensorboard", "", "assert len(drawn) == 1"),
    '"fastagg-kind": "gradient"': ("flwr", GRADIENTS, "assert content['config'] == note and content['arrays']"),
    "FedAvgRecipe(": ("nvflare", MODEL, "assert recipe.aggregator is not None"),
    "job.to_server(": ("nvflare", MODEL, "assert job"),
    "controller = AsyncController(": ("nvflare", FLARE, "assert controller.stop and controller.best['file']"),
    "import Aggregator, SyncAggregator": ("appfl", "", "assert Aggregator and SyncAggregator"),
    "client.exchange(None)": ("torch", WORKER, "assert model == 8"),
    "trainer_callback(": ("transformers", TRAINER, "assert hasattr(added[0], 'on_step_end')"),
    "CentralOptimizer(": ("pfl", PFL, "assert model"),
}


def test_a_framework_s_page_is_short() -> None:
    names = "index", "flower", "nvflare", "appfl", "pfl", "own", "coming-from", "runs"
    assert set(PAGES) == {f"{name}.md" for name in names}
    assert {name: len(text.split()) for name, text in PAGES.items() if len(text.split()) > 900} == {}


def test_flares_controller_takes_every_setting_of_a_run_unless_the_table_says_where_it_is() -> None:
    names = {field.name for field in dataclasses.fields(Settings)}
    table = PAGES["index.md"].partition("## Settings of a run")[2]
    rows = re.findall(r"^\| (`.*?) \|.*\|(.*)\|$", table, re.MULTILINE)
    places = {name: place.strip() for cell, place in rows for name in re.findall(r"`(\w+)[`=]", cell)}
    source = Path(fastagg.__file__).parent / "integrations" / "nvflare" / "asynchronous.py"  # FLARE may be missing
    functions = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.FunctionDef)]
    arguments = {argument.arg for node in functions if node.name == "__init__" for argument in node.args.args}
    elsewhere = {name for name, place in places.items() if "FLARE" in place or place == "`AsyncStrategy`"}
    assert names - arguments == elsewhere


def test_every_block_is_known() -> None:
    assert [sum(words in block for words in KNOWN) for block in BLOCKS] == [1] * len(BLOCKS)
    assert len(BLOCKS) == len(KNOWN)


def test_the_recipe_against_a_poisoner(tmp_path: Path) -> None:
    """`rules.py` of the two pages, named as in APPFL's YAML and in FLARE's controller, in a process of its own."""
    rules = (FOLDER.parent / "rules.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", rules, re.DOTALL | re.MULTILINE)
    imports = blocks[0].split("@fastagg.register")[0]
    rule = next(block for block in blocks if "class Median" in block).split("\n\n\nserver =")[0]
    made, name = (re.findall(words, PAGES["index.md"])[0] for words in (r"`(def median.*?)`", r'"(rules:median)"'))
    (tmp_path / "rules.py").write_text(f"{imports}{rule}\n\n\n{made}\n")
    (tmp_path / "run.py").write_text(POISONED.format(name=name))
    where = {**os.environ, "PYTHONPATH": str(Path(fastagg.__file__).parents[1])}
    subprocess.run([sys.executable, "run.py"], cwd=tmp_path, env=where, check=True)


IN_FLARE = """
from model import Digits

net = Digits()
{block}
if __name__ == "__main__":
    {run}
"""
FLARES = {  # what runs a block of FLARE's page, whose reader has a model and the example's client.py
    "FedAvgRecipe(": "from nvflare.recipe import SimEnv; recipe.execute(SimEnv(num_clients=4, workspace_root='there'))",
    "job.to_server(": "from nvflare.job_config.script_runner import ScriptRunner; "
    "job.to_clients(ScriptRunner(script='client.py')); job.simulator_run('there', n_clients=4)",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", FLARES)
def test_a_job_of_flares_page_runs_twice(words: str, tmp_path: Path) -> None:
    if find_spec("nvflare") is None:
        pytest.skip("nvflare is not installed")
    for name in ("client.py", "model.py"):
        shutil.copy(FOLDER.parents[1] / "examples" / "nvflare" / name, tmp_path)
    block = next(block for block in BLOCKS if words in block)
    (tmp_path / "page.py").write_text(IN_FLARE.format(block=block, run=FLARES[words]))
    where = {**os.environ, "PYTHONPATH": f"{Path(fastagg.__file__).parents[1]}:{tmp_path}", "OMP_NUM_THREADS": "1"}
    for again in (False, True):
        done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=where, capture_output=True, text=True)
        printed = done.stdout + done.stderr
        assert done.returncode == 0 and not re.findall("(?m)^.* ERROR .*$", printed), printed[-3000:]
        assert next(tmp_path.rglob("FL_global_model.pt"), None) is not None
        if "server.pt" in block:  # beside the workspace, which the second start deletes
            kept = tmp_path / "there.fastagg" / "server.pt"
            assert f"checkpoint {kept}" in printed and fastagg.load(kept).version == 20
            assert (f"{kept} is finished: 20 of versions=20, and nothing is trained" in printed) == again


def test_appfls_page_twice_in_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As APPFL's server reads it: the file that it names, the class in it, and its settings, none left out. Each folder
    has a run of its own, which a second start goes on with."""
    if find_spec("appfl") is None:
        pytest.skip("appfl is not installed")
    from appfl.misc.utils import create_instance_from_file
    from omegaconf import OmegaConf

    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGES["appfl.md"], re.DOTALL | re.MULTILINE)
    config = OmegaConf.create(block).server_configs
    if find_spec("tensorboard") is None:
        config.aggregator_kwargs.pop("trackers")
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("aggregator.py").write_text(
            next(block for block in BLOCKS if "import Aggregator, SyncAggregator" in block)
        )
        Path("model.py").write_text(
            "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"
        )
        for start in (0, 1):
            made = create_instance_from_file(
                config.aggregator_path, config.aggregator, aggregator_configs=config.aggregator_kwargs
            )
            assert type(made.server.optimizer).__name__ == "AMSGrad" and made.scheduler.__name__ == config.scheduler
            assert made.server.version == start
            sent = made.get_parameters(client_id="a")
            for turn in range(4):
                sent = made.aggregate("a", {name: value + 1.0 + turn for name, value in sent.items()})
            assert fastagg.load(folder / "server.pt").version == made.server.version == start + 1


@pytest.mark.parametrize("words", KNOWN)
def test_a_block_runs(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, before, after = KNOWN[words]
    if package and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("")
    block = next(block for block in BLOCKS if words in block)
    scope: dict[str, Any] = {"__name__": "block"}
    for code in (before, block, after):
        exec(compile(code, "docs/integrations", "exec"), scope)
