"""The lock of a server that is not this process's."""

from __future__ import annotations

from fastagg.errors import ConfigError


class Elsewhere:
    """The lock of a server whose process forked, in the child."""

    def __enter__(self) -> None:
        raise ConfigError("this server belongs to the process that made it: save it there and fastagg.load it here")

    def __exit__(self, *_: object) -> None:
        pass
