"""What a run reads beside its config, as digests: data, files of delays, and code of the user's own.

They are part of a run's identity. Data counts as what is loaded, so other files of the same samples change nothing. A
function counts as the files of its module and of the user's modules that this one imports, one of a script or notebook
as its own source, and both as the values that they hold.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import sys
import sysconfig
from contextlib import suppress
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fastagg.sim.clients.own import NAMES, chosen
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.files import read_bytes
from fastagg.sim.data.sections import Digits, Synthetic
from fastagg.sim.one import build
from fastagg.sim.recipes.config import Config

# Whose code is not the user's own: Python's, this package's, and that of installed packages, by their folders' names.
_OTHERS = (Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[2])
_INSTALLED = {"site-packages", "dist-packages"}


def digests(config: Config, data: FederatedData) -> dict[str, str]:
    """Return the digest of each input by its key in a recipe."""
    own = chosen(config)
    found: dict[str, object] = {f"own.{name}": getattr(own, name) for name in NAMES}
    known = ":" not in (name := config.algorithm.name) and name != "given"
    found["algorithm.name"] = None if known else build.find_preset(config)
    for key, section in (("delay", config.delay), ("participation", config.participation)):
        path = build.file_of(getattr(section, "file", None) or "", config)
        found[f"{key}.file"] = read_bytes(path) if path.is_file() else None  # the schedule says what is wrong with it
    if not isinstance(config.data, Digits | Synthetic):
        found["data"] = data
    if config.unlabelled.path is not None or config.unlabelled.data is not None:
        found["unlabelled"] = build.split_unlabelled(config, data)[1]
    if data.text is not None or config.model.name in ("function", "given"):
        module = build.build_module(config, data, torch.device("cpu"))
        kinds = sorted({type(part) for part in module.modules()}, key=lambda kind: kind.__qualname__)
        found["model"] = repr(module), module.state_dict(), kinds
    return {key: digest for key, value in found.items() if value is not None and (digest := _digest(value))}


def _digest(thing: object) -> str:
    """Return a digest of an object and of all that it holds; "" if it holds what cannot be read, such as a lock."""
    hashed = blake2b(digest_size=16)
    with suppress(pickle.PicklingError, TypeError, ValueError, AttributeError, RecursionError):
        _Teller(SimpleNamespace(write=hashed.update)).dump(thing)
        return hashed.hexdigest()
    return ""


class _Teller(pickle.Pickler):
    """Writes the bytes of tensors, and the user's code as its source. All else is as in any pickle."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=5)
        self.fast = True  # equal objects have the same bytes, also where one stands for two
        self._seen: set[int] = set()

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Tensor):
            dense = thing.detach().cpu().to_dense().contiguous()
            return tuple, (
                (str(dense.dtype), tuple(dense.shape), dense.reshape(-1).view(torch.uint8).numpy().tobytes()),
            )
        if not isinstance(thing, FunctionType | type | ModuleType):
            return NotImplemented
        if (code := _code(thing)) is None and not isinstance(thing, ModuleType):
            return NotImplemented
        again = id(thing) in self._seen
        self._seen.add(id(thing))
        return tuple, ((thing.__name__, None if again else code),)


def _code(thing: FunctionType | type | ModuleType) -> list[object] | None:
    """Return the source of a function, class or module, and the values that it uses; None if it is not the user's."""
    module = thing if isinstance(thing, ModuleType) else sys.modules.get(thing.__module__)
    script = getattr(module, "__name__", "__main__") == "__main__"
    files: dict[str, bytes] = {}
    if not script and module is not None:
        _read(module, files)
    parts: list[object] = [sorted(files.items())]
    if script and not isinstance(thing, ModuleType):
        with suppress(OSError, TypeError):
            parts.append(inspect.getsource(thing))
        if isinstance(thing, type):
            parts += [thing.__bases__, [part for part in vars(thing).values() if isinstance(part, FunctionType)]]
    if isinstance(thing, FunctionType):
        parts += [thing.__defaults__, thing.__kwdefaults__]
        with suppress(ValueError):  # a name is not yet bound
            parts.append([cell.cell_contents for cell in thing.__closure__ or ()])
        used = _names(thing.__code__) if script else set()
        parts.append([(name, thing.__globals__[name]) for name in sorted(used & thing.__globals__.keys())])
    return parts if script or files or (isinstance(thing, FunctionType) and thing.__closure__) else None


def _names(code: CodeType) -> set[str]:
    """Return all names in a function's code, and in that of the functions inside it."""
    return set(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))


def _read(module: ModuleType, files: dict[str, bytes]) -> None:
    """Read the source of a module, and of the user's own that it imports, into ``files`` by the modules' names."""
    path = Path(getattr(module, "__file__", None) or "").resolve()
    others = any(path.is_relative_to(other) for other in _OTHERS) or not _INSTALLED.isdisjoint(path.parts)
    if others or module.__name__ in files or path.suffix != ".py":
        return
    files[module.__name__] = path.read_bytes()
    for node in ast.walk(ast.parse(files[module.__name__])):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            package = ".".join((module.__package__ or "").split(".")[: 1 - node.level or None]) if node.level else ""
            base = ".".join(filter(None, (package, node.module)))
            names = [f"{base}.{name}" for name in names]
        for name in {part for whole in names for part in accumulate(whole.split("."), "{}.{}".format)}:
            if name in sys.modules:
                _read(sys.modules[name], files)
