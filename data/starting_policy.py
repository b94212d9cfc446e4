"""The starting policy of the laptop preset: made from demonstrations, written with its digest and its command."""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from data.architecture import make_model
from data.demonstrations import CLEAN, Demonstrator, Noise, Search
from data.entities import Half, Sizes, make_half
from data.kinds import make_plans
from data.supervised import Example, Phase, encode, train
from data.tokenizer import train_tokenizer
from data.words import Pool
from seeker.config import IndexConfig
from seeker.retrieval.bm25 import Bm25Index, build_index
from seeker.types import Document

READ = Phase("read", steps=1200, learning_rate=4e-3, environment_weight=0.3)
MISLEAD = Phase("mislead", steps=300, learning_rate=1e-3, environment_weight=0.05)
NOISE = Noise(no_search=0.1, bad_query=0.2, recover=0.5, stop_early=0.75, wrong_hop=0.2, wrong_fact=0.2)
TOP_K = 2  # passages, as in the laptop preset
TOKENIZER_WORLDS = range(1000, 1040)
FIRST_WORLD, WORLDS_PER_SEED = 100_000, 10_000  # apart from the worlds of presets and tests
MISLEAD_OFFSET = 5_000
QUESTIONS_PER_WORLD = 1500
# More of what is hard to read: comparing takes many examples.
SHARES = {"director": 0.1, "birthplace": 0.13, "birth_year": 0.13, "spouse": 0.13, "studio_town": 0.13, "region": 0.13}
SHARES["comparison"] = 1 - sum(SHARES.values())
WEIGHTS, DIGEST = "model.safetensors", "DIGEST.json"


def make_policy(seed: int, folder: Path, read: Phase = READ, mislead: Phase = MISLEAD, report: Any = print) -> Path:
    """Train the starting policy of `seed` and write it to `folder` in transformers' layout, with its digest."""
    torch.set_num_threads(1)  # on a busy machine two threads are far slower than one
    rng = random.Random(f"policy/{seed}")
    tokenizer = train_tokenizer(tokenizer_texts())
    model = make_model(len(tokenizer), seed)
    first_world = FIRST_WORLD + seed * WORLDS_PER_SEED
    with tempfile.TemporaryDirectory() as indexes:
        for phase, noise, world in ((read, CLEAN, first_world), (mislead, NOISE, first_world + MISLEAD_OFFSET)):
            train(model, examples(world, noise, tokenizer, rng, Path(indexes)), phase, rng, report)
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_digest(folder, seed)
    return folder


def tokenizer_texts() -> Iterator[str]:
    """Documents, questions and demonstrations of many training halves: names are too many to become entries."""
    for seed in TOKENIZER_WORLDS:
        half = make_half(seed, Pool.TRAIN, Sizes())
        rng = random.Random(seed)
        yield from (f" {document.text}" for document in half.documents)
        for plan in make_plans(half, rng, 300):
            for segment in Demonstrator(half, lambda _: (), NOISE, rng).write(plan):
                yield segment.text


def examples(world: int, noise: Noise, tokenizer: Any, rng: random.Random, indexes: Path) -> Iterator[Example]:
    """Encoded demonstrations without end, over the training halves of one world after the other."""
    while True:
        half = make_half(world, Pool.TRAIN, Sizes())
        demonstrator = Demonstrator(half, searcher(half, indexes), noise, rng)
        for plan in make_plans(half, rng, QUESTIONS_PER_WORLD, SHARES):
            yield encode(demonstrator.write(plan), tokenizer)
        world += 1


def searcher(half: Half, folder: Path) -> Search:
    """Search over the documents of one half alone; remembers its queries."""
    index = Bm25Index.open(build_index(half.documents, IndexConfig(), folder))
    seen: dict[str, Sequence[Document]] = {}

    def search(query: str) -> Sequence[Document]:
        if query not in seen:
            seen[query] = [passage.document for passage in index.search(query, TOP_K)]
        return seen[query]

    return search


def write_digest(folder: Path, seed: int) -> None:
    """`DIGEST.json`: what the weights are and how to make them again."""
    facts = {
        "weights": WEIGHTS,
        "sha256": sha256_of(folder / WEIGHTS),
        "command": f"python -m flows.warm_start --seed {seed} --out policies/seed-{seed}",
        "seed": seed,
        "torch": torch.__version__,
        "note": "another processor or torch version rounds otherwise: the policy is alike, its digest is not",
    }
    (folder / DIGEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
