"""The parts of an algorithm, which users pass to a server: a direction, an optimizer and a staleness policy.

The package's own parts are registered and checked when this module is imported. If a part's declaration is incomplete,
the import raises an error, so no setting is silently ignored.
"""

from typing import get_args

from fastagg import _checks, ops, registry
from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.rules import directions, names, optimizers, staleness

_BASES = {"direction": directions.Direction, "optimizer": optimizers.Optimizer, "staleness": staleness.Staleness}


def _check_declaration(part: type) -> None:
    """Reject a part of the package that has a field without a check. Also reject an optimizer or a staleness policy
    with a field that the engine does not know."""
    for name, hint in _checks.hints(part).items():
        if _checks.says_nothing(hint):
            raise ConfigError(f"{part.__name__}.{name}: any {hint} is taken; annotate it with a SettingRule")
    try:
        if issubclass(part, optimizers.Optimizer):
            part().native()
        elif issubclass(part, staleness.Staleness):
            part()._native()
    except (TypeError, ValueError, LookupError) as error:
        raise ConfigError(f"{part.__name__}: the engine does not know it so: {error!r}") from error


def _check_lists() -> None:
    """Reject differences between the optimizers' classes and the engine's kernels, and between the row formats in
    ``names.Cache`` and the engine's."""
    kernels = {getattr(optimizers, name).kernel for name in optimizers.__all__} - {""}
    if missing := (kernels ^ {*ops.OPTIMIZERS}) | ({*get_args(names.Cache)} ^ {*native.row_formats}):
        raise ConfigError(f"fastagg/rules and csrc/math differ: {', '.join(sorted(missing))}")


for _kind, _base in _BASES.items():
    registry.add_kind(_kind, _base)
for _module in (directions, optimizers, staleness):
    for _name in _module.__all__:
        _part = getattr(_module, _name)
        if issubclass(_part, tuple(_BASES.values())) and _part not in _BASES.values():
            registry.register(_part)
            _check_declaration(_part)
_check_lists()
