"""What an algorithm is made of: a direction, an optimizer and a staleness policy."""

from fastagg import registry
from fastagg.rules import directions, euclidean, optimizers, staleness

registry.add_kind("direction", directions.Direction)
registry.add_kind("optimizer", optimizers.Optimizer)
registry.add_kind("staleness", staleness.Staleness)

for _part in (
    directions.ActiveSet,
    directions.AllClients,
    directions.Buffer,
    directions.Calibrated,
    directions.Cohort,
    directions.CosineBuffer,
    directions.Differences,
    directions.Echo,
    directions.Mixing,
    directions.Single,
    optimizers.AMSGrad,
    optimizers.Adagrad,
    optimizers.Adam,
    optimizers.Lookahead,
    optimizers.Momentum,
    optimizers.SGD,
    optimizers.Yogi,
    staleness.Constant,
    staleness.DelayAdaptive,
    staleness.Hinge,
    staleness.Polynomial,
    euclidean.Euclidean,
):
    registry.register(_part)
