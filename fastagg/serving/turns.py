"""The lock of a server that is not this process's."""

from __future__ import annotations

from typing import NoReturn

from fastagg.errors import ConfigError


class Elsewhere:
    """The lock of a server whose process forked, in the child."""

    def refuse(self, *_: object) -> NoReturn:
        """Whatever is asked."""
        raise ConfigError("this server belongs to the process that made it: save it there and fastagg.load it here")

    def __enter__(self) -> None:
        self.refuse()

    def __exit__(self, *_: object) -> None:
        pass
