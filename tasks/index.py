"""The index phase: BM25 over the prepared corpus, and the report on what it can find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from seeker.config import RunConfig
from seeker.questions import read_documents, read_questions
from seeker.retrieval.bm25 import PASSES, Bm25Index, build_index
from seeker.retrieval.ceiling import ceiling_report, write_ceiling
from tasks.counting import counting


@task(name="index", task_run_name="index-{digest}", cache_policy=NO_CACHE, persist_result=False)
def index(config: RunConfig, digest: str, folder: str, cache_dir: str) -> dict[str, Any]:
    """Build the index of `folder`'s corpus in `cache_dir`, unless it stands there; ``{"index": folder name}``."""
    documents = read_documents(Path(folder) / "corpus.jsonl")
    with counting("indexing", PASSES * len(documents)) as progress:
        return {"index": build_index(documents, config.index, cache_dir, progress).name}


@task(name="ceiling", task_run_name="ceiling-{digest}", cache_policy=NO_CACHE, persist_result=False)
def ceiling(config: RunConfig, digest: str, folder: str, index_path: str) -> dict[str, Any]:
    """Write ceiling.json into `folder`."""
    splits = {name: read_questions(Path(folder) / f"{name}.jsonl") for name in ("train", "heldout")}
    with counting("asking", sum(len(questions) for questions in splits.values())) as progress:
        report = ceiling_report(splits, Bm25Index.open(index_path), config.rollout.top_k, progress)
    return {"sha256": write_ceiling(Path(folder) / "ceiling.json", report)}
