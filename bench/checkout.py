"""Imported first: a checkout that was not installed uses its own package."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# An installed package has these files in a folder of its own.
PATHS = [str(ROOT)] if (ROOT / "pyproject.toml").is_file() else []
sys.path += PATHS
