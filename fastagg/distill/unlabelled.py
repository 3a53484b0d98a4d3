"""Reads FedEcho's unlabelled inputs from tensors, mappings, Datasets and files, as a tensor or a dict of tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fastagg._types import Foreign
from fastagg.errors import DataError
from fastagg.storage.pieces import checked

Inputs = Tensor | dict[str, Tensor]


def load(source: object, samples: int | None, shape: Sequence[int] | None, seed: int) -> Inputs:
    """Read the ``unlabelled`` of a :class:`fastagg.distill.Distillation`, and draw ``samples`` samples.

    Args:
        samples: the number of samples to draw. None: all. If there are fewer, all are used.
        shape: images are resized to this shape, (channels, height, width). None: no resizing.
        seed: the seed of the draw.
    """
    inputs = _read(source)
    count = length(inputs)
    if count == 0:
        raise DataError("distill.unlabelled: there are no samples")
    if samples is not None and samples < count:
        rng = np.random.default_rng([seed, 0xEC40])
        inputs = take(inputs, torch.from_numpy(np.sort(rng.permutation(count)[:samples])))
    if shape is not None:
        if not isinstance(inputs, Tensor):
            raise DataError("distill.shape: only images are resized, the unlabelled data is a mapping")
        inputs = resize(inputs, shape)
    return inputs


def length(inputs: Inputs) -> int:
    return len(inputs) if isinstance(inputs, Tensor) else len(next(iter(inputs.values()), ()))


def take(inputs: Inputs, index: Tensor | slice) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs[index]
    return {name: tensor[index] for name, tensor in inputs.items()}


def resize(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Resize images [N, (channels,) height, width] to fp32 [N, *shape], bilinear and antialiased.

    8-bit images are scaled to 0..1. If ``shape`` has another number of channels, every new channel is the mean of the
    images' channels."""
    if images.dtype is torch.uint8:
        images = images.to(torch.float32) / 255
    if images.dim() == 3:
        images = images.unsqueeze(1)
    if images.dim() != 4 or len(shape) != 3 or not images.is_floating_point():
        raise DataError(
            f"distill.shape: expected images [N, channels, height, width] and (channels, height, width), "
            f"got {images.dtype} {list(images.shape)} and {tuple(shape)}"
        )
    channels = shape[0]
    if images.shape[1] != channels:
        grey = images.mean(dim=1, keepdim=True)
        images = grey.expand(-1, channels, -1, -1)
    if images.shape[2:] != tuple(shape[1:]):
        images = functional.interpolate(images, size=tuple(shape[1:]), mode="bilinear", antialias=True)
    return images.to(torch.float32).contiguous()


def _read(source: object) -> Inputs:
    if isinstance(source, (str, os.PathLike)):
        return _from_path(Path(source))
    if isinstance(source, Tensor):
        return source.detach()
    if isinstance(source, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(source))
    if isinstance(source, Mapping):
        tensors = {str(name): torch.as_tensor(checked(value), device="cpu") for name, value in source.items()}
        if len({len(tensor) for tensor in tensors.values()}) != 1:
            raise DataError("distill.unlabelled: expected a mapping of tensors with the same first dimension")
        return tensors
    return _from_dataset(source)


def _from_dataset(source: Foreign) -> Inputs:
    try:
        items = [source[i] for i in range(len(source))]
    except Exception as error:  # a user's own code may raise anything
        kind = type(source).__name__
        raise DataError(
            f"distill.unlabelled: expected a tensor, a mapping, a Dataset or a path, got {kind} ({error})"
        ) from error
    if not items:
        raise DataError("distill.unlabelled: there are no samples")
    if isinstance(items[0], Mapping):
        names = [name for name in items[0] if name not in ("label", "labels")]
        return {name: _stack([item[name] for item in items]) for name in names}
    return _stack([item[0] if isinstance(item, (tuple, list)) else item for item in items])


def _stack(items: Sequence[object]) -> Tensor:
    try:
        return torch.stack([item if isinstance(item, Tensor) else torch.from_numpy(np.asarray(item)) for item in items])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"distill.unlabelled: the samples are not arrays of one shape: {error}") from error


def _from_path(path: Path) -> Inputs:
    if path.is_dir():
        do = "for images give a Dataset of tensors, such as torchvision.datasets.ImageFolder(path, transform)"
        raise DataError(f"distill.unlabelled: {path}: expected a file, got a folder; {do}")
    if not path.exists():
        raise DataError(f"distill.unlabelled: {path}: no such file")
    try:
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                name = next((n for n in ("x_train", "x", "images") if n in arrays), arrays.files[0])
                return torch.from_numpy(arrays[name])
        if path.suffix == ".npy":
            return torch.from_numpy(np.load(path))
        if path.suffix == ".pt":
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            if isinstance(loaded, (Tensor, dict)):
                return _read(loaded)
    except Exception as error:  # a damaged file may raise an error of any type
        raise DataError(f"distill.unlabelled: {path}: cannot be read: {error}") from error
    raise DataError(f"distill.unlabelled: {path}: expected an .npy, .npz or .pt file")
