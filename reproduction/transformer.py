"""Pretrained classifiers (BERT, ...) through transformers, with adapters through peft.

The model's own configuration sets the dropout. Adapters have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from shared import Text
from torch import nn

from fastagg._types import Foreign
from fastagg.errors import ConfigError, DataError


class Classifier(nn.Module):
    """A transformers model that takes only tokens [batch, length] and returns logits [batch, classes]."""

    def __init__(self, model: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.model = model
        self._padding = padding

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(tokens) if self._padding is None else (tokens != self._padding).long()
        return self.model(input_ids=tokens, attention_mask=mask).logits


class TrainableOnly(nn.Module):
    """A model of which only the trainable parameters are visible. The frozen ones are kept separately.

    So only adapters are sent, aggregated and stored. The frozen weights are never copied.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = [model]  # in a list, so that nn.Module does not find it
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        for name in self._names:
            self.register_parameter(_flat(name), model.get_parameter(name))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # The registered parameters are passed by name, so that torch.func can replace them.
        own = {name: getattr(self, _flat(name)) for name in self._names}
        return torch.func.functional_call(self._model[0], own, (tokens,))

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> TrainableOnly:
        # Operations that move or convert the module also move or convert the frozen part.
        self._model[0]._apply(fn)
        return super()._apply(fn, recurse)

    def train(self, mode: bool = True) -> TrainableOnly:
        self._model[0].train(mode)
        return super().train(mode)


def classifier(
    shape: Sequence[int], classes: int, text: Text | None = None, lora_rank: int | None = None, lora_alpha: float = 8.0
) -> nn.Module:
    """Load the pretrained model that the data is tokenised for, with a new head of ``classes``.

    With ``lora_rank`` the weights are frozen, and only the head and low-rank adapters in the attention train.
    ConfigError if transformers (or peft) is not installed. DataError if the model cannot be read.
    """
    if text is None or text.pretrained is None:
        raise ConfigError("transformer:classifier needs data with a pretrained model, such as texts:glue")
    model = _load(text, classes)
    if lora_rank is None:
        return Classifier(model, text.padding)
    return TrainableOnly(Classifier(_with_adapters(model, lora_rank, lora_alpha), text.padding))


def _load(text: Text, classes: int) -> Foreign:
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        raise ConfigError('transformer:classifier needs transformers: pip install "fastagg[nlp]"') from None
    # Its progress bar, and its note that the head is new (which is intended), would disturb this program's output.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        return transformers.AutoModelForSequenceClassification.from_pretrained(
            str(text.pretrained), local_files_only=True, dtype=torch.float32, num_labels=classes
        )
    except Exception as error:  # torch, safetensors and transformers raise different errors
        raise DataError(f"no readable model in {text.pretrained}: {error}") from error


def _with_adapters(model: Foreign, rank: int, alpha: float) -> nn.Module:
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError:
        raise ConfigError('lora_rank needs peft: pip install "fastagg[nlp]"') from None
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=rank, lora_alpha=alpha, lora_dropout=0.0)
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise ConfigError(f"peft has no adapters for this model: {error}") from None


def _flat(name: str) -> str:
    # Parameter names must not contain dots.
    return name.replace(".", "__")
