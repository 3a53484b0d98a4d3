"""The rules that advice tries: what a server of each needs, and the settings that are searched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.storage.cache import FORMATS, row_parts

_PER_CLIENT = 24  # bytes of the ledger and of a row's weight


@dataclass(frozen=True)
class Rule:
    """A preset that is tried."""

    state: float  # bytes per parameter: the model, its next version, moments and sums
    about: str  # what it does about slow clients
    rate: str = "lr"  # the keyword that is searched
    rates: range = range(-3, 4)  # its grid, from the middle on: of ..., 0.3, 1, 3, ..., 1 is number 0
    settings: Callable[[int], Plain] = lambda flight: {}  # others, for so many clients that train at once
    caches: Sequence[str] = ("",)  # possible formats of the clients' rows
    keeps_versions: bool = False  # whether the server keeps the version that each open task began with
    gradient: bool = False  # whether clients send gradients


def _buffer(flight: int) -> Plain:
    return {"buffer_size": max(1, flight // 5)}


_ROWS = tuple(FORMATS)
RULES = {
    "FedAvg": Rule(12, "waits for all of a round", settings=lambda flight: {"clients_per_round": flight}),
    "FedBuff": Rule(12, "steps along the mean of a few answers, whatever their age", settings=_buffer),
    "FADAS": Rule(24, "takes shorter steps when an answer is old", rates=range(-7, 0), settings=_buffer),
    "FedAsync": Rule(8, "gives old answers less weight", rate="alpha", rates=range(-3, 1), keeps_versions=True),
    "ASGD": Rule(8, "steps along every gradient at once", rates=range(-5, 2), gradient=True),
    "DelayAdaptiveASGD": Rule(
        8, "steps less far along old gradients", rates=range(-5, 2), gradient=True,
        settings=lambda flight: {"delay_threshold": flight},
    ),
    "CA2FL": Rule(16, "counts slow clients' last answers as much as others'", settings=_buffer, caches=_ROWS),
    "ACE": Rule(
        12, "counts slow clients' last gradients as much as others'", rates=range(-5, 2),
        settings=lambda flight: {"warmup": "partial"}, caches=_ROWS, gradient=True,
    ),
}  # fmt: skip


def server_bytes(rule: str, parameters: int, clients: int, in_flight: int, cache: str = "") -> int:
    """Return how many bytes a server needs for a preset, with clients' rows of the format ``cache``."""
    row, scales = row_parts(parameters, cache) if cache else (0, 0)
    versions = 4 * in_flight * RULES[rule].keeps_versions
    rows = clients + RULES[rule].settings(in_flight).get("buffer_size", 0)  # new ones, while old ones are in the mean
    return round((RULES[rule].state + versions) * parameters) + rows * (row + 4 * scales) + clients * _PER_CLIENT


def keywords_of(rule: str, rate: int, cache: str, in_flight: int) -> Plain:
    """Return a preset's settings. ``rate``: the number of its rate in the grid."""
    value = float(f"{(1, 3)[rate % 2] * 10.0 ** (rate // 2):.0e}")
    return {RULES[rule].rate: value, **RULES[rule].settings(in_flight), **({"cache": cache} if cache else {})}


def fitting(size: int, clients: int, in_flight: int, limit: float) -> tuple[dict[str, str], dict[str, int]]:
    """Return the rules that fit into the memory, with the first format of rows that does, and what does not fit."""
    found: dict[str, str] = {}
    left_out: dict[str, int] = {}
    for name, cache in ((name, cache) for name, rule in RULES.items() for cache in rule.caches):
        needs = server_bytes(name, size, clients, in_flight, cache)
        if needs > limit:
            left_out[f"{name} with {cache} cache" if cache else name] = needs
        else:
            found.setdefault(name, cache)
    if not found:
        raise ConfigError(f"memory: expected at least {min(left_out.values()):,} bytes, got {limit:,.0f}")
    return found, left_out
