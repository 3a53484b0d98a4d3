"""All orders of a few operations of a log: acknowledge, sync, checkpoint and close, with syncs that fail, and with an
end at any moment.

A model of csrc/log/journal.cpp and fastagg/durable/keeper.py: each step here is one there that others can come before
or after. It shares no code with them, so it says that the protocol is right, and the lives say that the code is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

CLIENTS = 2  # each sends one answer


class State(NamedTuple):
    """Records have the numbers 1, 2, ... in the order in which they were queued."""

    clients: tuple[int, ...] = (0,) * CLIENTS  # 0: not sent; n: waits for record n
    outcomes: tuple[str, ...] = ("",) * CLIENTS  # acknowledged, refused
    acknowledged: frozenset[int] = frozenset()
    last: int = 0  # queued
    writer: str = "idle"  # idle, writes, syncs, ended
    group: int = 0  # the writer's records up to this one
    durable: int = 0  # what it says is on the disk
    failed: bool = False  # or at its end
    lied: bool = False  # a sync failed
    at_failure: int = -1  # what was durable then
    synced: int = 0  # what is on the disk
    keeper: str = "idle"  # idle, writes, waits, renamed, synced, ended
    cut: int = 0  # of the checkpoint that it writes
    kept: int = 0  # the newest checkpoint whose name is on the disk
    released: int = 0  # the log up to here may be gone
    closer: str = "idle"  # idle, flushes, ends the keeper, ends the log, done
    target: int = 0  # of the flush
    nudged: bool = False
    asker: str = "idle"  # of a checkpoint: idle, asks, waits, done
    closing: bool = False  # the log's


class Broken(AssertionError):
    """A promise is broken."""


DEFECTS = (
    "acknowledged before the sync", "a failed sync is tried again", "a failed sync says durable",
    "the log goes before the checkpoint's name is synced", "waiters do not hear of a failure",
    "the keeper's end leaves who asks", "close() does not wake the keeper", "close() leaves what is queued",
    "records are taken after the end",
)  # fmt: skip


def _clients(s: State, defect: str) -> Iterator[State]:
    for k, number in enumerate(s.clients):
        if s.outcomes[k]:
            continue

        def ends(how: str, k: int = k, **more: object) -> State:
            return s._replace(outcomes=(*s.outcomes[:k], how, *s.outcomes[k + 1 :]), **more)  # type: ignore[arg-type]

        if number == 0:
            if (s.failed or s.closing) and defect != "records are taken after the end":
                yield ends("refused")
            else:
                at = s.last + 1
                yield s._replace(clients=(*s.clients[:k], at, *s.clients[k + 1 :]), last=at)
        elif s.durable >= number or (defect == "acknowledged before the sync" and s.group >= number):
            if s.failed and number > s.at_failure:
                raise Broken("acknowledged after a failed sync")
            yield ends("acknowledged", acknowledged=s.acknowledged | {number})
        elif s.failed and defect != "waiters do not hear of a failure":
            yield ends("refused")


def _writer(s: State, defect: str) -> Iterator[State]:
    if s.writer == "idle":
        if s.last > s.durable and not (s.closing and defect == "close() leaves what is queued"):
            yield s._replace(writer="writes", group=s.last)
        elif s.closing:
            yield s._replace(writer="ended", failed=True, at_failure=s.durable)
    elif s.writer == "writes":
        yield s._replace(writer="syncs")
    elif s.writer == "syncs":
        yield s._replace(writer="idle", durable=s.group, synced=max(s.synced, s.group))
        if defect == "a failed sync says durable":
            yield s._replace(writer="idle", durable=s.group)
        elif defect == "a failed sync is tried again":  # the system has dropped the pages: the next sync finds nothing
            yield s._replace(writer="idle", durable=s.group, at_failure=s.durable)
        else:
            yield s._replace(writer="ended", failed=True, lied=True, at_failure=s.durable)


def _keeper(s: State, defect: str) -> Iterator[State]:
    answered = "done" if s.asker == "waits" else s.asker
    if s.keeper == "idle":
        if s.nudged or s.writer == "ended":
            yield s._replace(keeper="ended")
        elif s.last > s.kept or s.asker == "asks":
            yield s._replace(keeper="writes", cut=s.last, asker="waits" if s.asker == "asks" else s.asker)
    elif s.keeper == "writes":
        yield s._replace(keeper="idle", asker=answered) if s.nudged else s._replace(keeper="waits")
    elif s.keeper == "waits":
        if s.durable >= s.cut:
            yield s._replace(keeper="renamed")
        elif s.failed:
            yield s._replace(keeper="idle", asker=answered)
    elif s.keeper == "renamed":
        if defect == "the log goes before the checkpoint's name is synced":
            yield s._replace(keeper="synced", released=s.cut)
        else:
            yield s._replace(keeper="synced", kept=s.cut)
    elif s.keeper == "synced":
        yield s._replace(keeper="idle", kept=s.cut, released=s.cut, asker=answered)


def _asker(s: State, defect: str) -> Iterator[State]:
    if s.asker == "idle":
        yield s._replace(asker="asks")
    elif s.asker == "asks" and s.keeper == "ended" and defect != "the keeper's end leaves who asks":
        yield s._replace(asker="done")


def _closer(s: State, defect: str) -> Iterator[State]:
    if s.closer == "idle":
        yield s._replace(closer="flushes", target=s.last)
    elif s.closer == "flushes":
        if s.durable >= s.target or (s.failed and defect != "waiters do not hear of a failure"):
            wakes = defect != "close() does not wake the keeper"
            yield s._replace(closer="ends the keeper", nudged=wakes)
    elif s.closer == "ends the keeper":
        if s.keeper == "ended":
            yield s._replace(closer="ends the log", closing=True)
    elif s.closer == "ends the log" and s.writer == "ended":
        yield s._replace(closer="done")


def check(s: State) -> None:
    """If the process and the power end now, everything acknowledged is recovered."""
    if s.released > s.kept:
        raise Broken("the log is gone, and the checkpoint may be")
    for number in s.acknowledged:
        if number > s.kept and number > s.synced:
            raise Broken("an acknowledged answer is lost")
    if s.closer == "done" and not s.lied and s.synced < s.last:
        raise Broken("close() has left something")


def explore(defect: str = "") -> int:
    """Go through all states that can be reached, and return how many there are.

    Raises:
        Broken: a promise is broken in one of them.
    """
    seen, todo = {State()}, [State()]
    while todo:
        state = todo.pop()
        check(state)
        following = [one for part in (_clients, _writer, _keeper, _asker, _closer) for one in part(state, defect)]
        if not following and not (state.closer == state.asker == "done" and all(state.outcomes)):
            raise Broken(f"everybody waits: {state}")
        new = set(following) - seen
        seen |= new
        todo += new
    return len(seen)


def test_all_orders_keep_every_promise() -> None:
    assert explore() > 1000


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_breaks_one(defect: str) -> None:
    with pytest.raises(Broken):
        explore(defect)
