"""pfl-research on fastagg: a central optimizer, which pfl's model calls, from one thread.

pfl averages a cohort itself. The rest is one fused step. A mean that is refused changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

import fastagg
from fastagg._types import State
from fastagg.errors import ConfigError, FastaggError
from fastagg.integrations import require
from fastagg.integrations.models import holds, put

require("pfl", "0.6.0", "pfl")


class CentralOptimizer(torch.optim.Optimizer):
    """Any fastagg optimizer as pfl's ``central_optimizer``.

    pfl stores the negated mean difference of the cohort as gradients, and steps. This object holds the moments and the
    fp32 model. Parameters of another type get its rounded values. A learning-rate scheduler works as usual. Parameters
    that other code has changed since the last step are the model then, as with torch's optimizers; the moments stay.

    Args:
        module: the model. Parameters that are not trained do not change.
        optimizer: fastagg.SGD, Momentum, Adam, AMSGrad, Yogi or Adagrad, with its settings. Adam and AMSGrad are
            torch's with betas (0.9, 0.999) and ``bias_correction=True``; without, the log says that they are not.
        direction: how cohorts' means become a direction, if not each by itself: ``fastagg.Buffer`` or a
            :class:`fastagg.Direction` of your own, with ``kind="gradient"``. With cohorts of one user each mean is a
            user's own change. While the direction waits for more, the model stays the same.

    Raises:
        FastaggError: the model or a setting is refused, or the mean in ``step`` has NaN. Nothing has changed.
    """

    def __init__(
        self, module: torch.nn.Module, optimizer: fastagg.Optimizer, direction: fastagg.Direction | None = None
    ) -> None:
        direction = direction or fastagg.Cohort(1, kind="gradient")
        if direction.kind != "gradient":
            raise ConfigError(f'direction: expected kind="gradient", pfl\'s sign, got {direction!r}')
        if type(optimizer) in (fastagg.Adam, fastagg.AMSGrad) and not optimizer.bias_correction:  # type: ignore[attr-defined]
            do = "for torch's, give it betas=(0.9, 0.999), bias_correction=True"
            logging.getLogger(__name__).warning(f"fastagg: not torch.optim.Adam: {optimizer}; {do}")
        self._trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.server = fastagg.Server(self._trained, direction, optimizer, answers_per_step=None)
        super().__init__(self._trained.values(), {"lr": optimizer.lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> None:  # type: ignore[override]
        """Take a cohort's mean difference; a server step along it, if the direction does not wait for more."""
        self.server.lr = self.param_groups[0]["lr"]
        if not holds(self.server, self._trained):
            put(self.server, {name: p.detach() for name, p in self._trained.items()})
        mean = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self._trained.items()}
        task = self.server.dispatch("cohort")
        try:
            self.server.receive("cohort", mean, task=task.id)
        except FastaggError:
            self.server.forget("cohort", task.version)
            raise
        for parameter, value in zip(self._trained.values(), self.server.parameters().values(), strict=True):
            parameter.copy_(value)

    def state_dict(self) -> State:
        """torch's state_dict, with the server's state."""
        return {**super().state_dict(), "fastagg": self.server.state_dict()}

    def load_state_dict(self, state_dict: State) -> None:
        """Continue from a :meth:`state_dict`."""
        state = dict(state_dict)
        self.server.load_state_dict(state.pop("fastagg"))
        super().load_state_dict(state)
