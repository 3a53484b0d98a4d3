"""Four workers of different speeds train a small transformer through `fastagg serve`; they join, leave, are killed and
come back. Every rule with the same tokens and from the same model, for docs/large-models.md.

python examples/diloco/compare.py TEXT --tokens 500e3 --seeds 0,1,2 --out runs.json      any text file
python examples/diloco/compare.py TEXT --tokens 130e3 --size 10M --only "DiLoCo;HeLoCo"    the page's size
python examples/diloco/compare.py --plot runs.json picture.png

The workers' seconds are those of a clock that they share: a step of a worker takes 1/speed of it, and nobody runs ahead
of the slowest by more than that one's step. So a run means the same on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import fastagg


class Size(NamedTuple):
    context: int
    width: int
    layers: int
    batch: int
    rate: float  # AdamW's
    bf16: bool  # matrix products in bfloat16


SIZES = {"small": Size(64, 96, 2, 8, 3e-3, False), "10M": Size(128, 384, 6, 4, 1e-3, True)}
SIZE = SIZES["small"]
SPEEDS = {"ann": 6.0, "bob": 4.5, "eve": 3.0, "dan": 1.5}  # local steps a second
STEPS = 8  # H
# As shares of a run's tokens: when a worker comes and goes, and how it ends.
LIVES = {
    "ann": [(0.0, 2.0, None)],
    "bob": [(0.0, 0.35, signal.SIGKILL), (0.45, 2.0, None)],
    "eve": [(0.0, 0.7, signal.SIGTERM)],
    "dan": [(0.2, 2.0, None)],
}
SYNCHRONOUS = {"clients_per_round": 4, "at_least": 3, "grace": 12.0}  # a round may not wait for one that is gone
# Rule, settings, parts, format.
RUNS: dict[str, tuple[str, dict[str, Any], int, Any]] = {
    "DiLoCo": ("DiLoCo", SYNCHRONOUS, 1, None),
    "AsyncDiLoCo": ("AsyncDiLoCo", {"period": 4, "fastest_steps": STEPS}, 1, None),
    "HeLoCo": ("HeLoCo", {"rho": 0.5}, 1, None),
    "HeLoCo, int8": ("HeLoCo", {"rho": 0.5}, 1, "int8"),
    "HeLoCo, 2-bit top 3%": ("HeLoCo", {"rho": 0.5}, 1, fastagg.TopK(0.03, "int2")),
    "Decoupled, quorum of 3": ("DecoupledDiLoCo", {"buffer_size": 4, "at_least": 3, "grace": 0.0}, 4, None),
    "Decoupled, quorum of 2": ("DecoupledDiLoCo", {"buffer_size": 4, "at_least": 2, "grace": 0.0}, 4, None),
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.before, self.between = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = [one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(self.before(x)).chunk(3, -1)]
        seen = F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        return x + self.down(F.gelu(self.up(self.between(x))))


class Network(nn.Module):
    """A transformer of characters."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        width = SIZE.width
        self.letters, self.places = nn.Embedding(letters, width), nn.Parameter(0.02 * torch.randn(SIZE.context, width))
        nn.init.normal_(self.letters.weight, std=0.02)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(SIZE.layers)])
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.blocks(self.letters(x) + self.places)))


def loss_of(model: nn.Module, text: Tensor, places: Tensor) -> Tensor:
    windows = torch.stack([text[at : at + SIZE.context + 1] for at in places])
    with torch.autocast("cpu", torch.bfloat16, enabled=SIZE.bf16):
        said = model(windows[:, :-1])
    return F.cross_entropy(said.float().flatten(0, 1), windows[:, 1:].flatten())


class Clock:
    """The time that workers share, and the steps that they have made. A worker that waits or is not there has no time
    of its own, and nobody waits for it."""

    def __init__(self, context: Any) -> None:
        # Without locks, which a worker that is killed would keep; each writes its own place.
        self.of = context.Array("d", [math.inf] * len(SPEEDS), lock=False)
        self.steps, self.latest = context.Array("q", len(SPEEDS), lock=False), context.Value("d", 0.0, lock=False)

    def now(self) -> float:
        first = min(self.of)
        return first if first < math.inf else self.latest.value

    def begin(self, worker: int, at: float) -> None:
        self.of[worker] = at

    def end(self, worker: int) -> None:
        if self.of[worker] < math.inf:
            self.latest.value = max(self.latest.value, self.of[worker])
        self.of[worker] = math.inf

    def step(self, worker: int, speed: float, ahead: float) -> None:
        """Count a step, and wait until nobody is behind by more than ``ahead``."""
        self.of[worker] += 1 / speed
        self.steps[worker] += 1
        while self.of[worker] > self.now() + ahead:
            time.sleep(0.002)


class Counting(fastagg.clients.HttpClient):
    """Counts the bytes that it sends and gets."""

    up = down = 0

    def _repeat(self, path: str, body: memoryview | None = None, kind: str = "") -> Any:
        found = super()._repeat(path, body, kind)
        self.up, self.down = self.up + (0 if body is None else body.nbytes), self.down + len(found[1])
        return found


def work(
    name: str, life: int, seed: int, text: Tensor, letters: int, url: str, run: str, log: Path, clock: Clock
) -> None:
    """Be a worker until somebody ends it. After each round a line of the log has what counted."""
    torch.manual_seed(1000 * seed + 100 * life + list(SPEEDS).index(name))
    rule, settings, parts, form = RUNS[run]
    worker, speed = list(SPEEDS).index(name), SPEEDS[name]
    ahead = math.inf if rule == "DiLoCo" else 1 / min(SPEEDS.values())  # in a round nobody needs to be slowed down
    model = Network(letters)
    inner = torch.optim.AdamW(model.parameters(), lr=SIZE.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    client = Counting(url, name, format=form, patience=600)
    named = dict(model.named_parameters())
    arrays = [[named[array[0]].data for array in part] for part in client.layout["parts"]]
    starts: dict[int, Tensor] = {}
    versions: dict[int, int] = {}

    def flat(part: int) -> Tensor:
        return torch.cat([array.flatten() for array in arrays[part]])

    def pull(part: int) -> None:
        paced = speed if "fastest_steps" in settings else None
        if rule == "DiLoCo" and part in starts:
            clock.end(worker)
        starts[part] = client.task(part, newer=rule == "DiLoCo", speed=paced)
        if clock.of[worker] == math.inf:
            clock.begin(worker, clock.latest.value)
        if rule == "DecoupledDiLoCo" and versions.get(part) == client._tasks[part].version:
            starts[part] = flat(part)  # the quorum has not come yet: it trains on, and sends what comes from now on
            return
        versions[part] = client._tasks[part].version
        sizes = [array.numel() for array in arrays[part]]
        for array, new in zip(arrays[part], starts[part].split(sizes), strict=True):
            array.copy_(new.view_as(array))

    for part in range(parts):
        pull(part)
    tokens, turn = dict.fromkeys(range(parts), 0), 0
    while True:
        part = turn % parts  # fragments come in turn, and training goes on with the others as they are
        for _ in range(max((client.local_steps or STEPS) // parts, 1)):
            loss = loss_of(model, text, torch.randint(len(text) - SIZE.context, (SIZE.batch,)))
            inner.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
            for one in tokens:
                tokens[one] += SIZE.batch * SIZE.context
            clock.step(worker, speed, ahead)
        delta = flat(part) - starts[part]
        client.num_samples = (
            tokens[part] * SIZE.batch * SIZE.context if rule == "DecoupledDiLoCo" else None
        )  # tokens^2/steps
        counted = True
        try:
            client.send(delta, part)
        except (fastagg.UnknownVersion, fastagg.UnknownClient):  # too late
            counted = False
        with open(log, "a") as file:
            said = {"at": time.time(), "tokens": tokens[part] / parts if counted else 0}
            file.write(json.dumps({**said, "up": client.up, "down": client.down}) + "\n")
        tokens[part], turn = 0, turn + 1
        client.up = client.down = 0
        pull(part)


def one(run: str, seed: int, text: Tensor, letters: int, budget: float) -> dict[str, Any]:
    """Return the loss on the text's end, tokens and bytes at several times of one run."""
    rule, settings, parts, _ = RUNS[run]
    torch.manual_seed(seed)
    model, context = Network(letters), multiprocessing.get_context("fork")
    clock, index = Clock(context), list(SPEEDS).index
    train, held = text[: -len(text) // 20], text[-len(text) // 20 :]
    shards = dict(zip(SPEEDS, train.tensor_split(len(SPEEDS)), strict=True))
    with socket.socket() as probe, tempfile.TemporaryDirectory() as name:
        probe.bind(("127.0.0.1", 0))
        port, folder = probe.getsockname()[1], Path(name)
        probe.close()
        save_file(dict(model.state_dict()), folder / "model.safetensors")
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        line = [sys.executable, "-m", "fastagg", "serve", folder / "model.safetensors", "--folder", folder / "state",
                "--rule", rule, "--workers", 4, "--parts", parts, "--port", port, *given]  # fmt: skip
        server = subprocess.Popen(
            list(map(str, line)), stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        url, there, found = f"http://127.0.0.1:{port}", {}, []
        try:
            while not answers(url):
                time.sleep(0.2)
            taken, share = -1.0, 0.0
            plan = [(name, life, *when) for name, lives in LIVES.items() for life, when in enumerate(lives)]
            while share < 1.0:
                share = sum(clock.steps) * SIZE.batch * SIZE.context / budget
                for name, life, comes, goes, how in plan:
                    if comes <= share < goes and (name, life) not in there:
                        file = folder / f"{name}-{life}.log"
                        clock.begin(index(name), clock.now())
                        there[name, life] = context.Process(
                            target=work, args=(name, life, seed, shards[name], letters, url, run, file, clock),
                            daemon=True,
                        )  # fmt: skip
                        there[name, life].start()
                    elif share >= goes and there[name, life].is_alive():
                        os.kill(there[name, life].pid, how)
                        there[name, life].join()
                        clock.end(index(name))
                if share - taken >= 1 / 10 or share >= 1.0:
                    taken = share
                    arrays = load(urllib.request.urlopen(f"{url}/model").read())
                    found.append((time.time(), max(clock.now(), found[-1][1] if found else 0.0), arrays))
                time.sleep(0.02)
        finally:
            for process in there.values():
                process.kill()
                process.join()
            server.kill()
            server.wait()
        lines = [json.loads(line) for file in folder.glob("*.log") for line in file.read_text().splitlines()]
        made = {name: 0.0 for name in SPEEDS}
        for file in folder.glob("*.log"):
            made[file.stem[:3]] += sum(json.loads(line)["tokens"] for line in file.read_text().splitlines())
    places = torch.randint(
        len(held) - SIZE.context, (4096 // SIZE.context,), generator=torch.Generator().manual_seed(0)
    )
    points = []
    for at, seconds, arrays in found:
        model.load_state_dict(arrays)
        with torch.no_grad():
            loss = loss_of(model, held, places).item()
        before = [line for line in lines if line["at"] <= at]
        points.append({"seconds": round(seconds, 2), "loss": round(loss, 4)}
                      | {what: sum(line[what] for line in before) for what in ("tokens", "up", "down")})  # fmt: skip
    return {"run": run, "seed": seed, "points": points, "tokens of each": made}


def answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/health").read())
    except OSError:
        return False


def at(points: list[dict[str, Any]], what: str, value: float) -> float:
    """The loss where tokens or seconds have a value, on a line between two points."""
    for one, other in pairwise(points):
        if one[what] <= value <= other[what] and other[what] > one[what]:
            part = (value - one[what]) / (other[what] - one[what])
            return float(one["loss"] + part * (other["loss"] - one["loss"]))
    return float(points[-1]["loss"])


def told(runs: list[dict[str, Any]]) -> str:
    """The table: losses at the same tokens (the fewest that a run has) and at the end, over seeds."""
    same = min(run["points"][-1]["tokens"] for run in runs)
    lines = [f"| | loss at {same:,.0f} tokens | at the end | tokens by then | seconds | MB sent | MB got |"]
    lines.append("|---|" + "---:|" * 6)
    for name in dict.fromkeys(run["run"] for run in runs):
        mine = [run["points"] for run in runs if run["run"] == name]

        def spread(values: list[float], digits: int = 2) -> str:
            several = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
            return f"{statistics.mean(values):.{digits}f}{several}"

        last = [points[-1] for points in mine]
        lines.append(
            f"| {name} | {spread([at(points, 'tokens', same) for points in mine])} | "
            f"{spread([point['loss'] for point in last])} | "
            f"{statistics.mean(p['tokens'] for p in last):,.0f} | {statistics.mean(p['seconds'] for p in last):.0f} | "
            f"{statistics.mean(p['up'] for p in last) / 1e6:.1f} | "
            f"{statistics.mean(p['down'] for p in last) / 1e6:.1f} |"
        )
    return "\n".join(lines)


def plot(runs: list[dict[str, Any]], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    names, first = list(dict.fromkeys(run["run"] for run in runs)), runs[0]["seed"]
    for axes, (what, label, scale) in zip(
        figure.subplots(1, 3, sharey=True),
        (("tokens", "thousand tokens that counted", 1e3), ("seconds", "seconds of the workers' clock", 1),
         ("up", "MB sent by workers", 1e6)),
        strict=True,
    ):  # fmt: skip
        for run in runs:
            points = run["points"] if what != "up" else [point for point in run["points"] if point["up"]]
            axes.plot(
                [point[what] / scale for point in points], [point["loss"] for point in points],
                color=f"C{names.index(run['run'])}", linestyle=(0, (4, 1.5)) if "," in run["run"] else "-",
                marker="o", markersize=2.5, linewidth=1.3, label=run["run"] if run["seed"] == first else None,
            )  # fmt: skip
        axes.set_xlabel(label)
        axes.set_ylim(top=3.5)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if what == "up":
            axes.set_xscale("log")
    figure.axes[0].set_ylabel("loss of held-out text")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--tokens", type=float, default=500e3)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", nargs=2)
    given = parser.parse_args()
    global SIZE
    SIZE = SIZES[given.size]
    if given.plot:
        runs = sorted(json.loads(Path(given.plot[0]).read_text())["runs"], key=lambda run: [*RUNS].index(run["run"]))
        print(told(runs))
        return plot([run for run in runs if not given.only or run["run"] in given.only.split(";")], given.plot[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # workers and server end, too
    torch.set_num_threads(1)
    data = given.text.read_bytes()
    letters = sorted(set(data))
    text = torch.searchsorted(torch.tensor(letters), torch.tensor(list(data)))
    runs: list[dict[str, Any]] = []
    for seed in map(int, given.seeds.split(",")):
        for run in given.only.split(";") if given.only else RUNS:
            runs.append(one(run, seed, text, len(letters), given.tokens))
            last = runs[-1]["points"][-1]
            print(f"seed {seed}, {run}: {last}, {runs[-1]['tokens of each']}", flush=True)
            if given.out is not None:
                parameters = sum(p.numel() for p in Network(len(letters)).parameters())
                made = {"tokens": given.tokens, "steps": STEPS, "speeds": SPEEDS, "text": given.text.name}
                made |= {"size": SIZE._asdict(), "parameters": parameters}
                given.out.write_text(json.dumps({**made, "runs": runs}, indent=1) + "\n")
    print(told(runs))


if __name__ == "__main__":
    main()
