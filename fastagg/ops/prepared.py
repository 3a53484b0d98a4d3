"""Calls in a loop: their arguments are checked once."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.ops.cached import cached_step_
from fastagg.ops.step import adagrad_, adam_, amsgrad_, momentum_, sgd_, step_, yogi_
from fastagg.ops.update import accumulate_, difference, distances, gather, inspect

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_OPS = (
    accumulate_, adagrad_, adam_, amsgrad_, cached_step_, difference, distances, gather, inspect, momentum_, sgd_,
    step_, yogi_,
)  # fmt: skip


def prepare(op: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs) -> Callable[[], _Result]:
    """Check an op's arguments once, and return what makes the call, for loops over small vectors.

    ``call = prepare(amsgrad_, x, update, m, v, vhat, lr=0.1)``, and then ``call()`` is ``amsgrad_(x, ...)``, with the
    same bits and result. It takes the kernel's time and about half a microsecond, and reads what the tensors hold by
    then. Numbers (rates, ``correction``, ``arrival``) stay as given, so an op that needs other ones each time is
    prepared anew, or called directly.

    The call holds its tensors. Each time it checks that their memory is where it was and as large: freeing it
    (``untyped_storage().resize_(0)``), or another tensor in its place (``x.data = y``), raises ``ConfigError``.

    Args:
        op: a function of this module whose name is one of ``accumulate_``, ``cached_step_``, ``difference``,
            ``distances``, ``gather``, ``inspect``, ``step_`` and the optimizers' own.
        args, kwargs: its arguments. Tensors are torch's own, contiguous, on the CPU; an update may be a list of them.

    Raises:
        ConfigError: another op, tensors on a device, arrays of another kind or not contiguous, or torch before 2.10.
        ShapeMismatch, DTypeMismatch: as the op does. Nothing was written.
    """
    if not any(op is each for each in _OPS):
        known = ", ".join(each.__name__ for each in _OPS)
        raise ConfigError(f"prepare: expected one of {known}, got {getattr(op, '__name__', op)!r}")
    made: Callable[[], _Result] = native.ops.prepare(op, args, kwargs)
    return made
