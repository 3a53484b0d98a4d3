"""Directions with a step at every update: asynchronous SGD, HeLoCo, FedAsync."""

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
        >>> float(server.parameters())  # a step for each
        4.0
    """

    def start(self, material: Material) -> DirectionState:
        return DirectionState(native.engine.Single(sign=self.sign))


@dataclass(frozen=True)
class Aligned(Single):
    """Every update is a step of its own, in which each **tensor** is turned towards the momentum (HeLoCo, Algorithm 2).

    arXiv 2606.00271, Eqs. 7 to 15. For a tensor D of the update and its momentum m: ``c = cos(D, m)`` and
    ``conf = |D|/(|D| + kappa*|m| + eps)``. Then D becomes

    - ``D`` if ``c >= c_ok``, or if D or m is shorter than ``eps``;
    - ``D - beta*c*|D|*m/|m|`` with ``beta = min(-k_s*c*conf, beta_max)`` if ``c < 0``;
    - ``|D|*u/|u|`` with ``u = (1-l)*D/|D| + l*m/|m|`` and ``l = min(k_d*(1-c)*conf, 1)`` in between.

    The pass that reads the update computes the norms and products. The turn is two factors in the step. The optimizer
    needs a momentum in fp32. On a part of a model the rule gives the same result as on the whole, because a part
    consists of whole tensors. An update is clipped before it is turned, and weighed by its staleness afterwards.

    Args:
        rho: the weight of an arrival, > 0. The paper recommends ``1/sqrt(K)`` for K workers.
        c_ok: a tensor with at least this cosine is not changed, in [0, 1].
        k_s, beta_max: how strongly a tensor's component against the momentum shrinks, >= 0, and the limit.
        k_d: how strongly a tensor with a cosine in 0..c_ok is rotated, >= 0.
        kappa: how much the momentum's length reduces the confidence, >= 0.
        eps: norms below ``eps`` count as zero, > 0.

    Example:
        >>> server = fastagg.Server(torch.zeros(2), fastagg.Aligned(), fastagg.Nesterov(lr=1.0, momentum=0.5))
        >>> for update in ([2.0, 0.0], [-1.0, 0.0]):  # the second is against the momentum: it counts for 0.93
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
            ``weighting="uniform"``). With the samples of all clients as normalize, the factor is the client's share, as
            in APPFL. None: D is not scaled by samples.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Mixing(), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # with a rate of 1 the model is the last client's
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
