"""Types of the compiled module (csrc/bindings). Addresses are whole numbers: what ``data_ptr()`` gives."""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor

_Piece = tuple[int, int, int]  # address, elements, dtype code
_Batch = tuple[int, int]  # of logits: rows, classes
_Targets = tuple[int, int, int, int]  # addresses of probabilities, labels and entropies, and how many rows

optimizers: dict[str, tuple[str, ...]]  # name -> the moments it owns
plain_optimizers: list[str]  # names of those without 8-bit moments
row_formats: dict[str, tuple[int, bool]]  # name -> bits per element, whether it has scales
scale_block: int
most_combined: int  # updates
block: int

sources: str  # a digest of csrc/
cuda_architectures: str
cuda_skipped: str  # why there is no CUDA; in builds without it
cuda_ptx: str  # of which there is PTX; in builds with CUDA
cuda_emulated: bool
cuda_version: int  # this and what follows: in builds with CUDA

def cuda_device_count() -> int: ...
def cuda_answer() -> tuple[int, int, str]: ...  # devices, driver's CUDA, why none answers

# Local training (csrc/train). A layer is a dict of `Description`'s fields.
class Table:
    def __init__(self, *, shape: Sequence[int], layers: Sequence[Mapping[str, Any]], **settings: int) -> None: ...
    def train(self, **given: Any) -> Training | None: ...  # fastagg/sim/clients tells what
    @property
    def outputs(self) -> int: ...  # of a sample
    def evaluate(self, *, start: int, buffers: int, x: int, samples: int, outputs: int) -> None: ...

class Crew:
    """Threads that train clients ahead of time."""

    def __init__(self, threads: int) -> None: ...

class Training:
    def wait(self) -> None: ...  # trains, if no thread has begun to

# The numbers of a numpy.random.Generator from a seed of 32 bytes (csrc/train/order.h).
def uniform(seed: bytes) -> float: ...
def below(seed: bytes, count: int) -> int: ...
def permutations(seed: bytes, size: int, count: int, out: int) -> None: ...

# What a step is told (csrc/plan.h).

class Update:
    def __init__(self, pieces: Sequence[_Piece]) -> None: ...
    @staticmethod
    def one(address: int, size: int, dtype: int) -> Update: ...
    @property
    def size(self) -> int: ...

class Rows:
    def __init__(self, *, format: str, size: int, slots: int, data: int, scales: int) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def slots(self) -> int: ...

# The CPU's kernels. The first two run on a CUDA device if they are given a place there. What else they take by name is
# told by fastagg/ops/checks.py and cached.py.

def step(pieces: list[_Piece], where: cuda.Where | None, given: dict[str, Any], /) -> None: ...
def accumulate(pieces: list[_Piece], where: cuda.Where | None, given: dict[str, Any], /) -> None: ...
def sum_squares(update: Update, /) -> float: ...
def distances(update: Update, *, x: int, base: int, inner: bool) -> tuple[float, float, float]: ...
def combine(updates: Sequence[tuple[Update, float]], rule: Any, /, *, out: int) -> None: ...
def copy(update: Update, *, first: int, count: int, item: int, out: int) -> None: ...
def crc32c(update: Update, *, bytes: Sequence[int], before: int, in_software: bool) -> int: ...
def read_row(rows: Rows, *, slot: int, out: int) -> None: ...
def soft_targets_f32(*, logits: int, scale: float, batch: _Batch, out: _Targets) -> None: ...
def distill_f32(
    *, logits: int, batch: _Batch, targets: _Targets, which: int, alpha: tuple[float, float], gradient: int
) -> tuple[float, float]: ...

soft_targets_f64, distill_f64 = soft_targets_f32, distill_f32

# What runs here, and how.

def cpu_isas() -> dict[str, bool]: ...
def isa() -> str: ...
def select_isa(name: str, /) -> bool: ...
def threads() -> int: ...
def set_threads(count: int, /) -> None: ...
def processor() -> tuple[str, int, int]: ...  # vendor, family, model
def default_tuning() -> dict[str, int]: ...
def default_tuning_name() -> str: ...
def tuning() -> dict[str, int]: ...
def set_tuning(settings: Mapping[str, int]) -> None: ...

class cuda:  # a module, which a stub can write as a class alone
    """The same on a CUDA device, not waited for."""

    class Where:
        def __init__(self, *, device: int, stream: int) -> None: ...

    Against: Any  # structs of csrc/cuda/cuda.h, made by keyword
    Loss: Any
    @staticmethod
    def compute_capability(device: int, /) -> tuple[int, int]: ...
    @staticmethod
    def measure_scratch(size: int, /) -> int: ...
    @staticmethod
    def measure_counters(size: int, /) -> int: ...
    measure: Any  # the kernels, with a `where`
    read_row: Any
    soft_targets: Any
    distill: Any

emulation: Any  # for tests, in builds that emulate CUDA (tests/emulation/testing.h)

class memory:
    @staticmethod
    def look(tensor: Any, /) -> tuple[int, int, int] | None: ...
    @staticmethod
    def look_1d(tensor: Any, elements: int, type: int, /) -> int | None: ...
    @staticmethod
    def is_fit_for_torch(capsule: Any, /) -> bool: ...
    @staticmethod
    def use_torch(
        tensor: type, exchange: Any, from_dlpack: Any, ndarray: type, tensors: MutableMapping[tuple[int, int, int], Any]
    ) -> None: ...
    @staticmethod
    def vector(count: int, /) -> Any: ...
    @staticmethod
    def bytes(count: int, keep: bool) -> Any: ...
    @staticmethod
    def trim() -> None: ...
    @staticmethod
    def fail_after(count: int, /) -> None: ...
    @staticmethod
    def left_to_fail() -> int: ...

# A task and a receipt hold their numbers here; fastagg/server/dispatch.py says what they are.

class Task:
    client: int | str
    version: int
    id: int | None
    local_steps: int | None
    control: Tensor | dict[str, Tensor] | None
    incarnation: int | None
    flat: Tensor
    _layout: Any
    _encoded: Any
    _state: Any
    _params: Any
    _views: Any
    def _fill(self, *given: Any) -> None: ...

class Receipt:
    client: int | str
    applied: bool
    version: int
    delay: int
    step_size: float | None
    update_norm: float
    weight: float
    kept: bool
    task: int | None
    durable: bool
    digest: str | None
    sequence: int
    def _fill(self, *given: Any) -> None: ...

# What a server knows, and its log. csrc/bindings/{engine,extension,directions,log}.cpp tell the types. Most are made in
# one place: fastagg/server, fastagg/rules, fastagg/durable.
encoding: Any  # csrc/bindings/encoding.cpp; used by fastagg/encoding and storage/pieces.py
engine: Any
log: Any
