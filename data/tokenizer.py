"""The starting policy's tokenizer: byte-level BPE with the protocol's tags as single tokens. It encodes any text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TAGS = (
    "<think>",
    "</think>",
    "<search>",
    "</search>",
    "<information>",
    "</information>",
    "<answer>",
    "</answer>",
)
END_OF_TEXT = "<|endoftext|>"  # end of sequence and padding
VOCABULARY_SIZE = 1320  # with more, whole training names become entries


def train_tokenizer(texts: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE) -> Any:
    """A `PreTrainedTokenizerFast` whose merges come from `texts`; every byte is an entry, so nothing is unknown.

    Digits, letters and spaces split as in GPT-2: a name after a space is always the same tokens, wherever it stands.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(TAGS),
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Not "special": decoding keeps the tags also where special tokens are skipped.
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT)
