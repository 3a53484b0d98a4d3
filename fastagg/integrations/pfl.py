"""A central optimizer for pfl-research. pfl's model calls the optimizer from one thread.

pfl averages the updates of a cohort. This optimizer applies the mean to the model in one pass over memory. A mean that
the optimizer refuses changes nothing.
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

    pfl stores the negated mean difference of the cohort as gradients, and calls :meth:`step`. This object holds the
    moments and an fp32 copy of the model. Parameters of another type get the copy's rounded values. Learning-rate
    schedulers work as usual. If other code changes the parameters between two steps, the changed parameters are the
    model from then on, as with torch's optimizers. The moments stay.

    Args:
        module: the model. Parameters that are not trained do not change.
        optimizer: such as fastagg.SGD, Momentum, Adam, AMSGrad, Yogi or Adagrad, with settings. Adam and AMSGrad equal
            torch's with betas (0.9, 0.999) and ``bias_correction=True``. Without bias correction the log has a warning.
        direction: how cohorts' means become a direction: ``fastagg.Buffer`` or a :class:`fastagg.Direction` of your
            own, with ``kind="gradient"``. While the direction waits for more means, the model stays the same. With
            cohorts of one user, a mean is one user's update. None: each mean makes a step.

    Raises:
        FastaggError: the model, a setting or the mean in ``step`` (NaN, infinity) is refused. Nothing has changed.
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
        """Take a cohort's mean difference from the gradients. Step, unless the direction waits for more means. The
        argument ``closure`` has no effect."""
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
        """Return torch's state_dict with the server's state, which has the moments and the fp32 model."""
        return {**super().state_dict(), "fastagg": self.server.state_dict()}

    def load_state_dict(self, state_dict: State) -> None:
        """Load a state that :meth:`state_dict` returned."""
        state = dict(state_dict)
        self.server.load_state_dict(state.pop("fastagg"))
        super().load_state_dict(state)
