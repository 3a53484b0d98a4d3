"""Predicts the next character: an embedding, two LSTM layers, a linear layer on the last output (AsyncFedED, B.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fastagg.sim.models.images import exactly


class NextCharacter(nn.Module):
    """Tokens [batch, length] to logits [batch, classes] of the next character.

    ``widths``: sizes of the embedding and of the hidden state, 8 and 256 as in McMahan et al. 2017.
    """

    def __init__(self, vocabulary: int, classes: int, widths: Sequence[int] = (8, 256)) -> None:
        super().__init__()
        embedding, hidden = exactly("lstm", widths, 2)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.output(states[:, -1])
