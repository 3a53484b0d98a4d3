"""`Server.receive` per arrival: at small d its overhead, at large d its bandwidth."""

from conftest import benchmark

bench_server = benchmark("server")
