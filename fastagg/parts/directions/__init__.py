"""Directions: how arriving updates become the vector D that the optimizer steps along."""

from fastagg.parts.directions.active import ActiveSet
from fastagg.parts.directions.all_clients import AllClients, Differences
from fastagg.parts.directions.base import Arrival, Direction, DirectionState, Material
from fastagg.parts.directions.buffer import Buffer, Cohort
from fastagg.parts.directions.calibrated import Calibrated
from fastagg.parts.directions.cosine import CosineBuffer
from fastagg.parts.directions.echo import DistillationRecord, Echo
from fastagg.parts.directions.single import Mixing, Single

__all__ = [
    "ActiveSet",
    "AllClients",
    "Arrival",
    "Buffer",
    "Calibrated",
    "Cohort",
    "CosineBuffer",
    "Differences",
    "Direction",
    "DirectionState",
    "DistillationRecord",
    "Echo",
    "Material",
    "Mixing",
    "Single",
]
