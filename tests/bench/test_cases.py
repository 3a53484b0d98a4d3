"""Every case builds, its candidates agree, and its bytes are what the rule must read and write."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import timing
from cases import CASES

ALGORITHMS = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"
SLOW = ("ACE of 1000", "of a million", "distillation loss [512", "simulator, C", "simulator, L", "server, ")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "cpu" in case.devices])
def test_candidates_agree(name):
    import measure
    from problem import Problem, Skip

    case = CASES[name]
    if name.startswith(SLOW) or case.group in ("disk", "processes"):
        pytest.skip("its smaller kin are built, or the next test runs it")
    size = case.sizes[0] if len(case.sizes) == 1 and case.sizes[0] < 1_000_000 else 2003
    wanted = [one for one in case.candidates() if one.name != "torch.compile"]
    built, skipped = measure.build(case, replace(Problem(size), lr=case.lr), wanted)
    assert wanted[0].name in built
    assert built.keys() | skipped.keys() == {one.name for one in wanted}
    for name, ready in built.items():
        if name not in ("fastagg", measure.FLOORS[0]) and ready.before is None:
            ready.run()  # a second time
    assert all(issubclass(Skip, Exception) and reason for reason in skipped.values())


@pytest.mark.parametrize(
    ("name", "size", "told"),
    [
        ("durable FADAS", 1000, "waited"),
        ("durable ACE int8, 64 threads", 1000, "answers a group"),
        ("durable, the longest of many", 1000, "median"),
        ("recovery of 1 GB", 1000, None),
        ("streamed upload of 1 GB", 1000, None),
        ("waiting, load 60%, 1 together", 1000, "queue"),
    ],
)
def test_what_a_disk_or_processes_do_is_measured_small(name, size, told, tmp_path, monkeypatch):
    import tempfile

    import measure

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(measure.peak, "alone", lambda case, name: 1.0)
    case = CASES[name]
    found = measure.measure(case, size, rounds=2, care=timing.AT_ONCE)
    for one in case.candidates():
        assert one.name in found.timed or "not installed" in found.skipped[one.name]
    for one in found.timed.values():
        assert all(seconds > 0 for seconds in one.samples)
    if told:
        assert next(iter(found.timed.values())).info[told] >= 0
    assert list(tmp_path.glob("fastagg-*")) == []  # nothing is left on the disk


def test_what_computes_something_else_is_not_timed():
    import measure
    from problem import Built, Candidate

    case = CASES["accumulate"]
    leader = case.candidates()[0]

    def wrong(problem):
        acc = problem.vector("acc")
        return Built(lambda: acc.add_(problem.update, alpha=1.01), lambda: acc)

    broken = replace(case, candidates=lambda: [leader, Candidate("wrong", wrong, 1)])
    with pytest.raises(AssertionError, match="wrong: its result differs from fastagg's"):
        measure.measure(broken, 1000, rounds=1, care=timing.AT_ONCE)
    near = replace(broken, apart=1e-4)
    with pytest.raises(AssertionError, match="of its norm"):
        measure.measure(near, 1000, rounds=1, care=timing.AT_ONCE)


def test_the_documents_have_the_same_bytes():
    found = re.findall(
        r"^\| (fp32|bf16|int8|int4) \| [\d.]+ \| (\d+) \| [\d.]+ \(", ALGORITHMS.read_text(), re.MULTILINE
    )
    assert {name: float(b) for name, b in found} == {
        f: CASES[f"ace {f}"].bytes for f in ("fp32", "bf16", "int8", "int4")
    }


def test_a_measurement_has_all_candidates_and_a_share_only_beyond_the_caches(monkeypatch):
    import measure

    case = CASES["arrival ACE int8"]
    found = measure.measure(case, 1000, rounds=3, care=timing.AT_ONCE)
    assert set(found.timed) == {one.name for one in case.candidates()} - found.skipped.keys()
    for name, one in found.timed.items():
        assert len(one.samples) == 3 and 0 < one.info["p20"] <= one.info["p80"]
        assert ("ratio" in one.info) == (name != "fastagg")
        assert "share" not in one.info
    monkeypatch.setattr(measure, "BEYOND", 1000)
    info = {name: one.info for name, one in measure.measure(case, 1000, rounds=1, care=timing.AT_ONCE).timed.items()}
    assert {name for name in info if "share" in info[name]} == {name for name in info if name.startswith("fastagg")}
    assert set(info["fastagg"]["streams"]) == {"copy", "triad", "read", "in place"}


def test_a_run_in_processes_of_its_own_says_its_seconds():
    import measure
    from problem import Built, Candidate, Case

    made = [
        Candidate(name, lambda _, t=t: Built(lambda: t, None, warm=0), 0) for name, t in (("fastagg", 4.0), ("b", 8.0))
    ]
    found = measure.measure(Case("told", 0, lambda: made, sizes=(1,), told=True, period=2), 1, rounds=2).timed
    assert found["fastagg"].samples == [2.0, 2.0] and found["b"].info["ratio"] == [2.0, 2.0, 2.0]


def test_a_case_that_keeps_something_for_each_client_says_how_much():
    import measure

    found = measure.measure(CASES["ACE of 10 clients"], 102_400, rounds=1, care=timing.AT_ONCE).timed
    assert found["fastagg, fp32 rows"].info["kept"] == pytest.approx(4, rel=0.02)
    assert found["fastagg, int4 rows"].info["kept"] == pytest.approx(0.5 + 4 / 256, rel=0.02)


def test_memory_at_the_peak_is_measured_alone():
    import peak

    most = peak.alone("message to model", "fastagg, dict of tensors")
    assert most is None or 0 < most < 20  # models


def test_what_needs_more_memory_than_there_is_is_skipped(monkeypatch):
    import machine
    import measure

    monkeypatch.setattr(machine, "available_bytes", lambda device=None: 1 << 20)
    found = measure.measure(CASES["amsgrad"], 100_000)
    assert found.timed == {}
    assert "GiB" in found.skipped["fastagg"]


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_the_queue_waits_as_long_as_queueing_theory_says(load):
    """One server, Poisson arrivals, constant service: a mean wait of load/(2*(1 - load)) services (Pollaczek)."""
    from cases import waiting

    came = waiting.arrivals(200_000, load, 1, seed=3)
    done = waiting.model(came, [1.0], seed=4)
    waited = sum(end - begin - 1.0 for begin, end in zip(came, done, strict=True)) / len(came)
    assert waited == pytest.approx(load / (2 * (1 - load)), rel=0.05)
