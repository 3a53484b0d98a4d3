"""Converts a model to one flat vector and back."""

from fastagg.model.layout import Entry, Layout, ModelState, Parsed, Part, Taken, dense

__all__ = ["Entry", "Layout", "ModelState", "Parsed", "Part", "Taken", "dense"]
