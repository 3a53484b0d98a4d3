"""The settings of server optimizers. Their kernels are in csrc/math/optimizers.h. Users make these objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from torch import Tensor

from fastagg import _checks
from fastagg._build import native
from fastagg._checks import Betas, Decay, NotNegative
from fastagg._types import Native
from fastagg.errors import ConfigError
from fastagg.registry import RulePart
from fastagg.rules.names import Moments

__all__ = [
    "SGD",
    "AMSGrad",
    "Adagrad",
    "Adam",
    "DelayedNesterov",
    "Lookahead",
    "Momentum",
    "Nesterov",
    "Optimizer",
    "Yogi",
]

_SMALLEST_EPS = 1.2e-38  # smaller values are zero or denormal in fp32, and give 0/0 where moments are zero
_SMALLEST_ROOT = 1e-24  # with an eps_root of at least this value, the divisor is above zero even if eps is 0


@dataclass(frozen=True)
class Optimizer(RulePart):
    """Base class of the server optimizers. In formulas, x is the model, D the step's direction and m, v the moments.

    Each of the package's optimizers has some of the attributes below as settings.

    Args:
        lr: server learning rate (eta), >= 0.

    Attributes:
        moments: format of the moments: ``fp32`` or ``8bit``. ``8bit`` takes one byte a value, and at most 0.016 bytes a
            value for scales, with unbiased stochastic rounding (csrc/math/moments.h). The step is computed in fp32 from
            the decoded values. SGD has no moments.
        weight_decay: lambda, >= 0. The package's optimizers use ``D - lambda*x`` in place of D. This is an L2 term, as
            in ``torch.optim.SGD``, ``Adam`` and ``Adagrad``.
        decoupled_weight_decay: if True, the optimizers use D unchanged, and ``(1 - lr*lambda)*x`` in place of x. ``lr``
            is the learning rate of the step, as in ``torch.optim.AdamW``.
        eps_root: ``sqrt(v + eps_root)`` is used in place of ``sqrt(v)``, >= 0 (optax). If there is a bias correction, v
            is the corrected v. ``eps`` may be 0 if ``eps_root`` is at least 1e-24.
        initial: the value of ``v`` and ``vhat`` before the first step, >= 0. The default is 0 as in Flower, FL-bench
            and torch. Other programs start at tau^2, where tau is ``eps`` (Reddi et al. 2021, Algorithm 2, and APPFL),
            tau (FedScale's Yogi), 1e-6 (optax's Yogi, also for m) or 0.1 (optax's Adagrad). 8-bit moments start at the
            nearest code, which differs by at most a sixteenth of the value.

    Raises:
        ConfigError: a setting is out of range.
    """

    lr: NotNegative = 1.0
    kernel: ClassVar[str] = ""  # the kernel's name in csrc/math/optimizers.h. Empty: the engine calls `step`.
    decays: ClassVar[tuple[str, ...]] = ()  # the names of the fields that become the kernel's betas[0] and betas[1]

    def step(
        self, x: Tensor, direction: Tensor, state: dict[str, Tensor], lr: float, round: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the model after one step. A user's own optimizer defines this method, in plain torch.

        Args:
            x: the model, fp32 [d]. Do not change it.
            direction: the vector to step along, fp32 [d]. Add this vector to the model, even if clients send gradients.
            state: the state that the last step returned. {} before the first step.
            lr: the learning rate of this step.
            round: the number of this step: 1, 2, ...

        Returns:
            The new model, fp32 [d], and the new state.
        """
        raise NotImplementedError(f"{type(self).__name__} steps in a kernel")

    @property
    def has_own_step(self) -> bool:
        """Whether the engine calls :meth:`step` in place of a kernel."""
        return type(self).step is not Optimizer.step

    def native(self) -> Native:
        """Return the optimizer in the engine's form. Every field but ``moments`` and those in ``decays`` becomes the
        kernel's setting of the same name. With a user's own step, only ``lr`` is passed.

        Raises:
            TypeError: the kernel has no setting of this name.
        """
        names = ["lr"] if self.has_own_step else [*_checks.hints(_checks.own_class(self))]
        settings = {name: getattr(self, name) for name in names if name not in ("moments", *self.decays)}
        if self.decays:
            settings["betas"] = (*(getattr(self, name) for name in self.decays), 0.0)[:2]
        return native.engine.Optimizer(self.kernel or "sgd", coded=self.moment_format == "8bit", **settings)

    def check(self) -> None:
        """Raise ConfigError if the optimizer has neither a kernel nor a method ``step``."""
        if not self.kernel and not self.has_own_step:
            raise ConfigError(
                f"optimizer: {type(self).__name__} has no method step(x, direction, state, lr, round); "
                "see docs/rules.md, or derive it from one of fastagg's optimizers"
            )

    @property
    def moment_format(self) -> str:
        """The setting ``moments``. ``fp32`` for an optimizer without moments."""
        return str(getattr(self, "moments", "fp32"))


@dataclass(frozen=True)
class _KernelOptimizer(Optimizer):
    """The settings that all of the package's optimizers share."""

    weight_decay: NotNegative = field(default=0.0, kw_only=True)
    decoupled_weight_decay: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class _AdaptiveOptimizer(_KernelOptimizer):
    """The settings that the optimizers with a second moment share. Each of these optimizers has a field ``eps``."""

    eps_root: NotNegative = field(default=0.0, kw_only=True)
    initial: NotNegative = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        least = _SMALLEST_EPS if self.eps_root < _SMALLEST_ROOT else 0
        _checks.number("eps", getattr(self, "eps", 1.0), least=least)


@dataclass(frozen=True)
class SGD(_KernelOptimizer):
    """``x <- x + lr*D``.

    Args:
        weight_decay, decoupled_weight_decay: see :class:`Optimizer`.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.SGD(lr=0.5))
        >>> receipt = server.receive_model(server.dispatch("ann"), torch.ones(1))
        >>> round(float(server.parameters()), 3)
        0.5
    """

    kernel: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Momentum(_KernelOptimizer):
    """``m <- beta*m + D; x <- x + lr*m`` (FedAvgM). This is the momentum of ``torch.optim.SGD``, without dampening.

    Args:
        beta: decay of the momentum, in [0, 1).
        moments, weight_decay, decoupled_weight_decay: see :class:`Optimizer`.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.Momentum(beta=0.5, lr=1.0))
        >>> for client in range(2):
        ...     task = server.dispatch(client)
        ...     receipt = server.receive(client, torch.ones(1))
        >>> float(server.parameters())  # 1, and then 1 + 0.5 * 1
        2.5
    """

    beta: Decay = 0.9
    moments: Moments = field(default="fp32", kw_only=True)
    kernel: ClassVar[str] = "momentum"
    decays: ClassVar[tuple[str, ...]] = ("beta",)


@dataclass(frozen=True)
class Adam(_AdaptiveOptimizer):
    """``x <- x + lr*m/(sqrt(v) + eps)`` (FedAdam).

    The defaults are those of FADAS: betas (0.9, 0.99) and no bias correction. ``torch.optim.Adam`` equals
    ``Adam(lr, betas=(0.9, 0.999), bias_correction=True)``.

    Args:
        betas: decay rates of ``m`` and ``v``, each in [0, 1).
        eps: the term outside the square root, > 0.
        moments, weight_decay, decoupled_weight_decay, eps_root, initial: see :class:`Optimizer`.
        bias_correction: whether step r = 1, 2, ... adds ``lr/(1-b1^r) * m / (sqrt(v)/sqrt(1-b2^r) + eps)``.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.Adam(lr=0.1, betas=(0.0, 0.0)))
        >>> receipt = server.receive_model(server.dispatch("ann"), torch.ones(1))
        >>> round(float(server.parameters()), 3)
        0.1
    """

    lr: NotNegative = 1e-3
    betas: Betas = (0.9, 0.99)
    eps: NotNegative = 1e-8
    bias_correction: bool = False
    moments: Moments = field(default="fp32", kw_only=True)
    kernel: ClassVar[str] = "adam"


@dataclass(frozen=True)
class AMSGrad(Adam):
    """Adam with ``vhat <- max(vhat, v)`` in place of v in the step (FADAS, Eq. 3; FedAMS option 1).

    With ``bias_correction``, the maximum is taken before the correction, as in FADAS's program and in torch. optax
    takes the maximum of the corrected v.
    """

    kernel: ClassVar[str] = "amsgrad"


@dataclass(frozen=True)
class Yogi(Adam):
    """Adam with ``v <- v - (1-b2)*D*D*sign(v - D*D)`` (FedYogi)."""

    kernel: ClassVar[str] = "yogi"


@dataclass(frozen=True)
class Lookahead(Adam):
    """Adam with ``x <- x + lr*(b1*m + (1-b1)*D)/(sqrt(v) + eps)``. This is FedAC's step, which is a reconstruction (see
    :func:`fastagg.FedAC`)."""

    betas: Betas = (0.6, 0.9)
    kernel: ClassVar[str] = "lookahead"


@dataclass(frozen=True)
class Adagrad(_AdaptiveOptimizer):
    """Adam with ``v <- v + D*D`` (FedAdagrad).

    ``torch.optim.Adagrad`` equals ``Adagrad(lr, eps=1e-10)``. optax's Adagrad, which has epsilon inside the root and
    starts v at 0.1, equals ``Adagrad(lr, eps=0, eps_root=1e-7, initial=0.1)``.

    Args:
        beta: decay of ``m``, in [0, 1).
        eps: the term outside the square root, > 0.
        moments, weight_decay, decoupled_weight_decay, eps_root, initial: see :class:`Optimizer`.
    """

    lr: NotNegative = 1e-2
    beta: Decay = 0.0
    eps: NotNegative = 1e-8
    moments: Moments = field(default="fp32", kw_only=True)
    kernel: ClassVar[str] = "adagrad"
    decays: ClassVar[tuple[str, ...]] = ("beta",)


@dataclass(frozen=True)
class Nesterov(_KernelOptimizer):
    """``m <- mu*m + (1-dampening)*D; x <- x + lr*(D + mu*m)``: the outer optimizer of DiLoCo (arXiv 2311.08105).

    ``torch.optim.SGD(lr, momentum=mu, nesterov=True)`` equals ``Nesterov(lr, mu)``. HeLoCo has ``dampening=mu`` (arXiv
    2606.00271, Eqs. 18 and 19).

    Args:
        momentum: mu, in [0, 1).
        dampening: the share of a new direction that is not added to m, in [0, 1).
        look_ahead: whether clients are sent ``x + lr*mu*m`` in place of x (HeLoCo, Eq. 5). The server computes this
            model when it first sends a version, and again after a change of the learning rate. ``task.delta`` and
            ``receive_model`` subtract the model that was sent. :attr:`fastagg.Server.flat` and
            :meth:`fastagg.Server.parameters` are still x. Moments must be fp32.
        moments, weight_decay, decoupled_weight_decay: see :class:`Optimizer`.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.Nesterov(lr=1.0, momentum=0.5, look_ahead=True))
        >>> receipt = server.receive_model(server.dispatch("ann"), torch.ones(1))
        >>> float(server.flat), float(server.dispatch("ann").flat)  # 1 + 0.5*1, and 0.5*1 ahead of it
        (1.5, 2.0)
    """

    lr: NotNegative = 0.7
    momentum: Decay = 0.9
    dampening: Decay = 0.0
    look_ahead: bool = False
    moments: Moments = field(default="fp32", kw_only=True)
    kernel: ClassVar[str] = "nesterov"
    decays: ClassVar[tuple[str, ...]] = ("momentum", "dampening")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.look_ahead and self.moments != "fp32":
            raise ConfigError(f"moments: look_ahead adds them to the model as fp32, got {self.moments!r}; leave it out")


@dataclass(frozen=True)
class DelayedNesterov(_KernelOptimizer):
    """Nesterov's momentum at every N-th step only, on the mean of N directions, for asynchronous DiLoCo.

    Every step does ``x <- x + lr*D/N``. Every N-th step also does ``m <- mu*m + mean of the last N D; x <- x +
    lr*mu*m``. This is Algorithm 3 of Async Local-SGD (arXiv 2401.09135) with c = 0. With N = 1 this optimizer equals
    :class:`Nesterov`. The state is two fp32 vectors: m, and the sum of the directions since the last N-th step.

    Args:
        momentum: mu, in [0, 1).
        period: N, >= 1. If N is the number of workers, each worker answers once in N steps on average.
        weight_decay, decoupled_weight_decay: see :class:`Optimizer`.

    Example:
        >>> optimizer = fastagg.DelayedNesterov(lr=1.0, momentum=0.5, period=2)
        >>> server = fastagg.Server(torch.zeros(1), optimizer=optimizer)
        >>> for client in range(2):
        ...     task = server.dispatch(client)
        ...     receipt = server.receive(client, torch.ones(1))
        >>> float(server.flat)  # 1/2, and then 1/2 + 0.5*1
        1.5
    """

    lr: NotNegative = 0.7
    momentum: Decay = 0.9
    period: Annotated[int, _checks.SettingRule(least=1, most=2**31 - 1)] = 10
    kernel: ClassVar[str] = "delayed"
    decays: ClassVar[tuple[str, ...]] = ("momentum",)
