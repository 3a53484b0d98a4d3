"""Directions: how arriving updates become the vector D that the optimizer steps along."""

from fastagg.rules.directions.active import ActiveSet
from fastagg.rules.directions.all_clients import AllClients, Differences
from fastagg.rules.directions.base import Arrival, Direction, DirectionState, Material
from fastagg.rules.directions.buffer import Buffer, Cohort
from fastagg.rules.directions.calibrated import Calibrated
from fastagg.rules.directions.cosine import CosineBuffer
from fastagg.rules.directions.echo import DistillationRecord, Echo
from fastagg.rules.directions.single import Mixing, Single

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
