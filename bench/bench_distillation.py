"""FedEcho's distillation loss, forward and backward, against eager and compiled torch."""

from conftest import benchmark

bench_distillation = benchmark("distillation")
