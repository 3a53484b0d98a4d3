"""The papers' algorithms, under their names: each a choice of direction, optimizer and staleness policy.

Every preset takes :class:`fastagg.Server`'s keyword arguments as well (``clip_norm``, ``weighting``, ``buffers``,
``num_clients``, ``seed``, ``device``).
"""

from __future__ import annotations

from typing import Any

from fastagg import _checks
from fastagg.directions import Buffer, Mixing
from fastagg.errors import ConfigError
from fastagg.optimizers import SGD, AMSGrad
from fastagg.server import Server
from fastagg.staleness import Constant, DelayAdaptive, Hinge, Polynomial, Staleness


def FedBuff(params: Any, *, lr: float = 1.0, buffer_size: int = 10, **server: Any) -> Server:
    """Buffered asynchronous aggregation: ``x <- x + lr * mean(Delta_i)`` over every M updates.

    Nguyen et al. 2022, without differential privacy; paper 002, Algorithm a.2.

    Args:
        params: the model.
        lr: server learning rate eta, >= 0.
        buffer_size: M, >= 1.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range.
    """
    return Server(params, Buffer(buffer_size), SGD(lr), **server)


def FADAS(
    params: Any,
    *,
    lr: float = 1e-3,
    buffer_size: int = 5,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    delay_threshold: float | None = 10,
    delay_rule: str = "scaled",
    bias_correction: bool = False,
    **server: Any,
) -> Server:
    """Federated adaptive asynchronous optimization: FedBuff's buffer into AMSGrad, with a delay-adaptive step.

    Wang et al. 2024, paper 000: Algorithm 1, Eq. 3, Eq. 4 and Eq. 77.

    Args:
        params: the model.
        lr: server learning rate eta, >= 0.
        buffer_size: M, >= 1.
        betas: decay rates, each in [0, 1).
        eps: outside the square root, > 0.
        delay_threshold: tau_c; beyond it the step shrinks with the largest delay in the buffer. None: never.
        delay_rule: ``scaled``, ``lr/tau_max`` (Eq. 77: what the paper's experiments ran), or ``reciprocal``,
            ``min(lr, 1/tau_max)`` (Eq. 4).
        bias_correction: Adam's, as the authors' program has it; the paper's Algorithm 1 has none.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range.
    """
    policy: Staleness = Constant() if delay_threshold is None else DelayAdaptive(delay_threshold, delay_rule)
    return Server(params, Buffer(buffer_size), AMSGrad(lr, betas, eps, bias_correction), policy, **server)


def FedAsync(
    params: Any,
    *,
    alpha: float = 0.6,
    policy: str = "polynomial",
    a: float | None = None,
    b: float | None = None,
    **server: Any,
) -> Server:
    """Asynchronous mixing: ``x <- (1-a_t)*x + a_t*x_i^K`` on every arrival, ``a_t = alpha*s(tau)``.

    Xie et al. 2019; paper 003, Eqs. 40 and 41. Clients send deltas, so the version each one started from is kept
    while it is in flight.

    Args:
        params: the model.
        alpha: mixing weight of a fresh update, in (0, 1].
        policy: ``constant``; ``hinge``, ``s = 1 if tau <= b else 1/(a*(tau-b)+1)``; ``polynomial``,
            ``s = (tau+1)^-a``.
        a: of the hinge (10) or the polynomial (0.5), > 0.
        b: of the hinge (4), >= 0.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range, or given to a policy that has none.
    """
    _checks.one_of("policy", policy, ("constant", "hinge", "polynomial"))
    if _checks.number("alpha", alpha, above=0) > 1:
        raise ConfigError(f"alpha: expected a number in (0, 1], got {alpha!r}")
    given = {key: value for key, value in (("a", a), ("b", b)) if value is not None}
    for key in given:
        if key not in {"constant": (), "hinge": ("a", "b"), "polynomial": ("a",)}[policy]:
            raise ConfigError(f"{key}: policy {policy!r} has no such setting")
    kind = {"constant": Constant, "hinge": Hinge, "polynomial": Polynomial}[policy]
    return Server(params, Mixing(), SGD(alpha), kind(**given), **server)
