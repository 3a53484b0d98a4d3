"""Strategies for Flower's older API, in which a round's results come as one list."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path

from flwr.common import EvaluateIns, FitIns, FitRes, Parameters, Scalar
from flwr.server import strategy
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from torch import Tensor

from fastagg._types import Arrays, Foreign
from fastagg.errors import ConfigError, DTypeMismatch, FastaggError, UnknownClient
from fastagg.integrations import check_names, replies
from fastagg.integrations.flower.records import NUMPY, from_npy, to_npy
from fastagg.integrations.flower.rounds import Round
from fastagg.integrations.flower.settings import Make, app, callable_or_none, proximal, say_what_differs, set_rate
from fastagg.integrations.flower.tasks import log, raise_if_useless
from fastagg.integrations.run import FLOWER, LIMITS, Rule, Run, check_limits
from fastagg.integrations.session import Open, Settings
from fastagg.model import Layout
from fastagg.server import checkpoint as files
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch
from fastagg.server.server import Server
from fastagg.storage import memory


class ClassicStrategy(FedAvg):
    """Any synchronous rule of fastagg as a ``flwr.server.strategy.Strategy``; see :class:`SyncStrategy`.

    Args:
        server, lr, proximal_mu, deterministic, resume: as in :class:`SyncStrategy`. The model is a list of arrays.
            Clients get ``proximal_mu``, as in Flower's FedProx.
        checkpoint: file for the server, written after every round. If it exists, Flower's server starts from its
            model. Rounds are then counted from 1 again.
        flower: settings of ``flwr.server.strategy.FedAvg``; and ``max_in_a_row``, rounds too small for their rule
            after which the run ends.
    """

    def __init__(
        self,
        server: Make | Server,
        *,
        lr: Callable[[int], float] | None = None,
        proximal_mu: float | None = None,
        deterministic: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = True,
        **flower: Foreign,
    ) -> None:
        known = inspect.signature(FedAvg).parameters
        check_names(flower, [*known, *inspect.signature(ClassicStrategy).parameters, "max_in_a_row"], {})
        check_limits(**{name: value for name, value in flower.items() if name in LIMITS})
        settings = Settings(max_in_a_row=flower.pop("max_in_a_row", 50), max_failures=None)
        super().__init__(**flower)
        self.rule, self.deterministic = Rule(FLOWER, server, rounds=True), deterministic
        self.proximal_mu, self.lr = proximal(self.rule, proximal_mu), callable_or_none("lr", lr)
        self.run = Run(self.rule, settings, checkpoint, 1, resume, log=log.info, warn=log.warning)
        self.run.place(app())
        self.server: Server | None = None
        self._tasks: Round[str]  # by client id; there with the server
        if isinstance(server, Server):
            self._make_server(None)
        self._asked = False  # whether Flower has been given a model, or has given one

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """The checkpoint's model, a Server's own, or ``initial_parameters``."""
        initial, file = super().initialize_parameters(client_manager), self.run.file
        if self._resumes():
            assert file is not None
            self._make_server(_model_of(file))
        elif self.server is None and initial is not None:
            self._adopt(initial)
            return initial
        self._asked = True
        return None if self.server is None else _outgoing(self.server)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Sample clients as Flower does, and remember the task of each."""
        server = self._adopt(parameters)
        set_rate(server, self.lr, server_round)
        chosen = super().configure_fit(server_round, parameters, client_manager)
        if self.proximal_mu is not None:
            stated = {"proximal_mu": self.proximal_mu}
            chosen = [(proxy, FitIns(fit.parameters, {**fit.config, **stated})) for proxy, fit in chosen]
        self._tasks.send([proxy.cid for proxy, _ in chosen])
        return chosen

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """As Flower does."""
        server = self._adopt(parameters)
        if server.version != self.run.saved:  # a wrapper may have added noise: save it
            self.run.save()
        return super().configure_evaluate(server_round, parameters, client_manager)

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """As Flower does, which calls it before the first round. A model that a client gave is known from then on, also
        if ``configure_fit`` is a subclass's own."""
        if self.server is None and not self._resumes():
            self._adopt(parameters)
        return super().evaluate(server_round, parameters)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Add every result, then close the round with the good results."""
        server = self.server
        if not results or (failures and not self.accept_failures):
            return None, {}
        if server is None:
            raise ConfigError("aggregate_fit: the model is not known yet: call super().configure_fit")
        for failure in failures:
            why = failure if isinstance(failure, BaseException) else failure[1].status.message
            log.warning("fastagg: a client failed in round %d: %s", server_round, why)
        before = server.version
        folded = self._fold(sorted(results, key=lambda pair: pair[0].cid) if self.deterministic else results)
        self.run.session.close_round(log.warning)
        memory.trim()
        self._tasks.end()
        log.info("fastagg: round %d: %d updates, version %d", server_round, len(folded), server.version)
        if server.version == before:
            return None, {}
        average = self.fit_metrics_aggregation_fn
        return _outgoing(server), average(folded) if average and folded else {}

    def _fold(self, results: list[tuple[ClientProxy, FitRes]]) -> list[tuple[int, dict[str, Scalar]]]:
        """Add all results in one pass over memory. Return the metrics of the good results.

        A result's metrics may hold ``fastagg-kind`` and ``fastagg-version``.
        """
        answers: list[tuple[Open[str], Answer | FastaggError]] = []
        known: dict[str, FitRes] = {}
        refused: list[FastaggError] = []
        for proxy, result in results:
            try:
                if proxy.cid in known:
                    raise UnknownClient("it has answered already")
                one, known[proxy.cid] = self._tasks.answered(proxy.cid), result
            except FastaggError as error:
                refused.append(_dropped(proxy.cid, error))
                continue
            answers.append((one, _read(self._tasks.server, one.task, result)))
        folded = []
        for (client, result), outcome in zip(known.items(), self._tasks.take(answers), strict=True):
            if isinstance(outcome, FastaggError):
                refused.append(_dropped(client, outcome))
            else:
                folded.append((result.num_examples, result.metrics))
        raise_if_useless(folded, refused)
        return folded

    # -- the model -----------------------------------------------------------------------------------------------

    def _adopt(self, parameters: Parameters) -> Server:
        """Take the arrays from Flower as the model, even if other code has changed them."""
        arrays, server = _arrays(parameters), self.server
        if not self._asked and (server is not None or self._resumes()):
            raise ConfigError("the server has a model of its own: Flower's must ask initialize_parameters for it")
        if server is None:
            server, self._asked = self._make_server(arrays), True
        self._tasks.adopt(arrays)
        self._tasks.end()  # of a round that a wrapper gave up
        return server

    def _resumes(self) -> bool:
        file = self.run.file
        return self.server is None and self.run.resume and file is not None and file.exists()

    def _make_server(self, arrays: Arrays) -> Server:
        self.run.begin(arrays)
        self.server = server = self.run.server
        self._tasks = self.run.session.book = Round(server)
        say_what_differs(server, self.lr is not None, self.rule, strategy)
        return server


def _model_of(path: Path) -> list[Tensor]:
    """The model of a checkpoint, as a list."""
    state = files.read(path)
    layout, buffers = Layout.from_spec(state["layout"]), state["buffers"]
    model = layout.views(state["flat"], buffers["values"], buffers["counters"])
    return list(model.values()) if isinstance(model, dict) else model


def _read(server: Server, task: Dispatch, result: FitRes) -> Answer | FastaggError:
    try:
        arrays = _arrays(result.parameters)
        return replies.answer(server, task, arrays, result.metrics or {}, samples=result.num_examples)
    except FastaggError as error:
        return error


def _arrays(parameters: Parameters) -> list[Tensor]:
    if parameters.tensor_type != NUMPY:
        raise DTypeMismatch(f"parameters: expected {NUMPY} bytes, got {parameters.tensor_type!r}")
    return [from_npy(data, label=f"array {i}") for i, data in enumerate(parameters.tensors)]


def _outgoing(server: Server) -> Parameters:
    arrays = server.parameters()
    arrays = arrays.values() if isinstance(arrays, dict) else arrays
    return Parameters(tensors=[to_npy(array)[2] for array in arrays], tensor_type=NUMPY)


def _dropped(client: str, error: FastaggError) -> FastaggError:
    log.warning("fastagg: dropped the result of client %s: %s: %s", client, type(error).__name__, error)
    return error
