"""The settings of a run: the checked contents of a recipe's TOML, with all defaults written out.

Sections: ``algorithm`` (a preset's name and its keywords), ``data``, ``model``, ``client`` (local
training), ``delay``, ``dropout``, ``participation``, ``run`` (when to stop, how often to evaluate). Unknown keys are
errors.
"""

from __future__ import annotations

import re
import reprlib
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Literal

import tomli_w
from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fastagg import _checks, _keywords, registry
from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim.data.sections import SECTIONS, AnyData, named_function
from fastagg.sim.section import Section


class Algorithm(Section):
    """A preset of fastagg by name. Every other key is one of its keywords ("none" stands for Python's None)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def keywords(self) -> Plain:
        extra = self.model_extra or {}
        # TOML has no null, and presets use None for "off" (FADAS' delay_threshold).
        return {key: None if value == "none" else value for key, value in extra.items()}


# The default widths of the models. The keys are the models' names: see fastagg.sim.models.
WIDTHS: dict[str, list[int]] = {
    "logistic": [],
    "mlp": [64],
    "cnn": [16, 32],
    "femnist-cnn": [32, 64],
    "cifar-cnn": [64, 64, 384, 192],
    "resnet18": [64, 128, 256, 512],
    "lstm": [8, 256],
    "transformer": [],
}


class Model(Section):
    """``widths``: hidden layers of the mlp, channels of the CNNs, embedding and hidden size of the lstm.

    ``norm`` is for the cnn. With ``lora_rank`` (transformer) clients train and send only low-rank adapters
    and the classifier. For your own network use the name "module:function". The function is called with shape, classes
    and ``keywords``. It is stored as name "function" and ``call``. "given" stands for a model passed to run().
    """

    name: Literal[
        "logistic", "mlp", "cnn", "femnist-cnn", "cifar-cnn", "resnet18", "lstm", "transformer",
        "function", "given",
    ] = "mlp"  # fmt: skip
    widths: list[PositiveInt] = Field(default=[64])
    norm: Literal["batch", "group", "none"] = "batch"
    call: str = ""
    keywords: Plain = Field(default={})
    lora_rank: PositiveInt | None = None
    lora_alpha: PositiveFloat = 8.0

    @model_validator(mode="before")
    @classmethod
    def _default_widths(cls, values: object) -> object:
        values = named_function(values)
        if not isinstance(values, dict) or "widths" in values:
            return values
        return {**values, "widths": WIDTHS.get(values.get("name", "mlp"), [])}


class Client(Section):
    """Local SGD: lr is eta_l. It runs ``epochs`` passes or ``steps`` mini-batches; the default is 1 epoch.

    ``mu`` is the weight of FedProx's proximal term; 0 turns it off. A client's n-th dispatch (from 0) trains with
    ``lr * lr_decay**n``.
    """

    lr: PositiveFloat
    batch_size: PositiveInt = 50
    epochs: PositiveInt | None = None
    steps: PositiveInt | None = None
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    mu: float = Field(0.0, ge=0)
    lr_decay: float = Field(1.0, gt=0, le=1)
    optimizer: Literal["sgd", "adamw"] = "sgd"

    @model_validator(mode="before")
    @classmethod
    def _one_amount_of_work(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        given = [key for key in ("epochs", "steps") if values.get(key) not in (None, "none")]
        if len(given) == 2:
            raise ValueError("give epochs or steps, not both")
        return values if given else {**values, "epochs": 1}


class Unlabelled(Section):
    """Unlabelled data for FedEcho, from one source. At most ``samples`` of it are used.

    ``share``: a part of the test set, which is then not used for testing. ``data``: the test images of another data set
    in the folder ``dir`` (by default the data's own folder). ``path``: a folder of images, or an .npz, .npy, .pt file.
    Images are resized to this task's size and standardised.
    """

    share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    data: Literal["mnist", "cifar10", "cifar100"] | None = None
    dir: str | None = None
    path: str | None = None
    samples: PositiveInt = 2000

    @model_validator(mode="after")
    def _one_source(self) -> Unlabelled:
        if (self.share > 0) + (self.data is not None) + (self.path is not None) > 1:
            raise ValueError("give one of share, data and path")
        return self


class Distill(Section):
    """FedEcho's distillation, see fastagg.Distillation. ``alpha``: [least, most], or one number; ``clip_norm``: nu."""

    alpha: float | list[float] = Field(default=[0.2, 0.8])
    clip_norm: PositiveFloat | Literal["none"] = 5.0
    lr: PositiveFloat = 3e-6
    steps: PositiveInt | None = None
    batch_size: PositiveInt = 128
    keep_moments: bool = False


class TimedDelay(Section):
    """Settings of every delay in virtual time: see delays.PerStep, delays.Transmission, delays.Suspension.

    ``steps``: the number of local steps that the times are for. A dispatch of K steps takes K / steps as long. With
    ``counting`` "authors" the model is sent only when the buffer is flushed, as in the FADAS authors' program, and not
    at each arrival.
    """

    steps: PositiveInt | None = None
    counting: Literal["arrival", "authors"] = "arrival"
    speed: PositiveFloat | None = None  # bytes downloaded per unit of virtual time; None: a download takes no time
    up: PositiveFloat | None = None  # the same for uploads
    jitter: float = Field(0.1, ge=0)  # standard deviation of the transmission factor
    bandwidth_spread: float = Field(0.0, ge=0)  # deviation of the logarithm of the clients' bandwidths
    suspension: float = Field(0.0, ge=0, lt=1)  # the probability that a client hangs


class ThreeClassDelay(TimedDelay):
    """FADAS Table 1: table "large" (worst-case) or "mild"; see delays.ThreeClass."""

    name: Literal["three-class"]
    table: Literal["large", "mild"] = "large"
    gamma: PositiveFloat = 1.0
    counts: list[Annotated[int, Field(ge=0)]] | None = None  # of small, medium and large clients, instead of a draw

    @model_validator(mode="after")
    def _three_counts(self) -> ThreeClassDelay:
        if self.counts is not None and len(self.counts) != 3:
            raise ValueError(f"counts are of small, medium and large clients, three numbers, got {self.counts}")
        return self


class SizeTiedDelay(TimedDelay):
    """FedEcho Table 1: clients with many samples are slow, at most a tenth very slow; see delays.SizeTied."""

    name: Literal["size-tied"]
    table: Literal["large", "mild"] = "large"
    gamma: float = Field(0.0, ge=0)


class ExponentialDelay(TimedDelay):
    """``spread``: deviation of the logarithm of the clients' means. ``mean``: the mean of the clients' means."""

    name: Literal["exponential"]
    mean: PositiveFloat = 5.0
    spread: float = Field(0.0, ge=0)


class DeviceDelay(TimedDelay):
    """Clients with different speeds, ``mean`` per step on average, that may sleep; see devices.Speeds."""

    name: Literal["devices"]
    mean: PositiveFloat = 1.0
    law: Literal["lognormal", "zipf", "pareto"] = "lognormal"
    spread: float = Field(1.0, ge=0)
    day: PositiveFloat = 24.0
    night: float = Field(0.0, ge=0, lt=1)


class MeasuredDelay(TimedDelay):
    """``times``: lists of measured durations; each client draws from one of them, see delays.Measured."""

    name: Literal["measured"]
    times: list[Annotated[list[PositiveFloat], Field(min_length=1)]] = Field(min_length=1)


class TraceDelay(TimedDelay):
    """When clients are available and how fast they compute and send, from a CSV ``file``; see devices.Trace."""

    name: Literal["trace"]
    file: str


AnyDelay = ThreeClassDelay | SizeTiedDelay | ExponentialDelay | DeviceDelay | MeasuredDelay | TraceDelay


class VersionDelay(Section):
    """Updates trained on x_{t-tau}: tau uniform in 0..tau_max, exponential of ``mean``, or replayed from a file."""

    name: Literal["version"]
    tau_max: int | None = Field(None, ge=0)
    mean: PositiveFloat | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> VersionDelay:
        if [self.tau_max, self.mean, self.file].count(None) != 2:
            raise ValueError("give tau_max, mean or file, one of the three")
        return self


class Own(Section):
    """Your own functions, each named "module:function"; see sim.own.Own. "given" stands for one passed to run().

    ``keywords`` are further arguments of ``train``.
    """

    train: str | None = None
    loss: str | None = None
    metric: str | None = None
    change: str | None = None
    personal: str | None = None
    keywords: Plain = Field(default={})

    @model_validator(mode="after")
    def _names(self) -> Own:
        for key in ("train", "loss", "metric", "change", "personal"):
            name = getattr(self, key)
            if name is not None and name != "given" and ":" not in name:
                raise ValueError(f'{key}: expected "module:function", got {name!r}')
        return self


class Dropout(Section):
    """After the part ``after`` of the run, ``share`` of the clients never answer again (ACE Figure 3)."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    after: Annotated[float, Field(ge=0, lt=1)] = 0.5


class Participation(Section):
    """rule "concurrency" with M_c = ``concurrency`` clients training at once, "all", or "round".

    "round" is for synchronous algorithms: a round has algorithm.clients_per_round clients.
    """

    rule: Literal["concurrency", "all", "round"] = "all"
    concurrency: PositiveInt | None = None

    @model_validator(mode="after")
    def _concurrency_where_it_counts(self) -> Participation:
        if (self.rule == "concurrency") != (self.concurrency is not None):
            raise ValueError('rule = "concurrency" needs the key concurrency, the other rules do not take it')
        return self


class Run(Section):
    """The run stops at the first of ``versions`` (server updates), ``uploads`` (client updates) and ``time`` (virtual).

    Evaluates every ``evaluate_every`` versions, at the start and at the end. ``target`` is a test accuracy.
    The time when it is first reached is reported. ``torch_threads`` is for local training and
    evaluation: small models are fastest with one. ``device`` ("cpu", "cuda", "cuda:1") is for data, training
    and server. With ``evaluate_time`` the first version after each multiple of this virtual time is evaluated, too.
    ``client_test`` is the share of each client's samples that it does not train on, but is tested on by itself.
    ``checkpoint_every`` is in wall-clock seconds; 0 means after every client update. ``fused``: clients
    train without torch if the model allows it. Otherwise summary.json says why. Results are the same, up to rounding.
    ``autocast`` trains in bf16 with torch.autocast. ``channels_last`` uses the layout of images
    that convolutions on a GPU prefer. Both are for the sizes in the papers.
    """

    versions: PositiveInt | None = None
    uploads: PositiveInt | None = None
    time: PositiveFloat | None = None
    evaluate_every: PositiveInt = 10
    evaluate_time: PositiveFloat | None = None
    client_test: float = Field(0.0, ge=0, lt=1)
    target: float = Field(0.9, gt=0, le=1)
    torch_threads: PositiveInt = 1
    device: str = "cpu"
    checkpoint_every: float = Field(60.0, ge=0)
    fused: bool = True
    autocast: bool = False
    channels_last: bool = False

    @model_validator(mode="after")
    def _some_end(self) -> Run:
        if self.versions is None and self.uploads is None and self.time is None:
            raise ValueError("give at least one of versions, uploads, time")
        return self


class Config(Section):
    """One run. ``name`` names its folder and ``label`` its line in plots and tables."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    label: str = ""
    about: str = ""
    seed: int = Field(0, ge=0)
    algorithm: Algorithm
    data: Annotated[AnyData, Field(discriminator="name")]
    model: Model = Model()
    client: Client
    delay: Annotated[AnyDelay | VersionDelay, Field(discriminator="name")]
    dropout: Dropout = Dropout()
    participation: Participation = Participation()
    unlabelled: Unlabelled = Unlabelled()
    distill: Distill = Distill()
    own: Own = Own()
    run: Run

    @model_validator(mode="before")
    @classmethod
    def _data_by_function(cls, values: object) -> object:
        return (
            {**values, "data": named_function(values["data"])}
            if isinstance(values, dict) and "data" in values
            else values
        )

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        concurrency = self.participation.concurrency
        if concurrency is not None and concurrency > self.data.clients:
            raise ValueError(f"participation.concurrency is {concurrency}, more than data.clients, {self.data.clients}")
        counts = self.delay.counts if isinstance(self.delay, ThreeClassDelay) else None
        if counts is not None and sum(counts) != self.data.clients:
            raise ValueError(f"delay.counts are {sum(counts)} clients, data.clients is {self.data.clients}")
        counting = self.delay.counting if isinstance(self.delay, TimedDelay) else "arrival"
        if counting == "authors" and self.participation.rule != "concurrency":
            raise ValueError('delay.counting "authors" needs participation.rule "concurrency"')
        if isinstance(self.delay, VersionDelay) and self.participation.rule != "all":
            raise ValueError('delay "version" draws each arriving client from all: participation.rule must be "all"')
        return self


def from_dict(values: Plain, source: str) -> Config:
    """Check ``values``. ConfigError if something is wrong: one line that begins with ``source`` and names the key."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from None


def from_toml(text: str, source: str, changes: Plain | None = None) -> Config:
    """Read a TOML document; ``changes`` maps dotted keys ("client.lr") to new values."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    return from_dict(changed(values, changes or {}), source)


def changed(values: Mapping[str, object], changes: Mapping[str, object]) -> Plain:
    """Return a copy of ``values`` with ``changes`` to dotted keys ("client.lr") made in it."""
    copy = deepcopy(dict(values))
    for key, value in changes.items():
        _put(copy, key, value)
    return copy


def to_toml(config: Config) -> str:
    """Write ``config`` with all defaults. ``from_toml`` reads an equal Config from it."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def differences(a: Config, b: Config) -> list[str]:
    """Return the dotted keys in which the two differ, in order."""
    return sorted(dict(_leaves(a.model_dump()).items() ^ _leaves(b.model_dump()).items()))


def _leaves(values: Plain, prefix: str = "") -> dict[str, str]:
    leaves: dict[str, str] = {}
    for key, value in values.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: repr(value)}
    return leaves


def load(path: Path, changes: Plain | None = None) -> Config:
    """Read a recipe from a file. ConfigError when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read the recipe {path}: expected TOML in UTF-8, got other bytes") from None
    except OSError as error:
        more = "; `fastagg recipes` lists those in the package" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror or error}{more}") from None
    return from_toml(text, str(path), changes)


def parse_change(text: str) -> tuple[str, object]:
    """Split "client.lr=0.1" into its key and its value. The value is read as TOML; if that fails, it is plain text."""
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key or not all(key.split(".")):
        raise ConfigError(f"expected key=value such as client.lr=0.1, got {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def parse_choices(text: str) -> tuple[str, list[object]]:
    """Split "client.lr=0.1,0.3" into its key and its values. A comma inside brackets or quotes does not separate."""
    key, equals, values = text.partition("=")
    parts, depth, quote = [""], 0, ""
    for letter in values:
        if letter in "\"'":
            quote = "" if quote == letter else quote or letter
        elif not quote:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    parsed = [parse_change(f"{key}{equals}{part}") for part in parts]
    if len(parts) > 1 and not all(part.strip() for part in parts):
        raise ConfigError(f"expected key=value,value such as client.lr=0.1,0.3, got {text!r}")
    return parsed[0][0], [value for _, value in parsed]


_MOST = 8  # problems in a message


def explain(error: ValidationError) -> str:
    """Turn pydantic's report into one line, with each problem as "key: what is wrong"."""
    found = error.errors(include_url=False)
    shown = [_problem(item) for item in found[:_MOST]]
    return "; ".join([*shown, f"and {len(found) - _MOST} more"] if len(found) > _MOST else shown)


def _on_one_line(text: str) -> str:
    """``text``, or its repr if it would break the line of a message."""
    return text if text.isprintable() else repr(text)


def _problem(item: ErrorDetails) -> str:
    # pydantic's location of a tagged section contains the tag (data, digits, alpha), but the user's key does not.
    where = ".".join(_on_one_line(str(part)) for part in item["loc"] if part not in _TAGS)
    given = reprlib.repr(item["input"])  # shortened
    if item["type"] == "extra_forbidden":
        known, key = _known(item["loc"]), str(item["loc"][-1])
        keys = " or ".join([full for full in full_keys(key) if full != where][:4])
        if keys and len(item["loc"]) == 1:
            return f"unknown key {where}, got {given}; did you mean {keys}?"
        near = _checks.meant(key, known) or (keys and f"; there is {keys}")
        return f"unknown key {where} (known here: {', '.join(known)}){near}"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "missing":
        message = "this key is missing"
    elif item["type"] == "union_tag_not_found":
        message = "the key name is missing"
    elif item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = f"expected a section with keys, got {given}"
    elif item["type"] == "union_tag_invalid":
        known = item["ctx"]["expected_tags"].replace("'function', 'given'", "'module:function'")  # as in a recipe
        message = f"unknown name {item['ctx']['tag']!r} (known: {known})" + _meant(item["ctx"]["tag"], known)
    elif not item["type"].startswith("value_error"):
        message = message.replace("'function' or 'given'", "'module:function'")
        message = f"{message[:1].lower()}{message[1:]}, got {given}" + _meant(item["input"], message)
    return f"{where}: {message}" if where else message


_TAGGED: dict[str, type[Section]] = {
    **SECTIONS,
    "three-class": ThreeClassDelay,
    "size-tied": SizeTiedDelay,
    "exponential": ExponentialDelay,
    "devices": DeviceDelay,
    "measured": MeasuredDelay,
    "trace": TraceDelay,
    "version": VersionDelay,
}
_TAGS = frozenset(_TAGGED)
# Sections with only one kind. For other sections pydantic's location names the kind.
_PLAIN: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


def _meant(given: object, message: str) -> str:
    """Return the nearest of the names that a message has in quotes."""
    return _checks.meant(given, re.findall(r"'([^']+)'", message))


def full_keys(key: str) -> list[str]:
    """Return all dotted keys that end with ``key``: "client.lr", "algorithm.lr" and others for "lr"."""
    held: dict[str, set[str]] = {name: set(section.model_fields) for name, section in _PLAIN.items()}
    for name, section in _TAGGED.items():
        held.setdefault("data" if name in SECTIONS else "delay", set()).update(section.model_fields)
    held["algorithm"] = {name for preset in registry.presets().values() for name in _keywords.of(preset).settings}
    first = ("client", "algorithm", "data", "run")
    return [f"{name}.{key}" for name in (*first, *(held.keys() - set(first))) if key in held[name]]


def _known(location: tuple[int | str, ...]) -> list[str]:
    section: type[Section] = Config
    for part in location[:-1]:
        section = _TAGGED.get(str(part)) or _PLAIN.get(str(part)) or section
    return list(section.model_fields)


def _put(values: Plain, dotted: str, value: object) -> None:
    *parents, last = dotted.split(".")
    here = values
    for parent in parents:
        here = here.setdefault(parent, {})
        if not isinstance(here, dict):
            raise ConfigError(f"{_on_one_line(dotted)}: {_on_one_line(parent)} is a value, not a section")
    here[last] = value
