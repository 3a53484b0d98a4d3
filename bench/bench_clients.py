"""Arrivals per second against the number of clients, by the format of their rows."""

from conftest import benchmark

bench_clients = benchmark("clients")
