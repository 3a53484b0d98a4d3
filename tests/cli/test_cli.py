import html
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.stderr import said
from typer.testing import CliRunner

from fastagg import _extras, cli
from fastagg.cli import demo as demo_module
from fastagg.cli import machine, screen
from fastagg.cli.app import app
from fastagg.cli.runs import catalogue
from fastagg.sheet import Sheet
from fastagg.sim.recipes import names

RECIPE = """
name = "mine"
label = "Mine"

[algorithm]
name = "FedBuff"
buffer_size = 3

[data]
name = "digits"
clients = 12

[model]
widths = [8]

[client]
lr = 0.1

[delay]
name = "three-class"

[participation]
rule = "concurrency"
concurrency = 6

[run]
uploads = 12
evaluate_every = 2
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return path


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """Return the one line on stderr of a command that must end with exit code 2."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = said(result.stderr)
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


def test_the_default_folder_is_named_after_recipe_and_seed_and_set_changes_keys(recipe, tmp_path):
    changes = ["--set", "run.uploads=6", "--set", "algorithm.lr=0.5", "--set", "label=Other"]
    assert invoke("run", recipe, "--seed", 3, *changes).exit_code == 0
    summary = json.loads((tmp_path / "runs" / "mine-seed3" / "summary.json").read_text())
    assert (summary["seed"], summary["uploads"]) == (3, 6)
    written = (tmp_path / "runs" / "mine-seed3" / "config.toml").read_text()
    assert "lr = 0.5" in written
    assert 'label = "Other"' in written


def test_run_refuses_a_folder_that_holds_a_run_and_says_what_to_do(recipe, tmp_path):
    out = tmp_path / "out"
    assert invoke("run", recipe, "--out", out).exit_code == 0
    (out / "summary.json").unlink()  # as a kill leaves it: a checkpoint and no summary
    message = refused("run", recipe, "--out", out, "--seed", 5)
    assert "holds an unfinished run" in message
    assert all(option in message for option in ("--resume", "--replace", "--out"))
    assert invoke("run", recipe, "--out", out, "--seed", 5, "--replace").exit_code == 0
    assert json.loads((out / "summary.json").read_text())["seed"] == 5


def test_run_writes_its_picture_in_the_format_asked_for(recipe, tmp_path):
    assert invoke("run", recipe, "--out", tmp_path / "out", "--format", "svg").exit_code == 0
    assert (tmp_path / "out" / "accuracy.svg").is_file()
    assert not (tmp_path / "out" / "accuracy.png").exists()


def test_the_demo_compares_the_methods_and_says_who_wins(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_module, "TARGET", 0.2)  # so that a short run has a verdict
    monkeypatch.setattr(demo_module, "TUNED", {name: {"run.uploads": 100} for name in demo_module.RECIPES})
    result = invoke("demo", "--seed", 1, "--out", tmp_path / "demo")
    assert result.exit_code == 0, result.output
    for label in ("FedAvg", "FADAS", "FedBuff", "FedAsync", "reaches 20%", "Accuracy at the end:"):
        assert label in result.stdout
    assert str(tmp_path / "demo" / "target.png") in result.stdout
    said = html.unescape((tmp_path / "demo" / "report.html").read_text())
    lines = [line.strip() for line in result.stdout.splitlines() if line.endswith(".")]
    found = [line for line in lines if "reaches 20%" in line or line.startswith("Accuracy")]
    assert len(found) >= 2 and all(sentence in said for sentence in found)  # the report carries what the terminal says
    assert {p.name for p in (tmp_path / "demo").iterdir()} == {
        "accuracy.png", "comparison.csv", "delays.png", "report.html", "table.md", "target.png", *demo_module.RECIPES
    }  # fmt: skip


def test_recipes_can_be_filtered():
    def listed(*arguments):
        result = invoke("recipes", *arguments)
        assert result.exit_code == 0, result.output
        return [line.split()[0] for line in result.stdout.splitlines()]

    assert len(listed()) == len(catalogue())  # a line each
    assert set(listed("1 run ")) == set(names())
    assert all("ace" in name for name in listed("ace", "table"))
    assert "fadas-digits-large" in listed("FADAS", "digits") and "fedbuff-digits-large" not in listed("FADAS", "digits")
    assert "cifar8-quick" in listed("fedbuff", "files")  # which its line does not name


def test_help_names_every_command_and_needs_no_simulator(tmp_path):
    program = "import sys; from fastagg.cli.app import app; app(['--help'], standalone_mode=False); "
    program += "assert not {'torch', 'numpy', 'matplotlib', 'sklearn', 'pydantic', 'fastagg.sim'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in ("demo", "run", "compare", "recipes", "info", "bench"):
        assert command in done.stdout


def test_ctrl_c_ends_with_130_after_writing(recipe, tmp_path):
    program = (
        "import signal, sys; from fastagg.sim.runs import simulation as r; step = r.Simulation.step\n"
        "def interrupted(self):\n"
        "    if self.uploads == 6: signal.raise_signal(signal.SIGINT)\n"
        "    return step(self)\n"
        "r.Simulation.step = interrupted\n"
        "from fastagg.cli.app import app; app(sys.argv[1:])"
    )
    arguments = ["compare", str(recipe), "fadas-digits-large", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-P", "-c", program, *arguments]
    # Elsewhere: python -c would find the checkout's unbuilt package first.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "out" / "mine" / "seed0" / "summary.json").read_text())["interrupted"] is True
    for folder in (tmp_path / "out" / "fadas-digits-large").glob("seed*"):  # runs of one process go on together
        assert json.loads((folder / "summary.json").read_text())["interrupted"] is True
    assert (tmp_path / "out" / "accuracy.png").is_file()


def test_bench_without_its_tools_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "fastagg[bench]"' in refused("bench")


def test_bench_hands_on_what_became_of_the_benchmarks(monkeypatch, tmp_path):
    pytest.importorskip("pytest_benchmark")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # beside other processes it refuses to measure
    (tmp_path / "test_it.py").write_text("def test_it(benchmark):\n    assert benchmark(lambda: False)\n")
    monkeypatch.setattr(machine, "_benchmarks", lambda: tmp_path)
    assert invoke("bench", "-q").exit_code == 1


@pytest.mark.parametrize("code", [0, 1])
def test_bench_quick_is_a_program_of_the_benchmarks(monkeypatch, tmp_path, code):
    (tmp_path / "quick.py").write_text(f"raise SystemExit({code})")
    monkeypatch.setattr(machine, "_benchmarks", lambda: tmp_path)
    assert invoke("bench", "--quick").exit_code == code


def test_without_its_extra_the_command_line_names_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name == "typer" else object())
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    advice = 'error: the command line needs typer, which is not installed: pip install "fastagg[cli]"'
    assert stopped.value.code == advice


def test_runs_side_by_side_take_the_package_that_is_installed(recipe, tmp_path):
    """They must not import the checkout in whose root they start, because its extension was never built."""
    (tmp_path / "fastagg").mkdir()
    (tmp_path / "fastagg" / "__init__.py").write_text("")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "fastagg"  # as pip writes it: not its folder's parent is looked into, but its folder
    script.write_text("from fastagg.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    command = [sys.executable, str(script), "compare", str(recipe), "--seeds", "2", "-j", "2", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "comparison.csv").is_file()


def test_a_tracker_of_the_command_line(recipe, tmp_path):
    pytest.importorskip("tensorboard")
    done = invoke("run", recipe, "--out", tmp_path / "out", "--tracker", f"tensorboard={tmp_path / 'events'}")
    assert done.exit_code == 0 and list((tmp_path / "events").glob("events.out.tfevents.*"))


def test_help_is_complete_at_eighty_columns(monkeypatch):
    """Whatever the versions of typer and click: no summary is cut, and every argument is explained, once."""
    monkeypatch.setenv("COLUMNS", "80")
    runner = CliRunner()
    text = runner.invoke(app, ["--help"]).output
    assert "..." not in text.partition("Commands:")[2] and max(map(len, text.splitlines())) <= 80
    for name, argument in {
        "run": "RECIPE A name from", "compare": "RECIPES... Recipes and tables", 
        "recipes": "WORDS... Only recipes with", "doctor": "FOLDER|FILE A folder of fastagg.open",
    }.items():  # fmt: skip
        text = runner.invoke(app, [name, "--help"]).output
        assert max(map(len, text.splitlines())) <= 80 and "\\" not in text
        assert " ".join(text.split()).count(argument) == 1, text


def test_tables_in_a_log_fit_eighty_columns_and_sentences_are_whole_lines(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    screen.show(Sheet("t", [f"heading{i}" for i in range(12)], [["cell"] * 12]))
    screen.say("word " * 40)
    *table, sentence = capsys.readouterr().out.rstrip("\n").split("\n")
    assert max(map(len, table)) <= 80 and " ".join(table).count("cell") >= 12
    assert sentence.split() == ["word"] * 40
