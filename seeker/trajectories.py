"""Trajectories as Parquet bytes: one row a trajectory, all fields, the same bytes for the same trajectories."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seeker.errors import RunDirectoryError
from seeker.types import Author, Search, Span, StopReason, Trajectory

pa: Any = importlib.import_module("pyarrow")  # as Any: it ships no types
pq: Any = importlib.import_module("pyarrow.parquet")

_PLAIN: dict[str, Any] = {
    "question_id": pa.string(),
    "group_id": pa.string(),
    "index": pa.int64(),
    "stop_reason": pa.string(),
    "num_turns": pa.int64(),
    "num_malformed": pa.int64(),
    "num_forged_observations": pa.int64(),
    "answer": pa.string(),
    "reward": pa.float64(),
}
_SEARCH = pa.struct({"query": pa.string(), "document_ids": pa.list_(pa.string())})
_TERM = pa.struct({"name": pa.string(), "value": pa.float64()})


def encode_trajectories(trajectories: Sequence[Trajectory]) -> bytes:
    """Parquet bytes that `decode_trajectories` reads back whole."""
    columns: dict[str, Any] = {
        name: pa.array([getattr(each, name) for each in trajectories], kind) for name, kind in _PLAIN.items()
    }
    columns["spans"] = _encode_spans(trajectories)
    searches = [[{"query": s.query, "document_ids": list(s.document_ids)} for s in t.searches] for t in trajectories]
    columns["searches"] = pa.array(searches, pa.list_(_SEARCH))
    terms = [[{"name": name, "value": value} for name, value in t.reward_terms.items()] for t in trajectories]
    columns["reward_terms"] = pa.array(terms, pa.list_(_TERM))
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns),
        sink,
        version="2.6",
        compression="zstd",
        compression_level=3,
        row_group_size=max(1, len(trajectories)),
    )
    return sink.getvalue().to_pybytes()


def _encode_spans(trajectories: Sequence[Trajectory]) -> Any:
    spans = [span for trajectory in trajectories for span in trajectory.spans]
    lengths = [len(span.token_ids) for span in spans]
    scored = [0 if span.logprobs is None else len(span.logprobs) for span in spans]
    unscored = pa.array([span.logprobs is None for span in spans], pa.bool_())
    ids = _joined([span.token_ids for span in spans], np.int32)
    logprobs = _joined([span.logprobs for span in spans if span.logprobs is not None], np.float32)
    fields = {
        "author": pa.array([span.author.value for span in spans], pa.string()),
        "token_ids": pa.ListArray.from_arrays(_offsets(lengths), pa.array(ids)),
        "logprobs": pa.ListArray.from_arrays(_offsets(scored), pa.array(logprobs), mask=unscored),
        "policy_version": pa.array([span.policy_version for span in spans], pa.int64()),
    }
    structs = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    return pa.ListArray.from_arrays(_offsets([len(trajectory.spans) for trajectory in trajectories]), structs)


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False)


def _offsets(lengths: Sequence[int]) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32))


def decode_trajectories(data: bytes | memoryview) -> list[Trajectory]:
    """The trajectories that `encode_trajectories` wrote."""
    try:
        table: Any = pq.read_table(pa.BufferReader(data)).combine_chunks()
        columns = {name: table.column(name).to_pylist() for name in (*_PLAIN, "searches", "reward_terms")}
        spans = _decode_spans(table.column("spans").combine_chunks())
        return [
            _decode_row({name: column[row] for name, column in columns.items()}, next(spans))
            for row in range(table.num_rows)
        ]
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:  # Arrow raises all of them
        raise RunDirectoryError(f"not a file of trajectories, or a damaged one ({len(data)} bytes): {error}") from error


def _decode_spans(column: Any) -> Iterator[tuple[Span, ...]]:
    structs = column.values
    authors = structs.field("author").to_pylist()
    versions = structs.field("policy_version").to_pylist()
    ids = _split(structs.field("token_ids"))
    logprobs = _split(structs.field("logprobs"))
    spans = [
        Span(Author(author), ids[at], None if version is None else logprobs[at], version)
        for at, (author, version) in enumerate(zip(authors, versions, strict=True))
    ]
    offsets = column.offsets.to_numpy()
    return (tuple(spans[first:last]) for first, last in itertools.pairwise(offsets))


def _split(lists: Any) -> list[NDArray[Any]]:
    values, offsets = lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_numpy()
    return [values[first:last] for first, last in itertools.pairwise(offsets)]


def _decode_row(row: dict[str, Any], spans: tuple[Span, ...]) -> Trajectory:
    searches = tuple(Search(each["query"], tuple(each["document_ids"])) for each in row.pop("searches"))
    terms = {each["name"]: each["value"] for each in row.pop("reward_terms")}
    stop_reason = StopReason(row.pop("stop_reason"))
    return Trajectory(**row, spans=spans, stop_reason=stop_reason, searches=searches, reward_terms=terms)
