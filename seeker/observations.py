"""Observations as token ids: passages are cut to the token limit first and wrapped afterwards.

So the closing tag always stands, whatever was cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from seeker.config import PromptConfig
from seeker.errors import ConfigError
from seeker.pieces import Piece, encode_pieces, fill, spelled_control_token
from seeker.prompt import Tokenizer, decode, encode
from seeker.tools import Observation
from seeker.types import TokenIds


@dataclass(frozen=True, slots=True)
class RenderedObservation:
    """An observation as it enters a trajectory.

    Example: three passages of 40 tokens under a limit of 100 with 6 tokens of wrapping give 100 tokens, the first two
    passages whole and 14 tokens of the third: ``num_shown=3, is_cut=True``.
    """

    token_ids: TokenIds  # [T], T <= the limit
    num_shown: int  # passages of which something is shown
    is_cut: bool


def wrap(config: PromptConfig, passages: str, *, searches_spent: bool) -> str:
    """The observation's text; after the last search it also says that no search is left."""
    text = config.observation.replace("{passages}", passages)
    return text + config.searches_spent if searches_spent else text


def render_observation(
    observation: Observation,
    config: PromptConfig,
    tokenizer: Tokenizer,
    max_tokens: int,
    *,
    searches_spent: bool = False,
) -> RenderedObservation:
    """`observation` cut to `max_tokens` tokens, wrapping included."""
    passages = observation.passages or (config.no_passages,)
    is_content = bool(observation.passages)

    def encoded(text: str) -> TokenIds:
        pieces = fill(config.observation, "{passages}", text, is_content=is_content)
        return encode_pieces(tokenizer, [*pieces, Piece(config.searches_spent)] if searches_spent else pieces)

    ids = encoded(config.passage_separator.join(passages))
    if len(ids) <= max_tokens:
        return RenderedObservation(ids, len(observation.passages), is_cut=False)
    room = max_tokens - len(encode(tokenizer, wrap(config, "", searches_spent=searches_spent)))
    while room >= 0:
        kept, num_shown = _cut(passages, config.passage_separator, tokenizer, room)
        ids = encoded(kept)
        if len(ids) <= max_tokens:
            return RenderedObservation(ids, min(num_shown, len(observation.passages)), is_cut=True)
        room -= len(ids) - max_tokens  # tokens may join differently where passages and wrapping meet
    raise _too_small(max_tokens)


def _cut(passages: tuple[str, ...], separator: str, tokenizer: Tokenizer, room: int) -> tuple[str, int]:
    """The first `room` tokens of the joined passages as text, and how many passages it touches."""
    kept = decode(tokenizer, encode_pieces(tokenizer, [Piece(separator.join(passages), is_content=True)])[:room])
    kept = kept.rstrip("\ufffd")  # a character whose bytes were cut apart
    num_shown, start = 0, 0
    for passage in passages:
        if len(kept) <= start:
            break
        num_shown += 1
        start += len(passage) + len(separator)
    return kept, num_shown


def check_limits(config: PromptConfig, tokenizer: Tokenizer, max_observation_tokens: int) -> None:
    """Refuses a limit on observations that leaves no token for passages, or cuts the corrective texts.

    Texts that stand among the passages' own are refused where they spell a control token, as that would be lost.
    """
    for name in ("passage", "passage_separator"):
        if token := spelled_control_token(tokenizer, getattr(config, name)):
            raise ConfigError(
                f"prompt.{name}: {token!r} is a token of the tokenizer's own, and passages never hold one; "
                "write it in prompt.observation, or in other words"
            )
    wrapping = len(encode(tokenizer, wrap(config, "", searches_spent=True)))
    texts = {"malformed": config.malformed, "searches_spent": config.searches_spent}
    longest = max(len(encode(tokenizer, text)) for text in texts.values())
    if max(wrapping + 1, longest) > max_observation_tokens:
        raise _too_small(max_observation_tokens, wrapping)


def _too_small(max_tokens: int, wrapping: int | None = None) -> ConfigError:
    needed = "" if wrapping is None else f" ({wrapping} tokens of wrapping)"
    return ConfigError(
        f"rollout.max_observation_tokens: expected room for the prompt's wrapping texts and one passage token{needed}, "
        f"found {max_tokens}; raise it or shorten prompt.observation, prompt.searches_spent and prompt.malformed"
    )
