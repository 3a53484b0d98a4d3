"""Directions combine arriving updates into the vector D, along which the optimizer steps. Servers call directions."""

from fastagg.rules.directions.all_clients import ActiveSet, AllClients, Differences
from fastagg.rules.directions.base import Arrival as Arrival
from fastagg.rules.directions.base import Direction
from fastagg.rules.directions.base import DirectionState as DirectionState
from fastagg.rules.directions.base import Material as Material
from fastagg.rules.directions.buffer import Buffer, Cohort
from fastagg.rules.directions.buffer import RoundSettings as RoundSettings
from fastagg.rules.directions.calibrated import Calibrated
from fastagg.rules.directions.cosine import CosineBuffer
from fastagg.rules.directions.echo import DistillationRecord as DistillationRecord
from fastagg.rules.directions.echo import Echo
from fastagg.rules.directions.robust import Robust
from fastagg.rules.directions.single import Aligned, Mixing, Single

__all__ = [  # the public classes; the server uses the others, too
    "ActiveSet",
    "Aligned",
    "AllClients",
    "Buffer",
    "Calibrated",
    "Cohort",
    "CosineBuffer",
    "Differences",
    "Direction",
    "Echo",
    "Mixing",
    "Robust",
    "Single",
]
