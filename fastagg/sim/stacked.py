"""Trains several small models of one architecture at once: every layer has a stack of weights, one per client.

Activations are [clients, ..., batch]. Because the batch comes last, operations between two matrix products read and
write long runs of memory even with few channels, and nothing is transposed between layers. Each layer returns its
output and a function that computes its gradient. Autograd would take as long as a small layer itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from fastagg.sim import stacked_images
from fastagg.sim.stacked_layers import ALIASES, KEEPING, Backward, Layer, Place
from fastagg.sim.stacked_layers import LAYERS as FLAT

LAYERS: dict[type[nn.Module], Layer] = {**FLAT, **stacked_images.LAYERS}


def refusal(module: nn.Module) -> str | None:
    """Return why this module cannot run stacked; None if it can."""
    for name, layer in _layers(module):
        where = name.rstrip(".") or "the model itself"
        if type(layer) not in LAYERS:
            return f"a layer {type(layer).__name__} ({where}) is not run in stacks"
        if reason := stacked_images.refusal(layer, where):
            return reason
        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1):
            return f"the layer {where} flattens some dimensions only"
    if any(not p.requires_grad or p.dtype is not torch.float32 for p in module.parameters()):
        return "some parameters do not train, or are not fp32"
    return None


def width(module: nn.Module, shape: Sequence[int]) -> int:
    """Return the number of values per sample where it is largest, the inputs ``shape`` included."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    x = torch.zeros(1, *shape, device=device)
    found, training = x.numel(), module.training
    module.eval()
    with torch.inference_mode():  # of real numbers, because torch takes milliseconds for a layer without any
        for _, layer in _layers(module):
            x = layer(x)
            found = max(found, x.numel())
    module.train(training)
    return found


def gradients(
    module: nn.Module, x: Tensor, y: Tensor, weights: Mapping[str, Tensor], keep: Tensor
) -> dict[str, Tensor]:
    """Gradients, in the form of ``weights``' parameters, of each client's own mean cross-entropy on its own batch.

    Args:
        module: the architecture.
        x: [clients, batch, ...].
        y: [clients, batch].
        weights: parameters and buffers by name, [clients, *shape]; the buffers are updated in place.
        keep: [clients, batch], 1 for samples and 0 for the padding of a shorter batch.
    """
    found: dict[str, Tensor] = {}
    backwards: list[Backward] = []
    count = keep.sum(dim=1, keepdim=True)
    owned = False
    layers = list(_layers(module))
    x = x.movedim(1, -1)
    if any(type(layer) in stacked_images.LAYERS for _, layer in layers):
        x = x.contiguous()  # a matrix product reads it as well where it lies
    for name, layer in layers:
        # Below the first layer with parameters no gradient is needed.
        learns = any(True for _ in layer.parameters())
        place = Place(name, weights, keep, count, found, asked=bool(backwards), owned=owned)
        x, backward = LAYERS[type(layer)](layer, x, place)
        if learns or backwards:
            backwards.append(backward)
        owned = not isinstance(layer, KEEPING) and (owned or not isinstance(layer, ALIASES))
    gradient = _cross_entropy(x, y, keep / count)
    for backward in reversed(backwards):
        gradient = backward(gradient)
    return found


def _cross_entropy(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """Return the gradient of each client's mean loss. It is zero for samples that do not count."""
    share = share.unsqueeze(1)
    return logits.softmax(dim=1).mul_(share).scatter_add_(1, y.unsqueeze(1), -share)


def _layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(module, nn.Sequential):
        yield prefix, module
        return
    for name, layer in module.named_children():
        yield from _layers(layer, f"{prefix}{name}.")
