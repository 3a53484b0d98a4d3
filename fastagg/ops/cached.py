"""Server steps through a client cache: the row, the sum over clients and the model in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastagg import reference
from fastagg._build import native
from fastagg.cache import ClientCache, RunningSum
from fastagg.errors import ConfigError, ShapeMismatch
from fastagg.ops.checks import OptimizerCall, Update, address, optimizer_call, vector
from fastagg.ops.place import CPU, on_device, place
from fastagg.ops.verdict import check_verdict
from fastagg.pieces import as_pieces

_REFRESH_EVERY = 8  # steps; a slice is a pass of its own, on a GPU a launch, so not at every step
_REFRESH_ROUNDS = 4
_MEAN, _CALIBRATED = range(2)  # csrc/cpu/cached_step.h, CachedKind
_NO_ROWS = native.Rows(0, 0, 0, 0, 0)
_NO_STEP = OptimizerCall(-1, native.Hyper(0.0, 0.0, 0.0, 1.0, 1.0), 0, 0, 0, 0, 0)


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
    sum: RunningSum | None = None,
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
    **optimizer: Any,
) -> Tensor | None:
    """Store an update as a client's row and step the model along what all rows say, in one pass over memory.

    With ``deq`` the dequantised value, and the update multiplied by ``gain`` first:

    - without ``acc`` (ACE, paper 002 Alg. 1; ACED, Alg. a.1): the row is written, then
      ``sum += entering*deq(row written) - leaving*deq(row read) + terms``; ``D = sum_scale*sum``
    - with ``acc`` (CA2FL, Alg. a.3): ``c = acc + weight*(update - deq(row read))``; without a step ``acc = c``;
      with one ``D = sum_scale*sum + acc_scale*c``, and afterwards ``sum += terms``

    Bytes per parameter into SGD: 28 fp32, 24 bf16, 22 int8, 21 int4, plus scales and the sum's low byte (2).

    Args:
        x: the model, [d]; None stores the update and moves no model.
        update: the arriving update, d elements.
        cache: the rows; None if the update itself enters the sum (clients that keep their own rows).
        write, read: slots written and read, -1 for none. They may be the same: it is read first.
        client, arrival: key the rounding, with the cache's seed.
        gain: factor on the update (clipping, staleness).
        sum: the sum over clients.
        entering, leaving, sum_scale, terms, weight, acc_scale: as above; ``terms`` are (slot, weight) pairs.
        acc, fresh: the buffer of calibrated updates, [d]; with ``fresh`` its old content counts as zero.
        out: where the new model goes; None writes it to ``x``.
        verdict: of :func:`fastagg.ops.judge`, on CUDA: its gain and weight are multiplied into ``gain``; for an update
            that it does not keep, the row stays what it was, or becomes zero where there was none.
        optimizer: the optimizer's keywords, those of :func:`step_`.

    Returns:
        ``out`` or ``x``.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: an argument is refused; nothing was written.
    """
    pieces = as_pieces(update)
    size, device = pieces.size, pieces.device
    target = x if out is None else out
    call = _NO_STEP
    if x is not None and target is not None:
        call = optimizer_call(size, device, x, target, **optimizer)
    if acc is not None:
        vector("acc", acc, size, device)
    if sum is None and (acc is None or x is not None):
        raise ConfigError("sum: needed here, got None")
    if sum is not None:
        vector("sum.high", sum.high, size, device)
        vector("sum.low", sum.low, size, device, torch.int8)
    if cache is None and (write >= 0 or read >= 0 or terms):
        raise ConfigError("cache: needed to write, read or add rows, got None")
    if cache is not None:
        if cache.size != size:
            raise ShapeMismatch(f"update: expected {cache.size} elements, as the cache's rows have, got {size}")
        slots = [write, read, *(slot for slot, _ in terms)]
        if not all(-1 <= slot < cache.slots for slot in slots):
            raise ConfigError(f"slots: expected -1..{cache.slots - 1}, got {slots}")
    check_verdict(verdict, device)
    on = place(device)
    if on is None:
        return reference.cached_step_(
            x, pieces, cache=cache, write=write, read=read, client=client, arrival=arrival, gain=gain, sum=sum,
            entering=entering, leaving=leaving, sum_scale=sum_scale, terms=terms, acc=acc, fresh=fresh, weight=weight,
            acc_scale=acc_scale, out=out, **optimizer,
        )  # fmt: skip
    key = native.RandomKey(0 if cache is None else cache.seed, arrival, client)
    run, given, end = (
        (native.cached_step, pieces, call)
        if on is CPU
        else (native.cuda.cached_step, on_device(pieces), (*call[:7], address(verdict), *on))
    )
    run(
        given.native, _NO_ROWS if cache is None else cache.native, _MEAN if acc is None else _CALIBRATED,
        gain, write, read, key, address(None if sum is None else sum.high), address(None if sum is None else sum.low),
        entering, leaving, sum_scale, 0 if fresh else address(acc), address(acc), weight, acc_scale, list(terms), *end,
    )  # fmt: skip
    return target


def recompute_sum_(
    sum: RunningSum, cache: ClientCache, weights: Tensor, first: int = 0, last: int | None = None
) -> RunningSum:
    """``sum = sum over slots of weights[slot]*deq(row slot)``, added exactly, for blocks ``first..last-1`` of 1,024
    elements (all of them by default); slots of weight 0 are not read.

    Args:
        sum: [d], written.
        cache: the rows.
        weights: one fp32 number for each slot, [slots], on the CPU.
    """
    vector("weights", weights, cache.slots, torch.device("cpu"))
    vector("sum.high", sum.high, cache.size, cache.device)
    end = -(-cache.size // 1024) if last is None else last
    on = place(cache.device)
    if on is None:
        reference.recompute_sum_(sum, cache, weights, first, end)
        return sum
    run, there, where = (
        (native.recompute_sum, weights, ())
        if on is CPU
        else (native.cuda.recompute_sum, weights.to(cache.device, non_blocking=True), on)
    )
    run(
        cache.size, cache.native, there.data_ptr(), cache.slots, address(sum.high), address(sum.low), first, end, *where
    )
    return sum


def refresh_sum_(sum: RunningSum, cache: ClientCache, weights: Tensor, steps: int, clients: int) -> None:
    """Keep a sum that is updated step by step from drifting: call it after every step, and a slice of the sum is
    recomputed exactly now and then, all of it once in four steps per client.

    Args:
        sum: [d]; the rest as in :func:`recompute_sum_`.
        steps: taken so far, this one included.
        clients: n, >= 1.
    """
    if steps % _REFRESH_EVERY:
        return
    blocks, rounds = -(-cache.size // 1024), _REFRESH_ROUNDS * clients
    first, last = (max(steps - _REFRESH_EVERY, 0) * blocks // rounds, steps * blocks // rounds)
    last = min(last, first + blocks)
    while first < last:
        at = first % blocks
        count = min(last - first, blocks - at)
        recompute_sum_(sum, cache, weights, at, at + count)
        first += count


def read_row(cache: ClientCache, slot: int) -> Tensor:
    """Row ``slot`` of the cache, dequantised: [d] fp32.

    Raises:
        ConfigError: no such slot.
    """
    if not 0 <= slot < cache.slots:
        raise ConfigError(f"slot: expected 0..{cache.slots - 1}, got {slot}")
    on = place(cache.device)
    if on is None:
        return reference.read_row(cache, slot)
    out = torch.empty(cache.size, device=cache.device)
    run, where = (native.read_row, ()) if on is CPU else (native.cuda.read_row, on)
    run(cache.size, cache.native, slot, out.data_ptr(), *where)
    return out
