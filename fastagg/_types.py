"""Names for types that a type checker cannot know, for all modules. The modules check such data when they read it."""

from __future__ import annotations

from typing import Any, Literal

# The result of state_dict and the argument of load_state_dict: plain data and tensors by name.
State = dict[str, Any]
# Plain data as TOML and JSON hold it: a recipe or one of its sections, keywords of a function, a summary.
Plain = dict[str, Any]
# A model, an update, or one of its arrays. It has the form of the caller's ``params``, which no annotation can name.
Arrays = Any
# Nested dicts, lists and tuples with plain data and tensors: a state, or a part of one.
Tree = Any
# An object of a library without types, or of an optional library.
Foreign = Any
# An object of the compiled extension whose class is not in _native.pyi: the engine, the log and their results.
Native = Any
# An assignment in a commit: (object, name of a SwapCell of its class, value), or (int64 array, index, number).
Move = tuple[object, str | int, object]
# The formats of encoded updates, and of the values in a top-k update (csrc/math/wire.h). fastagg/encoding checks them.
Format = Literal["int8", "int4", "int8-tensor", "sign", "bf16"]
Values = Literal["fp32", "bf16", "int8", "int2"]
