"""The kernels in plain float64 torch: the specification they are tested against, and the fallback on devices
that have no kernel.

Same names, arguments and in-place convention as :mod:`fastagg.ops`. Arithmetic is float64 whatever the tensors
hold; results are rounded once, when they are written back. State tensors may be float64 themselves. Stored rows are the
exception: their bits are specified, so they are made in fp32 as the kernels make them.
"""

from fastagg.reference.cached import add_rows_, cached_step_, read_row, recompute_sum_, settle_rows_
from fastagg.reference.distill import distillation, soft_targets
from fastagg.reference.rows import decode, encode, random_bits
from fastagg.reference.sketch import sketch
from fastagg.reference.step import accumulate_, distances, fold, gather, step_, sum_squares

__all__ = [
    "accumulate_",
    "add_rows_",
    "cached_step_",
    "decode",
    "distances",
    "distillation",
    "encode",
    "fold",
    "gather",
    "random_bits",
    "read_row",
    "recompute_sum_",
    "settle_rows_",
    "sketch",
    "soft_targets",
    "step_",
    "sum_squares",
]
