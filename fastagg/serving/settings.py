"""The keyword arguments of a server, as types. Every preset takes them in addition to its own."""

from __future__ import annotations

from typing import TypedDict

import torch

from fastagg.parts.names import Buffers, Validate, Weighting


class BaseSettings(TypedDict, total=False):
    """The arguments that every preset takes. :class:`fastagg.Server` explains each."""

    clip_norm: float | None  # the largest Euclidean norm of an update; larger updates are scaled down to it
    buffers: Buffers  # how BatchNorm's statistics are combined
    deterministic: bool  # whether a synchronous round's bits are independent of the order of arrivals
    validate: Validate  # whether `receive` waits until a CUDA device has checked that an update is finite
    seed: int  # of all random numbers that the server draws
    origin: int  # for a slice of a larger model: where it begins, a multiple of 65,536
    device: torch.device | str | None  # where the state is and where steps run
    lease: float | None  # after so many seconds an unanswered task ends
    max_open_per_client: int | None  # the most unanswered tasks of one client
    max_clients: int | None  # the most clients known at a time
    max_waiting: int | None  # the most answers that may wait for others


class DelaySettings(BaseSettings, total=False):
    """The arguments of presets without a ``max_delay`` of their own."""

    max_delay: int | None  # after so many versions a task ends


class ClientSettings(DelaySettings, total=False):
    """The arguments of presets that weigh clients in their own way."""

    num_clients: int | None  # if given, ids are 0..num_clients-1 and others are refused


class ActiveSettings(BaseSettings, total=False):
    """ACED's arguments. Its ``max_delay`` is how long a client's row counts."""

    weighting: Weighting  # of updates in a mean: all equal, or by ``num_samples``


class WeightSettings(DelaySettings, total=False):
    """The arguments of presets that need the number of clients and have it as an argument of their own."""

    weighting: Weighting  # of updates in a mean: all equal, or by ``num_samples``


class ServerSettings(ClientSettings, WeightSettings, total=False):
    """All of them: ``def Mine(params, *, lr: float, **server: Unpack[fastagg.ServerSettings]) -> fastagg.Server``."""
