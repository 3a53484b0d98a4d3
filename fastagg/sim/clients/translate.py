"""Translates networks to tables of layers, which the compiled extension trains (csrc/train).

A module of a user's class is translated only if the class sets ``fused = True``. Its ``forward`` is traced once, so it
must do the same at every call. :mod:`fastagg.sim.clients.proof` compares each table with its module before use.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional

from fastagg._types import Foreign, Plain

Shape = tuple[int, ...]


class TranslationError(Exception):
    """A network cannot be translated, so torch must train it. The message has the reason."""


class Value(NamedTuple):
    """The output of a layer. ``image``: the output's number in the table (0 is the input of the network). ``vector``:
    whether the output is a vector for each sample in torch."""

    image: int
    vector: bool


class LayerTable:
    """The layers of ``module`` for inputs of ``shape``, in the form that ``native.Table`` takes.

    Attributes:
        shape: the shape of an input, as (channels, height, width).
        layers: a dict for each layer.
        shapes: the shapes of the images. Image 0 is the input. The output of layer i (from 0) is image i + 1.
        counters: how many buffers of the module count batches (``num_batches_tracked`` of BatchNorm).

    Raises:
        TranslationError: the table has no layer for a part of the module.
    """

    def __init__(self, module: nn.Module, shape: Sequence[int]) -> None:
        _need(len(shape) in (1, 3), f"inputs have {len(shape)} dimensions")
        trained = all(p.requires_grad and p.dtype is torch.float32 for p in module.parameters())
        _need(trained, "some parameters do not train, or are not fp32")
        self.shape: Shape = tuple(shape) if len(shape) == 3 else (shape[0], 1, 1)
        self.layers: list[Plain] = []
        self.shapes = [self.shape]
        self._flat: dict[int, int] = {}  # image -> the image with the same numbers as a vector in torch's order
        buffers = dict(module.named_buffers())
        statistics = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
        self.counters = len(buffers) - len(statistics)
        self._parameters, self._buffers = _places(dict(module.named_parameters())), _places(statistics)
        _need(not nn.modules.module._has_any_global_hook(), "all modules have a hook")
        for name, layer in module.named_modules():
            called = name or "the model itself"
            known = type(layer) in _KNOWN or getattr(layer, "fused", False)
            _need(known, f"the table has no layer {type(layer).__name__} ({called})")
            hooked = any(getattr(part, kind, None) for part in (layer, *layer.parameters(False)) for kind in _HOOKS)
            _need(not hooked and "forward" not in vars(layer), f"{called} has hooks, or a forward function of its own")
        source = Value(0, len(shape) == 1)
        if (reader := _MODULES.get(type(module))) is not None:
            reader(self, module, "", source)
        else:
            self._read(module, source)
        _need(not self._parameters, _ONCE)
        norms = sum(layer["kind"] == "batch_norm" for layer in self.layers)
        _need(norms == self.counters, "buffers are not BatchNorm's")
        _need(self.layers and self.shapes[-1][1:] == (1, 1), "the output is not a vector of classes")

    def _read(self, module: nn.Module, source: Value) -> None:
        try:
            graph = fx.Tracer().trace(module)
        except Exception as error:  # tracing passes no tensors, so a forward function may raise anything
            raise TranslationError(f"its forward function cannot be traced ({type(error).__name__})") from None
        values: dict[Foreign, Value] = {}
        owners: dict[Foreign, fx.Node] = {}  # node -> the node whose memory holds its value
        read = Counter[fx.Node]()
        for node in graph.nodes:
            read_by_it = [owners[arg] for arg in node.args if isinstance(arg, fx.Node)]
            view = node.target in _FLATTENS or _layer(node, module) in (nn.Flatten, nn.Identity)
            owners[node] = read_by_it[0] if view and read_by_it else node
            read.update([] if view else read_by_it)
        for node in graph.nodes:
            inputs = [arg for arg in node.args if isinstance(arg, fx.Node)]
            if node.op == "placeholder":
                _need(not values, "the model takes more than one input")
                values[node] = source
            elif node.op == "output":
                last = node.args[0]
                is_last = isinstance(last, fx.Node) and self._vector(values[last]).image == len(self.layers)
                _need(is_last, "the output is not the last layer's")
            else:
                alone = bool(inputs) and owners[inputs[0]].op != "placeholder" and read[owners[inputs[0]]] == 1
                values[node] = self._add(node, module, [values[arg] for arg in inputs], alone)

    def _add(self, node: fx.Node, module: nn.Module, inputs: list[Value], alone: bool) -> Value:
        """Add the layer of a node, and return the node's value. ``inputs``: the values of the node's arguments.
        ``alone``: whether no other node reads the memory of the first input, so that it may be overwritten."""
        known, layer = dict(node.kwargs), _layer(node, module)
        in_place = node.target is operator.iadd or bool(known.pop("inplace", False))
        if layer is not None:
            part = module.get_submodule(str(node.target))
            _need(layer in _MODULES and len(inputs) == 1, f"the table has no layer {layer.__name__} ({node.target})")
            in_place = bool(getattr(part, "inplace", False))
        called = getattr(node.target, "__name__", node.target)
        _need(alone or not in_place, f"{called} changes in place what something else reads")
        if layer is nn.ReLU or (node.target in _RELUS and len(inputs) == 1 == len(node.args) and not known):
            value = self._relu(inputs[0], alone)
        elif layer is not None:
            value = _MODULES[layer](self, part, f"{node.target}.", inputs[0])
        elif node.target in _SUMS and len(inputs) == 2 == len(node.args) and not known:
            value = self._sum(*inputs)
        elif node.target in _FLATTENS and node.args[1:] == (1,) and not known:
            return inputs[0]._replace(vector=True)
        else:
            raise TranslationError(f"the table has no layer for {called} with these arguments")
        return value

    def append(self, kind: str, source: Value, shape: Shape, **more: Foreign) -> Value:
        self.layers.append({"kind": kind, "input": source.image, **more})
        self.shapes.append(shape)
        return Value(len(self.layers), source.vector)

    def _relu(self, source: Value, alone: bool) -> Value:
        """Let the layer of ``source`` apply the ReLU if this layer is the last so far, has no ReLU yet, and no other
        layer reads its output. Otherwise add a layer."""
        if alone and source.image == len(self.layers) and not self.layers[-1].get("relu"):
            self.layers[-1]["relu"] = True
            return source
        return self.append("sum", source, self.shapes[source.image], relu=True)

    def _sum(self, left: Value, right: Value) -> Value:
        if self.shapes[left.image] != self.shapes[right.image]:
            left, right = self._vector(left), self._vector(right)
        same = self.shapes[left.image] == self.shapes[right.image] and left.vector == right.vector
        _need(same, "terms of a sum have different shapes")
        return self.append("sum", left, self.shapes[left.image], other=right.image)

    def _vector(self, source: Value) -> Value:
        """If ``source`` is a vector in torch, return a value whose channels are the vector's numbers in torch's order.
        Otherwise return ``source``."""
        shape = self.shapes[source.image]
        if not source.vector or shape[1:] == (1, 1):
            return source
        if source.image not in self._flat:
            self._flat[source.image] = self.append("flatten", source, (math.prod(shape), 1, 1)).image
        return Value(self._flat[source.image], True)

    def flatten(self, layer: nn.Flatten, name: str, source: Value) -> Value:
        _need((layer.start_dim, layer.end_dim) == (1, -1), f"the layer {name} flattens some dimensions only")
        return source._replace(vector=True)  # a linear layer reads the vector as one window over the image

    def linear(self, layer: nn.Linear, name: str, source: Value) -> Value:
        _need(source.vector, f"the linear layer {name} does not read a vector")
        whole = self.shapes[source.image][1:], (1, 1), (0, 0)
        return self._windows("convolution", source, *whole, channels=layer.out_features, **self._weights(layer, name))

    def convolution(self, layer: nn.Conv2d, name: str, source: Value) -> Value:
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and layer.dilation == (1, 1)
        _need(plain, f"the convolution {name} has groups, dilation or a padding other than zeros")
        narrow = not isinstance(layer.padding, str) and all(map(operator.lt, layer.padding, layer.kernel_size))
        _need(narrow, f"the convolution {name} has a padding by name, or as wide as its kernel")
        more = {"channels": layer.out_channels, **self._weights(layer, name)}
        return self._windows("convolution", source, *_window(layer), **more)

    def batch_norm(self, layer: nn.BatchNorm2d, name: str, source: Value) -> Value:
        kept = layer.affine and layer.track_running_stats and layer.momentum is not None
        _need(kept, f"the BatchNorm {name} has no weights, or keeps no exponential running statistics")
        places = {"mean": self._buffers[f"{name}running_mean"], "variance": self._buffers[f"{name}running_var"]}
        more = {"eps": layer.eps, "momentum": layer.momentum, **places, **self._weights(layer, name)}
        source = self._vector(source)
        return self.append("batch_norm", source, self.shapes[source.image], **more)

    def group_norm(self, layer: nn.GroupNorm, name: str, source: Value) -> Value:
        _need(layer.affine, f"the GroupNorm {name} has no weights")
        more = {"eps": layer.eps, "groups": layer.num_groups, **self._weights(layer, name)}
        source = self._vector(source)
        return self.append("group_norm", source, self.shapes[source.image], **more)

    def max_pool(self, layer: nn.MaxPool2d, name: str, source: Value) -> Value:
        plain = not layer.ceil_mode and not layer.return_indices and _pair(layer.dilation) == (1, 1)
        _need(plain, f"the pooling {name} has dilation, partial windows or indices")
        return self._windows("max_pool", source, *_window(layer))

    def mean_pool(self, layer: nn.AvgPool2d, name: str, source: Value) -> Value:
        plain = not layer.ceil_mode and _pair(layer.padding) == (0, 0) and layer.divisor_override is None
        _need(plain, f"the pooling {name} has padding, partial windows or a divisor of its own")
        return self._windows("mean_pool", source, *_window(layer))

    def whole_pool(self, layer: nn.AdaptiveAvgPool2d, name: str, source: Value) -> Value:
        _need(_pair(layer.output_size) == (1, 1), f"the pooling {name} leaves more than one pixel")
        return self._windows("mean_pool", source, self.shapes[source.image][1:], (1, 1), (0, 0))

    def identity(self, layer: nn.Module, name: str, source: Value) -> Value:
        return source

    def _windows(
        self, kind: str, source: Value, kernel: Shape, stride: Shape, padding: Shape, **more: Foreign
    ) -> Value:
        channels, *sides = self.shapes[source.image]
        moved = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(sides, kernel, stride, padding, strict=True)]
        shape = (more.get("channels", channels), *moved)
        return self.append(kind, source, shape, kernel=kernel, stride=stride, padding=padding, **more)

    def _weights(self, layer: Foreign, name: str) -> Plain:
        """Return the offsets of weight and bias in the vector of parameters. No parameter may be used twice."""
        names = {kind: f"{name}{kind}" for kind in ("weight", "bias") if getattr(layer, kind) is not None}
        _need(self._parameters.keys() >= set(names.values()), _ONCE)
        return {kind: self._parameters.pop(place) for kind, place in names.items()}


_ONCE = "parameters are used twice, or not at all"


def _need(held: object, why: str) -> None:
    if not held:
        raise TranslationError(why)


def _places(arrays: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return each array's offset in the vector of all arrays."""
    ends = accumulate(array.numel() for array in arrays.values())
    return {name: end - array.numel() for (name, array), end in zip(arrays.items(), ends, strict=True)}


def _pair(value: Foreign) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _window(layer: Foreign) -> tuple[Shape, Shape, Shape]:
    return _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)


def _layer(node: fx.Node, module: nn.Module) -> type[nn.Module] | None:
    return type(module.get_submodule(str(node.target))) if node.op == "call_module" else None


_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks",
)  # fmt: skip
_RELUS = (torch.relu, functional.relu, "relu")
_SUMS = (operator.add, torch.add, "add", operator.iadd)
_FLATTENS = (torch.flatten, "flatten")
Reader = Callable[[LayerTable, Foreign, str, Value], Value]
_MODULES: dict[type[nn.Module], Reader] = {
    nn.Linear: LayerTable.linear,
    nn.Conv2d: LayerTable.convolution,
    nn.BatchNorm1d: LayerTable.batch_norm,
    nn.BatchNorm2d: LayerTable.batch_norm,
    nn.GroupNorm: LayerTable.group_norm,
    nn.ReLU: LayerTable.identity,  # not used inside a network: `_add` calls `_relu` for nn.ReLU
    nn.MaxPool2d: LayerTable.max_pool,
    nn.AvgPool2d: LayerTable.mean_pool,
    nn.AdaptiveAvgPool2d: LayerTable.whole_pool,
    nn.Flatten: LayerTable.flatten,
    nn.Identity: LayerTable.identity,
}
_KNOWN = {nn.Sequential, nn.ModuleList, nn.ModuleDict, *_MODULES}  # modules that do the same at every call
