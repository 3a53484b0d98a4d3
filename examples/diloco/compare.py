"""Four workers of different speeds train a small transformer through `fastagg serve`; they join, leave, are killed and
come back. Every rule at the same time and from the same model, for docs/large-models.md.

python examples/diloco/compare.py TEXT --seconds 60 --seeds 0,1,2 --out runs.json      any text file
python examples/diloco/compare.py --plot runs.json picture.png

A worker makes as many steps a second as it is told and not more, so that a run means the same on every machine that is
fast enough; how many it made is in the file.
"""

from __future__ import annotations

import argparse
import json
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
from typing import Any

import torch
from safetensors.torch import load, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import fastagg

CONTEXT, WIDTH, LAYERS, BATCH = 64, 96, 2, 8
SPEEDS = {"ann": 6.0, "bob": 4.5, "eve": 3.0, "dan": 1.5}  # local steps a second
STEPS = 24  # H
# As shares of a run: when a worker comes and goes, and how it ends.
LIVES = {
    "ann": [(0.0, 2.0, None)],
    "bob": [(0.0, 0.35, signal.SIGKILL), (0.45, 2.0, None)],
    "eve": [(0.0, 0.7, signal.SIGTERM)],
    "dan": [(0.2, 2.0, None)],
}
SYNCHRONOUS = {"clients_per_round": 4, "at_least": 3, "grace": 2.0}  # a round may not wait for one that is gone
# Rule, settings, parts, format.
RUNS: dict[str, tuple[str, dict[str, Any], int, Any]] = {
    "DiLoCo": ("DiLoCo", SYNCHRONOUS, 1, None),
    "AsyncDiLoCo": ("AsyncDiLoCo", {"period": 4, "fastest_steps": STEPS}, 1, None),
    "HeLoCo": ("HeLoCo", {"rho": 0.5}, 1, None),
    "DecoupledDiLoCo, quorum of 3": ("DecoupledDiLoCo", {"buffer_size": 4, "at_least": 3, "grace": 2.0}, 4, None),
    "DecoupledDiLoCo, quorum of 2": ("DecoupledDiLoCo", {"buffer_size": 4, "at_least": 2, "grace": 1.0}, 4, None),
    "AsyncDiLoCo, int8": ("AsyncDiLoCo", {"period": 4, "fastest_steps": STEPS}, 1, "int8"),
    "AsyncDiLoCo, 2-bit top 3%": (
        "AsyncDiLoCo", {"period": 4, "fastest_steps": STEPS}, 1, fastagg.TopK(0.03, "int2")
    ),
}  # fmt: skip


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
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        nn.init.normal_(self.letters.weight, std=0.02)
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(LAYERS)])
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.blocks(self.letters(x) + self.places)))


def loss_of(model: nn.Module, text: Tensor, places: Tensor) -> Tensor:
    windows = torch.stack([text[at : at + CONTEXT + 1] for at in places])
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


class Counting(fastagg.clients.HttpClient):
    """Counts the bytes that it sends and gets."""

    up = down = 0

    def _repeat(self, path: str, body: memoryview | None = None, kind: str = "") -> Any:
        found = super()._repeat(path, body, kind)
        self.up, self.down = self.up + (0 if body is None else body.nbytes), self.down + len(found[1])
        return found


def work(name: str, life: int, seed: int, text: Tensor, letters: int, url: str, run: str, log: Path) -> None:
    """Be a worker until somebody ends it. After each round a line of the log has what counted."""
    torch.manual_seed(1000 * seed + 100 * life + list(SPEEDS).index(name))
    rule, settings, parts, form = RUNS[run]
    speed = SPEEDS[name]
    model = Network(letters)
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    client = Counting(url, name, format=form, patience=600)
    named = dict(model.named_parameters())
    arrays = [[named[array[0]].data for array in part] for part in client.layout["parts"]]
    starts: dict[int, Tensor] = {}
    versions: dict[int, int] = {}

    def flat(part: int) -> Tensor:
        return torch.cat([array.flatten() for array in arrays[part]])

    def pull(part: int) -> None:
        paced = speed if "fastest_steps" in settings else None
        starts[part] = client.task(part, newer=rule == "DiLoCo", speed=paced)
        if rule == "DecoupledDiLoCo" and versions.get(part) == client._tasks[part].version:
            starts[part] = flat(part)  # the quorum has not come yet: it trains on, and sends what comes from now on
            return
        versions[part] = client._tasks[part].version
        sizes = [array.numel() for array in arrays[part]]
        for array, new in zip(arrays[part], starts[part].split(sizes), strict=True):
            array.copy_(new.view_as(array))

    for part in range(parts):
        pull(part)
    tokens, turn, due = dict.fromkeys(range(parts), 0), 0, time.monotonic()
    while True:
        part = turn % parts  # fragments come in turn, and training goes on with the others as they are
        for _ in range(max((client.local_steps or STEPS) // parts, 1)):
            loss = loss_of(model, text, torch.randint(len(text) - CONTEXT, (BATCH,)))
            inner.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
            for one in tokens:
                tokens[one] += BATCH * CONTEXT
            due += 1 / speed
            time.sleep(max(due - time.monotonic(), 0))
            due = max(due, time.monotonic() - 1 / speed)  # a machine that is too slow is not caught up with
        delta = flat(part) - starts[part]
        client.num_samples = tokens[part] * BATCH * CONTEXT if rule == "DecoupledDiLoCo" else None  # tokens^2/steps
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


def one(run: str, seed: int, text: Tensor, letters: int, seconds: float) -> dict[str, Any]:
    """Return the loss on the text's end, tokens and bytes at several times of one run."""
    rule, settings, parts, _ = RUNS[run]
    torch.manual_seed(seed)
    model, context = Network(letters), multiprocessing.get_context("fork")
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
            begun, taken = time.time(), -1.0
            plan = [(name, life, *when) for name, lives in LIVES.items() for life, when in enumerate(lives)]
            while (now := time.time() - begun) < seconds:
                for name, life, comes, goes, how in plan:
                    if comes * seconds <= now < goes * seconds and (name, life) not in there:
                        file = folder / f"{name}-{life}.log"
                        there[name, life] = context.Process(
                            target=work, args=(name, life, seed, shards[name], letters, url, run, file), daemon=True
                        )
                        there[name, life].start()
                    elif now >= goes * seconds and there[name, life].is_alive():
                        os.kill(there[name, life].pid, how)
                        there[name, life].join()
                if now - taken >= seconds / 16:
                    taken = now
                    found.append((time.time() - begun, load(urllib.request.urlopen(f"{url}/model").read())))
                time.sleep(0.1)
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
    places = torch.randint(len(held) - CONTEXT, (128,), generator=torch.Generator().manual_seed(0))
    points = []
    for at, arrays in found:
        model.load_state_dict(arrays)
        with torch.no_grad():
            loss = loss_of(model, held, places).item()
        before = [line for line in lines if line["at"] - begun <= at]
        points.append({"seconds": round(at, 2), "loss": round(loss, 4)}
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
    lines = [f"| | loss at {same:,.0f} tokens | at the end | tokens by then | MB sent | MB got |\n|---|" + "---:|" * 5]
    for name in dict.fromkeys(run["run"] for run in runs):
        mine = [run["points"] for run in runs if run["run"] == name]

        def spread(values: list[float], digits: int = 2) -> str:
            return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

        last = [points[-1] for points in mine]
        lines.append(
            f"| {name} | {spread([at(points, 'tokens', same) for points in mine])} | "
            f"{spread([point['loss'] for point in last])} | "
            f"{statistics.mean(p['tokens'] for p in last):,.0f} | {statistics.mean(p['up'] for p in last) / 1e6:.1f} | "
            f"{statistics.mean(p['down'] for p in last) / 1e6:.1f} |"
        )
    return "\n".join(lines)


def plot(runs: list[dict[str, Any]], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, (what, label, scale) in zip(
        figure.subplots(1, 3, sharey=True),
        (("seconds", "seconds", 1), ("tokens", "thousand tokens that counted", 1e3), ("up", "MB sent by workers", 1e6)),
        strict=True,
    ):
        for number, name in enumerate(dict.fromkeys(run["run"] for run in runs)):
            for run in (run for run in runs if run["run"] == name):
                points = run["points"] if what != "up" else [point for point in run["points"] if point["up"]]
                label_ = name if run["seed"] == runs[0]["seed"] else None
                axes.plot(
                    [point[what] / scale for point in points], [point["loss"] for point in points],
                    color=f"C{number}", alpha=0.8, linewidth=1.2, label=label_,
                )  # fmt: skip
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        if what == "up":
            axes.set_xscale("log")
        elif what == "tokens":
            axes.legend(fontsize=7)
    figure.axes[0].set_ylabel("loss of held-out text")
    figure.savefig(path, dpi=85)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", nargs=2)
    given = parser.parse_args()
    if given.plot:
        runs = json.loads(Path(given.plot[0]).read_text())["runs"]
        print(told(runs))
        return plot(runs, given.plot[1])
    torch.set_num_threads(1)
    data = given.text.read_bytes()
    letters = sorted(set(data))
    text = torch.searchsorted(torch.tensor(letters), torch.tensor(list(data)))
    runs: list[dict[str, Any]] = []
    for seed in map(int, given.seeds.split(",")):
        for run in RUNS:
            if given.only in run:
                runs.append(one(run, seed, text, len(letters), given.seconds))
                last = runs[-1]["points"][-1]
                print(f"seed {seed}, {run}: {last}, {runs[-1]['tokens of each']}", flush=True)
                if given.out is not None:
                    made = {"seconds": given.seconds, "steps": STEPS, "speeds": SPEEDS, "text": given.text.name,
                            "parameters": sum(p.numel() for p in Network(len(letters)).parameters())}  # fmt: skip
                    given.out.write_text(json.dumps({**made, "runs": runs}, indent=1) + "\n")
    print(told(runs))


if __name__ == "__main__":
    main()
