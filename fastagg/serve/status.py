"""What the service tells its operator: a page, and metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Metric, generate_latest

import fastagg.page as pages
from fastagg.serve.served import Client, Served
from fastagg.server.server import Server
from fastagg.server.watching import watch
from fastagg.sheet import Sheet


def page(parts: Sequence[Served], clients: Mapping[str, Client], unready: str) -> str:
    """Return the status as HTML. ``unready``: why no update would be taken, if none would."""
    servers, now = [served.server for served in parts], time.monotonic()
    lines = [
        (
            str(number), f"{one.server.layout.size:,}", str(one.server.version), str(one.server._engine.open_tasks),
            str(one.receiving), str(one.downloads), f"{one.server.memory()['total'] / 1e6:,.1f}",
        )
        for number, one in enumerate(parts)
    ]  # fmt: skip
    heads = (
        "part",
        "parameters",
        "version",
        "open tasks",
        "updates on their way",
        "models on their way",
        "MB of state",
    )
    people = [
        (name, str(one.updates), f"{now - one.seen:,.0f}")
        for name, one in sorted(clients.items(), key=lambda item: -item[1].seen)
    ]
    rule = servers[0]
    return pages.page(
        "fastagg",
        [
            pages.paragraph(f"No update is taken: {unready}" if unready else "Updates are taken."),
            pages.table(Sheet("Parts", heads, lines)),
            pages.table(
                Sheet("Clients", ("client", "updates", "seconds since it was there"), people, "Since this start.")
            ),
            pages.settings("Rule", {"rule": f"{rule.direction}, {rule.optimizer}, {rule.staleness}"}),
        ],
    )


class Metrics:
    """The metrics of all parts (:func:`fastagg.watch`), with the label ``model_part``, and those of the service."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._registries = []
        for server in servers:
            watch(server, registry := CollectorRegistry())
            self._registries.append(registry)

    def text(self, own: Mapping[str, tuple[str, Sequence[float]]], silent: Mapping[str, float]) -> bytes:
        """Return everything in Prometheus' text format.

        Args:
            own: the service's: name -> what it is, and its values, one or one for each part.
            silent: for how many seconds each client was not there.
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
        family = families["silent"] = Metric(
            "fastagg_serve_client_silent_seconds", "Seconds since a client was there", "gauge"
        )
        for client, seconds in silent.items():
            family.add_sample(family.name, {"client": client}, seconds)
        return generate_latest(_Collected(families))


class _Collected:
    """A registry that has been collected."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families.values()
