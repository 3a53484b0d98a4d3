"""Ranks on two hosts, which are network namespaces: no memory is shared, and a link can be cut."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.sharded import hosts

OUTSIDE = [*hosts.UNSHARE, "--user", "--map-root-user", "--kill-child"]


def can_make_hosts() -> bool:
    if not all(map(shutil.which, ("unshare", "ip", "mount"))) or not hosts.dist.is_gloo_available():
        return False
    steps = ["sh", "-c", " && ".join(map(shlex.join, (hosts.LINK, hosts.MEMORY)))]
    return subprocess.run([*OUTSIDE, *steps], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not can_make_hosts():
        pytest.skip("network namespaces cannot be made here")
    folder: Path = tmp_path_factory.mktemp("hosts")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (folder / "log").open("w") as log:
        command = [*OUTSIDE, sys.executable, hosts.__file__, "0", str(folder)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            process.wait(timeout=240)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    files = [folder / f"found-{rank}.json" for rank in range(2)]
    assert all(file.exists() for file in files), (folder / "log").read_text()
    return [json.loads(file.read_text()) for file in files]


def test_two_hosts_give_the_bits_of_one_process(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["hosts"] == ["host-0", "host-1"]
    assert seen[0]["same"] and seen[0]["equal"]


def test_memory_is_not_shared_between_hosts(seen: list[dict[str, Any]]) -> None:
    for case in ("shared", "whole"):
        assert seen[0][case].startswith("ConfigError: update: ranks are on several hosts: deliver()")


def test_an_arrival_is_a_few_kilobytes_on_the_wire(seen: list[dict[str, Any]]) -> None:
    """Each host's front end gives its rank its slice, so the update itself is not sent between hosts."""
    assert 0 < seen[0]["traffic"] < seen[0]["wire"] < 8_000 < 4 * hosts.SIZE / 100


def test_a_link_that_comes_back_within_the_timeout_only_delays(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["after a gap"]


def test_a_link_that_is_cut_makes_both_sides_raise(seen: list[dict[str, Any]]) -> None:
    for found in seen:
        said, seconds = found["cut"]
        assert said.startswith("RankLost: ")
        assert seconds < 5 * hosts.TIMEOUT  # on a machine that does much else
    assert seen[0]["again"][0].startswith("RankLost: ")
    assert seen[1]["version"] == (hosts.ARRIVALS + 1) // 2
