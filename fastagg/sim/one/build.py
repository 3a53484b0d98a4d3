"""Makes the parts of a run from a Config: data, model, server, delays, participation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fastagg import _checks, _keywords, registry
from fastagg._types import Plain
from fastagg.distill import Distillation
from fastagg.distill.unlabelled import load as load_unlabelled
from fastagg.errors import ConfigError, DataError
from fastagg.ops import alpha_bounds
from fastagg.sim import functions, models
from fastagg.sim.clients.attack import with_flipped_labels
from fastagg.sim.clients.client import LocalTrainer, LocalWork
from fastagg.sim.clients.fused import FusedTrainer
from fastagg.sim.clients.own import Own, OwnTrainer
from fastagg.sim.clients.translate import Untranslated
from fastagg.sim.data import digits, own, synthetic
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.sections import DataSection, Function, PassedData
from fastagg.sim.recipes import sections as c
from fastagg.sim.recipes.config import Config
from fastagg.sim.seeds import generator

if TYPE_CHECKING:
    from fastagg.server.server import Server

LOADERS: dict[str, Callable[..., FederatedData]] = {
    "digits": digits.load,
    "synthetic": synthetic.load,
}


def build_device(name: str) -> torch.device:
    """Return the device of a run. ConfigError if torch has no such device here."""
    try:
        device = torch.device(name)
        torch.empty(0, dtype=torch.float32, device=device)
        return device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = f": {str(error).splitlines()[0]}; write run.device=cpu"
        near = "" if name in ("cpu", "cuda") else _checks.meant(name, ("cpu", "cuda"))
        raise ConfigError(f"run.device {name!r} cannot be used{near or reason}") from None


def data_of(config: Config) -> FederatedData:
    """Return the data of a run: what a program passes, or what is loaded."""
    given = isinstance(config.data, PassedData)
    return _held(config, "data") if given else build_data(config.data, config.seed)  # type: ignore[return-value]


def build_data(data: DataSection, seed: int) -> FederatedData:
    """Load the data set. DataError if it cannot be."""
    if isinstance(data, Function):
        return own.load(data, seed)
    return LOADERS[data.name](seed=seed, **data.model_dump(exclude={"name"}))


def _held(config: Config, key: str) -> object:
    """Return what a program passes."""
    if key not in config.held:
        section = key.partition(".")[0]
        raise ConfigError(f'{section} "given" is what a program passes: fastagg.sim.run(config, {section}=...)')
    return config.held[key]


def clients_of(config: Config, data: FederatedData) -> FederatedData:
    """Return what clients train on, and are tested on by themselves."""
    data = data.held_out(config.run.client_test, config.seed)
    return with_flipped_labels(data, config.attack, config.seed)


def build_model(model: c.Model, data: FederatedData, seed: int) -> nn.Module:
    if model.name == "function":
        return own_model(functions.find(model.call, "model.name"), "model.name", data, seed, model.keywords)
    if data.text is not None:
        raise ConfigError(f"model {model.name!r} cannot read text, expected a function of your own")
    return models.build(model.name, data.shape, data.classes, model.widths, seed, model.norm)


def own_model(function: Callable[..., object], key: str, data: FederatedData, seed: int, keywords: Plain) -> nn.Module:
    """Call a user's function with the data's shape and classes, and ``text`` if the data are text and it takes that.

    ConfigError unless it returns a network for them.
    """
    if data.text is not None and "text" in functions.parameters(function):
        keywords = {"text": data.text, **keywords}
    with models.seeded(seed):
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
    found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if found != expected:
        raise ConfigError(f"{key}: the network returns {found} for two inputs, expected {expected}")
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"{key}: the network has no parameter that trains")
    return module


def build_module(config: Config, data: FederatedData, device: torch.device) -> nn.Module:
    if config.model.name == "given":
        module = own_model(_held(config, "model.name"), "model", data, config.seed, {})  # type: ignore[arg-type]
    else:
        module = build_model(config.model, data, config.seed)
    if config.run.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module.to(device)


def build_work(config: Config) -> LocalWork:
    return LocalWork(**config.client.model_dump(), autocast=config.run.autocast)


def build_trainer(
    config: Config, module: nn.Module, data: FederatedData, own: Own
) -> tuple[LocalTrainer | FusedTrainer, str | None]:
    """Return what trains the clients, and why that is torch; None if it is not."""
    work = build_work(config)
    if data.test.y.is_floating_point() and own.loss is None:
        raise ConfigError("the labels are fp32 numbers: own.loss must name their loss, of outputs and labels")
    if own.train is not None:
        return OwnTrainer(module, work, config.seed, own), "own.train trains them"
    try:
        if own.loss is not None:
            raise Untranslated("own.loss is a function of your own")
        if not config.run.fused:
            raise Untranslated("run.fused is off")
        return FusedTrainer(module, work, config.seed, data.clients, data.test), None
    except Untranslated as reason:
        return LocalTrainer(module, work, config.seed, own.loss), str(reason)


def split_unlabelled(config: Config, data: FederatedData) -> tuple[FederatedData, Tensor | None]:
    """Return the data and the samples without labels; None if there are none.

    A ``share`` of the test set is removed from it for every method, so that all are tested on the same samples.
    """
    unlabelled, seed = config.unlabelled, config.seed
    if unlabelled.path is not None or unlabelled.data is not None:
        source: object = unlabelled.path and Path(unlabelled.path).expanduser()
        if unlabelled.data is not None:
            folder = unlabelled.dir or getattr(config.data, "dir", None)
            source = own.load(Function(name="function", call=unlabelled.data, dir=folder, clients=1), seed).test.x
        images = load_unlabelled(source, unlabelled.samples, data.shape, seed)
        assert isinstance(images, Tensor)
        return data, (images - images.mean()) / images.std().clamp_min(1e-6)
    if not unlabelled.share:
        return data, None if data.unlabelled is None else data.unlabelled[: unlabelled.samples]
    order = torch.from_numpy(generator(seed, "unlabelled").permutation(len(data.test)))
    count = min(max(1, round(unlabelled.share * len(data.test))), len(data.test) - 1)
    if count < 1:
        raise DataError("unlabelled.share: the test set has one sample, there is none to take")
    held, kept = order[:count][: unlabelled.samples], order[count:]
    rest = replace(data.test, x=data.test.x[kept], y=data.test.y[kept])
    return replace(data, test=rest), data.test.x[held]


def build_distillation(config: Config, module: nn.Module, unlabelled: Tensor | None) -> Distillation:
    if unlabelled is None:
        raise ConfigError(
            f"algorithm {config.algorithm.name} needs data without labels: set unlabelled.share, the part of the test "
            "set to use, or unlabelled.path, an .npz, .npy or .pt file"
        )
    distill = config.distill
    return Distillation(
        module, unlabelled, samples=None, alpha=alpha_bounds(distill.alpha),
        clip_norm=None if distill.clip_norm == "none" else distill.clip_norm, lr=distill.lr, steps=distill.steps,
        batch_size=distill.batch_size, keep_moments=distill.keep_moments,
    )  # fmt: skip


def distils(algorithm: c.Algorithm) -> bool:
    """Return whether the preset takes a Distillation."""
    return "distill" in _keywords.of(find_preset(algorithm)).settings


def find_preset(algorithm: c.Algorithm) -> Callable[..., Server]:
    """Return a preset by its name, or a function "module:function" that makes a server as presets do. ConfigError."""
    name, known = algorithm.name, registry.presets()
    if name == "given":
        if algorithm._make is None:
            raise ConfigError('algorithm "given" is what a program passes: fastagg.sim.run(config, algorithm=...)')
        return algorithm._make  # type: ignore[return-value]
    if ":" in name:
        return functions.find(name, "algorithm.name")  # type: ignore[return-value]  # checked when it is called
    if name not in known:
        names = ", ".join(sorted(known))
        raise ConfigError(f"algorithm.name: {name!r} is unknown (known: {names}){_checks.meant(name, known)}")
    return known[name]


def build_server(
    algorithm: c.Algorithm, module: nn.Module, clients: int, seed: int, distill: Distillation | None = None
) -> Server:
    """Call the preset. ConfigError if it or one of its keywords is unknown; the message lists the known ones."""
    name, preset = algorithm.shown, find_preset(algorithm)
    accepted, required, _, positional, _ = _keywords.of(preset)
    if wrong := [key for key in algorithm.keywords if key not in accepted]:
        holders = [other for other, make in registry.presets().items() if wrong[0] in _keywords.of(make).settings]
        near = f"; it is one of {', '.join(holders)}" if holders else _checks.meant(wrong[0], accepted)
        known = f"(known: {', '.join(sorted(accepted))}){near}"
        raise ConfigError(f"algorithm.{wrong[0]}: {name} has no such keyword {known}")
    run = {"num_clients": clients, "seed": seed}  # which a function of the user's own need not take
    keywords: Plain = {**{key: run[key] for key in run if key in accepted or key in positional}, **algorithm.keywords}
    if distill is not None:
        keywords["distill"] = distill
    if missing := sorted(required - set(keywords)):
        lines = ", ".join(f"algorithm.{key}" for key in missing)
        raise ConfigError(f"algorithm {name} needs the keyword {', '.join(map(repr, missing))}; add {lines}")
    server = preset(module, **keywords)
    if not hasattr(server, "receive"):
        raise ConfigError(f"algorithm.name: {name} returned a {type(server).__name__}, expected a fastagg.Server")
    return server


def is_synchronous(algorithm: c.Algorithm) -> bool:
    """Return whether the preset works in rounds, which every client of the round must finish."""
    return "clients_per_round" in _keywords.of(find_preset(algorithm)).settings


def check_clients(config: Config, server: Server, own: Own) -> None:
    """Raise ConfigError if the configured clients cannot work with this server."""
    name, rule = config.algorithm.name, config.participation.rule
    if is_synchronous(config.algorithm):
        if rule != "round":
            raise ConfigError(f'algorithm {name} is synchronous: participation.rule must be "round", got "{rule}"')
        per_round = config.algorithm.keywords["clients_per_round"]
        if per_round > config.data.clients:
            raise ConfigError(f"algorithm.clients_per_round is {per_round}, more than {config.data.counted}")
    elif rule == "round":
        raise ConfigError(f'algorithm {name} is asynchronous: participation.rule "round" is for synchronous ones')
    if name == "FedProx" and not config.client.mu and own.train is None:
        raise ConfigError("algorithm FedProx needs client.mu, the weight of its proximal term: with 0 it is FedAvg")
    if server.update_kind == "gradient" and config.client.steps != 1:
        raise ConfigError(f"algorithm {name} takes gradients on the model that was sent: client.steps must be 1")
