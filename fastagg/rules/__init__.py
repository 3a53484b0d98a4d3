"""What an algorithm is made of: a direction, an optimizer and a staleness policy."""

from fastagg import registry
from fastagg.rules import directions, optimizers, staleness

_BASES = {"direction": directions.Direction, "optimizer": optimizers.Optimizer, "staleness": staleness.Staleness}

for _kind, _base in _BASES.items():
    registry.add_kind(_kind, _base)
for _module in (directions, optimizers, staleness):
    for _name in _module.__all__:
        _part = getattr(_module, _name)
        if issubclass(_part, tuple(_BASES.values())) and _part not in _BASES.values():
            registry.register(_part)
