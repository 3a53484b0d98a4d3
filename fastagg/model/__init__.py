"""Converts a model to one flat vector and back."""

from fastagg.model.layout import Entry, Layout, ModelState, Parsed, Taken, dense

__all__ = ["Entry", "Layout", "ModelState", "Parsed", "Taken", "dense"]
