"""The settings of CPU kernels that depend on the processor, and the source of these settings.

Settings change how fast a step is, never its result. At import, each setting comes from the table in
csrc/cpu/tuning.cpp, by the processor's vendor and family. The environment variable ``FASTAGG_TUNE`` overrides some of
them, such as ``prefetch=512,cache=never``. If it is ``default``, it changes nothing.

=========== =================================================================================================
prefetch    how many elements ahead memory is prefetched: a multiple of 64. 0: memory is not prefetched.
cache       size of the last-level cache in bytes, read from a processor that is in the table. In a pass over more than
            1.25 times this size, stores bypass the caches, except stores to outputs that are also inputs. An update is
            added to a sum in place if two vectors fit into the cache, but three do not. 0 or ``never``: neither is
            done.
width       the bits of a vector register (128, 256 or 512) in loops over more than ``wide_below`` bytes
wide_below  loops over at most this many bytes use the widest vector registers
spin        the microseconds for which idle worker threads stay awake after a call
group       the number of elements that a thread takes at a time: a multiple of 1,024 in 4,096..65,536
places      the number of places in a group at which a read-only pass reads in turn: 1, 2, 4, ..., 32
=========== =================================================================================================
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

from fastagg import _native as native
from fastagg.errors import ConfigError

_source = "table"


def processor() -> str:
    """Return the processor's name, as the operating system gives it, with vendor, family and model."""
    vendor, family, model = native.processor()
    name = vendor or "unknown processor"
    try:
        with open("/proc/cpuinfo") as info:
            name = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        if sys.platform == "darwin":
            words, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
            ctypes.CDLL(None).sysctlbyname(b"machdep.cpu.brand_string", words, ctypes.byref(size), None, 0)
            name = words.value.decode()
    return f"{name} ({vendor or 'unknown vendor'}, family {family}, model {model})"


def current() -> dict[str, int]:
    """Return the settings in use."""
    return dict(native.tuning())


def source() -> str:
    """Return the source of the settings in use: the table's row, ``FASTAGG_TUNE``, or the ``origin`` last set."""
    return f"table ({native.default_tuning_name()})" if _source == "table" else _source


def set_tuning(settings: Mapping[str, int], origin: str = "set_tuning") -> None:
    """Use these settings from the next kernel call on. Other settings stay. :func:`source` then returns ``origin``.

    Raises:
        ConfigError: a name is unknown, or a value is out of range. Nothing has changed.
    """
    global _source
    native.set_tuning(dict(settings))
    _source = origin


def from_environment() -> None:
    """Apply the settings in ``FASTAGG_TUNE``, if there are any. Only the import of fastagg calls this."""
    text = os.environ.get("FASTAGG_TUNE")
    if text and text != "default":
        set_tuning(parse(text), "FASTAGG_TUNE")


def parse(text: str) -> dict[str, int]:
    """Parse settings such as ``prefetch=512,cache=never``."""
    settings = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        value = "0" if value.strip() == "never" else value.strip()
        if not value.isdecimal():
            raise ConfigError(
                f"FASTAGG_TUNE: expected 'default' or settings such as prefetch=512,cache=never, got {text!r}; "
                f"settings: {', '.join(current())}"
            )
        settings[name.strip()] = int(value)
    return settings
