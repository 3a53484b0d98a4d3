"""Flower's strategies, of both APIs. A stand-in takes the settings of Flower's class of the same name.

Flower's tests write ``current_arrays`` where Flower's server calls ``configure_train``, and their replies do not say
which node they are from. Nothing else is adapted.
"""

import importlib
import itertools
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord
from integrations.own_median import Median

import fastagg
from fastagg.integrations.flower import ClassicStrategy, SyncStrategy, adam_rate
from fastagg.integrations.run import FLOWER, Rule

REPOSITORY, PACKAGE, TAG = "adap/flower", "flwr", "v{}"
ROOT = "framework/py"
FOLDERS = ("framework/py/flwr/serverapp/strategy", "framework/py/flwr/server/strategy")
FILES = (
    *(f"framework/py/flwr/serverapp/strategy/{name}_test.py" for name in ("fedopt", "fedavgm", "fedmedian")),
    *(f"framework/py/flwr/server/strategy/{name}_test.py" for name in ("fedavg", "fedavgm", "fedadagrad", "fedmedian")),
)


def three(model: Any, **_: Any) -> fastagg.Server:
    """Return a server that steps along the median of three updates: as many as Flower's tests send."""
    return fastagg.Server(model, Median(3), fastagg.SGD(1.0))


class Given:
    """The settings that Flower's classes have, as those of a preset. ``tau`` is what Flower's class has by default."""

    name = "FedAvg"
    settings: Mapping[str, object] = {}

    def bound(self, given: dict[str, Any]) -> dict[str, Any]:
        """Take the rule's settings out of ``given``. Return how ours are called."""
        names = {"eta": "lr", "server_learning_rate": "lr", "server_momentum": "beta", "tau": "eps"}
        theirs = {**self.settings, **{name: given.pop(name) for name in list(given) if name in self.settings}}
        ours = {names[name]: value for name, value in theirs.items() if name in names}
        if "beta_1" in theirs:
            ours["betas"] = (theirs["beta_1"], theirs["beta_2"])
        return ours

    def make(self, ours: dict[str, Any]) -> Any:
        """Return what a strategy takes as its server."""
        return three if self.name == "Median" else partial(getattr(fastagg, self.name), **ours)

    def rate(self, ours: dict[str, Any]) -> Any:
        """Return the rate by round: Flower's FedAdam has one."""
        return adam_rate(ours["lr"], ours["betas"]) if self.name == "FedAdam" else None


class OfMessages(Given, SyncStrategy):
    """A strategy of the API with messages."""

    def __init__(self, **given: Any) -> None:
        self._ours = self.bound(given)
        SyncStrategy.__init__(self, self.make(self._ours), lr=self.rate(self._ours), **given)
        self._first: ArrayRecord | None = None

    @property
    def current_arrays(self) -> Any:
        return self._first

    @current_arrays.setter
    def current_arrays(self, arrays: Mapping[str, Any]) -> None:
        record = {name: array if isinstance(array, Array) else Array(array) for name, array in arrays.items()}
        self._first = ArrayRecord(record)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("server_learning_rate", "server_momentum"):  # Flower's tests set them on the strategy
            self._ours[{"server_learning_rate": "lr", "server_momentum": "beta"}[name]] = value
            self.run.rule = Rule(FLOWER, self.make(self._ours), rounds=True)
        else:
            super().__setattr__(name, value)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if self.server is None and self._first is not None:
            self.resumed(self._first)
        return super().aggregate_train(server_round, replies)


class Classic(Given, ClassicStrategy):
    """A strategy of the older API."""

    def __init__(self, **given: Any) -> None:
        given.pop("inplace", None)
        ours = self.bound(given)
        ClassicStrategy.__init__(self, self.make(ours), lr=self.rate(ours), **given)
        if self.initial_parameters is not None:
            self.initialize_parameters(None)  # as Flower's server does before the first round

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        for i, (proxy, _) in enumerate(results):
            proxy.cid = str(i)  # some tests' clients are mocks without an id
        return super().aggregate_fit(server_round, results, failures)


def _made(tau: float, base: type) -> dict[str, type]:
    momentum = {"server_learning_rate": 1.0, "server_momentum": 0.0}
    settings: dict[str, dict[str, object]] = {
        "FedAvg": {}, "FedProx": {}, "FedMedian": {}, "FedAvgM": momentum,
        "FedAdagrad": {"eta": 0.1, "eta_l": 0.1, "tau": tau},
        "FedAdam": {"eta": 0.1, "eta_l": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": tau},
        "FedYogi": {"eta": 0.01, "eta_l": 0.0316, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
    }  # fmt: skip
    names = {"FedMedian": "Median"}
    return {name: type(name, (base,), {"name": names.get(name, name), "settings": settings[name]}) for name in settings}


def put_in_place(folder: Path) -> None:
    """Replace Flower's classes, and let Python find its tests in ``folder``."""
    for api, made in (("serverapp", _made(1e-3, OfMessages)), ("server", _made(1e-9, Classic))):
        package = importlib.import_module(f"flwr.{api}.strategy")
        for name, stand_in in made.items():
            setattr(sys.modules[f"{package.__name__}.{name.lower()}"], name, stand_in)
            setattr(package, name, stand_in)
        for one in (importlib.import_module(f"flwr.{api}"), package):
            one.__path__.append(str(folder / ROOT / one.__name__.replace(".", "/")))
    tools: Any = importlib.import_module("flwr.serverapp.strategy.strategy_utils_test")
    mocked, nodes = tools.create_mock_reply, itertools.count(1)

    def reply(*arguments: Any, **named: Any) -> Any:
        message = mocked(*arguments, **named)
        message.metadata.src_node_id = next(nodes)
        return message

    tools.create_mock_reply = reply
