"""Writes a checkpoint while the server keeps running. Only durable/keeper.py uses it.

A snapshot is made with the server's lock held. The vector of the model's version is shared, because it never changes.
Moments and sums are copied, which takes O(d). The files are written without the lock. Rows of a client cache are read
only then. If a step is to change a row before that, the engine first copies the row (csrc/store/row_cut.h).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fastagg._build import native
from fastagg._types import Native, Plain
from fastagg.durable import trees
from fastagg.durable.disk import Disk
from fastagg.server import checkpoint, engine
from fastagg.server.engine import Runtime, ServerParts

_ROWS = "direction.cache.data", "direction.cache.scales"


class Snapshot:
    """A server's state at one moment. The caller makes it with the server's lock held, and calls :meth:`close` later.

    Args:
        alone: whether no other thread can use the server yet. If True, moments and sums are shared, not copied.

    Attributes:
        state: the state as plain data and tensors, with placeholders for the tensors of a client cache.
    """

    def __init__(self, parts: ServerParts, running: Runtime, alone: bool = False) -> None:
        self.running = running
        state = engine.whole(parts, running, rows=False)
        state["flat"] = running.engine.flat  # with this reference, later steps do not reuse the vector's memory
        for part in () if alone else ("moments", "direction"):
            state[part] = checkpoint.cloned(state[part])
        self.state = state
        self.cache: Native = getattr(running.extension.state, "cache", None)
        self.rows: Native = None
        if self.cache is None:
            return
        cache = state["direction"]["cache"]
        self.rows = native.engine.RowCut(
            self.cache.native, slots=list(cache["slots"]), memory=running.memory, owner=self.cache
        )
        cache |= {"data": trees.SeparateTensor(_ROWS[0]), "scales": trees.SeparateTensor(_ROWS[1])}
        running.engine.cut_rows(self.rows)

    def close(self) -> None:
        """End the snapshot. From now on the engine changes rows without copying them first."""
        if self.rows is not None:
            with self.running.engine.locked:
                self.running.engine.cut_rows(None)

    def write(
        self, disk: Disk, folder: str, more: Plain, slack: int, last: Callable[[], Plain], going_on: Callable[[], None]
    ) -> int:
        """Write the checkpoint's two files to a folder, over existing files. Return the number of bytes of both.

        Args:
            more, slack: as in :class:`fastagg.durable.trees.Writer`.
            last: a function that returns the last keys of the manifest. It is called when all tensors are written.
            going_on: a function that is called before each tensor and row. If it raises an error, this method ends.
        """
        tensors: dict[str, Tensor] = {}
        tree = trees.flatten(self.state, tensors)
        shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        parts: dict[str, int] = {}
        if self.cache is not None:
            row_bytes, row_scales, count = self.cache.row_bytes, self.cache.row_scales, self.rows.count
            shapes[_ROWS[0]] = self.cache.data.dtype, (count, row_bytes)
            shapes[_ROWS[1]] = self.cache.scales.dtype, (count, row_scales)
            parts = {_ROWS[0]: row_bytes, _ROWS[1]: 4 * row_scales or 1}
        writer = trees.Writer(disk, folder, shapes, parts, tree, more, slack)
        try:
            for name, tensor in tensors.items():
                going_on()
                writer.whole(name, tensor.detach().cpu().contiguous())
            while self.rows is not None:
                going_on()
                with self.running.engine.locked:
                    row = self.rows.next()
                if row is None:
                    break
                place, data, scales = row
                writer.part(_ROWS[0], place, data)
                if scales:
                    writer.part(_ROWS[1], place, scales)
            writer.finish(last())
        finally:
            writer.close()
        return sum(writer.sizes)
