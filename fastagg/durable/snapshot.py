"""A checkpoint that is written while the server goes on.

With the lock held the version is kept by reference, as it never changes; moments and sums are copied, O(d); the rows
of a client cache are not. Then all that is written, and the rows one by one. A row that changes before it is written is
copied first (csrc/store/row_cut.h).
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
    """A server's state at one moment. It is made with the lock held, and needs :meth:`close` at the end.

    Args:
        alone: nobody has the server yet, so nothing is copied.

    Attributes:
        state: plain data and tensors; those of rows are missing.
    """

    def __init__(self, parts: ServerParts, running: Runtime, alone: bool = False) -> None:
        self.running = running
        state = engine.whole(parts, running, rows=False)
        state["flat"] = running.engine.flat  # the next step does not write over this version
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
        """Let the server change its rows without copies again."""
        if self.rows is not None:
            with self.running.engine.locked:
                self.running.engine.cut_rows(None)

    def write(
        self, disk: Disk, folder: str, more: Plain, slack: int, last: Callable[[], Plain], going_on: Callable[[], None]
    ) -> int:
        """Write it to a folder, over what is there, and return its bytes.

        Args:
            more: what the manifest says besides.
            slack: bytes that its files have besides, if there is room.
            last: returns more of it. It is called when all else is written.
            going_on: called now and then. What it raises ends the writing.
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
