"""The lock of a server that belongs to another process."""

from __future__ import annotations

from typing import NoReturn

from fastagg.errors import ConfigError


class Elsewhere:
    """The lock of a forked child's copy of a server."""

    def refuse(self, *_: object) -> NoReturn:
        """Raise ConfigError, whatever is called."""
        raise ConfigError("this server belongs to the process that made it: save it there and fastagg.load it here")

    def __enter__(self) -> None:
        self.refuse()

    def __exit__(self, *_: object) -> None:
        pass
