"""Directions that step at every update along the mean of clients' latest updates (ACE, ACED). Servers call them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from fastagg._build import native
from fastagg._checks import SettingRule
from fastagg._types import Native, State
from fastagg.errors import ConfigError
from fastagg.rules.directions.base import DirectionState, Material, PerClient, SumState, resummation_of
from fastagg.rules.names import Cache, Freshness, Kind, Mode, Warmup
from fastagg.rules.staleness import Staleness
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache


@dataclass(frozen=True)
class AllClients(PerClient):
    """``u = mean_i U_i``, where U_i is client i's latest update. D is -u for gradients, u for deltas (ACE, Alg. 1).

    The mean is weighted by ``weighting``. An update replaces the client's cached update. The difference of both updates
    *as stored* is added to the sum, so the mean is always that of the stored updates. At each update a part of the sum,
    or with ``direct`` all of it, is recomputed from these updates, so rounding errors do not accumulate.

    Args:
        num_clients: n, >= 1. Client ids are 0..n-1.
        cache: format of the cached updates: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        warmup: ``full``: no step until every client has answered once (Algorithm 1). ``partial``: every update makes a
            step along the mean over the clients that have answered so far.
        mode: ``incremental``: an update changes the sum, in O(d). ``direct``: an update recomputes the sum, in O(n*d).

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.AllClients(2), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # one step against the mean gradient of both clients
        -2.0
    """

    cache: Cache = "fp32"
    warmup: Warmup = "full"
    mode: Mode = "incremental"
    kind: Kind = field(default="gradient", kw_only=True)

    def native_setting(self) -> Native:
        return native.engine.AllClientsSetting(
            clients=self.num_clients, full=self.warmup == "full", direct=self.mode == "direct"
        )

    def start(self, material: Material) -> DirectionState:
        return AllClientsState(self, material)


@dataclass(frozen=True)
class ActiveSet(AllClients):
    """``u = mean over A(t) of U_i`` with ``A(t) = {i : t - t_start_i <= tau_algo}`` (ACED, Algorithm a.1).

    U_i is client i's latest update. The server adds new updates to the sum over the active set A(t) and subtracts
    expired updates. An update takes O(d), amortised. If no client is active, a new version is made without a step. The
    first step of ``warmup="full"`` uses every client's update.

    Args:
        num_clients, cache, warmup: as in :class:`AllClients`.
        max_delay: tau_algo, >= 0.
        freshness: defines t_start_i. ``dispatch``: the version that was last sent to client i (Algorithm a.1, whose
            clients get the next model as soon as they answer). ``gradient``: the version on which the client's cached
            update was computed (the text of Eq. 7).

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.ActiveSet(2, max_delay=1), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())
        -2.0
    """

    mode: Literal["incremental"] = "incremental"
    max_delay: Annotated[int, SettingRule(least=0, most=2**53)] = 10
    freshness: Freshness = "dispatch"

    def native_setting(self) -> Native:
        return native.engine.AllClientsSetting(
            clients=self.num_clients, full=self.warmup == "full", max_delay=self.max_delay,
            by_dispatch=self.freshness == "dispatch",
        )  # fmt: skip


@dataclass(frozen=True)
class Differences(PerClient):
    """ACE with clients that keep their last gradient and send ``g_new - g_prev`` (the ACE paper, Algorithm a.5).

    The server keeps only the sum of differences. Clients use :class:`fastagg.clients.GradientDifference`.

    Args:
        num_clients: n, >= 1.
        warmup: as in :class:`AllClients`.
    """

    warmup: Warmup = "full"
    kind: Kind = field(default="gradient", kw_only=True)

    def check(self, staleness: Staleness, clip_norm: float | None, weighting: str) -> None:
        reason = "differences must reach the sum whole, or it is no sum of gradients any more"
        if staleness.weighs or clip_norm is not None or weighting != "uniform":
            raise ConfigError(f"Differences takes no staleness weight, no clip_norm and no sample weights: {reason}")

    def start(self, material: Material) -> DirectionState:
        return _DifferencesState(self, material)


class AllClientsState(SumState):
    """The rows (stored updates) of all clients, the sum of the rows, and each row's weight in the sum."""

    def __init__(self, setting: AllClients, material: Material) -> None:
        size, device, seed = material.size, material.device, material.seed
        self.cache = ClientCache(size, setting.num_clients, setting.cache, device, seed)
        self.sum = memory.zeros(size, device)
        self.resummation = None if setting.mode == "direct" else resummation_of(self.cache, material)
        super().__init__(
            native.engine.AllClients(
                sign=setting.sign, setting=setting.native_setting(), seed=seed, sum=self.sum.data_ptr(),
                rows=self.cache.native, resummation=self.resummation,
            )
        )  # fmt: skip

    def used(self, state: State) -> list[int]:
        slots: list[int] = state["shares"].nonzero()[0].tolist()
        return slots


class _DifferencesState(SumState):
    """The sum of all differences, which is the sum of the clients' last gradients."""

    def __init__(self, setting: Differences, material: Material) -> None:
        self.sum = memory.zeros(material.size, material.device)
        super().__init__(
            native.engine.Differences(
                sign=setting.sign, clients=setting.num_clients, full=setting.warmup == "full", sum=self.sum.data_ptr()
            )
        )
