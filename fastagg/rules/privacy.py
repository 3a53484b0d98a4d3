"""Differential privacy for clients: its settings, its noise, and the privacy spent. Users pass the settings as
``privacy`` to rules such as FedBuff."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastagg import _checks
from fastagg._build import native
from fastagg._checks import Positive, SettingRule
from fastagg._extras import PRIVACY, require
from fastagg._keywords import made
from fastagg._types import Native
from fastagg.errors import ConfigError

__all__ = ["BLT", "AdaptiveClip", "Gaussian"]

_MOST = 2**63 - 1
_MOST_BUFFERS = 8  # the most numbers in BLT.omega, kMostPast in csrc/plan.h
Share = Annotated[float, SettingRule(above=0, below=1)]
Times = Annotated[int, SettingRule(least=1, most=_MOST)]


class NoiseKey(bytes):
    """A secret key of 32 bytes. Its repr hides the bytes, so that no message and no traceback shows them."""

    def __repr__(self) -> str:
        return "<a key>"


@dataclass(frozen=True)
class AdaptiveClip:
    """A clipping norm that follows a quantile of the updates' norms (Andrew et al. 2021, 1905.03871, Algorithm 1).

    After every step ``C <- C*exp(-rate*(b - quantile))``, where ``b = (count + N(0, s_b^2))/M`` is the noisy share of
    the step's updates whose norm was at most C, and ``s_b`` is ``count_noise``. The noise multiplier of the updates is
    ``(z^-2 - s_b^-2)^(-1/2)``, a little more than ``noise_multiplier`` z. So both noises together give the privacy of a
    single noise with z. The paper's Theorem 1 has 2*s_b, because one client changes the paper's count by 1/2. Here one
    client changes the count by 1: an update of zeros in place of the client's counts as not clipped.

    Args:
        quantile: the share of updates that should not be clipped, in (0, 1).
        initial: C of the first step, > 0.
        rate: how fast C follows the quantile, > 0. The paper's rate is 0.2.
        count_noise: s_b, > ``noise_multiplier``. None: M/10, where M is the buffer's size. M/10 is twice the paper's
            s_b, so the noise of the updates equals the paper's.

    Example:
        >>> fastagg.Gaussian(1.0, fastagg.AdaptiveClip(0.5, initial=0.1)).clip_norm.quantile
        0.5
    """

    quantile: Share = 0.5
    initial: float = field(default=0.1, kw_only=True)
    rate: Positive = field(default=0.2, kw_only=True)
    count_noise: Positive | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _checks.fields(self)
        _check_norm("initial", self.initial)


@dataclass(frozen=True)
class BLT:
    """Noise that is correlated between steps, so that most of the noise cancels in the model. This is a buffered linear
    Toeplitz mechanism (Dvijotham et al. 2024, 2404.16706; McMahan et al. 2024, 2408.08868). The server keeps a vector
    of the model's size for each omega.

    The noise is ``C^-1 z``, where C is lower triangular Toeplitz with the coefficients ``c_0 = 1`` and ``c_t = sum_i
    omega_i*theta_i^(t-1)``. Step t adds ``n_t = z_t - sum_i omega_i*S_i``, then ``S_i <- theta_i*S_i + n_t``. The
    standard deviation of z is that of :class:`Gaussian`'s noise times :meth:`sensitivity`.

    Args:
        omega: one to eight numbers > 0 with ``(sum omega)^2 <= sum omega*theta``. Then the magnitudes of the
            coefficients of C^-1 add up to at most 2 (Kaluza 1928), so the noise stays bounded.
        theta: numbers in (0, 1), one for each omega.

    Example:
        >>> round(fastagg.BLT((0.3, 0.2), (0.95, 0.4)).sensitivity(1, 1), 4)
        1.4711
    """

    omega: tuple[float, ...]
    theta: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("omega", "theta"):
            numbers = getattr(self, name)
            if not isinstance(numbers, (tuple, list)) or not 1 <= len(numbers) <= _MOST_BUFFERS:
                raise ConfigError(_checks.wrong(name, f"1 to {_MOST_BUFFERS} numbers", numbers))
            object.__setattr__(self, name, tuple(float(_checks.number(name, number, above=0)) for number in numbers))
        if len(self.omega) != len(self.theta):
            raise ConfigError(f"theta: expected one for each of {len(self.omega)} omega, got {len(self.theta)}")
        if max(self.theta) >= 1:
            raise ConfigError(_checks.wrong("theta", "numbers in (0, 1)", self.theta))
        if sum(self.omega) ** 2 > self.coefficient(2) + 1e-12:
            raise ConfigError(
                f"omega: expected (sum omega)^2 <= sum omega*theta, got {sum(self.omega) ** 2:.4g} > "
                f"{self.coefficient(2):.4g}; noise could grow from step to step"
            )

    def coefficient(self, t: int) -> float:
        """Return ``c_t``, the coefficient of C for t >= 0."""
        return 1.0 if t == 0 else sum(w * r ** (t - 1) for w, r in zip(self.omega, self.theta, strict=True))

    def sensitivity(self, participations: int, separation: int) -> float:
        """Return the largest norm of C times the updates of one client, if each update has norm 1, over any number of
        steps. This is the norm of the sum of ``participations`` columns of C that are ``separation`` steps apart
        (2408.08868). The formula holds for coefficients >= 0 that decrease."""
        pairs = list(zip(self.omega, self.theta, strict=True))
        total = 0.0
        for k in range(participations):
            shift = k * separation
            inner = self.coefficient(shift)  # begins the inner product of two columns that are `shift` steps apart
            inner += sum(w * v * q**shift / (1.0 - r * q) for w, r in pairs for v, q in pairs)
            total += (1 if k == 0 else 2) * (participations - k) * inner
            if k > 0 and inner < 1e-18:
                break
        return math.sqrt(total)


@dataclass(frozen=True)
class Gaussian:
    """Differential privacy for clients: the setting ``privacy`` of buffered rules (FedBuff, FADAS, the FedAvg family).

    Every update is clipped to the norm C. A step is along ``(sum of M updates + N(0, (z*C)^2) for each element)/M``,
    with other noise if there is an AdaptiveClip or a BLT. The noise is drawn in the pass of the step (ChaCha20, with a
    key from the operating system). All updates must have the same weight: staleness weights, ``weighting="samples"``
    and leaves' sums are refused. docs/privacy.md explains what is protected from whom.

    ``dispatch`` also limits how often a client takes part: a client may have one open task at a time, and one update in
    a step. If a client reaches a limit, ``dispatch`` raises :class:`fastagg.TooSoon`.

    Args:
        noise_multiplier: z, >= 0. With 0, updates are clipped without noise, so nothing is protected.
        clip_norm: C, > 0, or an :class:`AdaptiveClip`.
        correlation: a :class:`BLT`, with ``max_participations``. None: the noises of steps are independent.
        min_separation: the least difference between the numbers of two steps with updates of the same client, >= 1.
        max_participations: the most updates of one client that count, >= 1. None: any number.

    Raises:
        ConfigError: a setting is out of range, or two settings do not go together.

    Example:
        >>> privacy = fastagg.Gaussian(noise_multiplier=1.0, clip_norm=0.5, min_separation=2)
        >>> server = fastagg.FedBuff(torch.zeros(2), buffer_size=1, privacy=privacy)
        >>> task = server.dispatch("ann")
        >>> receipt = server.receive("ann", torch.ones(2))
        >>> try:
        ...     server.dispatch("ann")
        ... except fastagg.TooSoon as error:
        ...     print(error)
        client 'ann' took part in step 0, and may again in step 2 (min_separation); the next one is step 1
    """

    noise_multiplier: Annotated[float, SettingRule(least=0, most=1e6)]
    clip_norm: float | AdaptiveClip
    correlation: BLT | None = field(default=None, kw_only=True)
    min_separation: Times = field(default=1, kw_only=True)
    max_participations: Times | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name, kind in (("clip_norm", AdaptiveClip), ("correlation", BLT)):
            if isinstance(setting := getattr(self, name), dict):  # checkpoints hold settings as dicts
                object.__setattr__(self, name, made(kind, setting))
        _checks.fields(self)
        if not isinstance(self.clip_norm, AdaptiveClip):
            _check_norm("clip_norm", self.clip_norm)
        elif (noise := self.clip_norm.count_noise) is not None and not noise > self.noise_multiplier:
            do = "else the count alone spends more than noise_multiplier allows"
            raise ConfigError(_checks.wrong("count_noise", f"more than {self.noise_multiplier}", noise, do))
        if self.correlation is None:
            return
        if not isinstance(self.correlation, BLT):
            raise ConfigError(_checks.wrong("correlation", "a fastagg.BLT, or None", self.correlation))
        if isinstance(self.clip_norm, AdaptiveClip):
            raise ConfigError(
                "correlation: past noise is of one size, and an AdaptiveClip changes it; write clip_norm=C"
            )
        if self.max_participations is None:
            raise ConfigError("max_participations: needed with correlation; its noise depends on it")

    def native(self, size: int | None) -> Native:
        clip, noise = self.clip_norm, self.noise_multiplier
        more: dict[str, float | tuple[float, ...]] = {}
        if isinstance(clip, AdaptiveClip):
            counts = (size or 0) / 10 if clip.count_noise is None else clip.count_noise
            if not counts > noise:
                raise ConfigError(
                    f"count_noise: the buffer's size / 10 is {counts}, and more than {noise} is needed; give it"
                )
            more = {"quantile": clip.quantile, "rate": clip.rate, "count_noise": counts}
            noise = 0.0 if noise == 0 else (noise**-2 - counts**-2) ** -0.5
        if self.correlation is not None and self.max_participations is not None:
            more |= {"omega": self.correlation.omega, "theta": self.correlation.theta}
            noise *= self.correlation.sensitivity(self.max_participations, self.min_separation)
        return native.engine.PrivacySetting(
            noise=noise, clip=clip.initial if isinstance(clip, AdaptiveClip) else clip,
            **more,
        )  # fmt: skip

    def epsilon(self, steps: int, delta: float) -> float:
        """Return epsilon for one client after ``steps`` steps, with ``delta`` in (0, 1). Infinity: there is no noise.
        :meth:`fastagg.Server.privacy_spent` explains the guarantee."""
        _checks.fits("delta", delta, Share)
        require("privacy_spent", "privacy", PRIVACY)
        from dp_accounting import get_epsilon_gaussian

        if steps == 0:
            return 0.0
        if self.noise_multiplier == 0:
            return math.inf
        times = -(-steps // self.min_separation)  # the most times that a client can take part in these steps
        times = min(times, self.max_participations or times)
        # The Gaussian mechanisms of one client's updates together are one mechanism. Its sensitivity is the root of the
        # sum of their squared sensitivities.
        moved = math.sqrt(times)
        if self.correlation is not None and self.max_participations is not None:
            sensitivity = self.correlation.sensitivity
            moved = sensitivity(times, self.min_separation)
            moved /= sensitivity(self.max_participations, self.min_separation)
        return float(get_epsilon_gaussian(self.noise_multiplier / moved, delta))


def privacy_of(setting: Any) -> Gaussian | None:
    """Return the setting ``privacy`` as a Gaussian or None. The setting may be a dict of a Gaussian's settings."""
    if isinstance(setting, dict):
        return made(Gaussian, setting)
    if setting is None or isinstance(setting, Gaussian):
        return setting
    raise ConfigError(_checks.wrong("privacy", "a fastagg.Gaussian, or None", setting))


def _check_norm(name: str, norm: Any) -> None:
    if not 2.0**-40 <= _checks.number(name, norm, above=0) <= 2.0**40:
        raise ConfigError(_checks.wrong(name, "a norm in 2^-40..2^40", norm))
