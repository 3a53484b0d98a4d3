"""Type hints of the compiled module ``fastagg._native`` (csrc/bindings). An address is an int, as of ``data_ptr()``."""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor

_Piece = tuple[int, int, int]  # address, elements, dtype code
_Batch = tuple[int, int]  # the shape of logits: rows, classes
_Targets = tuple[int, int, int, int]  # addresses of probabilities, labels and entropies; number of rows

optimizers: dict[str, tuple[str, ...]]  # name -> names of the optimizer's moments
plain_optimizers: list[str]  # names of optimizers without 8-bit moments
row_formats: dict[str, tuple[int, bool]]  # name -> (bits per element, whether rows have scales)
scale_block: int  # elements that share a scale
most_combined: int  # the most updates that can be combined
block: int  # elements in a block

sources: str  # the digest of the source files (cmake/digest.cmake)
cuda_architectures: str
cuda_emulated: bool  # whether the CUDA kernels run on the CPU, for tests
cuda_skipped: str  # why this build has no CUDA kernels; exists only in such a build
# These two and the next two functions exist only in builds with CUDA.
cuda_ptx: str  # the architectures whose PTX is included
cuda_version: int  # of the CUDA runtime, for example 12040

def cuda_device_count() -> int: ...
def cuda_answer() -> tuple[int, int, str]: ...  # number of devices, driver's CUDA version, reason if it is 0

# Local training (csrc/train). A layer is a dict of the fields of `Description` (table.h).
class Table:
    def __init__(self, *, shape: Sequence[int], layers: Sequence[Mapping[str, Any]], **settings: int) -> None: ...
    def train(self, **given: Any) -> Training | None: ...  # arguments: fastagg/sim/clients/fused.py
    @property
    def outputs(self) -> int: ...  # how many outputs a sample has
    def evaluate(self, *, start: int, buffers: int, x: int, samples: int, outputs: int) -> None: ...

class Crew:
    """Threads that train clients ahead of time."""

    def __init__(self, threads: int) -> None: ...

class Training:
    def wait(self) -> None: ...  # if no thread has begun the training, the caller trains

# The draws of a numpy.random.Generator. `seed` has the four words that NumPy derives from a seed (csrc/train/order.h).
def uniform(seed: bytes) -> float: ...
def below(seed: bytes, count: int) -> int: ...
def permutations(seed: bytes, size: int, count: int, out: int) -> None: ...

# The structs that describe a step (csrc/plan.h).

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

# The kernels of the CPU. `step` and `accumulate` run on a CUDA device if `where` is not None. `given` has their named
# arguments, which fastagg/ops/checks.py and cached.py make.

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

# The processor, its instruction sets, and the settings of kernels.

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

class cuda:  # really a module, but a stub file must write it as a class
    """Kernels on a CUDA device. A call returns before its kernel has run."""

    class Where:
        def __init__(self, *, device: int, stream: int) -> None: ...

    Against: Any  # Against, Loss: structs of csrc/cuda/cuda.h
    Loss: Any
    @staticmethod
    def compute_capability(device: int, /) -> tuple[int, int]: ...
    @staticmethod
    def measure_scratch(size: int, /) -> int: ...
    @staticmethod
    def measure_counters(size: int, /) -> int: ...
    measure: Any  # these four start kernels on the stream `where`
    read_row: Any
    soft_targets: Any
    distill: Any

emulation: Any  # only in builds that emulate CUDA for tests (tests/emulation/testing.h)

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

# The base classes of fastagg's Dispatch and Receipt. fastagg/server/dispatch.py documents the fields.

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

# The submodules for encoded updates, a server's state, and the log on disk. csrc/bindings/{encoding,engine,extension,
# directions,log}.cpp define their functions, which fastagg/{encoding,server,rules,durable} and storage/pieces.py call.
encoding: Any
engine: Any
log: Any
