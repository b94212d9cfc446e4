"""From the configuration to checked splits and their paragraphs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seeker.config import QuestionsConfig, SourceConfig
from seeker.errors import DataError, RecordError
from seeker.questions.corpus import merge_documents
from seeker.questions.fields import Place
from seeker.questions.files import HUB, check_source
from seeker.questions.loading import Progress, QuestionSet, load_questions
from seeker.questions.mixing import Share, mix_sources
from seeker.questions.splits import check_splits, limit_questions, split_questions
from seeker.types import Document, Question

World = tuple[list[Question], list[Question], list[Document]]  # training, held-out, documents
MakeWorld = Callable[[QuestionsConfig], World]


@dataclass(frozen=True, slots=True)
class Splits:
    """Checked questions of both splits, the context paragraphs of all that was read, and what was taken or left out.

    Example: ``taken={"nq": (200, 79168), "hotpotqa": (100, 100)}``: 200 of 79,168 NQ questions are in the mix.
    """

    train: QuestionSet
    heldout: QuestionSet
    documents: list[Document]
    taken: dict[str, tuple[int, int]]
    skipped: list[RecordError]


def read_splits(config: QuestionsConfig, make_world: MakeWorld, progress: Progress | None = None) -> Splits:
    """The questions that `config` names. Limits choose questions only: the paragraphs of the whole sets stay."""
    if config.world_seed is not None:
        return _world_splits(config, make_world)
    mix = mix_sources([_read_source(source, config, progress) for source in config.sources], config.split_seed)
    if config.heldout is None:
        train, heldout = split_questions(mix.questions, config.heldout_share, config.split_seed)
        skipped = mix.questions.skipped
    else:
        train = mix.questions
        heldout = load_questions(config.heldout, skip_bad_records=config.skip_bad_records, progress=progress)
        skipped = train.skipped + heldout.skipped
    check_splits(train, heldout)
    return Splits(
        limit_questions(train, config.num_train, config.split_seed),
        limit_questions(heldout, config.num_heldout, config.split_seed),
        merge_documents([train.documents, heldout.documents]),
        mix.counts,
        skipped,
    )


def check_inputs(config: QuestionsConfig, corpus: str | None) -> None:
    """Every named file is there and of a known kind: looked at before any of them is read whole."""
    for source in named_inputs(config, corpus):
        check_source(source)


def named_inputs(config: QuestionsConfig, corpus: str | None) -> list[str]:
    """All files, folders and hub sets that the configuration names."""
    return [source.path for source in config.sources] + [each for each in (config.heldout, corpus) if each]


def input_digests(config: QuestionsConfig, corpus: str | None) -> dict[str, str]:
    """sha256 of every named file (of a folder: of its files); a hub set is known by its name alone."""
    return {source: _digest(Path(source)) for source in named_inputs(config, corpus) if not source.startswith(HUB)}


def _read_source(source: SourceConfig, config: QuestionsConfig, progress: Progress | None) -> Share:
    questions = load_questions(source.path, skip_bad_records=config.skip_bad_records, progress=progress)
    return Share(source.name or Path(source.path).stem, source.share, questions)


def _world_splits(config: QuestionsConfig, make_world: MakeWorld) -> Splits:
    train, heldout, documents = make_world(config)
    name = f"world {config.world_seed}"
    splits = [_as_set(f"{name}, training", train), _as_set(f"{name}, held-out", heldout)]
    for questions in splits:
        _refuse_repeated(questions)
    check_splits(*splits)
    return Splits(splits[0], splits[1], documents, {name: (len(train), len(train))}, [])


def _as_set(name: str, questions: list[Question]) -> QuestionSet:
    if not questions:
        raise DataError(f"{name}: no questions; set questions.num_train and questions.num_heldout to 1 or more")
    return QuestionSet(name, questions, [Place(name, number, "question") for number in range(1, len(questions) + 1)])


def _refuse_repeated(questions: QuestionSet) -> None:
    identity, count = Counter(question.id for question in questions.questions).most_common(1)[0]
    if count > 1:
        raise DataError(
            f"{questions.name}: {count} questions have the id {identity!r}; the generator must not repeat ids"
        )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
        digest.update(str(file.relative_to(path)).encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
