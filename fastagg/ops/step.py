"""Server steps without a client cache. One pass over memory computes the direction and the optimizer's step."""

from __future__ import annotations

from torch import Tensor

from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.ops.checks import Update, optimizer_of, vector
from fastagg.ops.place import run
from fastagg.storage.pieces import as_pieces


def step_(
    x: Tensor,
    update: Update,
    *,
    optimizer: str,
    lr: float,
    m: Tensor | None = None,
    v: Tensor | None = None,
    vhat: Tensor | None = None,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    correction: int | None = None,
    units: Tensor | None = None,
    rounding: tuple[int, int] = (0, 0),
    gain: float = 1.0,
    weight: float = 1.0,
    acc: Tensor | None = None,
    scale: float = 1.0,
    base: Tensor | None = None,
    out: Tensor | None = None,
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    period: int = 1,
) -> Tensor:
    """Compute a direction from an update, and step the model along it, in one pass over memory.

    The direction ``D`` depends on the arguments:

    - neither ``acc`` nor ``base``: ``D = gain*weight*update``
    - ``acc``: ``D = (acc + gain*weight*update)*scale``, a buffer with its last update
    - ``base``: ``D = weight*((base - x) + gain*update)``, the client's model minus the server's (FedAsync)

    Args:
        x: the model, [d].
        update: the arriving update, d elements in all.
        optimizer: a key of :data:`OPTIMIZERS`. Pass exactly the moments that this optimizer has.
        lr: server learning rate of this step.
        m, v, vhat: moments, [d], updated in place. With ``units`` they are 8-bit moments: uint8, with d rounded up to
            whole blocks of 256.
        units: scales of 8-bit moments, [1, blocks] fp32 for ``m``, and a second row for ``v`` and ``vhat``. Before the
            first step, scales and moments are zeros (:func:`fastagg.rules.moments.zeros`).
        rounding: (seed, number of this step), the keys for rounding 8-bit moments.
        betas: the decay rates of the first and the second moment. With ``nesterov``: the momentum and the dampening.
        eps: the term outside the square root.
        correction: the round (1 for the first) for Adam's bias correction. None: no correction.
        gain: a factor on the update only, for clipping.
        weight: a factor on the whole contribution of the client (staleness, samples), as in the formulas above.
        acc, scale: the buffer's sum so far, [d] (read only), and the factor that makes a mean of the whole sum.
        base: the version that the client started from, [d].
        out: the vector [d] that gets the new model. It must not overlap ``x`` partly. None: ``x`` gets the new model.
        eps_root: a term that is added to the (corrected) second moment, under the square root.
        weight_decay: ``D - weight_decay*x`` takes the place of ``D``. If ``decoupled_weight_decay``, ``(1 -
            lr*weight_decay)*x`` takes the place of ``x`` instead.
        period: for ``delayed``, the number of steps in a period. ``correction`` is then the number of this step (None:
            this step ends a period), and there is no bias correction.

    Returns:
        ``out``, or ``x``.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: an argument is refused. Nothing was written.
    """
    pieces = as_pieces(update)
    size, device = pieces.size, pieces.device
    held = optimizer_of(
        size, device, x, out, optimizer=optimizer, lr=lr, m=m, v=v, vhat=vhat, betas=betas, eps=eps,
        correction=correction, units=units, rounding=rounding, eps_root=eps_root, weight_decay=weight_decay,
        decoupled_weight_decay=decoupled_weight_decay, period=period,
    )  # fmt: skip
    held["kind"], held["gain"], held["weight"] = "single", gain, weight
    if acc is not None:
        held |= {"kind": "flush", "acc": vector("acc", acc, size, device), "scale": scale}
    if base is not None:
        held |= {"kind": "blend", "base": vector("base", base, size, device)}
    if acc is not None and base is not None:
        raise ConfigError("acc and base are two different directions; give one of them")
    run(native.step, pieces, held)
    return x if out is None else out
