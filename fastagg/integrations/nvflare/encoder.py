"""A filter that encodes FLARE's task results in fewer bytes. FLARE's clients call the filter."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fastagg import _keywords
from fastagg._types import Arrays
from fastagg.errors import ConfigError
from fastagg.integrations.encoding import encoded, format_of
from fastagg.integrations.nvflare.traffic import PREFIX

KINDS = {DataKind.WEIGHTS: "model", DataKind.WEIGHT_DIFF: "difference"}


class Encoder(DXOFilter):
    """Encodes clients' updates for :class:`Aggregator` and :class:`AsyncController`.

    ``job.to_clients(Encoder("int8"), tasks=["train"], filter_type=FilterType.TASK_RESULT)``. Add this filter after
    the other filters. The part of an update that a biased format leaves out is added to the client's next update. This
    part is lost when the client's process ends. A model with running statistics is refused: FLARE reports the task as
    failed, and the client's log says why.

    Args:
        format: as in :func:`fastagg.encode`, or ``topk``.
        share, values: for ``topk``, as in :class:`fastagg.TopK`.

    Raises:
        ConfigError: a setting is out of range.
    """

    @_keywords.checked
    def __init__(self, format: str = "int8", share: float = 0.01, values: str = "bf16") -> None:
        super().__init__(list(KINDS), None)
        self.format, self.share, self.values = format, share, values
        self._format, self._feedback = format_of(format, share=share, values=values)
        self._sent: Mapping[str, Arrays] = {}
        self._count = 0

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Remember the model of a task. FLARE no longer has the model when the task's result is filtered."""
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            task = fl_ctx.get_prop(FLContextKey.TASK_DATA)
            self._sent = from_shareable(task).data if isinstance(task, Shareable) and "DXO" in task else {}

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """Return the encoded update in place of a model or a difference.

        Raises:
            FastaggError: the model or the difference cannot be encoded.
        """
        if not self._sent:
            raise ConfigError("Encoder: the task had no model, from which a difference could be taken")
        kind = dxo.meta.get(f"{PREFIX}kind", KINDS[dxo.data_kind])
        seed = crc32(f"{fl_ctx.get_identity_name()} {self._count}".encode())
        update = encoded(dxo.data, kind, self._sent, self._format, seed=seed, feedback=self._feedback)
        self._sent, self._count = {}, self._count + 1
        return DXO(DataKind.WEIGHT_DIFF, update.arrays(), {**dxo.meta, f"{PREFIX}kind": "encoded"})
