"""The papers' algorithms, under their names: each a choice of direction, optimizer and staleness policy.

Every preset takes :class:`fastagg.Server`'s keyword arguments as well (``clip_norm``, ``weighting``, ``buffers``,
``num_clients``, ``deterministic``, ``validate``, ``seed``, ``device``).
"""

from __future__ import annotations

from typing import Any

from fastagg import _checks
from fastagg.distill import Distillation
from fastagg.errors import ConfigError
from fastagg.parts.directions import (
    ActiveSet,
    AllClients,
    Buffer,
    Calibrated,
    Cohort,
    CosineBuffer,
    Differences,
    Echo,
    Mixing,
    Single,
)
from fastagg.parts.euclidean import Euclidean
from fastagg.parts.optimizers import SGD, Adagrad, Adam, AMSGrad, Lookahead, Momentum, Optimizer, Yogi
from fastagg.parts.staleness import Constant, DelayAdaptive, Hinge, Polynomial, Staleness
from fastagg.serving.server import Server


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
    moments: str = "fp32",
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
        moments: ``fp32`` or ``8bit``, see :class:`fastagg.Optimizer`.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range.
    """
    policy: Staleness = Constant() if delay_threshold is None else DelayAdaptive(delay_threshold, delay_rule)
    return Server(
        params, Buffer(buffer_size), AMSGrad(lr, betas, eps, bias_correction, moments=moments), policy, **server
    )


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


def ASGD(params: Any, *, lr: float, **server: Any) -> Server:
    """Vanilla asynchronous SGD: ``x <- x - lr*g_i`` on every arrival.

    Args:
        params: the model.
        lr: server learning rate eta, >= 0.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range.
    """
    return Server(params, Single(kind="gradient"), SGD(lr), **server)


def DelayAdaptiveASGD(
    params: Any,
    *,
    lr: float,
    delay_threshold: float,
    stale: str = "scaled",
    lipschitz: float | None = None,
    **server: Any,
) -> Server:
    """Asynchronous SGD whose rate shrinks beyond a delay: paper 002, Algorithm a.4.

    Args:
        params: the model.
        lr: eta, >= 0.
        delay_threshold: tau_C, >= 0; the paper's default is the concurrency.
        stale: what a staler update gets: ``lipschitz``, ``min(lr, 1/(4*L*tau))`` (the paper; needs L); ``drop``, 0;
            ``scaled``, ``lr*tau_C/tau`` (what the ACE authors' program runs; needs no L).
        lipschitz: L, > 0, for ``stale="lipschitz"``.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range.
    """
    _checks.one_of("stale", stale, ("lipschitz", "drop", "scaled"))
    rule = "threshold" if stale == "scaled" else stale
    return Server(params, Single(kind="gradient"), SGD(lr), DelayAdaptive(delay_threshold, rule, lipschitz), **server)


def ACE(
    params: Any,
    *,
    lr: float,
    num_clients: int,
    cache: str = "fp32",
    warmup: str = "full",
    mode: str = "incremental",
    optimizer: Optimizer | None = None,
    **server: Any,
) -> Server:
    """All-client engagement: every arrival steps along the mean of all clients' latest gradients.

    Paper 002: Algorithm 1 (``mode="direct"``), its incremental form with the same result in O(d), and Algorithm a.5
    with the rows kept by the clients (``mode="client"``; see :class:`fastagg.clients.GradientDifference`); 8-bit rows:
    F.3.3.

    Args:
        params: the model.
        lr: eta, >= 0.
        num_clients: n; client ids are 0..n-1.
        cache: format of the rows: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        warmup: ``full`` or ``partial``, see :class:`fastagg.AllClients`.
        mode: ``incremental``, ``direct`` or ``client``.
        optimizer: another server optimizer than SGD; ``lr`` is then its own.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range, or the cache does not fit into memory.
    """
    steps = SGD(lr) if optimizer is None else optimizer
    if mode == "client":
        if cache != "fp32":
            raise ConfigError(f"cache: with mode='client' the server keeps no rows, got {cache!r}")
        return Server(params, Differences(num_clients, warmup), steps, **server)
    return Server(params, AllClients(num_clients, cache, warmup, mode), steps, **server)


def ACED(
    params: Any,
    *,
    lr: float,
    num_clients: int,
    max_delay: int = 10,
    cache: str = "fp32",
    freshness: str = "dispatch",
    warmup: str = "full",
    **server: Any,
) -> Server:
    """ACE over the clients whose information is at most ``max_delay`` versions old: paper 002, Algorithm a.1.

    Args:
        params: the model.
        lr: eta, >= 0.
        num_clients: n; client ids are 0..n-1.
        max_delay: tau_algo, >= 0. From the largest delay on it is exactly ACE.
        cache: format of the rows.
        freshness: ``dispatch`` (Algorithm a.1) or ``gradient`` (the text of Eq. 7), see :class:`fastagg.ActiveSet`.
        warmup: ``full`` or ``partial``.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range, or the cache does not fit into memory.
    """
    direction = ActiveSet(num_clients, cache=cache, warmup=warmup, max_delay=max_delay, freshness=freshness)
    return Server(params, direction, SGD(lr), **server)


def CA2FL(
    params: Any,
    *,
    num_clients: int,
    buffer_size: int = 10,
    lr: float = 1.0,
    cache: str = "fp32",
    repeat: str = "start",
    **server: Any,
) -> Server:
    """Cached update calibration: FedBuff's buffer, calibrated by every client's last update.

    Paper 002, Algorithm a.3.

    Args:
        params: the model.
        num_clients: n; client ids are 0..n-1.
        buffer_size: M, >= 1.
        lr: eta, >= 0.
        cache: format of the rows.
        repeat: ``start`` (the paper) or ``latest`` (public programs), see :class:`fastagg.Calibrated`.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range, or the cache does not fit into memory.
    """
    return Server(params, Calibrated(num_clients, buffer_size, cache, repeat), SGD(lr), **server)


def AsyncFedED(
    params: Any,
    *,
    lam: float,
    eps: float,
    gamma_bar: float = 3.0,
    kappa: float = 1.0,
    local_steps: int = 10,
    max_local_steps: int | None = None,
    gamma_max: float | None = None,
    sketch: int | None = None,
    **server: Any,
) -> Server:
    """Steps weighted by Euclidean staleness, and local steps that follow it: paper 003, Algorithm 1.

    ``gamma = |x_t - x_s|/|Delta_i|`` (Eq. 6); ``x <- x + lam/(gamma + eps)*Delta_i`` (Eqs. 5, 7);
    ``K_next = K_i + floor((gamma_bar - gamma)*kappa)`` (Eq. 8), which ``dispatch`` tells the client. Only versions in
    flight are kept.

    Args:
        params: the model.
        lam, eps, gamma_bar, kappa, local_steps, max_local_steps, gamma_max, sketch: see :class:`fastagg.Euclidean`.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range.
    """
    policy = Euclidean(lam, eps, gamma_bar, kappa, local_steps, max_local_steps, gamma_max, sketch)
    return Server(params, Single(), SGD(1.0), policy, **server)


def FedEcho(
    params: Any,
    *,
    distill: Distillation,
    num_clients: int,
    lr: float = 1.0,
    buffer_size: int = 5,
    cache: str = "fp32",
    **server: Any,
) -> Server:
    """FedBuff, and after every step distillation towards the mean of all clients' latest logits (stragglers included).

    Paper 004, Algorithm 1. Each arrival costs a forward pass of the client's model on the unlabelled data, each step Q
    training steps on it. :attr:`fastagg.Server.distillation` says what that took.

    Args:
        params: the model.
        distill: the unlabelled data, the model's code, and the settings.
        num_clients: n; client ids are 0..n-1.
        lr: server learning rate eta, >= 0.
        buffer_size: M, >= 1.
        cache: format of the clients' logits: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range, or ``distill.model`` is not this model or returns no logits.
        DataError: there is no unlabelled data, or it cannot be read.
    """
    direction = Echo(buffer_size, num_clients=num_clients, distill=distill, cache=cache)
    return Server(params, direction, SGD(lr), **server)


def FedAC(
    params: Any,
    *,
    lr: float,
    buffer_size: int = 10,
    betas: tuple[float, float] = (0.6, 0.9),
    eps: float = 1e-8,
    moments: str = "fp32",
    **server: Any,
) -> Server:
    """FedAC, a baseline of paper 004. A **reconstruction**: its own paper's equations could not be had.

    Updates are weighted by ``max(cos(x_t - x_s, Delta_i), 0.1)``, 1 when fresh; the mean goes into Adam's moments and
    the step looks one moment ahead. Clients correct their drift with control variates:
    :class:`fastagg.clients.DriftCorrection`; its second result is ``receive``'s ``control``.

    Args:
        params: the model.
        lr: server learning rate eta, >= 0.
        buffer_size: M, >= 1.
        betas: decay rates.
        eps: outside the square root, > 0.
        moments: ``fp32`` or ``8bit``, see :class:`fastagg.Optimizer`.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range.
    """
    return Server(params, CosineBuffer(buffer_size), Lookahead(lr, betas, eps, moments=moments), **server)


def _synchronous(params: Any, clients_per_round: int | None, optimizer: Optimizer, server: dict[str, Any]) -> Server:
    if clients_per_round is not None:
        _checks.whole("clients_per_round", clients_per_round, least=1)
    return Server(params, Cohort(clients_per_round), optimizer, **server)


def FedAvg(
    params: Any, *, clients_per_round: int | None, lr: float = 1.0, weighting: str = "samples", **server: Any
) -> Server:
    """Synchronous averaging, ``x <- sum_i p_i x_i^K`` with p_i the share of the samples (paper 003, Eq. 38).

    FedProx (Eq. 39) is this server with :func:`fastagg.clients.add_proximal_gradient_` at the clients.

    Args:
        params: the model.
        clients_per_round: updates per round; each must come from the current version. None: however many come until
            :meth:`fastagg.Server.close_round` ends the round.
        lr: 1 is plain averaging.
        weighting: ``samples`` or ``uniform``.
        server: further arguments of :class:`fastagg.Server`.

    Raises:
        ConfigError: a setting is out of range.
    """
    return _synchronous(params, clients_per_round, SGD(lr), {"weighting": weighting, **server})


def FedProx(
    params: Any, *, clients_per_round: int | None, lr: float = 1.0, weighting: str = "samples", **server: Any
) -> Server:
    """:func:`FedAvg`'s server; the proximal term is the clients' (:func:`fastagg.clients.add_proximal_gradient_`)."""
    return FedAvg(params, clients_per_round=clients_per_round, lr=lr, weighting=weighting, **server)


def FedAvgM(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1.0,
    beta: float = 0.9,
    moments: str = "fp32",
    **server: Any,
) -> Server:
    """Synchronous mean delta into momentum: ``m <- beta*m + D; x <- x + lr*m``."""
    return _synchronous(params, clients_per_round, Momentum(lr, beta, moments=moments), server)


def FedAdam(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-3,
    bias_correction: bool = False,
    moments: str = "fp32",
    **server: Any,
) -> Server:
    """Synchronous mean delta into Adam (Reddi et al. 2021, whose eps is 1e-3)."""
    return _synchronous(params, clients_per_round, Adam(lr, betas, eps, bias_correction, moments=moments), server)


def FedYogi(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-3,
    bias_correction: bool = False,
    moments: str = "fp32",
    **server: Any,
) -> Server:
    """Synchronous mean delta into Yogi (Reddi et al. 2021)."""
    return _synchronous(params, clients_per_round, Yogi(lr, betas, eps, bias_correction, moments=moments), server)


def FedAdagrad(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    beta: float = 0.0,
    eps: float = 1e-3,
    moments: str = "fp32",
    **server: Any,
) -> Server:
    """Synchronous mean delta into Adagrad (Reddi et al. 2021)."""
    return _synchronous(params, clients_per_round, Adagrad(lr, beta, eps, moments=moments), server)


def FedAMS(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    bias_correction: bool = False,
    moments: str = "fp32",
    **server: Any,
) -> Server:
    """Synchronous mean delta into AMSGrad (Wang et al. 2022, option 1)."""
    return _synchronous(params, clients_per_round, AMSGrad(lr, betas, eps, bias_correction, moments=moments), server)
