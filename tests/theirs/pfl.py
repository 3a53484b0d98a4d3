"""pfl's model of torch, with fastagg's ``CentralOptimizer`` wherever pfl's tests have one of torch."""

import sys
from pathlib import Path
from typing import Any

import torch
from pfl.model import pytorch

import fastagg
from fastagg.integrations.pfl import CentralOptimizer

REPOSITORY, PACKAGE, TAG = "apple/pfl-research", "pfl", "v{}"
FOLDERS = ("tests",)
FILES = (
    *(f"tests/model/test_{name}.py" for name in ("model", "pytorch_model", "ema")),
    *(f"tests/algorithm/test_{name}.py" for name in ("fedavg", "fedprox", "reptile", "scaffold")),
)


class PyTorchModel(pytorch.PyTorchModel):
    """pfl's class, whose central optimizer is fastagg's."""

    @property
    def _central_optimizer(self) -> CentralOptimizer:
        return self._ours

    @_central_optimizer.setter
    def _central_optimizer(self, theirs: Any) -> None:
        lr = theirs.param_groups[0]["lr"]
        rules = {torch.optim.SGD: fastagg.SGD(lr), torch.optim.Adam: fastagg.Adam(lr, (0.9, 0.999), 1e-8)}
        self._ours = CentralOptimizer(self._model, rules[type(theirs)])


def put_in_place(folder: Path) -> None:
    """Replace pfl's class."""
    sys.path.insert(0, str(folder))
    pytorch.PyTorchModel = PyTorchModel
