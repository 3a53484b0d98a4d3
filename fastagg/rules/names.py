"""Types of the words that settings accept. Type checkers and the checks at run time both read these types."""

from typing import Literal, TypedDict

# Settings of the parts. Each comment names the settings that accept the words, of these classes and their subclasses.
Kind = Literal["delta", "gradient"]  # the kind of updates: Direction.kind
# The format of a client's row: AllClients.cache, Calibrated.cache, Echo.cache.
Cache = Literal["fp32", "bf16", "int8", "int4"]
Warmup = Literal["full", "partial"]  # AllClients.warmup, Differences.warmup
Mode = Literal["incremental", "direct"]  # AllClients.mode
Freshness = Literal["dispatch", "gradient"]  # ActiveSet.freshness
Overflow = Literal["take", "close"]  # Buffer.overflow
Repeat = Literal["start", "latest"]  # Calibrated.repeat
Moments = Literal["fp32", "8bit"]  # `moments` of Momentum, Nesterov, Adam and Adagrad
Rule = Literal["scaled", "reciprocal", "threshold", "lipschitz", "drop"]  # DelayAdaptive.rule


class DecaySettings(TypedDict, total=False):
    """The settings that all of the package's optimizers have. Presets pass these settings on."""

    weight_decay: float
    decoupled_weight_decay: bool


class SecondSettings(DecaySettings, total=False):
    """The settings that the optimizers with a second moment have. Presets pass these settings on."""

    eps_root: float
    initial: float


# Settings of the presets alone. Each comment names the preset.
DelayRule = Literal["scaled", "reciprocal"]  # FADAS, whose paper has these two rules
Stale = Literal["lipschitz", "drop", "scaled"]  # DelayAdaptiveASGD
Policy = Literal["constant", "hinge", "polynomial"]  # FedAsync
AceMode = Literal["incremental", "direct", "client"]  # ACE

# Settings of the server.
Weighting = Literal["uniform", "samples", "tokens"]
Buffers = Literal["mean", "weighted", "latest", "keep"]
ByName = Literal["mean", "weighted", "max", "keep", "first"]  # `buffers` of the buffers whose names match a pattern
ModelDtype = Literal["bf16"]
