"""Networks as tables of layers, which the compiled extension trains (csrc/train).

A class of modules may say ``fused = True``: its ``forward`` does the same at every call, so that it is read once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import fx, nn
from torch.nn import functional

from fastagg._types import Foreign, Plain

Shape = tuple[int, ...]


class Untranslated(Exception):
    """Why a network is trained by torch."""


class Table:
    """The layers of ``module`` for inputs of ``shape``, in the form that ``native.Table`` takes.

    Attributes:
        shape: of an input, as (channels, height, width).
        layers: one dict each.
        counters: how many counters of batches the module has.

    Raises:
        Untranslated: the table has no layer for a part of the module.
    """

    def __init__(self, module: nn.Module, shape: Sequence[int]) -> None:
        _need(len(shape) in (1, 3), f"inputs have {len(shape)} dimensions")
        trained = all(p.requires_grad and p.dtype is torch.float32 for p in module.parameters())
        _need(trained, "some parameters do not train, or are not fp32")
        self.shape: Shape = tuple(shape) if len(shape) == 3 else (shape[0], 1, 1)
        self.layers: list[Plain] = []
        self._shapes = [self.shape]
        self._flat = {0} if len(shape) == 1 else set()  # values that torch sees as vectors
        buffers = dict(module.named_buffers())
        statistics = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
        self.counters = len(buffers) - len(statistics)
        self._parameters, self._buffers = _places(dict(module.named_parameters())), _places(statistics)
        for name, layer in module.named_modules():
            known = type(layer) in QUIET or getattr(layer, "fused", False)
            _need(known, f"the table has no layer {type(layer).__name__} ({name or 'the model itself'})")
        if (reader := _MODULES.get(type(module))) is not None:
            reader(self, module, "", 0)
        else:
            self._read(module)
        _need(not self._parameters, _ONCE)
        norms = sum(layer["kind"] == "batch_norm" for layer in self.layers)
        _need(norms == self.counters, "buffers are not BatchNorm's")
        _need(self.layers and self._shapes[-1][1:] == (1, 1), "the output is not a vector of classes")

    def _read(self, module: nn.Module) -> None:
        try:
            graph = fx.Tracer().trace(module)
        except Exception as error:  # whatever a forward function does with what is no tensor
            raise Untranslated(f"its forward function cannot be traced ({type(error).__name__})") from None
        found: dict[Foreign, int] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                _need(not found, "the model takes more than one input")
                found[node] = 0
            elif node.op == "output":
                last = isinstance(node.args[0], fx.Node) and found[node.args[0]] == len(self.layers)
                _need(last, "the output is not the last layer's")
            else:
                found[node] = self._add(node, module, [found[arg] for arg in node.args if isinstance(arg, fx.Node)])

    def _add(self, node: fx.Node, module: nn.Module, inputs: list[int]) -> int:
        if node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            reader = _MODULES.get(type(layer))
            if reader is not None and len(inputs) == 1:
                return reader(self, layer, f"{node.target}.", inputs[0])
            raise Untranslated(f"the table has no layer {type(layer).__name__} ({node.target})")
        if node.target in (torch.relu, functional.relu, "relu") and len(inputs) == 1:
            return self.relu(None, "", inputs[0])
        if node.target in (operator.add, torch.add, "add", operator.iadd) and len(inputs) == 2 == len(node.args):
            return self.append("sum", inputs[0], self._shapes[inputs[0]], other=inputs[1])
        if node.target in (torch.flatten, "flatten") and node.args[1:] == (1,) and not node.kwargs:
            return self.flatten(nn.Flatten(), "", inputs[0])
        raise Untranslated(f"the table has no layer for {getattr(node.target, '__name__', node.target)}")

    def append(self, kind: str, source: int, shape: Shape, **more: Foreign) -> int:
        self.layers.append({"kind": kind, "input": source, **more})
        self._shapes.append(shape)
        if source in self._flat:
            self._flat.add(len(self.layers))
        return len(self.layers)

    def relu(self, layer: nn.Module | None, name: str, source: int) -> int:
        """Let the layer before do it, if it has just been added."""
        if source == len(self.layers) > 0 and not self.layers[-1].get("relu"):
            self.layers[-1]["relu"] = True
            return source
        return self.append("sum", source, self._shapes[source], relu=True)

    def flatten(self, layer: nn.Flatten, name: str, source: int) -> int:
        _need((layer.start_dim, layer.end_dim) == (1, -1), f"the layer {name} flattens some dimensions only")
        self._flat.add(source)  # the next linear layer is a window over all of it
        return source

    def linear(self, layer: nn.Linear, name: str, source: int) -> int:
        _need(source in self._flat, f"the linear layer {name} does not read a vector")
        whole = self._shapes[source][1:], (1, 1), (0, 0)
        return self._windows("convolution", source, *whole, channels=layer.out_features, **self._weights(layer, name))

    def convolution(self, layer: nn.Conv2d, name: str, source: int) -> int:
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and layer.dilation == (1, 1)
        _need(plain, f"the convolution {name} has groups, dilation or a padding other than zeros")
        narrow = not isinstance(layer.padding, str) and all(map(operator.lt, layer.padding, layer.kernel_size))
        _need(narrow, f"the convolution {name} has a padding by name, or as wide as its kernel")
        more = {"channels": layer.out_channels, **self._weights(layer, name)}
        return self._windows("convolution", source, *_window(layer), **more)

    def batch_norm(self, layer: nn.BatchNorm2d, name: str, source: int) -> int:
        kept = layer.affine and layer.track_running_stats and layer.momentum is not None
        _need(kept, f"the BatchNorm {name} has no weights, or keeps no exponential running statistics")
        places = {"mean": self._buffers[f"{name}running_mean"], "variance": self._buffers[f"{name}running_var"]}
        more = {"eps": layer.eps, "momentum": layer.momentum, **places, **self._weights(layer, name)}
        return self.append("batch_norm", source, self._shapes[source], **more)

    def group_norm(self, layer: nn.GroupNorm, name: str, source: int) -> int:
        _need(layer.affine, f"the GroupNorm {name} has no weights")
        more = {"eps": layer.eps, "groups": layer.num_groups, **self._weights(layer, name)}
        return self.append("group_norm", source, self._shapes[source], **more)

    def max_pool(self, layer: nn.MaxPool2d, name: str, source: int) -> int:
        plain = not layer.ceil_mode and not layer.return_indices and _pair(layer.dilation) == (1, 1)
        _need(plain, f"the pooling {name} has dilation, partial windows or indices")
        return self._windows("max_pool", source, *_window(layer))

    def mean_pool(self, layer: nn.AvgPool2d, name: str, source: int) -> int:
        plain = not layer.ceil_mode and _pair(layer.padding) == (0, 0) and layer.divisor_override is None
        _need(plain, f"the pooling {name} has padding, partial windows or a divisor of its own")
        return self._windows("mean_pool", source, *_window(layer))

    def whole_pool(self, layer: nn.AdaptiveAvgPool2d, name: str, source: int) -> int:
        _need(_pair(layer.output_size) == (1, 1), f"the pooling {name} leaves more than one pixel")
        return self._windows("mean_pool", source, self._shapes[source][1:], (1, 1), (0, 0))

    def identity(self, layer: nn.Module, name: str, source: int) -> int:
        return source

    def _windows(self, kind: str, source: int, kernel: Shape, stride: Shape, padding: Shape, **more: Foreign) -> int:
        """Append a layer that moves a window over its input."""
        channels, *sides = self._shapes[source]
        moved = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(sides, kernel, stride, padding, strict=True)]
        shape = (more.get("channels", channels), *moved)
        return self.append(kind, source, shape, kernel=kernel, stride=stride, padding=padding, **more)

    def _weights(self, layer: Foreign, name: str) -> Plain:
        """Return where the weight and the bias lie in the vector of parameters, each of which is used once."""
        found = {kind: f"{name}{kind}" for kind in ("weight", "bias") if getattr(layer, kind) is not None}
        _need(self._parameters.keys() >= set(found.values()), _ONCE)
        return {kind: self._parameters.pop(place) for kind, place in found.items()}


_ONCE = "parameters are used twice, or not at all"


def _need(held: object, why: str) -> None:
    if not held:
        raise Untranslated(why)


def _places(arrays: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return where each array begins in the vector of all."""
    ends = accumulate(array.numel() for array in arrays.values())
    return {name: end - array.numel() for (name, array), end in zip(arrays.items(), ends, strict=True)}


def _pair(value: Foreign) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _window(layer: Foreign) -> tuple[Shape, Shape, Shape]:
    return _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)


Reader = Callable[[Table, Foreign, str, int], int]
_MODULES: dict[type[nn.Module], Reader] = {
    nn.Linear: Table.linear,
    nn.Conv2d: Table.convolution,
    nn.BatchNorm1d: Table.batch_norm,
    nn.BatchNorm2d: Table.batch_norm,
    nn.GroupNorm: Table.group_norm,
    nn.ReLU: Table.relu,
    nn.MaxPool2d: Table.max_pool,
    nn.AvgPool2d: Table.mean_pool,
    nn.AdaptiveAvgPool2d: Table.whole_pool,
    nn.Flatten: Table.flatten,
    nn.Identity: Table.identity,
}
QUIET = {nn.Sequential, *_MODULES}  # they do the same at every call, and draw no random numbers
