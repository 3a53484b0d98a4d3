"""Directions that step at every update: asynchronous SGD, HeLoCo, FedAsync. Servers call them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from fastagg._build import native
from fastagg._checks import Divisor, NotNegative, Positive, SettingRule
from fastagg.errors import ConfigError
from fastagg.rules.directions.base import Direction, DirectionState, Material


@dataclass(frozen=True)
class Single(Direction):
    """``D = Delta_i``, or ``D = -g_i`` with ``kind="gradient"`` (asynchronous SGD).

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Single(), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # each update made a step
        4.0
    """

    def start(self, material: Material) -> DirectionState:
        return DirectionState(native.engine.Single(sign=self.sign))


@dataclass(frozen=True)
class Aligned(Single):
    """Every update makes a step, for which each **tensor** of the update is turned towards the momentum (HeLoCo).

    This is Algorithm 2 of arXiv 2606.00271, Eqs. 7 to 15. D is a tensor of the update, and m the same tensor of the
    momentum. With ``c = cos(D, m)`` and ``conf = |D|/(|D| + kappa*|m| + eps)``, D becomes

    - ``D`` if ``c >= c_ok``, or if D or m is shorter than ``eps``;
    - ``D - beta*c*|D|*m/|m|`` with ``beta = min(-k_s*c*conf, beta_max)`` if ``c < 0``;
    - ``|D|*u/|u|`` with ``u = (1-l)*D/|D| + l*m/|m|`` and ``l = min(k_d*(1-c)*conf, 1)`` if ``0 <= c < c_ok``.

    The pass that reads the update computes norms and products, and the step multiplies D and m by two factors. The
    optimizer's momentum must be fp32. For a part of a model the result is the same as for the whole model, because a
    part has whole tensors. An update is clipped before it is turned. Its staleness weight is applied afterwards.

    Args:
        rho: the weight of each update, > 0. The paper recommends ``1/sqrt(K)`` for K workers.
        c_ok: a tensor with at least this cosine is not changed, in [0, 1].
        k_s: how strongly a tensor's component against the momentum shrinks, >= 0.
        beta_max: the largest beta, >= 0.
        k_d: how strongly a tensor with a cosine from 0 to c_ok is rotated, >= 0.
        kappa: how much the momentum's length reduces the confidence, >= 0.
        eps: norms below ``eps`` count as zero, > 0.

    Example:
        >>> server = fastagg.Server(torch.zeros(2), fastagg.Aligned(), fastagg.Nesterov(lr=1.0, momentum=0.5))
        >>> for update in ([2.0, 0.0], [-1.0, 0.0]):  # the second points against the momentum: 0.93 of it is used
        ...     task = server.dispatch("ann")
        ...     receipt = server.receive("ann", torch.tensor(update))
        >>> server.flat
        tensor([2.1071, 0.0000])
    """

    rho: Positive = field(default=1.0, kw_only=True)
    c_ok: Annotated[float, SettingRule(least=0, most=1)] = field(default=0.2, kw_only=True)
    k_s: NotNegative = field(default=0.5, kw_only=True)
    k_d: NotNegative = field(default=1.0, kw_only=True)
    kappa: NotNegative = field(default=3.0, kw_only=True)
    beta_max: NotNegative = field(default=0.5, kw_only=True)
    eps: Positive = field(default=1e-8, kw_only=True)
    in_kernels: ClassVar[bool] = True
    reads_momentum: ClassVar[bool] = True

    def start(self, material: Material) -> DirectionState:
        setting = (self.rho, self.c_ok, self.k_s, self.k_d, self.kappa, self.beta_max, self.eps)
        return DirectionState(native.engine.Aligned(sign=self.sign, setting=setting, ends=material.ends))


@dataclass(frozen=True)
class Mixing(Direction):
    """A step towards the client's model: ``D = x_i^K - x_t`` with ``x_i^K = x_s + Delta_i``.

    With SGD and ``lr = alpha`` this is FedAsync's ``x <- (1-a_t)*x + a_t*x_i^K`` (the AsyncFedED paper, Eq. 40).

    Args:
        normalize: a number > 0. D is multiplied by s / normalize, where s is the client's number of samples (1 with
            ``weighting="uniform"``). If normalize is the number of all clients' samples, the factor is the client's
            share, as in APPFL. An answer whose factor times lr is above 1 is refused. None: samples have no effect.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Mixing(), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # with a learning rate of 1, the model equals the last client's model
        3.0
    """

    normalize: Divisor | None = field(default=None, kw_only=True)
    needs_base: ClassVar[bool] = True
    in_kernels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "delta":
            raise ConfigError("Mixing averages models: kind must be 'delta', since a gradient is no model")

    def start(self, material: Material) -> DirectionState:
        return DirectionState(native.engine.Single(sign=1.0, blend=True, divisor=self.normalize or 0.0))
