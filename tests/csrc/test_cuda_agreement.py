"""CUDA's kernels against the CPU's, bit for bit: on a GPU, or emulated on the CPU (tests/emulation)."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.kernels import DECAYS
from support.properties import examples
from torch import Tensor

import fastagg
from fastagg import ops
from fastagg._build import native
from fastagg.errors import ConfigError, NonFiniteUpdate
from fastagg.ops.checks import update_of
from fastagg.ops.place import emulated, place, where
from fastagg.rules import moments
from fastagg.rules.privacy import NoiseKey
from fastagg.storage import memory
from fastagg.storage.cache import FORMATS, ClientCache
from fastagg.storage.pieces import as_pieces

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.cuda,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and native.cuda_architectures) and not native.cuda_emulated,
        reason="needs a GPU, or a build that emulates one",
    ),
]

# Vectors that end inside a row, a scale block, a block and a strand.
SIZES = st.one_of(st.integers(0, 40), st.integers(100, 1300), st.integers(2000, 9000))


class Side(NamedTuple):
    """A copy of a state, for a second run of the same operation."""

    device: torch.device
    on: Callable[[], AbstractContextManager[None]]

    def put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, copy=True)


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Side, Side]]:
    if native.cuda_emulated:
        cpu = torch.device("cpu")
        yield Side(cpu, lambda: emulated(False)), Side(cpu, lambda: emulated(True))
    else:
        yield Side(torch.device("cpu"), nullcontext), Side(torch.device("cuda", 0), nullcontext)


def same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a.keys() - {"bound", "peak"}:  # of norms, which a server that defers never learns
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif isinstance(a, Tensor):
        a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.numel():
            assert torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))
    else:
        assert a == b


def numbers(rng: np.random.Generator, size: int) -> Tensor:
    return torch.from_numpy((rng.standard_normal(size) * 10.0 ** rng.integers(-6, 3)).astype(np.float32))


def offset(tensor: Tensor, by: int) -> Tensor:
    """The same numbers at an address that is `by` elements off."""
    room = torch.empty(tensor.numel() + by, dtype=tensor.dtype, device=tensor.device)
    return room[by:].copy_(tensor)


WIDE = (torch.float32, torch.bfloat16)  # types that hold large numbers


def cut(
    rng: np.random.Generator, update: Tensor, pieces: int, dtypes: Sequence[torch.dtype] = (*WIDE, torch.float16)
) -> list[Tensor]:
    """An update in pieces of several types."""
    ends = sorted(rng.integers(0, update.numel() + 1, pieces - 1).tolist())
    parts = zip([0, *ends], [*ends, update.numel()], strict=True)
    return [update[a:b].to(dtypes[int(rng.integers(len(dtypes)))]) for a, b in parts]


# Parameters of tests, not of properties, choose what is a kernel of its own. So each runs, however few the examples.
KINDS = pytest.mark.parametrize("kind", ["single", "acc", "base"])
READERS = pytest.mark.parametrize("pieced", [False, True], ids=["whole", "in pieces"])
FEW = examples(20)


@pytest.mark.parametrize("optimizer", list(ops.OPTIMIZERS))
@KINDS
@READERS
@FEW
@example(5123, 0)  # at even addresses, and at odd ones
@example(5123, 1)
@given(SIZES, st.integers(0, 2**31))
def test_step(sides: tuple[Side, Side], optimizer: str, kind: str, pieced: bool, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = {name: numbers(rng, size).abs() for name in ("x", "acc", "base", "m", "v", "vhat")}
    update, shift = numbers(rng, size), seed % 3
    pieces = cut(rng, update, int(rng.integers(2, 7))) if pieced else [update]
    gain, weight, scale = (float(v) for v in rng.uniform(0.1, 2.0, 3))
    results = []
    for side in sides:
        with side.on():
            here = {name: offset(side.put(tensor), shift) for name, tensor in state.items()}
            held = {name: here[name] for name in ops.OPTIMIZERS[optimizer]}
            out = torch.empty_like(here["x"]) if seed % 2 else None
            extra = {} if kind == "single" else {kind: here[kind]}
            given_pieces = [offset(side.put(piece), shift) for piece in pieces]
            ops.step_(
                here["x"], given_pieces, optimizer=optimizer, lr=0.1, gain=gain, weight=weight, scale=scale, out=out,
                correction=3 if seed % 3 == 0 else None, **DECAYS[seed % 4], **held, **extra,
            )  # fmt: skip
            results.append([here["x"], out if out is not None else here["x"], held])
    same(*results)


ADAPTIVE = [name for name in ops.OPTIMIZERS if name not in native.plain_optimizers]


@KINDS
@READERS
@FEW
@example(5123, "amsgrad", 0)
@given(SIZES, st.sampled_from(ADAPTIVE), st.integers(0, 2**31))
def test_step_with_moments_in_8_bits(
    sides: tuple[Side, Side], kind: str, pieced: bool, size: int, optimizer: str, seed: int
) -> None:
    """Several steps, since units change; one of them a jump by many powers of two, some of zero, one that overflows."""
    rng = np.random.default_rng(seed)
    start = {name: numbers(rng, size) for name in ("x", "acc", "base")}
    updates = [numbers(rng, size) * float(factor) for factor in (1.0, 1e-3, 0.0, 1e12, 1.0, 1e19)]
    all_pieces = [cut(rng, update, 3, WIDE) if pieced else [update] for update in updates]
    shift, by_bytes = seed % 3, int(rng.integers(0, 3))
    results = []
    for side in sides:
        with side.on():
            here = {name: offset(side.put(tensor), shift) for name, tensor in start.items()}
            held = moments.zeros(optimizer, "8bit", size, side.device)
            held = {name: tensor if name == "units" else offset(tensor, by_bytes) for name, tensor in held.items()}
            extra = {} if kind == "single" else {kind: here[kind]}
            for step, pieces in enumerate(all_pieces):
                given_pieces = [offset(side.put(piece), shift) for piece in pieces]
                ops.step_(
                    here["x"], given_pieces, optimizer=optimizer, lr=0.1, gain=0.9, weight=0.7, scale=0.3,
                    rounding=(seed, step), **DECAYS[step % 4], **held, **extra,
                )  # fmt: skip
            results.append([here["x"], held])
    same(*results)


@given(SIZES, st.integers(0, 2**31))
def test_reading(sides: tuple[Side, Side], size: int, seed: int) -> None:
    """accumulate, difference and norms."""
    rng = np.random.default_rng(seed)
    vectors = [numbers(rng, size) for _ in range(4)]
    pieces = cut(rng, vectors[3], int(rng.integers(1, 600 if seed % 5 == 0 else 5)))
    results = []
    for side in sides:
        with side.on():
            acc, x, base, _ = (side.put(vector) for vector in vectors)
            update = [side.put(piece) for piece in pieces]
            seen = ops.distances(update, x, base, inner=True)
            plain = ops.distances(update, x, base)
            sums = [ops.accumulate_(acc.clone(), update, 0.3), ops.accumulate_(acc.clone(), update, 0.3, fresh=True)]
            flat = ops.accumulate_(torch.empty_like(x), update, fresh=True)
            apart = ops.difference(x, base, torch.empty_like(x))
            norm = ops.inspect(update)
            results.append([tuple(seen), tuple(plain), sums, flat, apart, tuple(norm)])
    same(*results)


@pytest.mark.parametrize("format", list(FORMATS))
@pytest.mark.parametrize("optimizer", ["sgd", "amsgrad", "amsgrad in 8 bits", "yogi in 8 bits", None])
@READERS
@FEW
@example(5123, False, 1)
@example(5123, True, 2)
@given(SIZES, st.booleans(), st.integers(0, 2**31))
def test_cached_step(
    sides: tuple[Side, Side], format: str, optimizer: str | None, pieced: bool, size: int, calibrated: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    slots, steps = 5, 6
    start = {name: numbers(rng, size) for name in ("x", "acc", "m", "v", "vhat")}
    updates = [cut(rng, numbers(rng, size), 3) if pieced else [numbers(rng, size)] for _ in range(steps)]
    plan = [[int(v) for v in rng.integers(-1, slots, 3)] for _ in range(steps)]
    many = 300 if seed % 7 == 0 else 3
    term_lists = [[(int(s), float(w)) for s, w in zip(rng.integers(0, slots, n), rng.normal(size=n), strict=True)]
                  for n in rng.integers(0, many, steps)]  # fmt: skip
    factors = rng.uniform(0.2, 2.0, (steps, 4))
    results = []
    for side in sides:
        with side.on():
            cache, total = ClientCache(size, slots, format, side.device, seed), memory.zeros(size, side.device)
            cache.data.fill_(1)  # not zero: what follows a row must be written as the CPU writes it
            cache.scales.fill_(1e-3)
            here = {name: side.put(tensor.abs() if name != "x" else tensor) for name, tensor in start.items()}
            kind, eight = (optimizer or "").removesuffix(" in 8 bits"), bool(optimizer) and optimizer.endswith("bits")
            held = {name: here[name] for name in ops.OPTIMIZERS.get(kind, ())}
            if eight:
                held = moments.zeros(kind, "8bit", size, side.device)
            for i, update in enumerate(updates):
                write, read, client = plan[i]
                gain, entering, leaving, scale = (float(f) for f in factors[i])
                steps_with = {"optimizer": kind, "lr": 0.1, **held, **DECAYS[i % 4]} if optimizer else {}
                if eight:
                    steps_with["rounding"] = (seed, i)
                other = (
                    {"acc": here["acc"], "fresh": i == 0, "weight": entering, "acc_scale": leaving}
                    if calibrated
                    else {"entering": entering, "leaving": leaving if read >= 0 else 0.0}
                )
                ops.cached_step_(
                    here["x"] if optimizer else None, [side.put(piece) for piece in update],
                    cache=cache, write=write, read=read, client=max(client, 0),
                    arrival=i, gain=gain, sum=total, sum_scale=scale,
                    terms=term_lists[i] if optimizer or not calibrated else (), **other, **steps_with,
                )  # fmt: skip
            rows = [ops.read_row(cache, slot) for slot in range(slots)]
            results.append([here["x"], here["acc"], held, total, cache.data, cache.scales, rows])
    same(*results)


# Strands, groups and the slots that groups are dealt out to end inside, at and after each other.
LONG = (2047, 2048, 2049, 65_535, 65_536, 65_537, 3 * 65_536 + 2049)


@pytest.mark.parametrize("size", [*LONG, 257 * 65_536 + 33])
def test_norms_of_long_updates(sides: tuple[Side, Side], size: int) -> None:
    """Sums have the CPU's bits whatever their length, in pieces of any type, at odd addresses."""
    rng = np.random.default_rng(size)
    vectors = [numbers(rng, size) for _ in range(3)]
    pieces = [[vectors[0]]] if size > 10**6 else [[vectors[0]], cut(rng, vectors[0], 9)]
    results = []
    for side in sides:
        with side.on():
            shifted = [offset(side.put(vector), 1) for vector in vectors]
            there = [side.put(vector) for vector in vectors]
            found = [tuple(ops.inspect([side.put(piece) for piece in update])) for update in pieces]
            found.append(tuple(ops.distances(*shifted, inner=True)))
            if size < 10**6:
                found.append(tuple(ops.inspect(shifted[0])))
                found += [tuple(ops.distances(*of, inner=inner)) for of in (there, shifted) for inner in (True, False)]
            results.append(found)
    same(*results)


def test_what_a_launch_refuses(sides: tuple[Side, Side]) -> None:
    _, gpu = sides
    with gpu.on():
        x, cache = gpu.put(torch.zeros(2000)), ClientCache(2000, 2, "int8", gpu.device)
        at = where(place(gpu.device))
        pieces = as_pieces([x[i : i + 1] for i in range(201)])
        with pytest.raises(ConfigError, match="200 pieces"):
            against = native.cuda.Against(x=0, base=0, inner=False)
            native.cuda.measure(update_of(pieces), against, scratch=0, sums=0, where=at)
        with pytest.raises(ConfigError, match="no slot 2"):
            native.cuda.read_row(cache.native, slot=2, out=x.data_ptr(), where=at)
    same(x, torch.zeros(2000))


def bad(size: int) -> Tensor:
    update = torch.ones(size)
    update[size // 2] = float("nan")
    return update


def test_measure(sides: tuple[Side, Side]) -> None:
    rng = np.random.default_rng(0)
    update, x, base = (numbers(rng, 70_000) for _ in range(3))
    cpu, gpu = sides
    with cpu.on():
        expected = ops.distances(update, x, base, inner=True)
    with gpu.on():
        there = [gpu.put(t) for t in (update, x, base)]
        norm2, moved2, inner = ops.measure(there[0], x=there[1], base=there[2], inner=True).tolist()
        assert (norm2**0.5, moved2**0.5, inner) == (expected.norm, expected.moved, expected.inner)
        assert ops.measure(there[0], x=there[1], base=there[2]).tolist() == [norm2, moved2, 0.0]
        assert ops.measure(there[0]).tolist() == [norm2, 0.0, 0.0]
        assert math.isnan(ops.measure(gpu.put(bad(70_000))).tolist()[0])


# -- whole servers ------------------------------------------------------------------------------------------------

N = 6
PRESETS: dict[str, Callable[..., fastagg.Server]] = {
    "FADAS": lambda p, **k: fastagg.FADAS(p, lr=0.1, buffer_size=3, delay_threshold=1, **k),
    "FedBuff, clipped": lambda p, **k: fastagg.FedBuff(p, buffer_size=2, clip_norm=5.0, weighting="samples", **k),
    "FedAsync": lambda p, **k: fastagg.FedAsync(p, alpha=0.5, policy="polynomial", a=0.5, **k),
    "ASGD, clipped": lambda p, **k: fastagg.ASGD(p, lr=0.1, clip_norm=3.0, **k),
    "ACE int8": lambda p, **k: fastagg.ACE(p, lr=0.1, num_clients=N, cache="int8", **k),
    "ACE fp32, direct": lambda p, **k: fastagg.ACE(p, lr=0.1, num_clients=N, mode="direct", **k),
    "ACE int4, samples": lambda p, **k: fastagg.ACE(p, lr=0.1, num_clients=N, cache="int4", weighting="samples", **k),
    "ACED bf16": lambda p, **k: fastagg.ACED(
        p, lr=0.1, num_clients=N, cache="bf16", max_delay=3, warmup="partial", **k
    ),
    "CA2FL": lambda p, **k: fastagg.CA2FL(p, lr=0.1, num_clients=N, buffer_size=3, cache="int8", **k),
    "AsyncFedED": lambda p, **k: fastagg.AsyncFedED(p, lam=1.0, eps=1.0, **k),
    "FADAS in 8 bits": lambda p, **k: fastagg.FADAS(p, buffer_size=3, moments="8bit", **k),
    "ACE with AMSGrad in 8 bits": lambda p, **k: fastagg.Server(
        p, fastagg.AllClients(N, "int8", warmup="partial"), fastagg.AMSGrad(0.01, moments="8bit"), **k
    ),
    "AsyncDiLoCo": lambda p, **k: fastagg.AsyncDiLoCo(p, period=4, **k),
    "Nesterov, ahead, dropped": lambda p, **k: fastagg.Server(
        p, fastagg.Single(), fastagg.Nesterov(0.3, 0.8, look_ahead=True), fastagg.Cutoff(4), **k
    ),
    "ACE with AMSGrad": lambda p, **k: fastagg.Server(
        p, fastagg.AllClients(N, "int8", warmup="partial"), fastagg.AMSGrad(0.01), **k
    ),
}


# Those that a step waits for on the host.
WAITING: dict[str, Callable[..., fastagg.Server]] = {
    "FedBuff, private": lambda p, **k: fastagg.FedBuff(p, buffer_size=2, privacy=fastagg.Gaussian(1.0, 3.0), **k),
    "FADAS in 8 bits, private": lambda p, **k: fastagg.FADAS(
        p, buffer_size=3, moments="8bit",
        privacy=fastagg.Gaussian(0.8, fastagg.AdaptiveClip(initial=20.0, count_noise=1.0)), **k
    ),
    "HeLoCo": lambda p, **k: fastagg.HeLoCo([p[:3], p[3:5], p[5:]], **k),
    "HeLoCo, clipped, weighed": lambda p, **k: fastagg.Server(
        [p[:1], p[1:]], fastagg.Aligned(), fastagg.Nesterov(0.5), fastagg.Euclidean(1.0, 1.0), clip_norm=4.0, **k
    ),
    "median": lambda p, **k: fastagg.Server(
        p, fastagg.Robust("median", 4), fastagg.Adam(0.1), fastagg.Polynomial(0.5), clip_norm=4.0,
        answers_per_step=None, **k
    ),
    "Krum in 8 bits": lambda p, **k: fastagg.Server(
        p, fastagg.Robust("multi_krum", 5, f=1), fastagg.AMSGrad(0.1, moments="8bit"), answers_per_step=None, **k
    ),
    "median, in order": lambda p, **k: fastagg.FedMedian(
        p, clients_per_round=3, deterministic=True, answers_per_step=None, **k
    ),
    "one by one, correlated noise": lambda p, **k: fastagg.Server(
        p, fastagg.Buffer(1, privacy=fastagg.Gaussian(
            0.5, 2.0, correlation=fastagg.BLT((0.3, 0.2), (0.95, 0.4)), max_participations=99,
        )), fastagg.Adam(0.1), **k
    ),
}  # fmt: skip


TOP = (0.05, "fp32"), (0.2, "bf16"), (0.5, "int8"), (1.0, "int2")
WIRES: list[Any] = ["int8", "int4", "int8-tensor", "sign", "bf16", *(fastagg.TopK(*how) for how in TOP)]


def keyed(server: fastagg.Server) -> bool:
    """Let two servers draw the same noise, if they draw any."""
    private = getattr(server.direction, "privacy", None) is not None
    if private:
        server._draw_with(NoiseKey(range(32)))
        server._engine.begin_incarnation(server.version, 7)
    return private


def run(
    side: Side,
    make: Callable[..., fastagg.Server],
    size: int,
    seed: int,
    moves: bool = False,
    encoded: bool = False,
    **settings: Any,
) -> Any:
    """A trace of arrivals, one of which is refused; what the server holds and said at its end."""
    rng = np.random.default_rng(seed)
    with side.on():
        server = make(numbers(rng, size), device=side.device, seed=seed, **settings)
        private = keyed(server)  # nobody takes part twice
        receipts, steps = [], []
        for i in range(40):
            if i == 30 and moves:  # what a checkpoint holds is told from
                server.load_state_dict(server.state_dict())
                keyed(server)
            client = i if private else int(rng.integers(N))
            steps.append(server.dispatch(client).local_steps)
            if rng.random() < 0.6:
                update = numbers(rng, size)
                sent: Any = fastagg.encode(update, WIRES[i % len(WIRES)], seed=i) if encoded else side.put(update)
                samples = float(rng.integers(1, 9))
                if i % 9 == 5:
                    with pytest.raises(NonFiniteUpdate):
                        server.receive(client, side.put(bad(size)), num_samples=samples)
                receipt = server.receive(client, sent, num_samples=samples)
                receipts.append((receipt.version, receipt.delay, receipt.applied, receipt.step_size))
        state = {**server.state_dict(), "sent": server.dispatch(99 if private else 0).flat}
        return [{key: state[key] for key in ("flat", "moments", "direction", "version", "sent")}, receipts, steps]


@pytest.mark.parametrize("name", WAITING)
@pytest.mark.parametrize("size", [7, 1030])
def test_servers_that_wait(sides: tuple[Side, Side], name: str, size: int) -> None:
    same(*(run(side, WAITING[name], size, 3, moves=True) for side in sides))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("size", [7, 1030])
def test_servers(sides: tuple[Side, Side], name: str, size: int) -> None:
    same(*(run(side, PRESETS[name], size, 3) for side in sides))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("size", [7, 1030])
def test_servers_that_are_sent_encoded_updates(sides: tuple[Side, Side], name: str, size: int) -> None:
    found = [run(side, PRESETS[name], size, 5, encoded=True) for side in sides]
    for state, *_ in found:  # on the CPU they wait as they came, and the sum is not there yet
        state["direction"] = {key: held for key, held in state["direction"].items() if key not in ("acc", "held")}
    same(*found)


ROBUST: dict[str, dict[str, Any]] = {
    "median": {}, "trimmed": {"trim": 0.21}, "mean_around_median": {"f": 1}, "krum": {"f": 1},
    "multi_krum": {"f": 1}, "geometric_median": {"smoothing": 1e-3}, "centered_clip": {"radius": 20.0},
}  # fmt: skip


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 5), (2, 1030), (5, 198_657), (7, 2500), (8, 1024), (17, 700), (33, 2), (65, 301), (300, 41), (1024, 9)],
)
def test_robust_rules(sides: tuple[Side, Side], rule: Any, count: int, size: int) -> None:
    """Updates in every form wait on either side, and a checkpoint of one is read by the other. Seven are nearly the
    same, so their differences are added up. Senders use their memory again."""
    if count < {"krum": 5, "multi_krum": 5, "mean_around_median": 3}.get(rule, 1):
        pytest.skip("too few updates")
    rng, cuts = np.random.default_rng(count), [size // 3, size - size // 3]
    near = numbers(rng, size) * (1e4 if count == 7 else 1.0)
    rows = [near + numbers(rng, size) * (30.0 if k % 5 == 4 else 1.0) for k in range(count)]

    def form(k: int, side: Side) -> Any:
        which = 0 if count == 7 else k % 5
        if which == 4:
            return fastagg.encode(list(rows[k].split(cuts)), WIRES[k // 5 % len(WIRES)], seed=k)
        types = [WIDE[0], WIDE[0]], [WIDE[1], WIDE[1]], WIDE, WIDE[::-1]
        return [side.put(one).to(dtype) for one, dtype in zip(rows[k].split(cuts), types[which], strict=True)]

    def played(*on: Side) -> list[Any]:
        state, model = None, [torch.ones(cut) for cut in cuts]
        for half, side in enumerate(on):
            with side.on():
                direction = fastagg.Robust(rule, count, **ROBUST[rule])
                server = fastagg.Server(model, direction, fastagg.AMSGrad(0.1), clip_norm=1e6, device=side.device)
                if state is not None:
                    server.load_state_dict(state)
                for k in range(count)[half * count // 2 : (half + 1) * count // 2]:
                    server.dispatch(k)
                    sent = form(k, side)
                    server.receive(k, sent)
                    for piece in sent if isinstance(sent, list) else []:
                        piece.fill_(float("nan"))
                state = server.state_dict()
        assert state is not None and state["version"] == 1
        return [state["flat"], state["moments"]]

    cpu, gpu = sides
    expected = played(cpu, cpu)
    for other in ((gpu, gpu), (cpu, gpu), (gpu, cpu))[: 1 if count > 500 else 3]:
        same(expected, played(*other))


def test_what_waited_on_the_cpu_is_added_up_where_it_is_loaded(sides: tuple[Side, Side]) -> None:
    rng = np.random.default_rng(1)
    sent = [numbers(rng, 1030), *(fastagg.encode(numbers(rng, 1030), "int8", seed=seed) for seed in range(4))]
    with sides[0].on():
        waits = fastagg.FedBuff(torch.zeros(1030), buffer_size=5)
        for client in range(5):
            waits.dispatch(client)
        for client in range(3):
            waits.receive(client, sent[client])
        state = waits.state_dict()
    results = []
    for side in sides:
        with side.on():
            server = fastagg.FedBuff(torch.zeros(1030), buffer_size=5, device=side.device)
            server.load_state_dict(state)
            for client in (3, 4):
                server.receive(client, sent[client])
            assert server.version == 1
            results.append(server.flat)
    same(*results)
