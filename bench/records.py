"""A measured row, and the append-only files that rows are kept in. Needs nothing but Python: any machine reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Row:
    """One candidate's figures at one size: a line of the report, an entry of the JSON.

    Attributes:
        size: d, parameters.
        bytes: counted per parameter, by the table in README.md.
        seconds: p20, p50, p80 per call (or per arrival).
        samples: seconds per call, in the order measured.
        gbps: counted bytes per second at the median, in 1e9.
        of_roofline: that, as a fraction of the better of copy and triad in the same run.
        of_in_place: that, as a fraction of the best in-place pass in the same run.
        of_reading: that, as a fraction of the best pass that only reads, for operations that write nothing.
        slower: its time over fastagg's, taken round by round: p20, p50, p80.
        others: largest share of all cores' time that other processes took in a round that was kept.
        discarded: rounds thrown away because it was more.
        threads: of fastagg and of torch; 0 in old files, which say it once for the machine.
        clients: of the server, where that matters.
        per_client: bytes per parameter that the server keeps for each client, measured.
        skipped: why there are no figures, or "".
    """

    operation: str
    candidate: str
    size: int
    bytes: float
    note: str = ""
    seconds: tuple[float, float, float] | None = None
    samples: tuple[float, ...] = ()
    gbps: float | None = None
    of_roofline: float | None = None
    of_in_place: float | None = None
    of_reading: float | None = None
    slower: tuple[float, float, float] | None = None
    others: float | None = None
    discarded: int = 0
    threads: int = 0
    clients: int = 0
    per_client: float | None = None
    skipped: str = ""

    def data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Record:
    """One file of results: what was run, on what, and what came out."""

    command: str
    machine: dict[str, Any]
    rows: tuple[Row, ...]
    path: Path


def load(path: Path) -> Record:
    """Read a file of :func:`save`, or pytest-benchmark's JSON of this suite.

    Raises:
        ValueError: it is neither.
    """
    try:
        data = json.loads(path.read_text())
        if "benchmarks" in data:
            entries = [b["extra_info"] for b in data["benchmarks"] if "candidate" in b["extra_info"]]
            machine = entries[0]["machine"] if entries else {}
            return Record(f"pytest bench/ --benchmark-json {path.name}", machine, _rows(entries, machine), path)
        return Record(data["command"], data["machine"], _rows(data["rows"], data["machine"]), path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: no results of this suite ({type(error).__name__}: {error})") from error


def save(rows: Sequence[Row], machine: dict[str, Any], command: str, folder: Path = RESULTS) -> Path:
    """Write everything to a new file named by date, commit and device; results are never overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "-".join(_slug(str(machine[key])) for key in ("date", "commit", "device"))
    text = json.dumps(
        {"format": 2, "command": command, "machine": machine, "rows": [row.data() for row in rows]}, indent=1
    )
    for attempt in range(1, 1000):
        path = folder / f"{stem}{'' if attempt == 1 else f'-{attempt}'}.json"
        try:
            with path.open("x") as file:
                file.write(text + "\n")
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{folder / stem}: a thousand results already")


def _rows(entries: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]) -> tuple[Row, ...]:
    known = {field.name for field in fields(Row)}
    return tuple(
        Row(
            **{
                "threads": machine["threads"],
                **{key: tuple(v) if isinstance(v, list) else v for key, v in entry.items() if key in known},
            }
        )
        for entry in entries
    )


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", text.replace("+00:00", "Z")).strip("_")
