"""Loading a policy.

1.  A local folder loads in the compute dtype, with its weights rounded to bf16; a relative path is sought from the
    working directory and then from the project.
2.  A path that is wrong is a `PolicyError` that names it and says what to do; the hub is never asked unless named.
3.  bf16 bits round to nearest even, and go back into a model in place, tied weights once.
4.  An export of another policy is refused before anything is written.
5.  Threads that load at once leave the library as it was.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from seeker.config import PolicyConfig
from seeker.engines.policy import bf16_bits, export_digest, export_policy, load_export_, load_policy, policy_shapes
from seeker.errors import PolicyError
from tests.learning.builders import make_policy
from tests.rollout.tiny import make_model, make_tokenizer

TOKENIZER = make_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies") / "small"
    make_model("llama", len(TOKENIZER)).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


def test_loading_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_policy(PolicyConfig(path=str(folder)))
    assert not model.training
    assert tokenizer("Ama")["input_ids"] == TOKENIZER("Ama")["input_ids"]
    original = dict(make_model("llama", len(TOKENIZER)).named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, original[name].bfloat16().float())
    monkeypatch.chdir(folder.parent)
    again, _ = load_policy(PolicyConfig(path="small", compute_dtype="bfloat16", attention="eager"))
    assert next(again.parameters()).dtype == torch.bfloat16
    assert again.config._attn_implementation == "eager"
    assert export_digest(export_policy(again)) == export_digest(export_policy(model))


def test_loading_in_threads(folder: Path) -> None:
    before = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as threads:
        loaded = list(threads.map(lambda _: load_policy(PolicyConfig(path=str(folder)))[0], range(12)))
    assert PreTrainedModel.tie_weights is before
    assert len({export_digest(export_policy(model)) for model in loaded}) == 1


def test_a_path_that_is_not_there() -> None:
    with pytest.raises(PolicyError, match=r"policy\.path 'Qwen/Qwen2\.5-3B-Instruct'.*hub:Qwen"):
        load_policy(PolicyConfig(path="Qwen/Qwen2.5-3B-Instruct"))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_with_a_file_missing(folder: Path, tmp_path: Path, missing: str) -> None:
    for path in folder.iterdir():
        if path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(PolicyError, match=str(tmp_path)):
        load_policy(PolicyConfig(path=str(tmp_path)))


def test_a_damaged_file(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(PolicyError, match="cannot load it"):
        load_policy(PolicyConfig(path=str(tmp_path)))


def test_a_tokenizer_that_is_too_large(tmp_path: Path) -> None:
    make_model("llama", 50).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match="50 embeddings"):
        load_policy(PolicyConfig(path=str(tmp_path)))


def test_bits_round_to_nearest_even() -> None:
    values = torch.tensor([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -0.0, float("inf")])
    assert bf16_bits(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0x8000, 0x7F80]


def test_exports_go_back_in_place() -> None:
    source, target = make_policy(0), make_policy(1)
    kept = target.get_input_embeddings().weight
    export = export_policy(source)
    assert {name: array.shape for name, array in export.items()} == policy_shapes(source)
    assert "lm_head.weight" not in export
    for array in export.values():
        array.flags.writeable = False
    load_export_(target, export)
    assert target.get_input_embeddings().weight is kept
    assert target.get_output_embeddings().weight is kept
    assert export_digest(export_policy(target)) == export_digest(export)


def test_an_export_of_another_policy_changes_nothing() -> None:
    model = make_policy()
    export = export_policy(model)
    digest = export_digest(export)
    wrong = {name: np.zeros_like(array) for name, array in export.items()}
    name = sorted(wrong)[-1]
    with pytest.raises(PolicyError, match=name):
        load_export_(model, {**wrong, name: wrong[name].reshape(-1)[:1]})
    del wrong[name]
    with pytest.raises(PolicyError, match=name):
        load_export_(model, wrong)
    assert export_digest(export_policy(model)) == digest
