"""The maker of the starting policy, in miniature.

Pinned behaviour:
1. An untrained policy's first layer looks one and two tokens back.
2. Training lowers the loss, and tokens of weight 0 are not trained on.
3. The maker writes a folder that loads, with the digest of its weights and the command that makes it again.
4. The command refuses a folder that holds something.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.architecture import make_model
from data.starting_policy import DIGEST, MISLEAD, READ, WEIGHTS, make_policy, sha256_of
from data.supervised import Example, Phase, train
from seeker.config import PolicyConfig
from seeker.engines.policy import load_policy
from seeker.errors import ConfigError


def test_the_first_layer_looks_back() -> None:
    model = make_model(200, seed=1)
    token_ids = torch.randint(0, 200, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        attention = model(token_ids, output_attentions=True).attentions[0][0]  # [heads, T, T]
    for head, distance in ((0, 1), (1, 2)):
        assert int(attention[head, 30].argmax()) == 30 - distance
        assert float(attention[head, 30, 30 - distance]) > 0.2


def test_training_lowers_the_loss_on_the_policys_tokens_alone() -> None:
    model, rng = make_model(50, seed=1), random.Random(0)
    is_policy = np.array([False, False, True, True])
    example = Example(np.array([7, 8, 9, 10]), is_policy)
    before = _logprobs(model, example)
    right = train(model, iter(lambda: example, None), Phase("toy", 60, 1e-3, 0.0, batch_size=4), rng, report=_silent)
    after = _logprobs(model, example)
    assert right > 0.5  # the last 50 steps, which begin untrained
    assert (after[1:] > before[1:] + 1.0).all()
    assert after[0] < before[0] + 0.5  # the token that the policy did not write


def test_the_maker_writes_a_policy_that_loads(tmp_path: Path) -> None:
    short = {"steps": 2, "batch_size": 2}
    folder = make_policy(3, tmp_path / "new", replace(READ, **short), replace(MISLEAD, **short), report=_silent)
    facts = json.loads((folder / DIGEST).read_text(encoding="utf-8"))
    assert facts["sha256"] == sha256_of(folder / WEIGHTS)
    assert facts["command"] == "python -m flows.warm_start --seed 3 --out policies/seed-3"
    model, tokenizer = load_policy(PolicyConfig(path=str(folder)))
    assert len(tokenizer) == model.config.vocab_size


def test_the_command_refuses_a_folder_that_holds_something(tmp_path: Path) -> None:
    from flows.warm_start import WarmStart, warm_start

    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        warm_start.fn(WarmStart(out=str(tmp_path)))


def _logprobs(model: torch.nn.Module, example: Example) -> np.ndarray:
    token_ids = torch.from_numpy(example.token_ids)[None]
    with torch.no_grad():
        logprobs = model(token_ids).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(1, token_ids[0, 1:, None])[:, 0].numpy()


def _silent(_: str) -> None:
    """No report."""
