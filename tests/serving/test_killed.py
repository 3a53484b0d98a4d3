"""kill -9 at random moments: no acknowledged update is lost or counted twice, and no state is neither."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from killed import ARRIVALS, states

import fastagg

HERE = Path(__file__).parent
NAMES = ("FADAS, corrected", "ACE, int8", "CA2FL, int4", "FedAsync, polynomial")


def kill(name: str, times: int, folder: Path, seed: int) -> tuple[int, int]:
    """Start and kill a server until it was killed so often. Kills, and acknowledgements that were seen."""
    rng, marks = random.Random(seed), folder / "marks"
    marks.write_text(json.dumps(states(name)))
    command = [sys.executable, "-P", str(HERE / "killed.py"), str(folder / "state 0"), name, str(marks)]
    package = str(Path(fastagg.__file__).parents[1])
    paths = os.pathsep.join([str(HERE.parent), str(HERE), package])
    acknowledged = seen = life = 0
    for _ in range(times):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}, cwd="/"
        ) as process:
            assert process.stdout is not None
            until = rng.randint(0, 25)
            for line in process.stdout:
                if line.startswith(b"found"):
                    found = int(line.split()[1])
                    assert found in (acknowledged, acknowledged + 1), (name, seed, found, acknowledged)
                    acknowledged = found
                elif line == b"done\n":
                    break
                else:
                    acknowledged, seen = int(line), seen + 1
                if until == 0:
                    break
                until -= 1
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()
            numbers = [int(word) for word in rest if word.isdigit()]
            acknowledged, seen = max([acknowledged, *numbers]), seen + len(numbers)
            assert not [word for word in rest if not word.isdigit() and word not in (b"found", b"done")]
        assert process.returncode == -signal.SIGKILL
        if acknowledged == ARRIVALS:  # all is done: a fresh folder
            life, acknowledged = life + 1, 0
            command[3] = str(folder / f"state {life}")
    return times, seen


@pytest.mark.parametrize("name", NAMES)
def test_no_acknowledged_update_is_lost_or_counted_twice(name: str, tmp_path: Path) -> None:
    assert kill(name, 2, tmp_path, 1)[0] == 2
