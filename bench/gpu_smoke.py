"""A first test on a GPU, in a minute: every kind of rule takes six answers there, and must give the CPU's bits.

The answers are such that a wrong norm, delay or base model changes bits. Norms are 0.1 to 10 times the clipping bound,
answers come late, and the mixed versions differ. In a build that emulates CUDA, the test runs on the CPU.
"""

from __future__ import annotations

import contextlib
import time

import torch

import fastagg
from fastagg import _build
from fastagg.ops import place
from fastagg.rules.privacy import NoiseKey

SIZE = 10_007  # no multiple of a vector's or a warp's size
CLIP = 100.0  # near the norm of an update
LATE = fastagg.Polynomial(0.5)
RULES = {
    "ASGD, clipped": lambda x: fastagg.ASGD(x, lr=0.1, clip_norm=CLIP),
    "DelayAdaptiveASGD": lambda x: fastagg.DelayAdaptiveASGD(x, lr=0.1, delay_threshold=1),
    "FedBuff, clipped, stale": lambda x: fastagg.FedBuff(x, lr=0.5, buffer_size=2, clip_norm=CLIP, staleness=LATE),
    "FADAS": lambda x: fastagg.FADAS(x, lr=0.01, buffer_size=2, delay_threshold=1, clip_norm=CLIP),
    "FADAS, moments in 8 bits": lambda x: fastagg.FADAS(x, lr=0.01, buffer_size=2, moments="8bit", clip_norm=CLIP),
    "FedAsync": lambda x: fastagg.FedAsync(x, policy="polynomial", clip_norm=CLIP),
    "AsyncFedED": lambda x: fastagg.AsyncFedED(x, lam=1.0, eps=1.0),
    "ACE, int8": lambda x: fastagg.ACE(x, lr=0.1, num_clients=3, cache="int8", clip_norm=CLIP),
    "ACE, fp32": lambda x: fastagg.ACE(x, lr=0.1, num_clients=3, clip_norm=CLIP),
    "ACED, int4": lambda x: fastagg.ACED(x, lr=0.1, num_clients=3, cache="int4", max_delay=1, warmup="partial"),
    "CA2FL, bf16": lambda x: fastagg.CA2FL(x, num_clients=3, buffer_size=2, cache="bf16", clip_norm=CLIP),
    "HeLoCo": lambda x: fastagg.HeLoCo([x[:3000], x[3000:]], clip_norm=CLIP),
    "FedBuff, private": lambda x: fastagg.FedBuff(x, buffer_size=3, privacy=fastagg.Gaussian(1.0, CLIP)),
    "median": lambda x: fastagg.Server(x, fastagg.Robust("median", 3), fastagg.Adam(0.1), LATE, clip_norm=CLIP),
    "Krum": lambda x: fastagg.Server(x, fastagg.Robust("multi_krum", 3), fastagg.SGD(0.5), LATE, clip_norm=CLIP),
}
FORMATS = ("int8", "int4", "int8-tensor", "sign", fastagg.TopK(0.01, "int2"))


def played(make: object, device: str, form: object = None) -> tuple[torch.Tensor, float]:
    """Return the model after six answers, and the last answer's seconds. ``form``: the updates' format; None: fp32."""
    generator = torch.Generator().manual_seed(1)
    server = make(torch.randn(SIZE, generator=generator).to(device))  # type: ignore[operator]
    server._engine.begin_incarnation(0, 7)  # the same noise, and the same key
    if getattr(server.direction, "privacy", None) is not None:
        server._draw_with(NoiseKey(range(32)))
    idle = [0, 1, 2]
    for turn, size in enumerate((1.0, 0.1, 10.0, 0.3, 3.0, 1.0)):
        for client in [*idle]:  # a new task at once, so that the other clients' tasks are older
            with contextlib.suppress(fastagg.TooSoon):
                server.dispatch(client)
                idle.remove(client)
        client = turn % 3
        update = torch.randn(SIZE, generator=generator).mul_(size)
        update = update.to(device) if form is None else fastagg.encode(update, form, seed=turn)  # type: ignore[arg-type]
        begun = time.perf_counter()
        server.receive(client, update)
        took = time.perf_counter() - begun
        idle.append(client)
    return server.flat.cpu(), took


def main() -> None:
    info = fastagg.build_info()
    emulated = _build.native.cuda_emulated
    device = "cpu" if emulated else "cuda"
    name = "emulated" if emulated else torch.cuda.get_device_name()
    print(f"{name}; CUDA {torch.version.cuda}; compiled for {info['cuda_architectures']}")
    waiting = ("FedBuff, clipped, stale", "median")
    encoded = [(f"{rule}, {form}", RULES[rule], form) for rule in waiting for form in FORMATS]
    for rule, make, form in [*((rule, make, None) for rule, make in RULES.items()), *encoded]:
        expected, _ = played(make, "cpu", form)
        with place.emulated() if emulated else contextlib.nullcontext():
            found, took = played(make, device, form)
        assert torch.equal(found, expected), f"{rule}: {(found != expected).sum()} of {SIZE} elements differ"
        print(f"{rule}: the CPU's bits, the last answer in {1e6 * took:.0f} us")


if __name__ == "__main__":
    main()
