"""Norms for Euclidean staleness, sketches and mixing, against eager and compiled torch."""

from conftest import benchmark

bench_staleness = benchmark("staleness")
