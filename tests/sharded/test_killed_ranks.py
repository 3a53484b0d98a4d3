"""Any rank of a sharded server with a folder may be killed: the others end at once, and nothing acknowledged is lost.

``FASTAGG_KILLS=1000 pytest tests/sharded/test_killed_ranks.py`` kills as many, in turn with each of the rules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sharded import killed_ranks

import fastagg

KILLS = int(os.environ.get("FASTAGG_KILLS", "6"))
NAMES = ("AsyncFedED", "ACED, int4", "FADAS, corrected", "ACE, int8", "CA2FL, int4", "FedAC", "FedAvg, deterministic")
USED = NAMES if KILLS > 100 else NAMES[:1]


@pytest.mark.skipif(not killed_ranks.dist.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("name", USED)
def test_nothing_acknowledged_is_lost_with_any_rank(name: str, tmp_path: Path) -> None:
    each = -(-KILLS // len(USED))
    command = [sys.executable, str(Path(killed_ranks.__file__)), name, str(tmp_path), str(each), str(each)]
    paths = os.pathsep.join(filter(None, [str(Path(fastagg.__file__).parents[1]), *sys.path]))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120 + 20 * each, check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["kills"] == each and found["acknowledged"] > each
    assert (
        found["noticed"] < killed_ranks.TIMEOUT / 4
    )  # nobody waited for a message: 0.3 s, until all processes had ended
