"""Arrivals through client caches, against eager and compiled torch."""

from conftest import benchmark

bench_caches = benchmark("caches")
