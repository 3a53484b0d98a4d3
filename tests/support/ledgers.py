"""What a server knows of its clients and of its sum, as its state says."""

from __future__ import annotations

from torch import Tensor

import fastagg


def open_tasks(server: fastagg.Server) -> int:
    """Return how many tasks wait for an answer."""
    return len(server.state_dict(copy=False)["tasks"]["task_client"])


def known(server: fastagg.Server) -> int:
    """Return how many clients the server remembers."""
    return len(server.state_dict(copy=False)["tasks"]["clients"])


def sum_of(server: fastagg.Server) -> Tensor:
    """Return the sum over all clients' rows, [d]; not a copy."""
    found: Tensor = server.state_dict(copy=False)["direction"]["sum"]
    return found
