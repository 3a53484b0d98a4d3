"""A zoo of models: what a module may hold. For every form, and for adapters: ``for name, animal in ZOO.items()``."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fastagg
from support.models import Residual, Tied


class Holds(nn.Module):
    """A layer, and buffers of any kind."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        for name, value in buffers.items():
            self.register_buffer(name, value)


class Opaque(Holds):
    """State that is no number: bytes, which differ from client to client."""

    def __init__(self) -> None:
        super().__init__()
        self.said = b"server"

    def get_extra_state(self) -> Tensor:
        return torch.frombuffer(bytearray(self.said), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        self.said = bytes(state.tolist())


class Empty(Holds):
    def __init__(self) -> None:
        super().__init__(nothing=torch.zeros(0))
        self.none, self.one = nn.Parameter(torch.zeros(0, 4)), nn.Parameter(torch.tensor(2.0))


class Packed(nn.Module):
    """A frozen weight in four bits, as bitsandbytes has one: its scales are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6, dtype=torch.uint8).view(6, 1), requires_grad=False)
        self.scales = {"absmax": torch.rand(3), "quant_map": torch.linspace(-1, 1, 16), "shape": torch.tensor([3, 4])}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination |= {f"{prefix}weight.{name}": value for name, value in self.scales.items()}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        missing, unexpected = rest[2], rest[3]
        for name in self.scales:
            self.scales[name] = state_dict.pop(f"{prefix}weight.{name}")
        super()._load_from_state_dict(state_dict, prefix, rest[0], rest[1], missing, unexpected, rest[4])


class Adapted(nn.Module):
    """LoRA on it."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.down, self.up = Packed(), nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)


def quantised() -> nn.Module:
    module = Holds()
    module.register_buffer("codes", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
    return module


class Animal(NamedTuple):
    """One model.

    Attributes:
        make: makes it.
        kept: the names that neither steps nor clients change.
        buffers: the setting that tells which arrays are buffers, where names do not.
        becomes: of buffers, a number that all elements have after clients sent 4 and 6 of each.
        refused: the error, of every form that has it.
    """

    make: Callable[[], nn.Module]
    kept: tuple[str, ...] = ()
    buffers: Mapping[str, str] | None = None
    becomes: Mapping[str, float] = {}
    refused: type[fastagg.FastaggError] | None = None


causal = torch.full((4, 4), -math.inf).triu(1)
ZOO: dict[str, Animal] = {
    "residual": Animal(
        Residual, (),
        {f"{layer}.1.{what}*": mode for layer in ("stem", "body") for what, mode in (("run", "mean"), ("num", "max"))},
        {"stem.1.running_mean": 5.0, "stem.1.num_batches_tracked": 6},
    ),
    "tied, frozen": Animal(Tied, ("frozen.weight", "frozen.bias")),
    "extra state": Animal(Opaque, ("_extra_state",)),
    "masks": Animal(lambda: Holds(causal=causal.clone(), seen=torch.tensor([True, False])), ("causal", "seen")),
    "random state": Animal(lambda: Holds(rng=torch.arange(9, dtype=torch.uint8)), ("rng",)),
    "means": Animal(lambda: Holds(ema=torch.ones(3)), (), {"ema": "mean"}, {"ema": 5.0}),
    "sizes": Animal(lambda: Holds(cluster_size=torch.ones(3)), (), {"cluster*": "max"}, {"cluster_size": 6.0}),
    "queue": Animal(lambda: Holds(queue=torch.ones(2, 3)), (), {"queue": "first"}, {"queue": 4.0}),
    "kept": Animal(
        lambda: Holds(scale=torch.ones(3), at=torch.tensor(7)), ("scale", "at"), {"scale": "keep", "at": "keep"}
    ),
    "counts": Animal(lambda: Holds(num_updates=torch.tensor(0)), (), {"num_updates": "max"}, {"num_updates": 6}),
    "whole numbers": Animal(
        lambda: Holds(
            places=torch.arange(4).view(1, 4), packed=torch.arange(6, dtype=torch.int32), at=torch.tensor(7),
            short=torch.arange(3, dtype=torch.int16), tiny=torch.tensor(3, dtype=torch.int8),
        ),
        ("places", "packed", "at", "short", "tiny"),
    ),
    "packed weights": Animal(Adapted, tuple(Adapted().packed.state_dict(prefix="packed."))),
    "a normaliser": Animal(
        lambda: Holds(mean=torch.rand(3), std=torch.rand(3)), ("mean", "std"), {"mean": "keep", "std": "keep"}
    ),
    "empty, scalar": Animal(Empty),
    "float64, channels last": Animal(lambda: Residual().double().to(memory_format=torch.channels_last)),  # type: ignore[call-overload]
    "fp16": Animal(lambda: Residual().half()),
    "bf16": Animal(lambda: Residual().bfloat16()),
    "lazy": Animal(lambda: nn.Sequential(nn.LazyLinear(3)), refused=fastagg.ShapeMismatch),
    "complex": Animal(lambda: Holds(phase=torch.zeros(2, dtype=torch.complex64)), refused=fastagg.DTypeMismatch),
    "quantised": Animal(quantised, refused=fastagg.DTypeMismatch),
    "nothing trains": Animal(lambda: nn.Linear(2, 2).requires_grad_(False), refused=fastagg.ShapeMismatch),
}  # fmt: skip


def arrays(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """A state_dict as NumPy's arrays, those of one memory sharing it; bf16 has none there."""
    held = {name: value.detach() for name, value in state.items()}
    return {name: value if value.dtype is torch.bfloat16 else value.numpy() for name, value in held.items()}


FORMS: dict[str, Callable[[nn.Module], Any]] = {
    "module": lambda module: module,
    "state_dict": lambda module: module.state_dict(),
    "list": lambda module: list(module.state_dict().values()),
    "NumPy's by name": lambda module: arrays(module.state_dict()),
    "list of NumPy's": lambda module: list(arrays(module.state_dict()).values()),
    "flat": lambda module: torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]),
}


def settings(animal: Animal, form: str) -> dict[str, Any]:
    """The server's settings for a form: lists have no names but places."""
    if animal.buffers is None or form == "flat":
        return {}
    names = list(animal.make().state_dict())
    if "list" not in form:
        return {"buffers": dict(animal.buffers)}
    modes = animal.buffers.items()
    return {"buffers": {str(i): m for p, m in modes for i, n in enumerate(names) if n.startswith(p.rstrip("*"))}}


def trained(module: nn.Module, params: Mapping[str, Tensor], value: float) -> dict[str, Tensor]:
    """What a client sends back: parameters moved, and everything else of its own."""
    trains = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    return {
        name: array + 0.25 * value if name in trains
        else array.clone() if array.dtype is torch.bool or not bool(torch.isfinite(array.double()).all())
        else torch.full_like(array, value)
        for name, array in params.items()
    }  # fmt: skip
