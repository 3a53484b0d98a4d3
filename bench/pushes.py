"""Measures time, memory and bytes of pushing a large model, to fastagg and to plain torch, for docs/large-models.md.

python bench/pushes.py 100e6 600e6             everything; the disk is that of TMPDIR
python bench/pushes.py 100e6 --threads 1 --only process    or: parts, http; one thread for a busy machine

A push is one outer step with Nesterov momentum. The torch server has a flat model and its momentum. It takes the same
bytes, uses torch's fused SGD and as few passes as possible, and also refuses NaN and infinity. Both servers write a new
model, because clients may still read the old one. Every candidate has its own process. Up to 200 million parameters,
candidates take turns. The script prints median seconds, and median processor seconds, which suit a busy machine better.
It also prints the most memory that the process had, minus its memory before the server was made. The bytes of updates
are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

import fastagg

LR, MOMENTUM, TENSORS, PUSHES = 0.7, 0.9, 16, 5
TOGETHER = 200_000_000  # up to this many parameters, the memory has room for all candidates at a time
FORMATS: dict[str, Any] = {"fp32": None, "int8": "int8", "1% top-k": fastagg.TopK(0.01, "fp32")}
WAYS = ("fastagg", "fastagg, bf16 model", "fastagg, with a folder", "torch")
Push = Callable[[], object]


def payload(size: int, name: str) -> Any:
    delta = torch.randn(size, generator=torch.Generator().manual_seed(0)).mul_(1e-3)
    form = FORMATS[name]
    return delta if form is None else fastagg.encode(delta, form, seed=0)


def model(size: int) -> dict[str, Tensor]:
    return {f"layer{number}.weight": torch.zeros(size // TENSORS) for number in range(TENSORS)}


def make(params: Any, model_dtype: Any = None) -> fastagg.Server:
    return fastagg.Server(params, fastagg.Single(), fastagg.Nesterov(LR, MOMENTUM), model_dtype=model_dtype)


def ours(size: int, update: Any, folder: Path | None, model_dtype: str | None) -> Push:
    server = make(model(size), model_dtype) if folder is None else fastagg.open(folder, lambda: make(model(size)))

    def push() -> None:
        server.receive("ann", update, task=held.pop().id)
        held.append(server.dispatch("ann"))

    held = [server.dispatch("ann")]
    push.close = server.close  # type: ignore[attr-defined]
    return push


def theirs(size: int, update: Any) -> Push:
    """Return a hand-written server in torch, which is as fast as possible."""
    state, spare, momentum = torch.zeros(size), torch.zeros(size), torch.zeros(size)
    block, scratch = 1 << 20, torch.empty(1 << 20)
    dense = isinstance(update, Tensor)
    arrays = {} if dense else {name: torch.from_numpy(array.copy()) for name, array in update.arrays().items()}

    def fused(x: Tensor, delta: Tensor, m: Tensor) -> None:
        torch._fused_sgd_(
            [x], [delta], [m], weight_decay=0.0, momentum=MOMENTUM, lr=LR, dampening=0.0, nesterov=True,
            maximize=True, is_first_step=False,
        )  # fmt: skip

    def finite(numbers: Tensor) -> None:
        if not torch.isfinite(torch.linalg.vector_norm(numbers)):
            raise ValueError("NaN or infinity")

    def push() -> None:
        nonlocal state, spare
        spare.copy_(state)  # clients may still read the old model
        state, spare = spare, state
        if dense:
            finite(update)
            fused(state, update, momentum)
        elif update.format == "int8":
            finite(arrays["scales"])
            for at in range(0, size, block):  # in blocks, so that decoded numbers stay in the cache
                mine = slice(at, min(at + block, size))
                codes = arrays["codes"][at : at + block].view(-1, 256)
                decoded = scratch[: codes.numel()].view(-1, 256)
                torch.mul(codes, arrays["scales"][at // 256 : at // 256 + len(codes), None], out=decoded)
                fused(state[mine], decoded.view(-1)[: mine.stop - at], momentum[mine])
        else:
            places, values = arrays["indices"].long(), arrays["codes"]
            finite(values)
            momentum.mul_(MOMENTUM)
            momentum.index_add_(0, places, values, alpha=-1)
            state.sub_(momentum, alpha=LR * MOMENTUM)
            state.index_add_(0, places, values, alpha=LR)

    push.state = lambda: state  # type: ignore[attr-defined]
    return push


def use(threads: int) -> None:
    torch.set_num_threads(threads)
    fastagg.set_num_threads(threads)


def status(what: str, pid: int | str = "self") -> int:
    return 1024 * int(re.findall(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0])


def written(pid: int | str = "self") -> int:
    return int(re.findall(r"wchar: (\d+)", Path(f"/proc/{pid}/io").read_text())[0])


def candidate(way: str, size: int, name: str) -> None:
    """Run a candidate in this process. For each line of stdin push and print the times. Then print memory and bytes."""
    update = payload(size, name)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    before = status("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) if way.endswith("folder") else None
        push = theirs(size, update) if way == "torch" else ours(size, update, stored, "bf16" if "bf16" in way else None)
        push()
        bytes_before, pushes = written(), 0
        for _ in sys.stdin:
            begun, used = time.perf_counter(), time.process_time()
            push()
            print(time.perf_counter() - begun, time.process_time() - used, flush=True)
            pushes += 1
        print(json.dumps([status("VmHWM") - before, (written() - bytes_before) / max(pushes, 1)]), flush=True)
        getattr(push, "close", bool)()  # otherwise the server's thread would write to a removed folder


def begin(way: str, size: int, name: str) -> tuple[IO[str], IO[str]]:
    """Start a candidate's process. Return its stdin and its stdout."""
    line = [sys.executable, __file__, "--candidate", way, str(size), name, str(fastagg.get_num_threads())]
    found = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert found.stdin is not None and found.stdout is not None
    return found.stdin, found.stdout


def in_process(size: int) -> None:
    print(
        f"\n| {size:,} parameters | "
        + " | ".join(WAYS)
        + " | torch / fastagg, in time, in processor |\n|---|"
        + "---:|" * (1 + len(WAYS))
    )
    for name in FORMATS:
        taken: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        told: dict[str, list[float]] = {}
        for ways in (WAYS,) if size <= TOGETHER else tuple((way,) for way in WAYS):
            there = {way: begin(way, size, name) for way in ways}
            for turn in range(PUSHES + 1):
                for way, (say, hear) in there.items():
                    say.write("push\n")
                    say.flush()
                    took = [1e3 * float(word) for word in hear.readline().split()]
                    taken[way] += [took] if turn else []
            for way, (say, hear) in there.items():
                say.close()
                told[way] = json.loads(hear.readline())
        ms = {way: [statistics.median(times) for times in zip(*taken[way], strict=True)] for way in WAYS}
        cells = [
            f"{ms[way][0]:.0f} ms ({ms[way][1]:.0f}), {told[way][0] / size:.1f} B a parameter"
            + (f", {told[way][1] / 1e6:.0f} MB written" if way.endswith("folder") else "")
            for way in WAYS
        ]
        times = [other / own for other, own in zip(ms["torch"], ms["fastagg"], strict=True)]
        print(f"| {name} | {' | '.join(cells)} | {times[0]:.1f}, {times[1]:.1f} |", flush=True)


def in_parts(size: int) -> None:
    """Compare one and two threads that push to four parts. Each thread runs its own kernels."""
    threads = fastagg.get_num_threads()
    fastagg.set_num_threads(1)
    servers = [make(part) for part in fastagg.parts(model(size), 4)]
    delta = torch.full((size // 4,), 1e-3)

    def push(server: fastagg.Server) -> None:
        server.receive("ann", delta, task=server.dispatch("ann").id)

    taken: dict[int, list[float]] = {1: [], 2: []}
    pools = {count: ThreadPoolExecutor(count) for count in taken}
    for turn in range(2 * PUSHES):
        for count, pool in pools.items():
            begun = time.perf_counter()
            list(pool.map(push, servers))
            if turn:
                taken[count].append(time.perf_counter() - begun)
    one, two = (1e3 * statistics.median(times) for times in taken.values())
    print(f"\n{size:,} parameters, four parts: {one:.0f} ms on one thread, {two:.0f} ms on two: {one / two:.2f}")
    fastagg.set_num_threads(threads)


def over_http(size: int) -> None:
    from safetensors.torch import save_file

    print(f"\n| {size:,} parameters over HTTP | pull | push | server's peak | written | sent |\n|---|" + "---:|" * 5)
    for name in FORMATS:
        with tempfile.TemporaryDirectory() as temporary, socket.socket() as probe:
            folder = Path(temporary)
            save_file(model(size), folder / "model.safetensors")
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            probe.close()
            line = [sys.executable, "-m", "fastagg", "serve", folder / "model.safetensors", "--folder", folder / "a",
                    "--rule", "AsyncDiLoCo", "--set", "period=1", "--workers", 2, "--port", port]  # fmt: skip
            threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
            server = subprocess.Popen(list(map(str, line)), stderr=subprocess.DEVNULL, env={**os.environ, **threads})
            try:
                client = fastagg.clients.HttpClient(f"http://127.0.0.1:{port}", "ann", patience=120, timeout=300)
                update = payload(size, name)
                client.task(0)
                before, pulls, pushes = written(server.pid), list[float](), list[float]()
                for _ in range(PUSHES // 2):
                    begun = time.perf_counter()
                    client.send(update, 0)
                    sent = time.perf_counter()
                    client.task(0)
                    pulls.append(1e3 * (time.perf_counter() - sent))
                    pushes.append(1e3 * (sent - begun))
                each = (written(server.pid) - before) / len(pushes)
                print(
                    f"| {name} | {statistics.median(pulls):.0f} ms | {statistics.median(pushes):.0f} ms | "
                    f"{status('VmHWM', server.pid) / size:.1f} B a parameter | {each / 1e6:.0f} MB | "
                    f"{getattr(update, 'nbytes', 4 * size) / 1e6:.0f} MB |", flush=True,
                )  # fmt: skip
            finally:
                server.kill()
                server.wait()


def main() -> None:
    if sys.argv[1] == "--candidate":
        use(int(sys.argv[5]))
        return candidate(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", type=lambda text: int(float(text)) // TENSORS // 256 * TENSORS * 256)
    parser.add_argument("--only", default="", choices=("process", "parts", "http", ""))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args()
    use(given.threads)
    print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of torch, {fastagg.get_num_threads()} of fastagg")
    for size in given.sizes:
        for name, do in (("process", in_process), ("parts", in_parts), ("http", over_http)):
            if given.only in (name, ""):
                do(size)


if __name__ == "__main__":
    main()
