"""Any calls in any order, with restarts, kills and checkpoints between them: a server of a folder is always what one
without a folder is after the same calls."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.presets import PRESETS, model, update
from support.properties import examples
from test_open import SIZE, equal, opened, without_lives

import fastagg

CLIENTS = st.integers(0, 2)


class Restarts(RuleBasedStateMachine):
    """Two servers, one of them in a folder."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.count = 0
        self.sequence = 0

    @initialize(name=st.sampled_from(sorted(PRESETS)))
    def begin(self, name: str) -> None:
        """A preset."""
        self.make = lambda: PRESETS[name](model(SIZE))
        self.usual: fastagg.Server = self.make()
        self.server = opened(self.folder / "0", self.make)

    def both(self, call: Any) -> None:
        """The same call, with the same end."""
        ends = []
        for server in (self.usual, self.server):
            try:
                found = call(server)
                ends.append(found.version if isinstance(found, fastagg.Dispatch) else found)
            except fastagg.FastaggError as error:
                ends.append(type(error))
        assert equal(ends[0], ends[1])

    @rule(client=CLIENTS)
    def dispatch(self, client: int) -> None:
        self.both(lambda server: server.dispatch(client))

    @rule(client=CLIENTS, bad=st.integers(0, 9))
    def receive(self, client: int, bad: int) -> None:
        self.sequence += 1
        sent = torch.full((SIZE,), float("nan")) if bad == 0 else update(self.sequence, SIZE)
        self.both(lambda server: server.receive(client, sent, num_samples=2))

    @rule(client=CLIENTS, second=CLIENTS)
    def several(self, client: int, second: int) -> None:
        self.sequence += 2
        answers = [(one, update(self.sequence + k, SIZE), None, 3) for k, one in enumerate((client, second))]
        kinds = []
        for server in (self.usual, self.server):
            found = server.receive_many(answers)
            kinds.append([one if isinstance(one, fastagg.Receipt) else type(one) for one in found])
        assert kinds[0] == kinds[1]

    @rule()
    def close_round(self) -> None:
        self.both(lambda server: server.close_round())

    @rule(client=CLIENTS)
    def forget(self, client: int) -> None:
        self.both(lambda server: server.forget(client))

    @rule()
    def expire(self) -> None:
        self.both(lambda server: server.expire(before=server.version))

    @rule()
    def checkpoint(self) -> None:
        self.server.checkpoint()

    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        """The folder as it is, or after the end; then both are the same."""
        self.count += 1
        new = self.folder / str(self.count)
        self.server.flush()
        if not kill:
            self.server.close()
        shutil.copytree(self.server.folder, new)
        old, self.server = self.server, opened(new, self.make)
        if kill:
            old.close()
        shutil.rmtree(old.folder)
        assert equal(without_lives(self.usual), without_lives(self.server))

    def teardown(self) -> None:
        """Nothing is left."""
        if hasattr(self, "server"):
            self.restart(True)
            self.server.close()
        shutil.rmtree(self.folder)


TestRestarts = Restarts.TestCase
TestRestarts.settings = examples(40, stateful_step_count=25)
