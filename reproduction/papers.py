"""Puts a paper's numbers and claims beside what a comparison of its table gave.

    fastagg compare fadas-table2 --seeds 3 --data-dir DATA --out FOLDER
    python reproduction/papers.py fadas-table2 FOLDER

It reads FOLDER/comparison.csv, and of the table's file ``[paper.values]`` and ``[[claims]]``. Runs with the same seed
are pairs. A claim is "shown" if Student's interval of 95% of their differences is on the claimed side of zero,
"reversed" if it is on the other side, and a "tie" if it contains zero.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sheet import Sheet
from fastagg.sim.comparison.groups import LEVEL, Difference, holm, paired, scores
from fastagg.sim.recipes import tables
from fastagg.sim.show.findings import scale

Runs = Mapping[str, Mapping[int, Plain]]  # what comparison.csv says of each run, by its name and seed


@dataclass(frozen=True)
class Verdict:
    """What runs say of a claim. ``difference``: better minus worse; where less is better, worse minus better."""

    text: str
    difference: Difference

    @property
    def word(self) -> str:
        mean, p = self.difference.mean, self.difference.p
        if p is None:
            return "one seed"
        return "tie" if p > LEVEL else "shown" if mean > 0 else "reversed"


def runs(folder: Path) -> Runs:
    """Read the comparison in a folder."""
    known: dict[str, dict[int, Plain]] = {}
    with (folder / "comparison.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            known.setdefault(line["name"], {})[int(line["seed"])] = {key: number(cell) for key, cell in line.items()}
    return known


def number(cell: str) -> Any:
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell


def claims(name: str) -> list[Plain]:
    """Return the claims of a table, each with its sides as (method, setting). ConfigError if one is not in it."""
    sides = {(cell.method, cell.setting) for cell in tables.load(name).cells}
    stated = []
    for claim in tables.read(name).claims:
        both = {side: (*claim[side], "")[:2] for side in ("better", "worse")}  # "" is the only setting
        for side in both.values():
            if side not in sides:
                what = f"the claim {claim['text']!r} is about {', '.join(side)}, which is not in the table"
                raise ConfigError(f"{name}: {what}")
        stated.append({"measure": tables.ACCURACY, "less": False, **claim, **both})
    return stated


def judge(name: str, known: Runs) -> list[Verdict]:
    """Return what ``known`` runs say of the claims of a table, of those that they are enough for."""
    names = {(cell.method, cell.setting): cell.config.name for cell in tables.load(name).cells}
    verdicts = []
    for claim in claims(name):
        sides = [known.get(names[claim[side]], {}) for side in ("better", "worse")]
        both = scores(sides[::-1] if claim["less"] else sides, claim["measure"], scale(claim["measure"]))
        if both[0].keys() & both[1].keys():
            verdicts.append(Verdict(claim["text"], paired(*both)))
    return verdicts


def claims_table(verdicts: list[Verdict]) -> Sheet:
    """Return a line per claim."""
    rows = [[v.text, str(v.difference), str(len(v.difference.pairs)), v.word] for v in verdicts]
    tested = [verdict for verdict in verdicts if verdict.difference.p is not None]
    together = zip(tested, holm([verdict.difference.p or 0.0 for verdict in tested]), strict=True)
    lost = [f'"{verdict.text}"' for verdict, p in together if verdict.word != "tie" and p > LEVEL]
    caption = f"Each verdict is a paired t-test at {LEVEL:.0%} of this claim alone."
    if len(tested) > 1:
        caption += f" With Holm's correction for {len(tested)} claims {'; '.join(lost) or 'none'} would become a tie."
    return Sheet("Claims", ["claim", "difference, 95% interval", "seeds", "verdict"], rows, caption)


def beside(name: str, known: Runs) -> Sheet:
    """Return methods by settings: the mean here, and the paper's number in brackets."""
    file, cells = tables.read(name), tables.load(name).cells
    measure, settings = file.paper.measure, list(dict.fromkeys(cell.setting for cell in cells))
    rows = {cell.method: dict.fromkeys(settings, "–") for cell in cells}
    for cell in cells:
        values = [run[measure] for run in known.get(cell.config.name, {}).values() if run[measure] is not None]
        here = f"{scale(measure) * sum(values) / len(values):.1f}" if values else "–"
        printed = "±".join(f"{value:.1f}" for value in file.paper.values.get(cell.method, {}).get(cell.setting, ()))
        rows[cell.method][cell.setting] = here + (f" ({printed})" if printed else "")
    lines = [[method, *own.values()] for method, own in rows.items()]
    caption = f"{measure}: the mean here, the paper's number in brackets."
    return Sheet("Beside the paper", ["method", *settings], lines, caption)


def main(name: str, folder: str) -> None:
    known = runs(Path(folder))
    print(beside(name, known).markdown())
    if verdicts := judge(name, known):
        print(claims_table(verdicts).markdown())


if __name__ == "__main__":
    main(*sys.argv[1:])
