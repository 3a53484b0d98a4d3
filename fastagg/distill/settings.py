"""The settings of FedEcho's distillation, which a user passes: the model's code, the data and the paper's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

from torch import nn

from fastagg import _checks, _keywords, ops
from fastagg._checks import Betas, Count, NotNegative, Positive
from fastagg._types import Arrays, Plain
from fastagg.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Distillation:
    """Server-side distillation of the FedEcho paper, Algorithm 1, lines 12 to 15, and Eqs. 2 to 4.

    A teacher is the model of a client, and the student is the new global model. Both run in eval mode: dropout is off,
    and BatchNorm uses running statistics. A teacher uses the client's statistics, and the student those of the new
    global model.

    Args:
        model: an nn.Module with the server's parameters, in the server's order. The server copies the module. A call of
            the module returns logits, [batch, C] or [batch, ..., C], or an object with an attribute ``logits``.
        unlabelled: the inputs without labels: a tensor [N, ...], a mapping of tensors (passed as keywords), a Dataset
            of inputs or of tuples that begin with an input, or the path of an .npy, .npz or .pt file.
        samples: the number of inputs to use, drawn once with the server's seed. None: all inputs.
        alpha: the weight of the KL term: one number, or ``(alpha_min, alpha_max)``. With a pair, the teachers' entropy
            chooses a value in this range (Eq. 4).
        clip_norm: nu, the largest Euclidean norm of a gradient (Eq. 2). None: no clipping.
        lr, betas, eps: settings of Adam, with bias correction. Moments start from zero at every version.
        steps: Q, the number of steps at each version. None: one pass over the samples. The paper does not give Q.
        batch_size: the number of samples in a step. The paper does not give this number.
        inference_batch_size: the number of samples in a forward pass of a teacher.
        shape: images are resized to this shape, (channels, height, width). None: inputs are not resized.
        forward: ``forward(model, inputs)`` returns the logits. None: the model is called.
        offload: whether logits are kept in host memory if the server is on a GPU (for large vocabularies).

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> distill = fastagg.Distillation(torch.nn.Linear(3, 2), torch.randn(16, 3), steps=4)
        >>> distill.steps, distill.alpha
        (4, (0.2, 0.8))
    """

    model: nn.Module
    unlabelled: object
    samples: Count | None = 2000
    alpha: float | tuple[float, float] = (0.2, 0.8)
    clip_norm: Positive | None = 5.0
    lr: NotNegative = 3e-6
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8
    steps: Count | None = None
    batch_size: Count = 128
    inference_batch_size: Count = 500
    shape: tuple[int, ...] | None = None
    forward: Callable[[nn.Module, Arrays], object] | None = field(default=None, repr=False)
    offload: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ConfigError(f"distill.model: expected an nn.Module, got {type(self.model).__name__}")
        if self.unlabelled is None:
            raise ConfigError("distill.unlabelled: FedEcho needs data without labels, got None")
        _checks.fields(self, "distill.")
        ops.alpha_bounds(self.alpha)

    def settings(self) -> Plain:
        """Return the settings for a checkpoint: all but the model, the data and ``forward``."""
        skipped = ("model", "unlabelled", "forward")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}


Distillation.__init__ = _keywords.checked(Distillation.__init__)  # type: ignore[method-assign]
