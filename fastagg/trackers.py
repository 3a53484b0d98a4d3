"""Trackers for metrics: a CSV file, or TensorBoard, MLflow and Weights & Biases through their own clients.

A tracker gets one row of numbers at a time, ``log({"accuracy": 0.9}, step=3)``, and is closed at the end. Every
integration and ``fastagg.sim.run`` have an argument ``trackers``. It takes trackers, or plain data such as::

    trackers = {"tensorboard": "runs/fadas", "mlflow": {"experiment": "digits"}, "wandb": {"project": "digits"}}
"""

from __future__ import annotations

import csv
import logging
import numbers
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from fastagg import _checks
from fastagg._types import Foreign
from fastagg.errors import ConfigError, MissingDependency

_log = logging.getLogger("fastagg")


@runtime_checkable
class Tracker(Protocol):
    """The interface of an object that takes rows of metrics."""

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Take one row of metrics: name -> value. ``step``: the number of the model's version."""

    def close(self) -> None:
        """End the tracker. :meth:`log` is not called any more."""


# The argument ``trackers`` of integrations and runs.
AnyTrackers = Tracker | Iterable[Tracker] | Mapping[str, object] | None


class CSV:
    """Writes lines of ``version,metric,value`` to a file. A metric of one client is called ``client/CLIENT/METRIC``.

    Args:
        file: the path of the file. If it exists, lines are appended.
    """

    def __init__(self, file: str) -> None:
        path = Path(file)
        begins = not path.exists()
        self._file = path.open("a", encoding="utf-8", newline="")
        self._lines = csv.writer(self._file, lineterminator="\n")
        if begins:
            self._lines.writerow(("version", "metric", "value"))

    def log(self, row: Mapping[str, float], step: int) -> None:
        self._lines.writerows((step, name, value) for name, value in row.items())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Writes event files for TensorBoard.

    Args:
        folder: the folder of the files.

    Raises:
        MissingDependency: tensorboard is not installed.
    """

    def __init__(self, folder: str) -> None:
        self._writer: Foreign = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter(folder)

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # otherwise a run that is killed would lose rows

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of MLflow.

    Args:
        experiment: the experiment's name. None: MLflow's default experiment.
        uri: the tracking server's URI. None: MLflow's own setting.
        run_name: the name of this run. None: MLflow chooses a name.
        run_id: the id of a run to continue. None: a new run.

    Raises:
        MissingDependency: mlflow is not installed.
    """

    def __init__(
        self, experiment: str | None = None, uri: str | None = None, run_name: str | None = None,
        run_id: str | None = None,
    ) -> None:  # fmt: skip
        self._client: Foreign = _imported("mlflow", "mlflow").MlflowClient(tracking_uri=uri)
        if run_id is None:
            known = self._client.get_experiment_by_name(experiment) if experiment else None
            number = known.experiment_id if known else self._client.create_experiment(experiment) if experiment else "0"
            run_id = self._client.create_run(number, run_name=run_name).info.run_id
        self.run_id: str = run_id

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self._client.log_metric(self.run_id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self.run_id)


class WandB:
    """A run of Weights & Biases. The arguments are those of ``wandb.init``, such as ``project``, ``name`` and ``mode``.

    Raises:
        MissingDependency: wandb is not installed.
    """

    def __init__(self, project: str | None = None, **init: object) -> None:
        self._run: Foreign = _imported("wandb", "wandb").init(project=project, **init)
        # The version is a metric, because W&B's steps may only grow: a version's client metrics may come late.
        self._run.define_metric("version")
        self._run.define_metric("*", step_metric="version")

    def log(self, row: Mapping[str, float], step: int) -> None:
        self._run.log({**row, "version": step})

    def close(self) -> None:
        self._run.finish()


_KNOWN: dict[str, Callable[..., Tracker]] = {"csv": CSV, "tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def made(trackers: AnyTrackers) -> list[Tracker]:
    """Return a list of trackers. ``trackers``: a tracker, several trackers, ``{name: settings}``, or None (no tracker).
    ``settings``: a mapping of the tracker's arguments, or the value of its first argument."""
    if trackers is None:
        return []
    if isinstance(trackers, Tracker):
        return [trackers]
    if isinstance(trackers, Mapping):
        return [_tracker(name, settings) for name, settings in trackers.items()]
    if isinstance(trackers, Iterable) and not isinstance(trackers, str):
        listed = list(trackers)
        if all(isinstance(tracker, Tracker) for tracker in listed):
            return listed
    raise ConfigError(f"trackers: expected trackers, or {{'tensorboard': 'a folder'}} and the like, got {trackers!r}")


def placed(trackers: AnyTrackers, folder: Path) -> AnyTrackers:
    """Return ``trackers``. If they are plain data, make their paths absolute. Relative paths start from ``folder``."""
    if isinstance(trackers, Tracker) or not isinstance(trackers, Mapping):
        return trackers
    names, places = {"csv": "file", "tensorboard": "folder"}, dict(trackers)
    for tracker in names.keys() & places.keys():
        settings, name = places[tracker], names[tracker]
        settings = dict(settings) if isinstance(settings, Mapping) else {name: settings}
        if isinstance(settings.get(name), str):
            settings[name] = str(folder.absolute() / settings[name])
        places[tracker] = settings
    return places


def parse(text: str) -> tuple[str, str]:
    """Parse ``NAME=SETTING`` of the command line. Return the tracker's name, and the value of its first argument."""
    name, equals, setting = text.partition("=")
    if not equals or not setting:
        raise ConfigError(f"--tracker: expected NAME=SETTING, such as tensorboard=runs/a, got {text!r}")
    _checks.one_of("--tracker", name, tuple(_KNOWN))
    return name, setting


def numeric(row: Mapping[str, object]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if isinstance(value, numbers.Real)}


class Trackers:
    """All trackers of a run. If a tracker fails, a warning is logged, and the tracker gets no more rows."""

    def __init__(self, trackers: AnyTrackers) -> None:
        self._alive = made(trackers)

    def log(self, row: Mapping[str, object], step: int) -> None:
        self._each(lambda tracker: tracker.log(numeric(row), step))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())
        self._alive = []

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self._alive):
            try:
                act(tracker)
            except Exception as error:  # an error of a tracker, for example of its network, must not end the run
                self._alive.remove(tracker)
                _log.warning("fastagg: %s: no more metrics go there: %r", type(tracker).__name__, error)


def _tracker(name: str, settings: object) -> Tracker:
    if name not in _KNOWN:
        raise ConfigError("trackers: " + _checks.unknown("tracker", str(name), _KNOWN))
    try:
        return _KNOWN[name](**settings) if isinstance(settings, Mapping) else _KNOWN[name](settings)
    except TypeError as error:
        raise ConfigError(f"trackers: {name}: {error}") from None


def _imported(module: str, package: str) -> Foreign:
    try:
        return import_module(module)
    except ImportError:
        raise MissingDependency(f"{package} is not installed: pip install 'fastagg[{package}]'") from None
