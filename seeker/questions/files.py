"""Raw records of a file, hub data set or saved data set, with their places; the reader is chosen by content.

A record that cannot even be read (bad UTF-8, broken JSON) comes as the `RecordError` that says so, so that the caller
decides whether to stop. polars and datasets are imported where they are used: executors have neither.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seeker.errors import DataError, RecordError
from seeker.questions.fields import Place

Raw = tuple[Place, Any]
_QUESTION_FIELDS = ("id", "_id", "question", "answer", "golden_answers", "answer_aliases", "type", "supporting_facts")
_OTHER_FIELDS = ("context", "metadata", "data_source", "contents", "title", "text")
FIELDS = frozenset(_QUESTION_FIELDS + _OTHER_FIELDS)  # columns of a table that are read at all
HUB = "hub:"
_CHUNK_CHARS = 1 << 20


def read_records(source: str | Path) -> Iterator[Raw]:
    """All records of ``hub:NAME[:CONFIG[:SPLIT]]``, a folder saved by datasets, Parquet, a JSON list or JSON lines."""
    if str(source).startswith(HUB):
        return _hub_records(str(source))
    path = Path(source)
    if path.is_dir():
        return _folder_records(path)
    return {"parquet": _parquet_records, "list": _list_records, "lines": _line_records}[_kind(path)](path)


def check_source(source: str | Path) -> None:
    """Cheap look before heavy work: the file is there, can be opened and is of a known kind."""
    if not str(source).startswith(HUB) and not Path(source).is_dir():
        _kind(Path(source))


def _kind(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name an existing file or hub:NAME") from error
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"\x1f\x8b", b"PK", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        raise DataError(f"{path}: is compressed; unpack it and name the unpacked file")
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise DataError(f"{path}: is empty; expected JSON lines, a JSON list or Parquet")
    return "list" if text.startswith(b"[") else "lines"


def _line_records(path: Path) -> Iterator[Raw]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield _decode_line(line, Place(str(path), number))


def _decode_line(line: bytes, place: Place) -> Raw:
    try:
        return place, json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        around = line[max(0, error.start - 10) : error.end + 10]
        return place, RecordError(place.path, place.number, "(line)", around, "valid UTF-8")
    except (ValueError, RecursionError):
        return place, RecordError(place.path, place.number, "(line)", _shown(line), "one JSON object in each line")


def _shown(line: bytes) -> str:
    return line[:200].decode("utf-8", "replace").strip()


def _list_records(path: Path) -> Iterator[Raw]:
    """Items of one long JSON list, decoded one at a time: the published files are several hundred megabytes."""
    decoder = json.JSONDecoder()
    # Bytes that are not UTF-8 become lone surrogates, so that the item that holds them can be named.
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        buffer, at, number, separator = file.read(_CHUNK_CHARS), 0, 0, "["
        while True:
            start = _skip_spaces(buffer, at)
            item, end, failed = _try_item(decoder, buffer, start, separator)
            if failed or end >= len(buffer):
                more = file.read(max(_CHUNK_CHARS, len(buffer) - at))
                if more:
                    buffer, at = buffer[at:] + more, 0
                    continue
            place = Place(str(path), number + 1, "record")
            if failed:
                raise _broken_list(place, f"{separator!r} and a JSON value", buffer[start : start + 80])
            if end < 0:
                rest = buffer[buffer.index("]", start) + 1 :] + file.read(_CHUNK_CHARS)
                if rest.strip():
                    raise _broken_list(place, "nothing after the list's closing bracket", rest.strip()[:80])
                return
            text = buffer[start:end]
            yield place, _utf8_error(text, place) or item
            at, number, separator = end, number + 1, ","


def _try_item(decoder: json.JSONDecoder, buffer: str, at: int, separator: str) -> tuple[Any, int, bool]:
    """(item, end, failed): the item after `separator` at `at`; end -1 where the list closes instead."""
    if separator == "," and buffer[at : at + 1] == "]":
        return None, -1, False
    if buffer[at : at + 1] != separator:
        return None, at, True
    start = _skip_spaces(buffer, at + 1)
    if separator == "[" and buffer[start : start + 1] == "]":
        return None, -1, False
    try:
        item, end = decoder.raw_decode(buffer, start)
    except (ValueError, RecursionError):
        return None, at, True
    return item, end, False


def _broken_list(place: Place, expected: str, found: str) -> DataError:
    """Not a bad record that could be skipped: where the list breaks, no further record can be told."""
    return DataError(f"{place}: expected {expected}, found {found!r}; repair the file, or write it as JSON lines")


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _utf8_error(text: str, place: Place) -> RecordError | None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return _error(place, "(record)", text[max(0, error.start - 20) : error.end + 20], "valid UTF-8")
    return None


def _error(place: Place, field: str, value: object, expected: str) -> RecordError:
    return RecordError(place.path, place.number, field, value, expected, place.unit)


def _parquet_records(path: Path) -> Iterator[Raw]:
    import polars

    try:
        names = _known_columns(str(path), list(polars.read_parquet_schema(path)))
        table = polars.read_parquet(path, columns=names)
    except (polars.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}); write it again") from error
    for number, row in enumerate(table.iter_rows(named=True), 1):
        yield Place(str(path), number, "record"), row


def _known_columns(source: str, names: list[str]) -> list[str]:
    """The columns that are read. A table without any of them would come back without rows, too."""
    known = [name for name in names if name in FIELDS]
    if not known:
        raise DataError(
            f"{source}: expected columns such as 'id', 'question' and 'answer', found {', '.join(names) or 'none'}; "
            "rename them, or name another file"
        )
    return known


def _hub_records(source: str) -> Iterator[Raw]:
    """``hub:hotpotqa/hotpot_qa:distractor:validation``: configuration and split may be left out (split: train)."""
    name, _, rest = source.removeprefix(HUB).partition(":")
    config, _, split = rest.partition(":")
    return _dataset_records(source, "load_dataset", (name, config or None), split=split or "train")


def _folder_records(path: Path) -> Iterator[Raw]:
    return _dataset_records(str(path), "load_from_disk", (str(path),))


def _dataset_records(source: str, loader: str, arguments: tuple[Any, ...], **options: str) -> Iterator[Raw]:
    datasets: Any = importlib.import_module("datasets")  # as Any: it ships no types
    try:
        table = getattr(datasets, loader)(*arguments, **options)
    except (OSError, ValueError, ImportError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"{source}: datasets cannot load it ({error}); check name, configuration and split, or name a local file"
        ) from error
    if isinstance(table, datasets.DatasetDict):
        raise DataError(f"{source}: holds the splits {sorted(table)}; name the folder of one, as in {source}/train")
    table = table.select_columns(_known_columns(source, table.column_names))
    for number, row in enumerate(table, 1):
        yield Place(source, number, "record"), row
