"""Functions to average LoRA adapters of different ranks, for programs of clients and servers.

Adapters are dicts of arrays as ``peft.get_peft_model_state_dict`` returns them. Every adapted layer has
``<layer>.lora_A.weight``, [rank, in], and ``<layer>.lora_B.weight``, [out, rank]. ``scale * B A`` is added to the
layer's weight, [out, in]. In peft, the scale is ``lora_alpha / rank``. A server whose model is only the adapters keeps,
sends and averages only adapters. There are two ways to let clients have different ranks:

- **padded** (HetLoRA, Cho et al. 2024): the server's adapters have the largest rank. A client trains the first rows of
  A and the first columns of B (:func:`cut`), and pads the result with zeros (:func:`padded`). The server averages A and
  B separately. This is an approximation, because the product of their means is not the mean of the products ``B A``.
  All clients must have the same scale, so ``lora_alpha = rank``.
- **stacked** (FLoRA, Wang et al. 2024): the server averages the products (:func:`products`), with any rule. This is
  exact for every mixture of ranks: ``sum_i p_i B_i A_i`` is the product of the stacks ``[p_1 B_1 ... p_n B_n]`` and
  ``[A_1; ...; A_n]``. The server's model has the adapted layers' weights. Clients send adapters whose training began
  with ``B = 0`` (a reply of kind ``lora``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fastagg import _checks
from fastagg.errors import ShapeMismatch
from fastagg.storage import memory
from fastagg.storage.pieces import as_tensor

_A, _B, _PEFT = ".lora_A.weight", ".lora_B.weight", "base_model.model."


def cut(adapters: Mapping[str, object], rank: int) -> dict[str, Tensor]:
    """Return the part of the server's adapters that a client of a smaller rank trains: the first ``rank`` rows of each
    A and the first ``rank`` columns of each B.

    Args:
        adapters: adapters of at least this rank. Arrays that are not adapters are returned unchanged.
        rank: the client's rank, >= 1.

    Raises:
        ShapeMismatch: the adapters have a smaller rank.
        ConfigError: the rank is out of range.
    """
    _checks.whole("rank", rank, least=1)
    tensors = {}
    for name, array in adapters.items():
        tensor = as_tensor(array)
        axis = _axis(name, tensor)
        if axis is not None:
            if tensor.shape[axis] < rank:
                raise ShapeMismatch(f"{name!r}: expected a rank of at least {rank}, got {tensor.shape[axis]}")
            tensor = tensor.narrow(axis, 0, rank).clone()
        tensors[name] = tensor
    return tensors


def padded(adapters: Mapping[str, object], rank: int) -> dict[str, Tensor]:
    """Return a client's adapters, padded with zeros to the server's ``rank``. Each product ``B A`` stays the same.
    Arrays that are not adapters are returned unchanged.

    Raises:
        ShapeMismatch: the adapters have a larger rank.
        ConfigError: the rank is out of range.
    """
    _checks.whole("rank", rank, least=1)
    tensors = {}
    for name, array in adapters.items():
        tensor = as_tensor(array)
        axis = _axis(name, tensor)
        if axis is not None:
            more = rank - tensor.shape[axis]
            if more < 0:
                raise ShapeMismatch(f"{name!r}: expected a rank of at most {rank}, got {tensor.shape[axis]}")
            shape = list(tensor.shape)
            shape[axis] = more
            tensor = torch.cat([tensor, tensor.new_zeros(shape)], axis)
        tensors[name] = tensor
    return tensors


def products(
    adapters: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], scale: float = 1.0
) -> dict[str, Tensor]:
    """Return the update that adapters make: ``scale * B A`` for every adapted weight, and zeros for other parameters.
    All arrays are fp32.

    Args:
        adapters: A and B of each adapted layer.
        shapes: the shapes of all parameters by name, such as ``<layer>.weight``, without peft's ``base_model.model.``.
        scale: peft's ``lora_alpha / rank``.

    Raises:
        ShapeMismatch: an array is not an adapter, A or B of a layer is missing, or ``shapes`` lacks the layer's weight.
    """
    _checks.number("scale", scale)
    update = {}
    for name, first in adapters.items():
        if name.endswith(_B) and name.removesuffix(_B) + _A in adapters:
            continue
        layer = name.removesuffix(_A)
        if layer == name or layer + _B not in adapters:
            raise ShapeMismatch(f"{name!r}: expected <layer>{_A} and <layer>{_B} of every layer")
        a, b = as_tensor(first).float(), as_tensor(adapters[layer + _B]).float()
        weight = layer.removeprefix(_PEFT) + ".weight"
        if weight not in shapes:
            raise ShapeMismatch(f"{name!r}: the model has no {weight!r}")
        if (
            a.dim() != 2
            or b.dim() != 2
            or a.shape[0] != b.shape[1]
            or (b.shape[0], a.shape[1]) != tuple(shapes[weight])
        ):
            halves = f"A {list(a.shape)} and B {list(b.shape)}"
            raise ShapeMismatch(f"{layer!r}: {halves} are no adapters of {weight!r}, {list(shapes[weight])}")
        update[weight] = scale * (b @ a)
    zeros = {name: memory.zeros(math.prod(shape)).view(shape) for name, shape in shapes.items() if name not in update}
    return {name: (update if name in update else zeros)[name] for name in shapes}


def _axis(name: str, tensor: Tensor) -> int | None:
    """Return the dimension whose length is the rank. None: the array is not an adapter."""
    if not name.endswith((_A, _B)):
        return None
    if tensor.dim() != 2:
        raise ShapeMismatch(f"{name!r}: expected two dimensions, got {list(tensor.shape)}")
    return 0 if name.endswith(_A) else 1
