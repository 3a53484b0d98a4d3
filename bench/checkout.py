"""Makes a checkout that was not installed use its own package. Scripts import this module first."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# In an installed package, this file is in fastagg/_bench.
PATHS = [str(ROOT)] if (ROOT / "pyproject.toml").is_file() else []
sys.path += PATHS
