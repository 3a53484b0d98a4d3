"""Converts a model to one flat vector and back. Servers, leaves and adapters use this module.

Trainable parameters are in one vector (fp32, or the server's ``model_dtype``), one after the other, in the model's own
order. Buffers (BatchNorm's running statistics and counters) are kept separately: an optimizer does not step them, and
norms, caches and moments do not include them. Frozen parameters are kept, but never change.

A module declares its parameters and its registered buffers. Other arrays in its state, such as the scales of packed
weights, never change. A state_dict or a list declares nothing. In these, BatchNorm's buffers are recognised by their
names, and other floating-point arrays are parameters. In all forms, masks never change (:func:`_is_mask`), and integer
arrays change only as counters, whose names end in ``num_batches_tracked``. The setting ``buffers`` overrides these
rules. A warning names the arrays that never change although neither the module nor ``buffers`` says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fastagg import _checks, ops
from fastagg._types import Arrays, State
from fastagg.errors import ConfigError, DTypeMismatch, NonFiniteUpdate, ShapeMismatch
from fastagg.model.statistics import Bounds, check_statistics, is_count, is_variance
from fastagg.storage import memory
from fastagg.storage.encoded import Encoded
from fastagg.storage.pieces import Pieces, as_array, as_pieces, as_tensor, is_plain_fp32, plain_pieces

Form = Literal["module", "state_dict", "list", "flat"]
# counter: an integer buffer. alias: a second name of a tied parameter. constant: an array that never changes.
Role = Literal["parameter", "buffer", "counter", "constant", "alias"]

# A state_dict does not mark buffers. Arrays whose names end so are BatchNorm's running statistics.
_RUNNING = ("running_mean", "running_var")
# A warning names the parameters of a state_dict whose names look like those of buffers.
_LIKE_BUFFERS = re.compile(
    r"(^|[._])((running|moving|ema|avg|cluster_size|queue|shadow|usage)([._]|$)|(mean|std|absmax|codebook|inv_freq)$)"
)

_AT_ONCE = 2**18  # a model with fewer parameters is subtracted in one call
_MODEL = "an nn.Module, a state_dict, a list of arrays or a 1-D array"

Tied = Sequence[Sequence[str | int]]


@dataclass(frozen=True)
class Entry:
    """One named array of the model: its place and its role."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # the name of the type in torch, such as "float32"
    role: Role
    # The place of the first element in the vector of the role (parameter, buffer), or the place of the array in the
    # list of the role (counter, constant). For an alias: the parameter's place.
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class ParsedUpdate(NamedTuple):
    """An update, divided by role. Buffers and counters are the client's own values, not differences. None: the update
    has no buffers or no counters."""

    parameters: Pieces
    buffers: Pieces | None
    counters: list[Tensor] | None


class ModelState(NamedTuple):
    """A model, divided by role."""

    flat: Tensor  # [d] fp32, or the server's model_dtype
    buffers: Tensor  # [number of buffer elements] fp32
    counters: list[Tensor]


class SavedModel(NamedTuple):
    """The ``params`` of a server that continues a saved one. ``key``: the key of private noise. None: a new key."""

    layout: Layout
    state: State
    key: bytes | None = None


@dataclass(frozen=True)
class Part:
    """A part of a model that :func:`fastagg.parts` has cut. A server takes it as its ``params``.

    Attributes:
        layout: the layout of this part only.
        arrays: the part's arrays, in the form of the whole model. None: there is only a layout.
        by_part: whether the part's server may have a rule that needs the norm, the cosine or the distances of whole
            updates. The server then uses only this part of each update.
        is_whole: whether the model has no other part.
    """

    layout: Layout
    arrays: Arrays
    by_part: bool
    is_whole: bool = False

    def fitting(self, buffers: Mapping[str, str] | None, tied: Tied | None) -> Layout:
        """Return the part's layout. ConfigError: a setting of the server says what only the whole model's may say."""
        parameters = [e.name for e in self.layout.entries if e.role == "parameter" and self.layout.form != "module"]
        for name, setting in (
            ("tied", tied),
            ("buffers", any(mode_of(buffers or {}, parameter) for parameter in parameters)),
        ):
            if setting:
                raise ConfigError(f"{name}: it says what the whole model is, so give it to fastagg.parts({name}=), too")
        return self.layout


class Layout:
    """The mapping between a model's own form and the flat vector.

    Attributes:
        form: the form in which the model came: ``module``, ``state_dict``, ``list`` (of arrays) or ``flat``.
        entries: every array of the model, in the model's order.
        constants: the values of the arrays that never change.
        size: d, the number of elements of all trainable parameters.
        buffer_size: the number of elements of all floating-point buffers.
        bounds: the limits for clients' buffers.
        largest: the largest magnitude that the types of all parameters can hold.
        numpy: whether all arrays of the model were NumPy's.
    """

    def __init__(
        self, form: Form, entries: Sequence[Entry], constants: Sequence[Tensor] = (), numpy: bool = False
    ) -> None:
        self.form: Form = form
        self.numpy = numpy
        self.entries = tuple(entries)
        self.constants = list(constants)
        self._by_role: dict[str, list[Entry]] = {r: [] for r in ("parameter", "buffer", "counter")}
        for entry in self.entries:
            if entry.role in self._by_role:
                self._by_role[entry.role].append(entry)
        self._known = {entry.name for entry in self.entries}
        self.size = sum(entry.size for entry in self._by_role["parameter"])
        self.all_fp32 = all(e.dtype == "float32" for e in self._by_role["parameter"])
        self.has_buffers = bool(self._by_role["buffer"] or self._by_role["counter"])
        self.largest = min((torch.finfo(getattr(torch, e.dtype)).max for e in self._by_role["parameter"]), default=0.0)
        self.buffer_size = sum(entry.size for entry in self._by_role["buffer"])
        self.bounds = Bounds.of(
            *([(entry.name, entry.dtype) for entry in self._by_role[role]] for role in ("buffer", "counter"))
        )

    def ends(self) -> list[int]:
        """Return, for each trainable tensor with elements, the place after its last element in the flat vector."""
        return [entry.offset + entry.size for entry in self._by_role["parameter"] if entry.size]

    @classmethod
    def of(cls, params: object, *, buffers: Mapping[str, str] | None = None, tied: Tied | None = None) -> Layout:
        """Return the layout of ``params``: an nn.Module, a state_dict, a list of arrays or one 1-D array.

        Args:
            params: the model.
            buffers: a mode for each pattern of buffers' names, as in the server's setting. None: no modes.
            tied: groups of names of arrays that are one parameter. None: a module's own tied parameters, or in other
                forms arrays that share their memory.

        Raises:
            DTypeMismatch: an array is complex, sparse or quantised, or a flat model is not floating point.
            ShapeMismatch: ``params`` has none of these forms, no parameter that trains, or lazy arrays.
            ConfigError: ``buffers`` or ``tied`` do not fit the arrays.
        """
        memory.without_parents_threads()
        if tied is not None and not _are_groups(tied):
            what = "groups of names (of a list: of places) such as [('embed.weight', 'head.weight')]"
            raise ConfigError(_checks.wrong("tied", what, tied))
        if isinstance(params, Part):
            return params.fitting(buffers, tied)
        layout = cls._of(params, buffers or {}, tied)
        if tied and layout.form not in ("state_dict", "list"):
            raise ConfigError(
                "tied: it is for a state_dict or a list: a module has shared parameters, one array is whole"
            )
        if not layout.size:
            do = "if all are frozen, set requires_grad of those that train"
            raise ShapeMismatch(_checks.wrong("params", "a model with parameters that train", params, do))
        if isinstance(params, Mapping):
            params = list(params.values())
        arrays = params if isinstance(params, (list, tuple)) else [params]
        layout.numpy = all(isinstance(array, (np.ndarray, np.generic)) for array in arrays)
        return layout

    @classmethod
    def _of(cls, params: object, how: Mapping[str, str], tied: Tied | None) -> Layout:
        if isinstance(params, nn.Module):
            for name, p in (*params.named_parameters(), *params.named_buffers()):
                if nn.parameter.is_lazy(p):
                    raise ShapeMismatch(f"params {name!r}: expected an array with a shape, got a lazy one: run it once")
            first = {id(p): name for name, p in params.named_parameters()}
            state = params.state_dict()
            roles: dict[str, Role | None] = dict.fromkeys(state)
            roles |= {name: "buffer" for name, _ in params.named_buffers(remove_duplicate=False)}
            aliases: dict[str, str] = {}
            for name, p in params.named_parameters(remove_duplicate=False):
                roles[name] = "parameter" if p.requires_grad else "constant"
                if p.requires_grad and first[id(p)] != name:
                    roles[name], aliases[name] = "alias", first[id(p)]
            return cls._build("module", state.items(), how, roles, aliases)
        if isinstance(params, Mapping):
            if unnamed := [key for key in params if not isinstance(key, str)]:
                do = "or give a list: fastagg.FedBuff(list(params.values()))"
                raise ShapeMismatch(_checks.wrong("params", "names that are str", unnamed[0], do))
            return cls._build("state_dict", params.items(), how, tied=tied)
        if isinstance(params, (list, tuple)):
            return cls._build("list", ((str(i), v) for i, v in enumerate(params)), how, tied=tied)
        do = "give the model itself: fastagg.FedBuff(model)"
        try:
            vector = as_tensor(params)
        except DTypeMismatch as error:
            said = f"params: {error}" if hasattr(params, "dtype") else _checks.wrong("params", _MODEL, params, do)
            raise DTypeMismatch(said) from None
        if vector.dim() != 1:
            do = "give a list of one array, or the array's flatten()"
            raise ShapeMismatch(_checks.wrong("params", _MODEL, vector, do))
        if not vector.is_floating_point():
            do = "convert it with .float()"
            raise DTypeMismatch(f"params: expected floating-point numbers, got {vector.dtype}; {do}")
        return cls._build("flat", [("", vector)], {})

    @classmethod
    def _build(
        cls,
        form: Form,
        arrays: Iterable[tuple[str, object]],
        how: Mapping[str, str],
        roles: Mapping[str, Role | None] | None = None,
        aliases: Mapping[str, str] | None = None,
        tied: Tied | None = None,
    ) -> Layout:
        entries: list[Entry] = []
        constants: list[Tensor] = []
        end = dict.fromkeys(("parameter", "buffer", "counter", "constant"), 0)
        names = dict(aliases or {})
        for group in tied or ():
            names |= {str(twin): str(group[0]) for twin in group}
        shared = SharedParameters(names if roles is not None or tied is not None else None)
        kept: list[str] = []
        packed: set[str] = set()  # names of integer arrays. An array below such a name counts as the array's scales.
        for name, value in arrays:
            stated = (roles or {}).get(name)
            try:
                array = dense(f"params {name!r}", value)
            except DTypeMismatch as error:
                do = "; or give what trains: {n: p for n, p in model.named_parameters() if p.requires_grad}"
                raise DTypeMismatch(f"{error}{do if roles and stated is None else ''}") from None
            known = stated is not None or (roles is None and not (packed and _below(name, packed)))
            role = _role(name, array, stated, how, known)
            if not array.is_floating_point():
                packed.add(name)
            if role == "constant" and stated != "constant" and mode_of(how, name) is None and not _is_extra(name):
                kept.append(name)
            shape, dtype = tuple(array.shape), str(array.dtype).removeprefix("torch.")
            if role in ("parameter", "alias") and (first := shared.first(name, value, array)) is not None:
                if shape != (twin := next(e for e in entries if e.name == first)).shape:
                    raise ShapeMismatch(f"tied: {first!r} has shape {list(twin.shape)}, {name!r} has {list(shape)}")
                entries.append(Entry(name, shape, dtype, "alias", twin.offset))
                continue
            entries.append(Entry(name, shape, dtype, role, end[role]))
            end[role] += array.numel() if role in ("parameter", "buffer") else 1
            if role == "constant":
                constants.append(array.clone())
        if unknown := sorted(names.keys() - {e.name for e in entries}):
            raise ConfigError(f"tied: the model has no {_names(unknown)}")
        shared.tell([e.name for e in entries if e.role == "parameter"] if roles is None else [], kept)
        return cls(form, entries, constants)

    def of_some(self, arrays: Mapping[str, object], buffers: Mapping[str, str]) -> Layout:
        """Return the layout of some of the model's arrays. They keep their roles. ``buffers``: modes by pattern."""
        first = {(e.offset, e.size): e.name for e in self.entries if e.role == "parameter"}
        second = [e for e in self.entries if e.role == "alias" and e.size and e.name in arrays]
        aliases = {e.name: first[e.offset, e.size] for e in second}
        roles: dict[str, Role | None] = {
            e.name: e.role if e.size or e.role != "alias" else "parameter" for e in self.entries
        }
        layout = self._build(self.form, arrays.items(), buffers, roles, aliases)
        layout.numpy = self.numpy
        return layout

    def spec(self) -> State:
        """Return plain data from which :meth:`from_spec` rebuilds this layout."""
        entries = [(e.name, list(e.shape), e.dtype, e.role, e.offset) for e in self.entries]
        spec = {"form": self.form, "entries": entries, "constants": self.constants}
        return {**spec, "numpy": True} if self.numpy else spec

    @classmethod
    def from_spec(cls, spec: State) -> Layout:
        entries = [Entry(n, tuple(s), d, r, o) for n, s, d, r, o in spec["entries"]]
        return cls(spec["form"], entries, spec["constants"], spec.get("numpy", False))

    def same_as(self, other: Layout) -> bool:
        """Return whether updates and checkpoints of one layout fit the other."""
        return self._by_role == other._by_role

    def take(self, params: object, device: torch.device, dtype: torch.dtype = torch.float32) -> ModelState:
        """Copy a model of this layout into new vectors on ``device``. Parameters are rounded to the nearest number of
        ``dtype``. If fp64 numbers are so large that fp32 loses whole numbers, warn.

        Raises:
            NonFiniteUpdate: a parameter is NaN or infinite.
        """
        arrays = self._arrays(params)
        flat, buffers = memory.empty(self.size, device, dtype), memory.empty(self.buffer_size, device)
        for target, role in ((flat, "parameter"), (buffers, "buffer")):
            for entry in self._by_role[role]:
                piece = dense(entry.name, arrays[entry.name]).reshape(-1)
                if piece.dtype is torch.float64 and piece.numel() and (peak := float(piece.abs().max())) >= 2.0**24:
                    step = 2.0 ** (math.frexp(peak)[1] - 24)
                    said = f"params {entry.name!r}: fp32 holds {peak:g} in steps of {step:g}; smaller changes are lost"
                    _checks.warn(said)
                target[entry.offset : entry.offset + entry.size].copy_(piece)
        # Rounding to `dtype` (bf16) could move a number out of the range of its parameter's own type (fp16).
        may_leave = dtype is not torch.float32 and not self.all_fp32
        if may_leave or not ops.inspect(flat).finite:
            self._check_finite(flat)
        counters = [dense(e.name, arrays[e.name]).clone() for e in self._by_role["counter"]]
        return ModelState(flat, buffers, counters)

    def _check_finite(self, flat: Tensor) -> None:
        parts = ((e.name, self._cut(flat, e).to(getattr(torch, e.dtype))) for e in self._by_role["parameter"])
        if bad := [name for name, array in parts if not torch.isfinite(array).all()]:
            do = f"; what never changes is kept by buffers={{{bad[0]!r}: 'keep'}}" if self.form == "state_dict" else ""
            raise NonFiniteUpdate(f"params: the model to start from holds NaN or infinity in {_names(bad)}{do}")

    def blank(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return buffers and counters with this layout's shapes and types, filled with zeros."""
        counters = [torch.zeros(e.shape, dtype=getattr(torch, e.dtype), device="cpu") for e in self._by_role["counter"]]
        return memory.zeros(self.buffer_size, device), counters

    def parts(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Return the name, shape and role (csrc/engine/reported.h) of every array of an update. Return an empty list if
        native code cannot read updates of this layout."""
        parts = []
        for e in self.entries:
            if e.role in ("constant", "alias") or e.size == 0 or (e.role == "counter" and e.dtype != "int64"):
                return []
            parts.append((e.name, e.shape, _native_role(e)))
        return parts

    def parse(self, update: object, what: str = "update") -> ParsedUpdate:
        """Divide an update into parameters, buffers and counters. Contiguous parameters are not copied, unless in fp64.

        ``update`` is a flat 1-D array of d elements, an :class:`fastagg.Encoded`, or has the form of the model: an
        nn.Module or a mapping from names if the model had names. For every model it may also be a ModelState, or a list
        of arrays, with or without the buffers. Either all floating-point buffers or none must be given. ``what``: the
        update's name in messages.

        Raises:
            ShapeMismatch: the form, names, number of arrays, shape or length is wrong.
            DTypeMismatch: a parameter is not fp32, fp16 or bf16, or a counter is too large for the model's own type.
            NonFiniteUpdate: running statistics are not finite, or too large for their mean to be finite.
            ConfigError: a running variance or a count is below zero.
        """
        if type(update) is Tensor and (plain := plain_pieces(update, self.size)) is not None:
            return ParsedUpdate(plain, None, None)
        if isinstance(update, Encoded):
            if update.size != self.size:
                raise ShapeMismatch(f"{what}: expected {self.size} elements, got an encoded one of {update.size}")
            return ParsedUpdate(Pieces([update.native]), None, None)
        if isinstance(update, ModelState):
            self._check_parts(update, what)
            update = self.views(*update, as_held=True)  # an update is not a model, so its numbers keep their precision
        if not isinstance(update, (nn.Module, Mapping, list, tuple)):
            try:
                vector = _of_float64(self.entries[0], what, as_array(update))
                if tuple(vector.shape) != (self.size,):
                    raise ShapeMismatch(f"{what}: expected shape [{self.size}], got {list(vector.shape)}")
                return ParsedUpdate(as_pieces(vector), None, None)
            except DTypeMismatch as error:
                raise DTypeMismatch(f"{what}: {error}") from None
        arrays = self._arrays(update, what)
        by_role: dict[str, list[tuple[str, Tensor | np.ndarray]]] = {"parameter": [], "buffer": [], "counter": []}
        for entry in self.entries:
            if entry.name not in arrays or entry.role not in by_role:
                continue
            label = f"{what} {entry.name!r}"
            try:
                array = _of_float64(entry, label, as_array(arrays[entry.name]))
            except DTypeMismatch as error:
                raise DTypeMismatch(f"{label}: {error}") from None
            if tuple(array.shape) != entry.shape:
                raise ShapeMismatch(f"{label}: expected shape {list(entry.shape)}, got {list(array.shape)}")
            by_role[entry.role].append((label, array))
        buffers = counters = None
        if by_role["buffer"]:
            # Statistics may have any floating-point type, because they are only averaged.
            buffers = _pieces([(label, _fp32(label, array)) for label, array in by_role["buffer"]])
        if by_role["counter"] and len(by_role["counter"]) == len(
            self._by_role["counter"]
        ):  # if any are missing, the server's counters do not change
            counters = [dense(label, array) for label, array in by_role["counter"]]
            for (label, _), counter in zip(by_role["counter"], counters, strict=True):
                if counter.is_floating_point():
                    raise DTypeMismatch(f"{label}: expected an integer buffer, got {counter.dtype}")
        parsed = ParsedUpdate(_pieces(by_role["parameter"]), buffers, counters)
        if buffers is not None or counters is not None:
            check_statistics(self.bounds, buffers, counters, what)
        return parsed

    def _check_parts(self, update: ModelState, what: str) -> None:
        sizes, (flat, buffers, counters) = (self.size, self.buffer_size, len(self._by_role["counter"])), update
        arrays = [flat, buffers, *(counters if isinstance(counters, list) else [None])]
        dense = all(isinstance(array, Tensor) and array.layout is torch.strided for array in arrays)
        if not dense or flat.dim() + buffers.dim() != 2 or (flat.numel(), buffers.numel(), len(counters)) != sizes:
            raise ShapeMismatch(f"{what}: expected two vectors and a list of counters, of lengths {sizes}")

    def _arrays(self, params: object, what: str = "params") -> Mapping[str, object]:
        """Return arrays by name. ShapeMismatch: the names, or the number of arrays, are not the model's."""
        if isinstance(params, Part):
            params = params.arrays
        if isinstance(params, nn.Module):
            params = params.state_dict()
        if isinstance(params, Mapping):
            if self.form not in ("module", "state_dict"):
                own = "a 1-D array" if self.form == "flat" else "a list of arrays or a 1-D array"
                raise ShapeMismatch(f"{what}: expected {own}, got a mapping")
            missing = [e.name for e in self._by_role["parameter"] if e.name not in params]
            extra = [name for name in params if name not in self._known]
            held = [e.name for e in self._by_role["buffer"]]
            absent = [name for name in held if name not in params]
            if missing or extra or (absent and len(absent) < len(held)):
                parts = [
                    f"missing {_names(missing + (absent if len(absent) < len(held) else []))}",
                    f"unknown {_names(extra)}",
                ]
                raise ShapeMismatch(
                    f"{what}: the names are not the model's: {'; '.join(parts)}{_prefix(missing, extra, self._known)}"
                )
            return params
        if isinstance(params, (list, tuple)):
            full = [e.name for e in self.entries]
            kept = [e.name for e in self.entries if e.role in self._by_role]  # a difference has only these arrays
            short = [e.name for e in self._by_role["parameter"]]
            for names in (full, kept, short):
                if len(params) == len(names):
                    return dict(zip(names, params, strict=True))
            counts = " or ".join(str(n) for n in sorted({len(short), len(kept), len(full)}))
            do = "; convert a list of numbers with torch.tensor" if params and isinstance(params[0], float) else ""
            raise ShapeMismatch(f"{what}: expected {counts} arrays, got {len(params)}{do}")
        return {"": params}

    def views(self, flat: Tensor, buffers: Tensor, counters: Sequence[Tensor], *, as_held: bool = False) -> Arrays:
        """Return the model in its original form: a dict for modules and state_dicts, a list, or the flat tensor.

        A parameter or floating-point buffer is a view of ``flat`` or ``buffers`` if its type in the model is the
        vector's type, or if ``as_held``. Otherwise it is a copy in its type in the model."""
        if self.form == "flat" and (as_held or flat.dtype is getattr(torch, self.entries[0].dtype)):
            return flat
        arrays: dict[str, Tensor] = {}
        plain = flat.dtype is torch.float32
        cuts = {  # the results of `_cut` for all arrays, in one call
            role: iter(vector.split([e.size for e in self._by_role[role]]))
            for role, vector in (("parameter", flat), ("buffer", buffers))
        }
        firsts = {(e.offset, e.shape, e.dtype): e.name for e in self._by_role["parameter"]}
        for e in self.entries:
            if e.role == "alias" and (first := firsts.get((e.offset, e.shape, e.dtype))) is not None:
                # The same object for both names, so that a reader can see that they are names of one parameter.
                arrays[e.name] = arrays[first]
            elif e.role == "counter":
                arrays[e.name] = counters[e.offset]
            elif e.role == "constant":
                arrays[e.name] = self.constants[e.offset]
            else:
                cut = self._cut(flat, e) if e.role == "alias" else next(cuts[e.role])
                view = cut if len(e.shape) == 1 else cut.view(e.shape)
                as_it_is = as_held or (plain and e.dtype == "float32")
                arrays[e.name] = view if as_it_is else view.to(getattr(torch, e.dtype))
        return self.formed(arrays)

    def formed(self, arrays: dict[str, Any]) -> Arrays:
        if self.form in ("module", "state_dict"):
            return arrays
        return list(arrays.values()) if self.form == "list" else arrays[""]

    def as_given(self, arrays: Arrays, writable: bool = False) -> Arrays:
        """Convert ``arrays``, the result of :meth:`views` or :meth:`copies`, to NumPy's arrays with the same memory, if
        the model's were NumPy's. ``writable``: whether NumPy's arrays may be written to."""
        if not self.numpy:
            return arrays
        if isinstance(arrays, Mapping):
            return {name: _numpy(array, writable) for name, array in arrays.items()}
        return [_numpy(a, writable) for a in arrays] if isinstance(arrays, list) else _numpy(arrays, writable)

    def copies(self, flat: Tensor, buffers: Tensor, counters: Sequence[Tensor]) -> Arrays:
        """Return the model in the form of :meth:`views`, in new memory, which the caller may write to."""
        # `views` itself copies arrays whose type is not that of `flat`.
        if any(getattr(torch, e.dtype) is flat.dtype for e in self._by_role["parameter"]):
            flat = flat.clone()
        made = self.views(flat, buffers.clone(), [counter.clone() for counter in counters])
        for place, e in enumerate(self.entries):
            if e.role == "constant":
                made[place if self.form == "list" else e.name] = self.constants[e.offset].clone()
        return made

    @torch.no_grad()
    def difference(self, trained: object, flat: Tensor) -> Arrays:
        """Return ``trained - flat`` for parameters and the values of ``trained`` for buffers, in this layout's form.

        Parameters are views of one new fp32 vector."""
        if self.form == "flat":
            arrays: Mapping[str, object] = {"": trained}
        elif isinstance(trained, (nn.Module, Mapping, list, tuple)):
            arrays = self._arrays(trained, "trained model")
        else:
            form = "a list of arrays" if self.form == "list" else "an nn.Module, or a mapping from names to arrays"
            raise ShapeMismatch(f"trained model: expected {form}, got {type(trained).__name__}")
        own = [e for e in self.entries if e.name in arrays and e.role in self._by_role]
        checked = [
            (e, _trained(e, arrays[e.name])) for e in own
        ]  # all arrays are checked before the vector is allocated
        vector = memory.empty(self.size, flat.device)
        parts = [array for e, array in checked if e.role == "parameter"]
        alike = all(array.dtype is torch.float32 and array.device == flat.device for array in parts)
        # Two passes over a small model take less time than a call for each of its arrays.
        at_once = self.all_fp32 and alike and self.size < _AT_ONCE and sum(map(Tensor.numel, parts)) == self.size
        if at_once:
            torch.cat([array.reshape(-1) for array in parts], out=vector).sub_(flat)
        cuts = iter(vector.split([e.size for e in own if e.role == "parameter"]))
        result: dict[str, Tensor] = {}
        for e, array in checked:
            if e.role != "parameter":
                result[e.name] = array.clone()
                continue
            cut = next(cuts)
            result[e.name] = cut.view(e.shape)
            if at_once:
                continue
            # The difference is computed in fp32 or fp64, because torch would round a difference of two bf16 tensors.
            sent = self._cut(flat, e).view(e.shape).to(torch.float32)
            if e.dtype == "float32" and array.dtype == torch.float32:
                trained = array.to(flat.device).resolve_neg().contiguous().view(-1)
                ops.difference(trained, sent.view(-1), cut)
                continue
            if e.dtype != "float32":  # the client was sent a model that was rounded to this type
                sent = sent.to(getattr(torch, e.dtype)).to(torch.float64)
            torch.sub(array.to(flat.device), sent, out=result[e.name])
        return self.formed(result)

    def restored(self, difference: Arrays, model: ModelState) -> Arrays:
        """Return ``difference`` with ``model``'s values added to the buffers and counters. Parameters do not
        change."""
        if not self.has_buffers or not isinstance(difference, (Mapping, list, tuple)):
            return difference
        arrays = dict(self._arrays(difference, "update"))
        for e in (*self._by_role["buffer"], *self._by_role["counter"]):
            if e.name not in arrays:
                continue
            sent = self._cut(model.buffers, e).view(e.shape) if e.role == "buffer" else model.counters[e.offset]
            array = dense(f"update {e.name!r}", arrays[e.name])
            if tuple(array.shape) != e.shape:
                raise ShapeMismatch(f"update {e.name!r}: expected shape {list(e.shape)}, got {list(array.shape)}")
            arrays[e.name] = sent + array.to(sent.device, sent.dtype)
        return self.formed(arrays)

    @staticmethod
    def _cut(vector: Tensor, entry: Entry) -> Tensor:
        return vector[entry.offset : entry.offset + entry.size]


class SharedParameters:
    """Finds the second names of parameters. ``names``: each name of a tied parameter -> its first name. None: arrays
    with the same memory are one parameter."""

    def __init__(self, names: Mapping[str, str] | None) -> None:
        self.names = names
        self.same: dict[str, str] = {}  # second name -> the first name of the same memory
        self._seen: dict[object, str] = {}
        # Keeps arrays alive. Otherwise a mapping that makes its arrays on demand could use the same memory again.
        self._held: list[object] = []

    def first(self, name: str, value: object, array: Tensor) -> str | None:
        """Return the parameter's first name. None: ``name`` is the first name."""
        if self.names is not None:
            first = self._seen.setdefault(self.names.get(name, name), name)
            return None if first == name else first
        memory: Arrays = value if isinstance(value, np.ndarray) else array
        strides = memory.strides if isinstance(memory, np.ndarray) else memory.stride()
        address = memory.ctypes.data if isinstance(memory, np.ndarray) else memory.data_ptr()
        self._held.append(memory)
        key = (address, tuple(array.shape), strides, array.dtype) if array.numel() else name
        first = self._seen.setdefault(key, name)
        if first == name:
            return None
        self.same[name] = first
        return first

    def tell(self, parameters: Sequence[str], kept: Sequence[str]) -> None:
        """Warn about arrays with the same memory, about those of ``parameters`` with names like buffers', and about
        ``kept``, the arrays that never change."""
        if self.same:
            second, first = next(iter(self.same.items()))
            said = f"params: {second!r} is the same memory as {first!r}, so they are one parameter; if they are two, "
            _checks.warn(f"{said}write tied=[], or else tied={[(first, second)]!r}")
        if like := [name for name in parameters if _LIKE_BUFFERS.search(name)]:
            do = f"if they are buffers, write buffers={{{like[0]!r}: 'mean'}}, or 'max', 'keep' or 'first'"
            _checks.warn(f"params: {_names(like)} are stepped like parameters; {do}")
        if kept:
            do = f"if clients change them, write buffers={{{kept[0]!r}: 'max'}} for a count, 'mean' for statistics"
            said = f"params: {_names(kept)} are kept, whatever clients send: no parameters, and no running statistics"
            _checks.warn(f"{said}; {do}, or 'keep'")


def _are_groups(tied: object) -> bool:
    groups = tied if isinstance(tied, (tuple, list)) else [None]
    return all(
        isinstance(group, (tuple, list)) and all(type(place) in (str, int) for place in group) for group in groups
    )


def mode_of(how: Mapping[str, str], name: str) -> str | None:
    """Return the mode that the setting ``buffers`` gives the array of this name, or None."""
    return next((mode for pattern, mode in how.items() if fnmatchcase(name, pattern)), None)


def _role(name: str, array: Tensor, stated: Role | None, how: Mapping[str, str], known: bool) -> Role:
    """Return an array's role. ``stated``: the role that a module declares, or None. ``how``: the setting ``buffers``.
    ``known``: False if a module does not declare the array, or if its name shows that it is another array's scales."""
    said = None if stated in ("parameter", "alias") else mode_of(how, name)
    if stated in ("alias", "constant") or said == "keep" or _is_extra(name):
        return "alias" if stated == "alias" else "constant"
    if not array.is_floating_point():
        if said not in (None, "max"):
            raise ConfigError(f"buffers: {name!r} has whole numbers, expected 'max' or 'keep', got {said!r}")
        return "counter" if said or is_count(name) else "constant"
    if stated == "parameter" or said:
        return stated or "buffer"
    if not known:
        return "constant"
    if not name.endswith(_RUNNING) and _is_mask(array, stated == "buffer"):
        return "constant"
    return stated or ("buffer" if name.endswith(_RUNNING) else "parameter")


def _is_extra(name: str) -> bool:
    return name.endswith("_extra_state")


def _below(name: str, others: set[str]) -> bool:
    """Return whether ``name`` is below the name of another array, as ``layer.weight.absmax`` is below
    ``layer.weight``."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in others for end in range(1, len(parts)))


def _is_mask(array: Tensor, is_buffer: bool) -> bool:
    """Return whether an array is a mask. A mask has infinite elements and no NaN. If it is not a buffer, it also has
    more than one dimension, and its finite elements all have the same value."""
    if not (is_buffer or array.dim() > 1) or math.isfinite(float(array.float().sum(dtype=torch.float64))):
        return False
    if bool(array.isnan().any()):
        return False
    finite = array[torch.isfinite(array)]
    return is_buffer or (finite.numel() > 0 and bool((finite == finite[0]).all()))


def _of_float64(entry: Entry, label: str, array: Tensor | np.ndarray) -> Tensor | np.ndarray:
    """Return an array as fp32 if the array and the model's own array are both fp64. Otherwise return it unchanged."""
    own = entry.dtype == "float64" and str(array.dtype) in ("float64", "torch.float64")
    return _fp32(label, array) if own else array


def _native_role(entry: Entry) -> str:
    if entry.role == "buffer":
        return "variance" if is_variance(entry.name) else "statistic"
    return "count" if entry.role == "counter" and is_count(entry.name) else entry.role


def dense(label: str, value: object) -> Tensor:
    """Return an array as a tensor of real numbers in memory, without a gradient, and without a copy if possible.
    DTypeMismatch: the array has no such numbers. ``label``: the array's name in messages."""
    try:
        tensor = as_tensor(value)
    except DTypeMismatch as error:
        raise DTypeMismatch(f"{label}: {error}") from None
    if tensor.is_complex() or tensor.is_quantized or tensor.layout is not torch.strided or tensor.is_meta:
        kind = "meta" if tensor.is_meta else tensor.layout
        do = "" if tensor.is_meta or tensor.layout is torch.strided else "; convert it with .to_dense()"
        do = "; fill it first: model.to_empty(device='cpu'), then load_state_dict" if tensor.is_meta else do
        raise DTypeMismatch(f"{label}: expected a dense array of real numbers, got {tensor.dtype} ({kind}){do}")
    return tensor.detach() if tensor.requires_grad else tensor


def _trained(entry: Entry, value: object) -> Tensor:
    """Return an array of a trained model. Raise ShapeMismatch or DTypeMismatch if it does not fit."""
    if entry.role == "parameter" and isinstance(value, Tensor) and value.shape == entry.shape and is_plain_fp32(value):
        return value  # the usual case, in which the slower checks below are not needed
    label = f"trained model {entry.name!r}"
    array = dense(label, value)
    if tuple(array.shape) != entry.shape:
        raise ShapeMismatch(f"{label}: expected shape {list(entry.shape)}, got {list(array.shape)}")
    if entry.role != "buffer" and array.is_floating_point() != (entry.role == "parameter"):
        what = "floating-point" if entry.role == "parameter" else "whole"
        raise DTypeMismatch(f"{label}: expected {what} numbers, got {array.dtype}")
    return array


def _numpy(tensor: Tensor, writable: bool) -> np.ndarray:
    tensor = tensor.cpu()
    if tensor.dtype is torch.bfloat16:  # NumPy itself has no bf16
        array: np.ndarray = tensor.view(torch.int16).numpy().view(import_module("ml_dtypes").bfloat16)
    else:
        array = tensor.numpy()
    if not writable:
        array.flags.writeable = False
    return array


def _fp32(label: str, array: Tensor | np.ndarray) -> Tensor:
    return array if array.dtype is torch.float32 else dense(label, array).to(torch.float32)


def _pieces(arrays: Sequence[tuple[str, Tensor | np.ndarray]]) -> Pieces:
    try:
        return Pieces(array for _, array in arrays)
    except DTypeMismatch:
        for label, array in arrays:  # find the name of the array that Pieces has refused
            try:
                Pieces([array])
            except DTypeMismatch as error:
                raise DTypeMismatch(f"{label}: {error}") from None
        raise


def _prefix(missing: Sequence[str], extra: Sequence[str], known: Collection[str]) -> str:
    """Return advice if a wrapper (DataParallel, torch.compile) has put a prefix before all names. Otherwise return "".
    ``known``: all names of the model."""
    for name in known if missing and extra else ():
        before = str(extra[0]).removesuffix(name)
        if before.endswith(".") and {before + own for own in missing} <= {*extra} <= {before + own for own in known}:
            return f"; remove {before!r} from the names: give the model inside the wrapper"
    return ""


def _names(names: Sequence[str]) -> str:
    if not names:
        return "none"
    shown = ", ".join(repr(name) for name in names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
