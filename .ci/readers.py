"""Looks for races between threads that read a server's vectors and threads that send updates. ``.ci/readers.sh`` runs
this with ThreadSanitizer, which only watches native code. So fastagg's own kernels read the vectors.

All elements of an update are equal, so all elements of a version are. A vector that mixes two versions has two values.
`planted` also reads a server's own moments, which steps change. ThreadSanitizer must report this race.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import fastagg
from fastagg import ops

SECONDS, WRITERS, D = 2.0, 2, 40_000  # D is above kWorthReleasing, so kernels run without Python's lock
ROUND = {"clients_per_round": 2, "weighting": "uniform"}
RULES: dict[str, Callable[..., fastagg.Server]] = {
    "FedAsync": lambda model: fastagg.FedAsync(model),
    "FedBuff": lambda model: fastagg.FedBuff(model, buffer_size=3),
    "FADAS": lambda model: fastagg.FADAS(model, lr=0.01, buffer_size=2),
    "ACE": lambda model: fastagg.ACE(model, lr=0.125, num_clients=WRITERS + 1, warmup="partial"),
    "FedAC": lambda model: fastagg.FedAC(model, lr=0.01, buffer_size=2),
    "AsyncFedED": lambda model: fastagg.AsyncFedED(model, lam=1.0, eps=1.0),
    "FedAdam": lambda model: fastagg.FedAdam(model, **ROUND),
}


def model() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(D // 4, 4), "bn.running_mean": torch.zeros(64), "bn.num_batches_tracked": torch.tensor(0)}


def handed_out(server: fastagg.Server) -> Iterator[torch.Tensor]:
    """Yield all vectors of the model that a server returns. Each must belong to one version."""
    yield server.flat
    yield server.parameters()["w"].view(-1)
    task = server.dispatch(WRITERS)
    yield task.flat
    yield torch.from_numpy(np.asarray(task.params["w"])).view(-1)
    yield server.state_dict()["flat"]
    server.memory()


def mixed(vector: torch.Tensor) -> bool:
    """Return whether a vector mixes two versions. A kernel and torch read it."""
    ops.inspect(vector)
    return bool(vector.min() != vector.max())


def main(rule: str, planted: bool, folder: Path | None) -> int:
    make = lambda: RULES[rule](model())  # noqa: E731
    server = make() if folder is None else fastagg.open(folder, make, "step")
    moments = list(server.state_dict(copy=False)["moments"].values()) if planted else []
    until, found, wrong = time.monotonic() + SECONDS, {"reads": 0, "steps": 0}, []

    def write(client: int) -> None:
        at = 0
        while time.monotonic() < until:
            at += 1
            task = server.dispatch(client)
            value = (client + 1) * 2.0**-10 * (at % 7)  # sums are exact, so rounding cannot make elements differ
            update = {"w": torch.full((D // 4, 4), value), "bn.running_mean": torch.full((64,), value)}
            try:
                found["steps"] += server.receive(client, update, task=task.id).applied
            except fastagg.FastaggError as error:  # the other thread has ended the round
                assert isinstance(error, (fastagg.UnknownVersion, fastagg.AlreadyCounted)), error
            if folder is not None and at % 50 == 0:
                server.checkpoint()

    def read() -> None:
        held: list[torch.Tensor] = []
        while time.monotonic() < until:
            for one in moments:
                ops.inspect(one)
            for vector in () if moments else handed_out(server):
                found["reads"] += 1
                if mixed(vector):
                    wrong.append(vector)
                held = [vector, *held[:20]]
            wrong.extend(one for one in held if mixed(one))

    threads = [threading.Thread(target=write, args=(client,)) for client in range(WRITERS)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if folder is not None:
        server.close()
    print(
        f"{rule}{' in a folder' if folder else ''}: {found['steps']} steps, {found['reads']} reads, {len(wrong)} mixed"
    )
    return int(bool(wrong) or not found["steps"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    fastagg.set_num_threads(2)
    if "planted" in sys.argv:
        sys.exit(main("FADAS", True, None))
    bad = sum(main(name, False, None) for name in RULES)
    for name in ("FedBuff", "ACE"):
        with tempfile.TemporaryDirectory() as place:
            bad += main(name, False, Path(place) / "state")
    sys.exit(bad)
