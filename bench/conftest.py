"""If no package is installed, benchmarks measure the checkout's own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
