"""Robust rules. They combine several updates, a few of which may be malicious. :func:`combine` lists the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, Unpack, get_args, get_type_hints

from torch import Tensor

from fastagg import _checks
from fastagg._build import native
from fastagg._checks import SettingRule
from fastagg._types import Native
from fastagg.errors import ConfigError, DeviceError, ShapeMismatch
from fastagg.ops.checks import Update, apart_from, update_of, vector
from fastagg.ops.place import CPU, place
from fastagg.storage import memory
from fastagg.storage.pieces import as_pieces

RobustRule = Literal[
    "median", "trimmed", "mean_around_median", "krum", "multi_krum", "geometric_median", "centered_clip"
]
MOST = native.most_combined  # the most updates in one call

# Rule -> the names of its settings, and whether it compares whole updates.
_RULES: dict[str, tuple[tuple[str, ...], bool]] = native.engine.robust_rules
if get_args(RobustRule) != tuple(_RULES):
    raise ImportError(f"fastagg.ops.RobustRule: expected the rules of csrc/engine/robust.cpp, {', '.join(_RULES)}")
COMPARING = frozenset(name for name, (_, compares) in _RULES.items() if compares)


Trim = Annotated[float, SettingRule(default=0.1, least=0, below=0.5)]
Faults = Annotated[int, SettingRule(default=0, least=0, most=MOST)]
Keep = Annotated[int | None, SettingRule(least=1, most=MOST)]
Radius = Annotated[float, SettingRule(default=1.0, above=0)]
Iterations = Annotated[int, SettingRule(default=3, least=1, most=10**6)]
Smoothing = Annotated[float, SettingRule(default=1e-6, above=0)]


class RobustSettings(TypedDict, total=False):
    """The settings of robust rules. :func:`combine` explains them."""

    trim: Trim
    f: Faults
    keep: Keep
    radius: Radius
    iterations: Iterations
    smoothing: Smoothing


_HINTS = get_type_hints(RobustSettings, include_extras=True)
DEFAULTS: Mapping[str, Any] = {name: hint.__metadata__[0].default for name, hint in _HINTS.items()}


def robust_of(rule: RobustRule, count: int | None, settings: RobustSettings) -> Native:
    """Check a rule and its settings, and return the rule in the engine's form. ``count``: the number of updates. None:
    the number is not known yet, and is not checked."""
    _checks.fits("rule", rule, RobustRule)
    for name, value in settings.items():
        if name not in DEFAULTS:
            raise ConfigError(_checks.unknown("setting", name, DEFAULTS))
        if name not in _RULES[rule][0] and value != DEFAULTS[name]:
            of = " and ".join(owner for owner, (names, _) in _RULES.items() if name in names)
            raise ConfigError(f"{name}: a setting of {of}, not of {rule}; leave it out")
    values = {name: _checks.fits(name, value, _HINTS[name]) for name, value in {**DEFAULTS, **settings}.items()}
    robust = native.engine.Robust(rule, **{**values, "keep": values["keep"] or 0})
    if count is not None:
        robust.check(count)
    return robust


def combine(
    rows: Sequence[Update],
    rule: RobustRule,
    *,
    weights: Sequence[float] | None = None,
    out: Tensor | None = None,
    **settings: Unpack[RobustSettings],
) -> Tensor:
    """Return the combination of several updates by ``rule``. A few of the updates may have arbitrary numbers.

    The first three rules work element by element. The others compare whole updates. n is the number of updates. The
    result's bits depend neither on the processor nor on the number of threads.

    ======================  ============================================================================================
    ``median``              the median
    ``trimmed``             the mean without the ``int(trim*n)`` smallest and largest (Yin et al. 2018, Definition 2)
    ``mean_around_median``  the mean of the n - f values nearest to the median (Xie et al. 2018)
    ``krum``                the update with the smallest sum of squared distances to its n - f - 2 nearest updates, for
                            n >= 2f + 3 (Blanchard et al. 2017)
    ``multi_krum``          the mean of the ``keep`` (by default n - f) updates with the smallest such sums
    ``geometric_median``    ``iterations`` of Weiszfeld's algorithm from zero, with distances of at least ``smoothing``
                            (Pillutla et al. 2022)
    ``centered_clip``       ``iterations`` of v <- v + mean of the u_i - v, each clipped to the norm ``radius``, from
                            zero (Karimireddy et al. 2021)
    ======================  ============================================================================================

    Args:
        rows: 1 to 1,024 updates of d finite elements each.
        rule: the rule's name.
        weights: a factor for each update, by which the update is multiplied first. None: all factors are 1.
        out: the vector [d] that gets the result. None: a new vector.
        settings: the rule's settings: ``trim`` in [0, 0.5), default 0.1. ``f``, default 0. ``keep``, default n - f.
            ``radius`` > 0, default 1. ``iterations``, default 3. ``smoothing`` > 0, default 1e-6.

    Raises:
        ConfigError: a setting is out of range, or the rule does not work with n updates.
        ShapeMismatch, DTypeMismatch: an update has another size than the first. Nothing was written.
        DeviceError: the updates are not on the CPU.
        NonFiniteUpdate: an update has NaN or infinity. Nothing was written.
        UpdateTooLarge: an update times a weight above 1 may leave the range of fp32. Nothing was written.

    Example:
        >>> rows = [torch.tensor([1.0, 5.0]), torch.tensor([2.0, 6.0]), torch.tensor([3.0, -1e9])]
        >>> fastagg.ops.combine(rows, "median")
        tensor([2., 5.])
    """
    updates = [as_pieces(row) for row in rows]
    if not updates:
        raise ConfigError("combine: there is no update")
    robust = robust_of(rule, len(updates), settings)
    first, factors = updates[0], [1.0] * len(updates) if weights is None else [float(w) for w in weights]
    if len(factors) != len(updates):
        raise ShapeMismatch(f"combine: {len(updates)} updates and {len(factors)} weights")
    for factor in factors:
        _checks.number("weights", factor)
    for k, pieces in enumerate(updates):
        if pieces.size != first.size or pieces.device != first.device:
            raise ShapeMismatch(f"update {k} has {pieces.size} elements, update 0 has {first.size}")
    out = memory.empty(first.size, first.device) if out is None else out
    to = vector("out", out, first.size, first.device)
    for pieces in updates:
        apart_from("out", to, pieces, same=False)
    if place(first.device) is not CPU:
        raise DeviceError(f"combine: for updates on the CPU, got one on {first.device}; move it there")
    native.combine([(update_of(p), w) for p, w in zip(updates, factors, strict=True)], robust, out=to)
    return out
