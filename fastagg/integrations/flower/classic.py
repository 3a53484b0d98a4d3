"""The same for Flower's earlier API, where a round's results come as one list."""

from __future__ import annotations

import os
from typing import Any

from flwr.common import FitIns, FitRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from torch import Tensor

from fastagg.errors import DTypeMismatch, FastaggError, UnknownClient
from fastagg.integrations.flower.records import NUMPY, from_npy, to_npy
from fastagg.integrations.flower.tasks import OPEN, Make, log, made
from fastagg.serving.dispatch import Dispatch
from fastagg.serving.server import Answer, Server
from fastagg.storage import memory


class ClassicStrategy(FedAvg):
    """Any synchronous rule of fastagg as a ``flwr.server.strategy.Strategy``; see :class:`SyncStrategy`.

    Args:
        server, deterministic, checkpoint: as there; the model is a list of arrays.
        flower: settings of ``flwr.server.strategy.FedAvg``.
    """

    def __init__(
        self,
        server: Make | Server,
        *,
        deterministic: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        **flower: Any,
    ) -> None:
        super().__init__(**flower)
        self._make, self.deterministic, self.checkpoint = server, deterministic, checkpoint
        self.server: Server | None = server if isinstance(server, Server) else None
        self._tasks: dict[str, Dispatch] = {}  # by client id

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Sample clients as Flower does, and note what each is sent."""
        if self.server is None:
            self.server = made(self._make, _arrays(parameters), clients_per_round=OPEN)
        chosen = super().configure_fit(server_round, self._parameters(), client_manager)
        self._tasks = {proxy.cid: self.server.dispatch(proxy.cid) for proxy, _ in chosen}
        return chosen

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Fold every result in, then close the round with those that were good."""
        server = self.server
        if server is None or (failures and not self.accept_failures):
            return None, {}
        for failure in failures:
            log.warning("fastagg: a client failed in round %d: %s", server_round, _reason(failure))
        before = server.version
        folded = self._fold(server, sorted(results, key=lambda pair: pair[0].cid) if self.deterministic else results)
        server.close_round()
        memory.trim()
        for task in self._tasks.values():
            server.forget(task.client, task.version)
        self._tasks.clear()
        log.info("fastagg: round %d: %d updates, version %d", server_round, len(folded), server.version)
        if server.version == before:
            return None, {}
        if self.checkpoint is not None:
            server.save(self.checkpoint)
        average = self.fit_metrics_aggregation_fn
        return self._parameters(), average(folded) if average and folded else {}

    def _fold(self, server: Server, results: list[tuple[ClientProxy, FitRes]]) -> list[tuple[int, dict[str, Scalar]]]:
        """Fold all results in, in one pass over memory; the metrics of those that were good."""
        answers: list[Answer] = []
        known: list[tuple[str, FitRes]] = []
        for proxy, result in results:
            try:
                if proxy.cid not in self._tasks or any(proxy.cid == client for client, _ in known):
                    raise UnknownClient("it was not asked, or has answered already")
                answers.append((self._tasks[proxy.cid], _arrays(result.parameters), result.num_examples))
            except FastaggError as error:
                _dropped(proxy.cid, error)
            else:
                known.append((proxy.cid, result))
        folded = []
        for (client, result), outcome in zip(known, server.receive_models(answers), strict=True):
            if isinstance(outcome, FastaggError):
                _dropped(client, outcome)
            else:
                del self._tasks[client]
                folded.append((result.num_examples, result.metrics))
        return folded

    def _parameters(self) -> Parameters:
        assert self.server is not None
        arrays = self.server.parameters()
        arrays = arrays.values() if isinstance(arrays, dict) else arrays
        return Parameters(tensors=[to_npy(array)[2] for array in arrays], tensor_type=NUMPY)


def _arrays(parameters: Parameters) -> list[Tensor]:
    if parameters.tensor_type != NUMPY:
        raise DTypeMismatch(f"parameters: expected {NUMPY} bytes, got {parameters.tensor_type!r}")
    return [from_npy(data, label=f"array {i}") for i, data in enumerate(parameters.tensors)]


def _dropped(client: str, error: FastaggError) -> None:
    log.warning("fastagg: dropped the result of client %s: %s: %s", client, type(error).__name__, error)


def _reason(failure: tuple[ClientProxy, FitRes] | BaseException) -> str:
    return str(failure) if isinstance(failure, BaseException) else failure[1].status.message
