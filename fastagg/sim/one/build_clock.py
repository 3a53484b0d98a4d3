"""Makes what decides who trains when from a Config: delays, participation, schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fastagg.errors import ConfigError, DataError
from fastagg.sim.clients.own import Own, chosen
from fastagg.sim.clock import by_version, sampling
from fastagg.sim.clock import delays as models
from fastagg.sim.clock.measured import Measured, read_times
from fastagg.sim.clock.participation import Participation
from fastagg.sim.clock.schedule import RoundSchedule, Sent, TimedSchedule
from fastagg.sim.one import build
from fastagg.sim.one.build import build_work, is_synchronous
from fastagg.sim.recipes import sections
from fastagg.sim.recipes.config import Config
from fastagg.sim.seeds import generator

if TYPE_CHECKING:
    from fastagg.server.dispatch import Dispatch
    from fastagg.server.server import Server

NOTHING = Own()
Schedule = TimedSchedule | RoundSchedule | by_version.VersionSchedule


def build_schedule(config: Config, server: Server, sizes: Sequence[int], sent: Sent, own: Own = NOTHING) -> Schedule:
    """Return the schedule. ``sizes``: the number of samples of each client. ``sent``: the bytes of a job."""
    delay, clients, seed, concurrency = config.delay, len(sizes), config.seed, config.participation.concurrency
    format = None if config.encoding.download == "none" else config.encoding.download
    if isinstance(delay, sections.VersionDelay):
        taus = by_version.UniformVersions(seed, delay.tau_max or 0)
        drawn = taus if delay.mean is None else by_version.ExponentialVersions(seed, delay.mean)
        return by_version.VersionSchedule(server, drawn, clients, seed, format)
    delays, work, rule = build_delays(config, sizes, own), build_work(config), build_sampling(config, sizes, own)

    def steps(client: int, task: Dispatch) -> int:
        return work.steps_of(sizes[client], task.local_steps)

    if config.participation.rule == "round":
        per_round = config.algorithm.keywords["clients_per_round"]
        return RoundSchedule(server, delays, clients, per_round, seed, steps, sent, rule, format)
    participation = Participation(clients, concurrency, seed, rule)
    return TimedSchedule(server, delays, participation, steps, sent, format, at_flush=delay.counting == "authors")


def check(config: Config) -> None:
    """Raise what a run of ``config`` would raise before it loads its data and builds its model."""
    build.build_device(config.run.device)
    if (folder := getattr(config.data, "dir", None)) is not None and not Path(folder).expanduser().is_dir():
        raise DataError(f"data.dir: the data folder {folder} does not exist")
    own = chosen(config)
    if (
        ":" in config.algorithm.name or config.algorithm.name == "given"
    ):  # a function of the user's own may need the run's model
        build.find_preset(config.algorithm)
        return
    module, clients = nn.Linear(1, 2), config.data.clients
    distill = None
    if build.distils(config.algorithm):
        distill = build.build_distillation(config, module, torch.zeros(1, 1, dtype=torch.float32, device="cpu"))
    server = build.build_server(config.algorithm, module, clients, config.seed, distill)
    build.check_clients(config, server, own)
    build_schedule(config, server, [1] * clients, lambda job: (0, 0), own)
    lost_clients(config)


def build_sampling(config: Config, sizes: Sequence[int], own: Own) -> sampling.Uniform:
    """Return who chooses the next client. ``sizes``: the number of samples of each."""
    how, seed = config.participation, config.seed
    if own.sampling is not None:
        return sampling.Chosen(seed, own.sampling)
    if how.sampling == "weight":
        return sampling.BySamples(seed, sizes)
    if how.file is not None:
        traces = sampling.read_traces(file_of(how.file, config), len(sizes), seed, how.period)
        return sampling.Available(seed, traces, how.period)
    return sampling.Uniform(seed)


def build_delays(config: Config, sizes: Sequence[int], own: Own = NOTHING) -> models.DelayModel:
    """Return the delay model. ``sizes``: the number of samples of each client."""
    delay, seed, clients = config.delay, config.seed, len(sizes)
    assert isinstance(delay, sections.TimedDelay)
    match delay:
        case sections.ThreeClassDelay():
            delays: models.DelayModel = models.ThreeClass(clients, seed, delay.table, delay.gamma, delay.counts)
        case sections.SizeTiedDelay():
            delays = models.SizeTied(sizes, seed, delay.table, delay.gamma)
        case sections.MeasuredDelay():
            delays = Measured(read_times(file_of(delay.file, config)), clients, seed)
        case sections.OwnDelay():
            assert own.delay is not None
            delays = models.Own(seed, own.delay, delay.unit)
        case _:
            more = getattr(delay, "sigma", getattr(delay, "shape", 0.0))
            delays = models.Drawn(seed, delay.mean, clients, delay.spread, delay.name, more)
    if not (delay.steps or delay.suspension or delay.speed or delay.up):
        return delays
    return models.Around(
        delays, seed, reference=delay.steps, share=delay.suspension, speeds=(delay.speed, delay.up), jitter=delay.jitter
    )


def file_of(name: str, config: Config) -> Path:
    """Return a file of delays or times: the path ``name``, or a file in the data's folder."""
    path, folder = Path(name).expanduser(), getattr(config.data, "dir", None)
    inside = path if folder is None else Path(folder).expanduser() / name
    return inside if inside.is_file() and not path.is_file() else path


def lost_clients(config: Config) -> frozenset[int]:
    """Return the clients that ``config.dropout`` removes. They are the same for every method with this seed."""
    clients = config.data.clients
    lost = round(config.dropout.share * clients)
    left = config.algorithm.keywords["clients_per_round"] if is_synchronous(config.algorithm) else 1
    if clients - lost < left:
        raise ConfigError(f"dropout.share is {config.dropout.share}: of {clients} clients {left} must stay")
    return frozenset(map(int, generator(config.seed, "dropout").permutation(clients)[:lost]))
