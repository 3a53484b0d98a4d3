"""Makes and checks a run for an adapter: its rule, files, limits and goals. Only adapters call this module.

- Wrong settings are refused when the adapter is made. The error uses the framework's names of the settings.
- Relative paths are relative to the app's folder. Before a client trains, paths are logged and checked to be writable.
- A checkpoint of another app, rule or model is refused. The log says if a run is finished already.
- If no reply, failure or evaluation comes for a minute, the log says what the run waits for.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch

from fastagg import _checks, _keywords, registry, trackers
from fastagg._checks import Count, NotNegative
from fastagg._types import Arrays, Plain, State
from fastagg.errors import CheckpointError, ConfigError, FastaggError
from fastagg.integrations import preset, resolved
from fastagg.integrations.evaluation import Metrics
from fastagg.integrations.goals import Settings
from fastagg.integrations.models import resume
from fastagg.integrations.session import Session
from fastagg.server import checkpoint as files
from fastagg.server.server import Server

MINUTE = 60.0  # seconds. If nothing comes for so long, the log says what the run waits for.
CountOrZero = Annotated[int, _checks.SettingRule(least=0)]
Share = Annotated[float, _checks.SettingRule(least=0, most=1)]

# The allowed values of adapters' own limits, by the name that a framework uses.
LIMITS: Mapping[str, Any] = {
    **dict.fromkeys(("versions", "save_every", "checkpoint_every", "at_once"), Count),
    **dict.fromkeys(("concurrency", "evaluate_clients_every", "num_clients"), Count | None),
    **dict.fromkeys(("timeout", "end_timeout"), NotNegative),
    **dict.fromkeys(("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), CountOrZero),
    **dict.fromkeys(("min_fit_clients", "min_evaluate_clients", "min_available_clients"), CountOrZero),
    **dict.fromkeys(("fraction_train", "fraction_fit", "fraction_evaluate"), Share),
    "num_rounds": CountOrZero | None,
}


def check_limits(**limits: object) -> None:
    """Raise ConfigError if one of an adapter's own settings is out of range (:data:`LIMITS`)."""
    for name, value in limits.items():
        _checks.fits(name, value, LIMITS[name])


class Framework(NamedTuple):
    """An adapter's names and defaults, which follow its framework.

    Attributes:
        setting: the argument that names the rule.
        rounds, free: the name of the class that runs rules with rounds, and of the class for rules without rounds.
        weighting, buffers: the defaults of these two settings for presets with rounds.
        always: the default settings of presets without rounds, and of users' own functions.
    """

    setting: str
    rounds: str
    free: str
    weighting: str
    buffers: str
    always: Mapping[str, Any] = {}


FLOWER = Framework("server", "SyncStrategy", "AsyncStrategy", "samples", "weighted")
FLARE = Framework("algorithm", "Aggregator", "AsyncController", "samples", "weighted", {"buffers": "weighted"})
APPFL = Framework("algorithm", "SyncAggregator", "Aggregator", "uniform", "mean")


class Rule:
    """The rule of a run: a preset with its settings, a user's function, or a Server. The constructor checks a preset's
    settings by making a server of a model with one parameter, unless the settings have ``distill``.

    Args:
        make: a preset's name, ``"module:function"``, a function, a :func:`functools.partial` of one, or a Server.
        settings: keyword arguments of the function. :func:`fastagg.integrations.resolved` reads them.
        rounds: whether the framework runs rounds. If True, the server ends a round only when the framework says so,
            whatever the number of updates.

    Attributes:
        preset: the preset's name. Empty: the rule is no preset.
        name: the rule's name in the log.

    Raises:
        ConfigError: there is no such rule, it does not fit the adapter, or a setting is refused.
    """

    def __init__(
        self, framework: Framework, make: object, settings: Mapping[str, Any] | None = None, *, rounds: bool
    ) -> None:
        self._framework, self._rounds, self.settings = framework, rounds, dict(settings or {})
        rule: Any = make
        while isinstance(rule, functools.partial):
            if rule.args:
                raise ConfigError(_checks.wrong(framework.setting, "settings by their names", rule.args))
            rule, self.settings = rule.func, {**rule.keywords, **self.settings}
        if not callable(rule) and not isinstance(rule, Server):
            rule = preset(rule, framework.setting)
        self._make = rule
        self.preset = next((name for name, known in registry.presets().items() if known is rule), "")
        self.name = self.preset or getattr(rule, "__qualname__", type(rule).__name__)
        if isinstance(rule, Server):
            return
        parameters = inspect.signature(rule).parameters
        if self.preset and rounds != ("clients_per_round" in parameters):
            raise self._unfit()
        self.settings = {**self._defaults(parameters), **self.settings}
        if rounds and self._takes(parameters, "clients_per_round"):
            self.settings["clients_per_round"] = None
        self._try()

    def _defaults(self, parameters: Mapping[str, inspect.Parameter]) -> Plain:
        framework = self._framework
        defaults = {"weighting": framework.weighting, "buffers": framework.buffers}
        if self.preset:
            known = _keywords.of(self._make).settings
            defaults = defaults if self._rounds else dict(framework.always)
            return {name: value for name, value in defaults.items() if name in known}
        return {name: value for name, value in framework.always.items() if self._takes(parameters, name)}

    @staticmethod
    def _takes(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
        return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    def _try(self) -> None:
        # These two settings are left out, because they can be checked only against the user's model.
        settings = {name: value for name, value in self.settings.items() if name not in ("buffers", "tied")}
        try:
            if not self.preset:
                inspect.signature(self._make).bind(None, **self.settings)
            elif "distill" not in settings:
                self._make(torch.zeros(1, dtype=torch.float32, device="cpu"), **settings)
        except (TypeError, ValueError) as error:
            if isinstance(error, FastaggError):
                raise
            expected = "a fastagg preset with its settings (functools.partial)"
            raise ConfigError(f"{self._framework.setting}: expected {expected}: {error}") from None

    def build(self, model: Arrays) -> Server:
        """Return the rule's server of ``model``.

        Raises:
            FastaggError: a setting or the model is refused, or the rule does not fit the adapter.
        """
        server = self._make
        if not isinstance(server, Server):
            server = self._make(model, **resolved(self.settings))
        if not isinstance(server, Server):
            raise ConfigError(
                f"{self._framework.setting}: expected a fastagg.Server or a preset, got {type(server).__name__}"
            )
        own = type(server.direction).__module__.startswith("fastagg.")  # a user's own rule fits every adapter
        if own and server.direction.synchronous != self._rounds:
            raise self._unfit()
        return server

    def _unfit(self) -> ConfigError:
        setting, rounds, free, *_ = self._framework
        if self._rounds:
            return ConfigError(f"{setting}: {rounds} runs rules with rounds, and {self.name} has none: {free} runs it")
        return ConfigError(f"{setting}: {self.name} is a synchronous rule: {rounds} runs it; {free} has no rounds")


class App(NamedTuple):
    """The framework's app (such as a Flower app or a FLARE job) to which a run belongs. Relative paths of the run's
    files (checkpoint, best model, CSV) begin at ``folder``. ``name`` may be empty."""

    kind: str
    name: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} in {self.folder}" if self.name else f"{self.kind} in {self.folder}"


@dataclass
class AdapterRun:
    """One run of an adapter. Call :meth:`place`, then :meth:`begin` with a model, and :meth:`save` at each checkpoint.

    Args:
        rule: makes the server.
        settings: the run's settings.
        checkpoint: the checkpoint's path. None: no checkpoint is written.
        every: versions between two checkpoints.
        resume: whether the run continues from the checkpoint, if the file exists.
        log, warn: called with each line for the log.

    Attributes:
        session, server: made by :meth:`begin`.
        id: the run's own id. It stays the same after a restart from a checkpoint.
    """

    rule: Rule
    settings: Settings
    checkpoint: str | os.PathLike[str] | None = None
    every: int = 1
    resume: bool = True
    log: Callable[[str], None] = logging.getLogger("fastagg").info
    warn: Callable[[str], None] = logging.getLogger("fastagg").warning

    def __post_init__(self) -> None:
        self.file = None if self.checkpoint is None else _checks.path("checkpoint", self.checkpoint)
        self.app: App | None = None
        self.id, self.saved = uuid.uuid4().hex[:12], -1
        self.session: Session
        self.server: Server

    def place(self, app: App) -> None:
        """Make the paths of the checkpoint, the best model and the trackers' table absolute, and check that files can
        be written there. Only the first call has an effect.

        Raises:
            ConfigError: a file's folder is missing, or cannot be written to.
        """
        if self.app is not None:
            return
        best, paths = self.settings.best, []
        if self.file is not None:
            self.file = _tried("checkpoint", app.folder, self.file)
            paths.append(f"checkpoint {self.file}")
        if best is not None:
            best = replace(best, file=_tried("best", app.folder, Path(best.file)))
            paths.append(f"best {best.file}")
        tracker_settings = trackers.placed(self.settings.trackers, app.folder)
        table = tracker_settings.get("csv") if isinstance(tracker_settings, Mapping) else None
        if isinstance(table, Mapping) and isinstance(file := table.get("file"), str):
            app.folder.mkdir(parents=True, exist_ok=True)
            paths.append(f"csv {_tried('trackers', app.folder, Path(file))}")
        self.settings = replace(self.settings, best=best, trackers=tracker_settings)
        if paths:
            self.log(f"fastagg: {app}: {', '.join(paths)}")
        self.app = app

    def begin(
        self,
        model: Arrays,
        evaluate: Callable[[int, Arrays], Metrics] | None = None,
        kinds: Iterable[str] = (),
        server: Server | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> State:
        """Make the server and the session, and load the checkpoint if there is one. Return the adapter's data in the
        checkpoint (see :meth:`save`), or an empty dict.

        Args:
            evaluate: ``evaluate(version, model)`` returns metrics of a version on the server. None: no evaluation.
            kinds: ``"train"`` if clients report training metrics, ``"clients"`` if clients evaluate, and ``""`` if the
                framework itself evaluates on the server. A goal that needs another kind of metric is refused.
            server: the server to use. None: the rule makes the server of ``model``.
            clock: returns seconds, for clients' pauses and the time of the run.

        Raises:
            CheckpointError: the checkpoint belongs to another app, rule or model, or is damaged.
            FastaggError: the model, a setting or a goal is refused.
        """
        self._check_goals({*kinds, "run", *([""] if evaluate is not None else [])})
        self.server, state = server or self.rule.build(model), State()
        if self.file is not None and self.resume and self.file.exists():
            state = self._read(self.file)
        self.session = Session(self.server, self.settings, evaluate, self.log, clock, self.warn)
        self.session.load_state_dict(state.get("session", {}))
        self.saved = self.server.version
        _pulse(self.session)
        kept: State = state.get("adapter", {})
        return kept

    def _check_goals(self, kinds: set[str]) -> None:
        stop, best = self.settings.stop, self.settings.best
        watched = stop is not None and (stop.target is not None or stop.patience is not None)
        for name, goal in (("stop", stop if watched else None), ("best", best)):
            if goal is not None and (kind := goal.metric.rpartition("/")[0]) not in kinds:
                sources = ", ".join(sorted(f"{known}/..." if known else "the server's evaluation" for known in kinds))
                source = f"{kind}/..." if kind else "an evaluation on the server"
                raise ConfigError(
                    f"{name}: nobody measures {goal.metric!r}: it is a metric of {source}, and there is none; there is "
                    f"{sources}"
                )

    def _read(self, path: Path) -> State:
        state = files.read(path)
        owner, app = state.get("run", {}), self.app
        label = f"{owner.get('kind')} {owner.get('name')!r} in {owner.get('folder')}, run {owner.get('id')}"
        do = "name another checkpoint, or remove this file to begin anew"
        for own, name, other in (
            (app and app.name, "app", owner.get("name")),
            (self.rule.preset, "rule", owner.get("rule")),
        ):
            if own and other and own != other:
                what = f"is of another {name}, {other!r} ({label}); this is {own!r} ({app})"
                raise CheckpointError(f"{path} {what}: {do}")
        try:
            count = resume(self.server, state)
        except CheckpointError as error:
            raise CheckpointError(f"{path} ({label}) is not of this run ({app}): {error}: {do}") from error
        self.id = owner.get("id", self.id)
        note = f"; {count} tasks that were out are sent again" if count else ""
        self.log(f"fastagg: resumed run {self.id} from {path}, version {self.server.version}{note}")
        return state

    def is_finished(self, name: str, limit: int | None, version: int) -> None:
        """If the limit ``name`` was reached before the run began, log a warning that says how to begin anew."""
        if limit is not None and version and version >= limit:
            self.warn(
                f"fastagg: {self.file or 'this run'} is finished: {version} of {name}={limit}, and nothing is trained. "
                f"Raise {name} to go on; to begin anew remove the file, or name another checkpoint"
            )

    @property
    def is_due(self) -> bool:
        return self.server.version >= self.saved + self.every

    def save(self, adapter: Mapping[str, Any] | None = None) -> None:
        """Write the checkpoint, if the run has a path for one. ``adapter``: data that :meth:`begin` returns later."""
        if self.file is None:
            return
        app = self.app or App("run", "", self.file.parent)
        owner = {"id": self.id, "kind": app.kind, "name": app.name, "folder": str(app.folder), "rule": self.rule.preset}
        kept = {"session": self.session.state_dict(), "run": owner, "adapter": dict(adapter or {})}
        files.write({**self.server.state_dict(copy=False), **kept}, self.file)
        self.saved = self.server.version

    def save_last(self) -> None:
        """Write the checkpoint if the server's version is newer than the last checkpoint's."""
        if self.server.version > self.saved:
            self.save()


def _tried(name: str, folder: Path, path: Path) -> Path:
    if not path.is_absolute():
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.absolute() / path
    if not path.parent.is_dir():
        raise ConfigError(f"{name}: no such folder: {path.parent}")
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise ConfigError(f"{name}: nothing can be written to {path}: {error}") from None


def _pulse(session: Session) -> None:
    """Start a thread that logs what a session waits for, after each minute in which nothing came. The thread ends when
    the session is closed or garbage-collected."""
    reference, ended = weakref.ref(session), session.ended
    weakref.finalize(session, ended.set)

    def watch() -> None:
        last: object = None
        while not ended.wait(MINUTE) and (watched := reference()) is not None:
            if (now := watched.progress()) == last and (waits := watched.waits_for()):
                watched.warn(f"fastagg: nothing has come in {MINUTE:g} s; waiting for {waits}")
            last = now
            del watched

    threading.Thread(target=watch, name="fastagg-pulse", daemon=True).start()
