"""A pytest plugin that times candidates in turns. pytest-benchmark would time one function after the other, while the
machine changes. The plugin uses public hooks only.

All candidates of a case at one size are measured when the first one's test begins (``measure.py``). Each test then
gives its own samples to pytest-benchmark, through a timer that returns the measured seconds (:class:`Shown`).
"""

from __future__ import annotations

import math
import os
from fnmatch import fnmatchcase
from typing import Any

import checkout
import machine
import pytest
import timing
import torch
from cases import CASES
from measure import Found, measure
from problem import Case

import fastagg

# Without --case, small sizes run, in two minutes in total. Slow cases and torch.compile are left out.
QUICK, QUICK_ROUNDS, QUICK_SECONDS, SLOW = 1_000_000, 5, 3.0, ("torch.compile",)
SHOWN = ("case", "candidate", "size", "threads", "p20", "p80", "ratio", "share", "streams")
FOUND = pytest.StashKey[dict[tuple[str, int, int], "Found | AssertionError"]]()


def counts(text: str) -> list[int]:
    """Return whole numbers such as 11200000 or 1e6, separated by commas."""
    values = [float(one) for one in text.split(",")]
    if not all(value.is_integer() and value >= 1 for value in values):
        raise ValueError(text)
    return [int(value) for value in values]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fastagg", "what is measured")
    groups = ", ".join(dict.fromkeys(case.group for case in CASES.values()))
    group.addoption("--case", action="append", metavar="NAME", help=f"a case, a pattern such as 'ace *', or {groups}")
    group.addoption("--sizes", type=counts, metavar="N,N", help="numbers of parameters, such as 1e3,11200000")
    group.addoption("--threads", type=counts, metavar="N,N", help="of fastagg and of torch, one after the other")
    group.addoption("--only", action="append", metavar="WORD", help="only peers whose names contain one of these words")
    group.addoption("--device", default="cpu", choices=("cpu", "cuda"))
    group.addoption("--rounds", type=int, help="samples of each (default: 31 below a million parameters, 15)")
    group.addoption("--within", type=float, metavar="SECONDS",
                    help="for each case and size: no round begins later, once there are five")  # fmt: skip
    group.addoption("--floors", action="store_true",
                    help="fail where a kernel is below its floor; one thread, the best of 40 rounds")  # fmt: skip
    group.addoption("--impatient", action="store_true", help="do not wait for a quiet machine")


def pytest_configure(config: pytest.Config) -> None:
    if (given := config.option).floors:
        given.case, given.rounds, given.threads = given.case or ["kernel"], given.rounds or 40, [1]
        given.sizes, given.only = given.sizes or [8_000_000], [case.floor[1] for case in CASES.values() if case.floor]
    config.stash[FOUND] = {}
    for word in config.option.case or ():
        if not any(_is_meant(case, word) for case in CASES.values()):
            raise pytest.UsageError(f"--case {word}: no case, pattern or group of this name")


def _is_meant(case: Case, word: str) -> bool:
    return word in (case.name, case.group) or fnmatchcase(case.name, word)


def chosen(config: pytest.Config) -> list[tuple[str, int, int, str]]:
    """Return (case, size, threads, candidate) of every test that the options select."""
    words, device, only = config.option.case, config.option.device, config.option.only or [""]
    threads = [0] if device == "cuda" else config.option.threads or [fastagg.get_num_threads()]
    found = []
    for name, case in CASES.items():
        if config.option.floors and case.floor is None:
            continue
        own = list(case.sizes) if len(case.sizes) == 1 else config.option.sizes or list(case.sizes)
        if not words:
            small = [QUICK] if case.group == "kernel" else [min(case.sizes)]
            own = own if len(case.sizes) == 1 or config.option.sizes else small
            if (
                case.group in ("server", "processes", "disk")  # they take minutes
                or name.startswith("simulator, C")
                or (len(case.sizes) == 1 and own[0] > QUICK)
            ):
                continue
        elif not any(_is_meant(case, word) for word in words):
            continue
        for candidate in case.candidates() if device in case.devices else []:
            first = candidate.name == case.candidates()[0].name
            if device not in candidate.devices or not (first or any(word in candidate.name for word in only)):
                continue
            if words or candidate.name not in SLOW:
                found += [(name, size, count, candidate.name) for count in threads for size in own]
    order = list(CASES)
    return sorted(found, key=lambda one: (one[2], order.index(one[0]), one[1]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "candidate" in metafunc.fixturenames:
        metafunc.parametrize(("case", "size", "threads", "candidate"), chosen(metafunc.config))


class Shown:
    """A timer for pytest-benchmark that returns seconds measured before."""

    __name__ = "interleaved"
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def show(self, seconds: float) -> None:
        self.now = seconds


def pytest_itemcollected(item: pytest.Item) -> None:
    if "interleaved" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.benchmark(timer=Shown()))


@pytest.fixture
def interleaved(request: pytest.FixtureRequest, benchmark: Any) -> Any:
    """Return a function ``(case, size, threads, candidate)`` that reports samples. A case's first call measures."""

    def show(case: str, size: int, threads: int, candidate: str) -> None:
        found = request.config.stash[FOUND]
        if (case, size, threads) not in found:
            found[case, size, threads] = _measured(request, case, size, threads)
        one = found[case, size, threads]
        if isinstance(one, AssertionError):
            raise one
        if candidate not in one.timed:
            benchmark.skipped = True
            pytest.skip(one.skipped.get(candidate) or next(iter(one.skipped.values())))
        timed, timer = one.timed[candidate], request.node.get_closest_marker("benchmark").kwargs["timer"]
        benchmark.group = f"{case}, {size:,} parameters, {threads} threads"
        benchmark.extra_info.update(timed.info)
        samples = iter(timed.samples)
        benchmark.pedantic(lambda: timer.show(next(samples, 0.0)), setup=lambda: timer.show(0.0),
                           rounds=len(timed.samples))  # fmt: skip

    return show


def _measured(request: pytest.FixtureRequest, case: str, size: int, threads: int) -> Found | AssertionError:
    given, place = request.config.option, (case, size, threads)
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    wanted = [one.params["candidate"] for one in calls if one and _place(one.params) == place]
    rounds, within = given.rounds, given.within
    if not given.case:
        rounds, within = rounds or QUICK_ROUNDS, within or QUICK_SECONDS
    care = timing.Care(0.005, math.inf, 0.0) if given.impatient or not given.case else timing.QUIET
    if given.floors:  # other load in CI lasts for minutes, so it is not waited for
        care = timing.Care(settle=0.002, patience=0.0)
    if threads:
        fastagg.set_num_threads(threads)
        torch.set_num_threads(threads)
    try:
        return measure(
            CASES[case], size, rounds=rounds, wanted=wanted, device=torch.device(given.device),
            within=within or math.inf, care=care, floors=given.floors,
        )  # fmt: skip
    except AssertionError as error:
        return error


def _place(params: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(params.get(key) for key in ("case", "size", "threads"))


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info.update(machine.stamp(torch.device(config.option.device)))


def pytest_benchmark_update_commit_info(commit_info: dict[str, Any]) -> None:
    if not checkout.PATHS:  # the package is installed, so the current folder's commit may be another one
        commit_info["id"] = "unversioned"
    if named := os.environ.get("FASTAGG_COMMIT"):  # the commit of a copy without git (bench/gpu.sh)
        commit_info.update(id=named, dirty=False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the ratios, each of two times in one round, and how busy other processes were."""
    for (case, size, threads), one in config.stash[FOUND].items():
        if isinstance(one, Found) and one.timed:
            quiet = f"others took {one.others:.0%} of the cores at most, {one.discarded} rounds were discarded"
            terminalreporter.write_line(f"{case}, {size:,} parameters, {threads} threads: {quiet}")
            for name, timed in one.timed.items():
                share = f"; {timed.info['share']:.0%} of streaming" if "share" in timed.info else ""
                share += "".join(f"; {key}: {value:.4g}" for key, value in timed.info.items() if key not in SHOWN)
                low, middle, high = timed.info.get("ratio", (1, 1, 1))
                terminalreporter.write_line(
                    f"  {middle:6.2f} ({low:.2f} to {high:.2f}) times fastagg's time: {name}{share}"
                )
