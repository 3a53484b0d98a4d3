"""The kernels in plain torch, which they are tested against.

Arithmetic is float64, and results are rounded once. Steps and rows are exceptions: their bits are
specified, so they are computed in fp32 as in the kernels.
"""

# ruff: noqa: F401

from support.reference.combine import combine
from support.reference.distill import distillation, soft_targets
from support.reference.rows import decode, encode, random_bits
