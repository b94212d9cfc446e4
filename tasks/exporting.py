"""Writing a policy version as a Hugging Face folder, and showing that it is the same policy."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prefect import task
from prefect.cache_policies import NO_CACHE
from transformers import AutoModelForCausalLM, AutoTokenizer

from seeker.config import RunConfig
from seeker.engines.policy import load_policy
from seeker.engines.torch_sampler import TorchSampler
from seeker.errors import ConfigError
from seeker.manifest import Manifest
from seeker.publishing import PolicyReader
from seeker.retrieval.bm25 import Bm25Index
from seeker.rollout import run_rollout
from seeker.runs import Json
from seeker.runs.policies import FolderObjects
from seeker.tools import SearchTool
from seeker.types import Author, Question, Trajectory

TIE = 1e-4  # two tokens whose logits are nearer than this may change places between batch shapes


def check_folder(out: Path, may_replace: bool) -> None:
    """Only a run's own `export` folder is replaced; any other must be new or empty."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file; name a new folder")
    if not may_replace and out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"--out {out}: the folder is not empty and is left alone; name a new one")


@contextmanager
def draft_folder(out: Path) -> Generator[Path]:
    """A folder beside `out` that takes its place when all went well; an earlier export stays otherwise."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=out.parent, prefix=".export-"))
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error.strerror}); name another folder") from error
    try:
        draft = place / out.name
        yield draft
        for path in draft.iterdir():
            path.chmod(0o644)  # the weights are written for their owner alone
        if out.is_dir():
            shutil.rmtree(out)
        draft.rename(out)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@task(name="save-policy", cache_policy=NO_CACHE, persist_result=False)
def save_policy(config: RunConfig, manifest: Json, policy_folder: Path, out: Path) -> str:
    """The version as config, bf16 safetensors and tokenizer in `out`; returns the digest of what was published."""
    model, tokenizer = load_policy(config.policy)
    wanted = Manifest.from_json(manifest)
    digest = PolicyReader(FolderObjects(policy_folder)).load(wanted, model, None).digest  # checked while loading
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return digest


@task(name="compare-policy", cache_policy=NO_CACHE, persist_result=False)
def compare_policy(config: RunConfig, folder: Path, index: Path, questions: Sequence[Question], version: int) -> Json:
    """Greedy turns of our sampler against plain `generate` of the reloaded folder, from the same token ids.

    Returns ``{"tokens": 412, "differences": []}``; a difference names the question, the turn and the position.
    """
    exported = config.policy.model_copy(update={"path": str(folder)})
    trajectories = _our_turns(config.model_copy(update={"policy": exported}), index, questions, version)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokens, differences = 0, []
    for trajectory in trajectories:
        for number, (prefix, expected) in enumerate(policy_turns(trajectory)):
            tokens += len(expected)
            place = _first_difference(model, prefix, expected)
            if place is not None:
                differences.append(f"question {trajectory.question_id!r}, turn {number}, token {place}")
    return {"tokens": tokens, "differences": differences}


def policy_turns(trajectory: Trajectory) -> list[tuple[list[int], list[int]]]:
    """Each turn of the policy as (all token ids before it, its token ids)."""
    turns: list[tuple[list[int], list[int]]] = []
    before: list[int] = []
    for span in trajectory.spans:
        ids = span.token_ids.tolist()
        if span.author is Author.POLICY:
            turns.append((list(before), ids))
        before += ids
    return turns


def _our_turns(config: RunConfig, index: Path, questions: Sequence[Question], version: int) -> list[Trajectory]:
    model, tokenizer = load_policy(config.policy)
    rollout = config.rollout
    sampler = TorchSampler(
        model,
        tokenizer,
        slots=min(rollout.slots, len(questions)),
        max_length=rollout.max_trajectory_tokens,
        temperature=rollout.temperature,
        policy_version=version,
    )
    tool = SearchTool(Bm25Index.open(index), rollout.top_k, config.prompt.passage)
    trajectories, _ = run_rollout(
        questions,
        sampler=sampler,
        tool=tool,
        tokenizer=tokenizer,
        config=rollout,
        prompt=config.prompt,
        group_size=1,
        step=version,
        seed=config.seed,
        greedy=True,
    )
    return trajectories


def _first_difference(model: Any, prefix: list[int], expected: list[int]) -> int | None:
    """Where greedy `generate` leaves `expected`; None when it does not, or only where two tokens tie."""
    generated = model.generate(
        torch.tensor([prefix]),
        max_new_tokens=len(expected),
        min_new_tokens=len(expected),
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
        eos_token_id=None,
    )
    found = generated.sequences[0, len(prefix) :].numpy()
    different = np.flatnonzero(found != np.asarray(expected))
    if not len(different):
        return None
    place = int(different[0])
    logits = generated.logits[place][0]
    return None if abs(float(logits[found[place]] - logits[expected[place]])) < TIE else place
