"""What a command says on stderr, apart from its progress: how many lines of that there are is the machine's speed."""

import re

# "0 of 2 runs, 1 running: 25% after 31 s, 2 min left"
PROGRESS = re.compile(r".+: \d{1,3}% after \d[^:]*")


def said(stderr: str) -> list[str]:
    """Return the lines of ``stderr`` that are no progress of runs."""
    return [line for line in stderr.splitlines() if not PROGRESS.fullmatch(line)]
