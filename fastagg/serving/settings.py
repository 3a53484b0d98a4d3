"""The keyword arguments of a server, as types: every preset takes them beside its own."""

from __future__ import annotations

from typing import TypedDict

import torch

from fastagg.parts.names import Buffers, Validate, Weighting


class BaseSettings(TypedDict, total=False):
    """What every preset takes, whatever is its own. :class:`fastagg.Server` says what each means."""

    clip_norm: float | None  # longest Euclidean norm of an update; longer ones are scaled down to it
    buffers: Buffers  # what BatchNorm's statistics become
    deterministic: bool  # whether a synchronous round's bits are free of the order of arrival
    validate: Validate  # who waits for a CUDA device to say whether an update is finite
    seed: int  # of every random number the server draws
    origin: int  # where this model begins, if it is a slice of a larger one: a multiple of 65,536
    device: torch.device | str | None  # where state lives and steps run
    lease: float | None  # seconds after which a task that nobody answered ends
    max_open_per_client: int | None  # unanswered tasks of one client
    max_clients: int | None  # that are known at a time
    max_waiting: int | None  # answers that wait for others


class DelaySettings(BaseSettings, total=False):
    """Those of the presets that have no ``max_delay`` of their own."""

    max_delay: int | None  # versions after which a task ends


class ClientSettings(DelaySettings, total=False):
    """Those of the presets that weigh clients in a way of their own."""

    num_clients: int | None  # if given, ids are 0..num_clients-1 and others are refused


class ActiveSettings(BaseSettings, total=False):
    """ACED's, whose ``max_delay`` says how long a client's row counts."""

    weighting: Weighting  # of updates in a mean: all alike, or by ``num_samples``


class WeightSettings(DelaySettings, total=False):
    """Those of the presets that must know the number of clients, and so ask for it themselves."""

    weighting: Weighting  # of updates in a mean: all alike, or by ``num_samples``


class ServerSettings(ClientSettings, WeightSettings, total=False):
    """All of them: ``def Mine(params, *, lr: float, **server: Unpack[fastagg.ServerSettings]) -> fastagg.Server``."""
