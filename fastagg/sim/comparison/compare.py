"""Runs the cells of a comparison, and writes its tables and pictures. :func:`fastagg.sim.compare` calls ``compare``."""

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
        groups: the groups of cells with a result. The cells of a group differ only in their seed.
        failed: the error message of each failed cell, by the cell's name.
        pictures: the paths of the pictures' files.
        findings: the tables and conclusions. None if no cell has a result.
        title, baseline: the arguments of :func:`compare`.
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
        """Return the table of results for LaTeX with booktabs. With several settings, each setting has a column.
        ``caption`` replaces the table's caption. Empty: the table's own. ``label``: LaTeX's label. Empty: no label.

        Raises:
            RunFailed: no run has a result.
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
        """Return a picture as a matplotlib figure.

        Args:
            name: "accuracy", "target", "delays" or "lines". If a picture would have more than six lines, each part of
                the grid has its own pictures "accuracy,SETTING" and "delays,SETTING" instead.
            at: values by grid key, such as {"client.lr": 0.1}. Only the runs with these values are drawn. If at most
                six lines are left, the picture's name is "accuracy" again. None: all runs are drawn.
            width: the width in inches, such as 3.3 for a column of a paper. With a width there is no heading, because a
                paper has a caption. None: the width of the picture in the folder.
            font_size: the size of text in points. None: 9 points.
            over: the only x axis of "accuracy": "time", "version" or "uploads". If the runs' encodings differ, also
                "bytes_up" or "bytes_down". None: all of these x axes.

        Raises:
            ConfigError: there is no such picture of these runs. The message lists the pictures that exist.
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
    """Run ``cells`` in folders of ``out``, in ``jobs`` processes. Write tables and pictures of the cells with a result.

    ``jobs`` None or 1 means this process. ``target``: the accuracy for the times and numbers of uploads to the target.
    None: each run's own target. ``baseline``: the name of a method, or of a recipe, with which the others are compared.
    None: every pair of methods is compared. If a run has a result, ``out`` gets comparison.csv with a line per run,
    table.md with a line per method and setting, report.html with the ``title``, and pictures in the format ``picture``.

    A finished run in ``out`` is only read. An unfinished run continues. A run with other data or other code of the user
    begins anew. A cell whose folder has a run of another config fails, unless ``replace`` is true and deletes that run.

    ConfigError: ``baseline`` is not compared here, ``target`` is not an accuracy, or an unfinished cell has an invalid
    setting. DataError: an unfinished cell's data folder is missing, or ``out`` cannot be written or has other files.
    Only errors of writing are raised after the first run has begun.
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
