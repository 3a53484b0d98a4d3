"""Servers against an independent NumPy float64 transcription of the papers' pseudo-code, over random event traces."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support import inside, oracle, reference
from support.properties import examples
from support.traces import Case, Return, Send, Updates, cases, drive, synchronous_cases

import fastagg

pytestmark = pytest.mark.kernel

Build = Callable[..., Any]
CALM = ("normal", "sparse", "zero")
SHAPES = (*CALM, "tiny", "wide")
LR = 0.1
# A large eps: where updates cancel, Adam would blow their rounding errors up to steps of the learning rate.
ADAPTIVE = {"betas": (0.5, 0.9), "eps": 0.03}


def agree(ours: Any, theirs: Any, case: Case, shapes: tuple[str, ...] = CALM, within: float = 2e-6, **of: Any) -> None:
    """Same decisions at every event, same model up to float32 rounding."""
    updates = Updates(case.size, shapes)
    got = drive(ours, case.trace, of.get("update", updates), snapshot=lambda s: s.flat.double().numpy().copy())
    buffers = of.get("buffers")
    want = drive(theirs, case.trace, updates, snapshot=lambda s: s.x.copy(), make_buffers=buffers)
    scale = 1.0
    for a, b in zip(got, want, strict=True):
        assert (a.event, a.sent_version, a.applied, a.version, a.delay, a.local_steps) == (
            b.event, b.sent_version, b.applied, b.version, b.delay, b.local_steps)  # fmt: skip
        assert (a.step_size or 0.0) == pytest.approx(b.step_size or 0.0, rel=1e-4)
        # The models drift apart by rounding, a few ulp of the largest number met so far per event.
        scale = max(scale, np.abs(b.x).max(initial=0.0))
        if b.applied is not None:
            scale = max(scale, float(np.abs(updates(b.event)).max(initial=0.0)))
        np.testing.assert_allclose(a.x, b.x, rtol=0, atol=within * scale * (1 + len(got) / 10))


# -- every preset ------------------------------------------------------------------------------------------------------

of, numbers = st.sampled_from, st.integers


class Rule(NamedTuple):
    """What its settings may be. Both sides give it one name, and the settings have the same names."""

    settings: dict[str, st.SearchStrategy[Any]]
    clients: bool = False  # whether it is told how many there are
    rows: bool = False  # whether it keeps a row for each, which may be small
    shapes: tuple[str, ...] = CALM


RULES = {
    "FedBuff": Rule({"buffer_size": numbers(1, 4), "lr": of([1.0, 0.3])}, shapes=SHAPES),
    "FADAS": Rule(
        {
            "lr": of([1e-3, 0.1]), "buffer_size": numbers(1, 4), "betas": of([(0.9, 0.99), (0.0, 0.0), (0.6, 0.9)]),
            "eps": st.just(0.03), "delay_threshold": of([None, 0, 1, 3]), "delay_rule": of(["scaled", "reciprocal"]),
            "bias_correction": st.booleans(),
        },
        shapes=SHAPES,
    ),
    "FedAsync": Rule({"alpha": of([1.0, 0.6, 0.1]), "policy": st.just("constant")}, shapes=SHAPES),
    "FedAsync, hinge": Rule(
        {"alpha": of([1.0, 0.6]), "policy": st.just("hinge"), "a": of([10.0, 0.5]), "b": of([4.0, 1.0])}, shapes=SHAPES
    ),
    "FedAsync, polynomial": Rule(
        {"alpha": of([1.0, 0.6]), "policy": st.just("polynomial"), "a": st.just(0.5)}, shapes=SHAPES
    ),
    "ASGD": Rule({"lr": st.just(LR)}),
    "DelayAdaptiveASGD": Rule({"lr": st.just(LR), "delay_threshold": numbers(0, 3), "stale": of(["drop", "scaled"])}),
    "DelayAdaptiveASGD, lipschitz": Rule(
        {"lr": st.just(LR), "delay_threshold": numbers(0, 3), "stale": st.just("lipschitz"), "lipschitz": st.just(2.0)}
    ),
    "ACE": Rule({"lr": st.just(LR), "warmup": of(["full", "partial"])}, clients=True, rows=True),
    "ACE, direct": Rule({"lr": st.just(LR), "warmup": of(["full", "partial"])}, clients=True),
    "ACED": Rule(
        {
            "lr": st.just(LR), "warmup": of(["full", "partial"]), "max_delay": numbers(0, 6),
            "freshness": of(["dispatch", "gradient"]),
        },
        clients=True, rows=True,
    ),
    "CA2FL": Rule(
        {"lr": st.just(0.5), "buffer_size": numbers(1, 4), "repeat": of(["start", "latest"])}, clients=True, rows=True
    ),
    "FedAC": Rule({"lr": st.just(0.01), "buffer_size": numbers(1, 4), **{k: st.just(v) for k, v in ADAPTIVE.items()}}),
    "FedAvg": Rule({"lr": st.just(0.5)}),
    "FedMedian": Rule({"lr": of([1.0, 0.5])}, shapes=SHAPES),
    "FedTrimmedAvg": Rule({"lr": st.just(0.5), "beta": of([0.0, 0.2, 0.45])}, shapes=SHAPES),
    "FedAvgM": Rule({"lr": st.just(0.5), "beta": st.just(0.8)}),
    **{name: Rule({"lr": st.just(0.05), **{k: st.just(v) for k, v in ADAPTIVE.items()}})
       for name in ("FedAdam", "FedYogi", "FedAMS")},
    "FedAdagrad": Rule({"lr": st.just(0.05), "beta": st.just(0.5), "eps": st.just(0.03)}),
    "DiLoCo": Rule({"lr": st.just(0.7), "momentum": of([0.9, 0.0])}),
    "AsyncDiLoCo": Rule({"lr": of([0.7, 0.1]), "momentum": of([0.9, 0.5]), "period": numbers(1, 5)}),
    "DecoupledDiLoCo": Rule(
        {"weighting": st.just("samples"), "buffer_size": numbers(1, 4), "lr": st.just(0.3), "momentum": of([0.9, 0.5])}
    ),
    "RingmasterASGD": Rule({"lr": st.just(LR), "delay_threshold": numbers(1, 4)}),
}  # fmt: skip
SYNCHRONOUS = (
    "DiLoCo", "FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedAMS", "FedAdagrad", "FedMedian", "FedTrimmedAvg",
)  # fmt: skip
UNIFORM = ("FedMedian", "FedTrimmedAvg")  # what takes no numbers of samples
COMMON = {"clip_norm": of([0.5, 3.0]), "weighting": of(["uniform", "samples"])}


def stored(format: str, seed: int) -> Callable[[int, Any], Any]:
    """Rows rounded exactly as the package stores them, for the oracle."""
    arrivals = [0]

    def store(client: int, row: Any) -> Any:
        bits = reference.random_bits(seed, arrivals[0], client, len(row))
        arrivals[0] += 1
        data, scales = reference.encode(torch.from_numpy(np.asarray(row, np.float32)), bits, format)
        return reference.decode(data, scales, format, len(row)).double().numpy()

    return store


STATISTICS = {"running_mean": np.zeros(2), "running_var": np.ones(2), "num_batches_tracked": np.array(0)}


def statistics(event: Any) -> dict[str, Any]:
    """A client's, which never enter the parameters' step."""
    rng = np.random.default_rng(event.seed)
    mean, var = rng.standard_normal(2).astype(np.float32), rng.random(2).astype(np.float32)
    return {"running_mean": mean, "running_var": var, "num_batches_tracked": np.array(int(rng.integers(100)))}


def named(weight: Any, buffers: dict[str, Any]) -> dict[str, torch.Tensor]:
    whole = {name: torch.as_tensor(value, dtype=None if np.ndim(value) == 0 else torch.float32)
             for name, value in buffers.items()}  # fmt: skip
    return {"weight": torch.from_numpy(weight.copy()), **{f"bn.{name}": value for name, value in whole.items()}}


@pytest.mark.parametrize("name", RULES)
@given(data=st.data())
@examples(160)
def test_a_rule_is_its_pseudo_code(name: str, data: Any) -> None:
    """With any settings, also with BatchNorm's statistics, and with small rows if it keeps rows."""
    rule, preset = RULES[name], name.partition(",")[0]
    how = {key: data.draw(values, label=key) for key, values in rule.settings.items()}
    how |= data.draw(st.fixed_dictionaries({}, optional=COMMON))
    if name in UNIFORM:
        how.pop("weighting", None)
    if name in SYNCHRONOUS:
        case, how["clients_per_round"] = data.draw(synchronous_cases())
    else:
        case = data.draw(cases(max_length=60 if rule.clients else 40))
    if rule.clients:
        how["num_clients"] = case.num_clients
    mine, its = dict(how), dict(how)
    if rule.rows and (cache := data.draw(of(["fp32", "bf16", "int8", "int4"]))) != "fp32":
        for side in (mine, its):  # a norm's last bit might decide how a row is rounded
            side.pop("clip_norm", None)
        mine |= {"cache": cache, "seed": 3}
        its["store"] = stored(cache, 3)
    if name == "ACE, direct":
        mine["mode"] = "direct"
    mode, within = data.draw(of([None, "mean", "latest", "keep"])), 1e-5 if name == "FedAC" else 2e-6
    if mode is None:
        ours, theirs = getattr(fastagg, preset)(case.x0, **mine), getattr(oracle, preset)(case.x0, **its)
        agree(ours, theirs, case, rule.shapes, within)
        return
    ours = getattr(fastagg, preset)(named(case.x0, STATISTICS), buffers=mode, **mine)
    theirs = getattr(oracle, preset)(case.x0, buffers=STATISTICS, buffer_rule=mode, **its)
    updates = Updates(case.size, rule.shapes)
    sent = lambda event: named(updates(event), statistics(event))  # noqa: E731
    agree(ours, theirs, case, rule.shapes, within, update=sent, buffers=statistics)
    for key, expected in theirs.buffers.items():
        np.testing.assert_allclose(ours.parameters()[f"bn.{key}"].numpy(), expected, rtol=1e-5, atol=1e-6)


@given(case=cases(), warmup=of(["full", "partial"]))
def test_ace_with_client_caches_is_ace(case: Case, warmup: Any) -> None:
    n = case.num_clients
    clients = [fastagg.clients.GradientDifference() for _ in range(n)]
    plain = Updates(case.size, CALM, torch.from_numpy)
    agree(
        fastagg.ACE(case.x0, lr=LR, num_clients=n, warmup=warmup, mode="client"),
        oracle.ACE(case.x0, lr=LR, num_clients=n, warmup=warmup),
        case, within=2e-5, update=lambda event: clients[event.client].difference(plain(event)),
    )  # fmt: skip


# A task of a version that is sent again, after an answer has changed how many steps its client is to take.
SENT_AGAIN = Case(2, 3, 0, [
    Send(0), Send(1), Return(0, None, 0, 1), Return(1, None, 0, 1), Send(0), Send(0), Send(0), Send(1),
    Return(0, None, 0, 1), Send(1), Return(1, 0, 0, 1), Send(1), Return(1, None, 0, 1), Send(1),
])  # fmt: skip


@example(case=SENT_AGAIN, common={}, how={"gamma_bar": 0.3, "kappa": 1.0, "gamma_max": 0.5})
@given(
    case=cases(),
    common=st.fixed_dictionaries({}, optional=COMMON),
    how=st.fixed_dictionaries(
        {"gamma_bar": of([0.3, 3.0]), "kappa": of([0.0, 1.0, 4.0])},
        optional={"gamma_max": of([0.5, 2.0]), "max_local_steps": st.just(12)},
    ),
)
@examples(200)
def test_asyncfeded(case: Case, common: dict[str, Any], how: dict[str, Any]) -> None:
    x0 = case.x0 * 0.1
    extra = {theirs: how[ours] for ours, theirs in (("gamma_max",) * 2, ("max_local_steps", "k_max")) if ours in how}
    parts = {"lam": 0.6, "eps": 0.9, **common}
    gammas = {name: how[name] for name in ("gamma_bar", "kappa")}
    theirs = Clear(oracle.AsyncFedED(x0, **parts, **gammas, euclidean=extra), **gammas, most=how.get("gamma_max"))
    drive(theirs, case.trace, Updates(case.size, CALM))
    assume(theirs.ok)  # no gamma so near a jump of the floor that float32 may fall on the other side
    again = oracle.AsyncFedED(x0, **parts, **gammas, euclidean=extra)
    agree(fastagg.AsyncFedED(x0, **parts, **how), again, case, within=2e-5)


class Clear:
    """Watches an oracle for gammas within rounding of a jump."""

    def __init__(self, server: Any, gamma_bar: float, kappa: float, most: float | None) -> None:
        self.server, self.gamma_bar, self.kappa, self.most, self.ok = server, gamma_bar, kappa, most, True
        self.dispatch, self.local_steps = server.dispatch, server.local_steps

    def receive(self, *arguments: Any, **keywords: Any) -> Any:
        euclidean = self.server.euclidean
        euclidean.last_gamma = None
        receipt = self.server.receive(*arguments, **keywords)
        gamma = euclidean.last_gamma
        if gamma is not None and gamma > 0:
            jump = (self.gamma_bar - gamma) * self.kappa
            near = self.kappa > 0 and abs(jump - round(jump)) < 1e-4 * (1 + abs(jump))
            self.ok &= not near and (self.most is None or abs(gamma - self.most) > 1e-4)
        return receipt


CORRECTION = {"c_ok": of([0.0, 0.5, 1.0]), "k_s": of([0.0, 5.0]), "k_d": of([0.0, 3.0]), "kappa": of([0.0, 1.0]),
              "beta_max": of([0.1, 2.0])}  # fmt: skip


@given(
    case=cases(max_length=60),
    parts=st.lists(st.floats(0, 1), max_size=6),
    how=st.fixed_dictionaries(
        {"lr": of([0.7, 0.1]), "momentum": of([0.9, 0.5]), "rho": of([1.0, 0.4])},
        optional={"clip_norm": of([0.5, 3.0])},
    ),
    correction=st.fixed_dictionaries({}, optional=CORRECTION),
    models=st.booleans(),
)
@examples(200)
def test_heloco_turns_every_tensor_and_sends_the_look_ahead(
    case: Case, parts: list[float], how: dict[str, Any], correction: dict[str, float], models: bool
) -> None:
    """A model of several tensors; what is sent is the oracle's look-ahead; a trained model is one from there."""
    places = [0, *sorted(round(part * case.size) for part in parts), case.size]
    sizes = [b - a for a, b in pairwise(places)]
    theirs = oracle.HeLoCo(case.x0, sizes, correction=correction, **how)
    ours = fastagg.HeLoCo(list(torch.from_numpy(case.x0).split(sizes)), **correction, **how)
    sent: dict[tuple[int, int | None], fastagg.Dispatch] = {}
    both: list[tuple[Any, Any]] = []

    def dispatch(client: int) -> fastagg.Dispatch:
        theirs.dispatch(client)
        task = sent[client, None] = sent[client, ours.version] = ours.dispatch(client)
        both.append((task.flat.double().numpy(), theirs.sent.copy()))
        return task

    def receive(client: int, update: Any, version: int | None = None, **_: Any) -> fastagg.Receipt:
        task = sent[client, version]
        whole = task.flat + torch.from_numpy(update)
        update = (whole - task.flat).numpy() if models else update
        theirs.receive(client, update, version)
        if models:
            receipt = ours.receive_model(task, [one.clone() for one in whole.split(sizes)])
        else:
            receipt = ours.receive(client, torch.from_numpy(update), task.version)
        both.append((ours.flat.double().numpy(), theirs.x.copy()))
        return receipt

    server = Calls(ours, receive)
    server.dispatch = dispatch
    drive(server, case.trace, Updates(case.size, CALM))
    assume(theirs.along.nearest > 1e-4)  # no cosine so near a jump that float32 may fall on the other side
    assert ours.version == theirs.t
    scale = max(1.0, *(np.abs(want).max(initial=0.0) for _, want in both)) if both else 1.0
    for got, want in both:
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * scale * (1 + len(both) / 10))


@given(case=cases(), common=st.fixed_dictionaries({}, optional=COMMON), m=numbers(1, 4))
def test_fedac_with_control_variates(case: Case, common: dict[str, Any], m: int) -> None:
    """A control change drawn from the event's update comes along with it."""
    ours = fastagg.FedAC(case.x0, lr=0.01, buffer_size=m, **ADAPTIVE, **common)
    theirs = oracle.FedAC(case.x0, lr=0.01, buffer_size=m, **ADAPTIVE, **common)
    for server, word in ((ours, "control"), (theirs, "control_delta")):
        receive = server.receive
        with_control = lambda c, u, _r=receive, _w=word, **k: _r(c, u, **{_w: np.cos(u)}, **k)  # noqa: E731
        drive(Calls(server, with_control), case.trace, Updates(case.size, CALM))
    np.testing.assert_allclose(ours.flat.numpy(), theirs.x, rtol=1e-4, atol=1e-4)
    wanted = np.broadcast_to(np.asarray(theirs.control, dtype=np.float64), (case.size,))
    np.testing.assert_allclose(ours.control.numpy(), wanted, rtol=1e-4, atol=1e-4)


class Calls:
    """A server whose updates go through a function."""

    def __init__(self, server: Any, receive: Build) -> None:
        self.dispatch, self.local_steps, self.receive = server.dispatch, getattr(server, "local_steps", None), receive


# -- any parts ---------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, tuple[Build, Build]] = {
    "sgd": (lambda: fastagg.SGD(0.3), lambda: oracle.SGD(0.3)),
    "momentum": (lambda: fastagg.Momentum(0.3, 0.8), lambda: oracle.Momentum(0.3, 0.8)),
    "adam": (lambda: fastagg.Adam(0.01, **ADAPTIVE), lambda: oracle.Adam(0.01, **ADAPTIVE)),
    "amsgrad": (lambda: fastagg.AMSGrad(0.01, **ADAPTIVE), lambda: oracle.AMSGrad(0.01, **ADAPTIVE)),
    "yogi": (lambda: fastagg.Yogi(0.01, **ADAPTIVE), lambda: oracle.Yogi(0.01, **ADAPTIVE)),
    "lookahead": (lambda: fastagg.Lookahead(0.01, **ADAPTIVE), lambda: oracle.FedACOptimizer(0.01, **ADAPTIVE)),
    "adagrad": (lambda: fastagg.Adagrad(0.01, 0.5, 0.03), lambda: oracle.Adagrad(0.01, 0.5, 0.03)),
    "nesterov": (lambda: fastagg.Nesterov(0.3, 0.8, 0.5), lambda: oracle.Nesterov(0.3, 0.8, 0.5)),
    "delayed": (lambda: fastagg.DelayedNesterov(0.3, 0.8, 3), lambda: oracle.DelayedNesterov(0.3, 0.8, 3)),
    "corrected": (
        lambda: fastagg.AMSGrad(0.01, **ADAPTIVE, bias_correction=True),
        lambda: oracle.AMSGrad(0.01, **ADAPTIVE, bias_correction=True),
    ),
}
# What every optimizer has, and what those with a second moment have.
DECAYS = ({}, {"weight_decay": 0.3}, {"weight_decay": 0.3, "decoupled_weight_decay": True})
SECONDS = ({}, {"eps_root": 0.02}, {"initial": 0.04}, {"eps_root": 0.001, "initial": 0.0025})
DIRECTIONS: dict[str, tuple[Build, Build]] = {  # of as many clients
    "single": (lambda n: fastagg.Single(), lambda n: oracle.Single()),
    "mixing": (lambda n: fastagg.Mixing(), lambda n: oracle.StaleModel()),
    "share": (lambda n: fastagg.Mixing(normalize=1500), lambda n: oracle.StaleModel(1500)),
    "buffer": (lambda n: fastagg.Buffer(3), lambda n: oracle.Buffer(3)),
    "weights": (lambda n: fastagg.Buffer(3, normalize="weights"), lambda n: oracle.Buffer(3, normalize="weights")),
    "clients": (lambda n: fastagg.Buffer(3, normalize=7), lambda n: oracle.Buffer(3, normalize=7)),
    **{
        rule: (lambda n, r=rule, h=how: fastagg.Robust(r, 4, **h), lambda n, r=rule, h=how: oracle.Robust(r, 4, **h))
        for rule, how in {
            "median": {},
            "trimmed": {"trim": 0.3},
            "geometric_median": {},
            "centered_clip": {"radius": 0.5},
        }.items()
    },
    "all": (fastagg.AllClients, oracle.AllClients),
    "active": (lambda n: fastagg.ActiveSet(n, max_delay=2), lambda n: oracle.ActiveSet(n, 2)),
    "calibrated": (lambda n: fastagg.Calibrated(n, 3), lambda n: oracle.Calibrated(n, 3)),
}
POLICIES: dict[str, tuple[Build, Build]] = {
    "constant": (fastagg.Constant, oracle.Constant),
    "hinge": (lambda: fastagg.Hinge(2.0, 1.0), lambda: oracle.Hinge(2.0, 1.0)),
    "polynomial": (lambda: fastagg.Polynomial(0.5), lambda: oracle.Polynomial(0.5)),
    "scaled": (lambda: fastagg.DelayAdaptive(1), lambda: oracle.DelayAdaptive(1)),
    "cosine": (lambda: fastagg.CosineGate(0.1, 40.5), lambda: oracle.CosineGate(0.1, 40.5)),
    "cutoff": (lambda: fastagg.Cutoff(2), lambda: oracle.Cutoff(2)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("policy", POLICIES)
@given(
    case=cases(max_length=15, size=of([1, 17, 1025])),
    decay=of(DECAYS),
    second=of(SECONDS),
    weighting=of(["uniform", "samples"]),
)
@examples(15)
def test_any_direction_with_any_optimizer_and_any_policy(
    optimizer: str, direction: str, policy: str, case: Case, decay: Any, second: Any, weighting: Any
) -> None:
    along, steps, stale = DIRECTIONS[direction], OPTIMIZERS[optimizer], POLICIES[policy]
    weighting = "uniform" if isinstance(along[0](1), fastagg.Robust) else weighting
    mine, its = steps[0](), steps[1]()
    more = {**decay, **(second if hasattr(mine, "eps_root") else {})}
    ours = fastagg.Server(
        case.x0, along[0](case.num_clients), replace(mine, **more), stale[0](), weighting=weighting
    )  # fmt: skip
    theirs = oracle.Composed(
        case.x0, along[1](case.num_clients), its.extended(**more), stale[1](), weighting=weighting,
        kind=ours.update_kind,
    )  # fmt: skip
    agree(ours, theirs, case)


@pytest.mark.parametrize("samples", [17, 215, 1000])
def test_a_sum_that_falls_with_this_answer_keeps_nothing_of_what_it_was(samples: int) -> None:
    ours = fastagg.Server(torch.zeros(1025), fastagg.AllClients(1), fastagg.SGD(1.0), weighting="samples")
    want = torch.zeros(1025, dtype=torch.float64)
    for number, count in enumerate((samples, 1)):
        gradient = torch.randn(1025, generator=torch.Generator().manual_seed(number))
        ours.dispatch(0)
        ours.receive(0, gradient, num_samples=count)
        want -= gradient.double()
    torch.testing.assert_close(ours.flat.double(), want, rtol=0, atol=1e-6)


@given(case=cases(), cache=of(["fp32", "bf16", "int8", "int4"]), warmup=of(["full", "partial"]))
def test_rules_that_are_one_for_some_settings_are_one_to_the_bit(case: Case, cache: Any, warmup: Any) -> None:
    how = {"lr": LR, "num_clients": case.num_clients, "cache": cache, "warmup": warmup}
    for servers in (
        (fastagg.ACED(case.x0, max_delay=10**6, **how), fastagg.ACE(case.x0, **how)),
        (fastagg.FedBuff(case.x0, lr=0.3, buffer_size=1), fastagg.Server(case.x0, fastagg.Single(), fastagg.SGD(0.3))),
    ):
        runs = [drive(s, case.trace, Updates(case.size), snapshot=lambda s: s.flat.clone()) for s in servers]
        assert all(torch.equal(a.x, b.x) for a, b in zip(*runs, strict=True))


# -- what clients do ---------------------------------------------------------------------------------------------------


def test_drift_correction_is_the_oracles() -> None:
    rng = np.random.default_rng(0)
    client, c_i = fastagg.clients.DriftCorrection(), np.zeros(5)
    for _ in range(3):
        x_s, y, control = (rng.standard_normal(5) for _ in range(3))
        delta, c_new = oracle.FedAC.correct(x_s, y, control, c_i, 4, 0.1)
        got, change = client.correct(*(torch.from_numpy(v) for v in (x_s, y, control)), steps=4, lr=0.1)
        np.testing.assert_allclose(got.numpy(), delta)
        np.testing.assert_allclose(change.numpy(), c_new - c_i)
        c_i = c_new


def test_proximal_term_is_the_oracles() -> None:
    model = torch.nn.Linear(3, 2).double()
    start = [torch.randn_like(p) for p in model.parameters()]
    (model(torch.ones(1, 3, dtype=torch.float64)) ** 2).sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    fastagg.clients.add_proximal_gradient_(model, start, mu=0.7)
    for p, g, x_t in zip(model.parameters(), plain, start, strict=True):
        wanted = oracle.fedprox_gradient(g.numpy(), p.detach().numpy(), x_t.numpy(), 0.7)
        np.testing.assert_allclose(p.grad.numpy(), wanted)


# -- small rows in the long run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["bf16", "int8", "int4"])
def test_small_caches_equal_fp32_in_expectation(format: Any) -> None:
    size, n, seeds = 400, 4, 300
    gradients = torch.from_numpy(np.random.default_rng(0).standard_normal((8, size)).astype(np.float32))

    def run(cache: Any, seed: int) -> torch.Tensor:
        server = fastagg.ACE(torch.zeros(size), lr=LR, num_clients=n, cache=cache, seed=seed)
        for turn, gradient in enumerate(gradients):
            server.dispatch(turn % n)
            server.receive(turn % n, gradient)
        return server.flat.double()

    exact = run("fp32", 0)
    runs = torch.stack([run(format, seed) - exact for seed in range(seeds)])
    score = runs.mean(0) / (runs.std(0) + 1e-9) * seeds**0.5
    assert float(score.abs().max()) < 6
    assert abs(float(score.mean())) < 5 / size**0.5
    # Each step's mean is off by at most a scale, 1/n of it for each row.
    bound = {"bf16": 2**-7, "int8": 1 / 127, "int4": 1 / 7}[format] * float(gradients.abs().max())
    assert float(runs.abs().max()) <= LR * 5 * bound


@pytest.mark.slow
@pytest.mark.parametrize("format", ["fp32", "int8"])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_the_mean_does_not_drift_in_a_million_arrivals(format: Any, bias: float) -> None:
    """With bias the rows agree, so that the sum is n times a row and a plain fp32 sum would lose tens of ulp."""
    size, n, arrivals = 4, 100, 1_000_000
    server = fastagg.ACE(torch.zeros(size), lr=0.0, num_clients=n, cache=format, warmup="partial", seed=1)
    rng = np.random.default_rng(0)
    pool = [torch.from_numpy((rng.standard_normal(size) * 0.1 + bias).astype(np.float32)) for _ in range(997)]
    for i in range(arrivals):
        client = i * 7919 % n
        server.dispatch(client)
        server.receive(client, pool[i % 997])
    state = inside.direction(server)
    rows = torch.stack([inside.row_in(state.cache, slot) for slot in range(n)])
    exact = rows.double().mean(0)
    largest = float(rows.abs().max())
    error = (state.sum.double() / n - exact).abs().max()
    # Added up again every 400 arrivals, and off by up to half an ulp of the sum at each of those since.
    assert float(error) <= 12 * float(np.spacing(np.float32(largest)))
