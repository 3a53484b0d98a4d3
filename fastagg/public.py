"""All public names, in one place. ``import fastagg`` imports this module when the first of them is used."""

from fastagg import clients, ops, presets, reference, registry
from fastagg._build import build_info, get_num_threads, set_isa, set_num_threads
from fastagg.distill import Distillation
from fastagg.errors import (
    Busy,
    CacheError,
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DTypeMismatch,
    FastaggError,
    MissingDependency,
    NonFiniteUpdate,
    NotDelivered,
    NotDurable,
    NotSharded,
    RankLost,
    Reentered,
    RunFailed,
    ShapeMismatch,
    StaleIncarnation,
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
from fastagg.serving.leaves import Leaf, Partial
from fastagg.serving.loading import load
from fastagg.durable.opening import open
from fastagg.serving.server import Server
from fastagg.serving.settings import ServerSettings

try:  # TEMP
    from fastagg.serving.shards.server import Slice, sharded
except Exception:
    Slice = None
    sharded = None
from fastagg.serving.watching import watch
from fastagg.storage.cache import ClientCache
from fastagg.storage.shared import SharedVector
from fastagg.storage.tiered import Tiered

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
    "CacheError",
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
    "Leaf",
    "Lookahead",
    "MissingDependency",
    "Mixing",
    "Momentum",
    "NonFiniteUpdate",
    "NotDelivered",
    "NotDurable",
    "NotSharded",
    "Optimizer",
    "Partial",
    "Polynomial",
    "RankLost",
    "Reentered",
    "Receipt",
    "RunFailed",
    "Server",
    "ServerSettings",
    "ShapeMismatch",
    "SharedVector",
    "Single",
    "Slice",
    "StaleIncarnation",
    "Staleness",
    "Tiered",
    "UnknownClient",
    "UnknownVersion",
    "UpdateTooLarge",
    "Yogi",
    "build_info",
    "clients",
    "get_num_threads",
    "load",
    "open",
    "ops",
    "presets",
    "reference",
    "register",
    "registry",
    "set_isa",
    "set_num_threads",
    "sharded",
    "watch",
]
