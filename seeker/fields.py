"""The fields of `RunConfig` by dotted name: which exist, what a text stands for, and how a refusal reads."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from seeker.config import RunConfig
from seeker.errors import ConfigError
from seeker.nearest import nearest


def field_annotations(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every settable field by its dotted name, with its annotation: ``("rollout.group_size", int)``."""
    for name, info in model.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from field_annotations(annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, annotation


def typed_value(text: str, annotation: Any) -> Any:
    """A TOML value where the field takes one; bare words are strings; `none` unsets an optional field."""
    kinds = {get_origin(kind) or kind for kind in _union(annotation)}
    if text == "none" and type(None) in kinds:
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    keeps_text = str in kinds and not isinstance(value, str)  # --set policy.path=3 names the folder "3"
    return text if keeps_text or list(parsed) != ["value"] else value


def validate(tree: Mapping[str, Any], origins: Mapping[str, str], default_origin: str) -> RunConfig:
    """The model of `tree`, or one `ConfigError` with a line per refused field and where its value came from."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        lines: dict[str, None] = {}
        for entry in error.errors(include_url=False):
            location = ".".join(str(part) for part in entry["loc"])
            lines[f"{_origin(location, origins, default_origin)}: {_refusal(location, entry)}"] = None
        raise ConfigError("\n".join(lines)) from error


def _origin(location: str, origins: Mapping[str, str], default_origin: str) -> str:
    names = [name for name in origins if location == name or location.startswith(f"{name}.")]
    return origins[names[-1]] if names else default_origin


def _refusal(location: str, entry: Mapping[str, Any]) -> str:
    value = entry["input"]
    if entry["type"] == "extra_forbidden":
        word = "section" if isinstance(value, Mapping) and "." not in location else "field"
        return f"unknown {word} {location!r}{nearest(location, _siblings(location))}"
    if entry["type"] == "missing":
        return f"field {location!r} is missing"
    message = str(entry["msg"]).removeprefix("Value error, ")
    if entry["type"] == "value_error":
        return f"{location}: {message}"
    return f"field {location!r}: value {value!r}: {message[:1].lower()}{message[1:]}"


def _siblings(location: str) -> list[str]:
    """Dotted names beside `location`; a position inside a tuple of sections is skipped over."""
    *parent, _ = location.split(".")
    model: Any = RunConfig
    for part in parent:
        if not part.isdigit():
            model = _section(model.model_fields[part].annotation)
    return [".".join([*parent, name]) for name in model.model_fields]


def _section(annotation: Any) -> type[BaseModel]:
    for outer in _union(annotation):
        for kind in (outer, *get_args(outer)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                return kind
    raise TypeError(f"{annotation} holds no section")


def _union(annotation: Any) -> Sequence[Any]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
