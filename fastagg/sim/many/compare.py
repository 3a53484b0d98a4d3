"""Compares several runs: a folder for each, and tables and pictures of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastagg.errors import ConfigError, DataError
from fastagg.sim import engines
from fastagg.sim.many.cells import check_cells, check_folders, file_name, run_cells
from fastagg.sim.many.groups import Group, grouped, judged
from fastagg.sim.one import output
from fastagg.sim.one.result import COMPARISON, Result, begun
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.show import findings, plots, style
from fastagg.sim.show.progress import Watcher


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison: ``groups`` of cells that ran, error messages of ``failed`` cells by name, and what
    the runs showed (None if none ran)."""

    groups: list[Group]
    failed: dict[str, str]
    pictures: list[Path]
    findings: findings.Findings | None

    @property
    def results(self) -> list[Result]:
        return [result for group in self.groups for result in group.results]


def compare(
    cells: Sequence[Cell],
    out: Path,
    watcher: Watcher,
    *,
    title: str = "",
    jobs: int | None = None,
    engine: engines.Name = "here",
    target: float | None = None,
    baseline: str | None = None,
    replace: bool = False,
    picture: str = "png",
    names: Sequence[str] = (),
) -> Comparison:
    """Run ``cells`` into ``out``, in ``jobs`` processes, then write tables and pictures of the cells that ran.

    ``engine`` says where: "here", on this machine (``jobs`` None: in this process); or on "ray" (as many as it has).

    ``names``: the recipes and tables that the cells come from. Tables may state claims (claims.md and a picture).

    ``out`` gets comparison.csv (a line per run), table.md (a line per group of seeds), report.html, and
    pictures in the format ``picture``: target (who reaches the target when, beside a baseline), accuracy, delays, lines
    for a grid over numbers.
    A finished run of the same config in ``out`` is not repeated, unless its data or the user's code has changed. A run
    of another config is replaced with ``replace``, and otherwise is an error.

    Errors before any run: ConfigError if two cells share a folder, ``baseline`` does not exist, or a setting of an
    unfinished cell is wrong; DataError if it has no data folder. DataError if ``out`` cannot be written, or holds
    something else.
    """
    check_folders(cells)
    if baseline is not None and baseline not in {t for c in cells for t in (c.method, c.config.name, c.config.label)}:
        known = ", ".join(dict.fromkeys(cell.method or cell.config.name for cell in cells))
        raise ConfigError(f"no baseline {baseline!r} is compared here, known: {known}")
    output.check_folder(out)
    if (there := begun(out)) not in ("", COMPARISON):
        raise DataError(f"{out} holds {there}, which a comparison would overwrite: --out takes another folder")
    check_cells([cell for cell in cells if not (out / cell.name / "summary.json").exists()])
    outcomes = run_cells(cells, out, jobs, watcher, replace, engine)
    failed = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, str)}
    ran = [(cell, result) for cell in cells if isinstance(result := outcomes.get(cell.name), Result)]
    if not ran:
        return Comparison([], failed, [], None)
    ran = [(cell, result if target is None else result.at(target)) for cell, result in ran]
    groups = grouped(ran)
    claims = judged(names, groups)
    done = [cell.name for cell, _ in ran]
    absent = {cell.name: failed.get(cell.name, "not begun") for cell in cells if cell.name not in done}
    shown = findings.find(groups, claims, baseline, absent)
    with output.writing(out):
        output.write_text(out / "comparison.csv", findings.comparison_csv(ran))
        output.write_text(out / "table.md", "\n".join(sheet.markdown() for sheet in shown.sheets))
        figures = dict(plots.pictures(groups, title, baseline))
        if claims:
            output.write_text(out / "claims.md", findings.claims_table(claims).markdown())
            figures["claims"] = plots.claims(claims, title)
        pictures = {out / f"{file_name(name)}.{picture}": figure for name, figure in figures.items()}
        drawn = {path.stem: style.save(figure, path) for path, figure in pictures.items()}
        output.write_text(out / "report.html", findings.report(groups, shown, drawn, title))
    return Comparison(groups, failed, list(pictures), shown)
