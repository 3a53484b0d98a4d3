"""The base of a recipe's sections, which are frozen and refuse unknown keys; and ``data``, one class per data set.

Every field except ``name`` is a keyword of the data set's ``load``; build.py passes them on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from fastagg._types import Plain


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


class DataSection(Section):
    """``clients``: how many there are."""

    name: str
    clients: PositiveInt = 50

    @property
    def shown(self) -> str:
        """The name as a recipe has it."""
        return getattr(self, "call", self.name)

    @property
    def counted(self) -> str:
        """The number of clients, in words."""
        given = f"the {self.clients} clients of the data that was passed"
        return given if self.name == "given" else f"data.clients, {self.clients}"


class Digits(DataSection):
    """scikit-learn's digits: Dirichlet(``alpha``) over labels, ``min_samples`` a client, ``test_share`` for tests."""

    name: Literal["digits"]
    alpha: PositiveFloat = 0.3
    min_samples: PositiveInt = 2
    test_share: float = Field(0.2, gt=0, lt=1)


class Synthetic(DataSection):
    """Synthetic(alpha, beta), one generated distribution per client."""

    name: Literal["synthetic"]
    clients: PositiveInt = 30
    alpha: float = Field(1.0, ge=0)
    beta: float = Field(1.0, ge=0)


class Function(DataSection):
    """Your own federation: ``call`` is "module:function". The function is called with clients, seed, dir (if there is
    one) and ``keywords``, and returns a FederatedData. In a recipe: name = "module:function", and other keys are
    ``keywords``, too."""

    name: Literal["function"]
    call: str
    dir: str | None = None
    keywords: Plain = Field(default={})


class PassedData(DataSection):
    """The data that a program passes as ``fastagg.sim.run(config, data=...)``."""

    name: Literal["given"]


AnyData = Annotated[
    Digits | Synthetic | Function | PassedData,
    Field(discriminator="name"),
]


def by_name(kinds: object) -> dict[str, Any]:
    """Return the sections of a union, by the one name that each may have."""
    union, _ = get_args(kinds)
    return {get_args(kind.model_fields["name"].annotation)[0]: kind for kind in get_args(union)}


def named_function(values: object, fields: Iterable[str]) -> object:
    """Convert a section's name "module:function" to name "function" with the key ``call``. Keys that are none of the
    section's ``fields`` become arguments of the function."""
    if not isinstance(values, dict):
        return values
    name = values.get("name")
    if isinstance(name, str) and ":" in name:
        values = {**values, "name": "function", "call": name}
    given = values.get("keywords", {})
    if values.get("name") != "function" or not isinstance(given, dict):
        return values
    kept = {key: value for key, value in values.items() if key in fields}
    return {**kept, "keywords": {**given, **{key: value for key, value in values.items() if key not in fields}}}
