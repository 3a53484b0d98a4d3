"""Compares a translated network (a table of layers) with its torch module. FusedTrainer does this before each run."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import torch
from torch import Tensor, nn

from fastagg._build import native
from fastagg.sim.clients.translate import TranslationError
from fastagg.storage import memory

SAMPLES = 8  # the comparison uses at most this number of a batch's samples
Facts = dict[str, Tensor]  # results by name: outputs, running statistics and gradients


def prove(module: nn.Module, table: native.Table, x: Tensor, y: Tensor) -> None:
    """Raise TranslationError unless ``table`` and ``module`` give the same results for one batch, up to rounding.

    The results are the outputs in evaluation mode, the gradients, and the running statistics after a training pass. All
    results are computed with slightly changed copies of the weights, because weights of zero would hide errors.

    Args:
        x: the inputs of the batch, fp32 [samples, *shape].
        y: the labels of the batch, int64 [samples].

    Raises:
        TranslationError: a result differs, or torch cannot train the module on the batch. The message has the reason.
    """
    try:
        module = deepcopy(module)
        _move(module)
        by_table, rough = _by_table(module, table, x, y), _by_torch(deepcopy(module), x, y)
        if all(_agree(by_table[name], rough[name], rough[name]) for name in by_table):
            return
        exact = _by_torch(deepcopy(module).double(), x.double(), y)  # only now, because fp64 is several times slower
    except Exception as error:  # a user's module may raise anything
        raise TranslationError(f"torch cannot train it on a first batch ({type(error).__name__}: {error})") from error
    for name in by_table:
        if not _agree(by_table[name], exact[name], rough[name]):
            where = "its outputs" if name == "outputs" else name
            raise TranslationError(f"the table of its layers does something else than the module, first at {where}")


def _agree(by_table: Tensor, exact: Tensor, rough: Tensor) -> bool:
    """Return whether ``by_table`` is as close to ``exact`` as fp32 allows. The tolerance grows with the error of
    ``rough``, torch's fp32 result. Otherwise gradients that are 0 except for rounding would differ too much."""
    exact = exact.flatten().double()
    away, of_torch = (float((each.double().flatten() - exact).norm()) for each in (by_table, rough))
    return away <= 1e-3 * float(exact.norm()) + 30 * of_torch + 1e-7


def _move(module: nn.Module) -> None:
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            away = torch.randn(p.shape, generator=random, dtype=torch.float32, device="cpu")
            p.add_(away * (0.1 * p.square().mean().sqrt() + 0.01))
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand(buffer.shape, generator=random, dtype=torch.float32, device="cpu"))


def joined(arrays: Iterable[Tensor]) -> Tensor:
    return torch.cat([memory.empty(0), *(array.detach().reshape(-1) for array in arrays)])


def _statistics(module: nn.Module) -> Facts:
    return {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}


def _by_torch(module: nn.Module, x: Tensor, y: Tensor) -> Facts:
    with torch.inference_mode():
        outputs = module.eval()(x.clone())  # a module may write to its input
    with torch.enable_grad():
        loss = nn.functional.cross_entropy(module.train()(x.clone()), y)
        slopes = torch.autograd.grad(loss, list(module.parameters()), materialize_grads=True)
    names = (name for name, _ in module.named_parameters())
    return {"outputs": outputs, **_statistics(module), **dict(zip(names, slopes, strict=True))}


def _by_table(module: nn.Module, table: native.Table, x: Tensor, y: Tensor) -> Facts:
    x, parameters, buffers = x.contiguous(), dict(module.named_parameters()), _statistics(module)
    start, statistics = joined(parameters.values()), joined(buffers.values())
    order = torch.arange(len(x), dtype=torch.int64, device="cpu")
    slopes, outputs = torch.empty_like(start), evaluate(table, start, statistics, x)
    table.train(
        start=start.data_ptr(), buffers=statistics.data_ptr(), x=x.data_ptr(), y=y.data_ptr(), samples=len(x),
        order=(order.data_ptr(), [len(x)]), lr=0.0, momentum=0.0, weight_decay=0.0,
        mu=0.0, gradient=True, out=slopes.data_ptr(),
    )  # fmt: skip
    facts = {"outputs": outputs}
    for arrays, flat in ((buffers, statistics), (parameters, slopes)):
        facts |= dict(zip(arrays, flat.split([array.numel() for array in arrays.values()]), strict=True))
    return facts


def evaluate(table: native.Table, start: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
    """Return the table's outputs in evaluation mode for inputs ``x`` [samples, *shape]. ``start`` is the vector of all
    parameters, and ``statistics`` the vector of all running statistics."""
    x, outputs = x.contiguous(), memory.empty(len(x) * table.outputs).view(len(x), table.outputs)
    table.evaluate(
        start=start.data_ptr(), buffers=statistics.data_ptr(), x=x.data_ptr(), samples=len(x),
        outputs=outputs.data_ptr(),
    )  # fmt: skip
    return outputs
