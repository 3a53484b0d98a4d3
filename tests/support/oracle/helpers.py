"""Shared by the tests of this folder."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from support.properties import examples
from support.traces import Case, Record, Updates, drive

from .core import Composed

Vector = npt.NDArray[np.float64]
SMALL = st.sampled_from((1, 2, 3, 7))
quick = examples(60)


def play(server: Any, case: Case, shapes: tuple[str, ...] = ("normal", "sparse", "zero")) -> list[Record]:
    return drive(server, case.trace, Updates(case.size, shapes), snapshot=lambda s: s.x.copy())


def models(records: list[Record]) -> Vector:
    return np.array([r.x for r in records])


def same(a: Any, b: Any, case: Case) -> None:
    """Both servers end every event with the same model, version and decision."""
    ra, rb = play(a, case), play(b, case)
    np.testing.assert_allclose(models(ra), models(rb), rtol=1e-11, atol=1e-11)
    assert [(r.applied, r.version, r.delay) for r in ra] == [(r.applied, r.version, r.delay) for r in rb]


class Loop:
    """A literal server loop: knows x, t and the models sent; `arrive(self, client, u, s)` is the rule."""

    def __init__(self, case: Case, arrive: Callable[[Any, int, Vector, int], bool]) -> None:
        self.x = case.x0.astype(np.float64)
        self.n = case.num_clients
        self.t = 0
        self.models = {0: self.x}
        self.sent: dict[int, int] = {}
        self.arrive = arrive

    def dispatch(self, client: int) -> int:
        self.models[self.t] = self.x
        self.sent[client] = self.t
        return self.t

    def local_steps(self, client: int) -> None:
        return None

    def receive(self, client: int, update: Any, version: int | None = None, **_: Any) -> dict[str, Any]:
        s = self.sent[client] if version is None else version
        t = self.t
        applied = self.arrive(self, client, np.asarray(update, dtype=np.float64), s)
        return {"applied": applied, "version": self.t, "delay": t - s, "step_size": None}


def turn(server: Composed, client: int, update: list[float], **extras: Any) -> dict[str, Any]:
    """Dispatch to the client and receive its update at once: a delay of zero."""
    server.dispatch(client)
    return dict(server.receive(client, update, **extras))
