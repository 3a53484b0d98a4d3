"""Servers in processes of their own."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.served import TOKEN, Breeder, Serve, write_model


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server of FedBuff whose model has a vector of each of these sizes; bob has a token, too. ``files``: how
    many it may open."""
    with contextlib.ExitStack() as stack:

        def begin(sizes: list[int], *options: object, files: int | None = None, **more: Any) -> Breeder:
            model = write_model(tmp_path / "m.safetensors", **{f"{i}": torch.zeros(d) for i, d in enumerate(sizes)})
            (tmp_path / "tokens").write_text(f"* {TOKEN}\nbob {'b' * 16}\n")
            rule = ("--rule", "FedBuff", "--set", "buffer_size=1")
            found = Breeder(model, more.pop("folder", tmp_path / "state"), "--workers", 4, "--tokens",
                            tmp_path / "tokens", *rule, *options, **more)  # fmt: skip
            stack.callback(found.close)
            if files is not None:
                resource.prlimit(found.breeder.pid, resource.RLIMIT_NOFILE, (files, files))
            found.start()
            return found

        yield begin
