"""Random traces of dispatches and arrivals, and a driver that plays one against any server.

A trace is a list of `Send(client)` and `Return(client, which, seed, num_samples)`. It has no versions, because how fast
the version grows depends on the rule. The driver knows the versions that each client still owes and turns `which` into
one of them. So two servers that follow the same rule see the same calls. Update vectors are drawn from the event's seed
as float32 values, so that the package and the model (float64) work on the same numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from support.book import Vector
from support.model import Model

SIZES = (1, 2, 3, 7, 16, 17, 41, 401, 1023, 1024, 1025, 4097)
MAX_SEED = 2**16 - 1


class Send(NamedTuple):
    """The server dispatches its model to `client`."""

    client: int


class Return(NamedTuple):
    """`client` sends an update, drawn from `seed`, of `num_samples`. `which` None: of the version last sent, which is
    not given; a number: of the which-th oldest version that it still owes, modulo how many there are."""

    client: int
    which: int | None
    seed: int
    num_samples: int


Event = Send | Return
Trace = list[Event]


@dataclass(frozen=True)
class Case:
    """A trace with the sizes it needs. `x0` is the first model, float32."""

    num_clients: int
    size: int
    seed: int
    trace: Trace

    @property
    def x0(self) -> npt.NDArray[np.float32]:
        return np.random.default_rng([self.seed, 1]).standard_normal(self.size).astype(np.float32)


class Record(NamedTuple):
    """What happened at an event; the last four only where it is a `Return`."""

    event: Event
    sent_version: int  # the version dispatched, or the one the update was trained on
    x: Vector | None = None  # the model after the event, if a snapshot was asked for
    applied: bool | None = None
    version: int | None = None
    delay: int | None = None


def update_of(event: Return, size: int) -> npt.NDArray[np.float32]:
    """Gaussian, of a scale between 1e-4 and 10; or half of its elements are zero; or all."""
    rng = np.random.default_rng([event.seed, size])
    shape, values = int(rng.integers(3)), rng.standard_normal(size)
    values = (10.0 ** rng.uniform(-4, 1) * values, values * (rng.random(size) < 0.5), 0.0 * values)[shape]
    return np.clip(values, -1e3, 1e3).astype(np.float32)


def _returns(client: st.SearchStrategy[int]) -> st.SearchStrategy[Return]:
    which = st.none() | st.integers(0, 3)
    return st.builds(Return, client, which, st.integers(0, MAX_SEED), st.integers(1, 1000))


@st.composite
def traces(
    draw: st.DrawFn, num_clients: int, max_length: int = 40, *, all_heard: bool = False, all_sent: bool = False
) -> Trace:
    """Events of `num_clients` clients: repeats, fresh and stale, several versions owed at once. They begin with a round
    of all clients (`all_heard`), or with the model going out to all (`all_sent`), which makes large delays."""
    client = st.integers(0, num_clients - 1)
    trace: Trace = []
    if all_heard:
        trace += [Send(c) for c in draw(st.permutations(range(num_clients)))]
        for c in draw(st.permutations(range(num_clients))):
            trace.append(draw(_returns(st.just(c))))
    if all_sent:
        trace += [Send(c) for c in range(num_clients)]

    owed = [sum(isinstance(e, Send) and e.client == c for e in trace) for c in range(num_clients)]
    for c in range(num_clients):
        owed[c] -= sum(isinstance(e, Return) and e.client == c for e in trace)
    moves = st.tuples(st.sampled_from(("send", "return", "turn", "round")), _returns(client))
    for move, event in draw(st.lists(moves, max_size=max_length)):
        c = event.client
        if move in ("send", "round"):
            trace.append(Send(c))
            owed[c] += 1
        if move != "send" and owed[c] > 0:
            trace.append(event)
            owed[c] -= 1
        if move == "turn":  # returns and is sent the next model at once
            trace.append(Send(c))
            owed[c] += 1
    return trace


@st.composite
def cases(
    draw: st.DrawFn,
    max_clients: int = 6,
    max_length: int = 40,
    *,
    size: st.SearchStrategy[int] | None = None,
    all_heard: bool | None = None,
    all_sent: bool | None = None,
) -> Case:
    """A `Case` for an asynchronous rule. None for all_heard or all_sent means: sometimes."""
    n = draw(st.integers(1, max_clients))
    heard = draw(st.booleans()) if all_heard is None else all_heard
    sent = draw(st.booleans()) if all_sent is None else all_sent
    d = draw(st.sampled_from(SIZES) if size is None else size)
    trace = draw(traces(n, max_length, all_heard=heard, all_sent=sent))
    return Case(num_clients=n, size=d, seed=draw(st.integers(0, MAX_SEED)), trace=trace)


class Driven:
    """The float64 model as a server of one update at a time."""

    def __init__(
        self, x0: npt.ArrayLike, direction: Any, optimizer: Any, staleness: Any = None, **settings: Any
    ) -> None:
        parts = {"kind": "delta", **direction}, optimizer, staleness or {"name": "Constant"}
        self.model = Model(np.asarray(x0, dtype=np.float64), *parts, **{"weighting": "uniform", **settings})

    @property
    def x(self) -> npt.NDArray[np.float64]:
        return self.model.x

    def dispatch(self, client: int) -> int:
        return self.model.dispatch(client).version

    def receive(self, client: int, update: Any, version: int | None = None, **how: Any) -> Mapping[str, Any]:
        samples = how.pop("num_samples", None)
        sent = [(np.asarray(update, dtype=np.float64), samples)]
        return self.model.receive(client, sent, version, **how)._asdict()

    def turn(self, client: int, update: Any, **how: Any) -> Mapping[str, Any]:
        """Dispatch to the client and receive its update at once."""
        self.dispatch(client)
        return self.receive(client, update, **how)


def drive(
    server: Any,
    case: Case,
    snapshot: Callable[[Any], npt.NDArray[np.float64]],
    convert: Callable[[Any], Any] = np.asarray,
) -> list[Record]:
    """Play a case's trace on `server` (the package's or a model); one record per event that took place.

    A `Return` of a client that owes nothing is left out (a client sent the same version twice owes it once). `convert`
    makes the server's kind of update; `snapshot` reads its model after every event.
    """
    owed: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    records: list[Record] = []
    for event in case.trace:
        if isinstance(event, Send):
            task = server.dispatch(event.client)
            last[event.client] = version = task if isinstance(task, int) else task.version
            if version not in owed.setdefault(event.client, []):
                owed[event.client].append(version)
            records.append(Record(event, version, snapshot(server)))
        elif mine := owed.get(event.client):
            trained_on, given = last[event.client], None
            if event.which is not None or trained_on not in mine:
                trained_on = given = mine[(event.which or 0) % len(mine)]
            mine.remove(trained_on)
            update = convert(update_of(event, case.size))
            receipt = server.receive(event.client, update, version=given, num_samples=event.num_samples)
            told = (
                receipt if isinstance(receipt, Mapping) else {key: getattr(receipt, key) for key in Record._fields[3:]}
            )
            records.append(Record(event, trained_on, snapshot(server), *(told[key] for key in Record._fields[3:])))
    return records
