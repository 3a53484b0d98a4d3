"""The section ``delay`` of a recipe: how long clients take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fastagg.sim.section import Section


class TimedDelay(Section):
    """Settings of every delay in virtual time: see delays.PerStep, delays.Transmission, delays.Suspension.

    ``steps``: the number of local steps that the times are for. A dispatch of K steps takes K / steps as long. With
    ``counting`` "authors" the model is sent only when the buffer is flushed, as in the FADAS authors' program, and not
    at each arrival. With ``start`` "before", as in that program, all clients but the last that then get a version train
    from the one before it, and what they send is still the difference to the one that they got.
    """

    steps: PositiveInt | None = None
    counting: Literal["arrival", "authors"] = "arrival"
    start: Literal["sent", "before"] = "sent"
    speed: PositiveFloat | None = None  # bytes downloaded per unit of virtual time; None: a download takes no time
    up: PositiveFloat | None = None  # the same for uploads
    jitter: float = Field(0.1, ge=0)  # standard deviation of the transmission factor
    suspension: float = Field(0.0, ge=0, lt=1)  # the probability that a client hangs


class ThreeClassDelay(TimedDelay):
    """FADAS Table 1: table "large" (worst-case) or "mild"; see delays.ThreeClass."""

    name: Literal["three-class"]
    table: Literal["large", "mild"] = "large"
    gamma: PositiveFloat = 1.0
    counts: list[Annotated[int, Field(ge=0)]] | None = None  # of small, medium and large clients, instead of a draw

    @model_validator(mode="after")
    def _three_counts(self) -> ThreeClassDelay:
        if self.counts is not None and len(self.counts) != 3:
            raise ValueError(f"counts are of small, medium and large clients, three numbers, got {self.counts}")
        return self


class SizeTiedDelay(TimedDelay):
    """FedEcho Table 1: clients with many samples are slow, at most a tenth very slow; see delays.SizeTied."""

    name: Literal["size-tied"]
    table: Literal["large", "mild"] = "large"
    gamma: float = Field(0.0, ge=0)


class ExponentialDelay(TimedDelay):
    """``spread``: deviation of the logarithm of the clients' means. ``mean``: the mean of the clients' means."""

    name: Literal["exponential"]
    mean: PositiveFloat = 5.0
    spread: float = Field(0.0, ge=0)


class MeasuredDelay(TimedDelay):
    """What tasks of a real federation took, from a CSV ``file``; see measured.Measured."""

    name: Literal["measured"]
    file: str
    order: Literal["drawn", "recorded"] = "drawn"


class VersionDelay(Section):
    """Updates trained on x_{t-tau}: tau uniform in 0..tau_max, exponential of ``mean``, or replayed from a file."""

    name: Literal["version"]
    tau_max: int | None = Field(None, ge=0)
    mean: PositiveFloat | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> VersionDelay:
        if [self.tau_max, self.mean, self.file].count(None) != 2:
            raise ValueError("give tau_max, mean or file, one of the three")
        return self


AnyDelay = Annotated[
    ThreeClassDelay | SizeTiedDelay | ExponentialDelay | MeasuredDelay | VersionDelay, Field(discriminator="name")
]
