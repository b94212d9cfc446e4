"""Tiny tokenizers and models for the tests of the rollout: a byte-level BPE that can encode any text."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

TAGS = ["<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>"]
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "In which town was the director of Ama born? Velm is a town in Oru. Iro Tal directed the film Ama.",
    "<think>who directed it</think><search>Ama director</search><information>Ama: a film</information>",
    "No searches are left. Write one answer. Passages found about people and films and years 1921.",
]


def make_tokenizer(*, tags: bool = True, chat: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE of about 400 entries; with `tags` each of the protocol's tags is one token."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|im_end|>", "<|im_start|>", "<|pad|>", *(TAGS if tags else [])]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    core.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|pad|>")
    if chat:
        tokenizer.chat_template = CHAT
    return tokenizer


def make_model(kind: str = "qwen2", vocab_size: int = 400, *, seed: int = 0, scale: float = 6.0) -> PreTrainedModel:
    """A random model of two layers; `scale` sharpens its output so that sampling is not uniform."""
    torch.manual_seed(seed)
    config_class, model_class = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[
        kind
    ]
    config = config_class(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=2,
    )
    model = model_class(config).float().eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    return model
