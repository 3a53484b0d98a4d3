"""Asynchronous training as a server object for FLARE's Collab API."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError

from fastagg._types import Arrays, Foreign, Plain
from fastagg.errors import FastaggError, RunFailed
from fastagg.integrations.nvflare.traffic import Traffic
from fastagg.integrations.session import Settings

_TICK = 0.1  # seconds between two looks of who is left alone


class AsyncCollab:
    """Asynchronous training for FLARE's Collab API; clients publish ``train(task: FLModel) -> FLModel``.

    Args:
        model: an nn.Module (FLARE makes it from its class and its constructor's arguments).
        timeout: seconds after which a call ends.
        algorithm, settings, versions, checkpoint, save_every, clients, weight_key, stop, best, trackers, max_failures,
            max_in_a_row, retry_after, max_seconds: as in :class:`AsyncController`.

    Raises:
        ConfigError: a setting is refused.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        algorithm: str = "FADAS",
        settings: Plain | None = None,
        versions: int = 100,
        timeout: float = 3600.0,
        checkpoint: str | None = None,
        save_every: int = 10,
        clients: list[str] | None = None,
        weight_key: str = FLMetaKey.NUM_STEPS_CURRENT_ROUND,
        stop: Plain | None = None,
        best: str | Plain | None = None,
        trackers: Plain | None = None,
        max_failures: int | None = 5,
        max_in_a_row: int | None = 50,
        retry_after: float = 5.0,
        max_seconds: float | None = None,
    ) -> None:
        self.model, self.algorithm, self.settings, self.versions = model, algorithm, settings, versions
        self.timeout, self.checkpoint, self.save_every = timeout, checkpoint, save_every
        self.clients, self.weight_key = clients, weight_key
        self.stop, self.best, self.trackers, self.max_failures = stop, best, trackers, max_failures
        self.max_in_a_row, self.retry_after, self.max_seconds = max_in_a_row, retry_after, max_seconds
        run = Settings(
            stop=stop, best=best, trackers=trackers, max_failures=max_failures, max_in_a_row=max_in_a_row,
            retry_after=retry_after, max_seconds=max_seconds,
        )  # fmt: skip
        self._traffic = Traffic(
            algorithm, settings, checkpoint, clients, weight_key, run=run, save_every=save_every, versions=versions
        )  # fmt: skip
        self._broken: FastaggError | None = None

    @collab.main
    def run(self) -> dict[str, Arrays]:
        """Run the training and return the final model. FLARE calls this method.

        Raises:
            RunFailed: a problem is permanent. The checkpoint is saved.
        """
        traffic, sites = self._traffic, list(collab.clients)
        traffic.start(self.model.state_dict())
        with ThreadPoolExecutor(len(sites)) as pool:
            for done in [pool.submit(self._drive, site, [one.name for one in sites]) for site in sites]:
                done.result()
        traffic.end()
        self.model.load_state_dict(traffic.model())
        if self._broken is not None:
            raise self._broken
        return traffic.model()

    def _drive(self, site: Foreign, everyone: list[str]) -> None:
        """Keep one client busy."""
        traffic = self._traffic
        try:
            while self._broken is None and not traffic.is_over(everyone):
                if traffic.session.failures.rests(site.name):
                    time.sleep(_TICK)
                    continue
                self._ask(site)
                traffic.end_window(len(everyone))
        except FastaggError as error:
            self._broken = error

    def _ask(self, site: Foreign) -> None:
        traffic, task = self._traffic, self._traffic.send(site.name)
        try:
            reply = site(timeout=self.timeout).train(task)
            if reply.current_round is None:
                reply.current_round = task.current_round  # it is the answer to this very call
            if not traffic.is_done():
                traffic.take(site.name, reply)
        except CollabCallError as error:
            traffic.failed(site.name, str(error))
        except RunFailed:
            raise
        except FastaggError:
            pass  # the log has it
        finally:
            traffic.forget(site.name)
