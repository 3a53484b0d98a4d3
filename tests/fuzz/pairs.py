"""How often servers have each pair of settings' values: ``python -m tests.fuzz.pairs [seed] [servers]``.

A cell is of two settings: in how many servers that pair of their values is which is there least often.
"""

import sys
from collections import Counter

from .drawn import SETTINGS, pairs_of, servers


def table(seed: int, count: int) -> str:
    """The table, and what it is of."""
    times = Counter(pair for values in servers(seed, count) for pair in pairs_of(values))
    least: dict[tuple[str, str], int] = {}
    for ((one, _), (other, _)), often in times.items():
        least[one, other] = min(often, least.get((one, other), often))
    names = list(SETTINGS)
    lines = [f"{len(times)} pairs of values of {len(names)} settings, in {count} servers (seed {seed})"]
    lines.append(" " * 12 + "".join(f"{place:4}" for place in range(len(names))))
    for place, name in enumerate(names):
        cells = (str(least.get((other, name), "-")) for other in names[:place])
        lines.append(f"{place:2} {name:12.12}" + "".join(f"{cell:>4}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    seed, count = (*map(int, sys.argv[1:]), *(6, 300)[len(sys.argv) - 1 :])
    print(table(seed, count))
