"""Does a trajectory read as the tokenizer's own chat template would have written it? Checked once, at the start.

The ids of a trajectory are joined from pieces that were encoded apart. Encoded in one go the same text may be split
differently where pieces meet, and a template may rewrite what it is given: both are shown, neither is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seeker.actions import ANSWER_CLOSE, ANSWER_OPEN, SEARCH_CLOSE, SEARCH_OPEN
from seeker.config import PromptConfig
from seeker.observations import wrap
from seeker.prompt import Tokenizer, build_prompt, chat_text, decode, encode, is_chat, prompt_messages
from seeker.types import Question, TokenIds

SAMPLE = Question("sample", "In which town was the director of Ama born?", ("Velm",))


@dataclass(frozen=True, slots=True)
class TemplateCheck:
    """Whether the pieces of a sample trajectory and its text as a whole give the same ids.

    Example: ``TemplateCheck(style="chat", num_tokens=96, first_difference=41, ours="|>\\n\\n", theirs="|>\\n")``: from
    token 41 on the ids differ, shown as the text of the next tokens on either side.
    """

    style: str
    num_tokens: int
    first_difference: int | None = None
    ours: str = ""
    theirs: str = ""
    is_same_text: bool = True  # the difference is in how the text is split, not in the text

    @property
    def is_same(self) -> bool:
        return self.first_difference is None

    def describe(self) -> str:
        """One line for people."""
        if self.is_same:
            return f"{self.style} prompt: {self.num_tokens} sample tokens, the same when read in one go"
        what = "split differently" if self.is_same_text else "written differently by the template"
        return (
            f"{self.style} prompt: the sample is {what} from token {self.first_difference} on: "
            f"{self.ours!r} here, {self.theirs!r} there"
        )


def check_template(config: PromptConfig, tokenizer: Tokenizer) -> TemplateCheck:
    """Compares a sample trajectory, piece by piece as a rollout joins it, with its text read in one go."""
    pieces = _sample_pieces(config)
    prompt = np.concatenate([span.token_ids for span in build_prompt(SAMPLE, config, tokenizer)])
    ours = np.concatenate([prompt, *(encode(tokenizer, piece) for piece in pieces)])
    if is_chat(config, tokenizer):
        messages = [*prompt_messages(SAMPLE, config), {"role": "assistant", "content": "".join(pieces)}]
        style, theirs = "chat", encode(tokenizer, chat_text(tokenizer, messages, generate=False))
    else:
        style, theirs = "plain", encode(tokenizer, decode(tokenizer, ours))
    return _compare(style, ours, theirs[: len(ours)], tokenizer)


def _sample_pieces(config: PromptConfig) -> list[str]:
    """Two turns and the observation between them."""
    passage = config.passage.replace("{title}", "Ama").replace("{text}", "Ama is a film by Iro Tal.")
    return [
        f"<think>Who directed it?</think>\n{SEARCH_OPEN}director of Ama{SEARCH_CLOSE}",
        wrap(config, passage, searches_spent=False),
        f"<think>I know.</think>\n{ANSWER_OPEN}Velm{ANSWER_CLOSE}",
    ]


def _compare(style: str, ours: TokenIds, theirs: TokenIds, tokenizer: Tokenizer) -> TemplateCheck:
    shared = min(len(ours), len(theirs))
    different = np.flatnonzero(ours[:shared] != theirs[:shared])
    if len(ours) == len(theirs) and not len(different):
        return TemplateCheck(style, len(ours))
    first = int(different[0]) if len(different) else shared
    rest, other = decode(tokenizer, ours[first:]), decode(tokenizer, theirs[first:])
    length = min(len(rest), len(other))
    return TemplateCheck(
        style,
        len(ours),
        first,
        decode(tokenizer, ours[first : first + 6]),
        decode(tokenizer, theirs[first : first + 6]),
        is_same_text=rest[:length] == other[:length],
    )
