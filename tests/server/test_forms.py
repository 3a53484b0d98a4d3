"""Updates by name and in order: what the engine reads by itself has the same bits as what Python reads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import inside
from torch import Tensor

import fastagg
from fastagg import errors

SHAPES = {"scalar": (), "weight": (7, 3), "bias": (7,), "deep": (2, 1, 5)}
Arrays = dict[str, Tensor]


def arrays(seed: int) -> Arrays:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=g) for name, shape in SHAPES.items()}


def server() -> fastagg.Server:
    made = fastagg.FADAS(arrays(0), lr=0.1, buffer_size=2)
    made.dispatch(0)
    return made


def strided(given: Tensor) -> Tensor:
    """The same numbers, not one after the other."""
    return torch.stack([given, given], dim=-1)[..., 0]


def as_is(given: Arrays) -> Any:
    return given


FORMS: dict[str, tuple[Callable[[Arrays], Any], bool]] = {  # made of an update; whether the engine reads it by itself
    "dict": (as_is, True),
    "OrderedDict": (OrderedDict, True),
    "another order": (lambda u: dict(reversed(u.items())), True),
    "list": (lambda u: list(u.values()), True),
    "tuple": (lambda u: tuple(u.values()), True),
    "NumPy": (lambda u: {k: v.numpy() for k, v in u.items()}, True),
    "both": (lambda u: [v.numpy() if i % 2 else v for i, v in enumerate(u.values())], True),
    "read-only": (lambda u: {k: np.frombuffer(v.numpy().tobytes(), np.float32).reshape(v.shape) for k, v in u.items()},
                  True),
    "flat": (lambda u: torch.cat([v.reshape(-1) for v in u.values()]), True),
    "flat NumPy": (lambda u: torch.cat([v.reshape(-1) for v in u.values()]).numpy(), True),
    "strided": (lambda u: {k: strided(v) for k, v in u.items()}, False),
    "strided NumPy": (lambda u: {k: strided(v).numpy() for k, v in u.items()}, False),
    "requires grad": (lambda u: {k: v.clone().requires_grad_() for k, v in u.items()}, True),
    "parameters": (lambda u: {k: torch.nn.Parameter(v) for k, v in u.items()}, True),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_bits(form: str) -> None:
    make, by_itself = FORMS[form]
    update = arrays(1)
    plain, other = server(), server()
    plain.receive(0, {name: strided(value) for name, value in update.items()})
    taken = inside.engine(other).receive(0, make(update), *[None] * 5)
    assert (taken is not None) == by_itself
    if taken is None:
        other.receive(0, make(update))
    states = [one.state_dict() for one in (plain, other)]
    assert torch.equal(states[0]["direction"]["acc"], states[1]["direction"]["acc"])
    assert states[0]["direction"]["acc"].any()


def lacking(u: Arrays) -> Any:
    return {k: v for k, v in u.items() if k != "bias"}


BAD: dict[str, tuple[Callable[[Arrays], Any], type[errors.FastaggError]]] = {
    "a name too few": (lacking, errors.ShapeMismatch),
    "a name too many": (lambda u: {**u, "more": torch.zeros(1)}, errors.ShapeMismatch),
    "another name": (lambda u: {**lacking(u), "base": u["bias"]}, errors.ShapeMismatch),
    "an array too few": (lambda u: list(u.values())[:3], errors.ShapeMismatch),
    "another shape": (lambda u: {**u, "weight": u["weight"].T.contiguous()}, errors.ShapeMismatch),
    "one dimension less": (lambda u: {**u, "weight": u["weight"].reshape(21)}, errors.ShapeMismatch),
    "integers": (lambda u: {**u, "bias": torch.ones(7, dtype=torch.int32)}, errors.DTypeMismatch),
    "integers of NumPy": (lambda u: {**u, "bias": np.ones(7, np.int32)}, errors.DTypeMismatch),
    "no array": (lambda u: {**u, "bias": None}, errors.DTypeMismatch),
    "NaN in one": (lambda u: {**u, "bias": torch.full((7,), float("nan"))}, errors.NonFiniteUpdate),
    "infinity in NumPy's": (lambda u: {**u, "bias": np.full(7, np.inf, np.float32)}, errors.NonFiniteUpdate),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_named_and_changes_nothing(what: str) -> None:
    make, kind = BAD[what]
    held, untouched = server(), server()
    with pytest.raises(kind):
        held.receive(0, make(arrays(1)))
    held.receive(0, arrays(2))
    untouched.receive(0, arrays(2))
    assert torch.equal(held.state_dict()["direction"]["acc"], untouched.state_dict()["direction"]["acc"])


def test_a_storage_that_was_cut_short_is_not_read() -> None:
    update = arrays(1)
    update["weight"].untyped_storage().resize_(8)
    with pytest.raises(errors.FastaggError):
        server().receive(0, update)


def test_names_whose_comparison_changes_the_update() -> None:
    """A name that runs Python while the engine looks for the next array."""
    update: dict[Any, Any] = dict(arrays(1))

    class Name(str):
        def __eq__(self, other: object) -> bool:
            update.clear()
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    update[Name("weight")] = update.pop("weight")
    with pytest.raises(errors.ShapeMismatch):
        server().receive(0, update)


def test_a_model_in_place_of_a_difference_is_still_noticed() -> None:
    held = server()
    with pytest.warns(UserWarning, match="nearly the model"):
        held.receive(0, {name: value * 1.01 for name, value in held.parameters().items()})
