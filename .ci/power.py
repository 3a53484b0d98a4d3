"""Long runs of tests/serving/test_power.py and test_killed.py, which take seconds as tests.

python .ci/power.py power 100000    power is lost this often
python .ci/power.py kill 10000      kill -9 this often
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "serving")]


def main(what: str, count: int) -> None:
    """Run one of them, and report the progress after every part."""
    from test_killed import NAMES, kill
    from test_power import crashes

    begun, done, seed, states, seen = time.monotonic(), 0, 100, 0, 0
    while done < count:
        name, seed = NAMES[seed % len(NAMES)], seed + 1
        if what == "power":
            part = min(250, count - done)
            states += crashes(name, seed, part)
        else:
            part = min(100, count - done)
            with tempfile.TemporaryDirectory() as folder:
                seen += kill(name, part, Path(folder), seed)[1]
        done += part
        told = f"{states} states" if what == "power" else f"{seen} acknowledgements"
        print(f"{what}: {done} of {count}, {told}, {time.monotonic() - begun:.0f} s, all as promised", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
