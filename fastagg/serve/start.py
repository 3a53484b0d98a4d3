"""Starts the service: a model from a file, a rule by its name, a folder."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastagg
from fastagg import _checks, _extras, _keywords, registry
from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.model.parts import Cut
from fastagg.server.server import Server

# What a rule needs to know of the number of workers, by the name of its argument.
_WORKERS = ("num_clients", "num_workers", "workers", "clients_per_round")
_log = logging.getLogger("fastagg.serve")


def serve(
    model: Path, rule: str, settings: Mapping[str, object], workers: int, parts: int, folder: Path, *, host: str,
    port: int, tokens: Path | None, certificate: Path | None, key: Path | None, by_part: bool, limits: Plain,
) -> None:  # fmt: skip
    """Serve until SIGTERM or Ctrl-C, and then for 3 more seconds at most. ``fastagg serve --help`` has the arguments.

    Raises:
        MissingDependency: a package of the extra ``serve`` is not installed.
        ConfigError, CheckpointError, Busy: an argument is refused, or the folder is.
    """
    _extras.require("fastagg serve", "serve", _extras.SERVE)
    import uvicorn

    from fastagg.serve.connection import Connection
    from fastagg.serve.service import Service
    from fastagg.serve.tokens import Tokens

    if tokens is None and not _is_here(host):
        raise ConfigError(f"tokens: needed, because others reach {host}; write --tokens FILE")
    if (certificate is None) != (key is None):
        raise ConfigError("tls: a certificate needs its key; write --certificate FILE --key FILE")
    for name, file in (("certificate", certificate), ("key", key)):
        if file is not None and not file.is_file():
            raise ConfigError(f"{name}: there is no file {file}")
    known = None if tokens is None else Tokens(tokens)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    cut = read(model, parts, by_part)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(one) for one in opened(cut, rule, settings, workers, folder)]
        for part in cut:
            part.arrays.clear()  # the servers have copies
        _log.info("%s: %s parameters, parts: %d, %s", model, f"{cut.layout.size:,}", len(cut), servers[0].direction)
        app = Service(servers, cut, folder, known, **limits).app()
        uvicorn.run(
            app, host=host, port=port, http=Connection, ws="none", timeout_keep_alive=30, timeout_graceful_shutdown=3,
            limit_concurrency=512, log_config=None, server_header=False, ssl_certfile=certificate, ssl_keyfile=key,
        )  # fmt: skip


def read(path: Path, count: int, by_part: bool = False) -> Cut:
    """Return the parts of a model in a safetensors file.

    Raises:
        ConfigError: it cannot be read, or has fewer tensors than parts.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"model: {path}: expected a safetensors file: {error}") from None
    return fastagg.parts(arrays, count, by_part=by_part)


def opened(cut: Cut, rule: str, settings: Mapping[str, object], workers: int, folder: Path) -> list[Server]:
    """Open the folder of each part's server, ``part-0`` and so on. New ones begin with the model.

    Raises:
        ConfigError: the folder is of another number of parts; the rule or a setting is refused.
        CheckpointError, Busy: a part's folder is damaged, or somebody has it open.
    """
    make = maker(rule, settings, workers)
    there = len(list(folder.glob("part-*")))
    if there not in (0, len(cut)):
        raise ConfigError(f"parts: {folder} is of {there} parts; write --parts {there}")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(fastagg.open(folder / f"part-{number}", lambda part=part: make(part)))  # type: ignore[misc]
            for number, part in enumerate(cut)
        ]
        stack.pop_all()
    return servers


def maker(rule: str, settings: Mapping[str, object], workers: int) -> Callable[[Any], Server]:
    """Return what makes a part's server: a preset with its settings, and with limits that fit so many workers.

    Raises:
        ConfigError: there is no such rule.
    """
    presets = {name.lower(): preset for name, preset in registry.presets().items()}
    if (preset := presets.get(rule.lower())) is None:
        _checks.one_of("rule", rule, tuple(sorted(registry.presets())))
        raise AssertionError
    _checks.whole("workers", workers, least=1)
    own = [name for name in _WORKERS if name in _keywords.of(preset).named]
    limits: Plain = {"lease": 3600.0, "max_open_per_client": 2, "max_waiting": 256}
    if "num_clients" not in {*own, *settings}:
        limits["max_clients"] = 4 * workers
    given = {**limits, **dict.fromkeys(own, workers), **settings}

    def make(part: Any) -> Server:
        server: Server = preset(part, **given)
        if server.control is not None:
            raise ConfigError(f"rule: {rule} sends control variates with its tasks; write a server in Python for it")
        return server

    return make


def _is_here(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
