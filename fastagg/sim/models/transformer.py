"""Pretrained classifiers (BERT, ...) and writers (Qwen, ...) through transformers, with adapters through peft.

The model's own configuration sets the dropout. Adapters have none.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fastagg._types import Foreign
from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import Text


class Classifier(nn.Module):
    """A transformers model that takes only tokens [batch, length] and returns logits [batch, classes]."""

    def __init__(self, model: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.model = model
        self._padding = padding

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(tokens) if self._padding is None else (tokens != self._padding).long()
        return self.model(input_ids=tokens, attention_mask=mask).logits


class Writer(Classifier):
    """A transformers model that takes tokens [batch, length] and returns logits [batch, length, vocabulary]."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # No mask is needed: causal attention ignores later tokens, and padding comes last.
        return self.model(input_ids=tokens, use_cache=False).logits

    def generate(self, tokens: torch.Tensor, mask: torch.Tensor, most: int) -> torch.Tensor:
        """Return ``tokens`` [batch, length], padded on the left, followed by up to ``most`` tokens, each the
        likeliest."""
        model: Foreign = self.model
        return model.generate(
            input_ids=tokens, attention_mask=mask, max_new_tokens=most, do_sample=False, pad_token_id=self._padding
        )


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

    def generate(self, tokens: torch.Tensor, mask: torch.Tensor, most: int) -> torch.Tensor:
        own: Foreign = self._model[0]  # it holds the registered parameters themselves
        return own.generate(tokens, mask, most)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> TrainableOnly:
        # Operations that move or convert the module also move or convert the frozen part.
        self._model[0]._apply(fn)
        return super()._apply(fn, recurse)

    def train(self, mode: bool = True) -> TrainableOnly:
        self._model[0].train(mode)
        return super().train(mode)


def classifier(text: Text, classes: int, lora_rank: int | None, lora_alpha: float) -> nn.Module:
    """Load the pretrained model that the data is tokenised for, with a new head of ``classes``.

    With ``lora_rank`` the weights are frozen, and only the head and low-rank adapters in the attention train.
    ConfigError if transformers (or peft) is not installed. DataError if the model cannot be read.
    """
    model = _load(text, "transformer", "AutoModelForSequenceClassification", num_labels=classes)
    if lora_rank is None:
        return Classifier(model, text.padding)
    return TrainableOnly(Classifier(_with_adapters(model, "SEQ_CLS", lora_rank, lora_alpha), text.padding))


def writer(text: Text, lora_rank: int | None, lora_alpha: float) -> nn.Module:
    """Load the pretrained model that the data is tokenised for, with its own head; otherwise as ``classifier``."""
    model = _load(text, "causal-lm", "AutoModelForCausalLM")
    if lora_rank is None:
        return Writer(model, text.padding)
    return TrainableOnly(Writer(_with_adapters(model, "CAUSAL_LM", lora_rank, lora_alpha), text.padding))


def _load(text: Text, name: str, kind: str, **settings: object) -> Foreign:
    if text.pretrained is None:
        raise ConfigError(f'model "{name}" needs data with a pretrained model, such as glue or newsgroups')
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        raise ConfigError(f'model "{name}" needs transformers: pip install "fastagg[nlp]"') from None
    # Its progress bar, and its note that the head is new (which is intended), would disturb this program's output.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        return getattr(transformers, kind).from_pretrained(
            str(text.pretrained), local_files_only=True, dtype=torch.float32, **settings
        )
    except Exception as error:  # torch, safetensors and transformers raise different errors
        raise DataError(f"no readable model in {text.pretrained}: {error}") from error


def _with_adapters(model: Foreign, task: str, rank: int, alpha: float) -> nn.Module:
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
    # Parameter names must not contain dots.
    return name.replace(".", "__")
