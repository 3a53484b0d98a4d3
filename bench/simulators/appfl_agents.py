"""APPFL's agents, where torchvision cannot be imported; and a program that needs them: python appfl_agents.py FILE."""

from __future__ import annotations

import gc
import importlib.machinery
import runpy
import sys
from typing import Any
from unittest.mock import MagicMock

import torch


def agents() -> Any:
    """APPFL's agents. They import torchvision, whose wheel asks for CUDA's torch, without using any of it here."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("", ".models", ".transforms", ".datasets", ".datasets.utils"):
            sys.modules[f"torchvision{name}"] = stub = MagicMock()
            stub.__spec__, stub.__path__ = importlib.machinery.ModuleSpec(f"torchvision{name}", None), []
    import appfl.agent

    return appfl.agent


if __name__ == "__main__":
    agents()
    torch.set_num_threads(1)
    gc.freeze()  # APPFL collects garbage five times per update, over all that torch has imported
    sys.path.insert(0, ".")
    runpy.run_path(sys.argv[1], run_name="__main__")
