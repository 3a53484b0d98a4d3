"""The classes of a recipe's sections, with their keys, types and defaults. The section ``data`` has its classes in
data/sections.py, and the section ``delay`` in clock/delays.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from fastagg._types import Format, Plain, Values
from fastagg.sim.data.sections import OpenSection, Section, Share, one_of
from fastagg.sim.functions import is_function


class Algorithm(OpenSection):
    """The algorithm of the server. ``name`` is a preset of fastagg, or "module:function" for your own function. Every
    other key is a keyword of the preset or function. "none" stands for Python's None. The name "given" stands for a
    function that is passed to run()."""

    name: str


# The default widths of the models. The keys are the models' names: see fastagg.sim.models.
WIDTHS: dict[str, list[int]] = {
    "logistic": [],
    "mlp": [64],
    "cnn": [16, 32],
}


class Model(Section):
    """A network of the package. ``widths``: the sizes of the mlp's hidden layers (default [64]), or the numbers of the
    cnn's channels (default [16, 32]). ``norm``: the cnn's normalization."""

    name: Literal["logistic", "mlp", "cnn"] = "mlp"
    widths: list[PositiveInt] = Field(default=[64])
    norm: Literal["batch", "group", "none"] = "batch"

    @model_validator(mode="before")
    @classmethod
    def _default_widths(cls, values: object) -> object:
        if not isinstance(values, dict) or "widths" in values:
            return values
        return {**values, "widths": WIDTHS.get(values.get("name", "mlp"), [])}


class ModelFunction(OpenSection):
    """Your own network. ``name`` is "module:function". The function takes the shape and the number of classes of the
    data, and the section's other keys. It returns the network. If the data is text, the function may also take the
    data's attribute ``text``. The name "given" stands for a function that is passed to run()."""

    name: str


if TYPE_CHECKING:
    AnyModel = Model | ModelFunction
else:
    AnyModel = one_of(Model, ModelFunction, default="logistic")


class Client(Section):
    """Local training with SGD, or with another ``optimizer``. ``lr`` (eta_l), ``momentum`` and ``weight_decay`` have
    torch's meaning. A client trains ``epochs`` passes over its samples, or ``steps`` mini-batches of ``batch_size``
    samples. The default is 1 epoch.

    ``mu`` is the weight of FedProx's proximal term. 0 turns the term off. A client's n-th dispatch (from 0) trains with
    the learning rate ``lr * lr_decay**n``. ``clip_norm`` limits the norm of a mini-batch's gradient. None: no limit.
    The optimizers "adam" and "adamw" have torch's defaults, except for lr and weight decay.
    """

    lr: PositiveFloat
    batch_size: PositiveInt = 50
    epochs: PositiveInt | None = None
    steps: PositiveInt | None = None
    momentum: Share = 0.0
    weight_decay: float = Field(0.0, ge=0)
    mu: float = Field(0.0, ge=0)
    lr_decay: float = Field(1.0, gt=0, le=1)
    clip_norm: PositiveFloat | None = None
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"

    @model_validator(mode="after")
    def _momentum_of_sgd(self) -> Client:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f'momentum is of the optimizer "sgd", not of "{self.optimizer}"')
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_amount_of_work(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        amounts = [key for key in ("epochs", "steps") if values.get(key) not in (None, "none")]
        if len(amounts) == 2:
            raise ValueError("give epochs or steps, not both")
        return values if amounts else {**values, "epochs": 1}

    def lr_of(self, number: int) -> float:
        """Return the learning rate of a client's ``number``-th dispatch (from 0)."""
        return self.lr * self.lr_decay**number

    def steps_of(self, size: int, local_steps: int | None) -> int:
        """Return how many mini-batches a client with ``size`` samples trains. ``local_steps``: the number that the
        server sent (AsyncFedED's adaptive K), which is then returned. None: ``epochs`` or ``steps`` decides."""
        if local_steps is not None:
            return local_steps
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * -(-size // min(self.batch_size, size))

    def lengths(self, size: int, local_steps: int | None) -> list[int]:
        """Return the number of samples of each mini-batch. The last mini-batch of an epoch has the remaining samples.
        The arguments are those of :meth:`steps_of`."""
        batch_size = min(self.batch_size, size)
        per_epoch = -(-size // batch_size)
        return [
            min(batch_size, size - step % per_epoch * batch_size) for step in range(self.steps_of(size, local_steps))
        ]


def _named(name: str | None) -> str | None:
    if name is not None and not is_function(name):
        raise ValueError(f'expected "module:function", got {name!r}')
    return name


FunctionName = Annotated[str | None, AfterValidator(_named)]


class UnlabelledData(Section):
    """Unlabelled data for FedEcho. A ``share`` above 0 of the test set is used without labels, not for testing. With a
    ``share`` of 0 the data's own unlabelled samples are used. ``samples``: the largest number of samples used."""

    share: Share = 0.0
    samples: PositiveInt = 2000


class Distill(Section):
    """FedEcho's distillation. ``alpha``: the weight of the KL term, one number or [alpha_min, alpha_max]. ``alpha``,
    ``lr``, ``steps``, ``batch_size`` and ``clip_norm`` are the settings of fastagg.Distillation with these names."""

    alpha: float | list[float] = Field(default=[0.2, 0.8])
    clip_norm: PositiveFloat | Literal["none"] = 5.0
    lr: PositiveFloat = 3e-6
    steps: PositiveInt | None = None
    batch_size: PositiveInt = 128


class UserFunctionNames(Section):
    """Your own functions ``train``, ``loss``, ``metric``, ``change`` and ``personal``, each as "module:function". See
    docs/own_functions.md. "given" stands for a function that is passed to run(). ``keywords``: further arguments of
    ``train``.
    """

    train: FunctionName = None
    loss: FunctionName = None
    metric: FunctionName = None
    change: FunctionName = None
    personal: FunctionName = None
    keywords: Plain = Field(default={})


class Dropout(Section):
    """A ``share`` of the clients stops answering during the run (ACE Figure 3). ``after``: the finished share of the
    run, from 0 to 1, at which these clients stop."""

    share: Share = 0.0
    after: Share = 0.5


class Attack(Section):
    """A ``share`` of the clients, drawn at random, lies. A liar changes its update u, or the labels of its data.

    ``sign_flip`` sends -strength*u. ``scaling`` sends strength*u. Two attacks use the mean m and the standard deviation
    s of each element over the last 16 updates of honest clients: ``alie`` sends m - strength*s (Baruch et al. 2019),
    and ``inner_product`` sends -strength*m (Xie et al. 2020). With ``label_flip``, label y becomes classes - 1 - y. The
    default of ``strength`` is 1 for sign_flip, 10 for scaling, 1.5 for alie, and 0.5 for inner_product.
    """

    name: Literal["none", "sign_flip", "scaling", "alie", "inner_product", "label_flip"] = "none"
    share: Share = 0.2
    strength: PositiveFloat | None = None


class Encoding(Section):
    """The encoding of updates and models. ``format``: the format of updates (docs/encoding.md), which is a format of
    :func:`fastagg.encode`, or "topk". With "topk" a ``share`` of the elements is sent, in the format ``values``.
    ``feedback``: whether clients add the part of an update that was not sent to their next update. ``download``: the
    format of the models that the server sends. Rounding to this format has no bias. "none" means no encoding.
    """

    format: Literal["none", Format, "topk"] = "none"
    share: Annotated[float, Field(gt=0, le=1)] = 0.01
    values: Values = "bf16"
    feedback: bool = False
    download: Literal["none", "bf16", "int8"] = "none"


class Participation(Section):
    """The clients that train. With ``rule`` "concurrency", ``concurrency`` clients (M_c) train at the same time. With
    "all", every client trains whenever it is available. With "round", for synchronous algorithms, a round has
    algorithm.clients_per_round clients.

    ``sampling``: how the next idle client is chosen. With "uniform", all idle clients have the same chance. With
    "availability", all idle clients that are available have the same chance. ``file`` is then a CSV file of the times
    at which clients are available (client,begin,end). These times repeat after the virtual time ``period``. None: they
    do not repeat. With "module:function", your own function of (idle clients, virtual time, generator) chooses. "given"
    stands for a function that is passed to run().
    """

    rule: Literal["concurrency", "all", "round"] = "all"
    concurrency: PositiveInt | None = None
    sampling: str = "uniform"
    file: str | None = None
    period: PositiveFloat | None = None

    @model_validator(mode="after")
    def _rule_with_its_keys(self) -> Participation:
        if self.sampling not in ("uniform", "availability") and not is_function(self.sampling):
            known = "'uniform', 'availability' or 'module:function'"
            raise ValueError(f"sampling should be {known}, got {self.sampling!r}")
        if self.rule == "all" and self.sampling not in ("uniform", "availability"):
            raise ValueError('with rule "all" every client trains all the time: there is nothing to sample')
        if (self.sampling == "availability") != (self.file is not None) or (self.period and self.file is None):
            raise ValueError('sampling "availability" needs the key file, the others take neither file nor period')
        if (self.rule == "concurrency") != (self.concurrency is not None):
            raise ValueError('rule = "concurrency" needs the key concurrency, the other rules do not take it')
        return self


class RunSettings(Section):
    """The run ends after ``versions`` server versions, ``uploads`` client updates or ``time`` units of virtual time,
    whichever comes first.

    The model is tested every ``evaluate_every`` versions, at the start, and at the last versions. ``target``: a test
    accuracy. The result has the time at which the target is first reached. ``client_test``: the share of each client's
    samples that is used for the client's own test, and not for training. 0: no test. ``torch_threads``: the number of
    torch's threads. ``device``: the device of the data, the training and the server ("cpu", "cuda", "cuda:1").
    ``checkpoint_every``: wall-clock seconds between checkpoints. 0: a checkpoint after every client update. ``fused``:
    whether clients train without torch if model and settings allow this. The results are the same up to rounding.
    """

    versions: PositiveInt | None = None
    uploads: PositiveInt | None = None
    time: PositiveFloat | None = None
    evaluate_every: PositiveInt = 10
    client_test: Share = 0.0
    target: float = Field(0.9, gt=0, le=1)
    torch_threads: PositiveInt = 1
    device: str = "cpu"
    checkpoint_every: float = Field(60.0, ge=0)
    fused: bool = True

    @model_validator(mode="after")
    def _some_end(self) -> RunSettings:
        if self.versions is None and self.uploads is None and self.time is None:
            raise ValueError("give at least one of versions, uploads, time")
        return self
