"""Devices: laws of speed, day and night, traces from files."""

from __future__ import annotations

import numpy as np
import pytest

from fastagg.errors import ConfigError, DataError
from fastagg.sim.clock.devices import Speeds, Trace, read_trace
from fastagg.sim.one.run import run
from fastagg.sim.one.simulation import Simulation


def test_speeds_have_the_mean_that_is_asked_for_and_the_law_s_shape():
    for law, spread in (("lognormal", 1.0), ("zipf", 2.0), ("pareto", 3.0)):
        model = Speeds(2000, 0, 0.5, law, spread)
        assert model.times.mean() == pytest.approx(0.5) and model.times.min() > 0
        assert model.duration(3, 0, 10) == pytest.approx(10 * model.times[3])
    logs = np.log(Speeds(2000, 0, 0.5, "lognormal", 1.0).times)
    assert logs.std() == pytest.approx(1.0, abs=0.08)
    zipf = Speeds(2000, 0, 0.5, "zipf", 2.0).times
    assert (zipf == zipf.min()).mean() == pytest.approx(6 / np.pi**2, abs=0.06)  # ones among Zipf's numbers


def asleep_and_done(model: Speeds, client: int, start: float, work: float, step: float = 1e-3) -> float:
    """Computes when the client is done in another way: by stepping through time."""
    time, left = start, work
    while left > 0:
        since = (time + step / 2 - model._evenings[client]) % model._day
        if since >= model._night * model._day:
            left -= step
        time += step
    return time - start


def test_at_night_nothing_is_done():
    model = Speeds(8, 1, 1.0, "lognormal", 0.5, day=3.0, night=0.4)
    for client, now, steps in ((0, 0.0, 1), (1, 0.7, 3), (2, 2.9, 7), (3, 100.3, 2), (4, 1.1, 11)):
        expected = asleep_and_done(model, client, now, steps * float(model.times[client]))
        assert model.duration(client, 0, steps, now) == pytest.approx(expected, abs=0.02)
    always = Speeds(8, 1, 1.0, "lognormal", 0.5)
    assert model.duration(0, 0, 5, 0.0) > always.duration(0, 0, 5, 0.0)


def write(path, *lines, header="client,start,end,speed"):
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_a_trace_says_when_a_client_is_there_and_how_fast(tmp_path):
    rows = read_trace(write(tmp_path / "t.csv", "0,0,10,2", "0,10,30,0", "1,0,5,1"), 2)
    model = Trace(rows, size=4000)
    assert model.duration(0, 0, 6, 0.0) == pytest.approx(3.0)
    assert model.duration(0, 0, 6, 8.0) == pytest.approx(2 + 20 + 1)  # 4 steps, a night, the other 2
    assert model.duration(0, 0, 6, 15.0) == pytest.approx(15 + 3)
    assert model.duration(0, 0, 45, 0.0) == pytest.approx(2 * 30 + 2.5)  # 20 steps a lap
    assert model.duration(0, 0, 2005, 31.0) == pytest.approx(model.duration(0, 0, 2005, 1.0))  # laps do not matter
    assert model.duration(1, 0, 12, 3.0) == pytest.approx(12.0)
    assert model.duration(0, 0, 1999, 0.0) == pytest.approx(99 * 30 + 9.5)


def test_sending_takes_its_bytes_and_only_while_the_client_is_there(tmp_path):
    header = "client,start,end,speed,down,up"
    rows = read_trace(write(tmp_path / "t.csv", "0,0,10,2,1000,500", "0,10,20,0,0,0", header=header), 1)
    model = Trace(rows, size=2000)
    assert model.duration(0, 0, 4, 0.0) == pytest.approx(2 + 2 + 4)
    assert model.duration(0, 0, 4, 5.0) == pytest.approx(2 + 2 + 1 + 10 + 3)  # the night falls into sending up


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["0,0,5,1", "0,6,9,1"], "line 3: client 0 leaves a gap from 5 to 6"),
        (["0,0,5,1", "0,4,9,1"], "line 3: client 0 goes back from 5 to 4"),
        (["0,-1,5,1"], "line 2: expected a number from 0 up, got '-1'"),
        (["0,0,5,-2"], "from 0 up, got '-2'"),
        (["0,0,0,1"], "the end, 0, is not after"),
        (["0,0,5,fast"], "expected a number, got 'fast'"),
        (["0,0,5,inf"], "from 0 up"),
        (["0,0,5"], "line 2: 3 columns, expected 4"),
        (["7,0,5,1"], r"client 7 is none of 0\.\.1"),
        (["0,0,5,1"], "client 1 is never there"),
        (["0,0,5,1", "1,0,5,0"], "client 1 is never there"),
    ],
)
def test_a_trace_that_cannot_be_followed_names_file_and_line(tmp_path, lines, words):
    with pytest.raises(DataError, match=words) as error:
        read_trace(write(tmp_path / "bad.csv", *lines), 2)
    assert "bad.csv" in str(error.value) and "\n" not in str(error.value)


def test_other_columns_and_missing_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="expected client,start,end,speed"):
        read_trace(write(tmp_path / "t.csv", "0,1", header="client,speed"), 1)
    with pytest.raises(DataError, match=r"none\.csv"):
        read_trace(tmp_path / "none.csv", 1)


def test_runs_follow_a_trace_and_resume(tmp_path, tiny):
    lines = [f"{c},0,{4 + c % 3},{1 + c},9000,4000" for c in range(12)]
    lines = [line for c, one in enumerate(lines) for line in (one, f"{c},{4 + c % 3},12,0,0,0")]
    path = write(tmp_path / "t.csv", *lines, header="client,start,end,speed,down,up")
    config = tiny({"delay": {"name": "trace", "file": str(path)}})
    whole = run(config)
    assert whole.summary["uploads"] == 30 and whole.summary["delay_max"] > 0
    first, rest = Simulation(config), Simulation(config)
    for _ in range(12):
        first.step()
    rest.load_state_dict(first.state_dict())
    while rest.done() < 1:
        rest.step()
    assert rest.schedule.now == whole.rows[-1].time
    night = run(tiny({"delay": {"name": "devices", "day": 5.0, "night": 0.5}}))
    assert night.rows[-1].time > run(tiny({"delay": {"name": "devices", "day": 5.0}})).rows[-1].time
    with pytest.raises(ConfigError, match="zipf"):
        run(tiny({"delay": {"name": "devices", "law": "zipf", "spread": 0.5}}))
