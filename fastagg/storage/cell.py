"""Attributes of rules and leaves that native code can set together with a model or a leaf's sum."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from fastagg._build import native

T = TypeVar("T")


class SwapCell(Generic[T]):
    """An attribute that native code can set in a commit. It exchanges a pointer, so that no Python code runs then.

    A rule requests the change by ``findings.moves = [(self, "control", control)]``. Other code may assign the attribute
    only while no other thread uses the object."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._place = f"_{name}_cell"  # csrc/bindings/extension.cpp uses the same name

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
