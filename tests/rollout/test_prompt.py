"""Prompts and observations.

1. A plain prompt is system and user text, each its own span; a chat prompt is what the tokenizer's template writes.
2. Passages are cut first and wrapped afterwards: the closing tag stands under every limit, the limit holds with the
   wrapping, and the passages shown are named.
3. Texts are put in once: what a question, title or passage holds is never taken for a placeholder.
4. The template check says "same", or names the first difference and whether the text or only its splitting differs.
5. The prompt's digest changes with every text.
6. A preset whose texts leave out the question, the passages or their text is refused.
7. A tokenizer that begins texts with a BOS token begins plain prompts with it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from seeker.config import PromptConfig
from seeker.errors import ConfigError
from seeker.observations import check_limits, render_observation
from seeker.presets import load_config
from seeker.prompt import build_prompt, chat_text, decode, encode, prompt_digest
from seeker.template import check_template
from seeker.tools import Observation, SearchTool
from seeker.types import Author, Question
from tests.rollout.scripted import Shelf
from tests.rollout.tiny import CHAT, make_tokenizer

PLAIN, CHATTY, SPELLED = make_tokenizer(), make_tokenizer(chat=True), make_tokenizer(tags=False)
QUESTION = Question("q", "Where is {question}?", ("x",))
PROMPT = PromptConfig(system="Think first. ", user="Q: {question}\n")


def test_plain_prompt() -> None:
    system, user = build_prompt(QUESTION, PROMPT, PLAIN)
    assert (system.author, decode(PLAIN, system.token_ids)) == (Author.SYSTEM, "Think first. ")
    assert (user.author, decode(PLAIN, user.token_ids)) == (Author.USER, "Q: Where is {question}?\n")


def test_chat_prompt_is_the_templates_own() -> None:
    system, user = build_prompt(QUESTION, PROMPT, CHATTY)
    messages = [
        {"role": "system", "content": "Think first. "},
        {"role": "user", "content": "Q: Where is {question}?\n"},
    ]
    whole = CHATTY.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert np.concatenate([system.token_ids, user.token_ids]).tolist() == whole
    assert (system.author, user.author) == (Author.SYSTEM, Author.USER)
    assert "Think first. " in decode(CHATTY, system.token_ids)
    (only,) = build_prompt(QUESTION, PromptConfig(), CHATTY)
    assert only.author is Author.USER


def test_bos_begins_a_plain_prompt() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    system, user = build_prompt(QUESTION, PROMPT, tokenizer)
    assert system.token_ids[0] == bos
    assert bos not in user.token_ids


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=40), max_size=4),
    st.integers(40, 120),
    st.booleans(),
    st.sampled_from([PLAIN, SPELLED]),
)
def test_observations_keep_limit_and_closing_tag(passages: list[str], limit: int, spent: bool, tokenizer) -> None:
    config = PromptConfig(searches_spent="No search left.")
    ids = tuple(f"d{at}" for at in range(len(passages)))
    rendered = render_observation(Observation(tuple(passages), ids), config, tokenizer, limit, searches_spent=spent)
    text = decode(tokenizer, rendered.token_ids)
    assert len(rendered.token_ids) <= limit
    assert text.startswith("<information>")
    assert text.endswith("</information>" + "No search left." * spent)
    inside = text.removeprefix("<information>").removesuffix("No search left." * spent).removesuffix("</information>")
    whole = "\n".join(passages) or config.no_passages
    assert inside == whole if not rendered.is_cut else whole.startswith(inside)
    assert rendered.num_shown <= len(passages)
    if not rendered.is_cut:
        assert rendered.num_shown == len(passages)


def test_a_cut_takes_the_last_passages_and_names_the_shown_ones() -> None:
    passages = tuple(f"passage {at} " + "film " * 10 for at in range(3))
    one = len(encode(PLAIN, f"<information>{passages[0]}</information>"))
    rendered = render_observation(Observation(passages, ("a", "b", "c")), PROMPT, PLAIN, one + 6)
    assert (rendered.num_shown, rendered.is_cut) == (2, True)
    assert decode(PLAIN, rendered.token_ids).startswith(f"<information>{passages[0]}\npassage")


def test_limits_that_hold_no_passage_are_refused() -> None:
    needed = len(encode(PLAIN, "<information></information>" + PROMPT.searches_spent)) + 1
    check_limits(PROMPT, PLAIN, needed)
    with pytest.raises(ConfigError, match="max_observation_tokens"):
        check_limits(PROMPT, PLAIN, needed - 1)


def test_placeholders_in_documents_stay_as_they_are() -> None:
    tool = SearchTool(Shelf("all of {title} and {text}"), 1, "{title}: {text} ({title})")
    assert tool("x").passages == ("T0: all of {title} and {text} (T0)",)


def test_equal_queries_are_looked_up_once() -> None:
    shelf = Shelf("a", "b")
    tool = SearchTool(shelf, 1)
    assert tool("x") == tool("x")
    assert shelf.queries == ["x"]


def test_template_check_finds_both_prompts_consistent() -> None:
    for tokenizer, style in ((PLAIN, "plain"), (CHATTY, "chat")):
        check = check_template(PROMPT, tokenizer)
        assert check.is_same, check.describe()
        assert check.style == style
        assert str(check.num_tokens) in check.describe()


def test_template_check_names_a_rewriting_template() -> None:
    tokenizer = make_tokenizer(chat=True)
    tokenizer.chat_template = CHAT.replace("{{ message.content }}", "{{ message.content.replace('Ama', 'Iro') }}")
    check = check_template(PROMPT, tokenizer)
    assert not check.is_same
    assert not check.is_same_text
    assert check.ours != check.theirs
    assert "written differently" in check.describe()


def test_template_check_names_a_different_splitting() -> None:
    # Tags of several tokens: the "><" where a turn and its observation meet is one token when read in one go.
    check = check_template(PROMPT, SPELLED)
    assert check.first_difference is not None
    assert check.is_same_text
    assert check.ours[:2] == check.theirs[:2] == "><"
    assert "split differently" in check.describe()


def test_digest_changes_with_every_text() -> None:
    digests = {prompt_digest(PROMPT)}
    for name in PromptConfig.model_fields:
        if name != "style":
            digests.add(prompt_digest(PROMPT.model_copy(update={name: getattr(PROMPT, name) + "x"})))
    assert len(digests) == len(PromptConfig.model_fields)


@pytest.mark.parametrize(("name", "place"), [("user", "question"), ("passage", "text"), ("observation", "passages")])
def test_texts_without_their_place_are_refused(name: str, place: str) -> None:
    with pytest.raises(ConfigError, match=rf"prompt.{name} has no place for {{{place}}}"):
        load_config("laptop", [f"prompt.{name}=x"])


def test_chat_text_is_text() -> None:
    assert chat_text(CHATTY, [{"role": "user", "content": "a"}], generate=True).endswith("<|im_start|>assistant\n")
