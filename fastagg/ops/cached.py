"""Server steps with a client cache: one pass updates the row, the sum over clients and the model."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from fastagg import _checks
from fastagg._build import native
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.ops.checks import Update, address, apart, apart_from, key, optimizer_of, pair, vector
from fastagg.ops.place import CPU, place, run, where
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache
from fastagg.storage.pieces import as_pieces
from fastagg.storage.staging import send

_BLOCK = native.block  # elements that are recomputed together
_SHADOW_BYTES = 8 * _BLOCK  # a block's sum in float64


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
    verdict: Tensor | None = None,
    write_cache: ClientCache | None = None,
    **optimizer: Any,
) -> Tensor | None:
    """Store an update as a client's row and step the model along the sum of rows, in one pass over memory.

    The update is first multiplied by ``gain``. ``deq`` is the dequantised value:

    - without ``acc`` (ACE, Alg. 1; ACED, Alg. a.1): the row is written, then
      ``sum += entering*deq(row written) - leaving*deq(row read) + terms``; ``D = sum_scale*sum``
    - with ``acc`` (CA2FL, Alg. a.3): ``c = acc + weight*(update - deq(row read))``; without a step ``acc = c``;
      with a step ``D = sum_scale*sum + acc_scale*c``, and then ``sum += terms``

    The sum is fp32. A dither makes the rounding errors of its additions average out (csrc/math/directions.h,
    ``sum_dither``). :func:`add_rows_` and :func:`settle_rows_` remove errors that accumulate.

    Bytes per parameter into SGD: 28 fp32, 24 bf16, 22 int8, 21 int4, plus scales.

    Args:
        x: the model, [d]. None stores the update without a step.
        update: the arriving update, d elements.
        cache: the rows. None if the update itself enters the sum (clients keep their own rows).
        write, read: the slots to write and to read, -1 for none. They may be equal; the slot is read first.
        client, arrival: keys of the rounding, with the cache's seed. ``arrival`` counts updates of the sum (dither).
        gain: factor on the update (clipping, staleness).
        sum: the sum over clients, [d].
        entering, leaving, sum_scale, terms, weight, acc_scale: as above. ``terms`` are (slot, weight) pairs.
        acc, fresh: the buffer of calibrated updates, [d]. With ``fresh`` its old content counts as zero.
        out: output for the new model. None writes it to ``x``.
        verdict: result of :func:`fastagg.ops.judge`, on CUDA. Its gain and weight are multiplied into ``gain``. If it
            rejects the update, the row does not change, or becomes zero if there was none.
        write_cache: the cache of slot ``write``, if it is not ``cache``. Its rows have the same format and length.
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
        into = cache if write_cache is None else write_cache
        _check_rows(size, cache, write, read, terms, into)
        held |= {"rows": cache.native, "write_to": into.native, "seed": cache.seed}
        held |= {"write": write, "read": read, "terms": terms}
    elif write >= 0 or read >= 0 or terms:
        raise ConfigError("cache: needed to write, read or add rows, got None")
    run(native.step, pieces, verdict, held)
    return x if out is None else out


def _check_rows(
    size: int, cache: ClientCache, write: int, read: int, terms: Sequence[tuple[int, float]], into: ClientCache
) -> None:
    """Check the slots of a step: ``write`` is one of ``into``, all others of ``cache``."""
    if cache.size != size:
        raise ShapeMismatch(f"update: expected {cache.size} elements, as the cache's rows have, got {size}")
    if into.size != size or into.format != cache.format:
        raise ConfigError(f"write_cache: expected {cache.format} rows of {size}, got {into.format} rows of {into.size}")
    slots = [pair("terms", term)[0] for term in terms]
    if not (-1 <= read < cache.slots and -1 <= write < into.slots and all(0 <= slot < cache.slots for slot in slots)):
        raise ConfigError(f"slots: expected -1..{cache.slots - 1}, got {[write, read, *slots]}")


def recompute_sum_(
    sum: Tensor, cache: ClientCache, weights: Tensor, first: int = 0, last: int | None = None, stride: int = 1
) -> Tensor:
    """``sum = sum over slots of weights[slot]*deq(row slot)``, added in float64 and rounded once.

    It is done for the blocks of 1,024 elements ``first, first + stride, ...`` below ``last`` (by default for all).
    Slots of weight 0 are not read.

    Args:
        sum: [d], written.
        cache: the rows.
        weights: one fp32 number for each slot, [slots], on the CPU.
        first, last, stride: the blocks, 0 <= first, 0 <= last <= ceil(d/1024), stride >= 1.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: a vector or a range is refused. Nothing was written.
    """
    vector("weights", weights, cache.slots, torch.device("cpu"))
    vector("sum", sum, cache.size, cache.device)
    blocks = -(-cache.size // _BLOCK)
    end = blocks if last is None else last
    if first < 0 or not 0 <= end <= blocks or stride < 1:
        raise ConfigError(
            f"blocks: expected 0 <= first, 0 <= last <= {blocks} and stride >= 1, got {first}, {end} and {stride}"
        )
    on = place(cache.device)
    given = {"sum": sum.data_ptr(), "first": first, "last": end, "stride": stride}
    if on is CPU:
        native.recompute_sum(cache.native, weights=weights.data_ptr(), **given)
    else:
        there = send(weights, cache.device)
        blocks_of = native.cuda.Blocks(first=first, last=end, stride=stride)
        native.cuda.recompute_sum(
            cache.native, weights=there.data_ptr(), sum=sum.data_ptr(), blocks=blocks_of, where=where(on)
        )
    return sum


def add_rows_(
    shadow: Tensor,
    cache: ClientCache,
    jobs: Sequence[tuple[int, int, int, int]],
    weights: Tensor | None = None,
    weight: float = 1.0,
) -> Tensor:
    """Compute the sum of :func:`recompute_sum_` in parts.

    For every job ``(block, row, first, last)`` and every slot of ``first..last-1``, in order,
    ``shadow[row] += w*deq(row slot)[block]``. The product is fp32, the sum float64.

    If a shadow row begins with zeros and all slots are added, it equals the unrounded sum of :func:`recompute_sum_`,
    bit for bit, however the slots are divided over calls. :func:`settle_rows_` rounds it.

    Args:
        shadow: [k, 1024] float64, written. The vector's last block may have fewer elements.
        cache: the rows, on the shadow's device.
        jobs: a block of 1,024 elements, 0 <= block < ceil(d/1024), a row of ``shadow``, and slots, 0 <= first <= last
            <= slots. No two jobs have the same row of ``shadow``.
        weights: w, one fp32 number for each slot, [slots], on the CPU. Slots of weight 0 are not added.
        weight: w of every slot, if there are no ``weights``.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: an argument is refused. Nothing was written.
    """
    _check_shadow(shadow, cache.device)
    if weights is not None:
        vector("weights", weights, cache.slots, torch.device("cpu"))
    weight = _checks.number("weight", weight)
    given = _whole(jobs, 4, 1, "row of the shadow")
    blocks, slots, rows = -(-cache.size // _BLOCK), cache.slots, shadow.shape[0]
    for block, row, first, last in given:
        if not (0 <= block < blocks and 0 <= row < rows and 0 <= first <= last <= slots):
            raise ConfigError(
                f"jobs: expected blocks below {blocks}, rows below {rows} and slots first <= last <= {slots}, got "
                f"{(block, row, first, last)}"
            )
    if not given:
        return shadow
    on = place(cache.device)
    start = shadow.data_ptr()
    native_jobs = [(block, first, last, start + row * _SHADOW_BYTES) for block, row, first, last in given]
    if on is CPU:
        held = 0 if weights is None else weights.data_ptr()
        native.add_rows(cache.native, jobs=native_jobs, weights=held, weight=weight)
    else:
        there = None if weights is None else send(weights, cache.device)
        jobs_there = _upload(native_jobs, cache.device)
        native.cuda.add_rows(
            cache.native, jobs=jobs_there.data_ptr(), count=len(given), weights=address(there), weight=weight,
            where=where(on),
        )  # fmt: skip
    return shadow


def settle_rows_(sum: Tensor, shadow: Tensor, jobs: Sequence[tuple[int, int]]) -> Tensor:
    """For every job ``(block, row)``, set that block of ``sum`` to ``shadow[row]``, rounded to fp32.

    Args:
        sum: [d] fp32, written.
        shadow: [k, 1024] float64, on the same device.
        jobs: a block of 1,024 elements, 0 <= block < ceil(d/1024), and a row of ``shadow``. No two jobs have the same
            block.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: an argument is refused. Nothing was written.
    """
    vector("sum", sum, sum.numel(), sum.device)
    _check_shadow(shadow, sum.device)
    apart("sum", sum, "shadow", shadow)
    given = _whole(jobs, 2, 0, "block of the sum")
    blocks, rows = -(-sum.numel() // _BLOCK), shadow.shape[0]
    for block, row in given:
        if not (0 <= block < blocks and 0 <= row < rows):
            raise ConfigError(f"jobs: expected blocks below {blocks} and rows below {rows}, got {(block, row)}")
    if not given:
        return sum
    on = place(sum.device)
    start = shadow.data_ptr()
    held = {"sum": sum.data_ptr(), "size": sum.numel()}
    if on is CPU:
        native.settle_rows(jobs=[(block, start + row * _SHADOW_BYTES) for block, row in given], **held)
    else:
        there = _upload([(block, 0, 0, start + row * _SHADOW_BYTES) for block, row in given], sum.device)
        native.cuda.settle_rows(jobs=there.data_ptr(), count=len(given), where=where(on), **held)
    return sum


def _check_shadow(shadow: Tensor, device: torch.device) -> None:
    """Sums of blocks: contiguous, [k, 1024] float64."""
    if shadow.dtype is not torch.float64 or shadow.device != device:
        raise DTypeMismatch(f"shadow: expected torch.float64 on {device}, got {shadow.dtype} on {shadow.device}")
    if shadow.dim() != 2 or shadow.shape[1] != _BLOCK or not shadow.is_contiguous():
        raise ShapeMismatch(f"shadow: expected a contiguous [k, {_BLOCK}], got {list(shadow.shape)}")


def _whole(jobs: Sequence[tuple[int, ...]], count: int, place: int, what: str) -> list[Any]:
    """Jobs of ``count`` whole numbers each, which say at ``place`` what they write, each something else."""
    try:
        found = [tuple(index(number) for number in job) for job in jobs]
    except TypeError as error:
        raise ConfigError(f"jobs: expected tuples of {count} whole numbers: {error}") from None
    if wrong := [job for job in found if len(job) != count]:
        raise ConfigError(f"jobs: expected tuples of {count} whole numbers, got {wrong[0]}")
    if len({job[place] for job in found}) < len(found):
        raise ConfigError(f"jobs: expected a {what} for each, got two jobs for the same one")
    return found


def _upload(jobs: list[tuple[int, int, int, int]], device: torch.device) -> Tensor:
    """Jobs in the form that launches read (csrc/plan.h, RowJob). Keep the tensor until the launch."""
    return send(torch.tensor([(*job, 0, 0) for job in jobs], dtype=torch.int64, device="cpu"), device)


def read_row(cache: ClientCache, slot: int) -> Tensor:
    """Row ``slot`` of the cache as it is used everywhere, dequantised: [d] fp32. Only written rows mean anything.

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
