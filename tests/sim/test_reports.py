"""Random comparisons, read by a checker that knows only the files of the runs: no sentence is against its own table.

Every number and mark in tables and sentences follows from metrics.csv, by another program.
"""

import csv
import html
import itertools
import json
import math
import re
import tomllib
from collections import Counter
from statistics import fmean, median

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fastagg.sim.comparison import compare as comparing
from fastagg.sim.recipes.config import to_toml
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs.metrics import EvaluationRow, summarise
from fastagg.sim.runs.output import rows_csv, summary_json
from fastagg.sim.runs.result import Folder
from fastagg.sim.show.findings import RUN_NUMBERS
from fastagg.sim.show.progress import Watcher

SENTENCES = {
    "first": r"(?P<who>\w+) reaches \d+% first(?P<how> \(.*\))?\.",
    "sooner": r"(?P<who>\w+) reaches \d+% (?P<ratio>\S+) times sooner than (?P<base>\w+)(?P<how> \(.*\))?\.",
    "only": r"(?P<who>\w+) reaches \d+%, (?P<base>\w+) does not(?P<how> \(.*\))?\.",
    "misses": r"(?P<who>\w+) misses the target with (?P<count>\d+) of (?P<all>\d+) seeds?\.",
    "diverged": r"(?P<who>\w+) diverged with (?P<count>\d+) of (?P<all>\d+) seeds?\.",
    "times": r"Time to the target: (?P<list>.*) \(at the level of 5%, [^()]*\)\.",
    "ends": r"Accuracy at the end: (?P<list>.*) \(at the level of 5%, [^()]*\)\.",
    "untested": r"Accuracy at the end: (?P<list>.*) \(too few seeds for a test\)\.",
}


def invent(rng, tiny, out):
    """Write the runs of a random comparison. Return its cells, which of them failed, and the baseline."""
    methods, settings = list("ABCD"[: rng.integers(2, 5)]), rng.integers(1, 4)
    seeds, cells, failed = int(rng.integers(1, 7)), [], {}
    speeds, noise = (
        dict(zip(methods, np.exp(rng.normal(0, rng.choice([0.1, 1.0]), 4)), strict=False)),
        rng.random() * 0.1,
    )
    sizes = {method: int(rng.choice([1, 2, 5])) for method in methods}
    target = float(rng.choice([0.05, 0.5, 0.8]))
    for method, setting in itertools.product(methods, range(settings)):
        choice = (("client.lr", float(setting)),) if settings > 1 else ()
        all_fail = rng.random() < 0.05
        for seed in range(seeds):
            changes = {
                "name": method.lower(),
                "seed": seed,
                "run.target": target,
                "run.evaluate_every": int(rng.choice([1, 2])),
            }
            folder = method.lower() + "".join(f",{key}={value}" for key, value in choice)
            cells.append(Cell(tiny(changes), choice, folder, method))
            if all_fail or rng.random() < 0.05:
                failed[cells[-1].name] = "boom"
                continue
            write(rng, cells[-1], out, speeds[method] * (1 + setting), noise, sizes[method])
    return cells, failed, rng.choice([None, *methods])


def write(rng, cell, out, speed, noise, size):
    stopped = "diverged" if rng.random() < 0.05 else "finished"
    versions = int(rng.integers(10, 30)) if stopped == "diverged" else 40 // size * 2
    limit, every, rows = rng.choice([0.6, 0.75, 0.9]), cell.config.run.evaluate_every, []
    for version in range(versions + 1):
        if version % every == 0 or version > versions - 5:
            time = version * size * (0.8 + 0.4 * rng.random() * noise) / speed
            right = limit * (1 - math.exp(-version * size / 15)) + noise * rng.normal() if version else 0.1
            rows.append(EvaluationRow(version, time, version * size, min(1.0, max(0.0, right)), 1.0, 0.0, 0))
    summary = dict.fromkeys(RUN_NUMBERS, 0.0) | summarise(rows, cell.config.run.target, stopped)
    summary |= {
        "stopped": stopped,
        "interrupted": False,
        "time_unit": "10 s",
        "wall_seconds": {"total": 1.0},
        "notes": [],
    }
    folder = out / cell.name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(cell.config))
    (folder / "metrics.csv").write_text(rows_csv(EvaluationRow, rows))
    (folder / "delays.csv").write_text("delay,uploads\n0,1\n")
    (folder / "summary.json").write_text(summary_json(summary))


class Runs:
    """What the files of one setting say: by method and seed its time to the target (None: never), end and accuracy."""

    def __init__(self, folders, every, baseline):
        self.times, self.ends, self.accuracies, self.stopped = ({} for _ in range(4))
        for method, seed, rows, target, stopped in folders:
            points = range(0, rows[-1][1] + every, every)
            last = [[row for row in rows if row[1] <= point][-1] for point in points]
            self.times.setdefault(method, {})[seed] = next((row[2] for row in last if row[3] >= target), None)
            self.ends.setdefault(method, {})[seed] = rows[-1][2]
            known = {row[0]: row[3] for row in rows if row[0] > max(0, rows[-1][0] - 5)}
            self.accuracies.setdefault(method, {})[seed] = (
                None if stopped == "diverged" else 100 * fmean(known.values())
            )
            self.stopped.setdefault(method, {})[seed] = stopped
        self.methods, self.baseline = list(self.times), baseline
        reached = [time for own in self.times.values() for time in own.values() if time is not None]
        self.tests = {"accuracy": self.test(self.accuracy), "time": self.test(self.time) if reached else {}}

    def accuracy(self, method, seed, pair):
        return 0.0 if (value := self.accuracies[method][seed]) is None else value

    def time(self, method, seed, pair):
        all_runs = [(m, s) for m in pair for s in self.times[m]]
        never = [self.ends[m][s] for m, s in all_runs if self.times[m][s] is None and self.stopped[m][s] != "diverged"]
        most = min(never) if never else max(self.ends[m][s] for m, s in all_runs)
        time = self.times[method][seed]
        time = most if time is None else min(time, most)
        return math.log(time) if time > 0 else None

    def test(self, value):
        """Return by (more, fewer) the mean difference, its interval, the number of seeds, and Holm's p."""
        found = {}
        for pair in itertools.combinations(self.methods, 2):
            sides = [{seed: value(method, seed, pair) for seed in self.times[method]} for method in pair]
            shared = [s for s in sorted(sides[0].keys() & sides[1].keys()) if None not in (sides[0][s], sides[1][s])]
            if not shared or (self.baseline in self.methods and self.baseline not in pair):
                continue
            a, b = ([side[seed] for seed in shared] for side in sides)
            mean = fmean(a) - fmean(b)
            (a, b), key = ((a, b), pair) if mean >= 0 else ((b, a), pair[::-1])
            gaps = np.subtract(a, b)
            if len(shared) == 1:
                found[key] = abs(mean), None, 1, None
            elif not gaps.any():
                found[key] = 0.0, (0.0, 0.0), len(shared), 1.0
            elif np.ptp(gaps) < 1e-9 * abs(mean):
                found[key] = abs(mean), None, len(shared), 2 * 0.5 ** len(shared)
            else:
                test = ttest_rel(a, b)
                found[key] = abs(mean), tuple(test.confidence_interval(0.95)), len(shared), float(test.pvalue)
        tested = sorted((pair for pair in found if found[pair][3] is not None), key=lambda pair: found[pair][3])
        least = 0.0
        for place, pair in enumerate(tested):
            least = max(least, min(1.0, (len(tested) - place) * found[pair][3]))
            found[pair] = (*found[pair][:3], least)
        return found

    def shown(self, what):
        return {
            pair for pair, test in self.tests[what].items() if test[3] is not None and test[3] <= 0.05 and test[0] > 0
        }

    def how(self, pairs):
        ps = [self.tests["time"][pair][3] for pair in pairs]
        if all(p is None for p in ps):
            return " (one seed)"
        return None if set(pairs) <= self.shown("time") else " (not beyond chance)"


def read(out):
    """Return (method, setting, seed, rows, target, stopped, evaluate_every) of every run in a folder."""
    for path in sorted(out.glob("*/seed*/summary.json")):
        config = tomllib.loads((path.parent / "config.toml").read_text())
        with (path.parent / "metrics.csv").open() as file:
            rows = [
                (int(r["version"]), int(r["uploads"]), float(r["time"]), float(r["accuracy"]))
                for r in csv.DictReader(file)
            ]
        name, _, setting = path.parts[-3].partition(",client.lr=")
        stopped = json.loads(path.read_text())["stopped"]
        yield (
            name.upper(),
            setting,
            config["seed"],
            rows,
            config["run"]["target"],
            stopped,
            config["run"]["evaluate_every"],
        )


def apart(rows, every):
    ends = [row[1] for row in rows if row[0] % every == 0]
    return int(median([b - a for a, b in itertools.pairwise(ends) if b > a] or [rows[-1][1]]))


def near(text, value):
    """Whether a printed number is this one, rounded."""
    number = float(text)
    digits = len(text.partition(".")[2])
    return abs(number - value) <= max(0.5000001 * 10.0**-digits, 0.005000001 * abs(value) if digits < 1 else 0.0)


def check_pair(text, test, ratio):
    """A difference as printed: its number, and its interval if it has one."""
    numbers = re.findall(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?", text)
    mean, interval, *_ = test
    wanted = [mean, *(interval or ())]
    assert len(numbers) == len(wanted), (text, test)
    for number, value in zip(numbers, wanted, strict=True):
        if ratio:
            assert (
                float(number) == float(f"{math.exp(value):.3g}") or abs(float(number) / math.exp(value) - 1) < 6e-3
            ), text
        else:
            assert near(number.lstrip("+"), value), (text, test)


def check_sentence(text, runs):
    kind, match = next((kind, m) for kind, pattern in SENTENCES.items() if (m := re.fullmatch(pattern, text)))
    part, times = match.groupdict(), runs.tests["time"]
    if kind == "first":
        pairs = [pair for pair in times if part["who"] in pair]
        assert len(pairs) == len(runs.methods) - 1
        assert all(pair[1] == part["who"] and times[pair][0] > 0 for pair in pairs), text
        assert part["how"] == runs.how(pairs), text
    elif kind in ("sooner", "only"):
        pair = part["base"], part["who"]
        assert part["how"] == runs.how([pair]), text
        assert times[pair][0] >= max(test[0] for (more, _), test in times.items() if more == part["base"]) - 1e-12
        if kind == "only":
            assert set(runs.times[part["base"]].values()) == {None}
        else:
            check_pair(part["ratio"], (times[pair][0], None), ratio=True)
        assert any(time is not None for time in runs.times[part["who"]].values())
    elif kind == "misses":
        own = runs.times[part["who"]]
        assert (int(part["count"]), int(part["all"])) == (sum(time is None for time in own.values()), len(own)), text
    elif kind == "diverged":
        own = runs.stopped[part["who"]]
        assert (int(part["count"]), int(part["all"])) == (Counter(own.values())["diverged"], len(own)), text
    elif kind == "untested":
        assert all(test[3] is None for test in runs.tests["accuracy"].values()), text
    else:
        what, words = (
            ("time", r"(\w+) is sooner than (\w+), (.*)")
            if kind == "times"
            else ("accuracy", r"(\w+) is above (\w+), (.*)")
        )
        said = re.findall(words, part["list"].replace("; ", "\n"))
        pairs = {((b, a) if what == "time" else (a, b)): number for a, b, number in said}
        assert pairs.keys() == runs.shown(what), text
        assert said or part["list"] == "no method is above another"
        for pair, number in pairs.items():
            check_pair(number, runs.tests[what][pair], ratio=what == "time")
    return kind, part.get("who")


def check_report(out, baseline):
    """Read a report and the runs below it. Return how many sentences it has."""
    folders = [*read(out)]
    every = max(apart(run[3], run[6]) for run in folders)
    settings = list(dict.fromkeys(run[1] for run in sorted(folders, key=lambda run: run[1])))
    runs = {s: Runs([(m, *rest[:4]) for m, own, *rest in folders if own == s], every, baseline) for s in settings}
    page = html.unescape((out / "report.html").read_text().partition("Settings and machine")[0])
    found = re.findall(r"<h2>([^<]*)</h2><div.*?<tbody>\n(.*?)</tbody>", page, re.DOTALL)
    rows = {title: re.findall(r"<tr>(.*?)</tr>", body) for title, body in found}
    tables = {title: [re.findall(r"<td>(.*?)</td>", row) for row in own] for title, own in rows.items()}
    text = page.partition("<div")[0].rpartition("<h2>")[0]  # what stands before the first table
    said = re.findall(r"<(?:h2|p)>([^<]*)</", text)
    heard = {setting: set() for setting in settings}
    several = "Methods by settings" in tables
    for sentence in said:
        setting, text = re.fullmatch(r"lr ([\d.]+): (.*)", sentence).groups() if several else ("", sentence)
        heard[setting].add(check_sentence(text, runs[setting]))
    for setting, own in runs.items():
        if len(own.methods) > 1:
            missing = {("diverged", m) for m in own.methods if "diverged" in own.stopped[m].values()}
            if any(test[3] is not None for test in own.tests["time"].values()):
                missing |= {("misses", m) for m in own.methods if None in own.times[m].values()}
            assert missing <= heard[setting], (setting, missing - heard[setting])
    lines = Counter()
    for row in tables.get("Differences", []):
        setting, row = (row[0].removeprefix("lr "), row[1:]) if several else ("", row)
        what, more, fewer = re.fullmatch(r"(\w+): (\w+) [-/] (\w+)", row[0]).groups()
        test = runs[setting].tests[what][more, fewer]
        check_pair(row[1], test, ratio=what == "time")
        assert int(row[2]) == test[2] and row[3] == (f"{test[3]:.3f}" if test[3] >= 0.0005 else "<0.001"), (row, test)
        lines[setting, what] += 1
    for (setting, own), what in itertools.product(runs.items(), ("accuracy", "time")):
        assert lines[setting, what] == sum(test[3] is not None for test in own.tests[what].values()), (setting, what)
    check_means(tables, runs, several)
    return len(said)


def check_means(tables, runs, several):
    most = max(len(own) for setting in runs.values() for own in setting.times.values())
    cells = {}
    for row in tables["Test accuracy"]:
        method, _, rest = row[0].partition(", lr ") if several else row[0].partition(" (")
        setting = rest.partition(" (")[0] if several else ""
        cells[method, setting] = row
    for (method, setting), row in cells.items():
        if method not in runs[setting].times if setting in runs else True:
            assert row[0].endswith("(failed)") and set(row[1:]) == {"–"}
            continue
        values = [value for value in runs[setting].accuracies[method].values() if value is not None]
        (shown,) = [text for text in row[1:] if re.match(r"\d+\.\d(±|$| \(n)", text)][:1] or ["–"]
        assert near(shown.partition("±")[0].partition(" ")[0], fmean(values)) if values else shown in row
        marked = f"(n={len(values)})" in shown
        assert marked == (0 < len(values) < most), (row, most)


@pytest.fixture
def check(tiny, tmp_path, monkeypatch):
    def check(number):
        rng, out = np.random.default_rng(number), tmp_path / str(number)
        cells, failed, baseline = invent(rng, tiny, out)
        outcomes = {c.name: failed.get(c.name) or Folder(out / c.name, c.config).read() for c in cells}
        monkeypatch.setattr(comparing, "run_cells", lambda *given: outcomes)
        monkeypatch.setattr(comparing, "check_cells", lambda cells: None)
        monkeypatch.setattr(comparing.plots, "pictures", lambda *given: [])
        found = comparing.compare(cells, out, Watcher(), baseline=baseline)
        return check_report(out, baseline) if found.groups else 0

    return check


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_no_sentence_is_against_its_own_table(first, check):
    assert sum(map(check, range(first, first + 5))) > 10


@pytest.mark.slow
def test_no_sentence_of_three_hundred_reports_is_against_its_own_table(check):
    said = sum(map(check, range(1000, 1300)))
    print(f"300 reports, {said} sentences")
    assert said > 1500
