"""A mod for Flower's clients that encodes updates in fewer bytes. Flower's ClientApp calls the mod for each message."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from fastagg._types import Format
from fastagg.encoding import TopK
from fastagg.errors import FastaggError, ShapeMismatch
from fastagg.integrations.encoding import encoded, format_of
from fastagg.integrations.flower.records import read, write
from fastagg.integrations.flower.tasks import CONTROL, EXTRA, of_kind

KIND = "fastagg-kind"
KEPT = "fastagg-encoding"  # the key of this mod's ConfigRecords. The residual's key is this key with "-residual".
METRICS = "fitres.metrics"  # the key of the ConfigRecord that Flower's older API passes to strategies as metrics


class EncodingMod:
    """Encodes the update of every train reply, for :class:`SyncStrategy`, :class:`AsyncStrategy` and
    :class:`ClassicStrategy`: ``ClientApp(mods=[EncodingMod("int8")])``. List this mod before all mods that read a
    reply's arrays, such as clipping mods. Flower passes a reply to the listed mods from the last to the first.

    The part of an update that a biased format leaves out is stored in the context's state, and added to the next
    update. A reply that cannot be encoded (a model with running statistics, NaN) is replaced by an error. The
    server logs this error.

    Args:
        format: as in :func:`fastagg.encode`.

    Raises:
        ConfigError: there is no such format.
    """

    def __init__(self, format: Format | TopK = "int8") -> None:
        self.format, _ = format_of(format)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        sent = message.content
        reply = call_next(message, context)
        if reply.has_error() or message.metadata.message_type.split(".")[0] != "train":
            return reply
        try:
            self._encode(sent, reply.content, context)
        except FastaggError as error:
            why = f"EncodingMod: {type(error).__name__}: {error}"
            return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=why), reply_to=message)
        return reply

    def _encode(self, sent: RecordDict, reply: RecordDict, context: Context) -> None:
        notes, key = of_kind(reply, ConfigRecord), _model(reply)
        stated = next((name for name, note in notes.items() if KIND in note), METRICS)
        kind = str(notes.get(stated, {}).get(KIND, "model"))
        count = of_kind(context.state, ConfigRecord).get(KEPT, ConfigRecord({"count": 0}))
        seed = (context.node_id + int(count["count"])) % 2**64
        _, feedback = format_of(self.format)
        if feedback is not None and f"{KEPT}-residual" in context.state:
            residual = read(context.state[f"{KEPT}-residual"])["residual"]
            feedback.load_state_dict({"residual": residual.clone(), "decay": 1.0, "count": 0})
        arrays = read(of_kind(reply, ArrayRecord)[key])
        update = encoded(arrays, kind, read(sent[_model(sent)]), self.format, seed=seed, feedback=feedback)
        reply[key] = write(update.arrays())
        reply[stated if stated in notes else KEPT] = ConfigRecord({**notes.get(stated, {}), KIND: "encoded"})
        context.state[KEPT] = ConfigRecord({"count": int(count["count"]) + 1})
        if feedback is not None and feedback.residual is not None:
            context.state[f"{KEPT}-residual"] = write({"residual": feedback.residual})


def _model(records: RecordDict) -> str:
    """Return the key of the only ArrayRecord that is a model or an update."""
    keys = [key for key in of_kind(records, ArrayRecord) if key not in (CONTROL, EXTRA)]
    if len(keys) != 1:
        raise ShapeMismatch(f"expected one ArrayRecord, got {sorted(keys)}")
    return keys[0]
