"""What a run is: its config and all that it reads. Another one is never taken for it, and nothing finished is lost."""

import importlib
import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import fastagg.sim
from fastagg.errors import ConfigError, DataError
from fastagg.sim.clients.own import UserFunctions
from fastagg.sim.comparison.cells import cells
from fastagg.sim.comparison.compare import compare
from fastagg.sim.recipes.config import load, to_toml
from fastagg.sim.runs.build import build_data
from fastagg.sim.runs.run import run
from fastagg.sim.show.progress import Watcher

from .test_resume import Killed, Stop

SHORT = {"run.uploads": 4, "run.evaluate_every": 1}
FILES = {
    "mine_.py": "import torch\nimport helper_\nfrom fastagg.sim.data.digits import load as data\n"
    "def model(shape, classes):\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))\n"
    "def change(update, task):\n    return {name: helper_.scaled(array) for name, array in update.items()}\n",
    "helper_.py": "def scaled(array):\n    return 1.0 * array\n",
    "times.csv": "0,0,5\n1,0,6\n",
}


@pytest.fixture
def folder(tiny, tmp_path):
    """A recipe in a file, beside the module and the files that it names."""
    here = tmp_path / "recipe"
    here.mkdir()
    for name, text in FILES.items():
        (here / name).write_text(text)
    digits = build_data(tiny()).clients[0]
    labels = np.arange(len(digits)) % 10
    arrays = {"x_train": digits.x.numpy(), "y_train": labels, "x_test": digits.x.numpy(), "y_test": labels}
    np.savez(here / "data.npz", **arrays)
    changes = {
        **SHORT, "data": {"name": "npz:load", "dir": str(here), "clients": 3}, "participation": {"rule": "all"},
        "model": {"name": "mine_:model"}, "own.change": "mine_:change",
        "delay": {"name": "measured", "file": str(here / "times.csv")},
    }  # fmt: skip
    (here / "recipe.toml").write_text(to_toml(tiny(changes)))
    yield here
    forget()


def forget():
    for name in ("mine_", "helper_"):
        sys.modules.pop(name, None)


def scale_data(here):
    with np.load(here / "data.npz") as file:
        arrays = dict(file)
    arrays["x_train"][0] += 1
    np.savez(here / "data.npz", **arrays)


def edit(name, old, new):
    return lambda here: (here / name).write_text((here / name).read_text().replace(old, new))


CHANGES = {
    "its module": ("own.change", edit("mine_.py", "helper_.scaled(array)", "2 * helper_.scaled(array)")),
    "a module that this one imports": ("own.change", edit("helper_.py", "1.0", "3.0")),
    "its times": ("delay.file", edit("times.csv", "1,0,6", "1,0,7")),
    "its data": ("data", scale_data),
    "its model": ("model", edit("mine_.py", "Linear(64, classes)", "Linear(64, classes, bias=False)")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_is_not_that_of_yesterday_when_what_it_reads_has_changed(what, folder, tmp_path, caplog):
    out, recipe = tmp_path / "out", str(folder / "recipe.toml")
    (first,) = compare(cells([recipe], {}, {}, 1), out, Watcher()).results
    (again,) = compare(cells([recipe], {}, {}, 1), out, Watcher()).results
    assert again == first and not caplog.records
    key, change = CHANGES[what]
    change(folder)
    forget()
    with pytest.raises(ConfigError, match=rf"other data or code \(.*{key}.* changed\)"):
        run(load(folder / "recipe.toml"), first.folder, resume="go on")
    (new,) = compare(cells([recipe], {}, {}, 1), out, Watcher()).results
    assert new.rows != first.rows and f"{key}" in caplog.text and "it is run again" in caplog.text
    assert run(load(folder / "recipe.toml")).rows == new.rows


def test_a_recipe_s_folder_may_be_elsewhere_and_its_run_goes_on_from_its_own_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    config = load(folder / "recipe.toml", {"run.checkpoint_every": 0.0})
    with pytest.raises(Killed):
        run(config, tmp_path / "cut", Stop(3))
    forget()
    ended = run(load(tmp_path / "cut" / "config.toml"), tmp_path / "cut", resume="go on")
    assert ended.rows == run(config).rows
    (tmp_path / "mine_.py").write_text("model = change = None")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="another module of this name is imported"):
        run(config)


def closing_over(scale):
    return lambda update, task: {name: scale * array for name, array in update.items()}


def test_what_a_program_passes_is_part_of_the_run(tiny, tmp_path):
    config, data = tiny(SHORT), build_data(tiny())
    other = replace(data, test=replace(data.test, x=data.test.x + 1e-3))
    given = {"data": data, "own": UserFunctions(change=closing_over(1.0))}
    given["model"] = lambda shape, classes: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))
    first = fastagg.sim.run(config, out=tmp_path, **given)
    same = {**given, "own": UserFunctions(change=closing_over(1.0))}
    assert fastagg.sim.run(config, out=tmp_path, resume="go on", **same) == first
    wide = {
        "model": lambda shape, classes: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes, False))
    }
    for key, change in {
        "data": {"data": other},
        "own.change": {"own": UserFunctions(change=closing_over(2.0))},
        "model": wide,
    }.items():
        with pytest.raises(ConfigError, match=rf"\({key} changed\)"):
            fastagg.sim.run(config, out=tmp_path, resume="go on", **{**given, **change})
    replaced = fastagg.sim.run(config, out=tmp_path, resume="go on", replace=True, **{**given, "data": other})
    assert replaced.rows != first.rows


def test_a_finished_run_is_read_without_its_data_but_not_with_other_code_or_without_digests(folder, tmp_path):
    config = load(folder / "recipe.toml")
    first = run(config, tmp_path / "out")
    (folder / "data.npz").rename(tmp_path / "data.npz")
    assert run(config, tmp_path / "out", resume="go on") == first
    with pytest.raises(ConfigError, match="resume: expected one of"):
        run(config, tmp_path / "out", resume="gone")  # type: ignore[arg-type]
    (folder / "helper_.py").write_text("def scaled(array):\n    return 2.0 * array\n")
    forget()
    with pytest.raises(ConfigError, match=r"\(own.change changed\)"):
        run(config, tmp_path / "out", resume="go on")
    (tmp_path / "out" / "inputs.json").unlink()
    (tmp_path / "data.npz").rename(folder / "data.npz")
    with pytest.raises(ConfigError, match=r"data changed; delay.file changed; model changed"):
        run(config, tmp_path / "out", resume="go on")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def interrupted(config, out):
    run(config, out, stop=lambda: True)


HELD = {
    "a finished run": run,
    "an interrupted run": interrupted,
    "a comparison": lambda config, out: compare(cells(["fedbuff-digits-large"], SHORT, {}, 1), out, Watcher()),
    "a file report.html": lambda config, out: (out / "report.html").write_text("my thesis"),
    "a file accuracy.svg": lambda config, out: (out / "accuracy.svg").write_text("my picture"),
}


@pytest.mark.parametrize("what", HELD)
def test_nothing_finished_is_overwritten_without_replace(what, tiny, tmp_path):
    HELD[what](tiny(SHORT), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=f"holds {what}"):
        fastagg.sim.run(tiny(SHORT), seed=1, out=tmp_path)
    if what == "a comparison":
        with pytest.raises(ConfigError, match=f"holds {what}"):
            run(tiny(SHORT), tmp_path, replace=True)
    else:
        with pytest.raises(DataError, match=f"holds {what}"):
            compare(cells(["fedbuff-digits-large"], SHORT, {}, 1), tmp_path, Watcher())
    assert contents(tmp_path) == before
    if what != "a comparison":
        assert run(tiny({**SHORT, "seed": 1}), tmp_path, replace=True).rows == run(tiny({**SHORT, "seed": 1})).rows


def test_keys_of_the_first_level_are_settings_and_mean_the_same(tiny):
    values = tiny(SHORT).model_dump()
    assert fastagg.sim.run(values, seed=3).rows == run(tiny({**SHORT, "seed": 3})).rows != run(tiny(SHORT)).rows
    delay = {"name": "exponential"}
    assert fastagg.sim.run(values, delay=delay).rows == run(tiny({**SHORT, "delay": delay})).rows
    passed = build_data(tiny())
    del values["data"]
    assert fastagg.sim.run(values, data=passed).rows == run(tiny(SHORT)).rows


BUFF = "fastagg.FedBuff(model, lr={}, buffer_size=3)".format
RULE = f"def rule(model):\n    return {BUFF('X')}\n"
CHANGING = f"import forms_\ndef rule(model):\n    return {BUFF('forms_.LR')}\n"
# What a script has as its algorithm in each form, where X is what changes, and the files beside it.
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "a partial": ("rule = functools.partial(fastagg.FedBuff, lr=X, buffer_size=3)", {}),
    "a preset in a partial of a function": (
        f"def at(model, lr):\n    return {BUFF('lr')}\nrule = functools.partial(functools.partial(at), lr=X)", {}),
    "a preset in a function": (RULE, {}),
    "a preset in a lambda": (f"rule = lambda model: {BUFF('X')}", {}),
    "a preset in a function that a function calls": (
        f"def inner(model):\n    return {BUFF('X')}\ndef rule(model):\n    return inner(model)", {}),
    "a closure": (f"def at(lr):\n    return lambda model: {BUFF('lr')}\nrule = at(X)", {}),
    "a closure over a tensor": (
        f"def at(lr):\n    return lambda model: {BUFF('float(lr)')}\nrule = at(torch.tensor([X]))", {}),
    "a bound method": (
        f"class A:\n    def __init__(self, lr): self.lr = lr\n    def by(self, model): return {BUFF('self.lr')}\n"
        "rule = A(X).by", {}),
    "a callable object": (
        f"@dataclasses.dataclass\nclass A:\n    lr: float\n    def __call__(self, model): return {BUFF('self.lr')}\n"
        "rule = A(X)", {}),
    "a callable object's class": (
        f"class A:\n    __slots__ = ()\n    def __call__(self, model): return {BUFF('X')}\nrule = A()", {}),
    "a class": (f"class A:\n    lr = X\n    def __new__(cls, model): return {BUFF('cls.lr')}\nrule = A", {}),
    "a static method": (
        f"class A:\n    @staticmethod\n    def by(model): return {BUFF('X')}\nrule = A.by", {}),
    "a decorated function": (
        "def at(lr):\n    def wrap(f):\n        @functools.wraps(f)\n        def g(model): return f(model, lr)\n"
        f"        return g\n    return wrap\n@at(X)\ndef rule(model, lr):\n    return {BUFF('lr')}\n"
        "del rule.__wrapped__", {}),
    "an object that wraps a function": (
        f"def at(model, lr): return {BUFF('lr')}\nclass A:\n    def __init__(self, lr):\n        self.lr = lr\n"
        "        functools.update_wrapper(self, at)\n    def __call__(self, model): return at(model, self.lr)\n"
        "rule = A(X)", {}),
    "a sentence that no file can be called": (
        f"def rule(model):\n    said = {'ж' * 200!r}\n    return {BUFF('X')}", {}),
    "a function with a cache": ("@functools.cache\n" + RULE, {}),
    "a registered part by its name": (
        "@fastagg.register\n@dataclasses.dataclass(frozen=True)\nclass Forms(fastagg.Staleness):\n    weighs = True\n"
        "    def weight(self, delay): return X\n"
        'rule = {"name": "FedBuff", "lr": 1.0, "buffer_size": 3, "staleness": {"name": "Forms"}}', {}),
    "a default of an argument": (f"def rule(model, *, lr=X):\n    return {BUFF('lr')}", {}),
    "a global of the script": (f"LR = X\ndef rule(model):\n    return {BUFF('LR')}", {}),
    "a global that the script sets in a module": (
        "import forms_\nforms_.LR = X\nrule = forms_.rule",
        {"forms_.py": f"import fastagg\nLR = 0.2\ndef rule(model):\n    return {BUFF('LR')}\n"}),
    "a module": ("import forms_\nrule = forms_.rule", {"forms_.py": "import fastagg\n" + RULE}),
    "a module imported inside a function": (
        f"def rule(model):\n    import forms_\n    return {BUFF('forms_.LR')}", {"forms_.py": "LR = X"}),
    "a module of a package that a module imports inside a function": (
        "from forms_ import inner\nrule = inner.rule",
        {"forms_/__init__.py": "", "forms_/deep.py": "LR = X",
         "forms_/inner.py": f"import fastagg\ndef rule(model):\n    from .deep import LR\n    return {BUFF('LR')}\n"}),
    "a file that a module reads when it is imported": (
        CHANGING, {"forms_.py": "from pathlib import Path\nLR = float((Path(__file__).parent / 'lr.txt').read_text())",
                   "lr.txt": "X"}),
    "a file that a function reads": (
        f"def rule(model):\n    return {BUFF('float(open(FILE).read())')}\nFILE = 'lr.txt'", {"lr.txt": "X"}),
    "a file that a partial names": (
        f"def at(model, file):\n    return {BUFF('float(file.read_text())')}\n"
        "rule = functools.partial(at, file=pathlib.Path('lr.txt'))", {"lr.txt": "X"}),
}  # fmt: skip


@pytest.fixture
def form(tmp_path, monkeypatch):
    """A script's algorithm in one of FORMS, with a value of X, as if the script was started anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "forms_"]:
            del sys.modules[name]

    def build(what, value):
        forget()
        script, files = FORMS[what]
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text.replace("X", value))
        for folder in tmp_path.rglob("__pycache__"):
            shutil.rmtree(folder)
        importlib.invalidate_caches()
        modules = {name: importlib.import_module(name) for name in ("dataclasses", "functools", "pathlib", "torch")}
        names = {"__name__": "__main__", "fastagg": fastagg, **modules}
        exec(script.replace("X", value), names)
        return names["rule"]

    yield build
    forget()


@pytest.mark.parametrize("what", FORMS)
def test_a_change_is_noticed_in_every_form_and_what_did_not_change_is_read(what, form, tiny, tmp_path, caplog):
    def once(value, resume="again"):
        values = {key: part for key, part in tiny(SHORT).model_dump(exclude_none=True).items() if key != "algorithm"}
        return fastagg.sim.run({**values, "algorithm": form(what, value)}, out=tmp_path / "out", resume=resume)

    first = once("0.9")
    assert once("0.9") == first and not caplog.records
    with pytest.raises(ConfigError, match=r"other data or code \(algorithm.* changed\)"):
        once("0.1", "go on")
    other = once("0.1")
    assert "it is run again" in caplog.text and other.rows != first.rows
    (name,) = first.summary["inputs"]
    assert first.summary["inputs"][name] != other.summary["inputs"][name]


def test_what_has_no_digest_runs_again_and_is_named(tiny, tmp_path, caplog):
    lock = threading.Lock()

    def change(update, task):
        with lock:
            return update

    first = fastagg.sim.run(tiny(SHORT), out=tmp_path, own=UserFunctions(change=change))
    assert [record.message for record in caplog.records] == [
        f"{tmp_path}: no digest of own.change.lock, a lock: cannot pickle '_thread.lock' object: "
        "the run is run again whenever it is started"
    ]
    why = "own.change.lock, a lock: cannot pickle '_thread.lock' object"
    assert first.summary["inputs"] == {"own.change": f"none: {why}"}
    with pytest.raises(ConfigError, match=r"perhaps other data or code \(no digest of own.change.lock, a lock: cannot"):
        fastagg.sim.run(tiny(SHORT), out=tmp_path, own=UserFunctions(change=change), resume="go on")
    before = (tmp_path / "summary.json").stat().st_mtime_ns
    assert (
        fastagg.sim.run(tiny(SHORT), out=tmp_path, own=UserFunctions(change=change), resume="again").rows == first.rows
    )
    assert f"no digest of {why}" in caplog.text and "it is run again" in caplog.text
    assert (tmp_path / "summary.json").stat().st_mtime_ns > before


SCRIPT = """
import logging
import torch
import fastagg.sim
from fastagg.sim.clients.own import UserFunctions
log = logging.getLogger("mine")
class Scale:
    def by(self, array): return FACTOR * array
def change(update, task):
    log.info("%s", torch.zeros(1))
    return {name: Scale().by(array) for name, array in update.items()}
fastagg.sim.run(PATH, out=OUT, own=UserFunctions(change=change), resume="go on")
"""


def test_functions_of_a_script_are_what_they_use_and_not_the_whole_script(tiny, tmp_path):
    (tmp_path / "tiny.toml").write_text(to_toml(tiny(SHORT)))
    script = tmp_path / "script.py"

    def ends(text, factor):
        script.write_text(text.replace("FACTOR", factor).replace("PATH", "'tiny.toml'").replace("OUT", "'out'"))
        return subprocess.run(
            [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
        ).stderr

    assert ends(SCRIPT, "1") == ends(SCRIPT + "print('another line')\n", "1") == ""
    assert "other data or code (own.change changed)" in ends(SCRIPT, "2")
