"""A random linear map of an update to 4,096 numbers that keeps norms, in one read. No other server has it."""

from __future__ import annotations

from problem import Built, Candidate, Case, Problem, huge

from fastagg import ops

NUMBERS = 4096


def _ours(problem: Problem) -> Built:
    update = problem.vector("update", huge)
    return Built(lambda: ops.sketch(update, NUMBERS), None)


CASES = [Case("sketch", 4, lambda: [Candidate("fastagg", _ours, 1)], reads=True)]
