"""Targets of .ci/fuzz.py that need no files of a server: calls of the ops, which check what they hand to the bindings,
and recipes of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(
    include=["fastagg.ops", "fastagg.storage", "fastagg.sim.recipes.config", "fastagg.cli.keys"]
):
    import numpy as np
    import torch

    import fastagg
    from fastagg import ops
    from fastagg.cli import keys
    from fastagg.sim.recipes import config

RECIPES = Path(fastagg.__file__).parent / "sim" / "recipes"
SIZES = (0, 1, 7, 255, 256, 1024, 1025, 2500)
DTYPES = (torch.float32, torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8,
          torch.int64, torch.bool, torch.complex64)  # fmt: skip
NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-8, 1e38, float("inf"), float("nan"))


class Chosen:
    """Arguments that a fuzzer chooses."""

    def __init__(self, data: bytes) -> None:
        self._data = atheris.FuzzedDataProvider(data)

    def one(self, values: Any) -> Any:
        return values[self._data.ConsumeIntInRange(0, len(values) - 1)]

    def whole(self, low: int = -3, high: int = 12) -> int:
        return self._data.ConsumeIntInRange(low, high)

    def number(self) -> float:
        return self._data.ConsumeFloat() if self._data.ConsumeBool() else self.one(NUMBERS)

    def tensor(self, size: int | None = None) -> torch.Tensor:
        """Mostly a fitting vector, else one of another length, type, shape or layout."""
        wanted = self.one(SIZES) if size is None or self.whole(0, 7) == 0 else size
        dtype = self.one(DTYPES) if self.whole(0, 7) == 0 else torch.float32
        made = torch.full((wanted,), self.number(), dtype=torch.float64).to(dtype)
        layout = self.whole(0, 15)
        if layout == 1:
            return made.repeat_interleave(2)[::2]
        if layout == 2:
            return made[:1].expand(wanted) if wanted else made
        if layout == 3:
            return made.reshape(-1, 1)
        if layout == 4:
            return torch.cat([made, made])[1 : 1 + wanted]  # starts in the middle of an aligned block
        if layout == 5:
            return made.to("meta")
        if layout == 6:
            return made.to_sparse() if made.dtype is not torch.bool else made
        return made

    def update(self, size: int) -> Any:
        """A tensor, an array, or pieces of a model."""
        kind = self.whole(0, 7)
        if kind == 0:
            given = self.tensor(size)
            return given.numpy() if given.device.type == "cpu" and given.layout is torch.strided and \
                given.dtype is not torch.bfloat16 else given  # fmt: skip
        if kind == 1:
            cut = self.whole(0, max(size, 1))
            return [self.tensor(cut), self.tensor(max(size - cut, 0))]
        if kind == 2:
            return self.one([None, 3, "abc", [], [None], {"w": 1}, np.zeros((2, 2), object)])
        return self.tensor(size)


def bindings() -> Callable[[bytes], None]:
    """Fuzz the arguments of ops. A call is made, or refused by name; a refused one has written nothing."""

    def step(given: Chosen, size: int, x: torch.Tensor) -> None:
        optimizer = given.one([*ops.OPTIMIZERS, "unknown"])
        moments = {name: given.tensor(size) for name in ("m", "v", "vhat") if name in ops.OPTIMIZERS.get(optimizer, ())}
        more: dict[str, Any] = {}
        if given.whole(0, 3) == 0:
            more[given.one(["acc", "base", "out", "units", "verdict"])] = given.tensor(size)
        ops.step_(
            x, given.update(size), optimizer=optimizer, lr=given.number(), gain=given.number(), weight=given.number(),
            betas=(given.number(), given.number()), eps=given.number(), **moments, **more,
        )  # fmt: skip

    def targets(given: Chosen, size: int, x: torch.Tensor) -> None:
        ops.difference(given.tensor(size), given.tensor(size), x)

    acts: tuple[Callable[[Chosen, int, torch.Tensor], object], ...] = (
        step,
        step,
        targets,
        lambda given, size, x: ops.inspect(given.update(size)),
        lambda given, size, x: ops.accumulate_(x, given.update(size), given.number(), fresh=given.one([True, False])),
        lambda given, size, x: ops.distances(given.update(size), x, given.tensor(size)),
    )

    def one(data: bytes) -> None:
        given = Chosen(data)
        size = given.one(SIZES)
        x = given.tensor(size)
        readable = x.device.type == "cpu" and x.layout is torch.strided
        before = x.clone() if readable else None
        try:
            given.one(acts)(given, size, x)
        except fastagg.FastaggError as error:
            assert len(str(error)) < 500, len(str(error))
            if before is not None:
                assert torch.equal(x.isnan(), before.isnan()) and torch.equal(x.nan_to_num(), before.nan_to_num()), (
                    error
                )

    return one


def recipe() -> Callable[[bytes], None]:
    """Fuzz recipes of the package and changes from a command line. What is read can be written, and reads the same."""
    texts = [path.read_bytes() for path in sorted(RECIPES.glob("*.toml"))]

    def expected(act: Callable[[], object]) -> Any:
        try:
            return act()
        except fastagg.ConfigError as error:
            assert "\n" not in str(error), error
            return None

    def one(data: bytes) -> None:
        edits = atheris.FuzzedDataProvider(data)
        whole = bytearray(texts[edits.ConsumeIntInRange(0, len(texts) - 1)])
        for _ in range(edits.ConsumeIntInRange(0, 3)):
            at, cut = edits.ConsumeIntInRange(0, len(whole)), edits.ConsumeIntInRange(0, 12)
            whole[at : at + cut] = edits.ConsumeBytes(edits.ConsumeIntInRange(0, 12))
        change = edits.ConsumeUnicodeNoSurrogates(24)
        pair = expected(lambda: keys.parse_change(change))
        expected(lambda: keys.parse_choices(change))
        text = whole.decode(errors="replace")
        found = expected(lambda: config.from_toml(text, "recipe", dict([pair]) if pair else None))
        if found is not None:
            assert config.from_toml(config.to_toml(found), "again") == found

    return one
