"""The simulator's loop against the training it simulates."""

from conftest import benchmark

bench_simulator = benchmark("simulator")
