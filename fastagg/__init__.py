"""The server side of (asynchronous) federated learning at memory-bandwidth speed.

Every algorithm's server step is one pass over memory, on CPU and CUDA. Start with a preset
(:func:`FADAS`, :func:`FedBuff`, :func:`FedAsync`) or assemble a :class:`Server` from parts.
"""

from fastagg import clients, ops, presets, reference, registry
from fastagg._build import build_info, get_num_threads, set_isa, set_num_threads
from fastagg.distill import Distillation
from fastagg.errors import (
    Busy,
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DTypeMismatch,
    FastaggError,
    MissingDependency,
    NonFiniteUpdate,
    OtherLife,
    RunFailed,
    ShapeMismatch,
    UnknownClient,
    UnknownVersion,
    UpdateTooLarge,
)
from fastagg.layout import Layout
from fastagg.parts.directions import (
    ActiveSet,
    AllClients,
    Buffer,
    Calibrated,
    Cohort,
    CosineBuffer,
    Differences,
    Direction,
    Echo,
    Mixing,
    Single,
)
from fastagg.parts.euclidean import Euclidean
from fastagg.parts.optimizers import SGD, Adagrad, Adam, AMSGrad, Lookahead, Momentum, Optimizer, Yogi
from fastagg.parts.staleness import Constant, DelayAdaptive, Facts, Hinge, Polynomial, Staleness
from fastagg.presets import (
    ACE,
    ACED,
    ASGD,
    CA2FL,
    FADAS,
    AsyncFedED,
    DelayAdaptiveASGD,
    FedAC,
    FedAdagrad,
    FedAdam,
    FedAMS,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedEcho,
    FedProx,
    FedYogi,
)
from fastagg.registry import register
from fastagg.serving.dispatch import Dispatch, Receipt
from fastagg.serving.loading import load
from fastagg.serving.server import Server
from fastagg.serving.settings import ServerSettings
from fastagg.serving.versions import VersionStore
from fastagg.storage.cache import ClientCache

__version__ = build_info()["version"]

__all__ = [
    "ACE",
    "ACED",
    "ASGD",
    "CA2FL",
    "FADAS",
    "SGD",
    "AMSGrad",
    "ActiveSet",
    "Adagrad",
    "Adam",
    "AllClients",
    "AsyncFedED",
    "Buffer",
    "Busy",
    "Calibrated",
    "CheckpointError",
    "ClientCache",
    "Cohort",
    "ConfigError",
    "Constant",
    "CosineBuffer",
    "DTypeMismatch",
    "DataError",
    "DelayAdaptive",
    "DelayAdaptiveASGD",
    "DeviceError",
    "Differences",
    "Direction",
    "Dispatch",
    "Distillation",
    "Echo",
    "Euclidean",
    "Facts",
    "FastaggError",
    "FedAC",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedEcho",
    "FedProx",
    "FedYogi",
    "Hinge",
    "Layout",
    "Lookahead",
    "MissingDependency",
    "Mixing",
    "Momentum",
    "NonFiniteUpdate",
    "Optimizer",
    "OtherLife",
    "Polynomial",
    "Receipt",
    "RunFailed",
    "Server",
    "ServerSettings",
    "ShapeMismatch",
    "Single",
    "Staleness",
    "UnknownClient",
    "UnknownVersion",
    "UpdateTooLarge",
    "VersionStore",
    "Yogi",
    "build_info",
    "clients",
    "get_num_threads",
    "load",
    "ops",
    "presets",
    "reference",
    "register",
    "registry",
    "set_isa",
    "set_num_threads",
]
