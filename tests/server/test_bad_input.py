"""Bad updates and models raise a named error with the expected and the given value, and leave the state unchanged."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.bits import digest
from support.liars import CLAIMED, Impostor, Lying, LyingArray, fake, freed, nested
from support.models import Residual
from torch import Tensor, nn

import fastagg
from fastagg import errors
from fastagg.errors import DTypeMismatch, NonFiniteUpdate, ShapeMismatch
from fastagg.model import ModelState

SERVERS = {
    "FADAS": lambda x, **k: fastagg.FADAS(x, buffer_size=3, **k),
    "FedBuff": lambda x, **k: fastagg.FedBuff(x, buffer_size=2, **k),
    "FedAsync": lambda x, **k: fastagg.FedAsync(x, policy="hinge", **k),
    "AsyncFedED": lambda x, **k: fastagg.AsyncFedED(x, lam=1.0, eps=1.0, **k),
    "ACE": lambda x, **k: fastagg.ACE(x, lr=0.1, num_clients=3, cache="int8", warmup="partial", **k),
    "ACED": lambda x, **k: fastagg.ACED(x, lr=0.1, num_clients=3, max_delay=1, warmup="partial", **k),
    "CA2FL": lambda x, **k: fastagg.CA2FL(x, num_clients=3, buffer_size=2, cache="int4", **k),
    "FedAC": lambda x, **k: fastagg.FedAC(x, lr=0.1, buffer_size=2, **k),
    "FedAvg": lambda x, **k: fastagg.FedAvg(x, clients_per_round=2, **{"weighting": "uniform", **k}),
}
D = CLAIMED


def model(form: str) -> Any:
    """The same kind of model in every form; half precision and running statistics where the form can hold them."""
    torch.manual_seed(0)
    if form == "module":
        return Residual()
    if form == "state_dict":
        return {
            "w": torch.randn(20, 10),
            "bn.running_mean": torch.zeros(4),
            "bn.num_batches_tracked": torch.tensor(0),
            "half": torch.randn(100).half(),
        }
    if form == "list":
        return [torch.randn(20, 10).numpy(), torch.randn(99).half().numpy(), torch.randn(1).numpy()]
    return torch.randn(D)


def update_like(form: str, value: float = 0.25) -> Any:
    """A good update for :func:`model`."""
    if form == "module":
        return {
            k: torch.full_like(v, value if v.is_floating_point() else 3) for k, v in Residual().state_dict().items()
        }
    if form == "state_dict":
        return {k: torch.full_like(v, value if v.is_floating_point() else 3) for k, v in model(form).items()}
    if form == "list":
        return [np.full_like(a, value) for a in model(form)]
    return torch.full((D,), value)


def running(name: str, form: str = "flat", **settings: Any) -> fastagg.Server:
    """A server during a run: a half-full buffer, stale and fresh clients in flight."""
    server = SERVERS[name](model(form), **settings)
    for client in range(3):
        server.dispatch(client)
    server.receive(0, update_like(form, 0.5), num_samples=3)
    return server


def refused(name: str, form: str, kinds: tuple[type[BaseException], ...], words: str, **call: Any) -> None:
    """The call's error is of all ``kinds``, no bit changes, and later calls give the same results as without it."""
    settings = call.pop("settings", {})
    server, untouched = (running(name, form, **settings) for _ in range(2))
    before, live = digest(server.state_dict()), server.flat.clone()
    views = digest(server.parameters())
    given = {"client": 1, "update": update_like(form), "num_samples": 5, **call}
    for kind in (*kinds, errors.FastaggError):
        with pytest.raises(kind, match=words) as caught:
            server.receive(**given)
    if "kind" not in given:
        (outcome,) = server.receive_many([tuple(given.get(n) for n in ("client", "update", "version", "num_samples"))])
        assert type(outcome) is caught.type and str(outcome) == str(caught.value)
    assert digest(server.state_dict()) == before
    assert digest(server.flat) == digest(live) and digest(server.parameters()) == views
    for client in (1, 2) if name != "FedAvg" else (1,):
        good = update_like(form, 0.125)
        assert server.receive(client, good, num_samples=7) == untouched.receive(client, good, num_samples=7)
    assert digest(server.state_dict()) == digest(untouched.state_dict())


def at(position: int, value: float = math.nan, dtype: torch.dtype = torch.float32) -> Tensor:
    update = torch.zeros(D, dtype=dtype)
    update[position] = value
    return update


SHAPE, DTYPE, FINITE = (
    (ShapeMismatch, ValueError),
    (DTypeMismatch, TypeError, ValueError),
    (NonFiniteUpdate, ValueError),
)
CLIENT, VERSION = (errors.UnknownClient, KeyError), (errors.UnknownVersion, KeyError)
CONFIG = (errors.ConfigError, ValueError)
BAD: dict[str, tuple[dict[str, Any], tuple[type[BaseException], ...], str]] = {
    "too short": ({"update": torch.zeros(D - 1)}, SHAPE, r"expected shape \[300\], got \[299\]"),
    "too long": ({"update": torch.zeros(D + 1)}, SHAPE, r"expected shape \[300\], got \[301\]"),
    "2-D": ({"update": torch.zeros(D, 1)}, SHAPE, r"expected shape \[300\], got \[300, 1\]"),
    "0-D": ({"update": np.float32(1)}, SHAPE, r"expected shape \[300\], got \[\]"),
    "arrays": ({"update": [torch.zeros(D), torch.zeros(1)]}, SHAPE, "expected 1 arrays, got 2"),
    "no arrays": ({"update": []}, SHAPE, "expected 1 arrays, got 0"),
    "a mapping": ({"update": {"w": torch.zeros(D)}}, SHAPE, "expected a 1-D array, got a mapping"),
    "float64": ({"update": torch.zeros(D, dtype=torch.float64)}, DTYPE, r"expected .*float32.*got torch\.float64"),
    "float64 NumPy": ({"update": np.zeros(D)}, DTYPE, "expected float32.*got a float64 array"),
    "integers": ({"update": np.zeros(D, dtype=np.int32)}, DTYPE, "got a int32"),
    "bool": ({"update": torch.zeros(D, dtype=torch.bool)}, DTYPE, r"got torch\.bool"),
    "complex": ({"update": torch.zeros(D, dtype=torch.complex64)}, DTYPE, "complex64"),
    "big endian": ({"update": np.zeros(D, dtype=">f4")}, DTYPE, "got a >f4"),
    "sparse": ({"update": torch.zeros(D).to_sparse()}, DTYPE, "expected dense.*sparse_coo"),
    "no numbers": ({"update": torch.zeros(D, device="meta")}, DTYPE, "meta"),
    "objects": ({"update": np.array([None] * D)}, DTYPE, "got a object array"),
    "freed": ({"update": freed(torch.zeros(D))}, DTYPE, "300 numbers.*memory was freed"),
    "freed parameter": ({"update": freed(nn.Parameter(torch.zeros(D)))}, DTYPE, "memory was freed"),
    "freed half": ({"update": freed(torch.zeros(D).half())}, DTYPE, "memory was freed"),
    "freed view": ({"update": freed(torch.zeros(D + 5)[5:])}, DTYPE, "memory was freed"),
    "freed strided": ({"update": freed(torch.zeros(2 * D)[::2])}, DTYPE, "memory was freed"),
    "freed behind": ({"update": freed(torch.zeros(D + 5)[5:], 4 * D)}, DTYPE, "memory was freed"),
    "freed in part": ({"update": [freed(torch.zeros(D), 4 * D - 1)]}, DTYPE, "memory was freed"),
    "fake": ({"update": fake()}, DTYPE, "numbers in memory, got FakeTensor"),
    "nested": ({"update": nested(torch.strided)}, DTYPE, "nested tensor"),
    "jagged": ({"update": nested(torch.jagged)}, DTYPE, "got NestedTensor"),
    "masked": ({"update": np.ma.masked_array(np.zeros(D, np.float32), [True] * D)}, DTYPE, "masked array"),
    "lying": ({"update": torch.zeros(3).as_subclass(Lying)}, SHAPE, r"expected shape \[300\], got \[3\]"),
    "lying array": ({"update": np.zeros(3, np.float32).view(LyingArray)}, SHAPE, r"got \[3\]"),
    "lying type": ({"update": np.zeros(D).view(LyingArray)}, DTYPE, "got a float64 array"),
    "impostor": ({"update": Impostor(Tensor)}, DTYPE, "got Impostor"),
    "NumPy impostor": ({"update": Impostor(np.ndarray)}, DTYPE, "got Impostor"),
    "opaque": ({"update": torch.zeros(D).to_mkldnn()}, DTYPE, "mkldnn"),
    "text": ({"update": "nonsense"}, DTYPE, "expected a torch tensor.*got str"),
    "NaN first": ({"update": at(0)}, FINITE, "NaN or infinity"),
    "NaN last": ({"update": at(D - 1)}, FINITE, "NaN or infinity"),
    "Inf first": ({"update": at(0, math.inf)}, FINITE, "NaN or infinity"),
    "-Inf": ({"update": at(7, -math.inf)}, FINITE, "NaN or infinity"),
    "fp16 -Inf": ({"update": at(D - 1, -math.inf, torch.float16)}, FINITE, "NaN or infinity"),
    "bf16 NaN": ({"update": at(150, dtype=torch.bfloat16)}, FINITE, "NaN or infinity"),
    "unknown client": ({"client": 99}, CLIENT, "client 99"),
    "version never sent": ({"version": 17}, VERSION, r"version 17 came, but it owes versions \[0\]"),
    "version below 0": ({"version": -1}, VERSION, "version -1 came"),
    "float version": ({"version": 0.0}, VERSION, r"expected a whole number, got 0\.0"),
    "versions": ({"version": np.array([0, 0])}, VERSION, "expected a whole number"),
    "answered already": ({"client": 0}, VERSION, "answered everything"),
    "NaN samples": ({"num_samples": math.nan}, CONFIG, "num_samples.*got nan"),
    "samples beyond fp32": ({"num_samples": 1e39}, CONFIG, "num_samples.*got 1e"),
    "samples beyond floats": ({"num_samples": 10**400}, CONFIG, "num_samples"),
    "samples of nothing": ({"num_samples": 1e-40}, CONFIG, "num_samples.*1e-30"),
    "many samples": ({"num_samples": np.array([1, 2])}, CONFIG, "num_samples"),
    "text samples": ({"num_samples": "3"}, CONFIG, "num_samples.*got '3'"),
    "other kind": ({"kind": "nothing"}, CONFIG, "got one of kind 'nothing'"),
}


OF_EACH_KIND = ("too short", "float64", "NaN last", "unknown client", "version never sent", "NaN samples")


@pytest.mark.parametrize(
    ("name", "what"),
    [(name, what) for name in SERVERS for what in (BAD if name == "FedBuff" else OF_EACH_KIND)],
)
def test_a_bad_update_changes_nothing(name: str, what: str) -> None:
    change, kinds, words = BAD[what]
    refused(name, "flat", kinds, words, **change)


def put(key: Any, value: Any) -> Any:
    """A spoiler: the update with one array replaced, added, or (None) taken away."""

    def spoil(update: Any) -> Any:
        update = dict(update) if isinstance(update, dict) else list(update)
        if value is None:
            del update[key]
        elif isinstance(update, list) and key == len(update):
            update.append(value)
        else:
            update[key] = value(update[key]) if callable(value) else value
        return update

    return spoil


def with_one(position: int, value: float) -> Any:
    def spoil(array: Any) -> Any:
        array = array.clone() if isinstance(array, Tensor) else array.copy()
        array.reshape(-1)[position] = value
        return array

    return spoil


VECTORS = ModelState(torch.zeros(300), torch.zeros(4), [torch.tensor(0)])
IN_FORM: dict[str, tuple[str, Any, tuple[type[BaseException], ...], str]] = {
    "module: NaN": ("module", put("head.bias", with_one(-1, math.nan)), FINITE, "in 'head.bias'"),
    "module: first Inf": ("module", put("stem.0.weight", with_one(0, math.inf)), FINITE, "in 'stem.0.weight'"),
    "module: buffer": ("module", put("body.1.running_var", with_one(3, math.nan)), FINITE, "buffers"),
    "module: missing": ("module", put("stem.0.weight", None), SHAPE, "missing 'stem.0.weight'; unknown none"),
    "module: one buffer": ("module", put("stem.1.running_mean", None), SHAPE, "missing 'stem.1.running_mean'"),
    "module: unknown": ("module", put("more", torch.zeros(1)), SHAPE, "missing none; unknown 'more'"),
    "module: shape": ("module", put("head.weight", torch.zeros(4, 3)), SHAPE, r"'head.weight'.*\[3, 4\].*\[4, 3\]"),
    "module: other": ("module", lambda _: nn.Linear(3, 3), SHAPE, r"got a model \(Linear\).*receive_model"),
    "module: counter": ("module", put("stem.1.num_batches_tracked", torch.tensor(1.5)), DTYPE, "integer.*float32"),
    "module: meta counter": (
        "module", put("stem.1.num_batches_tracked", torch.tensor(1, device="meta")), DTYPE, "batches_tracked.*meta"),
    "module: float64": ("module", lambda u: {k: v.double() for k, v in u.items()}, DTYPE, "integer|float64"),
    "module: buffer shape": ("module", put("stem.1.running_var", torch.ones(5)), SHAPE, r"running_var'.*\[4\].*\[5\]"),
    "module: variance": ("module", put("body.1.running_var", with_one(3, -1e-6)), CONFIG, "1.running_var'.*-1e-06"),
    "module: mean": ("module", put("stem.1.running_mean", with_one(0, 1e33)), FINITE, r"running_mean'.*mean.*1e\+33"),
    "module: count": ("module", put("stem.1.num_batches_tracked", torch.tensor(-1)), CONFIG, "tracked'.*count.*-1"),
    "module: freed": ("module", put("head.bias", freed(torch.zeros(3))), DTYPE, "'head.bias'.*freed"),
    "module: freed buffer": ("module", put("stem.1.running_var", freed(torch.ones(4))), DTYPE, "var'.*freed"),
    "module: fake": ("module", put("head.bias", fake()), DTYPE, "'head.bias'.*FakeTensor"),
    "module: nested buffer": ("module", put("stem.1.running_var", nested(torch.strided)), DTYPE, "var'.*nested"),
    **{
        f"vectors: {what}": (
            "state_dict", lambda _, change=change: VECTORS._replace(**change), SHAPE, "two vectors and a list of count")
        for what, change in {
            "buffers": {"buffers": torch.zeros(5)}, "length": {"flat": torch.zeros(5)}, "none": {"flat": None},
            "2-D": {"flat": torch.zeros(1, 300)}, "no counters": {"counters": None}, "numbers": {"counters": [1]},
            "counters": {"counters": [torch.tensor(1), torch.tensor(1)]},
        }.items()
    },
    "dict: another name": (
        "state_dict", lambda u: {("v" if k == "w" else k): v for k, v in u.items()}, SHAPE, "missing 'w'; unknown 'v'"),
    "dict: a dimension less": ("state_dict", put("w", torch.zeros(200)), SHAPE, r"'w'.*\[20, 10\].*\[200\]"),
    "dict: counters": (
        "state_dict", put("bn.num_batches_tracked", torch.zeros(2, dtype=torch.int64)), SHAPE, r"ed'.*\[\].*\[2\]"),
    "dict: int NumPy": ("state_dict", put("half", np.zeros(100, np.int32)), DTYPE, "'half'.*int32"),
    "dict: None": ("state_dict", put("w", lambda _: None), DTYPE, "'w'.*None"),
    "dict: Inf NumPy": ("state_dict", put("w", np.full((20, 10), np.inf, np.float32)), FINITE, "in 'w'"),
    "dict: masked": ("state_dict", put("w", np.ma.zeros((20, 10), np.float32)), DTYPE, "'w'.*masked"),
    "dict: lying": ("state_dict", put("w", torch.zeros(3).as_subclass(Lying)), SHAPE, r"'w'.*\[20, 10\].*\[3\]"),
    "dict: half": ("state_dict", put("half", with_one(99, -math.inf)), FINITE, "in 'half'"),
    "dict: buffer": ("state_dict", put("bn.running_mean", with_one(0, math.inf)), FINITE, "buffers"),
    "dict: complex buffer": (
        "state_dict", put("bn.running_mean", torch.zeros(4, dtype=torch.complex64)), DTYPE, "running_mean.*complex64"),
    "dict: sparse counter": (
        "state_dict", put("bn.num_batches_tracked", torch.tensor(1).to_sparse()), DTYPE, "batches_tracked.*sparse"),
    "dict: float64": ("state_dict", put("w", torch.zeros(20, 10).double()), DTYPE, "'w'.*float64"),
    "dict: int": ("state_dict", put("half", torch.zeros(100).int()), DTYPE, "'half'.*int32"),
    "dict: no array": ("state_dict", put("w", [1.0]), DTYPE, "got list"),
    "dict: transposed": ("state_dict", put("w", torch.zeros(10, 20)), SHAPE, r"'w'.*\[20, 10\].*\[10, 20\]"),
    "list: too few": ("list", put(2, None), SHAPE, "expected 3 arrays, got 2"),
    "list: too many": ("list", put(3, np.zeros(1, np.float32)), SHAPE, "expected 3 arrays, got 4"),
    "list: shape": ("list", put(2, np.zeros((), np.float32)), SHAPE, r"'2'.*\[1\].*\[\]"),
    "list: float64": ("list", put(0, np.zeros((20, 10))), DTYPE, "'0'.*float64"),
    "list: half NaN": ("list", put(1, with_one(98, math.nan)), FINITE, "in '1'"),
    "list: two bad": ("list", lambda u: [with_one(0, math.nan)(a) for a in u], FINITE, "in '0' and 2 more"),
    "list: a mapping": ("list", lambda u: dict(enumerate(u)), SHAPE, "expected a list of arrays.*got a mapping"),
    "list: flat": ("list", lambda _: torch.zeros(301), SHAPE, r"\[300\].*\[301\]"),
}  # fmt: skip


@pytest.mark.parametrize("what", IN_FORM)
@pytest.mark.parametrize("name", ["FedAsync", "CA2FL"])
def test_a_bad_array_in_an_update_changes_nothing(name: str, what: str) -> None:
    form, spoil, kinds, words = IN_FORM[what]
    refused(name, form, kinds, words, update=spoil(update_like(form)))


@pytest.mark.parametrize("what", [what for what in IN_FORM if "float64" not in what])  # which a model may be
def test_a_bad_array_in_a_trained_model_changes_nothing(what: str) -> None:
    form, spoil, kinds, words = IN_FORM[what]
    server = running("FedAvg", form)
    task, before = server.dispatch(1), digest(server.state_dict())
    with pytest.raises(kinds, match=f"trained model|{words}"):
        server.receive_model(task, spoil(update_like(form)))
    (outcome,) = server.receive_many([fastagg.Answer.to(task, spoil(update_like(form)))])
    assert isinstance(outcome, kinds) and digest(server.state_dict()) == before
