"""The server side of synchronous and asynchronous federated learning, at the speed of the memory.

A server's step is one pass over memory for most algorithms, on CPUs and CUDA devices. Start with a preset
(:func:`FADAS`, :func:`FedBuff`, :func:`FedAsync`), or assemble a :class:`Server` from parts.

torch is imported only when the first public name is used, so that ``fastagg --help`` takes little time.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastagg import _checks, registry
from fastagg.errors import MissingDependency

if TYPE_CHECKING:
    from fastagg.public import *  # noqa: F403
    from fastagg.public import __version__ as __version__


_TORCH = 2, 6  # the oldest version that works, as in pyproject.toml


def _check_torch() -> None:
    if find_spec("torch") is None:
        raise MissingDependency(f"fastagg needs torch {_TORCH[0]}.{_TORCH[1]} or newer, which is not installed")
    import torch

    there = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if there < _TORCH:
        raise MissingDependency(
            f"fastagg needs torch {_TORCH[0]}.{_TORCH[1]} or newer, and here is {torch.__version__}"
        )


def _import_everything() -> None:
    _check_torch()
    import fastagg.public as public

    names = [name for name in vars(public) if not name.startswith("_")]
    globals().update({name: getattr(public, name) for name in (*names, "__version__")}, __all__=names)


registry.fill = _import_everything

if not TYPE_CHECKING:  # a type checker that sees this function would accept every misspelt name

    def __getattr__(name: str) -> object:
        if not name.startswith("__") or name in ("__all__", "__version__"):
            # `from fastagg import ops` calls this function first. Then only `ops` may be imported, because a module of
            # the package may run this line while other modules are half imported.
            if find_spec(f"fastagg.{name}") is not None:
                return import_module(f"fastagg.{name}")
            _import_everything()
            if name in globals():
                return globals()[name]
        raise _checks.no_attribute(sys.modules[__name__], name)

    def __dir__() -> list[str]:
        _import_everything()
        return [*globals()["__all__"], "__version__"]
