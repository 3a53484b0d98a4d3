"""The papers' algorithms under their names. Each preset combines a direction, an optimizer and a staleness policy.

A preset also takes the settings of its parts and of :class:`fastagg.Server`. For example, ``help(fastagg.FedBuff)``
lists all settings of FedBuff. A setting that is unknown or out of range raises :class:`fastagg.ConfigError`. For an
unknown setting, the message has the most similar name.

These arguments mean the same in every preset that has them:

- ``params``: the model, in any form that :class:`fastagg.Server` takes.
- ``lr``: the server's learning rate eta, >= 0.
- ``clients_per_round``: the number of updates in a synchronous round. Each of them must start from the current version.
  None: a round takes all updates until :meth:`fastagg.Server.close_round` ends the round.
- ``buffer_size``: M, the number of updates in a step, >= 1.
- ``num_clients``: n, the number of clients. Client ids are 0..n-1.
- ``momentum``: mu, the decay rate of the momentum, in [0, 1).
- ``betas``: b1 and b2, the decay rates of the first and the second moment, in [0, 1).
- ``eps``: a number > 0 that is added outside the square root.
- ``moments``: the format of the optimizer's moments, ``fp32`` or ``8bit`` (:class:`fastagg.Optimizer`).
- ``staleness``: a policy such as ``fastagg.Polynomial(0.5)``: delay -> weight of an update. None: the weight is 1.

An update is a delta ``Delta_i = x_i^K - x_s`` from client i's local training, or a gradient ``g_i`` at the model that
the client was sent. ``x`` is the model, ``s`` the version that an update started from, ``t`` the current version, and
``tau = t - s`` the update's delay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ParamSpec, Unpack, cast

from fastagg import _checks, _keywords
from fastagg.distill import Distillation
from fastagg.errors import ConfigError
from fastagg.ops import RobustRule
from fastagg.registry import preset as registered
from fastagg.rules import directions, names
from fastagg.rules.optimizers import (
    SGD,
    Adagrad,
    Adam,
    AMSGrad,
    DelayedNesterov,
    Lookahead,
    Momentum,
    Nesterov,
    Optimizer,
    Yogi,
)
from fastagg.rules.staleness import Constant, Cutoff, DelayAdaptive, Euclidean, Hinge, Polynomial, Staleness
from fastagg.server.server import Server
from fastagg.server.settings import RULES, ActiveSettings, ClientSettings, ServerSettings, WeightSettings

__all__ = [
    "ACE",
    "ACED",
    "ASGD",
    "CA2FL",
    "FADAS",
    "AsyncDiLoCo",
    "AsyncFedED",
    "DecoupledDiLoCo",
    "DelayAdaptiveASGD",
    "DiLoCo",
    "FedAC",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedEcho",
    "FedMedian",
    "FedProx",
    "FedTrimmedAvg",
    "FedYogi",
    "HeLoCo",
    "Krum",
    "MultiKrum",
    "RingmasterASGD",
]


P = ParamSpec("P")
_ROUNDS, _STEPS = directions.RoundSettings.__annotations__, names.SecondSettings.__annotations__
# The settings that presets pass on to their parts and to the server, with the defaults.
_PASSED_ON: dict[str, object] = {
    **{name: getattr(directions.Buffer, name) for name in _ROUNDS},
    **{name: getattr(AMSGrad, name) for name in _STEPS},
    **{name: rule.default for name, rule in RULES.items()},
}


def preset(function: Callable[P, Server]) -> Callable[P, Server]:
    """Register a preset. In its signature, replace the ``**`` argument by the keywords that the preset passes on."""
    checked, known = registered(function), _keywords.of(function)
    more = [name for name in _PASSED_ON if name in known.settings and name not in known.named]
    _keywords.passes_on(checked, {name: _PASSED_ON[name] for name in more})
    return checked


class CohortSettings(ClientSettings, directions.RoundSettings, names.DecaySettings, total=False):
    """The arguments of FedAvg and FedProx."""


class BufferSettings(ServerSettings, directions.RoundSettings, names.DecaySettings, total=False):
    """The arguments of the presets that sum updates, except FedAvg and FedProx."""


class StepSettings(ServerSettings, names.DecaySettings, total=False):
    """The arguments of the presets that step at every update, with an optimizer that has a momentum."""


class AdaptiveSettings(BufferSettings, names.SecondSettings, total=False):
    """The arguments of the presets whose optimizer has a second moment."""


def _parted(settings: Mapping[str, Any]) -> tuple[directions.RoundSettings, dict[str, Any], ServerSettings]:
    parts: list[dict[str, Any]] = [{}, {}, {}]
    for name, value in settings.items():
        parts[0 if name in _ROUNDS else 1 if name in _STEPS else 2][name] = value
    return cast(directions.RoundSettings, parts[0]), parts[1], cast(ServerSettings, parts[2])


@preset
def FedBuff(
    params: object,
    *,
    lr: float = 1.0,
    buffer_size: int = 10,
    staleness: Staleness | None = None,
    **server: Unpack[BufferSettings],
) -> Server:
    """Buffered asynchronous aggregation: ``x <- x + lr * sum(s(tau_i)*Delta_i)/M`` over every M updates.

    Nguyen et al. 2022, and the ACE paper, Algorithm a.2. ``staleness`` is the policy s. By default s is 1. FedBuff's
    paper has ``fastagg.Polynomial(0.5)``, and differential privacy, which ``privacy`` adds. ``normalize`` sets another
    divisor than M. By default all updates count equally (``weighting="uniform"``).

    Args:
        params, lr, buffer_size, staleness: as in every preset (:mod:`fastagg.presets`).
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.FedBuff(torch.zeros(2), buffer_size=2)
        >>> for client, number in (("ann", 1.0), ("bob", 3.0)):
        ...     task = server.dispatch(client)
        ...     receipt = server.receive(client, torch.full((2,), number))
        >>> receipt.applied, server.flat
        (True, tensor([2., 2.]))
    """
    rounds, steps, rest = _parted(server)
    return Server(params, directions.Buffer(buffer_size, **rounds), SGD(lr, **steps), staleness, **rest)


@preset
def FADAS(
    params: object,
    *,
    lr: float = 1e-3,
    buffer_size: int = 5,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    delay_threshold: float | None = 10,
    delay_rule: names.DelayRule = "scaled",
    bias_correction: bool = False,
    moments: names.Moments = "fp32",
    **server: Unpack[AdaptiveSettings],
) -> Server:
    """Federated adaptive asynchronous optimization: a buffer as in FedBuff, AMSGrad, and a delay-adaptive step.

    ``D = mean(Delta_i)`` over M updates; ``m <- b1*m + (1-b1)*D; v <- b2*v + (1-b2)*D*D; vhat <- max(vhat, v);
    x <- x + lr_t*m/(sqrt(vhat) + eps)``. Wang et al. 2024 (FADAS), Algorithm 1 and Eqs. 3, 4 and 77. By default all
    updates count equally (``weighting="uniform"``).

    Args:
        params, lr, buffer_size, moments: as in every preset (:mod:`fastagg.presets`).
        betas, eps: the defaults are the paper's. torch's AMSGrad has (0.9, 0.999) and a bias correction.
        delay_threshold: tau_c. If tau_max, the largest delay in the buffer, exceeds tau_c, the rate lr_t is smaller
            than lr. None: lr_t is always lr.
        delay_rule: the smaller rate. ``scaled``: ``lr/tau_max`` (Eq. 77, used in the paper's experiments).
            ``reciprocal``: ``min(lr, 1/tau_max)`` (Eq. 4). With the default lr this is smaller only if tau_max > 1,000.
        bias_correction: whether to correct the moments, as the authors' program does. The paper's Algorithm 1 does not.
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay, eps_root, initial: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.FADAS(torch.zeros(2), lr=0.1, buffer_size=1, betas=(0.0, 0.0))
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.tensor([4.0, -9.0]))
        >>> server.flat  # the first step of AMSGrad with these betas has length lr in every element
        tensor([ 0.1000, -0.1000])
    """
    _checks.fits("delay_rule", delay_rule, names.DelayRule)
    policy: Staleness = Constant() if delay_threshold is None else DelayAdaptive(delay_threshold, delay_rule)
    rounds, steps, rest = _parted(server)
    optimizer = AMSGrad(lr, betas, eps, bias_correction, moments=moments, **steps)
    return Server(params, directions.Buffer(buffer_size, **rounds), optimizer, policy, **rest)


@preset
def FedAsync(
    params: object,
    *,
    alpha: float = 0.6,
    policy: names.Policy = "polynomial",
    a: float | None = None,
    b: float | None = None,
    normalize: float | None = None,
    **server: Unpack[ServerSettings],
) -> Server:
    """Asynchronous mixing: ``x <- (1-a_t)*x + a_t*x_i^K`` at every update, where ``a_t = alpha*s(tau)``.

    Xie et al. 2019. AsyncFedED, Eqs. 40 and 41. Clients send deltas, so the server keeps versions with open tasks.

    Args:
        params: as in every preset (:mod:`fastagg.presets`).
        alpha: mixing weight of a fresh update, in (0, 1].
        policy: ``constant``: s = 1. ``hinge``: s = 1 if tau <= b else 1/(a*(tau-b)+1). ``polynomial``: s = (tau+1)^-a.
        a: a setting > 0 of ``hinge`` (default 10) and ``polynomial`` (default 0.5). ``constant`` refuses this setting.
        b: a setting >= 0 of ``hinge`` (default 4). Other policies refuse this setting.
        normalize: a number > 0 that divides a_t, such as the samples of all clients (APPFL) or a client's average. With
            ``weighting="samples"``, a_t is also multiplied by the client's samples. An answer whose a_t would be above
            1 is refused. ``max_samples`` prevents that. None: samples have no effect. See :class:`fastagg.Mixing`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.FedAsync(torch.zeros(2), alpha=0.5)
        >>> receipt = server.receive_model(server.dispatch("ann"), torch.ones(2))
        >>> server.flat  # half of the client's model
        tensor([0.5000, 0.5000])
    """
    _checks.fits("policy", policy, names.Policy)
    _checks.fits("alpha", alpha, Annotated[float, _checks.SettingRule(above=0, most=1)])
    settings = {key: value for key, value in (("a", a), ("b", b)) if value is not None}
    for key in settings:
        if key not in {"constant": (), "hinge": ("a", "b"), "polynomial": ("a",)}[policy]:
            raise ConfigError(f"{key}: policy {policy!r} has no such setting, got {settings[key]!r}; leave it out")
    kind = {"constant": Constant, "hinge": Hinge, "polynomial": Polynomial}[policy]
    return Server(params, directions.Mixing(normalize=normalize), SGD(alpha), kind(**settings), **server)


@preset
def ASGD(params: object, *, lr: float, **server: Unpack[ServerSettings]) -> Server:
    """Plain asynchronous SGD: ``x <- x - lr*g_i`` at every update.

    Args:
        params, lr: as in every preset (:mod:`fastagg.presets`).
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.ASGD(torch.zeros(2), lr=0.1)
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.ones(2))
        >>> server.flat
        tensor([-0.1000, -0.1000])
    """
    return Server(params, directions.Single(kind="gradient"), SGD(lr), **server)


@preset
def DelayAdaptiveASGD(
    params: object,
    *,
    lr: float,
    delay_threshold: float,
    stale: names.Stale = "scaled",
    lipschitz: float | None = None,
    **server: Unpack[ServerSettings],
) -> Server:
    """Asynchronous SGD with a smaller rate for old gradients: ``x <- x - lr(tau)*g_i``. The ACE paper, Algorithm a.4.

    Args:
        params, lr: as in every preset (:mod:`fastagg.presets`).
        delay_threshold: tau_C, >= 0. The paper's default is the number of clients that train at the same time.
        stale: the rate of an update with a delay tau above tau_C. ``lipschitz``: ``min(lr, 1/(4*L*tau))`` (the paper).
            ``drop``: 0. ``scaled``: ``lr*tau_C/tau`` (the ACE authors' program).
        lipschitz: L, > 0. Only ``stale="lipschitz"`` needs L.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.DelayAdaptiveASGD(torch.zeros(2), lr=0.1, delay_threshold=1)
        >>> task = server.dispatch("slow")
        >>> for _ in range(2):
        ...     task = server.dispatch("fast")
        ...     receipt = server.receive("fast", torch.ones(2))
        >>> server.receive("slow", torch.ones(2)).step_size  # two versions late: lr * 1 / 2
        0.05
    """
    _checks.fits("stale", stale, names.Stale)
    rule: names.Rule = "threshold" if stale == "scaled" else stale
    policy = DelayAdaptive(delay_threshold, rule, lipschitz)
    return Server(params, directions.Single(kind="gradient"), SGD(lr), policy, **server)


@preset
def ACE(
    params: object,
    *,
    lr: float,
    num_clients: int,
    cache: names.Cache = "fp32",
    warmup: names.Warmup = "full",
    mode: names.AceMode = "incremental",
    optimizer: Optimizer | None = None,
    **server: Unpack[WeightSettings],
) -> Server:
    """All-client engagement: every update makes a step against the mean of all clients' latest gradients.

    ``U_i <- g_i; x <- x - lr * sum_j U_j / n``. ``mode="direct"`` is the ACE paper's Algorithm 1.
    ``mode="incremental"`` gives the same result in O(d) for each update. With ``mode="client"`` clients keep their own
    last gradients (Algorithm a.5, see :class:`fastagg.clients.GradientDifference`). The paper's F.3.3 has the 8-bit
    cache. All clients count equally.

    Args:
        params, lr, num_clients: as in every preset (:mod:`fastagg.presets`).
        cache: format of the cached gradients U_i (:class:`fastagg.ClientCache`). With ``mode="client"`` there are none.
        warmup: ``full``: there is no step until all clients have answered once. ``partial``: every update makes a step
            against the mean over the clients that have answered so far.
        mode: ``incremental``, ``direct`` or ``client``.
        optimizer: a server optimizer other than SGD. It has its own ``lr``.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.ACE(torch.zeros(2), lr=0.1, num_clients=2, cache="int8")
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> [server.receive(client, torch.ones(2)).applied for client in range(2)]  # the first step needs everybody
        [False, True]
        >>> server.flat
        tensor([-0.1000, -0.1000])
    """
    _checks.fits("mode", mode, names.AceMode)
    steps = SGD(lr) if optimizer is None else optimizer
    if mode == "client":
        if cache != "fp32":
            raise ConfigError(f"cache: with mode='client' the server keeps no updates, got {cache!r}")
        return Server(params, directions.Differences(num_clients, warmup), steps, **server)
    return Server(params, directions.AllClients(num_clients, cache, warmup, mode), steps, **server)


@preset
def ACED(
    params: object,
    *,
    lr: float,
    num_clients: int,
    max_delay: int = 10,
    cache: names.Cache = "fp32",
    freshness: names.Freshness = "dispatch",
    warmup: names.Warmup = "full",
    **server: Unpack[ActiveSettings],
) -> Server:
    """ACE over the fresh clients only. A client is fresh if its information is at most ``max_delay`` versions old.

    ``U_i <- g_i; x <- x - lr * mean over A(t) of U_j``, where A(t) is the set of fresh clients. The ACE paper,
    Algorithm a.1, from the second round on (docs/algorithms.md). All clients count equally.

    Args:
        params, lr, num_clients: as in every preset (:mod:`fastagg.presets`).
        max_delay: tau_algo, >= 0. If no client's information is ever older, ACED is exactly ACE.
        cache: format of the cached gradients U_i.
        freshness: how old a client's information is. ``dispatch``: the age of the version that the client was last sent
            (Algorithm a.1). ``gradient``: the age of the version of its cached gradient (the text of Eq. 7).
        warmup: ``full`` or ``partial``, as in :func:`ACE`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.ACED(torch.zeros(2), lr=0.1, num_clients=2, max_delay=5)
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> receipts = [server.receive(client, torch.ones(2)) for client in range(2)]
        >>> server.flat
        tensor([-0.1000, -0.1000])
    """
    direction = directions.ActiveSet(num_clients, cache=cache, warmup=warmup, max_delay=max_delay, freshness=freshness)
    return Server(params, direction, SGD(lr), **server)


@preset
def CA2FL(
    params: object,
    *,
    num_clients: int,
    buffer_size: int = 10,
    lr: float = 1.0,
    cache: names.Cache = "fp32",
    repeat: names.Repeat = "start",
    staleness: Staleness | None = None,
    **server: Unpack[WeightSettings],
) -> Server:
    """Cached update calibration: a buffer as in FedBuff, calibrated with the last update h_j of every client j.

    ``x <- x + lr*(mean_j h_j + sum(Delta_i - h_i)/|S|)`` over every M updates, where S is the set of their clients.
    Then ``h_i <- Delta_i``. The ACE paper, Algorithm a.3. By default all updates count equally.

    Args:
        params, lr, buffer_size, num_clients, staleness: as in every preset (:mod:`fastagg.presets`).
        cache: format of the cached updates h_i.
        repeat: how a client's second update in the same buffer is calibrated: with the client's h_i at the start of the
            round (``start``, the paper), or with its first update (``latest``). See :class:`fastagg.Calibrated`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.CA2FL(torch.zeros(2), num_clients=2, buffer_size=2)
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> receipts = [server.receive(client, torch.ones(2)) for client in range(2)]
        >>> server.flat
        tensor([1., 1.])
    """
    return Server(params, directions.Calibrated(num_clients, buffer_size, cache, repeat), SGD(lr), staleness, **server)


@preset
def AsyncFedED(
    params: object,
    *,
    lam: float,
    eps: float,
    gamma_bar: float = 3.0,
    kappa: float = 1.0,
    local_steps: int = 10,
    max_local_steps: int | None = None,
    gamma_max: float | None = None,
    **server: Unpack[ServerSettings],
) -> Server:
    """Asynchronous steps whose rate depends on Euclidean staleness: the AsyncFedED paper, Algorithm 1.

    ``gamma = |x_t - x_s|/|Delta_i|`` (Eq. 6); ``x <- x + lam/(gamma + eps)*Delta_i`` (Eqs. 5, 7);
    ``K_next = K_i + floor((gamma_bar - gamma)*kappa)`` (Eq. 8). K_i is the number of client i's local steps.
    ``dispatch`` sends K_next to the client. The server keeps each version while a client may still train from it.

    Args:
        params: as in every preset (:mod:`fastagg.presets`).
        lam, eps, gamma_bar, kappa, local_steps, max_local_steps, gamma_max: see :class:`fastagg.Euclidean`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.AsyncFedED(torch.zeros(2), lam=1.0, eps=1.0)
        >>> task = server.dispatch("ann")
        >>> task.local_steps  # the number of steps that the client must train
        10
        >>> server.receive("ann", torch.ones(2)).applied
        True
    """
    policy = Euclidean(lam, eps, gamma_bar, kappa, local_steps, max_local_steps, gamma_max)
    return Server(params, directions.Single(), SGD(1.0), policy, **server)


@preset
def FedEcho(
    params: object,
    *,
    distill: Distillation,
    num_clients: int,
    lr: float = 1.0,
    buffer_size: int = 5,
    cache: names.Cache = "fp32",
    staleness: Staleness | None = None,
    **server: Unpack[WeightSettings],
) -> Server:
    """FedBuff with distillation after every step. The distillation's target is the mean of all clients' latest logits.

    FedEcho, Algorithm 1. Each update costs a forward pass of the client's model on the unlabelled data. Each step
    costs Q training steps on this data. :attr:`fastagg.Server.distillation` reports the cost. By default all updates
    count equally (``weighting="uniform"``).

    Args:
        params, lr, buffer_size, num_clients, staleness: as in every preset (:mod:`fastagg.presets`).
        distill: the unlabelled data, the model's code, and the settings. ConfigError: this model differs from
            ``params``, or returns no logits.
        cache: format of the cached logits of the clients.
        server: the other settings of :class:`fastagg.Server`.

    Raises:
        DataError: there is no unlabelled data, or it cannot be read.

    Example:
        >>> net = torch.nn.Linear(3, 2)
        >>> distill = fastagg.Distillation(net, torch.randn(16, 3))
        >>> server = fastagg.FedEcho(net, buffer_size=1, num_clients=2, distill=distill)
        >>> task = server.dispatch(0)
        >>> server.receive(0, torch.zeros(8)).applied
        True
    """
    direction = directions.Echo(buffer_size, num_clients=num_clients, distill=distill, cache=cache)
    return Server(params, direction, SGD(lr), staleness, **server)


@preset
def FedAC(
    params: object,
    *,
    lr: float,
    buffer_size: int = 10,
    betas: tuple[float, float] = (0.6, 0.9),
    eps: float = 1e-8,
    moments: names.Moments = "fp32",
    staleness: Staleness | None = None,
    **server: Unpack[ServerSettings],
) -> Server:
    """FedAC, a baseline of the FedEcho paper. A **reconstruction**: the equations of its own paper were not available.

    An update's weight is ``max(cos(x_t - x_s, Delta_i), 0.1)``. If its delay is 0, the weight is 1 (in AFL-Benchmark's
    program 0.1). By default numbers of samples have no effect. The weighted mean D of the updates goes into Adam's
    moments m and v, and ``x <- x + lr*(b1*m + (1-b1)*D)/(sqrt(v) + eps)``. Clients correct their drift with control
    variates: :class:`fastagg.clients.DriftCorrection`. Pass its second result to ``receive`` as ``control``.

    Args:
        params, lr, buffer_size, betas, eps, moments, staleness: as in every preset (:mod:`fastagg.presets`).
        server: the other settings of :class:`fastagg.Server`.
    """
    optimizer = Lookahead(lr, betas, eps, moments=moments)
    return Server(params, directions.CosineBuffer(buffer_size), optimizer, staleness, **server)


def _synchronous(
    server: Mapping[str, Any],
    params: object,
    clients_per_round: int | None,
    make: Callable[..., Optimizer],
    *settings: Any,
    along: Callable[..., directions.Direction] = directions.Cohort,
    **more: Any,
) -> Server:
    _checks.fits("clients_per_round", clients_per_round, _checks.Count | None)
    rounds, steps, rest = _parted(server)
    return Server(params, along(clients_per_round, **rounds), make(*settings, **more, **steps), **rest)


@preset
def FedAvg(
    params: object,
    *,
    clients_per_round: int | None,
    lr: float = 1.0,
    weighting: names.Weighting = "samples",
    **server: Unpack[CohortSettings],
) -> Server:
    """Synchronous averaging, ``x <- sum_i p_i x_i^K`` where p_i is client i's share of all samples in the round.

    The AsyncFedED paper, Eq. 38. By default an update counts by its number of samples, as in McMahan et al. 2017 and
    Flower. In APPFL all updates count equally by default. For FedProx (Eq. 39) clients also call
    :func:`fastagg.clients.add_proximal_gradient_`.

    Args:
        params, clients_per_round: as in every preset (:mod:`fastagg.presets`).
        lr: the server's learning rate, >= 0. With 1 the new model is the average of the clients' models.
        weighting: ``samples`` or ``uniform``.
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.FedAvg(torch.zeros(2), clients_per_round=2)
        >>> tasks = [server.dispatch(client) for client in "ab"]
        >>> for task, samples in zip(tasks, (10, 30)):
        ...     receipt = server.receive_model(task, torch.full((2,), float(samples)), num_samples=samples)
        >>> server.flat  # (10*10 + 30*30) / 40
        tensor([25., 25.])
    """
    return _synchronous({"weighting": weighting, **server}, params, clients_per_round, SGD, lr)


@preset
def FedProx(
    params: object,
    *,
    clients_per_round: int | None,
    lr: float = 1.0,
    weighting: names.Weighting = "samples",
    **server: Unpack[CohortSettings],
) -> Server:
    """The same server as :func:`FedAvg`. Clients call :func:`fastagg.clients.add_proximal_gradient_` in training.

    Args:
        params, lr, clients_per_round: as in every preset (:mod:`fastagg.presets`).
        weighting: ``samples`` or ``uniform``.
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.
    """
    return FedAvg(params, clients_per_round=clients_per_round, lr=lr, weighting=weighting, **server)


@preset
def FedAvgM(
    params: object,
    *,
    clients_per_round: int | None,
    lr: float = 1.0,
    beta: float = 0.9,
    moments: names.Moments = "fp32",
    **server: Unpack[BufferSettings],
) -> Server:
    """Synchronous rounds with momentum on the mean delta D: ``m <- beta*m + D; x <- x + lr*m`` (Hsu et al. 2019).

    This is heavy-ball momentum. FL-bench's FedAvgM has Nesterov's momentum. By default all updates count equally, as in
    APPFL. In Flower, FLARE and FL-bench an update counts by its number of samples.

    Args:
        params, lr, clients_per_round, moments: as in every preset (:mod:`fastagg.presets`).
        beta: decay rate of the moment, in [0, 1).
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.FedAvgM(torch.zeros(2), lr=0.5, beta=0.9, clients_per_round=1)
        >>> for _ in range(2):
        ...     receipt = server.receive_model(server.dispatch("ann"), server.flat + 1.0)
        >>> server.flat  # 0.5 * 1, and then 0.5 * (0.9 * 1 + 1)
        tensor([1.4500, 1.4500])
    """
    return _synchronous(server, params, clients_per_round, Momentum, lr, beta, moments=moments)


@preset
def FedAdam(
    params: object,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-3,
    bias_correction: bool = False,
    moments: names.Moments = "fp32",
    **server: Unpack[AdaptiveSettings],
) -> Server:
    """Synchronous rounds with Adam on the mean delta D: ``x <- x + lr*m/(sqrt(v) + eps)`` (Reddi et al. 2021).

    ``eps`` is the paper's tau, and the defaults of ``eps`` and ``betas`` are the paper's. The paper has no bias
    correction. Its Algorithm 2 starts v at tau^2 (``initial=eps**2``, as in APPFL). Here v starts at 0, as in Flower
    and FL-bench. By default all updates count equally, as in the paper's Algorithm 1 and in APPFL. In Flower, FLARE and
    FL-bench an update counts by its number of samples.

    Args:
        params, lr, clients_per_round, betas, eps, moments: as in every preset (:mod:`fastagg.presets`).
        bias_correction: whether to correct the moments as Adam does.
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay, eps_root, initial: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.
    """
    return _synchronous(server, params, clients_per_round, Adam, lr, betas, eps, bias_correction, moments=moments)


@preset
def FedYogi(
    params: object,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-3,
    bias_correction: bool = False,
    moments: names.Moments = "fp32",
    **server: Unpack[AdaptiveSettings],
) -> Server:
    """Synchronous rounds with Yogi on the mean delta D: like Adam, but ``v <- v - (1-b2)*D*D*sign(v - D*D)``.

    Reddi et al. 2021. The defaults and the start of v are as in :func:`FedAdam`. FedScale's Yogi starts v at tau, and
    optax's Yogi starts v at 1e-6.

    Args:
        params, lr, clients_per_round, betas, eps, moments: as in every preset (:mod:`fastagg.presets`).
        bias_correction: whether to correct the moments as Adam does.
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay, eps_root, initial: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.
    """
    return _synchronous(server, params, clients_per_round, Yogi, lr, betas, eps, bias_correction, moments=moments)


@preset
def FedAdagrad(
    params: object,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    beta: float = 0.0,
    eps: float = 1e-3,
    moments: names.Moments = "fp32",
    **server: Unpack[AdaptiveSettings],
) -> Server:
    """Synchronous rounds with Adagrad on the mean delta D: like Adam, but ``v <- v + D*D`` (Reddi et al. 2021).

    The other defaults and the start of v are as in :func:`FedAdam`. By default ``beta`` is 0, so ``m = D``.

    Args:
        params, lr, clients_per_round, eps, moments: as in every preset (:mod:`fastagg.presets`).
        beta: decay rate of the moment, in [0, 1).
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay, eps_root, initial: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.
    """
    return _synchronous(server, params, clients_per_round, Adagrad, lr, beta, eps, moments=moments)


@preset
def FedAMS(
    params: object,
    *,
    clients_per_round: int | None,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    bias_correction: bool = False,
    moments: names.Moments = "fp32",
    **server: Unpack[AdaptiveSettings],
) -> Server:
    """Synchronous rounds with AMSGrad on the mean delta D, as in FADAS (Wang et al. 2022, option 1).

    Even with a bias correction, vhat is the largest uncorrected v, as in torch. By default all updates count equally.

    Args:
        params, lr, clients_per_round, betas, eps, moments: as in every preset (:mod:`fastagg.presets`).
        bias_correction: whether to correct the moments as Adam does.
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay, eps_root, initial: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.
    """
    return _synchronous(server, params, clients_per_round, AMSGrad, lr, betas, eps, bias_correction, moments=moments)


class RobustRounds(ClientSettings, names.DecaySettings, total=False):
    """The arguments of the robust presets."""

    at_least: int | None
    grace: float | None


def _robust(rule: RobustRule, **settings: Any) -> Callable[..., directions.Direction]:
    return partial(directions.Robust, rule, synchronous=True, **settings)


@preset
def FedMedian(
    params: object, *, clients_per_round: int | None, lr: float = 1.0, **server: Unpack[RobustRounds]
) -> Server:
    """Synchronous rounds with ``x <- x + lr*D``. Each element of D is the median over the deltas (Yin et al. 2018).

    Flower has this rule. All updates count equally. :class:`fastagg.Robust` has other rules, and an asynchronous form.

    Args:
        params, lr, clients_per_round: as in every preset (:mod:`fastagg.presets`).
        at_least, grace: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.FedMedian(torch.zeros(1), clients_per_round=3)
        >>> tasks = [server.dispatch(client) for client in "abc"]
        >>> for task, number in zip(tasks, (1.0, 2.0, -1e9)):
        ...     receipt = server.receive_model(task, torch.tensor([number]))
        >>> server.flat
        tensor([1.])
    """
    return _synchronous(server, params, clients_per_round, SGD, lr, along=_robust("median"))


@preset
def FedTrimmedAvg(
    params: object, *, clients_per_round: int | None, beta: float = 0.2, lr: float = 1.0, **server: Unpack[RobustRounds]
) -> Server:
    """Synchronous rounds with the trimmed mean of the deltas: for every element, the ``int(beta*M)`` smallest and the
    ``int(beta*M)`` largest numbers are left out. Yin et al. 2018, and Flower. All updates count equally.

    Args:
        params, lr, clients_per_round: as in every preset (:mod:`fastagg.presets`).
        beta: the share of the numbers that is left out at each end, in [0, 0.5).
        at_least, grace: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> fastagg.FedTrimmedAvg(torch.zeros(2), clients_per_round=10, beta=0.3).direction.trim
        0.3
    """
    return _synchronous(server, params, clients_per_round, SGD, lr, along=_robust("trimmed", trim=beta))


@preset
def Krum(
    params: object,
    *,
    clients_per_round: int | None,
    num_malicious_nodes: int = 0,
    lr: float = 1.0,
    **server: Unpack[RobustRounds],
) -> Server:
    """Synchronous rounds with one of the M deltas: the one with the smallest sum of squared distances to its M - f - 2
    nearest deltas. The other deltas have no effect. Blanchard et al. 2017, and Flower.

    Args:
        params, lr, clients_per_round: as in every preset (:mod:`fastagg.presets`).
        num_malicious_nodes: f, the number of clients that may send any update. M must be at least 2f + 3.
        at_least, grace: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> fastagg.Krum(torch.zeros(2), clients_per_round=7, num_malicious_nodes=2).direction.f
        2
    """
    along = _robust("krum", f=num_malicious_nodes)
    return _synchronous(server, params, clients_per_round, SGD, lr, along=along)


@preset
def MultiKrum(
    params: object,
    *,
    clients_per_round: int | None,
    num_malicious_nodes: int = 0,
    num_nodes_to_select: int | None = None,
    lr: float = 1.0,
    **server: Unpack[RobustRounds],
) -> Server:
    """Synchronous rounds with the mean of the ``num_nodes_to_select`` deltas with the smallest sums (:func:`Krum`).

    Blanchard et al. 2017. The mean is not weighted. In Flower a delta counts by its number of samples.

    Args:
        params, lr, clients_per_round: as in every preset (:mod:`fastagg.presets`).
        num_malicious_nodes: f, the number of clients that may send any update. M must be at least 2f + 3.
        num_nodes_to_select: the number of deltas in the mean. None: M - f.
        at_least, grace: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.MultiKrum(torch.zeros(2), clients_per_round=7, num_nodes_to_select=3)
        >>> server.direction.keep
        3
    """
    along = _robust("multi_krum", f=num_malicious_nodes, keep=num_nodes_to_select)
    return _synchronous(server, params, clients_per_round, SGD, lr, along=along)


@preset
def DiLoCo(
    params: object,
    *,
    clients_per_round: int | None,
    lr: float = 0.7,
    momentum: float = 0.9,
    moments: names.Moments = "fp32",
    **server: Unpack[BufferSettings],
) -> Server:
    """Synchronous rounds with Nesterov on the mean delta D of few workers: ``m <- mu*m + D; x <- x + lr*(D + mu*m)``.

    Douillard et al. 2023 (arXiv 2311.08105), Algorithm 1. The paper's outer optimizer is torch's SGD with Nesterov's
    momentum, with rate 0.7 and momentum 0.9. Workers train hundreds of steps with an optimizer of their own, such as
    AdamW. By default all updates count equally.

    Args:
        params, lr, clients_per_round, momentum, moments: as in every preset (:mod:`fastagg.presets`).
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.DiLoCo(torch.zeros(2), clients_per_round=2, lr=1.0, momentum=0.5)
        >>> tasks = [server.dispatch(worker) for worker in range(2)]
        >>> receipts = [server.receive_model(task, task.params + 1.0) for task in tasks]
        >>> server.flat  # 1 + 0.5*1
        tensor([1.5000, 1.5000])
    """
    return _synchronous(server, params, clients_per_round, Nesterov, lr, momentum, moments=moments)


@preset
def AsyncDiLoCo(
    params: object,
    *,
    lr: float = 0.7,
    momentum: float = 0.9,
    period: int = 10,
    staleness: Staleness | None = None,
    **server: Unpack[StepSettings],
) -> Server:
    """DiLoCo without rounds: every update adds ``lr*Delta/N``. Every N-th update also makes a step of the momentum.

    Liu et al. 2024, Asynchronous Local-SGD (arXiv 2401.09135), Algorithm 3. :class:`fastagg.DelayedNesterov` has the
    formula. The server's setting ``fastest_steps`` turns on the paper's dynamic local updates.

    Args:
        params, lr, momentum, staleness: as in every preset (:mod:`fastagg.presets`).
        period: N, at least the number of workers.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.AsyncDiLoCo(torch.zeros(2), lr=1.0, period=2, fastest_steps=100)
        >>> [server.dispatch(worker, speed=speed).local_steps for worker, speed in (("a100", 8.0), ("t4", 2.0))]
        [100, 25]
        >>> [server.receive(worker, torch.ones(2)).version for worker in ("a100", "t4")]
        [1, 2]
    """
    _, steps, rest = _parted(server)
    return Server(params, directions.Single(), DelayedNesterov(lr, momentum, period, **steps), staleness, **rest)


@preset
def HeLoCo(
    params: object,
    *,
    lr: float = 0.7,
    momentum: float = 0.9,
    rho: float = 1.0,
    c_ok: float = 0.2,
    k_s: float = 0.5,
    k_d: float = 1.0,
    kappa: float = 3.0,
    beta_max: float = 0.5,
    eps: float = 1e-8,
    staleness: Staleness | None = None,
    **server: Unpack[StepSettings],
) -> Server:
    """Asynchronous DiLoCo for workers of unequal speed: tensors of an update are first turned towards the momentum.

    ``m <- mu*m + (1-mu)*D; x <- x + lr*(D + mu*m)``, where :class:`fastagg.Aligned` has turned D. Workers are sent
    ``x + lr*mu*m``. arXiv 2606.00271: Algorithms 1 and 2, Eqs. 5, 7 to 15, 18, 19.

    Args:
        params, lr, momentum, staleness: as in every preset (:mod:`fastagg.presets`).
        rho: a factor > 0 by which every update is multiplied. The paper recommends ``1/sqrt(K)`` for K workers.
        c_ok, k_s, k_d, kappa, beta_max, eps: see :class:`fastagg.Aligned`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.HeLoCo(torch.zeros(2), lr=1.0, momentum=0.5)
        >>> receipt = server.receive_model(server.dispatch("ann"), torch.ones(2))
        >>> server.flat, server.dispatch("ann").flat  # 1 + 0.5*0.5, and this plus 0.5*0.5
        (tensor([1.2500, 1.2500]), tensor([1.5000, 1.5000]))
    """
    _, steps, rest = _parted(server)
    along = directions.Aligned(rho=rho, c_ok=c_ok, k_s=k_s, k_d=k_d, kappa=kappa, beta_max=beta_max, eps=eps)
    return Server(params, along, Nesterov(lr, momentum, momentum, look_ahead=True, **steps), staleness, **rest)


@preset
def DecoupledDiLoCo(
    params: object,
    *,
    buffer_size: int | None,
    lr: float = 0.7,
    momentum: float = 0.9,
    weighting: names.Weighting = "tokens",
    moments: names.Moments = "fp32",
    staleness: Staleness | None = None,
    **server: Unpack[CohortSettings],
) -> Server:
    """One fragment of Decoupled DiLoCo: Nesterov on the weighted mean of the deltas that arrived in time.

    Douillard et al. 2026 (arXiv 2604.21428). ``params`` is one of :func:`fastagg.parts`. Each fragment is a server with
    versions, delays, a quorum and a grace period of its own. ``D = sum(w_i*Delta_i)/sum(w_i)`` and ``m <- mu*m + D;
    x <- x + lr*(D + mu*m)``. ``w = tokens*tokens/steps``. A learner counts both since it last sent this fragment.

    Args:
        params, lr, momentum, moments, staleness: as in every preset (:mod:`fastagg.presets`).
        buffer_size: the number of learners. The step is made when all have answered, or ``grace`` seconds after the
            ``at_least``-th answer (the quorum). None: only the quorum counts.
        weighting: ``tokens`` (answers need ``num_samples=(tokens, steps)``), ``samples`` or ``uniform``.
        overflow, at_least, grace, normalize, privacy: see :class:`fastagg.Buffer`.
        weight_decay, decoupled_weight_decay: see :class:`fastagg.Optimizer`.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> cut = fastagg.parts(torch.nn.Linear(2, 2), 2)
        >>> servers = [fastagg.DecoupledDiLoCo(part, buffer_size=4, at_least=1, grace=0.0) for part in cut]
        >>> task = servers[0].dispatch("ann")
        >>> update = [torch.ones(tensor.shape) for tensor in task.params.values()]
        >>> receipt = servers[0].receive("ann", torch.cat([one.flatten() for one in update]), num_samples=(4096, 16))
        >>> servers[0].dispatch("ann").version, servers[1].version  # with grace=0.0 the step follows the first answer
        (1, 0)
    """
    rounds, steps, rest = _parted({"weighting": weighting, **server})
    optimizer = Nesterov(lr, momentum, moments=moments, **steps)
    return Server(params, directions.Buffer(buffer_size, **rounds), optimizer, staleness, **rest)


@preset
def RingmasterASGD(params: object, *, lr: float, delay_threshold: int, **server: Unpack[ServerSettings]) -> Server:
    """Asynchronous SGD that ignores gradients with a delay of R or more: ``x <- x - lr*g_i`` if ``tau < R``.

    Maranjyan et al. 2025 (arXiv 2501.16168), the variant that interrupts no worker. An ignored gradient makes no new
    version. The client's next task has the current model.

    Args:
        params, lr: as in every preset (:mod:`fastagg.presets`).
        delay_threshold: R, >= 1.
        server: the other settings of :class:`fastagg.Server`.

    Example:
        >>> server = fastagg.RingmasterASGD(torch.zeros(2), lr=0.1, delay_threshold=1)
        >>> tasks = [server.dispatch(worker) for worker in ("slow", "fast")]
        >>> [server.receive(worker, torch.ones(2)).applied for worker in ("fast", "slow")]
        [True, False]
    """
    return Server(params, directions.Single(kind="gradient"), SGD(lr), Cutoff(delay_threshold), **server)
