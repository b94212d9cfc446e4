"""The tokenizer and the shipped starting policy.

Pinned behaviour:
1. Any text comes back from its ids.
2. Each tag of the protocol is one token, and decoding keeps it.
3. A name has the same ids wherever it stands after a space; held-out names take as many tokens as training ones.
4. The shipped weights are those of the digest; `load_policy` loads them, with the very tokenizer that was saved.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from data.entities import Sizes, make_half
from data.starting_policy import DIGEST, WEIGHTS, sha256_of, tokenizer_texts
from data.tokenizer import TAGS, VOCABULARY_SIZE, train_tokenizer
from data.words import Pool
from seeker.config import PolicyConfig
from seeker.engines.policy import load_policy

SHIPPED = Path(__file__).resolve().parents[2] / "data" / "policy"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(SHIPPED)


@given(text=st.text())
def test_any_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_tags_are_single_tokens_that_decoding_keeps(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = [tokenizer.encode(tag, add_special_tokens=False) for tag in TAGS]
    assert all(len(one) == 1 for one in ids)
    assert len({one[0] for one in ids}) == len(TAGS)
    text = "<think> a</think><search> b</search>"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=True) == text


def test_names_are_the_same_tokens_everywhere(tokenizer: PreTrainedTokenizerFast) -> None:
    half = make_half(5, Pool.HELDOUT, Sizes())
    for name in list(half.people)[:50]:
        own = tokenizer.encode(f" {name}", add_special_tokens=False)
        for text in (f" {name} was born", f"<search> {name}</search>", f" by {name}.", f"\n {name}: {name} is"):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert any(ids[start : start + len(own)] == own for start in range(len(ids)))


def test_heldout_names_are_no_longer_than_training_names(tokenizer: PreTrainedTokenizerFast) -> None:
    lengths = {}
    for pool in Pool:
        names = make_half(5, pool, Sizes()).people
        lengths[pool] = sum(len(tokenizer.encode(f" {name}", add_special_tokens=False)) for name in names) / len(names)
    assert abs(lengths[Pool.TRAIN] - lengths[Pool.HELDOUT]) < 0.2
    assert lengths[Pool.HELDOUT] < 4.5


def test_the_tokenizer_can_be_made_again(tokenizer: PreTrainedTokenizerFast) -> None:
    again = train_tokenizer(tokenizer_texts())
    assert len(again) == VOCABULARY_SIZE
    assert again.get_vocab() == tokenizer.get_vocab()


def test_the_shipped_policy_is_the_one_of_its_digest() -> None:
    facts = json.loads((SHIPPED / DIGEST).read_text(encoding="utf-8"))
    assert facts["sha256"] == sha256_of(SHIPPED / WEIGHTS)
    assert facts["command"].startswith("python -m flows.warm_start --seed")
    assert (SHIPPED / WEIGHTS).stat().st_size < 4_000_000


def test_the_shipped_policy_loads_with_its_own_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    model, loaded = load_policy(PolicyConfig(path=str(SHIPPED)))
    assert 500_000 < sum(parameter.numel() for parameter in model.parameters()) < 1_500_000
    text = " Velmor is a 1934 film, directed by Kel Tamor.\n<search> Kel</search>"
    assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(text, add_special_tokens=False)
    assert loaded.encode(" 1934", add_special_tokens=False) == loaded.convert_tokens_to_ids(["Ġ1934"])
