"""Names for data whose types a type checker cannot know. Such data is checked where it is read."""

from __future__ import annotations

from typing import Any, Literal

# What state_dict returns and load_state_dict takes: plain data and tensors by name, which checkpoint.py can write.
State = dict[str, Any]
# Plain data as TOML and JSON hold it: a recipe or a section of one, keywords of a function, a summary.
Plain = dict[str, Any]
# A model, an update, or an array of one. It has the form of the caller's ``params``, which no annotation can name.
Arrays = Any
# Dicts, lists and tuples in each other, with plain data and tensors in them: a state, or a part of one.
Tree = Any
# An object of a library without types of its own, which is imported only where it is there.
Foreign = Any
# An object of the compiled extension of which _native.pyi says no more: the engine, the log and what they hand out.
Native = Any
# What a commit exchanges: an object, its attribute (storage/cell.py), the value; or int64 numbers, an index, a number.
Move = tuple[object, str | int, object]
# What clients send, and the values of its top-k (csrc/math/wire.h; fastagg/encoding checks them).
Format = Literal["int8", "int4", "int8-tensor", "sign", "bf16"]
Values = Literal["fp32", "bf16", "int8", "int2"]
