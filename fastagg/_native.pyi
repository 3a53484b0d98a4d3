"""Types of the compiled module (csrc/bindings)."""

from types import SimpleNamespace

_Pieces = list[tuple[int, int, int]]

cuda_architectures: str
cuda_version: int
cuda_emulated: bool
cuda: SimpleNamespace  # the CPU's functions, on a device and a stream

class Hyper:
    def __init__(self, lr: float, beta1: float, beta2: float, eps: float, root_scale: float) -> None: ...

def step(
    pieces: _Pieces,
    direction: int,
    acc: int,
    base: int,
    gain: float,
    weight: float,
    scale: float,
    optimizer: int,
    hyper: Hyper,
    m: int,
    v: int,
    vhat: int,
    x: int,
    x_out: int,
    units: int,
    blocks: int,
    random: RandomKey,
) -> None: ...

class Rows:
    def __init__(self, format: int, data: int, scales: int, row_bytes: int, row_scales: int) -> None: ...

class RandomKey:
    def __init__(self, seed: int, arrival: int, client: int) -> None: ...

def cached_step(
    pieces: _Pieces,
    rows: Rows,
    kind: int,
    gain: float,
    write: int,
    read: int,
    random: RandomKey,
    high: int,
    low: int,
    entering: float,
    leaving: float,
    sum_scale: float,
    acc: int,
    acc_out: int,
    weight: float,
    acc_scale: float,
    terms: list[tuple[int, float]],
    optimizer: int,
    hyper: Hyper,
    m: int,
    v: int,
    vhat: int,
    x: int,
    x_out: int,
    units: int,
    blocks: int,
    rounding: RandomKey,
) -> None: ...
def recompute_sum(
    size: int, rows: Rows, weights: int, slots: int, high: int, low: int, first: int, last: int
) -> None: ...
def read_row(size: int, rows: Rows, slot: int, out: int) -> None: ...
def accumulate(pieces: _Pieces, acc: int, weight: float, acc_out: int) -> None: ...
def fold(models: list[tuple[_Pieces, int, float]], acc: int, acc_out: int) -> list[bool]: ...
def sum_squares(pieces: _Pieces) -> float: ...
def distances(pieces: _Pieces, x: int, base: int, wants_inner: bool) -> tuple[float, float, float]: ...
def sketch(pieces: _Pieces, k: int, seed: int, out: int) -> None: ...
def copy(pieces: _Pieces, first: int, count: int, item: int, out: int) -> None: ...
def gather(pieces: _Pieces, out: int) -> None: ...
def soft_targets_f32(
    logits: int, scale: float, rows: int, classes: int, probs: int, labels: int, entropy: int
) -> None: ...
def soft_targets_f64(
    logits: int, scale: float, rows: int, classes: int, probs: int, labels: int, entropy: int
) -> None: ...
def distill_f32(
    logits: int,
    probs: int,
    labels: int,
    entropy: int,
    which: int,
    teachers: int,
    rows: int,
    classes: int,
    alpha_min: float,
    alpha_max: float,
    gradient: int,
) -> tuple[float, float]: ...
def distill_f64(
    logits: int,
    probs: int,
    labels: int,
    entropy: int,
    which: int,
    teachers: int,
    rows: int,
    classes: int,
    alpha_min: float,
    alpha_max: float,
    gradient: int,
) -> tuple[float, float]: ...
def cpu_isas() -> dict[str, bool]: ...
def isa() -> str: ...
def select_isa(name: str) -> bool: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...
def cuda_device_count() -> int: ...
