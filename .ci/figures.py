"""Checks the figures in README and docs: python .ci/figures.py

Figures that take seconds are computed again. Figures that take minutes are compared with bench/results/. Figures that
need a long run are not checked. The pages name their commands.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Check = tuple[str, str]  # a page, and the text that it must contain


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def short(value: float) -> str:
    """Return a number with three digits, as the pages write speeds: 1,240 and 127 and 30."""
    return f"{float(f'{value:.3g}'):,.0f}"


def results() -> Iterator[Check]:
    """Yield what README and docs/performance/frameworks.md say of results in bench/results/."""
    text = json.loads((ROOT / "bench" / "results" / "amd-epyc-zen-4.json").read_text())
    found = [one for one in text["benchmarks"] if one["extra_info"]["threads"] == 2]
    rows = {(one["extra_info"]["case"], one["extra_info"]["candidate"]): one for one in found}
    rate = {key: 1 / row["stats"]["median"] for key, row in rows.items()}
    memory = {key: row["extra_info"].get("memory", 0.0) for key, row in rows.items()}
    page = "docs/performance/frameworks.md"
    for rule in ("FedAvg", "FedAdam"):
        theirs, ours = ((f"server, Flower {rule}", who) for who in ("Flower", "fastagg"))
        yield page, f"| {rule} | {rate[theirs]:.0f} | {rate[ours]:.0f} | {rate[ours] / rate[theirs]:.1f} |"
        if rule == "FedAvg":
            words = f"memory grows by {memory[ours]:.1f} models, with Flower's by {memory[theirs]:.1f}"
            yield "README.md", f"{rate[ours]:.0f} updates a second against {rate[theirs]:.0f}; {words}"
    ours, theirs = (("server, FLARE FedAvg of whole models", who) for who in ("fastagg", "FLARE"))
    words = f"memory grows by {memory[ours]:.1f} models, with FLARE's by {memory[theirs]:.1f}"
    yield "README.md", f"{rate[ours]:.0f} updates a second against {rate[theirs]:.0f}; {words}"
    engine = "Flower's simulation engine"
    names = ("fastagg", "plain torch loop", "pfl-research", engine)
    rates = {who: short(rate["simulators, MLP", who]) for who in names}
    yield (
        "README.md",
        f"{rates['fastagg']} client updates a second against {rates['plain torch loop']} in a plain torch loop and "
        f"{rates[engine]} in {engine}",
    )
    for who, value in rates.items():
        yield page, f"{who} | {value} |"
    for case in sorted({case for case, _ in rate if case.startswith("simulator, ") and "Comparison" not in case}):
        model = case.removeprefix("simulator, ")
        ours, loop = (rate[case, who] for who in ("fastagg", "plain torch loop"))
        yield page, f"| {model} | {1e3 / ours:.3g} ms | {1e3 / loop:.3g} ms | {ours / loop:.1f} |"


def blocks() -> Iterator[Check]:
    """Yield the rounding errors, by the number of elements that share a scale."""
    for line in run("bench/errors.py", "blocks").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[:2] in (["255", "256"], ["15", "256"]):
            yield "docs/algorithms.md", f"{cells[5]} in int{8 if cells[0] == '255' else 4}"


def memory() -> Iterator[Check]:
    """Yield the bytes per parameter that servers keep, as in choosing.md, and the bytes of a cache."""
    import torch

    import fastagg

    size, clients = 1_000_000, 4
    model = torch.zeros(size)
    servers = {
        "0": fastagg.ASGD(model, lr=0.1), "4d": fastagg.FedBuff(model, buffer_size=2),
        "16d": fastagg.FADAS(model, buffer_size=2), "7d": fastagg.FADAS(model, buffer_size=2, moments="8bit"),
        "8d + (n + M)": fastagg.CA2FL(model, num_clients=clients, buffer_size=2),
    }  # fmt: skip
    for words, server in servers.items():
        for _ in range(2):
            tasks = [server.dispatch(client) for client in range(clients)]
            for task in tasks:
                server.receive(task.client, torch.ones(size), task.version)
        del tasks, task  # a task keeps its version in memory
        held = round((server.memory()["total"] - 4 * size) / size)
        expected = 8 + 4 * (clients + 2) if "n" in words else int(words.rstrip("d"))
        yield "docs/choosing.md", words if held == expected else f"{words} (found: {held}d)"
    for name in ("fp32", "bf16", "int8", "int4"):
        each = fastagg.ClientCache(1 << 20, 1, name).nbytes() / (1 << 20)
        yield "docs/algorithms.md", f"| {name} | {round(each, 4):g} |"


def demo() -> Iterator[Check]:
    """Yield the demo's verdict. Its numbers may differ slightly on another processor, because of rounding."""
    with tempfile.TemporaryDirectory() as folder:
        said = run("-P", "-m", "fastagg", "demo", "--out", folder)  # -P: runs the installed package, not this folder's
    ratio = re.search(r"FedBuff reaches 95% (\d+)(?:\.\d)? times sooner than FedAvg\.", said)
    took = [re.search(rf"{row} +\S+ +\S+ +(\d+) {unit}", said) for row, unit in (("FedBuff", "min"), ("FedAvg", "h"))]
    if ratio is None or took[0] is None or took[1] is None:
        raise SystemExit(f"the demo has another verdict:\n{said}")
    stands = 40 if abs(int(ratio[1]) - 40) <= 4 else int(ratio[1])
    for page in ("README.md", "docs/index.md"):
        yield page, f"FedBuff reaches 95% {stands} times sooner than FedAvg"
    yield "README.md", f"FedBuff takes {took[0][1]} minutes of virtual time to 95% accuracy, FedAvg {took[1][1]} hours"


def main() -> int:
    """Print every figure that differs. Return 1 if there is one."""
    run("bench/report.py", "--check")
    wrong = checked = 0
    for part in (results, blocks, memory, demo):
        for page, words in part():
            checked += 1
            if words not in " ".join((ROOT / page).read_text().split()):  # ignores where lines end
                print(f"{page} does not have what was found now ({part.__name__}): {words}")
                wrong += 1
    print(f"{checked} figures were made again; {wrong} differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
