"""Reads and writes ``results/``: a JSON file of pytest-benchmark for each processor, without samples. A line is a
benchmark, with its versions and commit. A new line replaces an old line with the same case, candidate, size and
threads."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import checkout  # noqa: F401
from measure import is_peer

BENCH = Path(__file__).resolve().parent
# The beginning of a case's name -> the folders of the code that the case measures. The first that fits counts.
CODE = {
    "simulator": ("csrc", "fastagg/rules", "fastagg/server", "fastagg/sim"),
    "server": ("csrc", "fastagg/integrations", "fastagg/rules", "fastagg/server"),
    "arrival": ("csrc", "fastagg/ops", "fastagg/rules", "fastagg/server"),
    "": ("csrc", "fastagg/ops"),
}


class Row(NamedTuple):
    """A benchmark. ``ratio``: its time divided by fastagg's in the same round, as (p20, median, p80)."""

    case: str
    candidate: str
    size: int
    threads: int
    median: float
    ratio: tuple[float, float, float] | None
    info: dict[str, Any]

    @property
    def processor(self) -> str:
        return self.info["processor"]

    @property
    def lost(self) -> bool:
        """Whether this is a peer that is faster than fastagg, after rounding to two decimals."""
        return is_peer(self.candidate) and self.ratio is not None and round(self.ratio[1], 2) < 1

    @property
    def old(self) -> bool:
        """Whether the measured code has changed since the row's commit. Also True if git cannot tell."""
        return _changed(self.info["commit"], next(code for name, code in CODE.items() if self.case.startswith(name)))


@cache
def _changed(commit: str, code: tuple[str, ...]) -> bool:
    command = ["git", "-C", str(BENCH), "rev-list", "-1", f"{commit}..HEAD", "--", *(f":/{path}" for path in code)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return True
    return done.returncode != 0 or bool(done.stdout)


def parse(text: str, name: str, committed: bool = True) -> list[dict[str, Any]]:
    """Return the benchmarks of a JSON file, each with the processor, versions, commit and date of its run.

    Args:
        text: the file's text.
        name: the file's name, for messages.
        committed: whether to refuse results of a tree with uncommitted changes.

    Raises:
        ValueError: the file has another form, or is of a tree with uncommitted changes.
    """
    try:
        run = json.loads(text)
        about, commit = run["machine_info"], run["commit_info"]
        if committed and (commit.get("dirty") or not re.fullmatch(r"[0-9a-f]{7,40}", str(commit["id"]))):
            raise ValueError("measured in a tree that is no commit's: commit first")
        stamp = {"processor": about["processor"], "versions": about["versions"], "commit": str(commit["id"])[:7]}
        found = []
        for one in run["benchmarks"]:
            stats = {key: _short(value) for key, value in one["stats"].items() if key != "data"}
            kept = {key: one[key] for key in ("group", "name", "fullname", "params", "param")}
            info = _short({**stamp, "date": run["datetime"][:10], **one["extra_info"]})
            found.append({**kept, "extra_info": info, "options": {}, "stats": stats})
        return found
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{name}: no results that can be kept ({type(error).__name__}: {error})") from error


def rows(benchmarks: Iterable[dict[str, Any]]) -> list[Row]:
    """Return a row for each benchmark."""
    return [
        Row(*(one["extra_info"][key] for key in ("case", "candidate", "size", "threads")), one["stats"]["median"],
            one["extra_info"].get("ratio"), one["extra_info"])
        for one in benchmarks
    ]  # fmt: skip


def load(folder: Path = BENCH / "results") -> list[Row]:
    """Return all rows of a folder."""
    return rows(one for path in sorted(folder.glob("*.json")) for one in parse(path.read_text(), str(path)))


def add(path: Path, folder: Path) -> None:
    """Add a run's benchmarks to the files of their processors."""
    new = parse(path.read_text(), str(path))
    if not new:
        return
    place = folder / f"{re.sub('[^a-z0-9]+', '-', new[0]['extra_info']['processor'].lower()).strip('-')}.json"
    old = parse(place.read_text(), str(place)) if place.exists() else []
    kept = {one["fullname"]: one for one in [*old, *new]}
    lines = ",\n".join(json.dumps(kept[name]) for name in sorted(kept))
    run = {key: value for key, value in json.loads(path.read_text()).items() if key != "benchmarks"}
    run["machine_info"] = {key: run["machine_info"][key] for key in ("processor", "versions")}
    place.write_text(f'{{{json.dumps(run)[1:-1]}, "benchmarks": [\n{lines}\n]}}\n')


def _short(value: Any) -> Any:
    """Return ``value`` with all its numbers rounded to four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list) else value
