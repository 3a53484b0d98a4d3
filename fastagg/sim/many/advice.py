"""Which rule for a federation: it is simulated with every rule that fits into the server's memory.

All rules get the same clients, delays and virtual time. Each is judged at the best server rate of a grid, which grows
while its last rate is the best. Rates are searched with other seeds than those that judge. A rule that takes gradients
gets one batch of as many samples as the others train on in all their steps.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fastagg import _checks
from fastagg._types import Plain
from fastagg.errors import ConfigError, DataError, RunFailed
from fastagg.sim.clock.measured import read_times
from fastagg.sim.data import npz
from fastagg.sim.many.cells import run_cells
from fastagg.sim.many.groups import Difference, paired
from fastagg.sim.many.rules import RULES, fitting, keywords_of, server_bytes
from fastagg.sim.one.result import Result
from fastagg.sim.recipes.config import from_dict
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.show.progress import Watcher
from fastagg.storage.tiered import bytes_of

SKEWS = {"none": 100.0, "mild": 1.0, "strong": 0.1}  # the alpha of a Dirichlet split by label
SEARCHERS, JUDGES, FINALISTS = 3, 10, 4  # seeds of the search and of the judgement, rules that come that far
UPLOADS, STEPS, BATCH, CLIENT_RATE = 1500, 5, 20, 0.1  # of a run, and of local training
CLOSE = 1.0  # percentage points: of rules this close the one that needs least memory is recommended
_CLIENTS, _INPUTS, _MOST = 50, 4096, {"train": 20_000, "test": 2000}  # of a federation that is simulated
_VERDICTS = {
    "reversed": "Worse, as the interval of the difference is below zero",
    "tie": "Perhaps as good, as the interval of the difference contains zero",
    "shown": f"Better, but by less than {CLOSE:g} point",
}
_FEW = 12  # runs that are not worth another process


@dataclass(frozen=True)
class Ranked:
    """A rule and how well it did."""

    rule: str  # the preset
    settings: Plain  # its keywords
    accuracy: Difference  # its test accuracy at the end, in percent, with Student's interval of 95% over the seeds
    behind: Difference  # its accuracy minus that of the recommended rule, seed by seed, in percentage points
    memory: int  # bytes of the server

    @property
    def line(self) -> str:
        """The line to type."""
        return f"fastagg.{self.rule}({', '.join(['model', *(f'{k}={v!r}' for k, v in self.settings.items())])})"


@dataclass(frozen=True)
class Advice:
    """What :func:`advise` found."""

    ranked: list[Ranked]  # the recommended rule, then the others that were judged, best first
    left_out: dict[str, int]  # rules, or formats of rows, that do not fit into the memory, and the bytes that they need
    why: list[str]  # the reasons, in sentences
    command: str  # the command that repeats it


def advise(
    clients: int,
    *,
    slow: float = 10.0,
    slow_share: float = 0.1,
    delays: str | Path | None = None,
    skew: float | str = "strong",
    data: str | Path | None = None,
    parameters: int | str = 1_000_000,
    memory: int | str | None = None,
    in_flight: int | None = None,
    seed: int = 0,
    jobs: int = 1,
    watcher: Watcher | None = None,
) -> Advice:
    """Simulate a federation with every rule that fits, and recommend one.

    Args:
        clients: how many there are. At most 50 are simulated; settings that depend on their number are scaled.
        slow: how many times as long as others the slow clients take. ``slow_share`` is their share.
        delays: a CSV of measured delays instead: what :func:`fastagg.watch` writes, or lines of ``client,seconds``, or
            only seconds, a client each.
        skew: of the clients' labels: ``none``, ``mild``, ``strong``, or the alpha of a Dirichlet split.
        data: an .npz of your own with x_train, y_train, x_test, y_test, and perhaps client_train, the client of each
            sample, instead of ``skew``. By default scikit-learn's digits.
        parameters: of your model, for the memory: a number, or as "11M".
        memory: the server's, such as "8GB". None: any.
        in_flight: clients that train at once; by default half of them.
        seed: of everything random. The same seed gives the same advice.
        jobs: processes. With more than one a script needs ``if __name__ == "__main__":``.
        watcher: is told of every run.

    Raises:
        ConfigError, DataError: an argument is refused, or no rule fits into the memory.
        KeyboardInterrupt: it was stopped.
    """
    _checks.whole("clients", clients, least=2)
    alpha = SKEWS[_checks.one_of("skew", skew, tuple(SKEWS))] if isinstance(skew, str) else skew
    _checks.number("skew", alpha, above=0)
    size = bytes_of("parameters", parameters, "a number, such as 11_000_000 or '11M'")
    limit = math.inf if memory is None else bytes_of("memory", memory)
    flight = max(1, clients // 2) if in_flight is None else _checks.whole("in_flight", in_flight, least=1, most=clients)
    _checks.whole("seed", seed, least=0)
    times = _slow(slow, slow_share)
    if delays is not None:
        read_times(file := _checks.path("delays", delays).resolve())  # what is wrong is said before anything runs
    caches, left_out = fitting(size, clients, flight, limit)
    with TemporaryDirectory() as scratch:
        if delays is None:
            file = Path(scratch) / "delays.csv"
            file.write_text(times, encoding="utf-8")
        section, uploads = _data(data, Path(scratch), min(clients, _CLIENTS), alpha, seed)
        base = {"data": section, "delay": {"name": "measured", "file": str(file)}}
        at_once = max(1, round(flight * section["clients"] / clients))
        lab = _Lab(base, caches, at_once, {"uploads": uploads}, Path(scratch), jobs, watcher or Watcher())
        rates, searched = _search(lab, seed)
        finalists = sorted(rates, key=lambda name: -searched[name])[:FINALISTS]
        runs = lab.run([(name, rates[name], seed + own) for name in finalists for own in range(JUDGES)])

    scores = {name: {own: _accuracy(run) for (of, _, own), run in runs.items() if of == name} for name in finalists}
    means = {name: statistics.fmean(own.values()) for name, own in scores.items()}
    needs = {name: server_bytes(name, size, clients, flight, caches[name]) for name in finalists}
    top = max(finalists, key=lambda name: means[name])
    close = [name for name in finalists if means[name] >= means[top] - CLOSE]
    close = [name for name in close if paired(scores[top], scores[name]).verdict == "tie"]
    chosen = min(close, key=lambda name: (needs[name], -means[name]))
    ranked = []
    for name in sorted(finalists, key=lambda name: (name != chosen, -means[name])):
        settings = keywords_of(name, rates[name], caches[name], flight)
        settings |= {"num_clients": clients} if caches[name] else {}
        accuracy, behind = paired(scores[name], dict.fromkeys(scores[name], 0.0)), paired(scores[name], scores[chosen])
        ranked.append(Ranked(name, settings, accuracy, behind, needs[name]))
    given: Plain = {"slow": slow, "slow-share": slow_share} if delays is None else {"delays": delays}
    given |= {"skew": skew, "data": data, "parameters": parameters, "memory": memory, "in-flight": in_flight}
    words = [f"--{key} {shlex.quote(str(value))}" for key, value in given.items() if value is not None]
    command = " ".join(["fastagg advise", str(clients), *words, f"--seed {seed}"])
    return Advice(ranked, left_out, _why(ranked, top, searched), command)


def _slow(slow: float, share: float) -> str:
    """Return lines of client,seconds."""
    if _checks.number("slow_share", share, least=0) > 1:
        raise ConfigError(_checks.wrong("slow_share", "a share in 0..1", share))
    late, factor = math.ceil(_CLIENTS * share), _checks.number("slow", slow, least=1)
    factors = [1.0] * (_CLIENTS - late) + [factor] * late
    return "".join(f"{c},{own * time!r}\n" for c, own in enumerate(factors) for time in (0.8, 1.0, 1.2))


def _data(given: str | Path | None, folder: Path, clients: int, alpha: float, seed: int) -> tuple[Plain, int]:
    """Return the config's section of the data, and how many answers a run has time for."""
    if given is None:
        return {"name": "digits", "clients": clients, "alpha": alpha}, UPLOADS
    if not (path := _checks.path("data", given)).is_file():
        raise DataError(f"data: there is no file {path}; expected an .npz with {', '.join(npz.KEYS)}")
    arrays, rng = npz.read(path), np.random.default_rng(seed)
    if (inputs := math.prod(arrays["x_train"].shape[1:])) > _INPUTS:
        wrong = f"expected at most {_INPUTS} numbers a sample, got {inputs}"
        raise DataError(f"data: {path}: {wrong}; average pixels first")
    kept, tested = (rng.permutation(len(arrays[f"y_{part}"]))[:most] for part, most in _MOST.items())
    clients = max(1, min(clients, len(kept) // 2))
    if npz.OWNERS in arrays:  # as many of the real clients
        names = np.sort(rng.permutation(np.unique(arrays[npz.OWNERS]))[:clients])
        kept, clients = np.flatnonzero(np.isin(arrays[npz.OWNERS], names)), len(names)
        arrays[npz.OWNERS] = np.searchsorted(names, arrays[npz.OWNERS])
    chosen: Plain = {k: v[tested if k.endswith("test") else kept] for k, v in arrays.items()}
    np.savez(folder / "data.npz", **chosen)
    # An update of larger inputs takes longer, digits have 64, and all runs together should take two minutes.
    uploads = min(UPLOADS, max(200, round(2.5 * UPLOADS / (inputs / 64) ** 0.8)))
    return {"name": "npz", "dir": str(folder), "clients": clients, "alpha": alpha}, uploads


Run = tuple[str, int, int]  # the rule, the number of its rate, the seed


@dataclass
class _Lab:
    """The simulations of one federation."""

    base: Plain
    caches: dict[str, str]
    at_once: int
    end: dict[str, float]  # of a run
    folder: Path
    jobs: int
    watcher: Watcher

    def run(self, wanted: Sequence[Run]) -> dict[Run, Result]:
        cells = {run: self._cell(*run) for run in wanted}
        # Processes take seconds to start. Where runs go on makes no difference to them.
        jobs = self.jobs if len(cells) > _FEW else 1
        outcomes = run_cells(list(cells.values()), self.folder, jobs, self.watcher)
        results: dict[Run, Result] = {}
        for run, cell in cells.items():
            outcome = outcomes.get(cell.name)
            if isinstance(outcome, str):
                raise RunFailed(f"{cell.name}: {outcome}")
            if outcome is None or outcome.summary["interrupted"]:
                raise KeyboardInterrupt
            results[run] = outcome
        return results

    def _cell(self, name: str, rate: int, seed: int) -> Cell:
        rule = RULES[name]
        keywords = keywords_of(name, rate, self.caches.get(name, ""), self.at_once)
        waits = "clients_per_round" in keywords
        values = {
            **self.base, "name": f"{name}-{rule.rate}{keywords[rule.rate]:g}", "seed": seed,
            "algorithm": {"name": name, **keywords},
            "participation": {"rule": "round"} if waits else {"rule": "concurrency", "concurrency": self.at_once},
            "client": {
                "lr": CLIENT_RATE, "steps": 1 if rule.gradient else STEPS,
                "batch_size": STEPS * BATCH if rule.gradient else BATCH,
            },
            "run": {"evaluate_every": 10**9, **self.end},  # only the last versions are tested: accuracy is their mean
        }  # fmt: skip
        return Cell(from_dict(values, f"advise, {name}"), folder=f"{values['name']},{next(iter(self.end))}")


def _search(lab: _Lab, seed: int) -> tuple[dict[str, int], dict[str, float]]:
    """Return the number of every rule's best rate, and its mean accuracy."""
    seeds = range(seed + 1000, seed + 1000 + SEARCHERS)
    (pace,) = lab.run([("FedBuff", 0, seeds[0])]).values()
    lab.end = {"time": pace.summary["virtual_time"]}  # all rules get as much
    scores: dict[tuple[str, int], float] = {}
    best = middle = {name: RULES[name].rates[len(RULES[name].rates) // 2] for name in lab.caches}
    wanted = [(name, rate + step) for name, rate in best.items() for step in (-1, 0, 1)]
    while wanted := [(name, rate) for name, rate in wanted if (name, rate) not in scores and rate in RULES[name].rates]:
        found = lab.run([(name, rate, own) for name, rate in wanted for own in seeds])
        for name, rate in wanted:
            scores[name, rate] = statistics.fmean(_accuracy(found[name, rate, own]) for own in seeds)
        # Of a rule's items the last one stays. Of equal ones it is the nearest to the middle.
        best = dict(sorted(scores, key=lambda one: (scores[one], -abs(one[1] - middle[one[0]]))))
        wanted = [(name, rate + step) for name, rate in best.items() for step in (-1, 1)]
    return best, {name: scores[name, rate] for name, rate in best.items()}


def _accuracy(result: Result) -> float:
    return 100 * float(result.summary["last5_accuracy_mean"] or 0.0)  # a diverged run has none


def _why(ranked: Sequence[Ranked], top: str, searched: Mapping[str, float]) -> list[str]:
    first = ranked[0]
    lines = [f"{first.rule} {RULES[first.rule].about}."]
    if first.rule != top:
        lines.append(f"{top} is not clearly better, and needs more memory.")
    for verdict, words in _VERDICTS.items():
        if names := [one.rule for one in ranked[1:] if one.behind.verdict == verdict]:
            lines.append(f"{words}: {', '.join(names)}.")
    judged = {one.rule for one in ranked}
    if others := [f"{name} {value:.1f}%" for name, value in searched.items() if name not in judged]:
        lines.append(f"Behind them in the search for rates: {', '.join(others)}.")
    return lines
