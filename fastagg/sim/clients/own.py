"""Trains clients and changes updates with the user's own functions, which UserFunctions describes.

A program passes the functions as ``run(config, own=UserFunctions(train=...))``. A recipe names the functions as
"module:function" in its section ``[own]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from fastagg.errors import ConfigError
from fastagg.model import Layout, ModelState
from fastagg.server.dispatch import Dispatch
from fastagg.sim.clients.client import LocalTrainer, Loss, Metric, Turn, Update
from fastagg.sim.data.federated import Samples
from fastagg.sim.recipes import config as c
from fastagg.sim.recipes.sections import Client
from fastagg.sim.seeds import seeded


@dataclass(frozen=True)
class UserFunctions:
    """Your own functions. None: the run does what the recipe says.

    Attributes:
        train: ``train(model, data, task, state) -> (update, state)``. ``model`` has the weights that were sent.
            ``data`` is the client's :class:`~fastagg.sim.data.federated.Samples`. ``task`` is a
            :class:`~fastagg.sim.clients.client.Turn`. ``state`` is the state that this client returned last, at first
            None. States have numbers, text, tensors, and lists, tuples and dicts of these. Checkpoints hold all states.
            ``update`` is like ``task.delta(model)``. A parameter that is left out does not change, and costs no bytes.
            If a rule of your own takes further tensors, return ``(update, state, extra)``, with these tensors by name
            in ``extra``. ``task.extra`` has the tensors that the rule sent.
            Torch's random numbers are seeded. Clients train one after the other in the run's own process.
        loss: ``loss(outputs, labels)`` returns the mean loss of a batch. Labels may then also be fp32.
        metric: ``metric(outputs, labels) -> float`` rates a whole test set, in place of the accuracy. Larger is better.
        change: ``change(update, task) -> update`` changes every update before it is sent, for attacks, noise and
            compression. An update is a dict of tensors by name. Returned tensors may be fp32, fp16, bf16 or sparse. The
            function may also return ``(update, bytes)``. Otherwise the number of bytes is that of the tensors.
        personal: ``personal(model, state)`` turns the server's model into a client's own model, in place, before the
            client is tested on its own samples. Only clients that have a state get a model of their own.
    """

    train: Callable[..., tuple[Any, Any]] | None = None
    loss: Loss | None = None
    metric: Metric | None = None
    change: Callable[[dict[str, Tensor], Turn], Any] | None = None
    personal: Callable[[nn.Module, Any], object] | None = None


NAMES = tuple(field.name for field in fields(UserFunctions))


def chosen(config: c.Config) -> UserFunctions:
    """Return the user's functions of a run. ConfigError: a function is not found, or takes other arguments."""
    if config.own.keywords and config.own.train is None:
        raise ConfigError("own.keywords are arguments of own.train, which is not given")
    return UserFunctions(**{name: config.function(f"own.{name}") for name in NAMES})


class OwnTrainer(LocalTrainer):
    """Trains clients with the user's function ``own.train``. ``states``: each client's last state."""

    def __init__(self, module: nn.Module, work: Client, seed: int, own: UserFunctions) -> None:
        super().__init__(module, work, seed, own.loss)
        assert own.train is not None
        self._train = own.train
        self._trains = [parameter.requires_grad for parameter in module.parameters()]
        self.states: dict[int, Any] = {}
        self.extra: dict[str, Tensor] | None = None  # further tensors of the client that trained last

    def train(self, task: Dispatch, samples: Samples, client: int, number: int) -> Update:
        with self.turn(task, client, number) as turn:
            answer = self._train(self._module, samples, turn, self.states.get(client))
        for parameter, trains in zip(self._module.parameters(), self._trains, strict=True):  # undo own.train's changes
            parameter.requires_grad_(trains)
            parameter.grad = None
        if not isinstance(answer, tuple) or len(answer) not in (2, 3):
            what = "(update, state) or (update, state, extra)"
            raise ConfigError(f"own.train: expected {what}, got a {type(answer).__name__}")
        update, state = answer[:2]
        self.extra = arrays(answer[2], "own.train: extra") if len(answer) == 3 else None
        self.states[client] = _kept(state)
        return arrays(update, "own.train")

    gradient = train


def arrays(update: object, where: str) -> dict[str, Tensor]:
    """Return ``update`` without its autograd graph. ConfigError at ``where``: it is not a dict of tensors by name."""
    if isinstance(update, Mapping) and all(isinstance(array, Tensor) for array in update.values()):
        return {name: array.detach() for name, array in update.items()}
    raise ConfigError(f"{where}: expected an update, a dict of tensors by name, got a {type(update).__name__}")


def _kept(state: object) -> Any:
    """Return a copy of a client's state that later training does not change. ConfigError: the state cannot be saved."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {_kept(key): _kept(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(map(_kept, state)) if type(state) in (list, tuple) else list(map(_kept, state))
    if state is None or type(state) in (bool, int, float, str):
        return state
    raise ConfigError(
        f"own.train: a state of {type(state).__name__} cannot be saved: use numbers, text, tensors, and lists, tuples "
        "and dicts of them"
    )


class UpdatePreparer:
    """Prepares updates for the server: calls ``own.change``, counts bytes, and sets elements that are left out to 0."""

    def __init__(self, module: nn.Module, layout: Layout, work: Client, seed: int, own: UserFunctions) -> None:
        self._layout, self._work, self._seed, self._own = layout, work, seed, own
        self._devices = {p.device for p in module.parameters() if p.device.type != "cpu"}
        self._shapes = {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
        self.whole = 4 * layout.size + sum(buffer.nbytes for buffer in module.buffers())  # bytes of a complete update

    def __call__(self, update: Update, task: Dispatch, client: int, number: int) -> tuple[Update, int]:
        """Return the update in the form that the server takes, and the number of bytes that the client sends."""
        size = None
        if self._own.change is not None:
            if isinstance(update, ModelState):
                update = dict(self._layout.views(*update))
            turn = Turn(task, client, number, self._work, self._seed, self._own.loss)
            with seeded(self._seed, "change", client, number, devices=self._devices):
                changed = self._own.change(update, turn)
            if isinstance(changed, tuple):
                changed, size = changed
            update = arrays(changed, "own.change")
        if isinstance(update, ModelState):
            return update, self.whole
        if size is None:
            size = sum(map(_bytes, update.values()))
        if any(array.is_sparse for array in update.values()) or not self._shapes.keys() <= update.keys():
            dense = {name: array.to_dense() if array.is_sparse else array for name, array in update.items()}
            blank = {
                name: torch.zeros(shape, dtype=torch.float32, device="cpu")
                for name, shape in self._shapes.items()
                if name not in dense
            }
            update = {**dense, **blank}
        return update, int(size)


def _bytes(array: Tensor) -> int:
    if not array.is_sparse:
        return array.nbytes
    array = array.coalesce()
    return array.values().nbytes + array.indices().nbytes
