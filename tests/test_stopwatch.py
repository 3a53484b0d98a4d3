"""The stopwatch."""

import pytest

from fastagg import timing
from fastagg.sim.one.metrics import ACTIVITIES


def test_the_stopwatch_splits_all_of_the_time():
    watch = timing.Stopwatch(ACTIVITIES)
    with watch.timing("training"):
        pass
    with pytest.raises(KeyError), watch.timing("sleeping"):
        pass
    split = watch.split()
    assert set(split) == {"training", "server", "evaluation", "setup", "other", "total"}
    assert split["training"] > 0 == split["server"]
    parts = (split[key] for key in ("training", "server", "evaluation", "setup", "other"))
    assert sum(parts) == pytest.approx(split["total"])
