"""Starts ``fastagg serve``: reads the model, opens the parts' folders and listens. Only the command line uses this."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import resource
import socket
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import fastagg
from fastagg import _checks, _extras, _keywords, registry
from fastagg._types import Plain
from fastagg.durable.keeper import EVERY
from fastagg.errors import ConfigError
from fastagg.model.parts import PartList
from fastagg.server.server import Server

# The arguments of presets that by default are the number of workers.
_WORKERS = ("num_clients", "num_workers", "workers", "clients_per_round")
_log = logging.getLogger("fastagg.serve")


def serve(
    model: Path, rule: str, settings: Mapping[str, object], workers: int, parts: int, folder: Path, *, host: str,
    port: int, tokens: Path | None, certificate: Path | None, key: Path | None, by_part: bool, limits: Plain,
    checkpoint_every: int = EVERY,
) -> None:  # fmt: skip
    """Serve until SIGTERM or Ctrl-C. Requests then have 3 seconds to end. ``fastagg serve --help`` has the arguments.

    Raises:
        MissingDependency: a package of the extra ``serve`` is not installed.
        ConfigError, CheckpointError, Busy: an argument or the folder is refused.
    """
    _extras.require("fastagg serve", "serve", _extras.SERVE)
    import uvicorn

    from fastagg.serve.connection import Listener
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
    own: Plain = dict(settings)
    buffers = own.get("buffers")
    cut = read(model, parts, by_part, own.pop("tied", None), buffers if isinstance(buffers, dict) else None)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(server) for server in opened(cut, rule, own, workers, folder, checkpoint_every)]
        for part in cut:
            part.arrays.clear()  # the servers have copies
        _log.info("%s: %s parameters, parts: %d, %s", model, f"{cut.layout.size:,}", len(cut), servers[0].direction)
        connections = connections_for(parts)
        app = Service(servers, cut, folder, known, requests=connections, **limits).app()
        config = uvicorn.Config(
            app, http="h11", ws="none", timeout_keep_alive=10, timeout_graceful_shutdown=3, log_config=None,
            access_log=False, proxy_headers=False, server_header=False, ssl_certfile=certificate, ssl_keyfile=key,
        )  # fmt: skip
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = stack.enter_context(socket.create_server((host, port), family=family, backlog=1024))
        except OSError as error:
            raise ConfigError(f"host, port: cannot listen at {host}, {port}: {error.strerror or error}") from None
        _log.info("listening at %s, port %d; connections: %d", *listener.getsockname()[:2], connections)
        with contextlib.suppress(KeyboardInterrupt):
            Listener(config, listener, connections).run()


def connections_for(parts: int) -> int:
    """Raise the limit of open files as far as the system allows. Return the number of connections, 16 to 512, for which
    the limit is enough. A connection may need a second file, for its update."""
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems refuse to raise the limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
        limit = hard_limit
    return max(16, min(512, (limit - 128 - 64 * parts) // 2)) if limit >= 0 else 512


def read(path: Path, count: int, by_part: bool = False, tied: Any = None, buffers: Any = None) -> PartList:
    """Return the parts of a model in a safetensors file, or in several files of an index.

    The second names of tied parameters come from the file (``safetensors.torch.save_model``) and from ``tied``. If
    ``tied`` is None, equal arrays cause a warning. ``by_part`` and ``buffers`` are those of :func:`fastagg.parts`.

    Raises:
        ConfigError: the file cannot be read, or has fewer tensors than parts.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    arrays: dict[str, torch.Tensor] = {}
    notes: dict[str, str] = {}
    try:
        is_index = path.suffix == ".json"
        names = json.loads(path.read_text())["weight_map"].values() if is_index else [path.name]
        for name in dict.fromkeys(names):
            arrays |= load_file(path.parent / name)
            with safe_open(path.parent / name, "pt") as opened:
                notes |= opened.metadata() or {}
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = "a safetensors file, or the index of several (model.safetensors.index.json)"
        raise ConfigError(f"model: {path}: expected {what}: {error}") from None
    groups = [[first, second] for second, first in notes.items() if first in arrays and second not in arrays]
    if tied is None and (twins := equal(arrays)):
        say = "model: %d pairs of equal arrays, such as %r and %r. If they are one parameter: --set 'tied=%s'"
        _log.warning(say, len(twins), *twins[0], json.dumps(twins[:8]))
    arrays |= {second: arrays[first] for first, second in groups}
    return fastagg.parts(arrays, count, by_part=by_part, buffers=buffers, tied=[*groups, *(tied or [])])


def equal(arrays: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Return pairs of names of floating-point arrays with equal numbers. Arrays that repeat one number are left out."""
    seen: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    pairs = []
    for name, array in arrays.items():
        if array.is_floating_point() and array.numel() > 1:
            numbers = array.view(-1).view(torch.uint8).view(array.numel(), -1)
            alike = seen[array.dtype, array.shape, bytes(numbers[:16].numpy())]
            twin = next((other for other in alike if torch.equal(arrays[other], array)), None)
            if twin is None:
                alike.append(name)
            elif not bool((numbers == numbers[0]).all()):
                pairs.append([twin, name])
    return pairs


def opened(
    cut: PartList, rule: str, settings: Mapping[str, object], workers: int, folder: Path, every: int = EVERY
) -> list[Server]:
    """Open the folders of the parts' servers, ``part-0`` and so on. A server with a new folder begins with the model.
    ``every``: as ``checkpoint_every`` in :func:`fastagg.open`.

    Raises:
        ConfigError: the folder has another number of parts, or the rule or a setting is refused.
        CheckpointError, Busy: a part's folder is damaged, or another server has it open.
    """
    make = maker(rule, settings, workers)
    there = len(list(folder.glob("part-*")))
    if there not in (0, len(cut)):
        raise ConfigError(f"parts: {folder} is of {there} parts; write --parts {there}")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                fastagg.open(folder / f"part-{number}", lambda part=part: make(part), checkpoint_every=every)  # type: ignore[misc]
            )
            for number, part in enumerate(cut)
        ]
        stack.pop_all()
    return servers


def maker(rule: str, settings: Mapping[str, object], workers: int) -> Callable[[Any], Server]:
    """Return a function that makes a part's server: the preset ``rule`` with ``settings``, and defaults for limits.

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
    arguments = {**limits, **dict.fromkeys(own, workers), **settings}

    def make(part: Any) -> Server:
        server: Server = preset(part, **arguments)
        if server.control is not None:
            raise ConfigError(f"rule: {rule} sends control variates with its tasks; write a server in Python for it")
        return server

    return make


def _is_here(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
