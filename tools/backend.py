"""The build backend: scikit-build-core, but objects that an earlier build compiled are used again.

pip builds in a new environment every time. scikit-build-core would then delete all objects in the build folder, because
its own path has changed. So this backend removes only what an earlier configuration found or was told, and keeps the
objects. Ninja decides which objects must be compiled again.
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
        # another user's tree: nothing is compiled in it or reused from it
        return {"build-dir": tempfile.mkdtemp(prefix="fastagg-build-"), **(settings or {})}
    for known in ("CMakeCache.txt", ".skbuild-info.json", "CMakeFiles/[0-9]*"):
        for path in Path("build").glob(f"*/{known}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return settings


def build_wheel(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    return build.build_wheel(directory, _begin(settings), metadata)


def build_editable(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    return build.build_editable(directory, _begin(settings), metadata)
