from fastagg.integrations.appfl import Aggregator, SyncAggregator

__all__ = ["Aggregator", "SyncAggregator"]
