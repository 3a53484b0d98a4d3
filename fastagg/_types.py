"""Names for data whose types a type checker cannot know. Such data is checked where it is read."""

from __future__ import annotations

from typing import Any, Literal

# What state_dict returns and load_state_dict takes: plain data and tensors by name, which checkpoint.py writes.
State = dict[str, Any]
# Plain data as TOML and JSON hold it: a recipe or one of its sections, keywords of a function, a summary.
Plain = dict[str, Any]
# A model, an update, or one of its arrays. It has the form of the caller's ``params``, which no annotation can name.
Arrays = Any
# Nested dicts, lists and tuples with plain data and tensors: a state, or a part of one.
Tree = Any
# An object of a library that has no types, and that is imported only where it is needed.
Foreign = Any
# An object of the compiled extension whose class is not in _native.pyi: the engine, the log and what they return.
Native = Any
# An exchange in a commit: object, attribute (storage/cell.py) and value, or int64 numbers, index and number.
Move = tuple[object, str | int, object]
# Formats of clients' updates, and of a top-k's values (csrc/math/wire.h). fastagg/encoding checks them.
Format = Literal["int8", "int4", "int8-tensor", "sign", "bf16"]
Values = Literal["fp32", "bf16", "int8", "int2"]
