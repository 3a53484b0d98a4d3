"""Adapters for NVIDIA FLARE: an aggregator for its FedAvg recipe, and a controller for asynchronous training.

Models are sent as ``FLModel``. In asynchronous training, ``current_round`` is the version that a client trains from.
Replies are whole models (``ParamsType.FULL``) or differences (``ParamsType.DIFF``), in NumPy or torch.

Raises:
    MissingDependency: nvflare is not installed, or too old.
"""

from fastagg.integrations import require

require("nvflare", "2.9.0", "nvflare")

from fastagg.integrations.nvflare.aggregator import Aggregator  # noqa: E402
from fastagg.integrations.nvflare.asynchronous import AsyncController  # noqa: E402
from fastagg.integrations.nvflare.encoder import Encoder  # noqa: E402
from fastagg.integrations.nvflare.traffic import Traffic  # noqa: E402

__all__ = ["Aggregator", "AsyncController", "Encoder", "Traffic"]
