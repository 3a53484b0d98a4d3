"""The kernels, as functions of torch tensors. Each function checks its arguments and calls a kernel.

State vectors (models, sums, moments) are 1-D, contiguous and on one device, in fp32 unless a function says otherwise.
An update is one array or a list of consecutive pieces of any shape, in fp32, fp16 or bf16 (torch, NumPy or DLPack). An
update is read in place. Functions whose names end in ``_`` change vectors that they are passed. If an argument is
refused, nothing is written. The functions run on the CPU and, except ``combine``, on CUDA devices.
"""

import sys
from typing import TYPE_CHECKING

from fastagg import _checks
from fastagg.ops.cached import cached_step_, read_row
from fastagg.ops.checks import OPTIMIZERS, Update
from fastagg.ops.combine import RobustRule, combine
from fastagg.ops.distill import SoftTargets, alpha_bounds, distillation_loss, soft_targets
from fastagg.ops.place import on_cuda
from fastagg.ops.step import step_
from fastagg.ops.update import Distances, Inspection, accumulate_, difference, distances, inspect, measure

__all__ = [
    "OPTIMIZERS",
    "Distances",
    "Inspection",
    "RobustRule",
    "SoftTargets",
    "Update",
    "accumulate_",
    "alpha_bounds",
    "cached_step_",
    "combine",
    "difference",
    "distances",
    "distillation_loss",
    "inspect",
    "measure",
    "on_cuda",
    "read_row",
    "soft_targets",
    "step_",
]

if not TYPE_CHECKING:  # a type checker that sees this function would accept every misspelt name

    def __getattr__(name: str) -> object:
        raise _checks.no_attribute(sys.modules[__name__], name)
