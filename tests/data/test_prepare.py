"""Preparation as a whole, its tasks called as plain functions.

1. Questions, corpus, index and ceiling stand in a folder named by inputs and settings; the handle names them.
2. Preparing twice does nothing; a changed input, setting or generator gives another folder.
3. The same corpus under other questions shares its index.
4. What was damaged or removed is made again.
5. Bad input stops before anything is written; skipped records are counted in the handle.
6. A world's sizes follow the limits, its splits are disjoint.
7. Several sources with a held-out file, and a corpus file of its own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import flows.prepare
from flows.prepare import Phases, prepare_in
from seeker.config import (
    CorpusConfig,
    IndexConfig,
    PolicyConfig,
    QuestionsConfig,
    RolloutConfig,
    RunConfig,
    SourceConfig,
)
from seeker.errors import ConfigError, DataError, RecordError
from seeker.questions import read_documents, read_questions
from seeker.retrieval.bm25 import Bm25Index
from tasks import corpus as corpus_tasks
from tasks import index as index_tasks
from tests.data.samples import hotpot, real_file, write_lines


class PlainPhases:
    """The tasks' bodies, and the order in which they were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def phases(self) -> Phases:
        bodies = {"corpus": corpus_tasks.corpus.fn, "index": index_tasks.index.fn, "ceiling": index_tasks.ceiling.fn}
        return Phases(**{name: self._noted(name, body) for name, body in bodies.items()})

    def _noted(self, name: str, body: Any) -> Any:
        def call(*arguments: Any) -> dict[str, Any]:
            self.called.append(name)
            return body(*arguments)

        return call


def configuration(questions: QuestionsConfig, **sections: Any) -> RunConfig:
    return RunConfig(policy=PolicyConfig(path="none"), questions=questions, **sections)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "questions.jsonl", [hotpot(number) for number in range(60)])


def named(path: Path, **changes: Any) -> QuestionsConfig:
    return QuestionsConfig(sources=(SourceConfig(path=str(path)),), **changes)


def test_everything_is_written_and_named(tmp_path: Path, source: Path) -> None:
    plain = PlainPhases()
    handle = prepare_in(tmp_path / "prepared", configuration(named(source)), plain.phases())
    assert plain.called == ["corpus", "index", "ceiling"]
    train, heldout = read_questions(handle["train"]), read_questions(handle["heldout"])
    assert handle["counts"] == {"train": len(train), "heldout": len(heldout), "corpus": 121}
    assert len(train) + len(heldout) == 60
    assert len(heldout) > 3
    assert len(read_documents(handle["corpus"])) == len(Bm25Index.open(handle["index"])) == 121
    ceiling = json.loads(Path(handle["ceiling"]).read_text())
    assert (ceiling["k"], ceiling["num_documents"]) == (3, 121)
    for name in ("train", "heldout", "corpus", "ceiling"):
        assert hashlib.sha256(Path(handle[name]).read_bytes()).hexdigest() == handle["sha256"][name]
        assert Path(handle[name]).parent == tmp_path / "prepared" / handle["digest"]
    json.dumps(handle)


def test_preparing_twice_does_nothing(tmp_path: Path, source: Path) -> None:
    first = prepare_in(tmp_path / "prepared", configuration(named(source)), PlainPhases().phases())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "prepared").rglob("*") if path.is_file()}
    again = PlainPhases()
    assert prepare_in(tmp_path / "prepared", configuration(named(source)), again.phases()) == first
    assert again.called == []
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "prepared").rglob("*") if path.is_file()}
    assert {path.name for path in after if after[path] != before.get(path)} <= {f".{first['digest']}.lock"}


def test_another_input_or_setting_is_another_folder(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(questions: QuestionsConfig | None = None, **sections: Any) -> str:
        return flows.prepare.preparation_digest(configuration(questions or named(source), **sections))

    digests = [
        digest(),
        digest(named(source, split_seed=1)),
        digest(index=IndexConfig(k1=1.2)),
        digest(rollout=RolloutConfig(top_k=5)),
        digest(QuestionsConfig(world_seed=1)),
    ]
    assert digest(reward={"f1": 0.5}) == digests[0]
    monkeypatch.setattr(flows.prepare, "_generator_digest", lambda: "other generator")
    digests.append(digest(QuestionsConfig(world_seed=1)))
    assert digest() == digests[0]
    write_lines(source, [hotpot(number) for number in range(61)])
    digests.append(digest())
    assert len(set(digests)) == len(digests)


def test_an_index_is_shared_by_equal_corpora(tmp_path: Path, source: Path) -> None:
    one = prepare_in(tmp_path / "prepared", configuration(named(source)), PlainPhases().phases())
    two = prepare_in(
        tmp_path / "prepared", configuration(named(source, num_train=5, num_heldout=3)), PlainPhases().phases()
    )
    assert one["digest"] != two["digest"]
    assert one["index"] == two["index"]
    assert two["counts"] == {"train": 5, "heldout": 3, "corpus": 121}


@pytest.mark.parametrize(
    ("harm", "called"),
    [("index", ["index"]), ("train", ["corpus", "index", "ceiling"]), ("all", ["corpus", "index", "ceiling"])],
)
def test_what_is_damaged_is_made_again(tmp_path: Path, source: Path, harm: str, called: list[str]) -> None:
    config = configuration(named(source))
    handle = prepare_in(tmp_path / "prepared", config, PlainPhases().phases())
    if harm == "train":
        Path(handle["train"]).write_bytes(b"")
    else:
        shutil.rmtree(handle["index"] if harm == "index" else tmp_path / "prepared")
    again = PlainPhases()
    assert prepare_in(tmp_path / "prepared", config, again.phases()) == handle
    assert again.called == called
    assert Bm25Index.open(handle["index"]).search("Film 3", 1)


@pytest.mark.parametrize(
    ("questions", "sections", "error"),
    [
        ({"heldout": "missing.jsonl"}, {}, DataError),
        ({}, {"corpus": CorpusConfig(path="missing.jsonl")}, DataError),
        ({}, {"index": IndexConfig(stemmer="klingon")}, ConfigError),
    ],
)
def test_what_is_named_is_checked_before_anything_is_read(
    tmp_path: Path, source: Path, questions: dict[str, Any], sections: dict[str, Any], error: type[Exception]
) -> None:
    plain = PlainPhases()
    with pytest.raises(error):
        prepare_in(tmp_path / "prepared", configuration(named(source, **questions), **sections), plain.phases())
    assert plain.called == []
    assert not (tmp_path / "prepared").exists()


def test_bad_records_stop_or_are_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "q.jsonl", [*(hotpot(number) for number in range(30)), hotpot(30, answer="")])
    plain = PlainPhases()
    with pytest.raises(RecordError, match=r"q.jsonl:31: field 'answer'"):
        prepare_in(tmp_path / "prepared", configuration(named(path)), plain.phases())
    assert not [each for each in (tmp_path / "prepared").iterdir() if each.is_dir()]
    handle = prepare_in(tmp_path / "prepared", configuration(named(path, skip_bad_records=True)), plain.phases())
    assert handle["num_skipped"] == 1
    assert "q.jsonl:31: field 'answer'" in handle["skipped"][0]
    assert sum(handle["counts"][name] for name in ("train", "heldout")) == 30


def test_a_world_is_prepared_in_the_sizes_asked_for(tmp_path: Path) -> None:
    config = configuration(QuestionsConfig(world_seed=3, num_train=40, num_heldout=30))
    handle = prepare_in(tmp_path / "prepared", config, PlainPhases().phases())
    train, heldout = read_questions(handle["train"]), read_questions(handle["heldout"])
    assert (len(train), len(heldout)) == (40, 30)
    titles = {document.title for document in read_documents(handle["corpus"])}
    assert all(titles.issuperset(question.supporting_titles) for question in train + heldout)
    assert not {question.text for question in train} & {question.text for question in heldout}


def test_sources_heldout_file_and_corpus_file(tmp_path: Path, source: Path) -> None:
    nq = [{"id": f"n{number}", "question": f"Who is {number}?", "golden_answers": ["A"]} for number in range(90)]
    heldout = write_lines(tmp_path / "heldout.jsonl", [hotpot(number) for number in range(100, 110)])
    rows = [{"id": str(number), "contents": f'"Title {number}"\ntext of {number}'} for number in range(8)]
    questions = QuestionsConfig(
        sources=(
            SourceConfig(path=str(source), share=2.0, name="hotpotqa"),
            SourceConfig(path=str(write_lines(tmp_path / "nq.jsonl", nq))),
        ),
        heldout=str(heldout),
    )
    corpus = CorpusConfig(path=str(write_lines(tmp_path / "corpus.jsonl", rows)))
    handle = prepare_in(tmp_path / "prepared", configuration(questions, corpus=corpus), PlainPhases().phases())
    assert handle["sources"] == {"hotpotqa": {"taken": 60, "of": 60}, "nq": {"taken": 30, "of": 90}}
    assert handle["counts"] == {"train": 90, "heldout": 10, "corpus": 8}
    without = questions.model_copy(update={"sources": questions.sources[1:], "heldout": None})
    with pytest.raises(DataError, match=r"the corpus is empty.*name a corpus file"):
        prepare_in(tmp_path / "prepared", configuration(without), PlainPhases().phases())


def test_a_question_of_both_files_stops_preparation(tmp_path: Path, source: Path) -> None:
    heldout = write_lines(tmp_path / "heldout.jsonl", [hotpot(100), hotpot(7, _id="new")])
    with pytest.raises(
        DataError, match=r"questions.jsonl:8 \(training\) and .*heldout.jsonl:2 \(held out\), same words"
    ):
        prepare_in(tmp_path / "prepared", configuration(named(source, heldout=str(heldout))), PlainPhases().phases())


def test_real_text_is_prepared(tmp_path: Path) -> None:
    config = configuration(named(real_file("hotpotqa_sample_300.jsonl")))
    handle = prepare_in(tmp_path / "prepared", config, PlainPhases().phases())
    assert handle["counts"] == {"train": 240, "heldout": 60, "corpus": 2958}
