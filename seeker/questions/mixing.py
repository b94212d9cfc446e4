"""Several sources of training questions merged by share (NQ with HotpotQA as in Search-R1, say)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seeker.errors import ConfigError
from seeker.questions.corpus import merge_documents
from seeker.questions.fields import Place
from seeker.questions.loading import QuestionSet
from seeker.questions.text import unit_hash
from seeker.types import Question


@dataclass(frozen=True, slots=True)
class Share:
    """One source of a mix; shares are relative. Example: ``Share("nq", 2.0, questions)`` beside a share of 1.0."""

    name: str
    share: float
    questions: QuestionSet


@dataclass(frozen=True, slots=True)
class Mix:
    """The merged set and what each source gave, of how many: ``counts={"nq": (200, 79168), "hotpot": (100, 100)}``."""

    questions: QuestionSet
    counts: dict[str, tuple[int, int]]


def mix_sources(sources: Sequence[Share], seed: int) -> Mix:
    """The largest mix that has the given shares; questions are chosen and ordered by a seeded hash of their ids.

    One source comes back as it is. With several, the source's name is put before each id, since ids of different
    sets collide, and becomes the question's `source`.
    """
    _check_names(sources)
    if len(sources) == 1:
        only = sources[0]
        total = len(only.questions.questions)
        return Mix(only.questions, {only.name: (total, total)})
    counts = _counts(sources)
    chosen: list[tuple[float, Question, Place]] = []
    for source, count in zip(sources, counts, strict=True):
        chosen += _choose(source, count, seed)
    chosen.sort(key=lambda item: (item[0], item[1].id))
    available = [len(source.questions.questions) for source in sources]
    names = [source.name for source in sources]
    merged = QuestionSet(
        name="+".join(names),
        questions=[question for _, question, _ in chosen],
        places=[place for _, _, place in chosen],
        documents=merge_documents(source.questions.documents for source in sources),
        skipped=[error for source in sources for error in source.questions.skipped],
    )
    return Mix(merged, dict(zip(names, zip(counts, available, strict=True), strict=True)))


def _counts(sources: Sequence[Share]) -> list[int]:
    """Questions per source: the source that runs out first sets the size, and gives all it has."""
    scale = min(len(source.questions.questions) / source.share for source in sources)
    # Products such as 3 / 0.3 * 0.3 may end a hair below a whole number.
    return [max(1, int(scale * source.share + 1e-9)) for source in sources]


def _choose(source: Share, count: int, seed: int) -> list[tuple[float, Question, Place]]:
    named = [
        (f"{source.name}/{question.id}", question, place)
        for question, place in zip(source.questions.questions, source.questions.places, strict=True)
    ]
    ranked = sorted((unit_hash(seed, "mix", name), name, at) for at, (name, _, _) in enumerate(named))
    return [
        (unit_hash(seed, "order", name), replace(named[at][1], id=name, source=source.name), named[at][2])
        for _, name, at in ranked[:count]
    ]


def _check_names(sources: Sequence[Share]) -> None:
    if not sources:
        raise ConfigError("questions.sources: no source is named; name at least one")
    doubled = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
    if doubled:
        raise ConfigError(
            f"questions.sources: the name {doubled[0]!r} is used twice; give each source a name of its own"
        )
