"""A differential fuzzer over the public API: the same random operations on servers that must not differ.

`plain` does what an operation says. `saved` is saved and loaded in between. `folder` is kept by `fastagg.open`, with
checkpoints, restarts and copies of its folder that a crash might have left. `routes` takes other ways to the same end:
other forms of an update, chunks, several answers in a call, in a process with other defaults. After every operation
outcomes, versions and models have the same bits; what was handed out never changes; a thread that reads `plain`
meanwhile sees only versions that were there.

    FASTAGG_FUZZ_SECONDS=600 FASTAGG_FUZZ_SEED=1 pytest -m slow tests/fuzz -k seconds     (a failure names its seed)
"""

import itertools
import math
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from support.bits import digest
from support.presets import CLIENTS, PRESETS, numbers, update
from torch import Tensor

import fastagg

SHAPES = {"a": (40, 30), "b": (7,), "c": (), "d": (1000,)}
SIZE = sum(math.prod(shape) for shape in SHAPES.values())
Sent = tuple[int, int, float, str]  # a task, an update, samples, and what is wrong with it


def named(flat: Tensor) -> dict[str, Tensor]:
    """A flat vector in the model's form."""
    parts = flat.split([math.prod(shape) for shape in SHAPES.values()])
    return {name: part.view(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


# -- operations -------------------------------------------------------------------------------------------------------


def spoiled(values: Tensor, value: float) -> Tensor:
    return torch.cat([values.float()[:-1], values.new_tensor([value], dtype=torch.float32)])


BAD: dict[str, Callable[[Tensor], Any]] = {
    "nan": lambda u: spoiled(u, math.nan),
    "inf": lambda u: named(spoiled(u, math.inf)),
    "short": lambda u: u[:-1],
    "integers": lambda u: u.to(torch.int64),
    "names": lambda u: {"a": u[:1200].view(40, 30)},
    "nothing": lambda u: None,
}


KINDS = {
    "dispatch": 30, "answer": 40, "answers": 8, "bad": 6, "again": 5, "forget": 2, "hand_on": 2, "lr": 1, "read": 6,
    "expire": 0.5, "close": 2,
}  # fmt: skip


def operations(draw: random.Random, rounds: bool) -> Iterator[tuple[Any, ...]]:
    """Random operations. Answers are to tasks by their place among all that were handed out."""
    numbered, handed = itertools.count(), CLIENTS
    kinds = {**KINDS, "close": KINDS["close"] * rounds}

    def task() -> int:
        return handed - 1 - min(int(draw.expovariate(0.4)), handed - 1)

    def answer(bad: str = "") -> Sent:
        return task(), next(numbered), draw.choice((0, 1, 2.5, 7)), bad

    yield from (("dispatch", client) for client in range(CLIENTS))
    while True:
        (kind,) = draw.choices(list(kinds), list(kinds.values()))
        if kind == "dispatch":
            yield (kind, draw.randrange(CLIENTS + (draw.random() < 0.02)))
        elif kind == "answers":
            yield (kind, [answer() for _ in range(draw.randint(1, 4))])
        elif kind in ("answer", "bad", "again"):
            again = ("answers", [answer(draw.choice(list(BAD)) if kind == "bad" else "")])
            yield from [again] * (1 + (kind == "again"))
        elif kind == "hand_on":
            yield (kind, task(), draw.randrange(CLIENTS))
        else:
            yield (kind, task()) if kind == "forget" else (kind,)
        handed += kind in ("dispatch", "hand_on")


# -- lanes ------------------------------------------------------------------------------------------------------------


class Lane:
    """A server, and what happens to it between operations."""

    def __init__(self, make: Callable[[], fastagg.Server], draw: random.Random, folder: Path) -> None:
        self.make, self.draw, self.folder = make, draw, folder
        self.server = self.begin()
        self.tasks: list[fastagg.Dispatch | None] = []
        self.held: list[tuple[Any, str]] = []  # what was handed out, and its digest then
        self.versions = self.now()

    def begin(self) -> fastagg.Server:
        with self.settled():
            return self.make()

    def between(self) -> None:
        """Whatever may happen to this server at any time."""

    def settled(self) -> Any:
        return nullcontext()

    def run(self, operation: tuple[Any, ...]) -> list[Any]:
        """Do it, and return what came out."""
        self.between()
        name, *rest = operation
        found = self.answers(*rest) if name == "answers" else [self.outcome(OPERATIONS[name], self, *rest)]
        return [*found, self.server.version, digest(self.server.flat)]

    def now(self) -> set[str]:
        return {digest(self.server.flat), digest(self.server.parameters())}

    def outcome(self, call: Callable[..., Any], *rest: Any) -> Any:
        try:
            with self.settled():
                return seen(call(*rest))
        except fastagg.FastaggError as error:
            return type(error).__name__
        finally:
            self.versions |= self.now()

    def took(self, hand: Callable[..., fastagg.Dispatch], *given: Any) -> Any:
        self.tasks.append(None)  # a refused task has a place, too
        task = self.tasks[-1] = hand(*given)
        self.hold(task.params)
        return (task.client, task.version, task.local_steps, digest(task.params))

    def hold(self, value: Any) -> None:
        if self.draw.random() < 0.1:
            self.held.append((value, digest(value)))

    def read(self) -> Any:
        for value in (self.server.flat, self.server.parameters()):
            self.hold(value)
        return digest(self.server.parameters())

    def sent(self, task: int, number: int, samples: float | None, bad: str) -> tuple[Any, ...] | None:
        """An answer's client, update, version, samples and id; None if the task was refused."""
        given, value = self.tasks[task], update(number, SIZE)
        if given is None:
            return None
        return given.client, BAD[bad](value) if bad else value, given.version, samples, given.id

    def answers(self, each: list[Sent]) -> list[Any]:
        return [self.outcome(self.answer, *one) for one in each]

    def answer(self, *one: Any) -> Any:
        sent = self.sent(*one)
        return sent and self.server.receive(*sent[:4], task=sent[4])


OPERATIONS: dict[str, Callable[..., Any]] = {
    "dispatch": lambda lane, client: lane.took(lane.server.dispatch, client),
    "hand_on": lambda lane, at, client: lane.took(lane.server.hand_on, lane.tasks[at], client),
    "forget": lambda lane, at: lane.tasks[at] and lane.server.forget(lane.tasks[at].client, lane.tasks[at].version),
    "lr": lambda lane: setattr(lane.server, "lr", lane.server.lr / 2),
    "read": Lane.read,
    "expire": lambda lane: lane.server.expire(lane.server.version),
    "close": lambda lane: lane.server.close_round(),
}


class Saved(Lane):
    def between(self) -> None:
        if self.draw.random() > 0.1:
            return
        new, path = self.make(), self.folder / "saved"
        if self.draw.random() < 0.5:
            self.server.save(path)
            new = fastagg.load(path)
        else:
            new.load_state_dict(self.server.state_dict())
            new.lr = self.server.lr  # a setting, which stays the new server's
        self.server = new


class Folder(Lane):
    number = 0

    def begin(self) -> fastagg.Server:
        path, durability = self.folder / f"life-{self.number}", self.draw.choice(["arrival", "step", "none"])
        return fastagg.open(path, self.make, durability, checkpoint_every=1 << 30, keep=self.draw.choice([1, 2]))

    def between(self) -> None:
        luck = self.draw.random()
        if luck < 0.04:
            self.server.checkpoint()
        elif luck < 0.08:
            self.server.close()
            self.server = self.begin()
        elif luck < 0.12:  # a crash leaves what was flushed
            self.server.flush()
            old, before = self.folder / f"life-{self.number}", self.server
            self.number += 1
            shutil.copytree(old, self.folder / f"life-{self.number}", ignore=shutil.ignore_patterns("reserve-*"))
            before.close()
            shutil.rmtree(old)
            self.server = self.begin()

    def answer(self, *one: Any) -> Any:
        sent = self.sent(*one)
        if sent is None or one[3] or self.draw.random() < 0.7:
            return sent and self.server.receive(*sent[:4], task=sent[4])
        data = sent[1].float().numpy().tobytes()
        with self.server.receiving(sent[0], sent[2], sent[3], task=sent[4]) as upload:
            for at in range(0, len(data), 3001):
                upload.write(data[at : at + 3001])
                if self.draw.random() < 0.1:
                    self.server.checkpoint()
        return upload.receipt


class Routes(Lane):
    FORMS = (lambda u: u, named, lambda u: u.float().numpy(), lambda u: named(u.float()))

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Another process's defaults."""
        kept, threads = torch.get_default_dtype(), fastagg.get_num_threads()
        torch.set_default_dtype(self.draw.choice([torch.float32, torch.float64, torch.bfloat16]))
        fastagg.set_num_threads(self.draw.choice([1, 2, 3]))
        try:
            with torch.device(self.draw.choice(["cpu", "meta"])):
                yield
        finally:
            torch.set_default_dtype(kept)
            fastagg.set_num_threads(threads)

    def answers(self, each: list[Sent]) -> list[Any]:
        given = [self.sent(*one) for one in each]
        if len(each) == 1 or not all(given):
            return super().answers(each)
        with self.settled():
            return [seen(one) for one in self.server.receive_many(given)]

    def sent(self, task: int, number: int, samples: float, bad: str) -> Any:
        sent = super().sent(task, number, samples, bad)
        return sent if bad or sent is None else (sent[0], self.draw.choice(self.FORMS)(sent[1]), *sent[2:])


def seen(value: Any) -> Any:
    """What an outcome says, in bits."""
    if isinstance(value, fastagg.Receipt):
        numbers = value.step_size, value.update_norm, value.weight
        return (value.client, value.applied, value.version, value.delay, *map(repr, numbers))
    return type(value).__name__ if isinstance(value, Exception) else value


# -- a run ------------------------------------------------------------------------------------------------------------


def run(seed: int, count: int = 60, preset: str | None = None) -> int:
    """Run ``count`` operations of a seed. Return the version that was reached. AssertionError: lanes differ."""
    draw = random.Random(seed)
    name = preset or draw.choice(sorted(PRESETS))
    limits = draw.choice([{}, {}, {"max_delay": 2}, {"max_open_per_client": 2}, {"clip_norm": 0.01}])
    limits = {} if ("clipped" in name and "clip_norm" in limits) or name.startswith(("ACED", "CA2FL")) else limits
    model, given, stop = named(numbers(0, SIZE, 22)), operations(draw, "Fed" in name), threading.Event()
    with tempfile.TemporaryDirectory() as place:
        lanes = [
            kind(lambda: PRESETS[name](model, **limits), random.Random(seed * 8 + k), Path(place))
            for k, kind in enumerate((Lane, Saved, Folder, Routes))
        ]
        read: set[str] = set()

        def reader() -> None:
            while not stop.is_set():
                read.update(lanes[0].now())

        thread = threading.Thread(target=reader)
        thread.start()
        try:
            for at, operation in zip(range(count), given, strict=False):
                expected, *others = [lane.run(operation) for lane in lanes]
                for lane, found in zip(lanes[1:], others, strict=True):
                    where = f"seed {seed}, {name}, {limits}, operation {at} {operation}: {type(lane).__name__} gave"
                    assert found == expected, f"{where}\n  {found}, plain\n  {expected}"
            for lane in lanes:
                same = all(digest(value) == then for value, then in lane.held)
                assert same, f"seed {seed}, {name}, {type(lane).__name__}: what was handed out changed"
        finally:
            stop.set()
            thread.join()
            lanes[2].server.close()
        assert read <= lanes[0].versions, f"seed {seed}, {name}: a reader saw models that were no version"
        return lanes[0].server.version
