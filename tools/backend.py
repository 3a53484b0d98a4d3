"""The build backend: scikit-build-core, but what an earlier build compiled is used again.

pip builds in a new environment every time. scikit-build-core takes its own new place as a reason to delete all objects
in the build folder. So this backend makes each build a new one in which only the objects are old: what an earlier
configuration found or was told is removed, and Ninja decides what must be compiled.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403

Settings = dict[str, Any] | None


def _begin(settings: Settings) -> Settings:
    folders = [Path("build"), *Path("build").glob("*")] if Path("build").exists() else [Path()]
    if not all(os.access(path, os.W_OK | os.X_OK) for path in folders if path.is_dir()):
        # a tree of somebody else's: nothing is compiled there, and nothing used again
        return {"build-dir": tempfile.mkdtemp(prefix="fastagg-build-"), **(settings or {})}
    for known in ("CMakeCache.txt", ".skbuild-info.json", "CMakeFiles/[0-9]*"):
        for path in Path("build").glob(f"*/{known}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return settings


def build_wheel(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    return build.build_wheel(directory, _begin(settings), metadata)


def build_editable(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    return build.build_editable(directory, _begin(settings), metadata)
