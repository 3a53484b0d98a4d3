"""Random traces of dispatches and arrivals, and a driver that plays one against any server.

A trace is a plain list of `Send(client)` and `Return(client, which, seed, num_samples)`. It has no versions, because
how fast the version grows depends on the rule. The driver knows the versions that each client still owes and turns
`which` into one of them. So a server never gets an update of a version that it did not send. Two servers that follow
the same rule therefore see the same calls.

Update vectors are drawn from the event's seed, as float32 values, so that the package (float32) and the
model (float64) work on exactly the same numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from support.model import Model

SIZES = (1, 2, 3, 7, 16, 17, 41, 401, 1023, 1024, 1025, 4097)
SHAPES = ("normal", "wide", "tiny", "large", "sparse", "zero")  # what `update_vector` can draw
MAX_SEED = 2**16 - 1


class Send(NamedTuple):
    """The server dispatches its model to `client`."""

    client: int


class Return(NamedTuple):
    """`client` sends an update.

    which        None: `version` is not given (the version last sent); a number: the which-th oldest version
                 that the client still owes, modulo how many there are, given explicitly
    seed         what the update vector is drawn from
    num_samples  n_i
    """

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
    """What happened at one event. `Send`: sent_version, local_steps, x; `Return`: all but local_steps."""

    event: Event
    sent_version: int  # the version dispatched, or the one the update was trained on
    local_steps: int | None = None
    applied: bool | None = None
    version: int | None = None
    delay: int | None = None
    step_size: float | None = None
    x: npt.NDArray[np.float64] | None = None  # the model after the event, if a snapshot was asked for


# ── update vectors ──────────────────────────────────────────────────────────────────────────────────────────


def update_vector(seed: int, size: int, shapes: Sequence[str] = SHAPES) -> npt.NDArray[np.float32]:
    """A float32 vector, finite, at most 1e3 in magnitude, the same for the same arguments.

    normal  Gaussian, scale between 1e-4 and 10
    wide    magnitudes log-uniform from the smallest denormal to 1e3, element by element
    tiny    denormal float32 only
    large   uniform in -1e3..1e3
    sparse  Gaussian with half of the elements exactly zero
    zero    all zero
    """
    rng = np.random.default_rng([seed, size])
    shape = shapes[int(rng.integers(len(shapes)))]
    sign = rng.choice([-1.0, 1.0], size)
    if shape == "normal":
        out = 10.0 ** rng.uniform(-4, 1) * rng.standard_normal(size)
    elif shape == "wide":
        out = sign * 10.0 ** rng.uniform(-44.8, 3, size)
        out[rng.random(size) < 0.1] = 0.0
    elif shape == "tiny":
        out = sign * 2.0**-149 * rng.integers(1, 2**23, size)
    elif shape == "large":
        out = rng.uniform(-1e3, 1e3, size)
    elif shape == "sparse":
        out = rng.standard_normal(size) * (rng.random(size) < 0.5)
    elif shape == "zero":
        out = np.zeros(size)
    else:
        raise ValueError(shape)
    return np.clip(out, -1e3, 1e3).astype(np.float32)


@dataclass(frozen=True)
class Updates:
    """make_update for `drive`: the event's float32 vector, or `convert` of it (e.g. torch.from_numpy)."""

    size: int
    shapes: tuple[str, ...] = SHAPES
    convert: Callable[[npt.NDArray[np.float32]], Any] | None = None

    def __call__(self, event: Return) -> Any:
        u = update_vector(event.seed, self.size, self.shapes)
        return u if self.convert is None else self.convert(u)


# ── strategies ──────────────────────────────────────────────────────────────────────────────────────────────


def sizes(allow_zero: bool = False) -> st.SearchStrategy[int]:
    """Model sizes around the widths where loops change: vectors, blocks, chunks."""
    return st.sampled_from((*SIZES, 0) if allow_zero else SIZES)


def _returns(client: st.SearchStrategy[int]) -> st.SearchStrategy[Return]:
    which = st.none() | st.integers(0, 3)
    return st.builds(Return, client, which, st.integers(0, MAX_SEED), st.integers(1, 1000))


@st.composite
def traces(
    draw: st.DrawFn, num_clients: int, max_length: int = 40, *, all_heard: bool = False, all_sent: bool = False
) -> Trace:
    """Events of `num_clients` clients: repeats, fresh and stale, several versions owed at once.

    all_heard  begin with one round in which every client is sent the model and returns, in random order (what
               a cache with a full warm-up waits for)
    all_sent   begin by sending the model to every client ("all clients train all the time"): large delays

    `max_length` counts the drawn moves; a move is one or two events.
    """
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
def synchronous_traces(draw: st.DrawFn, num_clients: int, clients_per_round: int, max_rounds: int = 6) -> Trace:
    """Rounds of distinct clients, all sent one version, returning in another order; the last may be cut."""
    trace: Trace = []
    for _ in range(draw(st.integers(1, max_rounds))):
        chosen = draw(st.permutations(range(num_clients)))[:clients_per_round]
        trace += [Send(c) for c in chosen]
        for c in draw(st.permutations(chosen)):
            trace.append(Return(c, None, draw(st.integers(0, MAX_SEED)), draw(st.integers(1, 1000))))
    return trace[: len(trace) - draw(st.integers(0, clients_per_round - 1))]


@st.composite
def cases(
    draw: st.DrawFn,
    max_clients: int = 6,
    max_length: int = 40,
    *,
    min_clients: int = 1,
    size: st.SearchStrategy[int] | None = None,
    all_heard: bool | None = None,
    all_sent: bool | None = None,
) -> Case:
    """A `Case` for an asynchronous rule. None for all_heard or all_sent means: sometimes."""
    n = draw(st.integers(min_clients, max_clients))
    heard = draw(st.booleans()) if all_heard is None else all_heard
    sent = draw(st.booleans()) if all_sent is None else all_sent
    d = draw(sizes() if size is None else size)
    trace = draw(traces(n, max_length, all_heard=heard, all_sent=sent))
    return Case(num_clients=n, size=d, seed=draw(st.integers(0, MAX_SEED)), trace=trace)


@st.composite
def synchronous_cases(
    draw: st.DrawFn, max_clients: int = 6, max_rounds: int = 6, size: st.SearchStrategy[int] | None = None
) -> tuple[Case, int]:
    """A `Case` of whole rounds and its clients per round."""
    n = draw(st.integers(1, max_clients))
    m = draw(st.integers(1, n))
    d = draw(sizes() if size is None else size)
    trace = draw(synchronous_traces(n, m, max_rounds))
    return Case(num_clients=n, size=d, seed=draw(st.integers(0, MAX_SEED)), trace=trace), m


# ── the driver ──────────────────────────────────────────────────────────────────────────────────────────────


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

    def local_steps(self, client: int) -> int | None:
        return self.model.last[client].local_steps

    def receive(self, client: int, update: Any, version: int | None = None, **how: Any) -> Mapping[str, Any]:
        samples = how.pop("num_samples", None)
        sent = [(np.asarray(update, dtype=np.float64), samples)]
        return self.model.receive(client, sent, version, **how)._asdict()

    def turn(self, client: int, update: Any, **how: Any) -> Mapping[str, Any]:
        """Dispatch to the client and receive its update at once."""
        self.dispatch(client)
        return self.receive(client, update, **how)


def field(thing: Any, name: str) -> Any:
    """`name` of a receipt or task, be it a mapping or an object; None where it has no such field."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def drive(
    server: Any,
    trace: Sequence[Event],
    make_update: Callable[[Return], Any],
    *,
    snapshot: Callable[[Any], npt.NDArray[np.float64]] | None = None,
    make_buffers: Callable[[Return], Any] | None = None,
    send_samples: bool = True,
) -> list[Record]:
    """Play `trace` on `server` (the package's or a model); one record per event that took place.

    A `Return` of a client that owes nothing is left out (a client sent the same version twice owes it once).

    snapshot      read the model after every event into `Record.x` as float64, e.g. `lambda s: s.x.copy()` or
                  `lambda s: s.flat.double().numpy().copy()`
    make_buffers  model buffers to hand in as `buffers=` (the model's way; the package's are in the update)
    send_samples  pass num_samples
    """
    owed: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    records: list[Record] = []
    for event in trace:
        if isinstance(event, Send):
            task = server.dispatch(event.client)
            version = task if isinstance(task, int) else field(task, "version")
            last[event.client] = version
            if version not in owed.setdefault(event.client, []):
                owed[event.client].append(version)
            steps = server.local_steps(event.client) if isinstance(task, int) else field(task, "local_steps")
            x = None if snapshot is None else snapshot(server)
            records.append(Record(event, version, local_steps=steps, x=x))
            continue
        mine = owed.get(event.client, [])
        if not mine:
            continue
        if event.which is None and last[event.client] in mine:
            trained_on, given = last[event.client], None
        else:
            trained_on = given = mine[(event.which or 0) % len(mine)]
        mine.remove(trained_on)
        extras: dict[str, Any] = {"num_samples": event.num_samples} if send_samples else {}
        if make_buffers is not None:
            extras["buffers"] = make_buffers(event)
        receipt = server.receive(event.client, make_update(event), version=given, **extras)
        records.append(
            Record(
                event,
                trained_on,
                applied=field(receipt, "applied"),
                version=field(receipt, "version"),
                delay=field(receipt, "delay"),
                step_size=field(receipt, "step_size"),
                x=None if snapshot is None else snapshot(server),
            )
        )
    return records
