"""The layouts of models, which convert a model to one flat vector and back, and the parts of models."""

from fastagg.model.layout import Entry, Layout, ModelState, ParsedUpdate, Part, SavedModel, dense

__all__ = ["Entry", "Layout", "ModelState", "ParsedUpdate", "Part", "SavedModel", "dense"]
