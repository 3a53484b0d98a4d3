"""Full volumes of real file systems, on loop devices: a server goes on, whichever block was the last."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import filling

import fastagg
from fastagg.durable import doctor

SIZES = {"ext4": 24, "xfs": 300, "btrfs": 110, "tmpfs": 24}  # MiB; the least that mkfs makes, or about
STEPS = [*range(60), *range(61, 330, 9)]  # blocks of 1 KiB on such an ext4, else of 4

pytestmark = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a file system")


@contextlib.contextmanager
def volume(kind: str, folder: Path) -> Iterator[Path]:
    """Mount a new file system, which users may write to."""
    image, place, options = folder / "image", folder / "volume", ["-o", "loop"]
    place.mkdir()
    if kind == "tmpfs":
        options = ["-t", kind, "-o", f"size={SIZES[kind]}m"]
    elif shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not here")
    else:
        with image.open("wb") as file:
            file.truncate(SIZES[kind] << 20)
        subprocess.run([f"mkfs.{kind}", image], check=True, capture_output=True)
    done = subprocess.run(["mount", *options, image, place], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mounting {kind} is not allowed here: {done.stderr.strip()}")
    try:
        place.chmod(0o777)
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(kind: str, way: str, blocks: list[int], folder: Path) -> None:
    with volume(kind, folder) as place:
        done = subprocess.run(
            [sys.executable, "-P", filling.__file__, place, way, *map(str, blocks)], cwd="/",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{done.stdout[-500:]}"


@pytest.mark.parametrize(("kind", "way", "blocks"), [("ext4", "log", [0, 7, 58]), ("tmpfs", "uploads", [3])])
def test_a_server_goes_on_when_a_volume_is_full(kind: str, way: str, blocks: list[int], tmp_path: Path) -> None:
    fill(kind, way, blocks, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["log", "uploads"])
@pytest.mark.parametrize("kind", SIZES)
def test_a_server_goes_on_at_every_number_of_free_blocks(kind: str, way: str, tmp_path: Path) -> None:
    fill(kind, way, STEPS[:: 1 if way == "log" else 3], tmp_path)  # an upload takes seconds there


def test_the_doctor_says_what_must_be_freed(tmp_path: Path) -> None:
    """Somebody has removed what was kept, and taken its place."""
    with volume("ext4", tmp_path) as place:
        with fastagg.open(place / "state", lambda: fastagg.ASGD(torch.zeros(100_000), lr=1.0)) as server:
            server.checkpoint()
        for path in [*place.glob("state/reserve-*/*"), *place.glob("state/room-*")]:
            path.unlink()
        (place / "filler").touch()
        filling.fill(place, 4)
        (problem,) = doctor.examine(place / "state")["problems"]
        free = int(problem.split("free ")[1].split(" bytes")[0].replace(",", ""))
        assert 1_200_000 < free < 1_300_000, "a model, and two updates"
