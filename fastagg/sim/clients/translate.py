"""Networks as tables of layers, which the compiled extension trains (csrc/train).

A class of modules may say ``fused = True``: its ``forward`` does the same at every call, so that it is read once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

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
        if len(shape) not in (1, 3):
            raise Untranslated(f"inputs have {len(shape)} dimensions")
        if any(not p.requires_grad or p.dtype is not torch.float32 for p in module.parameters()):
            raise Untranslated("some parameters do not train, or are not fp32")
        self.shape: Shape = tuple(shape) if len(shape) == 3 else (shape[0], 1, 1)
        self.layers: list[Plain] = []
        self._shapes = [self.shape]
        self._flat = {0} if len(shape) == 1 else set()  # values that torch sees as vectors
        self._parameters, end = {}, 0
        for name, p in module.named_parameters():
            self._parameters[name] = end
            end += p.numel()
        self._buffers, end = {}, 0
        self.counters = 0
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point():
                self._buffers[name] = end
                end += buffer.numel()
            else:
                self.counters += 1
        self._used: set[str] = set()
        for name, layer in module.named_modules():
            if type(layer) not in QUIET and not getattr(layer, "fused", False):
                raise Untranslated(f"the table has no layer {type(layer).__name__} ({name or 'the model itself'})")
        if (reader := _MODULES.get(type(module))) is not None:
            reader(self, module, "", 0)
        else:
            self._read(_trace(module), module)
        if self._used != set(self._parameters):
            raise Untranslated("parameters are used twice, or not at all")
        if sum(layer["kind"] == "batch_norm" for layer in self.layers) != self.counters:
            raise Untranslated("buffers are not BatchNorm's")
        if not self.layers or self._shapes[-1][1:] != (1, 1):
            raise Untranslated("the output is not a vector of classes")

    def _read(self, graph: fx.Graph, module: nn.Module) -> None:
        found: dict[fx.Node, int] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                if found:
                    raise Untranslated("the model takes more than one input")
                found[node] = 0
            elif node.op == "output":
                if node.args[0] not in found or found[node.args[0]] != len(self.layers):
                    raise Untranslated("the output is not the last layer's")
            else:
                found[node] = self._add(node, module, found)

    def _add(self, node: fx.Node, module: nn.Module, found: dict[fx.Node, int]) -> int:
        inputs = [found[arg] for arg in node.args if isinstance(arg, fx.Node)]
        if node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            reader = _MODULES.get(type(layer))
            if reader is not None and len(inputs) == 1:
                return reader(self, layer, f"{node.target}.", inputs[0])
            raise Untranslated(f"the table has no layer {type(layer).__name__} ({node.target})")
        if node.target in _RELUS and len(inputs) == 1:
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
        if (layer.start_dim, layer.end_dim) != (1, -1):
            raise Untranslated(f"the layer {name} flattens some dimensions only")
        self._flat.add(source)  # the next linear layer is a window over all of it
        return source

    def linear(self, layer: nn.Linear, name: str, source: int) -> int:
        if source not in self._flat:
            raise Untranslated(f"the linear layer {name} does not read a vector")
        added = self._convolution(layer, name, source, layer.out_features, self._shapes[source][1:], (1, 1), (0, 0))
        self._flat.add(added)
        return added

    def convolution(self, layer: nn.Conv2d, name: str, source: int) -> int:
        if layer.groups != 1 or layer.padding_mode != "zeros" or layer.dilation != (1, 1):
            raise Untranslated(f"the convolution {name} has groups, dilation or a padding other than zeros")
        if isinstance(layer.padding, str) or any(p >= k for p, k in zip(layer.padding, layer.kernel_size, strict=True)):
            raise Untranslated(f"the convolution {name} has a padding by name, or as wide as its kernel")
        window = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)
        return self._convolution(layer, name, source, layer.out_channels, *window)

    def _convolution(
        self, layer: nn.Linear | nn.Conv2d, name: str, source: int, channels: int, kernel: Shape, stride: Shape,
        padding: Shape,
    ) -> int:  # fmt: skip
        bias = {} if layer.bias is None else {"bias": self._place(f"{name}bias")}
        shape = (channels, *self._windows(name, source, kernel, stride, padding))
        return self.append(
            "convolution", source, shape, channels=channels, kernel=kernel, stride=stride, padding=padding,
            weight=self._place(f"{name}weight"), **bias,
        )  # fmt: skip

    def batch_norm(self, layer: nn.BatchNorm2d, name: str, source: int) -> int:
        if not layer.affine or not layer.track_running_stats or layer.momentum is None:
            raise Untranslated(f"the BatchNorm {name} has no weights, or keeps no exponential running statistics")
        places = {"mean": self._buffers[f"{name}running_mean"], "variance": self._buffers[f"{name}running_var"]}
        return self._norm("batch_norm", layer, name, source, momentum=layer.momentum, **places)

    def group_norm(self, layer: nn.GroupNorm, name: str, source: int) -> int:
        if not layer.affine:
            raise Untranslated(f"the GroupNorm {name} has no weights")
        return self._norm("group_norm", layer, name, source, groups=layer.num_groups)

    def _norm(self, kind: str, layer: Foreign, name: str, source: int, **more: Foreign) -> int:
        weights = {"weight": self._place(f"{name}weight"), "bias": self._place(f"{name}bias")}
        return self.append(kind, source, self._shapes[source], eps=layer.eps, **weights, **more)

    def max_pool(self, layer: nn.MaxPool2d, name: str, source: int) -> int:
        if layer.ceil_mode or layer.return_indices or _pair(layer.dilation) != (1, 1):
            raise Untranslated(f"the pooling {name} has dilation, partial windows or indices")
        return self._pool("max_pool", layer, name, source)

    def mean_pool(self, layer: nn.AvgPool2d, name: str, source: int) -> int:
        if layer.ceil_mode or _pair(layer.padding) != (0, 0) or layer.divisor_override is not None:
            raise Untranslated(f"the pooling {name} has padding, partial windows or a divisor of its own")
        return self._pool("mean_pool", layer, name, source)

    def _pool(self, kind: str, layer: Foreign, name: str, source: int) -> int:
        window = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)
        shape = (self._shapes[source][0], *self._windows(name, source, *window))
        return self.append(kind, source, shape, kernel=window[0], stride=window[1], padding=window[2])

    def whole_pool(self, layer: nn.AdaptiveAvgPool2d, name: str, source: int) -> int:
        if _pair(layer.output_size) != (1, 1):
            raise Untranslated(f"the pooling {name} leaves more than one pixel")
        channels, *kernel = self._shapes[source]
        return self.append("mean_pool", source, (channels, 1, 1), kernel=kernel, stride=(1, 1), padding=(0, 0))

    def identity(self, layer: nn.Module, name: str, source: int) -> int:
        return source

    def _windows(self, name: str, source: int, kernel: Shape, stride: Shape, padding: Shape) -> Shape:
        sides = zip(self._shapes[source][1:], kernel, stride, padding, strict=True)
        return tuple((size + 2 * p - k) // s + 1 for size, k, s, p in sides)

    def _place(self, name: str) -> int:
        if name in self._used or name not in self._parameters:
            raise Untranslated("parameters are used twice, or not at all")
        self._used.add(name)
        return self._parameters[name]


def _pair(value: Foreign) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _trace(module: nn.Module) -> fx.Graph:
    try:
        return fx.Tracer().trace(module)
    except Exception as error:  # whatever a forward function does with what is no tensor
        raise Untranslated(f"its forward function cannot be traced ({type(error).__name__})") from None


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
_RELUS = (torch.relu, functional.relu, "relu")
