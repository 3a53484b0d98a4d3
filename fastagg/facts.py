"""The facts about a machine and its software that a bug report or a results page needs."""

from __future__ import annotations

import os
import platform

from fastagg._types import Plain


def facts() -> Plain:
    """Return package, Python, torch, system, processor, threads and tuning, as plain data for JSON."""
    import numpy as np
    import torch

    from fastagg._build import build_info, usable_cores

    built = build_info()
    return {
        "fastagg": built.pop("version"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "processor": built.pop("processor"),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "threads": built.pop("threads"),
        "torch_threads": torch.get_num_threads(),
        "tuning": built.pop("tuning"),
        "tuned_by": built.pop("tuned_by"),
        **built,
    }
