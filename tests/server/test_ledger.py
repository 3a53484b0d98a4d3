"""The ledger, exact sums, the active set and the scrub, each against a model that does it the slow way."""

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support import inside
from support.models import same
from support.presets import update
from support.properties import examples

import fastagg
from fastagg.errors import UnknownClient, UnknownVersion
from fastagg.model import ModelState

pytestmark = pytest.mark.kernel

D = 5
IDS = st.sampled_from([0, 1, 2, -1, 2**64 - 1, 2**63 - 1, -(2**63), "", "a", "b", "1", "é" * 256, "\0"])
NUMBERS = st.integers(0, 3)


class Clients(RuleBasedStateMachine):
    """Servers that step at every arrival, and who owes them what."""

    @initialize(numbered=st.booleans(), keeps=st.booleans())
    def start(self, numbered: bool, keeps: bool) -> None:
        how: dict[str, Any] = {"num_clients": 4} if numbered else {}
        self.keeps, self.numbered = keeps, numbered
        make = fastagg.FedAsync if keeps else fastagg.ASGD
        self.server = make(torch.zeros(D), **how) if keeps else make(torch.zeros(D), lr=1.0, **how)
        self.owed: dict[Any, list[int]] = {}
        self.last: dict[Any, int] = {}
        self.how: dict[tuple[Any, int], str] = {}  # how the task of a client and a version ended last
        self.models = {0: torch.zeros(D)}
        self.tasks: list[fastagg.Dispatch] = []

    def client(self, data: Any) -> Any:
        return data.draw(NUMBERS if self.numbered else IDS)

    @rule(data=st.data())
    def dispatch(self, data: Any) -> None:
        client = self.client(data)
        task = self.server.dispatch(client)
        assert (task.client, task.version) == (client, self.server.version) and type(task.client) is type(client)
        assert torch.equal(task.flat, self.models[task.version])
        self.tasks.append(task)
        self._sent(client, task.version)

    def _sent(self, client: Any, version: int) -> None:
        if version not in self.owed.setdefault(client, []):
            self.owed[client].append(version)
        self.last[client] = version

    @rule(data=st.data())
    def hand_on(self, data: Any) -> None:
        if not self.tasks:
            return
        task, client = data.draw(st.sampled_from(self.tasks)), self.client(data)
        if task.client not in self.last:
            with pytest.raises(UnknownClient):
                self.server.hand_on(task, client)
        elif task.version not in self.owed[task.client]:
            with pytest.raises(UnknownVersion):
                self.server.hand_on(task, client)
        else:
            given = self.server.hand_on(task, client)
            assert (given.client, given.version) == (client, task.version) and torch.equal(given.flat, task.flat)
            self._sent(client, task.version)

    @rule(data=st.data(), last=st.booleans())
    def receive(self, data: Any, last: bool) -> None:
        client = self.client(data)
        version = None if last else data.draw(st.integers(0, self.server.version + 1))
        wanted = self.last.get(client) if last else version
        given = torch.ones(D)
        if client not in self.last:
            ended = [how for (one, _), how in self.how.items() if one == client and type(one) is type(client)]
            words = "never sent"  # or it was long ago, or before a restart
            words += rf"|not known any more: its last task.* was ({'|'.join(set(ended))})" if ended else ""
            with pytest.raises(UnknownClient, match=words):
                self.server.receive(client, given, version)
        elif wanted not in self.owed[client]:
            held = sorted(self.owed[client])
            words = rf"owes versions \[{', '.join(map(str, held))}\]" if held else "answered everything"
            if (client, wanted) in self.how:  # the server remembers it for a while
                words += rf"|its task of version {wanted} was {self.how[client, wanted]}"
            with pytest.raises(UnknownVersion, match=words):
                self.server.receive(client, given, version)
        else:
            before = self.server.version
            receipt = self.server.receive(client, given, version)
            assert (receipt.client, receipt.version, receipt.delay) == (client, before + 1, before - wanted)
            self.owed[client].remove(wanted)
            self.how[client, wanted] = "answered"
            self.models[receipt.version] = self.server.flat.clone()

    @rule(data=st.data(), whole=st.booleans())
    def forget(self, data: Any, whole: bool) -> None:
        client = self.client(data)
        version = None if whole else data.draw(st.integers(0, self.server.version))
        if client not in self.last:
            with pytest.raises(UnknownClient):
                self.server.forget(client, version)
        elif whole:
            self.server.forget(client)
            self.how |= {(client, one): "forgotten" for one in self.owed[client]}
            del self.owed[client], self.last[client]
        elif version not in self.owed[client]:
            with pytest.raises(UnknownVersion):
                self.server.forget(client, version)
        else:
            self.server.forget(client, version)
            self.how[client, version] = "forgotten"
            self.owed[client].remove(version)

    @rule()
    def save_and_load(self) -> None:
        before = self.server.state_dict()
        self.server = fastagg.server.loading.server_from(before)
        assert same(self.server.state_dict(), before)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "server"):
            return
        ledger = inside.engine(self.server)
        assert ledger.known == len(self.last)
        state = ledger.tasks()
        ids = [int(c) for c in state["clients"]] if self.numbered else list(state["clients"])
        assert dict(zip(ids, state["last_sent"].tolist(), strict=True)) == self.last
        for client, versions in self.owed.items():
            assert sorted(ledger.owed(client)) == sorted(versions)
        in_flight = {version for versions in self.owed.values() for version in versions}
        kept = state["versions"]
        assert set(kept) == (in_flight if self.keeps else set())
        for version, kept_model in kept.items():
            assert torch.equal(kept_model, self.models[version])


Clients.TestCase.settings = examples(60, stateful_step_count=40)


def test_an_answer_after_a_task_was_given_up_is_what_is_remembered() -> None:
    server = fastagg.ASGD(torch.zeros(D), lr=1.0)
    server.dispatch("a")
    server.forget("a", 0)
    server.dispatch("a")  # of version 0, too
    server.receive("a", torch.ones(D))
    with pytest.raises(UnknownVersion, match="answered everything"):
        server.receive("a", torch.ones(D))


TestClients = Clients.TestCase


@pytest.mark.parametrize("expires", [False, True])
def test_a_crowd_that_comes_and_goes(expires: bool) -> None:
    """Of many clients, most of which are forgotten again: what is kept of the others stays."""
    draw, server = random.Random(expires), fastagg.ASGD(torch.zeros(1), lr=1.0, lease=1000.0 if expires else None)
    owed: dict[Any, set[int]] = {}
    last: dict[Any, int] = {}

    def agree() -> None:
        ledger = inside.engine(server)
        state = ledger.tasks()
        assert ledger.known == len(last)
        assert dict(zip(state["clients"], state["last_sent"].tolist(), strict=True)) == last
        assert all(sorted(ledger.owed(client)) == sorted(versions) for client, versions in owed.items())

    for _ in range(3):
        for _ in range(10_000):  # numbers in a row, far apart and negative, and names
            number = draw.randrange(5000)
            client = f"client {number}" if number % 4 == 0 else (number << 8 * (number % 7)) - 3 * (number % 2)
            last[client] = server.dispatch(client).version
            owed.setdefault(client, set()).add(last[client])
            if draw.random() < 0.6:
                server.forget(client, last[client])
                owed[client].remove(last[client])
            elif draw.random() < 0.003:
                server.receive(client, torch.ones(1))
                owed[client].remove(last[client])
        agree()
        for client in [client for client in last if draw.random() < 0.95]:
            server.forget(client)
            del owed[client], last[client]
        agree()
    if expires:
        inside.pass_time(server, 2000.0)
        server.expire()
    for client in [] if expires else last:
        server.forget(client)
    assert inside.known(server) == 0 and not inside.engine(server).tasks()["clients"]


# -- exact sums --------------------------------------------------------------------------------------------------

WEIGHTS = st.one_of(
    st.floats(1e-30, 1e30), st.floats(-99, 99).map(lambda e: float(np.float32(2.0**e))), st.just(1.0)
)  # what counts is the nearest fp32


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 3), WEIGHTS, st.integers(0, 9)), min_size=1, max_size=30),
    cut=st.integers(0, 30),
)
@examples(80)
def test_the_mean_by_weights_of_every_size(arrivals: list[tuple[int, float, int]], cut: int) -> None:
    """Rows with weights between 1e-30 and 1e30 come and go. What was added and removed leaves no error."""
    server = fastagg.ACE(torch.zeros(D), lr=1.0, num_clients=4, mode="direct", warmup="partial", weighting="samples")
    rows: dict[int, tuple[Fraction, np.ndarray[Any, Any]]] = {}
    for number, (client, weight, seed) in enumerate(arrivals):
        if number == cut:
            server = fastagg.server.loading.server_from(server.state_dict())
        given_ = update(seed, D).float()
        before = server.flat.double().numpy().copy()
        server.dispatch(client)
        server.receive(client, given_, num_samples=weight)
        rows[client] = (Fraction(float(np.float32(weight))), given_.double().numpy())
        total = sum((w for w, _ in rows.values()), Fraction(0))
        shares = [float(w / total) for w, _ in rows.values()]
        mean = sum(share * row for share, (_, row) in zip(shares, rows.values(), strict=True))
        size = max(float(np.abs(row).max()) for _, row in rows.values())
        after = server.flat.double().numpy()
        np.testing.assert_allclose(after - before, -mean, rtol=0, atol=4e-7 * (size + float(np.abs(after).max())))


# -- the active set ----------------------------------------------------------------------------------------------


class Active(RuleBasedStateMachine):
    """ACED's mean over whoever is fresh enough, with tasks that go out at any time."""

    N = 4

    @initialize(
        max_delay=st.integers(0, 4), freshness=st.sampled_from(["dispatch", "gradient"]),
        warmup=st.sampled_from(["full", "partial"]),
    )  # fmt: skip
    def start(self, max_delay: int, freshness: Any, warmup: Any) -> None:
        self.server = fastagg.ACED(
            torch.zeros(D), lr=1.0, num_clients=self.N, max_delay=max_delay, freshness=freshness, warmup=warmup
        )
        self.max_delay, self.freshness, self.full = max_delay, freshness, warmup == "full"
        self.owed: dict[int, list[int]] = {}
        self.sent: dict[int, int] = {}
        self.begun: dict[int, int] = {}
        self.rows: dict[int, np.ndarray[Any, Any]] = {}
        self.number = 0

    @rule(client=st.integers(0, N - 1))
    def dispatch(self, client: int) -> None:
        version = self.server.dispatch(client).version
        if version not in self.owed.setdefault(client, []):
            self.owed[client].append(version)
        self.sent[client] = version

    @rule(client=st.integers(0, N - 1), other=st.integers(0, N - 1), data=st.data())
    def hand_on(self, client: int, other: int, data: Any) -> None:
        """A relay gives a task to somebody else later: what that client was last sent is an old version."""
        if not self.owed.get(client):
            return
        version = data.draw(st.sampled_from(self.owed[client]))
        server = self.server
        task = fastagg.Dispatch(client, version, None, None, server.layout, ModelState(server.flat, torch.empty(0), []))
        server.hand_on(task, other)
        if version not in self.owed.setdefault(other, []):
            self.owed[other].append(version)
        self.sent[other] = version

    @rule(client=st.integers(0, N - 1), data=st.data())
    def receive(self, client: int, data: Any) -> None:
        if not self.owed.get(client):
            return
        version = data.draw(st.sampled_from(self.owed[client]))
        self.owed[client].remove(version)
        row = update(self.number, D).float()
        self.number += 1
        now, before = self.server.version, self.server.flat.double().numpy().copy()
        warm = not self.full or len(self.rows) == self.N
        receipt = self.server.receive(client, row, version)
        self.rows[client], self.begun[client] = row.double().numpy(), version
        since = self.sent if self.freshness == "dispatch" else self.begun
        active = [c for c in self.rows if not warm or now - since[c] <= self.max_delay]
        waits = self.full and len(self.rows) < self.N
        assert receipt.version == now + (not waits) and receipt.applied == (not waits and bool(active))
        mean = np.mean([self.rows[c] for c in active], axis=0) if receipt.applied else np.zeros(D)
        after = self.server.flat.double().numpy()
        np.testing.assert_allclose(after - before, -mean, rtol=0, atol=2e-6 * (1 + np.abs(after).max()))

    @rule()
    def save_and_load(self) -> None:
        before = self.server.state_dict()
        self.server = fastagg.server.loading.server_from(before)
        assert same(self.server.state_dict(), before)


Active.TestCase.settings = examples(120, stateful_step_count=50)
TestActive = Active.TestCase


# -- the scrub ---------------------------------------------------------------------------------------------------

SCRUBBED = {
    "ACE": lambda x, **k: fastagg.ACE(x, lr=0.1, num_clients=20, warmup="partial", **k),
    "ACE, by samples, int8": lambda x, **k: fastagg.ACE(
        x, lr=0.1, num_clients=20, warmup="partial", weighting="samples", cache="int8", **k
    ),
    "ACED": lambda x, **k: fastagg.ACED(x, lr=0.1, num_clients=20, warmup="partial", max_delay=7, **k),
    "CA2FL": lambda x, **k: fastagg.CA2FL(x, num_clients=20, buffer_size=3, **k),
}


def arrive(server: fastagg.Server, first: int, last: int, begin: int, end: int) -> None:
    draw = np.random.default_rng(first)
    for number in range(first, last):
        client = int(draw.integers(0, 20))
        server.dispatch(client)
        server.receive(client, update(number % 50, 70_000)[begin:end], num_samples=1.0 + number % 3)


def distance_from_its_rows(server: fastagg.Server) -> float:
    """The largest difference between the sum that is kept and the rows added up in float64."""
    state, held = inside.direction(server), inside.direction(server).native.state()
    cache = state.cache
    if "weights" in held:
        weights = {slot: float(w) for slot, w in enumerate(held["weights"]) if w}
    else:
        weights = {slot: 1.0 for _, slot in held["slots"]}
    total = torch.zeros(cache.size, dtype=torch.float64)
    for slot, weight in weights.items():
        total += weight * inside.row_in(cache, slot).double()
    return float((state.sum.double() - total).abs().max() / total.abs().max())


@pytest.mark.parametrize("name", SCRUBBED)
def test_the_sum_is_that_of_the_rows(name: str) -> None:
    """After two cycles, and with a checkpoint in the middle of one; a sum that was wrong is right again."""
    size = 3000
    server, whole = SCRUBBED[name](torch.zeros(size)), SCRUBBED[name](torch.zeros(size))
    arrive(server, 0, 100, 0, size), arrive(whole, 0, 100, 0, size)
    for turn in range(100, 260, 13):  # in the middle of passes: each takes two arrivals
        other = fastagg.server.loading.server_from(server.state_dict())
        arrive(other, turn, turn + 13, 0, size), arrive(whole, turn, turn + 13, 0, size)
        assert same(other.state_dict(), whole.state_dict())
        server = other
    assert distance_from_its_rows(server) < 1e-6
    inside.direction(server).sum.add_(1e-3)
    assert distance_from_its_rows(server) > 1e-6
    arrive(server, 300, 300 + 4 * 23 + 3, 0, size)
    assert distance_from_its_rows(server) < 1e-6


def test_a_heavy_row_that_leaves_takes_its_rounding_along() -> None:
    server = fastagg.ACE(torch.zeros(D), lr=1.0, num_clients=2, warmup="partial", weighting="samples")
    for client, weight, seed in ((0, 1e12, 0), (1, 1.0, 1), (0, 1.0, 2)):
        server.dispatch(client)
        before = server.flat.clone()
        server.receive(client, update(seed, D).float(), num_samples=weight)
    mean = (update(1, D).double() + update(2, D).double()) / 2
    torch.testing.assert_close((server.flat - before).double(), -mean, rtol=1e-3, atol=1e-6)
