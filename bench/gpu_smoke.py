"""The first minute on a card: every kind of rule takes three answers there and has the CPU's bits.

In a build that emulates CUDA, the CPU stands in for the card.
"""

from __future__ import annotations

import contextlib
import time

import torch

import fastagg
from fastagg import _build
from fastagg.ops import place
from fastagg.rules.privacy import NoiseKey

SIZE = 10_007  # no multiple of a vector or a warp
RULES = {
    "ASGD": lambda x: fastagg.ASGD(x, lr=0.1),
    "FedBuff": lambda x: fastagg.FedBuff(x, lr=0.5, buffer_size=3),
    "FADAS": lambda x: fastagg.FADAS(x, lr=0.01, buffer_size=2),
    "FedAsync": lambda x: fastagg.FedAsync(x, policy="polynomial"),
    "AsyncFedED": lambda x: fastagg.AsyncFedED(x, lam=1.0, eps=1.0),
    "ACE, int8": lambda x: fastagg.ACE(x, lr=0.1, num_clients=3, cache="int8"),
    "ACE, fp32": lambda x: fastagg.ACE(x, lr=0.1, num_clients=3),
    "HeLoCo": lambda x: fastagg.HeLoCo([x[:3000], x[3000:]]),
    "FedBuff, private": lambda x: fastagg.FedBuff(x, buffer_size=3, privacy=fastagg.Gaussian(1.0, 0.5)),
    "median": lambda x: fastagg.Server(x, fastagg.Robust("median", 3), fastagg.Adam(0.1)),
    "Krum": lambda x: fastagg.Server(x, fastagg.Robust("multi_krum", 3), fastagg.SGD(0.5)),
}
FORMATS = ("int8", "int4", "int8-tensor", "sign", fastagg.TopK(0.01, "int2"))


def played(make: object, device: str, form: object = None) -> tuple[torch.Tensor, float]:
    """Return the model after three answers, in a format or as they are, and the seconds of the last."""
    generator = torch.Generator().manual_seed(1)
    server = make(torch.randn(SIZE, generator=generator).to(device))  # type: ignore[operator]
    server._engine.begin_incarnation(0, 7)  # the same noise, and the same key
    if getattr(server.direction, "privacy", None) is not None:
        server._draw_with(NoiseKey(range(32)))
    for turn in range(3):
        server.dispatch(turn)
        update = torch.randn(SIZE, generator=generator)
        update = update.to(device) if form is None else fastagg.encode(update, form, seed=turn)  # type: ignore[arg-type]
        begun = time.perf_counter()
        server.receive(turn, update)
        took = time.perf_counter() - begun
    return server.flat.cpu(), took


def main() -> None:
    info = fastagg.build_info()
    emulated = _build.native.cuda_emulated
    device = "cpu" if emulated else "cuda"
    name = "emulated" if emulated else torch.cuda.get_device_name()
    print(f"{name}; CUDA {torch.version.cuda}; compiled for {info['cuda_architectures']}")
    encoded = [(f"{rule}, {form}", RULES[rule], form) for rule in ("FedBuff", "median") for form in FORMATS]
    for rule, make, form in [*((rule, make, None) for rule, make in RULES.items()), *encoded]:
        expected, _ = played(make, "cpu", form)
        with place.emulated() if emulated else contextlib.nullcontext():
            found, took = played(make, device, form)
        assert torch.equal(found, expected), f"{rule}: {(found != expected).sum()} of {SIZE} elements differ"
        print(f"{rule}: the CPU's bits, the third answer in {1e6 * took:.0f} us")


if __name__ == "__main__":
    main()
