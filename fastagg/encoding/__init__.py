"""Encodes clients' updates, with error feedback."""

from fastagg.encoding.encode import ErrorFeedback, TopK, encode
from fastagg.storage.encoded import Encoded

__all__ = ["Encoded", "ErrorFeedback", "TopK", "encode"]
