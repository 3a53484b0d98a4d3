"""Converts a model to one flat vector and back."""

from fastagg.model.layout import Entry, Layout, ModelState, ParsedUpdate, Part, SavedModel, dense

__all__ = ["Entry", "Layout", "ModelState", "ParsedUpdate", "Part", "SavedModel", "dense"]
