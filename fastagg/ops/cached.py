"""Server steps with a client cache. One pass over memory updates the client's row, the sum of rows and the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fastagg._build import native
from fastagg.errors import ConfigError, ShapeMismatch
from fastagg.ops.checks import Update, apart_from, key, optimizer_of, pair, vector
from fastagg.ops.place import CPU, place, run, where
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache
from fastagg.storage.pieces import as_pieces


def cached_step_(
    x: Tensor | None,
    update: Update,
    *,
    cache: ClientCache | None,
    write: int = -1,
    read: int = -1,
    client: int = 0,
    arrival: int = 0,
    gain: float = 1.0,
    sum: Tensor | None = None,
    entering: float = 1.0,
    leaving: float = 1.0,
    sum_scale: float = 1.0,
    terms: Sequence[tuple[int, float]] = (),
    acc: Tensor | None = None,
    fresh: bool = False,
    weight: float = 1.0,
    acc_scale: float = 1.0,
    out: Tensor | None = None,
    **optimizer: Any,
) -> Tensor | None:
    """Store an update as a client's row, and step the model along the sum of rows, in one pass over memory.

    The update is first multiplied by ``gain``. ``deq`` is a row's dequantised value, and D is the step's direction:

    - without ``acc`` (ACE, Alg. 1; ACED, Alg. a.1): the row is written, then
      ``sum += entering*deq(row written) - leaving*deq(row read) + terms``; ``D = sum_scale*sum``
    - with ``acc`` (CA2FL, Alg. a.3): ``c = acc + weight*(update - deq(row read))``; without a step ``acc = c``;
      with a step ``D = sum_scale*sum + acc_scale*c``, and then ``sum += terms``

    The sum is fp32. A dither makes the rounding errors of its additions average out (csrc/math/directions.h,
    ``sum_dither``). A server also recomputes its sum from the rows, little by little (csrc/engine/resummation.h).

    A step of SGD moves 28 (fp32), 24 (bf16), 22 (int8) or 21 (int4) bytes per parameter, plus scales.

    Args:
        x: the model, [d]. None stores the update without a step.
        update: the arriving update, d elements.
        cache: the rows. None: clients keep their own rows, and the update itself is added to the sum.
        write, read: the slot to write and the slot to read. -1: no slot. They may be equal, because the step reads
            first.
        client, arrival: with the cache's seed, the keys of the rounding. ``arrival`` is also the dither's key.
        gain: factor on the update (clipping, staleness).
        sum: the sum over clients, [d].
        entering, leaving, sum_scale, terms, weight, acc_scale: the factors in the formulas above. ``terms`` are (slot,
            weight) pairs: each adds ``weight*deq(row of the slot)``.
        acc, fresh: the buffer of calibrated updates, [d]. If ``fresh``, the buffer's old content counts as zero. None:
            the first formula above is used.
        out: the vector [d] that gets the new model. None: the new model is written to ``x``.
        optimizer: the optimizer's keywords, as in :func:`step_`.

    Returns:
        ``out`` or ``x``.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: an argument is refused. Nothing was written.
    """
    pieces = as_pieces(update)
    size, device = pieces.size, pieces.device
    held = {} if x is None else optimizer_of(size, device, x, out, **optimizer)
    held |= {"kind": "mean", "gain": gain, "arrival": key("arrival", arrival), "client": key("client", client, 32)}
    if acc is not None:
        at = vector("acc", acc, size, device)
        held |= {
            "kind": "calibrated", "weight": weight, "acc": 0 if fresh else at, "acc_out": at, "scale": acc_scale,
        }  # fmt: skip
    if sum is not None:
        at = vector("sum", sum, size, device)
        apart_from("sum", at, pieces, same=False)
        held |= {"sum": at, "entering": entering, "leaving": leaving, "sum_scale": sum_scale}
    elif acc is None or x is not None:
        raise ConfigError("sum: needed here, got None")
    if cache is not None:
        _check_rows(size, cache, write, read, terms)
        held |= {"rows": cache.native, "seed": cache.seed}
        held |= {"write": write, "read": read, "terms": terms}
    elif write >= 0 or read >= 0 or terms:
        raise ConfigError("cache: needed to write, read or add rows, got None")
    run(native.step, pieces, held)
    return x if out is None else out


def _check_rows(size: int, cache: ClientCache, write: int, read: int, terms: Sequence[tuple[int, float]]) -> None:
    if cache.size != size:
        raise ShapeMismatch(f"update: expected {cache.size} elements, as the cache's rows have, got {size}")
    slots = [pair("terms", term)[0] for term in terms]
    if not all(-1 <= slot < cache.slots for slot in (read, write)) or not all(
        0 <= slot < cache.slots for slot in slots
    ):
        raise ConfigError(f"slots: expected -1..{cache.slots - 1}, got {[write, read, *slots]}")


def read_row(cache: ClientCache, slot: int) -> Tensor:
    """Return row ``slot`` of the cache, dequantised as in steps: [d] fp32. The numbers of unwritten rows are undefined.

    Raises:
        ConfigError: the slot does not exist.
    """
    if not 0 <= slot < cache.slots:
        raise ConfigError(f"slot: expected 0..{cache.slots - 1}, got {slot}")
    on = place(cache.device)
    out = memory.empty(cache.size, cache.device)
    if on is CPU:
        native.read_row(cache.native, slot=slot, out=out.data_ptr())
    else:
        native.cuda.read_row(cache.native, slot=slot, out=out.data_ptr(), where=where(on))
    return out
