"""Reads a file of tokens, and checks the tokens of requests. A token allows one client, or all clients and /metrics."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path

from fastagg.errors import ConfigError

OPERATOR = "*"  # the name in the file for tokens that allow all clients and the metrics
SHORTEST = 16  # the least number of letters of a token


class Tokens:
    """The tokens of a file, with a client's id and a token in each line. The id ``*`` allows all clients.

    A request sends its token as ``Authorization: Bearer TOKEN``.

    Raises:
        ConfigError: the file cannot be read, is empty, or a line has another form.
    """

    def __init__(self, path: Path) -> None:
        # A token is looked up by its digest, so that the time of the search reveals nothing about the token.
        self._names: defaultdict[bytes, set[str]] = defaultdict(set)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"tokens: cannot read {path}: {error}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match line.split():
                case [name, token] if len(token) >= SHORTEST:
                    self._names[_digest(token)].add(name)
                case _:
                    expected = f"a client and a token of at least {SHORTEST} letters"
                    raise ConfigError(f"tokens: {path}, line {number}: expected {expected}")
        if not self._names:
            raise ConfigError(f"tokens: {path} has no token; write a line such as: ann {'x' * SHORTEST}")

    def allow(self, authorization: str, client: str | None) -> bool:
        """Return whether a request with this Authorization header may act for ``client``. ``client`` None: return
        whether the header's token is in the file."""
        names = self._names.get(_digest(_token(authorization)), set())
        return bool(names if client is None else names & {client, OPERATOR})


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _token(authorization: str) -> str:
    scheme, _, credentials = authorization.partition(" ")
    return credentials if scheme.lower() == "bearer" else ""
