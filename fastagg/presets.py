"""The papers' algorithms, under their names: each a choice of direction, optimizer and staleness policy.

What they have in common:

- ``params`` is the model, in any form that :class:`fastagg.Server` takes.
- ``lr`` is the server's learning rate eta, >= 0, and ``eps`` > 0 stands outside the square root. ``betas`` and ``beta``
  are decay rates in [0, 1). ``bias_correction`` is Adam's. ``moments`` is ``fp32`` or ``8bit``, see
  :class:`fastagg.Optimizer`.
- ``buffer_size`` is M, the number of updates in a step, >= 1.
- ``num_clients`` is n; client ids are then 0..n-1. ``cache`` is the format in which something is kept of each of them:
  ``fp32``, ``bf16``, ``int8`` or ``int4``. ConfigError if that does not fit into memory.
- ``clients_per_round`` is the number of updates in a synchronous round, each of which must come from the current
  version; None: however many come until :meth:`fastagg.Server.close_round` ends the round.
- Every preset takes :class:`fastagg.Server`'s keyword arguments as well: :class:`fastagg.ServerSettings`.
- A setting that is out of range raises :class:`fastagg.ConfigError`, and so does one that is not known, naming the
  nearest one that is.

Updates are deltas ``Delta_i = x_i^K - x_s`` from client i's local training, or gradients ``g_i`` on the model it was
sent. ``x`` is the model, ``s`` the version an update started from, ``t`` the current one and ``tau = t - s``.
"""

from __future__ import annotations

from typing import Any, Unpack

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
from fastagg.parts.names import (
    AceMode,
    Cache,
    DelayRule,
    Freshness,
    Moments,
    Policy,
    Repeat,
    Rule,
    Stale,
    Warmup,
    Weighting,
    words,
)
from fastagg.parts.optimizers import SGD, Adagrad, Adam, AMSGrad, Lookahead, Momentum, Optimizer, Yogi
from fastagg.parts.staleness import Constant, DelayAdaptive, Hinge, Polynomial, Staleness
from fastagg.registry import preset
from fastagg.serving.server import Server
from fastagg.serving.settings import ActiveSettings, ClientSettings, ServerSettings, WeightSettings


@preset
def FedBuff(params: Any, *, lr: float = 1.0, buffer_size: int = 10, **server: Unpack[ServerSettings]) -> Server:
    """Buffered asynchronous aggregation: ``x <- x + lr * mean(Delta_i)`` over every M updates.

    Nguyen et al. 2022, without differential privacy; the ACE paper, Algorithm a.2.
    """
    return Server(params, Buffer(buffer_size), SGD(lr), **server)


@preset
def FADAS(
    params: Any,
    *,
    lr: float = 1e-3,
    buffer_size: int = 5,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    delay_threshold: float | None = 10,
    delay_rule: DelayRule = "scaled",
    bias_correction: bool = False,
    moments: Moments = "fp32",
    **server: Unpack[ServerSettings],
) -> Server:
    """Federated adaptive asynchronous optimization: FedBuff's buffer into AMSGrad, with a delay-adaptive step.

    ``D = mean(Delta_i)`` over M updates; ``m <- b1*m + (1-b1)*D; v <- b2*v + (1-b2)*D*D; vhat <- max(vhat, v);
    x <- x + lr_t*m/(sqrt(vhat) + eps)``. Wang et al. 2024 (FADAS): Algorithm 1, Eq. 3, Eq. 4 and Eq. 77.

    Args:
        delay_threshold: tau_c; beyond it the step shrinks with the largest delay in the buffer. None: never.
        delay_rule: ``scaled``, ``lr/tau_max`` (Eq. 77: what the paper's experiments ran), or ``reciprocal``,
            ``min(lr, 1/tau_max)`` (Eq. 4).
        bias_correction: as the authors' program has it; the paper's Algorithm 1 has none.
    """
    _checks.one_of("delay_rule", delay_rule, words(DelayRule))
    policy: Staleness = Constant() if delay_threshold is None else DelayAdaptive(delay_threshold, delay_rule)
    optimizer = AMSGrad(lr, betas, eps, bias_correction, moments=moments)
    return Server(params, Buffer(buffer_size), optimizer, policy, **server)


@preset
def FedAsync(
    params: Any,
    *,
    alpha: float = 0.6,
    policy: Policy = "polynomial",
    a: float | None = None,
    b: float | None = None,
    **server: Unpack[ServerSettings],
) -> Server:
    """Asynchronous mixing: ``x <- (1-a_t)*x + a_t*x_i^K`` on every arrival, ``a_t = alpha*s(tau)``.

    Xie et al. 2019; AsyncFedED, Eqs. 40 and 41. Clients send deltas, so the version each one started from is kept
    while it is in flight.

    Args:
        alpha: mixing weight of a fresh update, in (0, 1].
        policy: ``constant``; ``hinge``, ``s = 1 if tau <= b else 1/(a*(tau-b)+1)``; ``polynomial``,
            ``s = (tau+1)^-a``.
        a: of the hinge (10) or the polynomial (0.5), > 0; other policies refuse it.
        b: of the hinge (4), >= 0; other policies refuse it.
    """
    _checks.one_of("policy", policy, words(Policy))
    if _checks.number("alpha", alpha, above=0) > 1:
        raise ConfigError(f"alpha: expected a number in (0, 1], got {alpha!r}")
    given = {key: value for key, value in (("a", a), ("b", b)) if value is not None}
    for key in given:
        if key not in {"constant": (), "hinge": ("a", "b"), "polynomial": ("a",)}[policy]:
            raise ConfigError(f"{key}: policy {policy!r} has no such setting")
    kind = {"constant": Constant, "hinge": Hinge, "polynomial": Polynomial}[policy]
    return Server(params, Mixing(), SGD(alpha), kind(**given), **server)


@preset
def ASGD(params: Any, *, lr: float, **server: Unpack[ServerSettings]) -> Server:
    """Vanilla asynchronous SGD: ``x <- x - lr*g_i`` on every arrival."""
    return Server(params, Single(kind="gradient"), SGD(lr), **server)


@preset
def DelayAdaptiveASGD(
    params: Any,
    *,
    lr: float,
    delay_threshold: float,
    stale: Stale = "scaled",
    lipschitz: float | None = None,
    **server: Unpack[ServerSettings],
) -> Server:
    """Asynchronous SGD whose rate shrinks beyond a delay: ``x <- x - lr(tau)*g_i``. The ACE paper, Algorithm a.4.

    Args:
        delay_threshold: tau_C, >= 0; the paper's default is the concurrency.
        stale: what a staler update gets: ``lipschitz``, ``min(lr, 1/(4*L*tau))`` (the paper; needs L); ``drop``, 0;
            ``scaled``, ``lr*tau_C/tau`` (what the ACE authors' program runs; needs no L).
        lipschitz: L, > 0, for ``stale="lipschitz"``.
    """
    _checks.one_of("stale", stale, words(Stale))
    rule: Rule = "threshold" if stale == "scaled" else stale
    return Server(params, Single(kind="gradient"), SGD(lr), DelayAdaptive(delay_threshold, rule, lipschitz), **server)


@preset
def ACE(
    params: Any,
    *,
    lr: float,
    num_clients: int,
    cache: Cache = "fp32",
    warmup: Warmup = "full",
    mode: AceMode = "incremental",
    optimizer: Optimizer | None = None,
    **server: Unpack[WeightSettings],
) -> Server:
    """All-client engagement: every arrival steps along the mean of all clients' latest gradients.

    ``U_i <- g_i; x <- x - lr * sum_j U_j / n``. ACE: Algorithm 1 (``mode="direct"``), its incremental form with
    the same result in O(d), and Algorithm a.5 with the rows kept by the clients (``mode="client"``; see
    :class:`fastagg.clients.GradientDifference`); 8-bit rows: F.3.3.

    Args:
        cache: of the rows U_i; with ``mode="client"`` the server keeps none.
        warmup: ``full`` or ``partial``, see :class:`fastagg.AllClients`.
        mode: ``incremental``, ``direct`` or ``client``.
        optimizer: another server optimizer than SGD; ``lr`` is then its own.
    """
    _checks.one_of("mode", mode, words(AceMode))
    steps = SGD(lr) if optimizer is None else optimizer
    if mode == "client":
        if cache != "fp32":
            raise ConfigError(f"cache: with mode='client' the server keeps no rows, got {cache!r}")
        return Server(params, Differences(num_clients, warmup), steps, **server)
    return Server(params, AllClients(num_clients, cache, warmup, mode), steps, **server)


@preset
def ACED(
    params: Any,
    *,
    lr: float,
    num_clients: int,
    max_delay: int = 10,
    cache: Cache = "fp32",
    freshness: Freshness = "dispatch",
    warmup: Warmup = "full",
    **server: Unpack[ActiveSettings],
) -> Server:
    """ACE over the clients whose information is at most ``max_delay`` versions old.

    ``U_i <- g_i; x <- x - lr * mean over A(t) of U_j``. The ACE paper, Algorithm a.1.

    Args:
        max_delay: tau_algo, >= 0. From the largest delay on it is exactly ACE.
        cache: of the rows U_i.
        freshness: ``dispatch`` (Algorithm a.1) or ``gradient`` (the text of Eq. 7), see :class:`fastagg.ActiveSet`.
        warmup: ``full`` or ``partial``, see :class:`fastagg.AllClients`.
    """
    direction = ActiveSet(num_clients, cache=cache, warmup=warmup, max_delay=max_delay, freshness=freshness)
    return Server(params, direction, SGD(lr), **server)


@preset
def CA2FL(
    params: Any,
    *,
    num_clients: int,
    buffer_size: int = 10,
    lr: float = 1.0,
    cache: Cache = "fp32",
    repeat: Repeat = "start",
    **server: Unpack[WeightSettings],
) -> Server:
    """Cached update calibration: FedBuff's buffer, calibrated by every client's last update.

    ``x <- x + lr*(mean_j h_j + sum(Delta_i - h_i)/|S|)`` over every M updates, S being their clients, then
    ``h_i <- Delta_i``. The ACE paper, Algorithm a.3.

    Args:
        cache: of the rows h_i.
        repeat: ``start`` (the paper) or ``latest`` (public programs), see :class:`fastagg.Calibrated`.
    """
    return Server(params, Calibrated(num_clients, buffer_size, cache, repeat), SGD(lr), **server)


@preset
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
    **server: Unpack[ServerSettings],
) -> Server:
    """Steps weighted by Euclidean staleness, and local steps that follow it: the AsyncFedED paper, Algorithm 1.

    ``gamma = |x_t - x_s|/|Delta_i|`` (Eq. 6); ``x <- x + lam/(gamma + eps)*Delta_i`` (Eqs. 5, 7);
    ``K_next = K_i + floor((gamma_bar - gamma)*kappa)`` (Eq. 8), which ``dispatch`` tells the client. Only versions in
    flight are kept.

    Args:
        lam, eps, gamma_bar, kappa, local_steps, max_local_steps, gamma_max, sketch: see :class:`fastagg.Euclidean`.
    """
    policy = Euclidean(lam, eps, gamma_bar, kappa, local_steps, max_local_steps, gamma_max, sketch)
    return Server(params, Single(), SGD(1.0), policy, **server)


@preset
def FedEcho(
    params: Any,
    *,
    distill: Distillation,
    num_clients: int,
    lr: float = 1.0,
    buffer_size: int = 5,
    cache: Cache = "fp32",
    **server: Unpack[WeightSettings],
) -> Server:
    """FedBuff, and after every step distillation towards the mean of all clients' latest logits (stragglers included).

    FedEcho, Algorithm 1. Each arrival costs a forward pass of the client's model on the unlabelled data, each step Q
    training steps on it. :attr:`fastagg.Server.distillation` says what that took.

    Args:
        distill: the unlabelled data, the model's code, and the settings. ConfigError where its model is not this one
            or returns no logits.
        cache: of the clients' logits.

    Raises:
        DataError: there is no unlabelled data, or it cannot be read.
    """
    direction = Echo(buffer_size, num_clients=num_clients, distill=distill, cache=cache)
    return Server(params, direction, SGD(lr), **server)


@preset
def FedAC(
    params: Any,
    *,
    lr: float,
    buffer_size: int = 10,
    betas: tuple[float, float] = (0.6, 0.9),
    eps: float = 1e-8,
    moments: Moments = "fp32",
    **server: Unpack[ServerSettings],
) -> Server:
    """FedAC, a baseline of the FedEcho paper. A **reconstruction**: its own paper's equations could not be had.

    Updates are weighted by ``max(cos(x_t - x_s, Delta_i), 0.1)``, 1 when fresh; their mean D goes into Adam's moments
    and ``x <- x + lr*(b1*m + (1-b1)*D)/(sqrt(v) + eps)``. Clients correct their drift with control variates:
    :class:`fastagg.clients.DriftCorrection`; its second result is ``receive``'s ``control``.
    """
    return Server(params, CosineBuffer(buffer_size), Lookahead(lr, betas, eps, moments=moments), **server)


def _synchronous(params: Any, clients_per_round: int | None, optimizer: Optimizer, server: ServerSettings) -> Server:
    if clients_per_round is not None:
        _checks.whole("clients_per_round", clients_per_round, least=1)
    return Server(params, Cohort(clients_per_round), optimizer, **server)


@preset
def FedAvg(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1.0,
    weighting: Weighting = "samples",
    **server: Unpack[ClientSettings],
) -> Server:
    """Synchronous averaging, ``x <- sum_i p_i x_i^K`` with p_i the share of the samples (the AsyncFedED paper, Eq. 38).

    FedProx (Eq. 39) is this server with :func:`fastagg.clients.add_proximal_gradient_` at the clients.

    Args:
        lr: 1 is plain averaging.
        weighting: ``samples`` or ``uniform``.
    """
    return _synchronous(params, clients_per_round, SGD(lr), {"weighting": weighting, **server})


@preset
def FedProx(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1.0,
    weighting: Weighting = "samples",
    **server: Unpack[ClientSettings],
) -> Server:
    """:func:`FedAvg`'s server; the proximal term is the clients' (:func:`fastagg.clients.add_proximal_gradient_`)."""
    return FedAvg(params, clients_per_round=clients_per_round, lr=lr, weighting=weighting, **server)


@preset
def FedAvgM(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1.0,
    beta: float = 0.9,
    moments: Moments = "fp32",
    **server: Unpack[ServerSettings],
) -> Server:
    """Synchronous mean delta D into momentum: ``m <- beta*m + D; x <- x + lr*m`` (Hsu et al. 2019)."""
    return _synchronous(params, clients_per_round, Momentum(lr, beta, moments=moments), server)


@preset
def FedAdam(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-3,
    bias_correction: bool = False,
    moments: Moments = "fp32",
    **server: Unpack[ServerSettings],
) -> Server:
    """Synchronous mean delta D into Adam: ``x <- x + lr*m/(sqrt(v) + eps)`` (Reddi et al. 2021, whose eps is 1e-3)."""
    return _synchronous(params, clients_per_round, Adam(lr, betas, eps, bias_correction, moments=moments), server)


@preset
def FedYogi(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-3,
    bias_correction: bool = False,
    moments: Moments = "fp32",
    **server: Unpack[ServerSettings],
) -> Server:
    """Synchronous mean delta D into Yogi: ``v <- v - (1-b2)*D*D*sign(v - D*D)``, else Adam (Reddi et al. 2021)."""
    return _synchronous(params, clients_per_round, Yogi(lr, betas, eps, bias_correction, moments=moments), server)


@preset
def FedAdagrad(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    beta: float = 0.0,
    eps: float = 1e-3,
    moments: Moments = "fp32",
    **server: Unpack[ServerSettings],
) -> Server:
    """Synchronous mean delta D into Adagrad: ``v <- v + D*D``, else Adam (Reddi et al. 2021)."""
    return _synchronous(params, clients_per_round, Adagrad(lr, beta, eps, moments=moments), server)


@preset
def FedAMS(
    params: Any,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    bias_correction: bool = False,
    moments: Moments = "fp32",
    **server: Unpack[ServerSettings],
) -> Server:
    """Synchronous mean delta D into AMSGrad, as FADAS steps (Wang et al. 2022, option 1)."""
    return _synchronous(params, clients_per_round, AMSGrad(lr, betas, eps, bias_correction, moments=moments), server)
