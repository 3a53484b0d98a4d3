"""The folder of a run: config.toml, metrics.csv, summary.json, accuracy.png, checkpoint.pt.

Each file is written beside its place and then renamed into it: a full disk or a kill leaves the old file or
the new one, never half of one.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from fastagg.sim.metrics import Row


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file in ``path``'s folder, then rename it to ``path``."""
    # The suffix stays last: matplotlib chooses the format by it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8", newline="\n")

    replace_file(path, write)


def metrics_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV with a header. Floats are written so that they read back to the same bits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([f.name for f in fields(Row)])
    for row in rows:
        writer.writerow(asdict(row).values())
    return buffer.getvalue()


def summary_json(summary: dict[str, Any]) -> str:
    """Return the summary as JSON; a NaN or infinite loss (a diverged run) becomes null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in summary.items()}
    return json.dumps(finite, indent=2, allow_nan=False) + "\n"
