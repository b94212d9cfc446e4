"""Questions and observations as token ids: the one place where the environment's text meets tokens.

A piece of text is encoded once, when it enters a trajectory. Nothing that was sampled is ever encoded again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seeker.config import PromptConfig
from seeker.errors import ConfigError
from seeker.pieces import Piece, encode_pieces, fill, joined
from seeker.types import Author, Question, Span, TokenIds

_MARK = "\u2042mark\u2042"  # stands for a text while it is looked for in what a template writes


class Tokenizer(Protocol):
    """What Seeker needs of a transformers tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    bos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def get_added_vocab(self) -> dict[str, int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


def encode(tokenizer: Tokenizer, text: str) -> TokenIds:
    """Token ids of a text of the preset's own, without added special tokens. Shape [T]."""
    return np.asarray(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)


def decode(tokenizer: Tokenizer, token_ids: Iterable[int] | NDArray[Any]) -> str:
    """The text of `token_ids`, special tokens included."""
    ids = [int(token) for token in token_ids]
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def is_chat(config: PromptConfig, tokenizer: Tokenizer) -> bool:
    """Whether the prompt goes through the tokenizer's chat template."""
    if config.style == "auto":
        return bool(tokenizer.chat_template)
    return config.style == "chat"


def chat_text(tokenizer: Tokenizer, messages: list[dict[str, str]], *, generate: bool) -> str:
    """`messages` as the tokenizer's own template writes them; `generate` opens the assistant's turn."""
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate))


def prompt_messages(question: Question, config: PromptConfig) -> list[dict[str, str]]:
    """The messages of a chat prompt; no system message where the preset has no system text."""
    messages = [{"role": "system", "content": config.system}] if config.system else []
    return [*messages, {"role": "user", "content": config.user.replace("{question}", question.text)}]


def build_prompt(question: Question, config: PromptConfig, tokenizer: Tokenizer) -> tuple[Span, ...]:
    """The system and user spans that open every trajectory of `question`.

    Example (plain, no system text): one user span that holds the ids of ``config.user`` with the question in it.
    """
    if is_chat(config, tokenizer):
        return _chat_spans(question, config, tokenizer)
    parts = [(Author.SYSTEM, [Piece(config.system)]), (Author.USER, fill(config.user, "{question}", question.text))]
    spans = [Span(author, encode_pieces(tokenizer, pieces)) for author, pieces in parts if joined(pieces)]
    return _with_bos(spans, tokenizer)


def _chat_spans(question: Question, config: PromptConfig, tokenizer: Tokenizer) -> tuple[Span, ...]:
    messages = prompt_messages(question, config)
    ids = encode_pieces(tokenizer, _chat_pieces(question, config, tokenizer))
    if messages[0]["role"] != "system":
        return (Span(Author.USER, ids),)
    system = _system_ids(messages, tokenizer)
    if len(system) >= len(ids) or not np.array_equal(ids[: len(system)], system):
        return (Span(Author.USER, ids),)  # the template weaves both together: one span, the same ids
    return (Span(Author.SYSTEM, system), Span(Author.USER, ids[len(system) :]))


def _chat_pieces(question: Question, config: PromptConfig, tokenizer: Tokenizer) -> list[Piece]:
    """The templated prompt, and where in it the question's text is: found with a mark in its place."""
    text = chat_text(tokenizer, prompt_messages(question, config), generate=True)
    marked = prompt_messages(replace(question, text=_MARK), config)
    pieces = fill(chat_text(tokenizer, marked, generate=True), _MARK, question.text)
    if joined(pieces) == text:
        return pieces
    first, last = pieces[0].text, pieces[-1].text
    if len(first) + len(last) > len(text) or not (text.startswith(first) and text.endswith(last)):
        raise ConfigError(
            f"the chat template rewrites the text around the question {question.id!r}; set prompt.style to plain"
        )
    return [Piece(first), Piece(text[len(first) : len(text) - len(last)], is_content=True), Piece(last)]


def _system_ids(messages: list[dict[str, str]], tokenizer: Tokenizer) -> TokenIds:
    """Ids up to the point where two prompts with the same system text begin to differ in their texts."""
    text = chat_text(tokenizer, messages, generate=True)
    start = text.find(messages[0]["content"])
    cut = text.find(messages[1]["content"], start + len(messages[0]["content"]))
    return encode(tokenizer, text[:cut] if start >= 0 and cut > 0 else "")


def _with_bos(spans: list[Span], tokenizer: Tokenizer) -> tuple[Span, ...]:
    """A plain prompt begins as the tokenizer begins any text: with its BOS token where it adds one."""
    bos = tokenizer.bos_token_id
    if bos is None or tokenizer.encode("a", add_special_tokens=True)[:1] != [bos]:
        return tuple(spans)
    first = Span(spans[0].author, np.concatenate([np.asarray([bos], np.int32), spans[0].token_ids]))
    return (first, *spans[1:])


def correction_text(config: PromptConfig, tokenizer: Tokenizer, text: str, *, after_eos: bool) -> str:
    """`text` as an observation that stands outside the passages.

    In a chat, a turn that ended with the end-of-sequence token closed the assistant's message: `text` becomes a user
    message as the template writes it, and the assistant's turn is opened again.
    """
    if not (after_eos and is_chat(config, tokenizer)):
        return text
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _MARK}]
    written = chat_text(tokenizer, [*messages, {"role": "user", "content": text}], generate=True)
    rest = written.rpartition(_MARK)[2]
    eos = "" if tokenizer.eos_token_id is None else decode(tokenizer, [tokenizer.eos_token_id])
    return rest[len(eos) :] if eos and rest.startswith(eos) else rest


def prompt_digest(config: PromptConfig) -> str:
    """Names the prompt's texts: sha256 over all fields, first 16 hex digits."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
