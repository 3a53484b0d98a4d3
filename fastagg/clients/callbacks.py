"""A callback that makes Hugging Face's ``Trainer`` a client of a server. The user adds the callback to a trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fastagg import _checks, _extras
from fastagg.errors import ConfigError, ShapeMismatch

Exchange = Callable[[Tensor | None], Tensor]


class _Periodic:
    """Sends the model's change after every ``every`` steps, and loads the server's model that comes back."""

    def __init__(self, exchange: Exchange, every: int) -> None:
        self.exchange, self.every = exchange, _checks.whole("every", every, least=1)
        # The number of steps at the last epoch's end or exchange, and the change that had not been sent then.
        self.rest: tuple[int, Tensor | None] = (0, None)

    def begin(self, model: nn.Module, step: int) -> None:
        """Load the server's model. ``step``: the number of optimizer steps so far."""
        group = torch.distributed
        if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
            raise ConfigError(
                f"a client's callback works in one process, and {group.get_world_size()} train this model"
            )
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.take(None, step)

    def stepped(self, step: int) -> None:
        if step - self.last >= self.every:
            self.take(self.change(), step)

    def epoch_ended(self, step: int) -> None:
        """Keep the change that was not sent yet, for :meth:`end`. After the last epoch the trainer may load an earlier
        checkpoint or a mean of weights, which must not be sent."""
        if step > max(self.last, self.rest[0]):
            self.rest = (step, self.change())

    def end(self, step: int) -> None:
        """Send the change that was not sent yet. The module's parameters do not change."""
        if step > self.last:
            self.take(self.rest[1] if self.rest[0] == step else self.change(), step, load=False)

    def change(self) -> Tensor:
        return self.flat() - self.start

    def take(self, change: Tensor | None, step: int, *, load: bool = True) -> None:
        new = self.exchange(change)
        self.last, self.rest = step, (step, None)
        if load:
            size = sum(parameter.numel() for parameter in self.trained)
            if new.numel() != size:
                raise ShapeMismatch(f"the server's model has {new.numel()} parameters, and {size} of this one train")
            with torch.no_grad():
                for parameter, part in zip(
                    self.trained, new.split([parameter.numel() for parameter in self.trained]), strict=True
                ):
                    parameter.copy_(part.view_as(parameter))
            self.start = self.flat()  # read from the module, whose type may have rounded the server's model

    def flat(self) -> Tensor:
        return torch.cat([parameter.detach().reshape(-1).to(torch.float32) for parameter in self.trained])


def trainer_callback(exchange: Exchange, every: int) -> Any:
    """Return a ``TrainerCallback`` for Hugging Face's ``Trainer`` that sends a delta after every ``every`` steps.

    Training begins from the server's model. After each exchange, training continues from the model that comes back. The
    local optimizer keeps its moments. At the end of the training, the change that was not sent yet is sent. A
    checkpoint that ``load_best_model_at_end`` loads is not sent. Only parameters with ``requires_grad`` are exchanged,
    such as peft's adapters. The server's model must have the same parameters in the same order, as in
    ``fastagg.FedBuff(model)``.

    Args:
        exchange: a function that takes a delta ([d], fp32), and returns the server's model ([d]). The delta is the
            change since the model that was returned last, and None in the first call. An example is
            :meth:`HttpClient.exchange`.
        every: H, the number of optimizer steps between two exchanges.

    Raises:
        MissingDependency: transformers is not installed. ConfigError: several processes train this model.
        ShapeMismatch: the server's model has another length.

    Example:
        >>> client = fastagg.clients.HttpClient("https://fl.example.org", "ann", "secret")
        >>> def work(trainer) -> None:  # a transformers.Trainer
        ...     trainer.add_callback(fastagg.clients.trainer_callback(client.exchange, every=50))
        ...     trainer.train()
    """
    _extras.require("trainer_callback", "nlp", ("transformers",))
    from transformers import TrainerCallback

    periodic = _Periodic(exchange, every)

    class Callback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
            periodic.begin(model, state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            periodic.stepped(state.global_step)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            periodic.epoch_ended(state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            periodic.end(state.global_step)

    return Callback()
