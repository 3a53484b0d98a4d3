"""Converts a model to one flat vector and back."""

from fastagg.layout.model import Entry, Layout, ModelState, Parsed, Piece, Taken, dense

__all__ = ["Entry", "Layout", "ModelState", "Parsed", "Piece", "Taken", "dense"]
