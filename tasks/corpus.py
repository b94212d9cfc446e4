"""The corpus phase: questions and documents read, checked, split and written as JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from seeker.config import QuestionsConfig, RunConfig
from seeker.questions import load_documents, read_splits, require_documents, write_documents, write_questions
from seeker.questions.preparing import Splits, World
from tasks.counting import counting

MAX_SHOWN_SKIPS = 5


@task(name="corpus", task_run_name="corpus-{digest}", cache_policy=NO_CACHE, persist_result=False)
def corpus(config: RunConfig, digest: str, folder: str) -> dict[str, Any]:
    """Write train.jsonl, heldout.jsonl and corpus.jsonl into `folder`; their sha256, counts and what was left out."""
    return write_corpus(config, Path(folder))


def write_corpus(config: RunConfig, folder: Path) -> dict[str, Any]:
    """The task's body. Example: ``{"sha256": {"train": "9f..."}, "counts": {"train": 240, ...}, "num_skipped": 0}``."""
    with counting("reading records") as progress:
        splits = read_splits(config.questions, world, progress)
        documents, skipped = splits.documents, list(splits.skipped)
        if config.corpus.path is not None:
            read = load_documents(
                config.corpus.path, skip_bad_records=config.questions.skip_bad_records, progress=progress
            )
            documents, skipped = read.documents, skipped + read.skipped
    digests = {
        "train": write_questions(folder / "train.jsonl", splits.train.questions),
        "heldout": write_questions(folder / "heldout.jsonl", splits.heldout.questions),
        "corpus": write_documents(folder / "corpus.jsonl", require_documents(documents)),
    }
    return {
        "sha256": digests,
        "counts": _counts(splits) | {"corpus": len(documents)},
        "sources": {name: {"taken": taken, "of": of} for name, (taken, of) in splits.taken.items()},
        "num_skipped": len(skipped),
        "skipped": [error.summary() for error in skipped[:MAX_SHOWN_SKIPS]],
    }


def world(config: QuestionsConfig) -> World:
    """The generated world of `config.world_seed`, in the sizes that the limits name."""
    from data.world import generate_world

    assert config.world_seed is not None
    sizes = {"num_train": config.num_train, "num_heldout": config.num_heldout}
    named: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    made = generate_world(config.world_seed, **named)
    return made.train, made.heldout, made.documents


def _counts(splits: Splits) -> dict[str, int]:
    return {"train": len(splits.train.questions), "heldout": len(splits.heldout.questions)}
