"""Scores a model that writes solutions by the number at the end of each (GSM8K's measure)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastagg._types import Foreign
from fastagg.sim.data.federated import Samples

IGNORED = -100  # the label that torch's cross-entropy ignores
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class FinalNumbers:
    """The share of greedily written solutions that end in the reference's number, and the references' mean loss."""

    tokenizer: Foreign
    new_tokens: int
    batch_size: int = 8

    def __call__(self, module: nn.Module, test: Samples) -> tuple[float, float]:
        right, loss, labels = 0, 0.0, 0
        for x, y in zip(test.x.split(self.batch_size), test.y.split(self.batch_size), strict=True):
            logits = module(x).flatten(0, 1)
            loss += float(nn.functional.cross_entropy(logits, y.flatten(), ignore_index=IGNORED, reduction="sum"))
            labels += int((y != IGNORED).sum())
            written = self._written(module, x, y)
            wanted = self.tokenizer.batch_decode([row[row != IGNORED].tolist() for row in y], skip_special_tokens=True)
            right += sum(same_number(a, b) for a, b in zip(written, wanted, strict=True))
        return right / len(test), loss / labels

    def _written(self, module: Foreign, x: Tensor, y: Tensor) -> list[str]:
        """Return what the model writes after each question. Questions are padded on the left, as generation needs
        it."""
        starts = (y != IGNORED).int().argmax(dim=1) + 1  # the number of the question's tokens
        longest = int(starts.max())
        prompts = torch.full((len(x), longest), self.tokenizer.pad_token_id, device=x.device)
        mask = torch.zeros_like(prompts)
        for row, (tokens, start) in enumerate(zip(x, starts.tolist(), strict=True)):
            prompts[row, longest - start :] = tokens[:start]
            mask[row, longest - start :] = 1
        out = module.generate(prompts, mask, self.new_tokens, self.tokenizer.pad_token_id)
        texts: list[str] = self.tokenizer.batch_decode(out[:, longest:], skip_special_tokens=True)
        return texts


def same_number(written: str, wanted: str) -> bool:
    """Return whether the last numbers of both texts are equal. False if a text has none."""
    last = [found[-1].replace(",", "") for found in (NUMBER.findall(written), NUMBER.findall(wanted)) if found]
    return len(last) == 2 and float(last[0]) == float(last[1])
