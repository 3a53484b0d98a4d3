"""Several runs beside each other: a folder each, one table, one plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from fastagg.errors import ConfigError, DataError
from fastagg.sim import output, plots, report
from fastagg.sim.config import Config
from fastagg.sim.progress import ProgressBar
from fastagg.sim.run import Result, run


def compare(
    configs: Sequence[Config], out: Path, title: str = "", finished: Callable[[Result], None] | None = None
) -> list[Result]:
    """Run all ``configs``, each into ``out``/NAME, then write ``out``/comparison.csv and ``out``/accuracy.png.

    Returns the results in order; after ctrl-C those so far, the last one interrupted. ConfigError when two
    configs share a name; DataError when ``out`` cannot be written. ``finished`` is called after each run.
    """
    names = [config.name for config in configs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"the recipe {', '.join(sorted(twice))} is given more than once")
    results: list[Result] = []
    for config in _told_apart(configs):
        with ProgressBar(config.label or config.name) as bar:
            results.append(run(config, out / config.name, bar))
        if finished:
            finished(results[-1])
        if results[-1].summary["interrupted"]:
            break
    try:
        output.write_text(out / "comparison.csv", report.comparison_csv(results))
        plots.accuracy_over_time(results, out / "accuracy.png", title)
    except OSError as error:
        raise DataError(f"cannot write results to {out}: {error}") from error
    return results


def _told_apart(configs: Sequence[Config]) -> list[Config]:
    """Label by name those whose labels would be the same in the table and the plot."""
    labels = Counter(config.label for config in configs)
    return [c.model_copy(update={"label": c.name}) if labels[c.label] > 1 else c for c in configs]
