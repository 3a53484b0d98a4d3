"""The base class of all sections of a recipe, and the classes of the section ``data``, one for each data set.

Sections are frozen. Sections other than an OpenSection refuse unknown keys. Every field of Digits except ``name`` is a
keyword of digits.load. The other fields of DataFunction, and all further keys, are keywords of the user's function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, PositiveFloat, PositiveInt, Tag, model_validator

from fastagg._types import Plain
from fastagg.sim.functions import is_function

Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, values: object) -> object:
        """Leave out a key with the value "none" if its default is None. TOML has no null, so "none" stands for None."""
        if not isinstance(values, dict):
            return values
        optional = {name for name, field in cls.model_fields.items() if field.default is None}
        return {key: value for key, value in values.items() if not (value == "none" and key in optional)}


class OpenSection(Section):
    """A section whose ``name`` may be a user's function: "module:function", or "given" for a function that a program
    passes. Other keys are arguments of the function. "none" stands for Python's None."""

    model_config = ConfigDict(extra="allow")

    @property
    def keywords(self) -> Plain:
        return {key: None if value == "none" else value for key, value in (self.model_extra or {}).items()}


def tag_of(kind: type[Section]) -> str:
    """Return the ``name`` that a section of this class has. If a class allows several names, return the first. For a
    user's function, return "module:function"."""
    return (*get_args(kind.model_fields["name"].annotation), "module:function")[0]


def one_of(*kinds: type[Section], default: str | None = None) -> Any:
    """Return the type of a section whose ``name`` selects one of the classes ``kinds``. A section with an unknown name
    is of the class that the name ``default`` selects. None: an unknown name is an error."""
    tags = [tag_of(kind) for kind in kinds]

    def tag(values: object) -> object:
        name = values.get("name") if isinstance(values, Mapping) else getattr(values, "name", None)
        if isinstance(name, str) and is_function(name):
            return "module:function"
        return name if name in tags or default is None else default

    tagged = tuple(Annotated[kind, Tag(tag_of(kind))] for kind in kinds)
    return Annotated[Union[tagged], Discriminator(tag)]  # noqa: UP007  # `|` cannot join a tuple of types


def kinds_of(annotation: object) -> list[type[Section]]:
    """Return the sections' classes that a field of this type may have. The list is empty if the field is no section."""
    kinds = [(*get_args(part), part)[0] for part in (get_args(annotation) or (annotation,))]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]


class DataSection(Section):
    """The data of a run. ``clients``: the number of clients."""

    name: str
    clients: PositiveInt = 50


class Digits(DataSection):
    """scikit-learn's handwritten digits, divided by Dirichlet(``alpha``) over labels. ``min_samples``: the least number
    of samples of a client. ``test_share``: the share of the samples that are the test set."""

    name: Literal["digits"]
    alpha: PositiveFloat = 0.3
    min_samples: PositiveInt = 2
    test_share: float = Field(0.2, gt=0, lt=1)


class DataFunction(DataSection, OpenSection):
    """Your own data. ``name`` is "module:function". This function takes ``clients``, ``seed``, ``dir`` (if the section
    has it) and the section's other keys. It returns a FederatedData. ``dir``: the folder of the data's files. The name
    "given" stands for a function or a FederatedData that is passed to run()."""

    dir: str | None = None


if TYPE_CHECKING:
    AnyData = Digits | DataFunction
else:
    AnyData = one_of(Digits, DataFunction)
