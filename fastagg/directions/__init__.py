"""Directions: how arriving updates become the vector D that the optimizer steps along."""

from fastagg.directions.active import ActiveSet
from fastagg.directions.all_clients import AllClients, Differences
from fastagg.directions.base import Apply, Arrival, Direction, DirectionState
from fastagg.directions.buffer import Buffer, Cohort
from fastagg.directions.calibrated import Calibrated
from fastagg.directions.cosine import CosineBuffer
from fastagg.directions.echo import DistillationRecord, Echo
from fastagg.directions.single import Mixing, Single

__all__ = [
    "ActiveSet",
    "AllClients",
    "Apply",
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
    "Mixing",
    "Single",
]
