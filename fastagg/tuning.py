"""What depends on the processor: the settings in use, and where they come from.

Settings change how fast a step is and never what it computes. Whoever comes first in this list decides:

1. the environment variable ``FASTAGG_TUNE``, such as ``prefetch=512,stream_from=never``, or ``default``
2. what ``fastagg tune`` remembered for this processor
3. the table in csrc/cpu/tuning.cpp, by the processor's vendor and family

=========== =================================================================================================
prefetch    elements ahead of the arithmetic that memory is asked for, a multiple of 64; 0 for never
stream_from elements from which outputs that are not inputs go past the caches; 0 or ``never``
width       bits of a vector (128, 256, 512) in loops over more than ``wide_below`` bytes
wide_below  bytes up to which loops take the widest vectors there are
spin        microseconds that idle worker threads stay awake after a call
group       elements that a thread takes at a time, a multiple of 1,024 in 4,096..65,536
places      places of a group that passes which only read visit in turn: 1, 2, 4, ..., 32
=========== =================================================================================================
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fastagg import _native as native
from fastagg.errors import ConfigError

_source = "table"


def processor() -> str:
    """The processor's name, as the operating system gives it, with vendor, family and model."""
    vendor, family, model = native.processor()
    name = vendor or "unknown processor"
    try:
        with open("/proc/cpuinfo") as info:
            name = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name} ({vendor or 'unknown vendor'}, family {family}, model {model})"


def current() -> dict[str, int]:
    """The settings in use."""
    return dict(native.tuning())


def source() -> str:
    """Who decided them."""
    return f"table ({native.default_tuning_name()})" if _source == "table" else _source


def set_tuning(settings: Mapping[str, int], origin: str = "set_tuning") -> None:
    """Use ``settings``, some or all of them, from the next call on.

    Raises:
        ConfigError: an unknown name, or a value out of range; nothing was changed.
    """
    global _source
    native.set_tuning(dict(settings))
    _source = origin


def from_environment() -> None:
    """Settings at import: ``FASTAGG_TUNE``, else what was remembered, else the table.

    Raises:
        ConfigError: ``FASTAGG_TUNE`` cannot be understood.
    """
    if given := os.environ.get("FASTAGG_TUNE"):
        if given != "default":
            set_tuning(parse(given), "FASTAGG_TUNE")
        return
    if remembered := recall():
        with suppress(ConfigError):  # of another version of this package, which named other settings
            set_tuning(remembered, f"fastagg tune ({memory_file()})")


def parse(text: str) -> dict[str, int]:
    """``prefetch=512,stream_from=never`` as settings.

    Raises:
        ConfigError: it cannot be understood.
    """
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        value = "0" if value.strip() == "never" else value.strip()
        if not value.isdecimal():
            raise ConfigError(
                f"FASTAGG_TUNE: expected 'default' or settings such as prefetch=512,stream_from=never, got {text!r}; "
                f"settings: {', '.join(current())}"
            )
        found[name.strip()] = int(value)
    return found


def memory_file() -> Path:
    """Where ``fastagg tune`` remembers what it chose, for every processor by name."""
    folder = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(folder) / "fastagg" / "tune.json"


def recall() -> dict[str, int] | None:
    """What was remembered for this processor."""
    try:
        found = json.loads(memory_file().read_text())[processor()]
        return {str(name): int(value) for name, value in found.items()}
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None


def remember(settings: Mapping[str, int]) -> Path:
    """Keep ``settings`` for this processor; other processors' stay.

    Raises:
        OSError: the file cannot be written.
    """
    path = memory_file()
    try:
        known = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        known = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps({**known, processor(): dict(settings)}, indent=1) + "\n")
    fresh.replace(path)
    return path
