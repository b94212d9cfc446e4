"""The BM25 index.

1.  Scores are BM25's (Lucene's form), computed here anew from the words.
2.  Results are the best k, best first, equal scores in corpus order, and only documents that share a word.
3.  A query of stop words, of unknown words, or of nothing, finds nothing; k may exceed the corpus.
4.  Stemming and stop words are settable; a wrong name lists the right ones.
5.  An index is named by corpus and settings; building it twice does nothing; the same corpus gives the same bytes.
6.  Two processes that build at once leave one whole index; what a killed one left is removed.
7.  A file that changed, shrank or is gone is told with the remedy, and building again repairs it.
8.  Opened, scores and texts stay on the disk: the arrays are memory-mapped.
9.  An empty corpus, or one without a word, is an error; so is a build that would not fit the memory.
10. Executors open it with none of the driver's packages.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeker.retrieval.memory as memory
from seeker.config import IndexConfig
from seeker.errors import ConfigError, DataError, RetrievalError
from seeker.retrieval.bm25 import PASSES, Bm25Index, build_index, top_rows
from seeker.retrieval.words import make_words
from seeker.types import Document

DOCUMENTS = [
    Document("d0", "Velm", "Velm is a town in Oru. The town lies by the sea."),
    Document("d1", "Ama", "Ama is a film. It was directed by Iro Tal."),
    Document("d2", "Iro Tal", "Iro Tal is a director. She was born in Velm."),
    Document("d3", "Twin", "The same words."),
    Document("d4", "Twin", "The same words."),
    Document("d5", "Ærø", "Ærø 東京 and naïve towns, No. 7."),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Bm25Index:
    return Bm25Index.open(build_index(DOCUMENTS, IndexConfig(), tmp_path_factory.mktemp("indexes")))


def found(index: Bm25Index, query: str, k: int = 3) -> list[str]:
    return [passage.document.id for passage in index.search(query, k)]


@pytest.mark.parametrize("query", ["town by the sea", "director born in Velm", "film film Ama", "東京"])
def test_scores_are_bm25(index: Bm25Index, query: str) -> None:
    config = IndexConfig()
    words = make_words(config)
    counts = [Counter(words(f"{document.title}\n{document.text}")) for document in DOCUMENTS]
    mean = sum(sum(count.values()) for count in counts) / len(counts)

    def score(count: Counter[str]) -> float:
        total = 0.0
        for word in words(query):
            holding = sum(word in each for each in counts)
            idf = math.log(1 + (len(counts) - holding + 0.5) / (holding + 0.5))
            length = config.k1 * (1 - config.b + config.b * sum(count.values()) / mean)
            total += idf * count[word] / (count[word] + length)
        return total

    expected = {document.id: score(count) for document, count in zip(DOCUMENTS, counts, strict=True)}
    passages = index.search(query, 10)
    assert {each.document.id for each in passages} == {name for name, value in expected.items() if value > 0}
    assert all(each.score == pytest.approx(expected[each.document.id], rel=1e-5) for each in passages)
    assert sorted(passages, key=lambda each: -each.score) == passages


def test_the_best_come_first_and_ties_in_corpus_order(index: Bm25Index) -> None:
    assert found(index, "Velm")[0] == "d0"
    assert found(index, "same words", 1) == ["d3"]
    assert found(index, "same words", 2) == ["d3", "d4"]
    assert found(index, "who directed Ama?")[0] == "d1"
    assert index.search("Velm", 1)[0].document == DOCUMENTS[0]
    assert index.search("東京", 1)[0].document == DOCUMENTS[5]


@pytest.mark.parametrize("query", ["", "  ", "the of and is", "zzz qqq", "?!", "\x00"])
def test_queries_that_match_nothing_find_nothing(index: Bm25Index, query: str) -> None:
    assert index.search(query, 3) == []


def test_k_bounds_the_result(index: Bm25Index) -> None:
    assert len(index.search("town", 1)) == 1
    assert len(index.search("Velm town Ama same", 100)) == 6
    assert index.search("town", 0) == []


@given(st.lists(st.integers(-2, 4), min_size=1, max_size=40), st.integers(1, 50))
def test_top_rows_are_a_stable_sort(values: list[int], k: int) -> None:
    expected = sorted((at for at, value in enumerate(values) if value > 0), key=lambda at: (-values[at], at))
    assert top_rows(np.array(values, np.float32), k) == expected[:k]


@given(st.text(max_size=60))
def test_any_query_is_answered(index: Bm25Index, query: str) -> None:
    passages = index.search(query, 4)
    assert all(passage.score > 0 for passage in passages)
    assert passages == index.search(query, 4)


def test_stemming_and_stop_words_are_settable(tmp_path: Path) -> None:
    assert make_words(IndexConfig())("The Towns of Oru") == ["town", "oru"]
    assert make_words(IndexConfig(stemmer="none"))("The Towns of Oru") == ["towns", "oru"]
    assert make_words(IndexConfig(stopwords="none"))("The Towns") == ["the", "town"]
    assert make_words(IndexConfig(stemmer="german", stopwords="de"))("Die Häuser") == ["haus"]
    plain = Bm25Index.open(build_index(DOCUMENTS, IndexConfig(stemmer="none", stopwords="none"), tmp_path))
    assert found(plain, "is")
    assert found(plain, "towns") == ["d5"]
    with pytest.raises(ConfigError, match=r"index.stemmer: no stemmer 'klingon'; choose one of .*english"):
        make_words(IndexConfig(stemmer="klingon"))
    with pytest.raises(ConfigError, match=r"index.stopwords: no list 'xx'; choose one of en, .*or none"):
        make_words(IndexConfig(stopwords="xx"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_name_is_made_of_corpus_and_settings(tmp_path: Path) -> None:
    path = build_index(DOCUMENTS, IndexConfig(), tmp_path / "one")
    before = {each.name: each.stat().st_mtime_ns for each in path.iterdir()}
    seen: list[int] = []
    assert build_index(DOCUMENTS, IndexConfig(), tmp_path / "one", seen.append) == path
    assert not seen
    assert {each.name: each.stat().st_mtime_ns for each in path.iterdir()} == before
    again = build_index(DOCUMENTS, IndexConfig(), tmp_path / "two", seen.append)
    assert again.name == path.name
    assert files_of(again) == files_of(path)
    assert seen == list(range(1, PASSES * len(DOCUMENTS) + 1))
    others = [
        build_index(DOCUMENTS[:5], IndexConfig(), tmp_path),
        build_index(DOCUMENTS, IndexConfig(k1=1.2), tmp_path),
    ]
    assert len({path.name, *(other.name for other in others)}) == 3


def build_in(cache_dir: str) -> str:
    documents = [Document(f"d{at}", f"Title {at}", f"word{at} " * 20) for at in range(500)]
    return str(build_index(documents, IndexConfig(), cache_dir))


def test_two_builders_leave_one_index(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    name = Path(build_in(str(tmp_path / "elsewhere"))).name
    left_over = tmp_path / f".{name}.abc.part"
    left_over.mkdir()
    with ProcessPoolExecutor(2) as pool:
        paths = set(pool.map(build_in, [str(tmp_path)] * 2))
    assert paths == {str(tmp_path / name)}
    assert len(Bm25Index.open(tmp_path / name)) == 500
    assert not left_over.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{name}.lock", name, "elsewhere"]


@pytest.mark.parametrize("file", ["manifest.json", "documents.txt", "data.csc.index.npy", "vocabulary.npy"])
@pytest.mark.parametrize("harm", ["flip", "shorten", "remove"])
def test_a_damaged_index_is_told_and_repaired(tmp_path: Path, file: str, harm: str) -> None:
    folder = build_index(DOCUMENTS, IndexConfig(), tmp_path)
    whole = files_of(folder)
    data = bytearray(whole[file])
    data[-3] ^= 1
    (folder / file).write_bytes(data if harm == "flip" else data[:-5])
    if harm == "remove":
        (folder / file).unlink()
    with pytest.raises(RetrievalError, match=rf"index is damaged: .*{file}.*run `seeker prepare` again"):
        Bm25Index.open(folder)
    assert build_index(DOCUMENTS, IndexConfig(), tmp_path) == folder
    assert files_of(folder) == whole
    assert found(Bm25Index.open(folder), "Velm")


def test_a_missing_index_and_one_of_another_format(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError, match="run `seeker prepare` again"):
        Bm25Index.open(tmp_path / "nowhere")


def test_the_arrays_are_mapped(index: Bm25Index) -> None:
    arrays = [index._scorer.scores[name] for name in ("data", "indices", "indptr")] + [index._hashes]
    for array in arrays:
        base = array
        while isinstance(base, np.ndarray):
            assert not base.flags.owndata
            base = base.base
    maps = Path("/proc/self/maps")
    if maps.exists():
        text = maps.read_text()
        assert all(f"{index.folder}/{name}" in text for name in ("documents.txt", "data.csc.index.npy"))


@pytest.mark.parametrize("documents", [[], [Document("d", "The", "of and")], [Document("d", "?", "!")]])
def test_a_corpus_without_words_is_refused(tmp_path: Path, documents: list[Document]) -> None:
    with pytest.raises(DataError, match="corpus"):
        build_index(documents, IndexConfig(), tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_document_without_words_is_kept_and_never_found(tmp_path: Path) -> None:
    documents = [Document("empty", "?", ""), *DOCUMENTS]
    index = Bm25Index.open(build_index(documents, IndexConfig(), tmp_path))
    assert len(index) == 7
    assert sorted(found(index, "Velm town ? Ama same", 10)) == [document.id for document in DOCUMENTS]


def test_a_build_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(DataError, match=r"6 documents needs about .* GB to build.*larger machine, or name a smaller"):
        build_index(DOCUMENTS, IndexConfig(), tmp_path)


def test_what_a_search_takes_is_told(index: Bm25Index, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.match(
        r"0\.0 MB mapped once for all executors of a node, 4 kB more per search$",
        memory.describe_load(index.folder, 1000),
    )
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    assert "only 0 MB are available here" in memory.describe_load(index.folder, 1000)


def test_meminfo_is_read() -> None:
    if not Path("/proc/meminfo").exists():
        pytest.skip("this system has no /proc/meminfo")
    assert (memory.available_bytes() or 0) > 1 << 20


def test_executors_need_none_of_the_drivers_packages(index: Bm25Index) -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('polars', 'datasets', 'prefect', 'matplotlib', 'torch', 'flamepy'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import json\n"
        "from seeker.retrieval.bm25 import Bm25Index\n"
        "import seeker.questions\n"
        "print(json.dumps([p.document.id for p in Bm25Index.open(sys.argv[1]).search('Velm', 3)]))\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(index.folder)], cwd=root, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == found(index, "Velm")
