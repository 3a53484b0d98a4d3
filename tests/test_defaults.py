"""Every op and every preset has the same bits in a process with other defaults: torch's type and device, the number of
threads, the locale.

`python tests/test_defaults.py CASE` prints a digest of all results.
"""

import contextlib
import json
import locale
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.bits import digest

import fastagg

pytestmark = pytest.mark.kernel


D = 3001


def vector(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(D).astype(np.float32))


def of_ops() -> Iterator[tuple[str, Any]]:
    """Every op's result."""
    from fastagg import ops
    from fastagg._build import native
    from fastagg.storage import memory
    from fastagg.storage.cache import ClientCache

    u, x, base = vector(1), vector(2), vector(3)
    own = lambda: memory.empty(D).copy_(x)  # noqa: E731
    yield "inspect", ops.inspect(u)
    yield "accumulate_", ops.accumulate_(own(), [u[:7], u[7:].half()], 0.3)
    yield "difference", ops.difference(u, base, memory.empty(D))
    yield "distances", ops.distances(u, x, base, inner=True)
    yield "combine", ops.combine([u, x, base], "median")
    tiny = torch.arange(1, D + 1, dtype=torch.int32, device="cpu").view(torch.float32)  # below the normal numbers
    moments = {"m": memory.zeros(D), "v": memory.zeros(D)}
    yield (
        "tiny",
        (ops.inspect(tiny), ops.accumulate_(memory.zeros(D), tiny, 0.3), ops.difference(tiny, tiny * 0, own())),
    )
    yield "tiny v", (ops.step_(own(), u * 1e-20, optimizer="adam", lr=0.1, **moments), moments)
    slow = fastagg.ASGD(memory.zeros(D), lr=1e-39)
    slow.dispatch(0)
    slow.receive(0, u)
    yield "a tiny rate", (ops.step_(memory.zeros(D), u, optimizer="sgd", lr=1e-39), slow.flat)
    zeros = {name: memory.zeros(D) for name in ("m", "v", "vhat")}
    for name, moments in ops.OPTIMIZERS.items():
        taken = {one: zeros[one].clone() for one in moments}
        yield f"step_ fp32 {name}", (ops.step_(own(), u, optimizer=name, lr=0.1, **taken), taken)
        if not moments or name in native.plain_optimizers:  # which have no moments in 8 bits
            continue
        coded = {one: memory.zeros(12 * 256, dtype=torch.uint8) for one in moments}
        units = memory.zeros(24 if "v" in moments else 12).view(-1, 12)
        given = {"optimizer": name, "lr": 0.1, "units": units, "rounding": (3, 4), **coded}
        yield f"step_ {name}", (ops.step_(own(), u, **given), given)
    for format in ("fp32", "bf16", "int8", "int4"):
        cache, sum = ClientCache(D, 3, format, seed=5), memory.zeros(D)
        for slot in range(2):
            ops.cached_step_(None, vector(slot), cache=cache, write=slot, sum=sum, client=slot)
        yield f"cached_step_ {format}", (sum, cache.state_dict([0, 1]))
        yield f"read_row {format}", ops.read_row(cache, 1)
    targets = ops.soft_targets(vector(4)[:3000].view(300, 10), scale=0.5)
    student = vector(5)[:3000].view(300, 10).requires_grad_(True)
    loss = ops.distillation_loss(student, targets, alpha=(0.2, 0.8))
    loss.backward()
    yield "soft_targets distillation_loss alpha_bounds", (targets, loss, student.grad)


def model() -> dict[str, torch.Tensor]:
    counts = {"bn.running_var": vector(8)[:9].abs(), "bn.num_batches_tracked": torch.from_numpy(np.array(3))}
    return {"w": vector(9)[:2900].view(29, 100), "b": vector(10)[:92], **counts}


def of_presets(folder: Path) -> Iterator[tuple[str, Any]]:
    """A run of every preset: tasks, answers of every kind, saved and loaded."""
    from support.presets import CLIENTS, PRESETS, calls

    counted: Any
    for name, make in PRESETS.items():
        server, tasks = make(model()), {}
        for call in calls(name, 12):
            if call.number is None:
                tasks[call.client] = server.dispatch(call.client)
                continue
            update = {key: value.mul(0.01) if key in "wb" else value for key, value in model().items()}
            task = tasks[call.client]
            if server.update_kind == "delta" and call.number % 2:
                trained = {key: value + update[key] if key in "wb" else value for key, value in task.params.items()}
                server.receive_model(task, trained, num_samples=2)
            else:
                counted = update if call.number % 3 else {key: update[key] for key in "wb"}
                server.receive(call.client, counted, task=task.id, num_samples=2)
        server.save(folder / "saved.pt")
        again = fastagg.load(folder / "saved.pt")
        for client in range(CLIENTS):
            task = again.dispatch(client)
            again.receive(client, list(update.values()), task=task.id, num_samples=1)
        yield name, (server.state_dict(), again.state_dict(), again.parameters())
    adapters = {"l.lora_A.weight": vector(1)[:20].view(2, 10), "l.lora_B.weight": vector(2)[:8].view(4, 2)}
    yield "lora", fastagg.lora.products(adapters, {"l.weight": (4, 10), "rest": (3, 2)})


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16, meta, Turkish": {"dtype": torch.bfloat16, "device": "meta", "threads": 1, "locale": "tr_TR.UTF-8"},
    "float64, German, flushes to zero": {"dtype": torch.float64, "threads": 3, "locale": "de_DE.UTF-8", "flush": True},
}


def main(case: str) -> None:
    given = CASES[case]
    torch.set_num_threads(given.get("threads", 2))
    with contextlib.suppress(locale.Error):  # that this machine has not, and could not make
        locale.setlocale(locale.LC_ALL, given.get("locale", "C"))
    torch.set_default_dtype(given.get("dtype", torch.float32))
    torch.set_default_device(given.get("device"))
    torch.set_flush_denormal(given.get("flush", False))
    with tempfile.TemporaryDirectory() as folder:
        found = {name: digest(value) for part in (of_ops(), of_presets(Path(folder))) for name, value in part}
    print(json.dumps({"locale": locale.setlocale(locale.LC_ALL), "found": found}))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    makes = shutil.which("localedef") is not None and Path("/usr/share/i18n/locales").is_dir()
    if makes:
        here["LOCPATH"] = str(tmp_path_factory.mktemp("locales"))
    found = {}
    for case, given in CASES.items():
        if makes and "locale" in given:
            name = given["locale"]
            made = ["localedef", "-i", name.split(".")[0], "-f", "UTF-8", os.path.join(here["LOCPATH"], name)]
            subprocess.run(made, check=True, capture_output=True, timeout=300)
        ran = subprocess.run([sys.executable, __file__, case], capture_output=True, text=True, env=here, timeout=300)
        assert ran.returncode == 0, ran.stderr
        said = json.loads(ran.stdout)
        assert not makes or said["locale"] == given.get("locale", "C")
        found[case] = said["found"]
    return found


@pytest.mark.parametrize("case", [case for case in CASES if case != "plain"])
def test_the_bits_are_those_of_a_plain_process(results: dict[str, dict[str, str]], case: str) -> None:
    plain, other = results["plain"], results[case]
    assert plain and other.keys() == plain.keys()
    assert [name for name in plain if plain[name] != other[name]] == []


def test_every_op_is_among_them(results: dict[str, dict[str, str]]) -> None:
    from fastagg import ops

    functions = {name for name in ops.__all__ if name.islower()} - {"measure", "on_cuda"}  # of CUDA devices
    assert functions <= {word for name in results["plain"] for word in name.split()}


if __name__ == "__main__":
    main(sys.argv[1])
