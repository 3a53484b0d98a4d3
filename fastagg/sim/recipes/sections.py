"""The sections of a recipe: their keys, types and defaults. Those of data are beside it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from fastagg._types import Plain
from fastagg.encoding.encode import Format, Values
from fastagg.sim.data.sections import Section, named_function

Share = Annotated[float, Field(ge=0, lt=1)]


class Algorithm(Section):
    """A preset of fastagg by name, or your own as "module:function". Every other key is one of its keywords ("none"
    stands for Python's None). "given" stands for one passed to run()."""

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
}


class Model(Section):
    """``widths``: hidden layers of the mlp, channels of the CNNs.

    ``norm`` is for the cnn. For your own network use the name "module:function". The function is called with shape,
    classes and ``keywords``, which other keys are, too; with ``text`` also, if it takes that and the data are text. It
    is stored as name "function" and ``call``. "given" stands for a model passed to run().
    """

    name: Literal["logistic", "mlp", "cnn", "function", "given"] = "mlp"
    widths: list[PositiveInt] = Field(default=[64])
    norm: Literal["batch", "group", "none"] = "batch"
    call: str = ""
    keywords: Plain = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _default_widths(cls, values: object) -> object:
        values = named_function(values, cls.model_fields)
        if not isinstance(values, dict) or "widths" in values:
            return values
        return {**values, "widths": WIDTHS.get(values.get("name", "mlp"), [])}


class Client(Section):
    """Local SGD, or another ``optimizer``: ``lr`` (eta_l), ``momentum`` and ``weight_decay`` are torch's. It runs
    ``epochs`` passes or ``steps`` mini-batches of ``batch_size``; the default is 1 epoch.

    ``mu`` is the weight of FedProx's proximal term; 0 turns it off. A client's n-th dispatch (from 0) trains with
    ``lr * lr_decay**n``, times what ``schedule`` says of the version that it was sent: "cosine" falls to ``lr_end``
    within ``versions``, "step" is times ``lr_factor`` after every ``versions``. ``clip_norm`` limits the norm of a
    mini-batch's gradient.
    """

    lr: PositiveFloat
    batch_size: PositiveInt = 50
    epochs: PositiveInt | None = None
    steps: PositiveInt | None = None
    momentum: Share = 0.0
    weight_decay: float = Field(0.0, ge=0)
    mu: float = Field(0.0, ge=0)
    lr_decay: float = Field(1.0, gt=0, le=1)
    schedule: Literal["constant", "cosine", "step"] = "constant"
    versions: PositiveInt | None = None
    lr_end: Share = 0.0
    lr_factor: float = Field(0.1, gt=0, le=1)
    clip_norm: PositiveFloat | None = None
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"

    @model_validator(mode="after")
    def _versions_of_a_schedule(self) -> Client:
        if (self.schedule == "constant") != (self.versions is None):
            raise ValueError('schedule "cosine" and "step" need the key versions, "constant" does not take it')
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f'momentum is of the optimizer "sgd", not of "{self.optimizer}"')
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_amount_of_work(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        given = [key for key in ("epochs", "steps") if values.get(key) not in (None, "none")]
        if len(given) == 2:
            raise ValueError("give epochs or steps, not both")
        return values if given else {**values, "epochs": 1}


def _named(name: str | None) -> str | None:
    if name is not None and name != "given" and ":" not in name:
        raise ValueError(f'expected "module:function", got {name!r}')
    return name


Named = Annotated[str | None, AfterValidator(_named)]


class Unlabelled(Section):
    """Unlabelled data for FedEcho, from one source. At most ``samples`` of it are used.

    ``share``: a part of the test set, which is then not used for testing. ``data``: the test images of another data
    set, a function "module:function" of the folder ``dir`` (by default the data's own folder). ``path``: an .npz, .npy
    or .pt file. Images are resized to this task's size and standardised.
    """

    share: Share = 0.0
    data: Named = None
    dir: str | None = None
    path: str | None = None
    samples: PositiveInt = 2000

    @model_validator(mode="after")
    def _one_source(self) -> Unlabelled:
        if (self.share > 0) + (self.data is not None) + (self.path is not None) > 1:
            raise ValueError("give one of share, data and path")
        return self


class Distill(Section):
    """FedEcho's distillation. ``alpha``: [least, most], or one number. ``lr``, ``steps``, ``batch_size`` and
    ``clip_norm`` are those of fastagg.Distillation."""

    alpha: float | list[float] = Field(default=[0.2, 0.8])
    clip_norm: PositiveFloat | Literal["none"] = 5.0
    lr: PositiveFloat = 3e-6
    steps: PositiveInt | None = None
    batch_size: PositiveInt = 128


class Own(Section):
    """Your own functions ``train``, ``loss``, ``metric``, ``change`` and ``personal``, each named "module:function";
    see docs/own_functions.md. "given" stands for one passed to run(). ``keywords`` are further arguments of ``train``.
    """

    train: Named = None
    loss: Named = None
    metric: Named = None
    change: Named = None
    personal: Named = None
    keywords: Plain = Field(default={})


class Dropout(Section):
    """After the part ``after`` of the run, ``share`` of the clients never answer again (ACE Figure 3)."""

    share: Share = 0.0
    after: Share = 0.5


class Attack(Section):
    """``share`` of the clients, drawn, lie. Each sends something else than its update u, or trains on something else.

    ``sign_flip``: -strength*u (strength 1 by default). ``scaling``: strength*u (10). The last updates of honest clients
    are known to ``alie``, which sends their mean less strength (1.5) standard deviations of each element (Baruch et al.
    2019), and to ``inner_product``, -strength (0.5) times their mean (Xie et al. 2020). ``label_flip``: label y becomes
    classes - 1 - y.
    """

    name: Literal["none", "sign_flip", "scaling", "alie", "inner_product", "label_flip"] = "none"
    share: Share = 0.2
    strength: PositiveFloat | None = None


class Encoding(Section):
    """``format``: how updates are encoded on their way (docs/encoding.md), by the name of :func:`fastagg.encode`'s
    format, or "topk", of which ``share`` of the elements are sent as ``values``. ``feedback``: clients add what they
    have not sent yet to their next update. ``download``: how the server sends its model, rounded without bias.
    """

    format: Literal["none", Format, "topk"] = "none"
    share: Annotated[float, Field(gt=0, le=1)] = 0.01
    values: Values = "bf16"
    feedback: bool = False
    download: Literal["none", "bf16", "int8"] = "none"


class Participation(Section):
    """rule "concurrency" with M_c = ``concurrency`` clients training at once, "all", or "round".

    "round" is for synchronous algorithms: a round has algorithm.clients_per_round clients. ``sampling`` says which idle
    client is next: "uniform", "weight" (in proportion to its samples), "availability" (evenly among those that a trace
    in the CSV ``file`` has available then; it begins again after ``period``), or a function "module:function" of (idle
    clients, virtual time, generator). "given" stands for one passed to run().
    """

    rule: Literal["concurrency", "all", "round"] = "all"
    concurrency: PositiveInt | None = None
    sampling: str = "uniform"
    file: str | None = None
    period: PositiveFloat | None = None

    @model_validator(mode="after")
    def _known_sampling(self) -> Participation:
        if self.sampling not in ("uniform", "weight", "availability", "given") and ":" not in self.sampling:
            known = "'uniform', 'weight', 'availability' or 'module:function'"
            raise ValueError(f"sampling should be {known}, got {self.sampling!r}")
        if self.rule == "all" and self.sampling not in ("uniform", "availability"):
            raise ValueError('with rule "all" every client trains all the time: there is nothing to sample')
        if (self.sampling == "availability") != (self.file is not None) or (self.period and self.file is None):
            raise ValueError('sampling "availability" needs the key file, the others take neither file nor period')
        return self

    @model_validator(mode="after")
    def _concurrency_where_it_counts(self) -> Participation:
        if (self.rule == "concurrency") != (self.concurrency is not None):
            raise ValueError('rule = "concurrency" needs the key concurrency, the other rules do not take it')
        return self


class Run(Section):
    """The run stops at the first of ``versions`` (server updates), ``uploads`` (client updates) and ``time`` (virtual).

    It evaluates every ``evaluate_every`` versions, at the start and at the end, and with ``evaluate_time`` the first
    version after each multiple of this virtual time. ``target``: a test accuracy; when it is first reached is reported.
    ``client_test``: the share of each client's samples that it does not train on, but is tested on by itself.
    ``torch_threads`` train and evaluate. ``device`` ("cpu", "cuda", "cuda:1") has data, training and server.
    ``checkpoint_every``: wall-clock seconds; 0: after every client update. ``fused``: clients train without torch if
    the model allows it, with the same results up to rounding. ``autocast`` trains in bf16, ``channels_last`` uses the
    layout of images that convolutions on a GPU prefer.
    """

    versions: PositiveInt | None = None
    uploads: PositiveInt | None = None
    time: PositiveFloat | None = None
    evaluate_every: PositiveInt = 10
    evaluate_time: PositiveFloat | None = None
    client_test: Share = 0.0
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


class TimedDelay(Section):
    """Settings of every delay in virtual time.

    ``steps``: the number of local steps that the times are for; a dispatch of K steps takes K / steps as long.
    ``speed``, ``up``: bytes a unit of time, down and up, without which the way takes no time; ``jitter``: the deviation
    of a factor of it (mean 1). ``suspension``: the probability that a client hangs before it trains, up to the longest
    training so far. ``counting`` "authors": the model goes out when a buffer is full, not after each answer (FADAS).
    """

    steps: PositiveInt | None = None
    counting: Literal["arrival", "authors"] = "arrival"
    speed: PositiveFloat | None = None
    up: PositiveFloat | None = None
    jitter: float = Field(0.1, ge=0)
    suspension: Share = 0.0


class ThreeClassDelay(TimedDelay):
    """FADAS Table 1, ``table`` "large" or "mild": uniform in the range of the client's class, small, medium or large. A
    client draws its class from a Dirichlet([3g, 2g, g]) draw, g = ``gamma``, or ``counts`` are those of the classes."""

    name: Literal["three-class"]
    table: Literal["large", "mild"] = "large"
    gamma: PositiveFloat = 1.0
    counts: list[Annotated[int, Field(ge=0)]] | None = None

    @model_validator(mode="after")
    def _three_counts(self) -> ThreeClassDelay:
        if self.counts is not None and len(self.counts) != 3:
            raise ValueError(f"counts are of small, medium and large clients, three numbers, got {self.counts}")
        return self


class SizeTiedDelay(TimedDelay):
    """FedEcho Table 1: clients with many samples are slow, a tenth very slow; ``gamma`` above 0 loosens this rule."""

    name: Literal["size-tied"]
    table: Literal["large", "mild"] = "large"
    gamma: float = Field(0.0, ge=0)


class ExponentialDelay(TimedDelay):
    """``spread``: deviation of the logarithm of the clients' means. ``mean``: the mean of the clients' means."""

    name: Literal["exponential"]
    mean: PositiveFloat = 5.0
    spread: float = Field(0.0, ge=0)

    def draw(self, rng: np.random.Generator, mean: float) -> float:
        """Return a time of this law with a client's ``mean``."""
        return rng.exponential(mean)


class LognormalDelay(ExponentialDelay):
    """``sigma``: deviation of the logarithm of a dispatch's time."""

    name: Literal["lognormal"]  # type: ignore[assignment]
    sigma: PositiveFloat = 1.0

    def draw(self, rng: np.random.Generator, mean: float) -> float:
        return mean * math.exp(self.sigma * rng.standard_normal() - 0.5 * self.sigma**2)


class ParetoDelay(ExponentialDelay):
    """``shape``: the tail's exponent, above 1: P(time > t) falls as t**-shape from mean * (shape - 1) / shape on."""

    name: Literal["pareto"]  # type: ignore[assignment]
    shape: float = Field(2.5, gt=1)

    def draw(self, rng: np.random.Generator, mean: float) -> float:
        return mean * (self.shape - 1) / self.shape * (1.0 + rng.pareto(self.shape))


class OwnDelay(TimedDelay):
    """Your own law, a function of (client, number, steps, generator, ``keywords``) that returns a time in ``unit``, and
    perhaps of ``view``, what is known of the client.

    In a recipe: name = "module:function", and other keys are ``keywords``, too. "given" stands for one passed to run().
    """

    name: Literal["function", "given"]
    call: str = ""
    unit: str = "time unit"
    keywords: Plain = Field(default={})


class MeasuredDelay(TimedDelay):
    """What tasks of a real federation took, drawn from a CSV ``file``."""

    name: Literal["measured"]
    file: str


class VersionDelay(Section):
    """Updates trained on x_{t-tau}: tau uniform in 0..tau_max, or exponential of ``mean``."""

    name: Literal["version"]
    tau_max: int | None = Field(None, ge=0)
    mean: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_source(self) -> VersionDelay:
        if (self.tau_max is None) == (self.mean is None):
            raise ValueError("give tau_max or mean, one of the two")
        return self


AnyDelay = Annotated[
    ThreeClassDelay
    | SizeTiedDelay
    | ExponentialDelay
    | LognormalDelay
    | ParetoDelay
    | MeasuredDelay
    | OwnDelay
    | VersionDelay,
    Field(discriminator="name"),
]
