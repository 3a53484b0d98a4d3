"""The build backend: scikit-build-core, but what an earlier build compiled is used again.

pip builds in a new environment every time. scikit-build-core takes its own new place as a reason to delete all objects
in the build folder. So this backend makes each build a new one in which only the objects are old: what an earlier
configuration found or was told is removed, and Ninja decides what must be compiled.
"""

import shutil
from pathlib import Path
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403


def _begin() -> None:
    for known in ("CMakeCache.txt", ".skbuild-info.json", "CMakeFiles/[0-9]*"):
        for path in Path("build").glob(f"*/{known}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def build_wheel(*args: Any) -> str:
    _begin()
    return build.build_wheel(*args)


def build_editable(*args: Any) -> str:
    _begin()
    return build.build_editable(*args)
