"""Encodes a client's update before it is sent: :func:`encode`, its formats, and error feedback. Clients call these."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, get_args

import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg._build import native
from fastagg._types import Arrays, Format, State, Values
from fastagg.errors import CheckpointError, ConfigError, ShapeMismatch
from fastagg.model import Layout
from fastagg.ops.checks import update_of
from fastagg.storage.encoded import Encoded
from fastagg.storage.pieces import Pieces

_FORMATS: dict[str, bool] = native.encoding.formats
if {*get_args(Format), "topk"} != _FORMATS.keys() or get_args(Values) != native.encoding.values:
    raise ImportError("fastagg.encoding: Format and Values must be the formats of csrc/math/wire.h")
UNBIASED = frozenset(name for name, unbiased in _FORMATS.items() if unbiased)  # formats that need no error feedback


@dataclass(frozen=True)
class TopK:
    """A format that sends only the elements with the largest magnitudes. The server reads all others as zero.

    The format is biased. Use :class:`ErrorFeedback`, which adds the elements that were not sent to the next update.

    Args:
        share: the number of sent elements divided by the number of all, in (0, 1]. At least one element is sent.
        values: the type of the sent elements: ``fp32`` (8 bytes an element with its index), ``bf16`` (6), ``int8`` (5)
            or ``int2`` (4.25, as in SparseLoCo, arXiv 2603.08163). All types but fp32 are rounded without bias.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> fastagg.encode(torch.tensor([1.0, -3.0, 2.0, 0.5]), fastagg.TopK(0.5), seed=0).decode()
        tensor([ 0., -3.,  2.,  0.])
    """

    share: Annotated[float, _checks.SettingRule(above=0, most=1)]
    values: Values = "bf16"

    def __post_init__(self) -> None:
        _checks.fields(self)


class ErrorFeedback:
    """Keeps the part of a client's updates that a format has not sent yet (Seide et al. 2014; Karimireddy et al. 2019).

    With each update: ``e <- decay*e + delta; send c = C(e); e <- e - decode(c)``, where C encodes. Each client has one
    object of this class. A client that saves its state also saves this object's :meth:`state_dict`.

    Args:
        decay: the factor on the part that was not sent, in [0, 1].

    Attributes:
        residual: e, fp32 [d]. None before the first update.
        count: the number of updates encoded so far.

    Raises:
        ConfigError: ``decay`` is out of range.

    Example:
        >>> feedback, half = fastagg.ErrorFeedback(), fastagg.TopK(0.5, "fp32")
        >>> for _ in range(2):
        ...     fastagg.encode(torch.tensor([3.0, 2.0]), half, seed=0, feedback=feedback).decode()
        tensor([3., 0.])
        tensor([0., 4.])
    """

    def __init__(self, decay: float = 1.0) -> None:
        self.decay: float = _checks.fits("decay", decay, Annotated[float, _checks.SettingRule(least=0, most=1)])
        self.residual: Tensor | None = None
        self.count = 0

    def state_dict(self) -> State:
        """Return the state as plain data and a tensor. The next update does not change this tensor."""
        return {"decay": self.decay, "residual": self.residual, "count": self.count}

    def load_state_dict(self, state: State) -> None:
        """Load a state that :meth:`state_dict` returned.

        Raises:
            CheckpointError: ``state`` is damaged. This object has not changed.
        """
        try:
            residual, decay, count = state["residual"], float(state["decay"]), int(state["count"])
            if residual is not None and not ops.inspect(residual := residual.to(torch.float32).reshape(-1)).finite:
                raise ValueError("NaN or infinity")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the state of an ErrorFeedback is damaged: {error!s:.200}") from error
        self.residual, self.decay, self.count = residual, decay, count


def encode(delta: Arrays, format: Format | TopK, *, seed: int, feedback: ErrorFeedback | None = None) -> Encoded:
    """Return an update in one of the formats below. fp32 has 4 bytes a parameter. A server reads each format directly.

    =============== ============================================== ================= ========
    format          what is sent                                   bytes a parameter unbiased
    =============== ============================================== ================= ========
    ``bf16``        numbers of 16 bits                             2                 yes
    ``int8``        8-bit codes, and a scale for 256 elements      1.016             yes
    ``int4``        4-bit codes, and a scale for 256 elements      0.516             yes
    ``int8-tensor`` 8-bit codes, and each array's scale max|x|/127 1                 no
    ``sign``        signs, and the mean magnitude of 256 elements  0.141             no
    :class:`TopK`   indices and values of the largest magnitudes   4.25 to 8 a value no
    =============== ============================================== ================= ========

    Args:
        delta: the update, fp32, fp16 or bf16: a 1-D array, a list of arrays, or a mapping from names to arrays, of
            torch or NumPy. Running statistics and counters are left out.
        format: one of the formats above.
        seed: the seed of the rounding, 0..2^64-1. Updates with the same seed are rounded with the same random numbers,
            so give each update its own seed, such as the task's id. With ``feedback``, whose count also enters the
            random numbers, one seed for each client is enough.
        feedback: this client's error feedback. The part of earlier updates that was not sent is added to the update,
            and the part of this sum that is not sent is kept. None: there is no error feedback.

    Raises:
        ConfigError: a setting is out of range.
        NonFiniteUpdate: the update holds NaN or infinity. ``feedback`` has not changed.
        ShapeMismatch: ``feedback`` belongs to a model of another size. DTypeMismatch: an array has another type.

    Example:
        >>> server = fastagg.FedBuff({"w": torch.zeros(2, 256)}, buffer_size=1)
        >>> task = server.dispatch("ann")
        >>> encoded = fastagg.encode({"w": torch.ones(2, 256)}, "int8", seed=task.id)
        >>> server.receive("ann", encoded, task.version).applied, encoded.nbytes
        (True, 584)
    """
    name, values = ("topk", format.values) if isinstance(format, TopK) else (format, "fp32")
    if name != "topk":
        _checks.fits("format", name, Format)
    elif not isinstance(format, TopK):
        raise ConfigError(_checks.wrong("format", "fastagg.TopK(share), or " + ", ".join(get_args(Format)), format))
    _checks.whole("seed", seed, least=0, most=2**64 - 1)
    if feedback is not None and not isinstance(feedback, ErrorFeedback):
        raise ConfigError(_checks.wrong("feedback", "a fastagg.ErrorFeedback", feedback))
    pieces = Layout.of(delta).parse(delta, "delta").parameters.plain().to(torch.device("cpu"))
    ends = list(accumulate(size for _, size, _ in pieces.native if size))
    source, number = pieces, 0
    if feedback is not None:
        source, number = Pieces([_with_residual(pieces, feedback)]), feedback.count
    count = max(1, round(format.share * pieces.size)) if isinstance(format, TopK) else 0
    made = native.encoding.encode(
        update_of(source), format=name, values=values, count=count, ends=ends, key=(seed, number)
    )
    if feedback is not None:
        residual = source.owners[0]
        feedback.residual = ops.accumulate_(residual, Pieces([made]), -1.0)
        feedback.count += 1
    return Encoded(made)


def _with_residual(pieces: Pieces, feedback: ErrorFeedback) -> Tensor:
    held = feedback.residual
    if held is None:
        return pieces.flat(torch.float32)
    if held.numel() != pieces.size:
        raise ShapeMismatch(f"feedback: it is of {held.numel()} elements, and the update has {pieces.size}")
    total: Tensor = ops.accumulate_(held * feedback.decay, pieces, 1.0)
    return total
