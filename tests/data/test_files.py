"""Files -> records: the reader is chosen by content, and what cannot be read is named.

1.  JSON lines, a JSON list, Parquet, a folder saved by datasets and a hub name give the same question set.
2.  The extension plays no part; a byte-order mark and blank lines are passed over.
3.  A list longer than the reading chunk is read item by item, wherever the chunk's edge falls.
4.  Bad UTF-8, broken JSON and deep nesting are record errors with the line; a list that breaks off cannot be skipped.
5.  A repeated id names both places. Several bad records are named at once, up to five.
6.  Skipping leaves the bad records out, counts them and keeps the rest.
7.  Missing, empty, compressed files, tables of other columns and files without a usable record stop with a remedy.
8.  A set with splits asks for one of them; a hub set that cannot be loaded says what to check.
9.  Real text reads without one bad record.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import polars
import pytest

import seeker.questions.files as files
from seeker.errors import DataError, RecordError
from seeker.questions import load_documents, load_questions
from tests.data.samples import columns, hotpot, real_file, write_lines

RECORDS = [hotpot(number) for number in range(1, 4)]


def write(tmp_path: Path, form: str) -> Path:
    path = tmp_path / "questions.dat"
    if form == "lines":
        return write_lines(path, RECORDS)
    if form == "list":
        path.write_text(json.dumps(RECORDS, indent=2), encoding="utf-8")
    if form == "parquet":
        polars.DataFrame([columns(record) for record in RECORDS]).write_parquet(path)
    if form == "folder":
        datasets.Dataset.from_list([columns(record) for record in RECORDS]).save_to_disk(str(path))
    return path


@pytest.mark.parametrize("form", ["lines", "list", "parquet", "folder"])
def test_all_forms_read_alike(tmp_path: Path, form: str) -> None:
    found = load_questions(write(tmp_path, form))
    expected = load_questions(write_lines(tmp_path / "expected.jsonl", RECORDS))
    assert found.questions == expected.questions
    assert found.documents == expected.documents
    assert [question.id for question in found.questions] == ["q1", "q2", "q3"]
    assert len(found.documents) == 7  # two of each question and one that all share
    unit = "questions.dat:2" if form == "lines" else "questions.dat: record 2"
    assert str(found.places[1]).endswith(unit)


def test_a_hub_name_goes_to_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def scripted(name: str, config: str | None, *, split: str) -> datasets.Dataset:
        asked.append((name, config, split))
        return datasets.Dataset.from_list([columns(record) for record in RECORDS])

    monkeypatch.setattr(datasets, "load_dataset", scripted)
    found = load_questions("hub:hotpotqa/hotpot_qa:distractor:validation")
    load_questions("hub:hotpotqa/hotpot_qa")
    assert asked == [("hotpotqa/hotpot_qa", "distractor", "validation"), ("hotpotqa/hotpot_qa", None, "train")]
    assert found.questions == load_questions(write_lines(tmp_path / "expected.jsonl", RECORDS)).questions


def test_search_r1_parquet(tmp_path: Path) -> None:
    rows = [
        {"id": "train_0", "question": "Who?", "golden_answers": ["Ada"], "data_source": source, "prompt": [{"a": "b"}]}
        for source in ("nq", "hotpotqa")
    ]
    polars.DataFrame(rows).write_parquet(tmp_path / "train.parquet")
    found = load_questions(tmp_path / "train.parquet").questions
    assert [question.id for question in found] == ["nq/train_0", "hotpotqa/train_0"]
    assert found[0].answers == ("Ada",)


def test_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [RECORDS[0], "", "   ", RECORDS[1]])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [place.number for place in load_questions(path).places] == [1, 4]
    (tmp_path / "list.json").write_bytes(b"\xef\xbb\xbf \n" + json.dumps(RECORDS).encode())
    assert len(load_questions(tmp_path / "list.json").questions) == 3


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_lists_are_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(files, "_CHUNK_CHARS", chunk)
    path = tmp_path / "list.json"
    path.write_text(json.dumps(RECORDS, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [question.id for question in load_questions(path).questions] == ["q1", "q2", "q3"]
    path.write_text("[12, 34 , 5]", encoding="utf-8")
    assert [value for _, value in files.read_records(path)] == [12, 34, 5]


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        (b'{"_id": "x", "question": "\xff?"}', "(line)", "valid UTF-8"),
        (b'{"_id": "x", ', "(line)", "one JSON object"),
        (b"[" * 100_000, "(line)", "one JSON object"),
        (b'"text"', "(record)", "a JSON object"),
    ],
)
def test_unreadable_lines_are_named(tmp_path: Path, line: bytes, field: str, expected: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [RECORDS[0]])
    path.write_bytes(path.read_bytes() + line + b"\n" + json.dumps(RECORDS[1]).encode())
    with pytest.raises(RecordError, match=expected) as caught:
        load_questions(path)
    assert (caught.value.line, caught.value.field) == (2, field)
    assert len(load_questions(path, skip_bad_records=True).questions) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'[{"_id": "q1"', "a JSON value"),
        (b'[{"_id": "q1"} {}]', "',' and a JSON value"),
        (b"[" * 100_000, "a JSON value"),
        (b"[] []", "nothing after the list"),
    ],
)
def test_a_broken_list_stops_also_when_skipping(tmp_path: Path, text: bytes, expected: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(DataError, match=rf"a.json: record \d+: expected .*{expected}.*repair the file"):
        load_questions(path, skip_bad_records=True)


def test_bad_utf8_in_a_list_is_one_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(json.dumps([RECORDS[0], hotpot(9, level="@"), RECORDS[1]]).encode().replace(b"@", b"\xff"))
    with pytest.raises(RecordError, match=r"a.json: record 2: field '\(record\)': expected valid UTF-8"):
        load_questions(path)
    assert len(load_questions(path, skip_bad_records=True).questions) == 2


def test_a_repeated_id_names_both_places(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [RECORDS[0], RECORDS[1], RECORDS[0]])
    with pytest.raises(RecordError, match=r"a.jsonl:3: field 'id'.*first at .*a.jsonl:1\), found 'q1'"):
        load_questions(path)
    row = {"id": "1", "title": "T", "text": "text"}
    with pytest.raises(RecordError, match="no other record has"):
        load_documents(write_lines(tmp_path / "c.jsonl", [row, row]))


def test_bad_records_are_named_together_up_to_five(tmp_path: Path) -> None:
    bad = [hotpot(number, answer="") for number in range(10, 18)]
    with pytest.raises(RecordError) as caught:
        load_questions(write_lines(tmp_path / "a.jsonl", [RECORDS[0], *bad]))
    assert caught.value.line == 2
    assert [f"a.jsonl:{line}:" in str(caught.value) for line in range(2, 9)] == [True] * 5 + [False] * 2


def test_skipping_counts_what_it_leaves_out(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [hotpot(8, answer=""), RECORDS[0], "{", RECORDS[0], RECORDS[1]])
    found = load_questions(path, skip_bad_records=True)
    assert [question.id for question in found.questions] == ["q1", "q2"]
    assert [(error.line, error.field) for error in found.skipped] == [(1, "answer"), (3, "(line)"), (4, "id")]


def test_progress_counts_records(tmp_path: Path) -> None:
    seen: list[int] = []
    load_questions(write(tmp_path, "lines"), progress=seen.append)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read .*name an existing file"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"[]", "no record in it"),
        (gzip.compress(b"{}"), "unpack it"),
        (b"PAR1 is not enough", "cannot be read as Parquet"),
    ],
)
def test_files_without_questions_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "questions.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_questions(path)


@pytest.mark.parametrize("form", ["parquet", "folder"])
def test_tables_of_other_columns_name_them(tmp_path: Path, form: str) -> None:
    path, columns = tmp_path / "table", {"prompt": ["who?"], "reward_model": ["x"]}
    if form == "parquet":
        polars.DataFrame(columns).write_parquet(path)
    else:
        datasets.Dataset.from_dict(columns).save_to_disk(str(path))
    with pytest.raises(DataError, match=r"'question' and 'answer', found prompt, reward_model; rename them"):
        load_questions(path)


def test_nothing_usable_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "test.jsonl", [hotpot(1, answer=None), hotpot(2, answer=None)])
    with pytest.raises(DataError, match=r"all 2 records are bad.*published without answers"):
        load_questions(path, skip_bad_records=True)


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    one = datasets.Dataset.from_list([columns(record) for record in RECORDS])
    datasets.DatasetDict({"train": one, "validation": one}).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(DataError, match=r"holds the splits \['train', 'validation'\]; name the folder of one"):
        load_questions(tmp_path / "both")
    assert len(load_questions(tmp_path / "both" / "validation").questions) == 3
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="datasets cannot load it"):
        load_questions(tmp_path / "other")


@pytest.mark.parametrize("error", [ConnectionError, datasets.exceptions.DatasetGenerationError])
def test_a_hub_set_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"no route.*name a local file"):
        load_questions("hub:hotpotqa/hotpot_qa")


@pytest.mark.parametrize(
    ("name", "num_questions", "num_documents"),
    [
        ("hotpotqa_sample_300.jsonl", 300, 2958),
        ("hotpotqa_official_train_100.jsonl", 100, 994),
        ("musique_official_train_100.jsonl", 100, 1890),
        ("bamboogle_test_125.jsonl", 125, 0),
    ],
)
def test_real_questions(name: str, num_questions: int, num_documents: int) -> None:
    found = load_questions(real_file(name))
    assert (len(found.questions), len(found.documents), found.skipped) == (num_questions, num_documents, [])
    titles = {document.title for document in found.documents}
    assert all(titles.issuperset(question.supporting_titles) for question in found.questions)
    assert not any("&amp;" in title or "&quot;" in title for title in titles)


def test_real_corpus() -> None:
    found = load_documents(real_file("corpus_searchr1_example_10.jsonl")).documents
    assert (len(found), found[0].title) == (10, "Evan Morris")
    assert found[0].text.startswith("Evan Morris Evan L. Morris (January 26, 1977")
