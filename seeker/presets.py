"""From a preset, flags and `--set` values to a `RunConfig`; every refusal names the nearest thing that exists.

Three layers, later ones win: the preset (a TOML file), the flags of the command line, `section.field=value` overrides.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from seeker.config import RunConfig
from seeker.errors import ConfigError
from seeker.fields import field_annotations, typed_value, validate
from seeker.nearest import nearest

# Flags that stand for exactly one field. The others (questions, heldout, corpus) replace whole sections.
FLAG_FIELDS = {
    "model": "policy.path",
    "steps": "steps",
    "prompts_per_step": "rollout.prompts_per_step",
    "prompts_per_task": "rollout.prompts_per_task",
    "group_size": "rollout.group_size",
    "rollouts": "cluster.rollouts",
    "trainers": "cluster.trainers",
    "out": "out",
    "seed": "seed",
    "skip_bad_records": "questions.skip_bad_records",
}
SECTION_FLAGS = ("questions", "heldout", "corpus")


def load_config(preset: str | Path, overrides: Sequence[str] = (), **flags: Any) -> RunConfig:
    """The configuration of `preset` (a name or a TOML file) with flags, then overrides, put over it.

    A flag that is None was not given. Example:
    ``load_config("laptop", ["rollout.group_size=4"], steps=3, questions=["train.jsonl"])``.
    """
    path = find_preset(preset)
    draft = _Draft(_read_toml(path))
    draft.tree.setdefault("preset", path.stem)
    _apply_flags(draft, {name: value for name, value in flags.items() if value is not None})
    for override in overrides:
        _apply_override(draft, override)
    return resolve_paths(validate(draft.tree, draft.origins, str(path)))


def change_config(config: RunConfig, overrides: Sequence[str] = (), **flags: Any) -> RunConfig:
    """`config` with flags, then overrides, put over it, as over a preset."""
    draft = _Draft(config.model_dump(mode="json"))
    _apply_flags(draft, {name: value for name, value in flags.items() if value is not None})
    for override in overrides:
        _apply_override(draft, override)
    return resolve_paths(validate(draft.tree, draft.origins, "the configuration")) if draft.origins else config


def preset_names() -> list[str]:
    """Names of the presets in the project."""
    return sorted(path.stem for path in _preset_folder().glob("*.toml"))


def find_preset(preset: str | Path) -> Path:
    """The TOML file of a preset name, or the file itself where a path is given."""
    named = _preset_folder() / f"{preset}.toml"
    if named.is_file():
        return named
    if str(preset).endswith(".toml") or "/" in str(preset):
        if Path(preset).is_file():
            return Path(preset)
        raise ConfigError(f"preset {str(preset)!r}: no such file")
    names = preset_names()
    raise ConfigError(f"unknown preset {str(preset)!r}{nearest(str(preset), names)} (presets: {', '.join(names)})")


def config_digest(config: RunConfig) -> str:
    """sha256 of what decides a run's result: everything except where it is written and what the preset is called."""
    return settings_digest(config.model_dump(mode="json"))


def settings_digest(settings: Mapping[str, Any]) -> str:
    """The same of a configuration as it was written down, which may be from before a field existed."""
    deciding = {name: value for name, value in settings.items() if name not in ("out", "preset")}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def describe_differences(a: RunConfig, b: RunConfig) -> list[str]:
    """One line per field that differs, for example ``rollout.group_size: 8 -> 4``."""
    before, after = dict(_leaves(a.model_dump(mode="json"))), dict(_leaves(b.model_dump(mode="json")))
    names = [*before, *(name for name in after if name not in before)]
    changed = [name for name in names if before.get(name) != after.get(name)]
    return [f"{name}: {before.get(name)!r} -> {after.get(name)!r}" for name in changed]


# ---- paths


def project_root() -> Path:
    """The checkout that this package is installed from; the working directory when it is not a checkout."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "deployments" / "presets").is_dir() else Path.cwd()


def locate(path: str) -> str:
    """Where a path of a configuration is: from the working directory, else from the project; as it is where nowhere."""
    if path.startswith("hub:") or Path(path).exists():
        return path
    shipped = project_root() / path
    return str(shipped) if shipped.exists() else path


def resolve_paths(config: RunConfig) -> RunConfig:
    """The same configuration with paths that mean the same from any working directory.

    Question files become absolute. The policy stays relative when it lies in the project, so that a run says the same
    in every checkout.
    """
    questions = config.questions
    sources = tuple(source.model_copy(update={"path": _absolute(source.path)}) for source in questions.sources)
    heldout = None if questions.heldout is None else _absolute(questions.heldout)
    corpus = None if config.corpus.path is None else _absolute(config.corpus.path)
    return config.model_copy(
        update={
            "policy": config.policy.model_copy(update={"path": _in_project(_absolute(config.policy.path))}),
            "questions": questions.model_copy(update={"sources": sources, "heldout": heldout}),
            "corpus": config.corpus.model_copy(update={"path": corpus}),
        }
    )


def _absolute(path: str) -> str:
    if not path:
        raise ConfigError("a path is empty: expected a file, a folder or hub:NAME for questions, corpus and policy")
    found = locate(path)
    return str(Path(found).resolve()) if not found.startswith("hub:") and Path(found).exists() else path


def _in_project(path: str) -> str:
    return str(Path(path).relative_to(project_root())) if Path(path).is_relative_to(project_root()) else path


def _preset_folder() -> Path:
    return project_root() / "deployments" / "presets"


# ---- layers


@dataclass(frozen=True, slots=True)
class _Draft:
    """A configuration under construction: nested values, and which argument put which field there."""

    tree: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict[str, str])

    def put(self, name: str, value: Any, origin: str) -> None:
        *sections, leaf = name.split(".")
        tree = self.tree
        for section in sections:
            tree = tree.setdefault(section, {})
        tree[leaf] = value
        self.origins[name] = origin


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _apply_flags(draft: _Draft, flags: Mapping[str, Any]) -> None:
    known = [*FLAG_FIELDS, *SECTION_FLAGS]
    for name in flags:
        if name not in known:
            raise ConfigError(f"unknown flag {name!r}{nearest(name, known)}")
    _replace_questions(draft, flags)
    for name, value in flags.items():
        if name in FLAG_FIELDS:
            draft.put(FLAG_FIELDS[name], value, f"--{name.replace('_', '-')}")


def _replace_questions(draft: _Draft, flags: Mapping[str, Any]) -> None:
    """`--questions` stands for all of them: the preset's world, sources, held-out file and corpus go with it."""
    questions: dict[str, Any] = draft.tree.setdefault("questions", {})
    if flags.get("questions"):
        for name in ("sources", "world_seed", "heldout"):
            questions.pop(name, None)
        draft.tree.pop("corpus", None)
        draft.put("questions.sources", [_source(text) for text in flags["questions"]], "--questions")
    for name, target in (("heldout", "questions.heldout"), ("corpus", "corpus.path")):
        if name in flags and questions.get("world_seed") is not None:
            raise ConfigError(f"--{name} goes with --questions: the preset generates its own questions and corpus")
        if name in flags:
            draft.put(target, flags[name], f"--{name}")


def _source(text: str) -> dict[str, Any]:
    """``train.jsonl`` or, with its share of the mix, ``train.jsonl=0.5``."""
    path, separator, share = text.rpartition("=")
    try:
        return {"path": path, "share": float(share)} if separator else {"path": text}
    except ValueError:
        return {"path": text}


def _apply_override(draft: _Draft, override: str) -> None:
    name, separator, text = (part.strip() for part in override.partition("="))
    origin = f"--set {override}"
    if not separator or not name:
        raise ConfigError(f"{origin}: expected section.field=value, for example rollout.group_size=4")
    fields = dict(field_annotations())
    if name not in fields:
        raise ConfigError(f"{origin}: unknown field {name!r}{nearest(name, fields)}")
    draft.put(name, typed_value(text, fields[name]), origin)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            yield prefix + name, value
