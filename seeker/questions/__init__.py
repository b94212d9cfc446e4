"""Questions and corpora: reading, checking, mixing, splitting, storing. Importing it needs no polars or datasets."""

from seeker.questions.corpus import corpus_digest, merge_documents, read_documents, require_documents, write_documents
from seeker.questions.files import check_source, read_records
from seeker.questions.loading import Corpus, QuestionSet, load_documents, load_questions
from seeker.questions.mixing import Mix, Share, mix_sources
from seeker.questions.preparing import Splits, check_inputs, input_digests, read_splits
from seeker.questions.records import parse_document, parse_question
from seeker.questions.splits import check_splits, limit_questions, split_questions
from seeker.questions.storing import read_questions, write_questions

__all__ = [
    "Corpus",
    "Mix",
    "QuestionSet",
    "Share",
    "Splits",
    "check_inputs",
    "check_source",
    "check_splits",
    "corpus_digest",
    "input_digests",
    "limit_questions",
    "load_documents",
    "load_questions",
    "merge_documents",
    "mix_sources",
    "parse_document",
    "parse_question",
    "read_documents",
    "read_questions",
    "read_records",
    "read_splits",
    "require_documents",
    "split_questions",
    "write_documents",
    "write_questions",
]
