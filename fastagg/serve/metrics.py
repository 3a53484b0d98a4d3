"""Collects the metrics of all parts' servers and of the service, for Prometheus. Only serve/service.py calls this."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Metric, generate_latest

from fastagg.server.server import Server
from fastagg.server.watching import watch


class Metrics:
    """The metrics of all parts' servers (:func:`fastagg.watch`), with the label ``model_part``, and of the service."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._registries = []
        for server in servers:
            watch(server, registry := CollectorRegistry())
            self._registries.append(registry)

    def text(self, own: Mapping[str, tuple[str, Sequence[float]]]) -> bytes:
        """Return everything in Prometheus' text format.

        Args:
            own: the service's metrics. Name -> a description, and a list with one value, or one value for each part.
        """
        families: dict[str, Metric] = {}
        for number, registry in enumerate(self._registries):
            for metric in registry.collect():
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.add_sample(sample.name, {**sample.labels, "model_part": str(number)}, sample.value)
        for name, (meaning, values) in own.items():
            family = families[name] = Metric(f"fastagg_serve_{name}", meaning, "gauge")
            for number, value in enumerate(values):
                family.add_sample(family.name, {"model_part": str(number)} if len(values) > 1 else {}, value)
        return generate_latest(CollectedRegistry(families))


class CollectedRegistry:
    """A registry of metrics that were collected before, for ``generate_latest``."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families.values()
