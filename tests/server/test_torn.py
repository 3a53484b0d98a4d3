"""Whatever cuts a call short - Ctrl-C at any line, Python of a user's own that raises - leaves the state of before or
the state of after, to the bit. Memory that is not there: native/engine/allocations.cpp, durable/test_refusing.py."""

from __future__ import annotations

import contextlib
import copy
import gc
import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
import torch
from support import inside
from support.models import same
from support.operations import CHANGES, other
from support.presets import PRESETS, Call, calls, model, update
from torch import nn

import fastagg
from fastagg.errors import UnknownVersion

pytestmark = pytest.mark.kernel

D = 300
PACKAGE = os.path.dirname(fastagg.__file__) + os.sep

Act = Callable[[fastagg.Server], Any]
State = dict[str, Any]


class Cut:
    """Raises KeyboardInterrupt before the ``at``-th line that runs in the package; with None it only counts.

    Where a ``with`` is left its line runs once more. Signals do not fall there, between the last call of its body and
    the release of its lock, and neither do we. The garbage of earlier tests has finalizers in the package; Python
    swallows what they raise, and when they run is chance: the collector rests meanwhile.
    """

    def __init__(self, at: int | None) -> None:
        self.at, self.lines, self.line = at, 0, ""
        self.open: set[tuple[FrameType, int]] = set()

    def __enter__(self) -> Cut:
        self.before = sys.gettrace()
        gc.disable()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)
        gc.enable()

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and not self._leaves(frame):
            if self.lines == self.at:
                self.line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
            self.lines += 1
        return self._line

    def _leaves(self, frame: FrameType) -> bool:
        place = (frame, frame.f_lineno)
        if not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            return False
        self.open ^= {place}
        return place not in self.open


class Refused(KeyboardInterrupt):
    """No error of Python's own, so that nobody but a test takes it."""


class Calls(Cut):
    """Lets the ``at``-th call of Python's fail that the package makes, or that is made into it: of its functions, of a
    user's own rule, of torch, of native code. Where a ``with`` is left there is no call that could."""

    error: type[BaseException] = Refused

    def __enter__(self) -> Calls:
        gc.disable()
        sys.setprofile(self._calls)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _calls(self, frame: FrameType, event: str, _: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event not in ("call", "c_call") or name == "__exit__" or not file.startswith((PACKAGE, __file__)):
            return
        if self.lines == self.at:
            self.line = f"{event} in {file}:{frame.f_lineno}, {name}"
            self.lines += 1
            raise self.error
        self.lines += 1


class Raises(Calls):
    """With an error such as a user's own code may raise."""

    error = ZeroDivisionError


class Moment:
    """A server at one moment of a run, and the call that comes next."""

    def __init__(self, server: fastagg.Server, act: Act) -> None:
        self.server, self.act = server, act
        server.load_state_dict(server.state_dict())  # which writes what waits as vectors
        self.old = server.state_dict()

    def restore(self) -> None:
        self.server.load_state_dict(self.old)

    def play(self) -> State:
        self.restore()
        self.act(self.server)
        return self.server.state_dict()


def cut_everywhere(
    moment: Moment, again: Act | None = None, between: tuple[State, ...] = (), stride: int = 1, by: type[Cut] = Cut
) -> int:
    """Interrupt the call at each of its lines (or calls), or at every ``stride``-th; returns how many there are.

    Every run ends in the old or the new state (or one of those ``between``); from the old one the call gives the new
    one, and from the new one ``again`` is refused, if given.
    """
    new = moment.play()
    assert not same(moment.old, new), "this call changes nothing"
    assert same(moment.play(), new), "this call is not the same twice"
    moment.restore()
    with by(None) as count:
        moment.act(moment.server)
    ends = {"old": 0, "new": 0}
    for at in range(0, count.lines, stride):
        moment.restore()
        flat, views = (moment.server.flat, moment.server.parameters()) if at % 2 else (torch.empty(0), {})
        handed_out = flat.clone(), copy.deepcopy(views)  # which keeps the step from being in place
        with by(at) as cut, contextlib.suppress(KeyboardInterrupt, ZeroDivisionError):
            moment.act(moment.server)
            # A line more or less is a question of what else happens to be alive; the last lines are after the commit.
            assert cut.lines > 0.99 * count.lines, f"cut at {at} of {count.lines}, and it ended after {cut.lines} lines"
        assert not inside.engine(moment.server).holds_lock, cut.line
        assert same((flat, views), handed_out), f"{cut.line}: what was handed out has changed"
        held = moment.server.state_dict()
        if same(held, moment.old):
            assert by is Cut or ends["new"] == 0, f"{cut.line}: a call after one behind the commit, and nothing counts"
            ends["old"] += 1
            moment.act(moment.server)
            assert same(moment.server.state_dict(), new), cut.line
        elif same(held, new):
            ends["new"] += 1
            if again is not None:
                with pytest.raises(UnknownVersion):
                    again(moment.server)
                assert same(moment.server.state_dict(), new), cut.line
        else:
            assert any(same(held, state) for state in between), cut.line
    assert ends["old"]
    moment.restore()
    return count.lines


def run_until_a_step(server: fastagg.Server, name: str, size: int, least: int = 4) -> Call:
    """Some arrivals, so that everything holds something; returns the answer that makes the next step."""
    tasks: dict[int, list[int]] = {}
    played = list(calls(name, 12))
    for call in played:
        if call.number is None:
            tasks.setdefault(call.client, []).append(server.dispatch(call.client).version)
            continue
        if call.number >= least:
            probe = server.state_dict()
            stepped = server.receive(call.client, update(call.number, size), num_samples=2.0).applied
            server.load_state_dict(probe)
            if stepped:
                return call
        server.receive(call.client, update(call.number, size), num_samples=2.0)
    raise AssertionError("no step in twelve arrivals")


def stepping(name: str) -> tuple[fastagg.Server, Act]:
    """A server and an answer that makes it step."""
    server = PRESETS[name](model(D))
    call = run_until_a_step(server, name, D)
    assert call.number is not None
    given = update(call.number, D)
    return server, lambda s: s.receive(call.client, given, num_samples=2.0)


def echo(**settings: Any) -> fastagg.Server:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    data = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    distill = fastagg.Distillation(model=network, unlabelled=data, batch_size=3, steps=2, lr=0.01, eps=1e-3, **settings)
    return fastagg.FedEcho(network, num_clients=3, buffer_size=2, distill=distill)


def echo_stepping() -> tuple[fastagg.Server, Act]:
    server = echo()
    size = server.layout.size
    for client in (0, 1, 2):
        server.dispatch(client)
    for client in (0, 1, 2):
        server.receive(client, update(client, size) * 0.1)
    server.dispatch(0)
    return server, lambda s: s.receive(0, update(7, size) * 0.1)


@pytest.mark.parametrize("by", [Cut, Calls])
@pytest.mark.parametrize("name", PRESETS)
def test_an_interrupt_at_each_line_of_receive_and_at_each_call(name: str, by: type[Cut]) -> None:
    """Calls before the commit leave the old state, those behind it the new one, and there are none in it."""
    server, act = stepping(name)
    stride = 1 if name in ONE_OF_EACH or by is Calls else 5  # the others' lines are the same, with other numbers
    assert cut_everywhere(Moment(server, act), again=act, by=by, stride=stride) > 1


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("by", [Cut, Calls, Raises])
def test_what_cuts_distilling_short_leaves_the_server_as_it_was(by: type[Cut], stride: int) -> None:
    """What distilling took, in seconds, is no state."""
    server, act = echo_stepping()
    assert cut_everywhere(Moment(server, act), again=act, stride=stride, by=by) > 300


ONE_OF_EACH = (
    "FedBuff", "FedAsync, hinge", "AsyncFedED", "ACE, int8", "ACED, fp32", "CA2FL, int8", "FedAC", "FedAvg", "FedAMS",
    "FADAS, corrected", "FedAvg, deterministic",
)  # fmt: skip


ELSEWHERE = "receive", "receiving", "load_state_dict", "lr"  # the last is one native call


@pytest.mark.parametrize("what", [name for name in CHANGES if name not in ELSEWHERE])
def test_an_interrupt_at_each_line_of_an_operation(what: str) -> None:
    """Of what is done first (a task that goes out, the first of several answers) there may be all, and no part."""
    cut = 0
    for name in ONE_OF_EACH:
        server = PRESETS[name](model(D))
        call = run_until_a_step(server, name, D)
        for client in () if what in ("dispatch", "hand_on") else (call.client, other(call.client)):
            server.dispatch(client)
        moment = Moment(server, lambda s, client=call.client: CHANGES[what](s, client, 3))
        try:
            if same(moment.old, moment.play()):
                continue
        except fastagg.FastaggError:  # this rule has no such call
            continue
        between = []
        for first in ("dispatch", "receive", "receive_model"):
            moment.restore()
            with contextlib.suppress(fastagg.FastaggError):
                CHANGES[first](server, call.client, 3)
                between.append(server.state_dict())
        stride = 1 if name in ONE_OF_EACH[:3] else 5  # the others' lines are the same, with other numbers
        cut += cut_everywhere(moment, between=tuple(between), stride=stride) > 0
    assert cut


def test_an_interrupt_with_running_statistics_and_of_loading() -> None:
    params = {"w": model(20), "bn.running_mean": torch.zeros(4), "bn.num_batches_tracked": torch.tensor(2)}
    server = fastagg.FedBuff(params, buffer_size=2)
    given = {"w": update(0, 20), "bn.running_mean": torch.ones(4), "bn.num_batches_tracked": torch.tensor(3)}
    for client in range(2):
        server.dispatch(client)
    server.receive(0, given)
    act: Act = lambda s: s.receive(1, given)  # noqa: E731
    cut_everywhere(Moment(server, act), again=act)
    other = server.state_dict()
    server.dispatch(2)
    cut_everywhere(Moment(server, lambda s: s.load_state_dict(other)), stride=5)


def test_nothing_is_called_after_a_task_has_gone_out_to_a_client_that_tells_its_speed() -> None:
    server = fastagg.FedBuff(model(D), fastest_steps=50)
    assert cut_everywhere(Moment(server, lambda s: s.dispatch("b", speed=2.0)), by=Calls) > 1


@pytest.mark.parametrize("by", [Cut, Calls])
@pytest.mark.parametrize("sums", [False, True])
def test_an_interrupt_of_a_leaf_leaves_an_update_in_its_sum_and_its_count_or_in_neither(
    sums: bool, by: type[Cut]
) -> None:
    given = [torch.full((D,), 0.5), torch.linspace(-1, 1, D)]

    def one(update: torch.Tensor) -> fastagg.Leaf:
        leaf = fastagg.Leaf(model(D))
        leaf.fold(update, task="first")
        return leaf

    partial = one(given[1]).take()

    def add(leaf: fastagg.Leaf) -> None:
        leaf.fold_partial(partial, task="second") if sums else leaf.fold(given[1], task="second")

    whole = one(given[0])
    with by(None) as count:
        add(whole)
    total, ends = whole.take().total, set()
    for at in range(count.lines):
        leaf = one(given[0])
        with by(at), contextlib.suppress(KeyboardInterrupt):
            add(leaf)
        ends.add(leaf.count)
        with contextlib.suppress(fastagg.AlreadyCounted):
            add(leaf)
            assert ends != {2}
        found = leaf.take()
        assert found.updates == 2 and torch.equal(found.total, total)
    assert 1 in ends


# -- Python of others that raises --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Own(fastagg.Optimizer):
    """Momentum in plain torch."""

    def step(self, x: Any, direction: Any, state: Any, lr: float, round: int) -> Any:
        m = 0.5 * state["m"] + direction if state else direction
        return x + lr * m, {"m": m}


@dataclass(frozen=True)
class Pairs(fastagg.Direction):
    """The sum of two updates."""

    def combine(self, update: Any, facts: Any, state: Any) -> Any:
        if not state:
            return None, {"first": update.clone()}
        return state["first"] + update, {}


@dataclass(frozen=True)
class Late(fastagg.Staleness):
    """Weighs and slows down."""

    def weight(self, delay: int) -> float:
        return 1.0 / (1 + delay)

    def rate(self, lr: float, delays: Any) -> float:
        return lr / (1 + max(delays))


OWN: dict[str, Callable[[], fastagg.Server]] = {
    "optimizer": lambda: fastagg.Server(model(D), fastagg.Buffer(2), Own(0.5)),
    "direction": lambda: fastagg.Server(model(D), Pairs(), fastagg.AMSGrad(0.1)),
    "both": lambda: fastagg.Server(model(D), Pairs(), Own(0.5), Late()),
    "staleness": lambda: fastagg.Server(model(D), fastagg.Buffer(2), fastagg.AMSGrad(0.1), Late()),
}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastagg.registry, "_parts", dict(fastagg.registry._parts))
    for part in (Own, Pairs, Late):
        fastagg.register(part)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("by", [Cut, Calls, Raises])
@pytest.mark.parametrize("name", OWN)
def test_rules_of_ones_own_that_raise(name: str, by: type[Cut]) -> None:
    """Among the calls are those of a rule's step, combine, weight and rate."""
    server = OWN[name]()
    for turn in range(3):
        server.dispatch(turn)
        server.receive(turn, update(turn, D))
    server.dispatch(5)
    act: Act = lambda s: s.receive(5, update(5, D))  # noqa: E731
    assert cut_everywhere(Moment(server, act), again=act, by=by) > 10
