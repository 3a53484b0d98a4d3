"""The checks of an update before it may change the model."""

from __future__ import annotations

from typing import Any

from fastagg import _checks, ops
from fastagg.errors import ConfigError, NonFiniteUpdate
from fastagg.layout import Layout, Parsed
from fastagg.storage.pieces import Pieces

_HEAVIEST = 1e30  # the largest weight in a mean for which fp32 sums and inverse weights stay finite


def share(num_samples: Any, weighting: str) -> float:
    """Return a client's weight in a mean.

    Raises:
        ConfigError: ``num_samples`` is needed but missing, or is not a positive number.
    """
    if num_samples is not None:
        num_samples = _checks.number("num_samples", _plain(num_samples), above=0)
        if not 1.0 / _HEAVIEST <= num_samples <= _HEAVIEST:
            raise ConfigError(f"num_samples: expected a number in 1e-30..1e30, got {num_samples!r}")
    if weighting == "uniform":
        return 1.0
    if num_samples is None:
        raise ConfigError('num_samples: needed with weighting="samples", got None')
    return float(num_samples)


def refuse_non_finite(layout: Layout, parsed: Parsed, finite: bool) -> None:
    """Refuse an update whose parameters are not ``finite``.

    Raises:
        NonFiniteUpdate: it is not finite; the message names the first bad array.
    """
    if not finite:
        raise non_finite(layout, parsed)


def non_finite(layout: Layout, parsed: Parsed) -> NonFiniteUpdate:
    """Return the error for an update whose parameters are not finite. It names the first bad array."""
    return NonFiniteUpdate(f"update: NaN or infinity in {_culprits(layout, parsed.parameters)}")


def refuse_non_finite_buffers(parsed: Parsed) -> None:
    """Refuse running statistics that are not finite.

    Raises:
        NonFiniteUpdate: a value is NaN or infinite.
    """
    if parsed.buffers is not None and not ops.inspect(parsed.buffers).finite:
        raise NonFiniteUpdate("update: NaN or infinity in its buffers (running statistics)")


def control(layout: Layout, given: Any) -> Pieces:
    """Return a change of a client's control variate (FedAC). ``given`` has the form of the model or is flat.

    Raises:
        ShapeMismatch, DTypeMismatch, NonFiniteUpdate: ``given`` is not such a change.
    """
    pieces = layout.parse(given, "control").parameters
    if not ops.inspect(pieces).finite:
        raise NonFiniteUpdate("control: NaN or infinity")
    return pieces


def _culprits(layout: Layout, pieces: Pieces) -> str:
    names = [entry.name for entry in layout.entries if entry.role == "parameter"]
    if names == [""] or len(pieces.owners) != len(names):
        return "the flat vector"
    bad = [n for n, piece in zip(names, pieces.owners, strict=True) if not ops.inspect(piece).finite]
    return f"{bad[0]!r}" + (f" and {len(bad) - 1} more" if len(bad) > 1 else "")


def _plain(value: Any) -> Any:
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):  # not an array, or an array with several numbers
        return value
