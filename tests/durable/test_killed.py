"""After kill -9 at random moments no acknowledged update is lost or counted twice, and every state is a valid one."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.killed import ARRIVALS, states

import fastagg

HERE = Path(__file__).parent
NAMES = ("FADAS, corrected", "ACE, int8", "ACE, bf16", "ACED, int4", "CA2FL, int4", "FedAsync, polynomial")


def kill(name: str, times: int, folder: Path, seed: int) -> tuple[int, int]:
    """Start and kill a server so often. Kills, and acknowledgements that were seen."""
    rng, marks = random.Random(seed), folder / "marks"
    marks.write_text(json.dumps(states(name)))
    paths = os.pathsep.join([str(HERE.parent), str(HERE), str(Path(fastagg.__file__).parents[1])])
    acknowledged = seen = life = 0
    with subprocess.Popen(
        [sys.executable, "-P", str(HERE.parent / "support/killed.py"), name, str(marks)],
        stdout=subprocess.PIPE, stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths}, cwd="/",
    ) as breeder:  # fmt: skip
        assert breeder.stdout is not None and breeder.stdin is not None
        for _ in range(times):
            breeder.stdin.write(f"{folder / f'state {life}'}\n".encode())
            breeder.stdin.flush()
            process, until = 0, rng.randint(0, 25)
            for line in breeder.stdout:
                word, *number = line.split()
                if word == b"pid":
                    process = int(number[0])
                elif word == b"ended":
                    assert number == [b"-9"], "it ended by itself"
                    break
                elif word == b"found":
                    found = int(number[0])
                    assert found in (acknowledged, acknowledged + 1), (name, seed, found, acknowledged)
                    acknowledged = found
                elif word != b"done":
                    acknowledged, seen = int(word), seen + 1
                if until == 0 or word == b"done":
                    os.kill(process, signal.SIGKILL)
                until -= 1
            if acknowledged == ARRIVALS:  # all is done: a fresh folder
                life, acknowledged = life + 1, 0
        breeder.stdin.close()
    return times, seen


@pytest.mark.parametrize("name", NAMES)
def test_no_acknowledged_update_is_lost_or_counted_twice(name: str, tmp_path: Path) -> None:
    assert kill(name, 10, tmp_path, 1)[0] == 10
