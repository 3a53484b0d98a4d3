"""Pretrained classifiers (BERT, ...) and writers (Qwen, ...) through transformers, with adapters through peft.

Dropout is what the model's own configuration says; adapters have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import Text


class Classifier(nn.Module):
    """A transformers model that takes tokens [batch, length] alone and returns logits [batch, classes]."""

    def __init__(self, model: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.model = model
        self._padding = padding

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(tokens) if self._padding is None else (tokens != self._padding).long()
        return self.model(input_ids=tokens, attention_mask=mask).logits


class Writer(nn.Module):
    """A transformers model that takes tokens [batch, length] and returns logits [batch, length, vocabulary]."""

    def __init__(self, model: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.model = model
        self._padding = padding

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # Causal attention never looks at what comes after, and padding comes last: no mask.
        return self.model(input_ids=tokens, use_cache=False).logits

    def generate(self, tokens: torch.Tensor, mask: torch.Tensor, most: int) -> torch.Tensor:
        """``tokens`` [batch, length], padded on the left, and up to ``most`` more, each the likeliest."""
        model: Any = self.model
        return model.generate(
            input_ids=tokens, attention_mask=mask, max_new_tokens=most, do_sample=False, pad_token_id=self._padding
        )


class TrainableOnly(nn.Module):
    """Only what trains of ``model`` is a parameter here; the frozen rest is kept aside.

    So only adapters travel, are aggregated and stored; the frozen weights are never copied.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = [model]  # in a list, which nn.Module does not look into
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        for name in self._names:
            self.register_parameter(_flat(name), model.get_parameter(name))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # The registered ones are handed in by name, so that torch.func can put others in their place.
        own = {name: getattr(self, _flat(name)) for name in self._names}
        return torch.func.functional_call(self._model[0], own, (tokens,))

    def generate(self, tokens: torch.Tensor, mask: torch.Tensor, most: int) -> torch.Tensor:
        own: Any = self._model[0]  # it holds the registered parameters themselves
        return own.generate(tokens, mask, most)

    def _apply(self, fn: Any, recurse: bool = True) -> TrainableOnly:
        # What moves or converts a module: the frozen rest goes along.
        self._model[0]._apply(fn)
        return super()._apply(fn, recurse)

    def train(self, mode: bool = True) -> TrainableOnly:
        self._model[0].train(mode)
        return super().train(mode)


def classifier(text: Text, classes: int, lora_rank: int | None, lora_alpha: float) -> nn.Module:
    """Load the pretrained model that the data is tokenised for, with a new head of ``classes``.

    With ``lora_rank`` the weights are frozen, and low-rank adapters in the attention and the head train. ConfigError
    when transformers (or peft) is not installed, DataError when the model cannot be read.
    """
    model = _load(text, "transformer", "AutoModelForSequenceClassification", num_labels=classes)
    if lora_rank is None:
        return Classifier(model, text.padding)
    return TrainableOnly(Classifier(_with_adapters(model, "SEQ_CLS", lora_rank, lora_alpha), text.padding))


def writer(text: Text, lora_rank: int | None, lora_alpha: float) -> nn.Module:
    """Load the pretrained model that the data is tokenised for, its head included; otherwise as ``classifier``."""
    model = _load(text, "causal-lm", "AutoModelForCausalLM")
    if lora_rank is None:
        return Writer(model, text.padding)
    return TrainableOnly(Writer(_with_adapters(model, "CAUSAL_LM", lora_rank, lora_alpha), text.padding))


def _load(text: Text, name: str, kind: str, **settings: Any) -> Any:
    if text.pretrained is None:
        raise ConfigError(f'model "{name}" needs data with a pretrained model, such as glue or newsgroups')
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        raise ConfigError(f'model "{name}" needs transformers: pip install "fastagg[nlp]"') from None
    # Its progress bar and its note that the head is new (which is the point) would lie across ours.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        return getattr(transformers, kind).from_pretrained(
            str(text.pretrained), local_files_only=True, dtype=torch.float32, **settings
        )
    except Exception as error:  # torch, safetensors and transformers raise each its own
        raise DataError(f"no readable model in {text.pretrained}: {error}") from error


def _with_adapters(model: Any, task: str, rank: int, alpha: float) -> nn.Module:
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError:
        raise ConfigError('lora_rank needs peft: pip install "fastagg[nlp]"') from None
    config = LoraConfig(task_type=TaskType[task], r=rank, lora_alpha=alpha, lora_dropout=0.0)
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise ConfigError(f"peft has no adapters for this model: {error}") from None


def _flat(name: str) -> str:
    # Parameter names must not hold dots.
    return name.replace(".", "__")
