"""The kernels in plain float64 torch. They are the specification that the kernels are tested against.

Names, arguments and the in-place convention are those of :mod:`fastagg.ops`. Arithmetic is float64 for all types of
tensors. Results are rounded once, when they are written. State tensors may be float64 themselves. Stored rows are an
exception: their bits are specified, so they are computed in fp32 as in the kernels.
"""

from fastagg.reference.cached import add_rows_, cached_step_, read_row, recompute_sum_, settle_rows_
from fastagg.reference.combine import combine
from fastagg.reference.distill import distillation, soft_targets
from fastagg.reference.exact import exact_terms
from fastagg.reference.rows import decode, encode, random_bits
from fastagg.reference.step import accumulate_, distances, fold, gather, step_, sum_squares

__all__ = [
    "accumulate_",
    "add_rows_",
    "cached_step_",
    "combine",
    "decode",
    "distances",
    "distillation",
    "encode",
    "exact_terms",
    "fold",
    "gather",
    "random_bits",
    "read_row",
    "recompute_sum_",
    "settle_rows_",
    "soft_targets",
    "step_",
    "sum_squares",
]
