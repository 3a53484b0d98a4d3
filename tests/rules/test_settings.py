"""Settings of the parts that came later: what was written without them, what is refused, and what stays finite."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import fastagg
from fastagg import registry
from fastagg.errors import ConfigError, FastaggError

SET: dict[str, dict[str, Any]] = {
    "SGD": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "Momentum": {"weight_decay": 0.1},
    "Adam": {"eps_root": 0.1, "initial": 0.2, "eps": 0.0},
    "Lookahead": {"initial": 0.2},
    "Adagrad": {"eps_root": 0.1, "weight_decay": 0.1},
    "Buffer": {"normalize": "weights"},
    "Mixing": {"normalize": 5.0},
}


@pytest.mark.parametrize("name", SET)
def test_a_part_is_made_again_from_its_description(name: str) -> None:
    kind = "direction" if name in ("Buffer", "Mixing") else "optimizer"
    for settings in ({}, SET[name]):
        part = getattr(fastagg, name)(**settings)
        assert registry.part(kind, registry.describe(part)) == part


SERVER, X = partial(fastagg.Server, torch.zeros(4)), torch.zeros(4)
FADAS, BUFF, MIXES = (partial(preset, X) for preset in (fastagg.FADAS, fastagg.FedBuff, fastagg.FedAsync))
ACE = partial(fastagg.ACE, X, **{"lr": 0.1, "num_clients": 2})
EUCLIDEAN = partial(fastagg.AsyncFedED, X, **{"lam": 1.0, "eps": 1.0})
ROBUST = fastagg.Robust
LIMITS = ("lease", "max_delay", "max_open_per_client", "max_clients", "max_waiting")
# What takes a setting, its name, and values that it cannot have.
WRONG: list[tuple[Callable[..., Any], str, tuple[Any, ...]]] = [
    (FADAS, "lr", (-1e-3, math.nan, "fast")),
    (FADAS, "buffer_size", (0, 1.5, True)),
    (FADAS, "betas", ((0.9,),)),
    (FADAS, "eps", (0.0, 1e-60)),
    (FADAS, "delay_threshold", (-1,)),
    (FADAS, "delay_rule", ("other", "drop")),  # the second is another rule's
    (MIXES, "alpha", (0.0, 1.5)),
    (MIXES, "policy", ("other",)),
    (partial(MIXES, policy="hinge"), "a", (0.0,)),
    (partial(MIXES, policy="constant"), "a", (1.0,)),
    (MIXES, "normalize", (-1.0,)),
    (BUFF, "clip_norm", (0,)),
    (BUFF, "weighting", ("other",)),
    (BUFF, "buffers", ("other",)),
    (BUFF, "num_clients", (0,)),
    (BUFF, "seed", (-1,)),
    (BUFF, "device", ("nowhere", 2**70)),
    (BUFF, "tied", (5, [1], [(1.5,)], "ab")),
    (BUFF, "max_samples", (0, 1e-45)),
    (partial(fastagg.FedAvg, X, clients_per_round=2), "deterministic", ("no", 1, None)),
    (FADAS, "bias_correction", ("no", 1.0)),
    (FADAS, "decoupled_weight_decay", ("no", 0)),
    (partial(fastagg.Nesterov, moments="fp32"), "look_ahead", ("no",)),
    (partial(fastagg.Robust, "median"), "synchronous", ("no",)),
    (EUCLIDEAN, "max_local_steps", (2**40,)),
    (BUFF, "model_dtype", ("bf17", "fp32", torch.bfloat16)),
    *((BUFF, name, (-1, "soon", math.nan, True)) for name in LIMITS),
    (partial(BUFF, buffer_size=10, grace=1.0), "at_least", (11,)),
    (partial(BUFF, buffer_size=10, at_least=3), "grace", (-1.0,)),
    (ACE, "num_clients", (0, 10**12)),
    (ACE, "cache", ("int3",)),
    (ACE, "mode", ("clients",)),
    (partial(ACE, mode="client"), "cache", ("int8",)),
    (partial(fastagg.ACED, X, lr=0.1, num_clients=2), "max_delay", (-1,)),
    (EUCLIDEAN, "lam", (0.0,)),
    (EUCLIDEAN, "local_steps", (0,)),
    (partial(fastagg.DelayAdaptiveASGD, X, lr=0.1, delay_threshold=1, stale="lipschitz"), "lipschitz", (None,)),
    (SERVER, "optimizer", ("adam",)),
    (fastagg.SGD, "weight_decay", (-1.0,)),
    (fastagg.Adam, "eps", (0.0,)),
    (partial(fastagg.Adam, eps_root=1e-30), "eps", (0.0,)),
    (fastagg.Yogi, "eps_root", (-1.0,)),
    (fastagg.Adagrad, "initial", (-1.0,)),
    (fastagg.Buffer, "normalize", ("samples", 0)),
    (lambda buffer_size: ROBUST("median", buffer_size), "buffer_size", (0, 2000)),
    (fastagg.Nesterov, "momentum", (1.0,)),
    (fastagg.Nesterov, "dampening", (-0.1,)),
    (fastagg.DelayedNesterov, "period", (0,)),
    (fastagg.Aligned, "c_ok", (1.5,)),
    (fastagg.Aligned, "rho", (0.0,)),
    (fastagg.CosineGate, "cutoff", (0.0,)),
    (fastagg.Cutoff, "delay", (0,)),
    (BUFF, "fastest_steps", (0,)),
]
# Settings each of which could be, but not together, or not there.
SENSELESS: list[tuple[Callable[[], Any], str]] = [
    (lambda: FADAS(learning_rate=0.1), "unknown setting 'learning_rate'; did you mean 'lr'"),
    (lambda: SERVER(learning_rate=0.1), "unknown setting 'learning_rate'; known: answers_per_step"),
    (lambda: SERVER(fastagg.Mixing(kind="gradient")), "a gradient is no model"),
    (lambda: SERVER(fastagg.Differences(2), staleness=fastagg.Hinge()), "Differences takes no staleness weight"),
    (lambda: SERVER(fastagg.Differences(2), clip_norm=1.0), "Differences takes .* no clip_norm"),
    (lambda: SERVER(fastagg.Differences(2), weighting="samples"), "Differences takes .* no sample weights"),
    (lambda: SERVER(fastagg.AllClients(2), num_clients=3), "num_clients: the direction has 2, got 3"),
    (lambda: FADAS(betas=(1.0, 0.9)), r"betas\[0\]: expected .* got 1\.0"),
    (lambda: fastagg.CosineBuffer(normalize="weights"), "normalize: CosineBuffer divides by what"),
    (lambda: BUFF(buffer_size=10, at_least=3), "at_least|grace"),
    (lambda: BUFF(buffer_size=10, grace=1.0), "at_least|grace"),
    (lambda: BUFF(privacy={"noise": 1.0}), "Gaussian: unknown setting 'noise'; did you mean 'noise_multiplier'"),
    (lambda: BUFF(privacy={1: 1.0}), "Gaussian: expected settings by their names, got {1: 1.0}"),
    (lambda: BUFF(privacy={"noise_multiplier": 1.0, "clip_norm": {"norm": 1.0}}), "AdaptiveClip: unknown setting"),
    (lambda: SERVER(fastagg.CosineBuffer(10, at_least=3, grace=1.0)), "full"),
    (lambda: fastagg.CosineBuffer(None), "buffer_size"),
    *((lambda make=make: make(deterministic=True), "deterministic: it needs a synchronous rule")
      for make in (BUFF, FADAS, MIXES)),
    (lambda: fastagg.Nesterov(look_ahead=True, moments="8bit"), "moments: look_ahead"),
    (lambda: SERVER(fastagg.Aligned(), fastagg.SGD()), "optimizer: Aligned turns"),
    (lambda: SERVER(fastagg.Aligned(), fastagg.Momentum(moments="8bit")), "optimizer: Aligned turns"),
    (lambda: SERVER(fastagg.Mixing(), fastagg.Nesterov(look_ahead=True)), "look_ahead: clients are sent another model"),
    (lambda: BUFF().dispatch(0, speed=1.0), "speed: .*fastest_steps="),
    (lambda: BUFF(fastest_steps=9).dispatch(0, speed=-1.0), "speed: "),
    *((lambda more=more: SERVER(ROBUST("median", 5), **more), "num_clients: .* never fill a step of 5")
      for more in ({"num_clients": 4}, {"num_clients": 2, "answers_per_step": 2})),
    (lambda: ROBUST("krum", 10, f=2, at_least=6, grace=1.0), "krum: 6 updates"),
    (lambda: ROBUST("trimmed", 10, radius=2.0), "radius: a setting of centered_clip, not of trimmed"),
    (lambda: ROBUST("median", 10, at_least=6), "grace: needed with at_least"),
    (lambda: fastagg.set_num_threads(0), r"set_num_threads.*1\.\.4096, got 0"),
    (lambda: fastagg.set_isa("mmx"), "instruction set 'mmx' is not available here"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "name", "values"), WRONG)
def test_a_value_that_cannot_be_is_refused_by_name(
    make: Callable[..., Any], name: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        given = re.escape(repr(value).strip("(,)"))
        with pytest.raises(ConfigError, match=rf"^{name}.*{given}") as caught:
            make(**{name: value})
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("make", "words"), SENSELESS)
def test_settings_that_make_no_sense_together_say_why(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_weights_that_vanish_are_refused() -> None:
    server = fastagg.FedBuff(torch.ones(3), buffer_size=2, staleness=fastagg.Hinge(3e38, 0.0), normalize="weights")
    server.dispatch("slow")
    for client in ("ann", "bob"):
        server.dispatch(client)
        server.receive(client, torch.ones(3))
    before = server.state_dict()
    with pytest.raises(FastaggError, match="normalize: the sum of the updates' weights"):
        server.receive("slow", torch.ones(3))
    assert torch.equal(server.flat, before["flat"]) and server.version == 1


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("optimizer", [fastagg.SGD, fastagg.Momentum, fastagg.AMSGrad, fastagg.Adagrad])
def test_decay_leaves_everything_finite_or_is_refused(optimizer: Any, decoupled: bool) -> None:
    refused = 0
    for decay in (1e-3, 3.0, 1e19, 3e38):
        for lr in (1e-3, 3.0, 1e19, 3e38):
            rule = optimizer(lr, weight_decay=decay, decoupled_weight_decay=decoupled)
            server = fastagg.Server(torch.tensor([0.0, 1e-30, 1.0, -1e9]), optimizer=rule)
            for _ in range(12):
                server.dispatch(0)
                try:
                    server.receive(0, torch.tensor([0.0, 1.0, -1.0, 1e-20]))
                except fastagg.UpdateTooLarge:
                    refused += 1
                    break
                state = server.state_dict()
                assert all(torch.isfinite(t).all() for t in (server.flat, *state["moments"].values()))
    assert 0 < refused < 16


def test_presets_say_how_updates_count() -> None:
    for name, preset in registry.presets().items():
        if not name.endswith("ASGD") and name not in ("AsyncDiLoCo", "AsyncFedED", "FedProx", "HeLoCo"):
            assert "``uniform``" in str(preset.__doc__) or "``samples``" in str(preset.__doc__), name


def test_a_mixing_weight_is_at_most_one() -> None:
    made = [fastagg.FedAsync(torch.zeros(3), normalize=9, weighting="samples", alpha=0.5, **more)
            for more in ({}, {"max_samples": 18})]  # fmt: skip
    for server in made:
        task = server.dispatch("ann")
        if server is made[0]:
            with pytest.raises(ConfigError, match=r"normalize: .* 1\.5.*max_samples"):
                server.receive_model(task, torch.ones(3), 27)
            assert server.version == 0 and torch.equal(server.flat, torch.zeros(3))
        assert server.receive_model(task, torch.ones(3), 18 if server is made[0] else 27).applied
        assert torch.equal(server.flat, torch.ones(3))  # the weight is 1: the client's model
