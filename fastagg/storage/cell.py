"""Attributes that change together with the model."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from fastagg._build import native

T = TypeVar("T")


class SwapCell(Generic[T]):
    """An attribute whose value the engine exchanges in a commit, as a pointer: it calls no code of Python's.

    A rule names it in its moves: ``findings.moves = [(self, "control", control)]``. Who assigns it otherwise is alone
    with the object.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._place = f"_{name}_cell"  # csrc/bindings/extension.cpp looks there

    @overload
    def __get__(self, instance: None, owner: type) -> SwapCell[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else instance.__dict__[self._place].value

    def __set__(self, instance: Any, value: T) -> None:
        cell = instance.__dict__.get(self._place)
        if cell is None:
            cell = instance.__dict__[self._place] = native.engine.Cell()
        cell.value = value
