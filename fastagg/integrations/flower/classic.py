"""A strategy for Flower's older API, in which a round's results come as one list. Flower's server calls the strategy.

A result counts once, or is dropped with a line in the log. If a wrapper or a subclass has changed Flower's model during
the run, Flower's model replaces the server's.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path

from flwr.common import EvaluateIns, FitIns, FitRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from torch import Tensor

from fastagg._types import Foreign
from fastagg.errors import ConfigError, DTypeMismatch
from fastagg.integrations import check_names, replies
from fastagg.integrations.flower.records import NUMPY, from_npy, to_npy
from fastagg.integrations.flower.rounds import Gathering, Rounds
from fastagg.integrations.flower.settings import Maker
from fastagg.integrations.flower.tasks import log
from fastagg.integrations.goals import Settings
from fastagg.integrations.run import LIMITS, check_limits
from fastagg.model import Layout
from fastagg.server import checkpoint as files
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Server

Folded = tuple[int, dict[str, Scalar]]  # a result's number of examples and its metrics


class ClassicStrategy(Rounds[str], FedAvg):
    """Any synchronous rule of fastagg as a ``flwr.server.strategy.Strategy``, like :class:`SyncStrategy`.

    Args:
        server, lr, deterministic: as in :class:`SyncStrategy`. The model is a list of arrays.
        checkpoint: a file for the server's state, written after every round. If the file exists, Flower's server starts
            from the file's model, and counts rounds from 1 again.
        flower: settings of ``flwr.server.strategy.FedAvg``, and ``max_in_a_row`` (default: 50). RunFailed ends the run
            after this many failures in a row, or this many rounds in a row that were too small for their rule.
    """

    _advice = "Flower's server must ask initialize_parameters for it"

    def __init__(
        self,
        server: Maker | Server,
        *,
        lr: Callable[[int], float] | None = None,
        deterministic: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        **flower: Foreign,
    ) -> None:
        known = inspect.signature(FedAvg).parameters
        check_names(flower, [*known, *inspect.signature(ClassicStrategy).parameters, "max_in_a_row"], {})
        check_limits(**{name: value for name, value in flower.items() if name in LIMITS})
        settings = Settings(max_in_a_row=flower.pop("max_in_a_row", 50), max_failures=None)
        super().__init__(**flower)
        self._set_up(server, settings, checkpoint, lr, deterministic)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Return the first model: the checkpoint's if there is one, otherwise a Server's or ``initial_parameters``.
        None: there is no model, and Flower asks a client for one."""
        initial, file = super().initialize_parameters(client_manager), self.run.file
        if self.session is None and file is not None and file.exists():
            self._begin(_model_of(file))
        elif self.session is None and self._own is not None:
            self._begin(None)
        elif self.session is None and initial is not None:
            self._adopt(_arrays(initial))
            return initial
        return None if self.server is None else _outgoing(self.server)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Sample clients as Flower does, and open a task for each client."""
        self._adopt(_arrays(parameters))
        self._configure(server_round)
        chosen = super().configure_fit(server_round, parameters, client_manager)
        self._tasks.send([proxy.cid for proxy, _ in chosen])
        return chosen

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return instructions as Flower does. If the checkpoint has another version, save it first."""
        server = self._adopt(_arrays(parameters))
        if server.version != self.run.saved:  # saved here, because a wrapper may have added noise after the step
            self.run.save()
        return super().configure_evaluate(server_round, parameters, client_manager)

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Evaluate as Flower does. Flower calls this method before the first round, too. If there is no server yet, the
        call makes one of ``parameters``, because a subclass may have its own ``configure_fit``."""
        if self.session is None:
            self._adopt(_arrays(parameters))
        return super().evaluate(server_round, parameters)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Add all results in one pass over memory, then end the round. Refused results do not count. Return the model
        and the averaged metrics, or None and {} if the model has not stepped.

        A result's metrics may have ``fastagg-kind`` and ``fastagg-version``, as in ``integrations.replies.answer``.
        """
        if not results or (failures and not self.accept_failures):
            return None, {}
        server, session = self.server, self.session
        if server is None or session is None:
            raise ConfigError("aggregate_fit: the model is not known yet: call super().configure_fit")
        for failure in failures:
            why = failure if isinstance(failure, BaseException) else failure[1].status.message
            log.warning("fastagg: a client failed in round %d: %s", server_round, why)

        def read(task: Dispatch, result: FitRes) -> Answer:
            arrays = _arrays(result.parameters)
            return replies.answer(server, task, arrays, result.metrics or {}, samples=result.num_examples)

        def keep(client: str, result: FitRes, receipt: Receipt | None) -> Folded:
            return result.num_examples, result.metrics

        gathering = Gathering[str, FitRes, Folded](session, read, keep)
        pairs = [(proxy.cid, result) for proxy, result in results]
        gathering.add(sorted(pairs, key=lambda pair: pair[0]) if self.deterministic else pairs)
        if not gathering.close():
            return None, {}
        average = self.fit_metrics_aggregation_fn
        return _outgoing(server), average(gathering.good) if average and gathering.good else {}


def _model_of(path: Path) -> list[Tensor]:
    """Return the model of a checkpoint as a list of tensors."""
    state = files.read(path)
    layout, buffers = Layout.from_spec(state["layout"]), state["buffers"]
    model = layout.views(state["flat"], buffers["values"], buffers["counters"])
    return list(model.values()) if isinstance(model, dict) else model


def _arrays(parameters: Parameters) -> list[Tensor]:
    if parameters.tensor_type != NUMPY:
        raise DTypeMismatch(f"parameters: expected {NUMPY} bytes, got {parameters.tensor_type!r}")
    return [from_npy(data, label=f"array {i}") for i, data in enumerate(parameters.tensors)]


def _outgoing(server: Server) -> Parameters:
    arrays = server.parameters()
    arrays = arrays.values() if isinstance(arrays, dict) else arrays
    return Parameters(tensors=[to_npy(array)[2] for array in arrays], tensor_type=NUMPY)
