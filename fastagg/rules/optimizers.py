"""Server optimizers: their settings. csrc/math/optimizers.h has the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fastagg import _checks
from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.rules.names import Moments

__all__ = [
    "SGD",
    "AMSGrad",
    "Adagrad",
    "Adam",
    "Lookahead",
    "Momentum",
    "Optimizer",
    "Yogi",
]

FORMATS = ("fp32", "8bit")  # of moments: fastagg.rules.moments
_SMALLEST_EPS = 1.2e-38  # smaller values are zero or denormal in fp32, and would lead to 0/0 where the moments are zero


@dataclass(frozen=True)
class Optimizer:
    """Base class of the server optimizers.

    Args:
        lr: server learning rate (eta), >= 0.

    Attributes:
        moments: format of the moments: ``fp32`` or ``8bit``. ``8bit`` takes one byte for each value, and 0.03 to 0.05
            for scales, with unbiased stochastic rounding (csrc/math/moments.h). The step is computed in fp32 from the
            decoded values. SGD has no moments.

    Raises:
        ConfigError: a setting is out of range.
    """

    lr: float = 1.0
    kernel: ClassVar[str] = ""  # csrc/math/optimizers.h; none: `step` is called

    def __post_init__(self) -> None:
        _checks.number("lr", self.lr, least=0)

    def step(
        self, x: Tensor, direction: Tensor, state: dict[str, Tensor], lr: float, round: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step of a user's own optimizer, in plain torch. The package's optimizers have kernels instead.

        Args:
            x: the model, fp32 [d]. Do not change it.
            direction: the vector to step along, fp32 [d]. Add it, whether clients send deltas or gradients.
            state: what the last step returned. {} before the first step.
            lr: learning rate of this step.
            round: the number of this step: 1, 2, ...

        Returns:
            The new model, fp32 [d], and the new state.
        """
        raise NotImplementedError(f"{type(self).__name__} steps in a kernel")

    @property
    def has_own_step(self) -> bool:
        """Whether :meth:`step` is called instead of a kernel."""
        return type(self).step is not Optimizer.step

    def hyper(self) -> Plain:
        """The kernel's settings: ``betas``, ``eps`` and ``bias_correction``."""
        return {"betas": (0.0, 0.0), "eps": 1.0, "bias_correction": False}

    def check(self) -> None:
        """Refuse an optimizer that defines no step.

        Raises:
            ConfigError: it has neither a kernel nor a method ``step``.
        """
        if not self.kernel and not self.has_own_step:
            raise ConfigError(
                f"optimizer: {type(self).__name__} has no method step(x, direction, state, lr, round); "
                "see docs/rules.md, or derive it from one of fastagg's optimizers"
            )

    @property
    def moment_format(self) -> str:
        """``moments``, or ``fp32`` for an optimizer without moments."""
        return str(getattr(self, "moments", "fp32"))


@dataclass(frozen=True)
class SGD(Optimizer):
    """``x <- x + lr*D``.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.SGD(lr=0.5))
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.ones(1))
        >>> round(float(server.parameters()), 3)
        0.5
    """

    kernel: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Momentum(Optimizer):
    """``m <- beta*m + D; x <- x + lr*m`` (FedAvgM).

    Args:
        beta: decay of the momentum, in [0, 1).
        moments: ``fp32`` or ``8bit``, see :class:`Optimizer`.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.Momentum(beta=0.5, lr=1.0))
        >>> for client in range(2):
        ...     task = server.dispatch(client)
        ...     receipt = server.receive(client, torch.ones(1))
        >>> float(server.parameters())  # 1, and then 1 + 0.5 * 1
        2.5
    """

    beta: float = 0.9
    moments: Moments = field(default="fp32", kw_only=True)
    kernel: ClassVar[str] = "momentum"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.one_of("moments", self.moments, FORMATS)
        _decay("beta", self.beta)

    def hyper(self) -> Plain:
        return {"betas": (self.beta, 0.0), "eps": 1.0, "bias_correction": False}


@dataclass(frozen=True)
class Adam(Optimizer):
    """``x <- x + lr*m/(sqrt(v) + eps)`` (FedAdam). Bias correction is off by default.

    Args:
        betas: decay rates of ``m`` and ``v``, each in [0, 1).
        eps: outside the square root, > 0.
        moments: ``fp32`` or ``8bit``, see :class:`Optimizer`.
        bias_correction: in round r = t+1, step ``lr/(1-b1^r) * m / (sqrt(v)/sqrt(1-b2^r) + eps)``.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.Adam(lr=0.1, betas=(0.0, 0.0)))
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.ones(1))
        >>> round(float(server.parameters()), 3)
        0.1
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    bias_correction: bool = False
    moments: Moments = field(default="fp32", kw_only=True)
    kernel: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.one_of("moments", self.moments, FORMATS)
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise ConfigError(f"betas: expected two numbers, got {self.betas!r}")
        object.__setattr__(self, "betas", tuple(self.betas))  # a list, from a file, would not hash
        for name, value in zip(("betas[0]", "betas[1]"), self.betas, strict=True):
            _decay(name, value)
        _checks.number("eps", self.eps, least=_SMALLEST_EPS)

    def hyper(self) -> Plain:
        return {"betas": self.betas, "eps": self.eps, "bias_correction": self.bias_correction}


@dataclass(frozen=True)
class AMSGrad(Adam):
    """Adam on ``vhat <- max(vhat, v)`` (FADAS, Eq. 3; FedAMS option 1).

    With ``bias_correction`` the maximum is taken before the correction, as in FADAS's program.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.AMSGrad(lr=0.1, betas=(0.0, 0.0)))
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.ones(1))
        >>> round(float(server.parameters()), 3)
        0.1
    """

    kernel: ClassVar[str] = "amsgrad"


@dataclass(frozen=True)
class Yogi(Adam):
    """``v <- v - (1-b2)*D*D*sign(v - D*D)``, then as Adam (FedYogi).

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.Yogi(lr=0.1, betas=(0.0, 0.0)))
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.ones(1))
        >>> round(float(server.parameters()), 3)
        0.1
    """

    kernel: ClassVar[str] = "yogi"


@dataclass(frozen=True)
class Lookahead(Adam):
    """FedAC's step: ``m`` and ``v`` as Adam, then ``x <- x + lr*(b1*m + (1-b1)*D)/(sqrt(v) + eps)``.

    A reconstruction, see :func:`fastagg.FedAC`.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.Lookahead(lr=0.1, betas=(0.0, 0.0)))
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.ones(1))
        >>> round(float(server.parameters()), 3)
        0.1
    """

    betas: tuple[float, float] = (0.6, 0.9)
    kernel: ClassVar[str] = "lookahead"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """``v <- v + D*D``, then as Adam (FedAdagrad).

    Args:
        beta: decay of ``m``, in [0, 1).
        eps: outside the square root, > 0.
        moments: ``fp32`` or ``8bit``, see :class:`Optimizer`.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), optimizer=fastagg.Adagrad(lr=0.1))
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.ones(1))
        >>> round(float(server.parameters()), 3)
        0.1
    """

    lr: float = 1e-2
    beta: float = 0.0
    eps: float = 1e-8
    moments: Moments = field(default="fp32", kw_only=True)
    kernel: ClassVar[str] = "adagrad"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.one_of("moments", self.moments, FORMATS)
        _decay("beta", self.beta)
        _checks.number("eps", self.eps, least=_SMALLEST_EPS)

    def hyper(self) -> Plain:
        return {"betas": (self.beta, 0.0), "eps": self.eps, "bias_correction": False}


def _decay(name: str, value: object) -> None:
    if _checks.number(name, value, least=0) >= 1:
        raise ConfigError(f"{name}: expected a number in [0, 1), got {value!r}")
