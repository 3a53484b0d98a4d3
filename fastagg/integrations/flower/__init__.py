"""Flower strategies that use a :class:`fastagg.Server` for state and arithmetic, and a mod for Flower's clients.

:class:`SyncStrategy` and :class:`AsyncStrategy` are for Flower's current API (``flwr.serverapp.strategy``).
:class:`ClassicStrategy` is for Flower's older API (``flwr.server.strategy``). Users import this package.

Raises:
    MissingDependency: flwr is not installed, or too old.
"""

from fastagg.integrations import require

require("flwr", "1.41", "flower")

from fastagg.integrations.flower.asynchronous import AsyncStrategy  # noqa: E402
from fastagg.integrations.flower.classic import ClassicStrategy  # noqa: E402
from fastagg.integrations.flower.mod import EncodingMod  # noqa: E402
from fastagg.integrations.flower.records import read, write  # noqa: E402
from fastagg.integrations.flower.settings import adam_rate  # noqa: E402
from fastagg.integrations.flower.synchronous import SyncStrategy  # noqa: E402

__all__ = ["AsyncStrategy", "ClassicStrategy", "EncodingMod", "SyncStrategy", "adam_rate", "read", "write"]
