"""A whole optimizer step on a given direction, against torch.optim, eager and compiled torch, and NumPy."""

from conftest import benchmark

bench_optimizers = benchmark("optimizers")
