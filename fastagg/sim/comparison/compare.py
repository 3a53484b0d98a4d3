"""Compares several runs: a folder for each, and tables and pictures of all."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from fastagg import _checks, drawing
from fastagg.errors import ConfigError, DataError, RunFailed
from fastagg.sim.comparison.cells import check_cells, file_name, run_cells
from fastagg.sim.comparison.groups import Group, grouped
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs import output
from fastagg.sim.runs.result import COMPARISON, Result, begun, checked_target
from fastagg.sim.show import findings, plots, series
from fastagg.sim.show.progress import Watcher

_log = logging.getLogger("fastagg")


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison.

    Attributes:
        groups: of the cells that ran, those that differ only in their seed.
        failed: error messages by the cells' names.
        pictures: the files of pictures.
        findings: what the runs showed; None if none ran.
        title, baseline: as they were given.
    """

    groups: list[Group]
    failed: dict[str, str]
    pictures: list[Path]
    findings: findings.Conclusions | None
    title: str = ""
    baseline: str | None = None

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(group.label for group in self.groups)}>"

    @property
    def results(self) -> list[Result]:
        return [result for group in self.groups for result in group.results]

    def to_latex(self, caption: str = "", label: str = "") -> str:
        """Return the table of results, methods by settings if there are several, for LaTeX with booktabs.

        Raises:
            RunFailed: no run ended.
        """
        if self.findings is None:
            raise RunFailed("no run ended, there is nothing to put into a table: " + "; ".join(self.failed.values()))
        return self.findings.sheets[0].latex(caption, label)

    def figure(
        self,
        name: str = "accuracy",
        *,
        width: float | None = None,
        font_size: float | None = None,
        over: str | None = None,
        at: Mapping[str, object] | None = None,
    ) -> Figure:
        """Return a picture as a matplotlib figure: "accuracy", "target", "delays" or "lines".

        Args:
            name: which. A comparison of many lines has one "accuracy,SETTING" and "delays,SETTING" for each setting.
            at: of a grid or a table the part with these values by key, such as {"client.lr": 0.1}; its picture of many
                lines is "accuracy" again.
            width: in inches, such as 3.3, a column of a paper. None: that of the picture in the folder. With a width
                there is no heading, which a paper has as a caption.
            font_size: in points.
            over: of "accuracy": one axis alone, "time", "version" or "uploads"; "bytes_up" where formats differ.

        Raises:
            ConfigError: there is no such picture of these runs; the message has those that there are.
        """
        fields = [] if over is None else [_checks.one_of("over", over, tuple(series.x_axes(self.groups)))]
        part = {key: str(value) for key, value in (at or {}).items()}
        groups = [
            group for group in self.groups if part.items() <= {key: str(value) for key, value in group.choice}.items()
        ]
        drawn = dict(plots.pictures(groups, self.title, self.baseline, fields, width)) if groups else {}
        _checks.one_of("figure", name, tuple(drawn))
        return drawing.sized(drawn[name], width, font_size)


def compare(
    cells: Sequence[Cell],
    out: Path,
    watcher: Watcher,
    *,
    title: str = "",
    jobs: int | None = None,
    target: float | None = None,
    baseline: str | None = None,
    replace: bool = False,
    picture: str = "png",
) -> Comparison:
    """Run ``cells`` into ``out``, in ``jobs`` processes (None: in this one). Write tables and pictures of what ran.

    ``out`` gets comparison.csv (a line per run), table.md (a line per group of seeds), report.html, and
    pictures in the format ``picture``: target (who reaches the target when, beside a baseline), accuracy, delays, lines
    for a grid over numbers.
    A finished run of the same config in ``out`` is not repeated, unless its data or the user's code has changed. A run
    of another config is replaced with ``replace``, and otherwise is an error.

    Errors before any run: ConfigError if ``baseline`` does not exist, or a setting of an unfinished cell, or
    ``target``, is wrong; DataError if it has no data folder. DataError if ``out`` is not writable,
    or holds something else.
    """
    if target is not None:
        checked_target(target)
    if baseline is not None and baseline not in {t for c in cells for t in (c.method, c.config.name, c.config.label)}:
        known = ", ".join(dict.fromkeys(cell.method or cell.config.name for cell in cells))
        raise ConfigError(f"no baseline {baseline!r} is compared here, known: {known}")
    output.check_folder(out)
    if (there := begun(out)) not in ("", COMPARISON):
        raise DataError(f"{out} holds {there}, which a comparison would overwrite: --out takes another folder")
    check_cells([cell for cell in cells if not (out / cell.name / "summary.json").exists()])
    watcher.begun(len(cells))
    outcomes = run_cells(cells, out, jobs, watcher, replace)
    failed = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, str)}
    ran = [(cell, result) for cell in cells if isinstance(result := outcomes.get(cell.name), Result)]
    done = {cell.name for cell, _ in ran}
    absent = {cell.name: failed.get(cell.name, "not begun") for cell in cells if cell.name not in done}
    if absent:
        what = "; ".join(f"{name} ({why})" for name, why in absent.items())
        _log.warning("%s: %d of %d runs are in no table: %s", out, len(absent), len(cells), what)
    if not ran:
        return Comparison([], failed, [], None)
    every = max(result.updates_between_tests for _, result in ran)
    ran = [(cell, result.at(target, every)) for cell, result in ran]
    results = {cell.name: result for cell, result in ran}
    every_group = grouped([(cell, results.get(cell.name)) for cell in cells])
    groups, lost = ([group for group in every_group if bool(group.results) is any_ran] for any_ran in (True, False))
    shown = findings.find(groups, baseline, absent, lost)
    with output.writing(out):
        output.write_text(out / "comparison.csv", findings.comparison_csv(ran))
        output.write_text(out / "table.md", "\n".join(sheet.markdown() for sheet in shown.sheets))
        figures = dict(plots.pictures(groups, title, baseline))
        pictures = {out / f"{file_name(name)}.{picture}": figure for name, figure in figures.items()}
        drawn = {path.stem: drawing.save(figure, path) for path, figure in pictures.items()}
        output.write_text(out / "report.html", findings.report(groups, shown, drawn, title))
    return Comparison(groups, failed, list(pictures), shown, title, baseline)
