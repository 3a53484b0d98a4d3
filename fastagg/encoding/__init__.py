"""Encodes clients' updates in fewer bytes, with error feedback for biased formats. Clients and adapters call this."""

from fastagg.encoding.encode import ErrorFeedback, TopK, encode
from fastagg.storage.encoded import Encoded

__all__ = ["Encoded", "ErrorFeedback", "TopK", "encode"]
