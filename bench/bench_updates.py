"""Buffering, applying, flushing and inspecting an update, against eager and compiled torch, and NumPy."""

from conftest import benchmark

bench_updates = benchmark("updates")
