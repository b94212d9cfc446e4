"""One record -> question and documents.

1.  List pairs and columns, `id` and `_id`, give the same question and documents.
2.  HTML escapes in titles are resolved alike in context and supporting facts.
3.  Sentences keep their spacing; where none brings a space, one is put between them.
4.  Answers: `answer`, `golden_answers` (list or string) and `answer_aliases`, each once, in this order.
5.  A paragraph may be one string; the same paragraph in two questions is the same document.
6.  Search-R1's `data_source` is put before the id; FlashRAG's `metadata` holds context and facts.
7.  A corpus row is `{id, contents}` or `{id, title, text}`.
8.  A bad field is a RecordError with file, line, field, value and remedy.
9.  Any JSON value in any field gives a question or a RecordError, never another exception (property).
10. A RecordError survives pickling, as it travels between processes.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.errors import RecordError
from seeker.questions import parse_document, parse_question
from seeker.questions.fields import Place
from tests.data.samples import columns, hotpot

PLACE = Place("some.jsonl", 7)
TRAPS = st.sampled_from(["\ud800", "", " ", "&nbsp;"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | TRAPS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("_id", "id", "question", "answer", "golden_answers", "answer_aliases", "type", "supporting_facts", "context")
NESTED = st.fixed_dictionaries({}, optional=dict.fromkeys(("title", "sentences", "content", "sent_id"), JSON))


def test_both_layouts_agree() -> None:
    assert parse_question(hotpot(), PLACE) == parse_question(columns(hotpot()), PLACE)
    question, documents = parse_question(hotpot(), PLACE)
    assert (question.id, question.answers, question.kind) == ("q1", ("Town 1",), "bridge")
    assert question.supporting_titles == ("Film 1", "Person 1")
    assert [document.title for document in documents] == ["Film 1", "Person 1", "Shared & known"]


def test_titles_are_unescaped_on_both_sides() -> None:
    record = hotpot(
        context=[["AT&amp;T &quot;Park&quot;", ["A park."]]], supporting_facts=[["AT&T &quot;Park&quot;", 0]]
    )
    question, documents = parse_question(record, PLACE)
    assert question.supporting_titles == (documents[0].title,) == ('AT&T "Park"',)


def test_sentences_are_joined_as_they_were_written() -> None:
    with_spaces = hotpot(context=[["T", ["One.", " Two.", "'quoted'"]]])
    without = hotpot(context=[["T", ["One.", "Two."]]])
    assert parse_question(with_spaces, PLACE)[1][0].text == "One. Two.'quoted'"
    assert parse_question(without, PLACE)[1][0].text == "One. Two."


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"answer": "A", "answer_aliases": ["B", "A"]}, ("A", "B")),
        ({"answer": None, "golden_answers": ["A", "B", "A"]}, ("A", "B")),
        ({"answer": None, "golden_answers": "A"}, ("A",)),
        ({"answer": "A", "golden_answers": ["B"], "answer_aliases": ["C"]}, ("A", "B", "C")),
    ],
)
def test_answers_are_gathered(fields: dict[str, Any], answers: tuple[str, ...]) -> None:
    assert parse_question(hotpot(**fields), PLACE)[0].answers == answers


def test_a_paragraph_is_one_document_wherever_it_stands() -> None:
    one = parse_question(hotpot(1, context=[["T", "One. Two."]]), PLACE)[1]
    two = parse_question(hotpot(2, context=[["T", ["One.", " Two."]]]), PLACE)[1]
    other = parse_question(hotpot(3, context=[["T", "One. Three."]]), PLACE)[1]
    assert one == two
    assert one[0].id != other[0].id


def test_search_r1_and_flashrag_records() -> None:
    plain = {"id": "train_0", "question": "Who?", "golden_answers": ["Ada"], "data_source": "nq", "metadata": None}
    question, documents = parse_question(plain, PLACE)
    assert (question.id, question.source, documents) == ("nq/train_0", "nq", [])
    layout = columns(hotpot())
    metadata = {"type": "bridge", "supporting_facts": layout["supporting_facts"]}
    metadata["context"] = {"title": layout["context"]["title"], "content": layout["context"]["sentences"]}
    nested = plain | {"metadata": metadata}
    assert parse_question(nested, PLACE)[0].supporting_titles == ("Film 1", "Person 1")
    assert parse_question(nested, PLACE)[1] == parse_question(hotpot(), PLACE)[1]


def test_corpus_rows() -> None:
    row = parse_document({"id": 3, "contents": '"Velm"\nVelm is a town.\nIn Oru.'}, PLACE)
    assert (row.id, row.title, row.text) == ("3", "Velm", "Velm is a town.\nIn Oru.")
    assert parse_document({"id": "3", "title": "Velm", "text": "Velm is a town.\nIn Oru."}, PLACE) == row


@pytest.mark.parametrize(
    ("changes", "field", "found"),
    [
        ({"question": None}, "question", "nothing"),
        ({"question": "  "}, "question", "'  '"),
        ({"answer": ""}, "answer", "''"),
        ({"answer": None}, "answer", "nothing"),
        ({"answer": 1999}, "answer", "1999"),
        ({"answer": ["A"]}, "answer", "['A']"),
        ({"answer": None, "golden_answers": []}, "golden_answers", "[]"),
        ({"answer_aliases": "B"}, "answer_aliases", "'B'"),
        ({"_id": None}, "id", "nothing"),
        ({"_id": True}, "id", "True"),
        ({"type": 3}, "type", "3"),
        ({"context": [["T"]]}, "context", "['T']"),
        ({"context": [["T", 3]]}, "context", "3"),
        ({"context": [["T", ["a", None]]]}, "context", "None"),
        ({"context": [["", ["a"]]]}, "context", "''"),
        ({"context": {"title": ["T"], "sentences": []}}, "context", "1 and 0 items"),
        ({"context": {"title": ["T"]}}, "context.sentences", "nothing"),
        ({"supporting_facts": [["T", 0, 1]]}, "supporting_facts", "['T', 0, 1]"),
        ({"question": "bad \udc80"}, "question", "bad"),
    ],
)
def test_bad_fields_are_named(changes: dict[str, Any], field: str, found: str) -> None:
    with pytest.raises(RecordError) as caught:
        parse_question(hotpot(**changes), PLACE)
    message = str(caught.value)
    assert caught.value.field == field
    assert found in message
    assert message.startswith("some.jsonl:7: ")
    assert "--skip-bad-records" in message


def test_the_unpublished_answers_of_the_test_set_are_explained() -> None:
    with pytest.raises(RecordError, match="test set is published without answers: use its train or validation set"):
        parse_question(hotpot(answer=None, supporting_facts=None), PLACE)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"contents": '"T"\ntext'}, "id"),
        ({"id": "1", "contents": "no line break"}, "contents"),
        ({"id": "1", "contents": '""\ntext'}, "contents"),
        ({"id": "1", "title": "T"}, "text"),
        ({"id": "1", "title": "T", "text": ""}, "text"),
        ([], "(record)"),
    ],
)
def test_bad_corpus_rows_are_named(row: Any, field: str) -> None:
    with pytest.raises(RecordError) as caught:
        parse_document(row, PLACE)
    assert caught.value.field == field


@given(name=st.sampled_from(FIELDS), value=JSON | NESTED | st.lists(st.tuples(JSON, JSON).map(list), max_size=2))
def test_any_value_in_any_field_is_a_question_or_a_record_error(name: str, value: Any) -> None:
    try:
        question, documents = parse_question(hotpot() | {name: value}, PLACE)
    except RecordError:
        return
    texts = [question.id, question.text, *question.answers, *(document.title for document in documents)]
    assert all(text.strip() and text.encode() for text in texts)
    assert question.answers


@given(value=JSON)
def test_any_value_as_a_record_is_a_question_or_a_record_error(value: Any) -> None:
    for parse in (parse_question, parse_document):
        with pytest.raises(RecordError):
            parse(value, PLACE)


@given(name=st.sampled_from(["id", "contents", "title", "text"]), value=JSON)
def test_any_value_in_a_corpus_row_is_a_document_or_a_record_error(name: str, value: Any) -> None:
    for row in ({"id": "1", "contents": '"T"\ntext'}, {"id": "1", "title": "T", "text": "text"}):
        try:
            document = parse_document(row | {name: value}, PLACE)
        except RecordError:
            continue
        assert document.id
        assert document.title
        assert document.text


def test_record_errors_survive_pickling() -> None:
    error = RecordError("a.json", 3, "answer", "", "a non-empty string", "record", ("a.json: record 4: ...",))
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert str(error).startswith("a.json: record 3: field 'answer': expected a non-empty string, found ''; fix")
    assert copy.line == 3
