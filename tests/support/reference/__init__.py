"""The kernels in plain float64 torch, which they are tested against.

Names, arguments and the in-place convention are those of :mod:`fastagg.ops`. Arithmetic is float64 for all types of
tensors. Results are rounded once, when they are written. State tensors may be float64 themselves. Stored rows are an
exception: their bits are specified, so they are computed in fp32 as in the kernels.
"""

from support.reference.combine import combine
from support.reference.distill import distillation, soft_targets
from support.reference.exact import exact_terms
from support.reference.rows import decode, encode, random_bits
from support.reference.step import accumulate_, distances, step_, sum_squares

__all__ = [
    "accumulate_",
    "combine",
    "decode",
    "distances",
    "distillation",
    "encode",
    "exact_terms",
    "random_bits",
    "soft_targets",
    "step_",
    "sum_squares",
]
