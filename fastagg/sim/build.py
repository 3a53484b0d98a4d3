"""From a Config to the parts of a run: data, model, server, delays, participation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from fastagg.errors import ConfigError, DataError
from fastagg.sim import config as c
from fastagg.sim import models
from fastagg.sim.client import LocalWork
from fastagg.sim.data import digits, mnist, synthetic
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.delays import Exponential, ThreeClass
from fastagg.sim.participation import AllClients, Concurrency, Participation
from fastagg.sim.schedule import Schedule, TimedSchedule, VersionSchedule
from fastagg.sim.version_delay import ReplayedVersions, UniformVersions, VersionDelay, read_delays

if TYPE_CHECKING:
    from fastagg.server import Server


def build_data(data: c.Digits | c.Mnist | c.Synthetic, seed: int) -> FederatedData:
    if isinstance(data, c.Digits):
        return digits.load(data.clients, data.alpha, seed, data.min_samples, data.test_share)
    if isinstance(data, c.Mnist):
        if data.dir is None:
            raise DataError(f"this recipe reads {mnist.FILE} from a folder: name it with --data-dir (data.dir)")
        return mnist.load(Path(data.dir).expanduser(), data.clients, data.alpha, seed, data.min_samples)
    return synthetic.load(data.clients, data.alpha, data.beta, seed)


def build_model(model: c.Model, data: FederatedData, seed: int) -> nn.Module:
    return models.build(model.name, data.shape, data.classes, model.widths, seed)


def build_work(client: c.Client) -> LocalWork:
    return LocalWork(**client.model_dump())


def presets() -> dict[str, Callable[..., Server]]:
    """Return the algorithms a recipe can name: the public functions of fastagg.algorithms."""
    from fastagg import algorithms

    found = inspect.getmembers(algorithms, inspect.isfunction)
    return {n: f for n, f in found if f.__module__ == algorithms.__name__ and not n.startswith("_")}


def build_server(algorithm: c.Algorithm, module: nn.Module, clients: int, seed: int) -> Server:
    """Call the preset. ConfigError when it or one of its keywords is unknown, saying which are known."""
    known = presets()
    if algorithm.name not in known:
        raise ConfigError(f"algorithm {algorithm.name!r} is unknown, known: {', '.join(sorted(known))}")
    preset = known[algorithm.name]
    accepted, required = _keywords(preset)
    if "clients_per_round" in accepted:
        raise ConfigError(f"algorithm {algorithm.name} is synchronous, the simulator's arrivals are not")
    for key in algorithm.keywords:
        if key not in accepted:
            raise ConfigError(
                f"algorithm {algorithm.name} has no keyword {key!r}, known: {', '.join(sorted(accepted))}"
            )
    keywords = {"num_clients": clients, "seed": seed, **algorithm.keywords}
    if missing := sorted(required - set(keywords)):
        raise ConfigError(f"algorithm {algorithm.name} needs the keyword {', '.join(map(repr, missing))}")
    server = preset(module, **keywords)
    if server.update_kind != "delta":
        raise ConfigError(
            f"algorithm {algorithm.name} takes {server.update_kind}s, the simulator's clients send model deltas"
        )
    return server


def _keywords(preset: Callable[..., Server]) -> tuple[set[str], set[str]]:
    """Names of a preset's keywords, those it passes on to Server included; and of the required ones."""
    from fastagg.server import Server

    own = inspect.signature(preset).parameters.values()
    passed_on = inspect.signature(Server).parameters.values()
    names = {p.name for p in own if p.kind is p.KEYWORD_ONLY}
    if any(p.kind is p.VAR_KEYWORD for p in own):
        names |= {p.name for p in passed_on if p.kind is p.KEYWORD_ONLY}
    return names, {p.name for p in own if p.kind is p.KEYWORD_ONLY and p.default is p.empty}


def build_schedule(config: c.Config, server: Server) -> Schedule:
    delay, clients, seed = config.delay, config.data.clients, config.seed
    if isinstance(delay, c.VersionDelay):
        return VersionSchedule(server, build_version_delay(delay, clients, seed), clients, seed)
    participation: Participation = AllClients(clients)
    if config.participation.concurrency is not None:
        participation = Concurrency(clients, config.participation.concurrency, seed)
    if isinstance(delay, c.ThreeClassDelay):
        return TimedSchedule(server, ThreeClass(clients, seed, delay.table, delay.gamma), participation)
    return TimedSchedule(server, Exponential(seed, delay.mean), participation)


def build_version_delay(delay: c.VersionDelay, clients: int, seed: int) -> VersionDelay:
    if delay.file is not None:
        return ReplayedVersions(read_delays(Path(delay.file).expanduser(), clients))
    assert delay.tau_max is not None
    return UniformVersions(seed, delay.tau_max)
