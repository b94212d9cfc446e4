"""Tiny tokenizers and models for the tests of the rollout: a byte-level BPE that can encode any text."""

from __future__ import annotations

import math

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


def make_tokenizer(*, tags: bool = True, chat: bool = False, vocab_size: int = 400) -> PreTrainedTokenizerFast:
    """A byte-level BPE; with `tags` each of the protocol's tags is one token.

    The texts give some 400 entries; a larger `vocab_size` is filled with entries that no text is split into.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|im_end|>", "<|im_start|>", "<|pad|>", *(TAGS if tags else [])]
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocab_size, 400), special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    core.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|pad|>")
    if len(tokenizer) < vocab_size:
        tokenizer.add_tokens([f"\u2042{at}" for at in range(vocab_size - len(tokenizer))])
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


def make_talker(
    tokenizer: PreTrainedTokenizerFast,
    shares: dict[str, float] | None = None,
    *,
    rest: float = 0.0,
    layers: int = 2,
    hidden: int = 64,
    seed: int = 0,
) -> PreTrainedModel:
    """A random policy whose output bias gives each token of `shares` about that share, all others a `rest` each.

    Without `shares` it speaks the protocol: one token in 8 opens a search or an answer, one in 40 closes one.
    """
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config).float().eval()
    if shares is None:
        shares = {"<search>": 1 / 12, "<answer>": 1 / 24, "</search>": 1 / 50, "</answer>": 1 / 200}
        never = (*(set(TAGS) - set(shares)), "<|im_end|>", "<|im_start|>", "<|pad|>")
        shares, rest = {**shares, **dict.fromkeys(never, 1e-9)}, 1 / len(tokenizer)
    head = torch.nn.Linear(hidden, len(tokenizer), bias=True)
    head.weight.data.normal_(0, 0.05)
    head.bias.data.fill_(math.log(rest) if rest else -30.0)
    for token, share in shares.items():
        head.bias.data[tokenizer.convert_tokens_to_ids(token)] = math.log(share)
    model.lm_head = head
    return model
