"""Runs a framework's own unit tests of the parts that fastagg replaces, with fastagg's classes in their place.

python .ci/theirs.py flower FOLDER

The tests are downloaded to FOLDER from the framework's repository, at the tag of the installed version.
FASTAGG_THEIRS_FLOWER (or _NVFLARE, _PFL) may name a folder that has the tests already. tests/theirs/expected.toml lists
the tests that must fail, with reasons. The run fails if a test that is not listed fails, or a listed test passes.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1] / "tests"


class Listed:
    """A pytest plugin that marks the tests that are expected to fail."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self._reasons, self._met = reasons, set[str]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for pattern, reason in self._reasons.items():
                if fnmatchcase(item.nodeid, f"*{pattern}"):
                    self._met.add(pattern)
                    item.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for pattern in self._reasons.keys() - self._met:
            terminalreporter.write_line(f"expected.toml lists a test that is not there: {pattern}")


def fetched(whose: Any, folder: Path) -> Path:
    """Return a folder with the framework's tests, downloaded if necessary."""
    given = os.environ.get(f"FASTAGG_THEIRS_{whose.__name__.rpartition('.')[2].upper()}")
    if given:
        return Path(given).resolve()
    tag = whose.TAG.format(version(whose.PACKAGE))
    clone = ["--quiet", "--depth", "1", "--filter=blob:none", "--sparse", "--branch", tag]
    subprocess.run(["git", "clone", *clone, f"https://github.com/{whose.REPOSITORY}", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "sparse-checkout", "set", *whose.FOLDERS], check=True)
    return folder


def main(name: str, folder: Path) -> int:
    sys.path.insert(0, str(TESTS))
    whose: Any = importlib.import_module(f"theirs.{name}")
    root = fetched(whose, folder)
    whose.put_in_place(root)
    listed = Listed(tomllib.loads((TESTS / "theirs" / "expected.toml").read_text())[name])
    options = ["-q", "-rfE", "-c", os.devnull, f"--rootdir={root}", "-p", "no:cacheprovider"]
    return pytest.main([*options, *(str(root / file) for file in whose.FILES)], plugins=[listed])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
