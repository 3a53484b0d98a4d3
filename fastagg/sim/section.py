"""The base of every section of a recipe: a frozen pydantic model that refuses unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, values: object) -> object:
        """TOML has no null: "none" leaves a key out if that is its default."""
        if not isinstance(values, dict):
            return values
        optional = {name for name, field in cls.model_fields.items() if field.default is None}
        return {key: value for key, value in values.items() if not (value == "none" and key in optional)}
