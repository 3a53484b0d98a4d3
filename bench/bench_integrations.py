"""From a framework's message to the model, against NumPy as Flower writes it and Flower itself."""

from conftest import benchmark

bench_integrations = benchmark("integrations")
