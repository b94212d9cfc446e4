"""BM25 over a corpus: built once per corpus and settings, memory-mapped by every executor of a node."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from seeker.config import IndexConfig
from seeker.errors import DataError, RetrievalError
from seeker.questions.corpus import corpus_digest
from seeker.retrieval.documents import DocumentStore, write_store
from seeker.retrieval.memory import check_build_memory
from seeker.retrieval.storage import DamagedFolderError, check_folder, make_folder
from seeker.retrieval.words import Words, make_words
from seeker.types import Document, Passage

_bm25s: Any = importlib.import_module("bm25s")  # as Any: it ships no types
logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets DEBUG, which reaches every handler
FORMAT = 1  # raised when files or scores change their meaning
PASSES = 4  # over the documents: into words, then three by bm25s
T = TypeVar("T")
VOCABULARY_FILE = "vocabulary.npy"


def build_index(
    documents: Sequence[Document],
    config: IndexConfig,
    cache_dir: str | Path,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """The index of `documents`, in a folder named by corpus, settings and versions; an intact one is left alone.

    `progress` is called with the number of documents gone through so far, of `PASSES` times their number.
    """
    digest = corpus_digest(documents)
    facts = {"format": FORMAT, "corpus": digest, "settings": config.model_dump(), "versions": index_versions()}
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    folder = Path(cache_dir) / name

    def fill(temporary: Path) -> dict[str, Any]:
        vocabulary_size = _write_index(temporary, documents, config, progress or _ignore)
        return facts | {"num_documents": len(documents), "num_words": vocabulary_size}

    make_folder(folder, fill)
    return folder


def _write_index(
    folder: Path, documents: Sequence[Document], config: IndexConfig, progress: Callable[[int], None]
) -> int:
    if not documents:
        raise DataError("the corpus is empty; name a corpus file with at least one document")
    check_build_memory(documents)
    words = make_words(config)
    counted = _Counted(progress)
    tokenised = [words(f"{document.title}\n{document.text}") for document in counted.through(documents)]
    token_hashes, rank = _vocabulary(tokenised)
    if not rank:
        raise DataError("no document of the corpus holds a word that can be searched; check index.stopwords")
    scorer = _bm25s.BM25(k1=config.k1, b=config.b, method="lucene", backend="numpy")
    token_ids = counted.listing([[rank[word] for word in document] for document in tokenised])
    scorer.index((token_ids, rank), create_empty_token=False, show_progress=False)
    scorer.vocab_dict = {}  # words are found through their hashes, which can be memory-mapped
    scorer.save(str(folder), show_progress=False)
    np.save(folder / VOCABULARY_FILE, token_hashes)
    write_store(folder, documents)
    return len(rank)


def _ignore(_: int) -> None:
    """Progress that nobody watches."""


class _Counted:
    """Counts items as they are gone through, over several passes."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._done = 0

    def through(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            yield item
            self._done += 1
            self._progress(self._done)

    def listing(self, items: list[list[int]]) -> list[list[int]]:
        """A list that counts whoever iterates over it: bm25s takes three passes and reports none."""
        through = self.through

        class Counting(list[list[int]]):
            def __iter__(self) -> Iterator[list[int]]:
                return through(super().__iter__())

        return Counting(items)


def _vocabulary(tokenised: Sequence[Sequence[str]]) -> tuple[NDArray[np.uint64], dict[str, int]]:
    """Sorted hashes of all words, and each word's rank in them, which is its token id."""
    vocabulary = {word for document in tokenised for word in document}
    by_hash = {_hash(word): word for word in vocabulary}
    hashes: NDArray[np.uint64] = np.array(sorted(by_hash), np.uint64)
    rank = {by_hash[value]: at for at, value in enumerate(hashes.tolist())}
    if len(rank) != len(vocabulary):
        raise DataError("two words of the corpus share a 64-bit hash; change a setting of the index, or one document")
    return hashes, rank


def _hash(word: str) -> int:
    return xxhash.xxh3_64_intdigest(word.encode())


def index_versions() -> dict[str, str]:
    """Versions of the packages that decide the scores."""
    return {name: importlib.metadata.version(name) for name in ("bm25s", "PyStemmer")}


class Bm25Index:
    """A read-only index. Made by `open`; holds mapped arrays and a few kilobytes of its own."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.digest: str = manifest["digest"]
        self.documents = DocumentStore(folder)
        self._words: Words = make_words(IndexConfig(**manifest["settings"]))
        self._hashes: NDArray[np.uint64] = np.load(folder / VOCABULARY_FILE, mmap_mode="r").view(np.ndarray)  # [V]
        self._scorer = _bm25s.BM25.load(str(folder), mmap=True, load_vocab=False, show_progress=False)
        scores = self._scorer.scores
        for name in ("data", "indices", "indptr"):
            scores[name] = scores[name].view(np.ndarray)  # plain arrays over the mapped pages slice faster

    @classmethod
    def open(cls, path: str | Path, *, digests: bool = True) -> Bm25Index:
        """Map the index at `path`, after a check of its files against the manifest."""
        folder = Path(path)
        try:
            manifest = check_folder(folder, digests=digests)
            if manifest["format"] != FORMAT:
                raise DamagedFolderError(f"{folder}: has format {manifest['format']}, this program reads {FORMAT}")
            return cls(folder, manifest)
        except (DamagedFolderError, OSError, ValueError, KeyError) as error:
            raise RetrievalError(
                f"index is damaged: {error}; run `seeker prepare` again, it rebuilds the index"
            ) from error

    def __len__(self) -> int:
        return len(self.documents)

    def search(self, query: str, k: int) -> list[Passage]:
        """The `k` best documents that share a word with `query`, best first; equal scores in corpus order.

        Example: a query of stop words alone gives ``[]``.
        """
        token_ids = self._token_ids(query)
        if not len(token_ids) or k < 1:
            return []
        scores: NDArray[np.float32] = self._scorer.get_scores_from_ids(token_ids)  # [documents]
        return [Passage(self.documents[row], float(scores[row])) for row in top_rows(scores, k)]

    def _token_ids(self, query: str) -> NDArray[np.int64]:
        """Token ids of the query's words that the corpus holds, in order, with repetitions."""
        words = self._words(query)
        wanted: NDArray[np.uint64] = np.array([_hash(word) for word in words], np.uint64)
        at = np.searchsorted(self._hashes, wanted)
        at[at == len(self._hashes)] = 0
        return at[self._hashes[at] == wanted]


def top_rows(scores: NDArray[np.float32], k: int) -> list[int]:
    """Rows of the `k` highest positive scores, highest first, equal ones by row."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > k:
        found = scores[rows]
        least = np.partition(found, len(found) - k)[len(found) - k]
        rows = rows[found >= least]
    # Stable: rows come in corpus order, so equal scores stay in it, also at the cut.
    return rows[np.argsort(-scores[rows], kind="stable")][:k].tolist()
