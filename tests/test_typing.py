"""What a type checker finds in a user's program: settings that do not exist, words that are misspelt, no more."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import fastagg

pytestmark = pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")

CONFIG = """
[mypy]
strict = true
python_version = 3.11
follow_imports = silent
[mypy-torch.*,numpy.*]
follow_imports = skip
"""
RIGHT = """
from dataclasses import dataclass
from functools import partial
from typing import Unpack

import fastagg

model: dict[str, object] = {}
server: fastagg.Server = fastagg.FADAS(model, lr=0.1, delay_rule="reciprocal", seed=3, weighting="samples")
fastagg.FADAS(model, clip_norm=1.0, buffers="keep", device="cuda", num_clients=3)
fastagg.FedAsync(model, policy="hinge", a=1.0, b=2)
fastagg.DelayAdaptiveASGD(model, lr=0.1, delay_threshold=3, stale="lipschitz", lipschitz=2.0)
fastagg.ACE(model, lr=0.1, num_clients=3, cache="int8", warmup="partial", mode="client", weighting="samples")
fastagg.ACED(model, lr=0.1, num_clients=3, freshness="gradient", device=None)
fastagg.CA2FL(model, num_clients=3, repeat="latest")
fastagg.FedAvg(model, clients_per_round=None, weighting="uniform", deterministic=True, num_clients=3)
fastagg.FedYogi(model, clients_per_round=3, moments="8bit")
partial(fastagg.FedBuff, buffer_size=3)(model)
kinds = server.receive("a", model, kind="delta").delay
fastagg.Server(model, fastagg.Buffer(3, kind="gradient"), fastagg.AMSGrad(moments="8bit"), weighting="samples")
fastagg.Server(model, staleness=fastagg.DelayAdaptive(3, "drop"))


def mine(params: object, *, lr: float, **server: Unpack[fastagg.ServerSettings]) -> fastagg.Server:
    return fastagg.FedBuff(params, lr=lr, **server)


mine(model, lr=1.0, seed=3, device="cpu")


@fastagg.register
@dataclass(frozen=True)
class Mine(fastagg.Staleness):
    half: int = 3

    def weight(self, delay: int) -> float:
        return float(2 ** (-delay / self.half))


fastagg.Server(model, staleness=Mine(half=4))
"""
WRONG = {
    "fastagg.FADAS(model, learning_rate=0.1)": 'Unexpected keyword argument "learning_rate" for "FADAS"',
    'fastagg.FADAS(model, delay_rule="scald")': 'Argument "delay_rule" to "FADAS" has incompatible type',
    "fastagg.FADAS(model, lr='fast')": 'Argument "lr" to "FADAS" has incompatible type "str"; expected "float"',
    "fastagg.FADAS(model, seeds=3)": 'did you mean "seed"',
    'fastagg.FADAS(model, weighting="sample")': 'Argument "weighting"',
    'fastagg.FADAS(model, moments="8bits")': 'Argument "moments"',
    "fastagg.FADAS(model, 0.1)": "Too many positional arguments",
    "fastagg.ASGD(model)": 'Missing named argument "lr"',
    'fastagg.FedBuff(model, buffers="means")': 'Argument "buffers"',
    'fastagg.FedAsync(model, policy="hinges")': 'Argument "policy"',
    'fastagg.DelayAdaptiveASGD(model, lr=1, delay_threshold=1, stale="dropped")': 'Argument "stale"',
    'fastagg.ACE(model, lr=1, num_clients=2, cache="int3")': 'Argument "cache"',
    'fastagg.ACE(model, lr=1, num_clients=2, warmup="none")': 'Argument "warmup"',
    'fastagg.ACE(model, lr=1, num_clients=2, mode="clients")': 'Argument "mode"',
    'fastagg.ACED(model, lr=1, num_clients=2, freshness="sent")': 'Argument "freshness"',
    'fastagg.CA2FL(model, num_clients=2, repeat="last")': 'Argument "repeat"',
    'fastagg.FedAvg(model, clients_per_round=2, weighting="sample")': 'Argument "weighting"',
    "fastagg.FedAvg(model)": 'Missing named argument "clients_per_round"',
    "fastagg.Server(model, seeds=3)": 'did you mean "seed"',
    'fastagg.AMSGrad(moments="8bits")': 'Argument "moments"',
    'fastagg.DelayAdaptive(3, "scald")': 'Argument 2 to "DelayAdaptive"',
    "fastagg.Server(model, optimizer=fastagg.Hinge())": 'Argument "optimizer"',
    "fastagg.register(int)": "register",
    "mine: fastagg.Optimizer = fastagg.FADAS(model)": "Incompatible types in assignment",
    'fastagg.Single(kind="detla")': 'Argument "kind"',
    'fastagg.FADAS(model).receive(0, model, kind="detla")': 'Argument "kind"',
    'fastagg.Server(model, weighting="sample")': 'Argument "weighting"',
    'fastagg.AllClients(3, cache="int3")': 'Argument "cache"',
    'fastagg.AllClients(3, warmup="none")': 'Argument "warmup"',
    'fastagg.AllClients(3, mode="client")': 'Argument "mode"',
    'fastagg.ActiveSet(3, freshness="sent")': 'Argument "freshness"',
    'fastagg.Calibrated(3, repeat="last")': 'Argument "repeat"',
}
HEAD = "import fastagg\n\nmodel: dict[str, object] = {}\n"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, list[str]]]:
    """What ``mypy --strict`` says, by file and line."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mypy.ini").write_text(CONFIG)
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(HEAD + "\n".join(WRONG) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "right.py", "wrong.py"],
        cwd=folder, env={"MYPYPATH": str(Path(fastagg.__file__).parents[1])}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    said: dict[str, dict[int, list[str]]] = {"right.py": {}, "wrong.py": {}}
    for file, line, words in re.findall(r"^([^:\n]+):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        said[file].setdefault(int(line), []).append(words)
    return said


def test_right_calls_pass(found: dict[str, dict[int, list[str]]]) -> None:
    lines = RIGHT.splitlines()
    assert {lines[line - 1]: words for line, words in found["right.py"].items()} == {}


@pytest.mark.parametrize(("number", "call"), list(enumerate(WRONG)))
def test_wrong_calls_are_found(found: dict[str, dict[int, list[str]]], number: int, call: str) -> None:
    (words,) = found["wrong.py"].get(HEAD.count("\n") + 1 + number, ["nothing"])
    assert WRONG[call] in words
