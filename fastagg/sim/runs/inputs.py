"""Digests of a run's inputs besides its config: data, files, and the user's own code.

A run with other digests is another run. The digest of data covers the loaded samples, so other files with the same
samples have the same digest. The digest of a function covers its code, the values that it holds, and everything that
its code names: functions, classes, modules, global values, and files. The digest of a user's module covers its file,
and the files of the user's modules that it imports. An object that cannot be pickled, such as a lock, has no digest. A
run with such an input equals no other run. Importing this module imports no torch.
"""

from __future__ import annotations

import ast
import copyreg
import dis
import functools
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from itertools import accumulate
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from fastagg import registry
from fastagg.sim.data.files import beside_data, read_bytes
from fastagg.sim.data.sections import DataFunction
from fastagg.sim.recipes.config import ARGUMENTS, Config
from fastagg.sim.recipes.sections import ModelFunction

if TYPE_CHECKING:
    from fastagg.sim.data.federated import FederatedData

SCRIPT = ("__main__", "__mp_main__")  # the names of a script's module: in its process, and in processes that it started
NONE = "none: "  # the beginning of the text in place of a digest, if an input has no digest. The reason follows.
OF_DATA = ("data", "model")  # the keys of the digests that need the loaded data

# Code in these folders is not the user's own: Python's library, this package, and installed packages (_INSTALLED).
_OTHERS = (Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[2])
_INSTALLED = {"site-packages", "dist-packages"}
_ATOMS = (type(None), bool, int, float, complex, type(...), type(NotImplemented), bytes, bytearray)
# The attributes of a wrapper that hold the wrapped function or object.
_HELD: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"), functools.partialmethod: ("func", "args", "keywords"),
    functools.cached_property: ("func",), property: ("fget", "fset", "fdel"), staticmethod: ("__func__",),
    classmethod: ("__func__",), types.MethodType: ("__func__", "__self__"),
}  # fmt: skip
# Attributes of a class that are neither its code nor its values.
_NO_MEMBERS = {
    "__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__firstlineno__", "__static_attributes__",
    "__annotate_func__", "__annotations_cache__", "_abc_impl",
}  # fmt: skip


def digests(
    config: Config, load: Callable[[], FederatedData] | None, known: dict[object, dict[str, str]] | None = None
) -> dict[str, str]:
    """Return the digest of each input, by the input's key in a recipe. For an input without a digest, return NONE, the
    object and the reason.

    ``load`` returns the data, and is called only for a user's data or network. None: the digests OF_DATA are left out.
    ``known`` is a cache of the digests OF_DATA. Data and code must not have changed since the cache was filled.
    """
    algorithm = config.algorithm
    things: dict[str, object] = {key: config.function(key) for key in ARGUMENTS}
    things["algorithm.name"] = config.function("algorithm.name")
    things |= {f"algorithm.{key}": part for key, value in algorithm.keywords.items() if (part := _part(key, value))}
    for key, section in (("delay", config.delay), ("participation", config.participation)):
        path = beside_data(getattr(section, "file", None) or "", getattr(config.data, "dir", None))
        # None: no file is named, or the file is missing. A missing file is an error later, when the run is built.
        things[f"{key}.file"] = read_bytes(path) if path.is_file() else None
    objects = (id(config.held.get(key)) for key in ("data", "data.name", "model.name"))
    same = config.model_dump_json(include={"data", "model", "seed"}), *objects
    if load is not None and same not in (known or {}):
        if isinstance(config.data, DataFunction):
            things["data"] = load()
        if isinstance(config.model, ModelFunction):
            from fastagg.sim.runs.build import build_model

            module, function = build_model(config, load()), config.function("model.name")
            things["model"] = function, config.model.keywords, module.state_dict(), repr(module)
    inputs = {key: _digest(thing, key) for key, thing in things.items() if thing is not None}
    if known is not None and load is not None:
        inputs |= known.setdefault(same, {key: inputs[key] for key in OF_DATA if key in inputs})
    return inputs


def _part(kind: str, settings: object) -> type | None:
    """Return the user's own class that ``settings`` names, the value of an algorithm's keyword ``kind`` (such as
    "direction"). None: ``settings`` names no such class."""
    name = settings.get("name") if isinstance(settings, Mapping) else settings
    part = registry.parts(kind).get(name) if isinstance(name, str) else None
    return None if part is None or _is_others(part.__module__) else part


def _digest(thing: object, key: str) -> str:
    try:
        return _Reader().digest(thing, key).hex()
    except _NoDigest as reason:
        return f"{NONE}{reason}"


class _NoDigest(Exception):
    """Says which object has no digest, and why."""


def _file(module: str) -> Path | None:
    """Return the file of a module, which need not be imported. None: the module has no file."""
    spec = _spec(module)
    origin = getattr(sys.modules.get(module), "__file__", None) or (spec.origin if spec and spec.has_location else None)
    return None if origin is None else Path(origin).resolve()


def _spec(module: str) -> ModuleSpec | None:
    if module in sys.modules:
        return getattr(sys.modules[module], "__spec__", None)
    above = module.rpartition(".")[0]
    folders = (_spec(above) or ModuleSpec(above, None)).submodule_search_locations if above else None
    return None if above and folders is None else PathFinder.find_spec(module, folders)


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(other) for other in _OTHERS) or not _INSTALLED.isdisjoint(path.parts)


def _is_others(module: str) -> bool:
    """Return whether a module is not the user's own."""
    if module in SCRIPT:
        return False
    if (path := _file(module)) is not None:
        return _is_installed(path)
    above = module.rpartition(".")[0]
    return getattr(_spec(module), "origin", None) in ("built-in", "frozen") or (above != "" and _is_others(above))


def _is_named(thing: Any) -> bool:
    """Return whether a function or class can be found by its name in a module that is not the user's own."""
    name = getattr(thing, "__module__", None)
    if name is None or not _is_others(name):
        return False
    place = sys.modules.get(name)
    for part in thing.__qualname__.split("."):
        place = getattr(place, part, None)
    return place is thing


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and the code of the functions that are defined inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _with_packages(modules: Iterable[str]) -> set[str]:
    """Return the modules' names, and the names of the packages that contain them."""
    return {name for module in modules for name in accumulate(module.split("."), "{}.{}".format)}


class _Reader:
    """Computes the digest of an object, which covers the object's type and everything that the object holds. Equal
    objects of different types (1 and 1.0), or dicts of different orders, have different digests."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}  # by id: the object (which keeps the id in use), its digest
        self._open: dict[int, int] = {}  # by id: the depth of each object that is being read
        self._modules: dict[str, bytes] = {}

    def digest(self, thing: object, where: str) -> bytes:
        """Return the digest of ``thing``. _NoDigest: ``thing``, or an object in it, has no digest. ``where`` is the
        name of ``thing`` in this error."""
        if (number := id(thing)) in self._known:
            return self._known[number][1]
        if number in self._open:
            return b"inside %d" % self._open[number]
        self._open[number] = len(self._open)
        kind = type(thing)
        module = "" if kind.__module__ in SCRIPT else kind.__module__
        hashed = blake2b(f"{module}.{kind.__qualname__}".encode(), digest_size=16)
        try:
            for name, part in self._parts(thing):
                raw = part if isinstance(part, bytes) else self.digest(part, where + name)
                hashed.update(b"%d %d %b%b" % (len(name), len(raw), name.encode(), raw))
        except _NoDigest:
            raise
        except Exception as error:  # a class's own code for pickle may raise anything
            raise _NoDigest(f"{where}, a {type(thing).__name__}: {error}") from None
        finally:
            del self._open[number]
        self._known[number] = thing, hashed.digest()
        return hashed.digest()

    def _parts(self, thing: Any) -> Iterator[tuple[str, Any]]:
        """Yield the parts of an object with their names. A part is bytes or another object."""
        if isinstance(thing, _ATOMS):
            yield "", bytes(thing) if isinstance(thing, bytes | bytearray) else repr(thing).encode()
        elif isinstance(thing, str | PurePath):
            yield "", str(thing).encode(errors="surrogatepass")
            yield from self._named_file(str(thing), Path())
        elif (torch := sys.modules.get("torch")) is not None and isinstance(thing, torch.Tensor):
            dense = thing.detach().cpu().to_dense().contiguous()
            yield "", f"{dense.dtype} {tuple(dense.shape)} {thing.requires_grad}".encode()
            yield "", dense.reshape(-1).view(torch.uint8).numpy().tobytes()
        elif isinstance(thing, np.ndarray) and thing.dtype != object:
            yield "", f"{thing.dtype.str} {thing.shape}".encode()
            yield "", thing.tobytes()
        elif type(thing) in (list, tuple):
            yield from ((f"[{place}]", part) for place, part in enumerate(thing))
        elif type(thing) in (dict, types.MappingProxyType):
            for key, value in thing.items():
                yield "", self.digest(key, "a key")
                yield f"[{key!r:.40}]", value
        elif type(thing) in (set, frozenset):
            yield "", b"".join(sorted(self.digest(part, "a member") for part in thing))
        elif isinstance(thing, CodeType):
            yield "", f"{thing.co_names} {thing.co_varnames} {thing.co_argcount} {thing.co_kwonlyargcount}".encode()
            yield "", b"%d" % (thing.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
            yield "", thing.co_code + thing.co_exceptiontable
            yield "", thing.co_consts
        elif type(thing) in _HELD:
            yield from ((f".{name}", getattr(thing, name)) for name in _HELD[type(thing)])
        elif isinstance(thing, ModuleType):
            yield "", self._module(thing.__name__)
        elif isinstance(thing, FunctionType):
            yield from self._function(thing)
        elif isinstance(thing, type):
            yield from self._class(thing)
        elif isinstance(thing, functools._lru_cache_wrapper):
            yield "", thing.__wrapped__
        elif isinstance(thing, types.BuiltinFunctionType):
            yield "", f"{thing.__module__}.{thing.__qualname__}".encode()
            if not isinstance(thing.__self__, ModuleType | None):
                yield ".__self__", thing.__self__
        elif hasattr(thing, "__objclass__") and hasattr(thing, "__name__"):  # a method or slot of a type
            yield "", f"{thing.__objclass__.__qualname__}.{thing.__name__}".encode()
        else:
            yield from self._pickled(thing)

    def _pickled(self, thing: Any) -> Iterator[tuple[str, Any]]:
        """Yield the parts that a pickle of the object would hold. TypeError: the object cannot be pickled."""
        reduce = copyreg.dispatch_table.get(type(thing))
        made = thing.__reduce_ex__(4) if reduce is None else reduce(thing)
        if isinstance(made, str):
            yield "", f"{getattr(thing, '__module__', '')}.{made}".encode()
            return
        function, arguments, state, items, pairs = [*made, None, None, None][:5]
        yield "", function
        yield from (("", part) for part in arguments)
        for values in state if isinstance(state, tuple) and len(state) == 2 else (state,):  # a pair: __dict__ and slots
            if isinstance(values, dict):
                yield from ((f".{key}", value) for key, value in values.items())
            else:
                yield ".state", values
        yield from ((f"[{place}]", part) for place, part in enumerate(items or ()))
        for key, value in pairs or ():
            yield "", self.digest(key, "a key")
            yield f"[{key!r:.40}]", value

    def _function(self, thing: FunctionType) -> Iterator[tuple[str, Any]]:
        file = Path(thing.__code__.co_filename)
        others = file.name.startswith("<frozen") or (file.is_file() and _is_installed(file.resolve()))
        yield "", f"{thing.__module__ if others else ''} {thing.__qualname__}".encode()
        if others and _is_named(thing):
            return
        yield "", thing.__code__
        for name in ("__defaults__", "__kwdefaults__"):
            yield f".{name}", getattr(thing, name)
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            if cell != types.CellType():  # an empty cell has no object yet
                yield f".{name}", cell.cell_contents
        yield from ((f".{name}", value) for name, value in vars(thing).items())
        if others:
            return
        if thing.__module__ not in (None, *SCRIPT):
            yield "", self._module(thing.__module__)
        names: dict[str, set[str]] = {"global": set(), "import": set(), "other": set()}
        for code in _codes(thing.__code__):
            for part in code.co_consts:
                yield from self._named_file(part, file.parent) if isinstance(part, str) else ()
            for step in dis.get_instructions(code):
                kind = "import" if step.opname == "IMPORT_NAME" else "other"
                kind = "global" if "GLOBAL" in step.opname or step.opname == "LOAD_NAME" else kind
                names[kind] |= {step.argval} if isinstance(step.argval, str) else set()
        values = {name: thing.__globals__[name] for name in sorted(names["global"] & thing.__globals__.keys())}
        for name in sorted(_with_packages(names["import"])):
            yield "", self._module(name)
            values |= {name: sys.modules[name]} if name in sys.modules else {}
        for name, value in values.items():
            yield f".{name}", value
            if isinstance(value, ModuleType) and not _is_others(value.__name__):
                held = sorted(names["other"] & vars(value).keys())  # a program may have set these attributes
                yield from ((f".{name}.{attribute}", vars(value)[attribute]) for attribute in held)

    def _class(self, thing: type) -> Iterator[tuple[str, Any]]:
        yield "", f"{thing.__module__ if _is_named(thing) else ''} {thing.__qualname__}".encode()
        if _is_named(thing):
            return
        yield "", type(thing)
        yield "", thing.__bases__
        if thing.__module__ not in SCRIPT:
            yield "", self._module(thing.__module__)
        for name, part in vars(thing).items():
            if name not in _NO_MEMBERS:
                yield f".{name}", part

    def _named_file(self, name: str, folder: Path) -> Iterator[tuple[str, bytes]]:
        """Yield the digests of the files with this name, in the current folder and in ``folder``."""
        if 0 < len(name) < 256 and name.isprintable():
            for path in {Path(name): 0, folder / name: 0}:
                if os.path.isfile(path):  # Path.is_file would raise for a text that cannot be a file's name
                    yield f".{name}", blake2b(path.read_bytes()).digest()

    def _module(self, name: str) -> bytes:
        """Return the digest of a module. It covers the module's name. For a user's module, it also covers the sources
        of the module and of the user's modules that it imports, and the files that these sources name."""
        files: dict[str, bytes] = {}
        if name not in self._modules:
            self._read(name, files)
            raw = b"".join(b"%d %d %b%b" % (len(n), len(files[n]), n.encode(), files[n]) for n in sorted(files))
            self._modules[name] = blake2b(name.encode() + raw, digest_size=16).digest()
        return self._modules[name]

    def _read(self, name: str, files: dict[str, bytes]) -> None:
        path = None if name in files else _file(name)
        if path is None or _is_installed(path) or path.suffix != ".py":
            return
        files[name] = path.read_bytes()
        spec = _spec(name)
        package = name if spec is not None and spec.submodule_search_locations else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(files[name])):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                above = ".".join(package.split(".")[: 1 - node.level or None]) if node.level else ""
                base = ".".join(filter(None, (above, node.module)))
                names = [base, *(f"{base}.{part_name}" for part_name in names)]
            for part in _with_packages(names):
                self._read(part, files)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for file, raw in self._named_file(node.value, path.parent):
                    files[f"{name} {file}"] = raw
