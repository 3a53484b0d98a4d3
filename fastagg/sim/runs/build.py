"""Makes the parts of a run from its Config: data, model, server, trainer, delays, choice of clients, and schedule."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fastagg import _checks, _keywords, registry
from fastagg._types import Plain
from fastagg.distill import Distillation
from fastagg.errors import ConfigError, DataError
from fastagg.ops import alpha_bounds
from fastagg.sim import functions, models
from fastagg.sim.clients.client import LocalTrainer
from fastagg.sim.clients.fused import FusedTrainer
from fastagg.sim.clients.own import OwnTrainer, UserFunctions, chosen
from fastagg.sim.clients.translate import TranslationError
from fastagg.sim.clock import by_version, sampling
from fastagg.sim.clock.delays import Population, TimedDelay, Times
from fastagg.sim.clock.schedule import RoundSchedule, SentBytes, TimedSchedule
from fastagg.sim.clock.view import History
from fastagg.sim.data import digits, own
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.files import beside_data
from fastagg.sim.data.sections import Digits
from fastagg.sim.recipes import sections as c
from fastagg.sim.recipes.config import VIEWED, Config
from fastagg.sim.seeds import generator, seeded

if TYPE_CHECKING:
    from fastagg.server.dispatch import Dispatch
    from fastagg.server.server import Server

Schedule = TimedSchedule | RoundSchedule | by_version.VersionSchedule


def build_device(name: str) -> torch.device:
    """Return the device of a run. ConfigError: torch cannot use this device here."""
    try:
        device = torch.device(name)
        torch.empty(0, dtype=torch.float32, device=device)
        return device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = f": {str(error).splitlines()[0]}; write run.device=cpu"
        near = "" if name in ("cpu", "cuda") else _checks.meant(name, ("cpu", "cuda"))
        raise ConfigError(f"run.device {name!r} cannot be used{near or reason}") from None


def build_data(config: Config) -> FederatedData:
    """Return the data that a program passed, or else load the data. DataError: the data cannot be loaded."""
    data, seed = config.data, config.seed
    if isinstance(data, Digits):
        return digits.load(seed=seed, **data.model_dump(exclude={"name"}))
    if data.name == "given" and "data" in config.held:
        federation: FederatedData = config.passed("data")
        return federation
    folder = {} if data.dir is None else {"dir": data.dir}
    return own.load(config.function("data.name"), data.name, data.clients, seed, {**data.keywords, **folder})


def build_model(config: Config, data: FederatedData) -> nn.Module:
    """Return a run's network. A network of the package is on the CPU. ConfigError: the network cannot read the data."""
    model = config.model
    if isinstance(model, c.ModelFunction):
        return own_model(config.function("model.name"), "model.name", data, config.seed, model.keywords)
    if data.text is not None:
        raise ConfigError(f"model {model.name!r} cannot read text, expected a function of your own")
    return models.build(model.name, data.shape, data.classes, model.widths, config.seed, model.norm)


def own_model(function: Callable[..., object], key: str, data: FederatedData, seed: int, keywords: Plain) -> nn.Module:
    """Call a user's function and return its network, in evaluation mode. The function gets the shape and the number of
    classes of the data. If the data is text, and the function has an argument ``text``, it also gets ``data.text``.

    ConfigError: the function does not return a network for this data.
    """
    if data.text is not None and "text" in functions.parameters(function):
        keywords = {"text": data.text, **keywords}
    with seeded(seed, "model"):
        module = functions.call(function, key, data.shape, data.classes, **keywords)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{key}: the function returned a {type(module).__name__}, expected a torch.nn.Module")
    try:
        with torch.inference_mode():
            logits = module.eval()(data.test.x[:2])
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{key}: the network cannot read inputs of shape {data.shape}: {reason}") from error
    expected = (2, data.classes) if data.test.y.is_floating_point() else (*data.test.y[:2].shape, data.classes)
    returned = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if returned != expected:
        raise ConfigError(f"{key}: the network returns {returned} for two inputs, expected {expected}")
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"{key}: the network has no parameter that trains")
    return module


def build_trainer(
    config: Config, module: nn.Module, data: FederatedData, own: UserFunctions
) -> tuple[LocalTrainer | FusedTrainer, str | None]:
    """Return the clients' trainer, and the reason why it trains with torch. None: it trains without torch."""
    work = config.client
    if data.test.y.is_floating_point() and own.loss is None:
        raise ConfigError("the labels are fp32 numbers: own.loss must name their loss, of outputs and labels")
    if own.train is not None:
        return OwnTrainer(module, work, config.seed, own), "own.train trains them"
    try:
        if own.loss is not None:
            raise TranslationError("own.loss is a function of your own")
        if not config.run.fused:
            raise TranslationError("run.fused is off")
        return FusedTrainer(module, work, config.seed, data.clients, data.test), None
    except TranslationError as reason:
        return LocalTrainer(module, work, config.seed, own.loss), str(reason)


def split_unlabelled(config: Config, data: FederatedData) -> tuple[FederatedData, Tensor | None]:
    """Return the data and the inputs of its unlabelled samples. None: the data has no unlabelled samples.

    With ``unlabelled.share``, these samples are taken from the test set. This also happens for methods that do not use
    unlabelled samples, so that all methods are tested on the same samples.
    """
    unlabelled, seed = config.unlabelled, config.seed
    if not unlabelled.share:
        return data, None if data.unlabelled is None else data.unlabelled[: unlabelled.samples]
    order = torch.from_numpy(generator(seed, "unlabelled").permutation(len(data.test)))
    count = min(max(1, round(unlabelled.share * len(data.test))), len(data.test) - 1)
    if count < 1:
        raise DataError("unlabelled.share: the test set has one sample, there is none to take")
    held, kept = order[:count][: unlabelled.samples], order[count:]
    rest = replace(data.test, x=data.test.x[kept], y=data.test.y[kept])
    return replace(data, test=rest), data.test.x[held]


def build_distillation(config: Config, module: nn.Module, unlabelled: Tensor | None) -> Distillation | None:
    """Return the Distillation for FedEcho's preset. None: the config's preset does not distill."""
    if "distill" not in _keywords.of(find_preset(config)).settings:
        return None
    if unlabelled is None:
        raise ConfigError(
            f"algorithm {config.algorithm.name} needs data without labels: set unlabelled.share, the part of the test "
            "set to use, or take data with FederatedData(unlabelled=...)"
        )
    distill = config.distill
    return Distillation(
        module, unlabelled, samples=None, alpha=alpha_bounds(distill.alpha),
        clip_norm=None if distill.clip_norm == "none" else distill.clip_norm, lr=distill.lr, steps=distill.steps,
        batch_size=distill.batch_size,
    )  # fmt: skip


def find_preset(config: Config) -> Callable[..., Server]:
    """Return the preset with the config's name, or the user's function that makes a server as presets do. ConfigError:
    there is no such preset."""
    name, known = config.algorithm.name, registry.presets()
    if functions.is_function(name):
        preset = config.function("algorithm.name")
        make: Callable[..., Server] = preset if isinstance(preset, Hashable) else preset.__call__  # type: ignore[assignment]
        return make  # the function must be hashable for _keywords.of, but an object of a dataclass may not be
    if name not in known:
        names = ", ".join(sorted(known))
        raise ConfigError(f"algorithm.name: {name!r} is unknown (known: {names}){_checks.meant(name, known)}")
    return known[name]


def algorithm_name(config: Config) -> str:
    """Return the name of the preset, or of the user's function that makes the server."""
    if config.algorithm.name != "given":
        return config.algorithm.name
    preset = config.passed("algorithm.name")
    bare = getattr(preset, "func", preset)  # a functools.partial has no name
    return getattr(bare, "__name__", type(bare).__name__)


def build_server(config: Config, module: nn.Module, clients: int, distill: Distillation | None = None) -> Server:
    """Call the preset and return its server. ConfigError: the preset or a keyword is unknown, or a keyword is missing.
    The message lists the known or missing names."""
    name, preset, settings = algorithm_name(config), find_preset(config), config.algorithm.keywords
    accepted, required, _, positional, _ = _keywords.of(preset)
    if wrong := [key for key in settings if key not in accepted]:
        holders = [other for other, make in registry.presets().items() if wrong[0] in _keywords.of(make).settings]
        near = f"; it is one of {', '.join(holders)}" if holders else _checks.meant(wrong[0], accepted)
        known = f"(known: {', '.join(sorted(accepted))}){near}"
        raise ConfigError(f"algorithm.{wrong[0]}: {name} has no such keyword {known}")
    run = {"num_clients": clients, "seed": config.seed}  # a user's own function need not take these
    keywords: Plain = {**{key: run[key] for key in run if key in accepted or key in positional}, **settings}
    if distill is not None:
        keywords["distill"] = distill
    if missing := sorted(required - set(keywords)):
        lines = ", ".join(f"algorithm.{key}" for key in missing)
        raise ConfigError(f"algorithm {name} needs the keyword {', '.join(map(repr, missing))}; add {lines}")
    server = preset(module, **keywords)
    if not hasattr(server, "receive"):
        raise ConfigError(f"algorithm.name: {name} returned a {type(server).__name__}, expected a fastagg.Server")
    return server


def is_synchronous(config: Config) -> bool:
    """Return whether the preset works in rounds. A round waits for all of its clients."""
    return "clients_per_round" in _keywords.of(find_preset(config)).settings


def check_clients(config: Config, server: Server, own: UserFunctions) -> None:
    """Raise ConfigError if the configured clients cannot work with this server."""
    name, rule = config.algorithm.name, config.participation.rule
    if is_synchronous(config):
        if rule != "round":
            raise ConfigError(f'algorithm {name} is synchronous: participation.rule must be "round", got "{rule}"')
        per_round = config.algorithm.keywords["clients_per_round"]
        if per_round > config.data.clients:
            raise ConfigError(
                f"algorithm.clients_per_round is {per_round}, more than the data's {config.data.clients} clients"
            )
    elif rule == "round":
        raise ConfigError(f'algorithm {name} is asynchronous: participation.rule "round" is for synchronous ones')
    if name == "FedProx" and not config.client.mu and own.train is None:
        raise ConfigError("algorithm FedProx needs client.mu, the weight of its proximal term: with 0 it is FedAvg")
    if server.update_kind == "gradient" and config.client.steps != 1:
        raise ConfigError(f"algorithm {name} takes gradients on the model that was sent: client.steps must be 1")


def build_schedule(config: Config, server: Server, sizes: Sequence[int], sent: SentBytes, history: History) -> Schedule:
    """Return the schedule. ``sizes``: each client's number of samples. ``sent``: a function that returns a job's bytes.
    ``history``: the clients' history, for the user's own functions."""
    delay, clients, seed, concurrency = config.delay, len(sizes), config.seed, config.participation.concurrency
    format = None if config.encoding.download == "none" else config.encoding.download
    if not isinstance(delay, TimedDelay):
        return by_version.VersionSchedule(server, delay, clients, seed, format)
    folder = getattr(config.data, "dir", None)
    law = Times(delay, Population(sizes, seed, folder, config.function("delay.name"), history))
    rule = build_sampling(config, clients, history)

    def steps(client: int, task: Dispatch) -> int:
        return config.client.steps_of(sizes[client], task.local_steps)

    if config.participation.rule == "round":
        per_round = config.algorithm.keywords["clients_per_round"]
        return RoundSchedule(server, law, clients, per_round, seed, steps, sent, history, rule, format)
    participation = sampling.ClientPool(clients, concurrency, seed, rule)
    at_flush = delay.counting == "authors"
    return TimedSchedule(server, law, participation, steps, sent, history, format, at_flush=at_flush)


def check(config: Config) -> None:
    """Raise the errors that a run of ``config`` would raise before it loads its data and builds its model. If the
    algorithm is the user's own function, the function is not called, and the clients and delays are not checked."""
    build_device(config.run.device)
    if (folder := getattr(config.data, "dir", None)) is not None and not Path(folder).expanduser().is_dir():
        raise DataError(f"data.dir: the data folder {folder} does not exist")
    own = chosen(config)
    for key in VIEWED:
        config.function(key)
    find_preset(config)
    if config.algorithm.name not in registry.presets():  # a user's own function may need the run's model
        return
    module, clients = nn.Linear(1, 2), config.data.clients
    distill = build_distillation(config, module, torch.zeros(1, 1, dtype=torch.float32, device="cpu"))
    server = build_server(config, module, clients, distill)
    check_clients(config, server, own)
    sizes = [1] * clients
    build_schedule(config, server, sizes, lambda job: (0, 0), History(server, sizes))
    lost_clients(config)


def build_sampling(config: Config, clients: int, history: History) -> sampling.UniformSampling:
    """Return the rule that chooses the client that gets the model next."""
    how, seed = config.participation, config.seed
    if (function := config.function("participation.sampling")) is not None:
        return sampling.FunctionSampling(seed, function, history)
    if how.file is not None:
        path = beside_data(how.file, getattr(config.data, "dir", None))
        return sampling.AvailabilitySampling(seed, sampling.read_traces(path, clients, seed, how.period), how.period)
    return sampling.UniformSampling(seed)


def lost_clients(config: Config) -> frozenset[int]:
    """Return the clients that stop answering (``config.dropout``). ConfigError: too few clients would stay."""
    clients = config.data.clients
    lost = round(config.dropout.share * clients)
    left = config.algorithm.keywords["clients_per_round"] if is_synchronous(config) else 1
    if clients - lost < left:
        raise ConfigError(f"dropout.share is {config.dropout.share}: of {clients} clients {left} must stay")
    return frozenset(map(int, generator(config.seed, "dropout").permutation(clients)[:lost]))
