"""Presets, flags and overrides.

1. Every preset in the repository loads; its name is recorded.
2. Layers: preset, then flags, then `--set`; a later one wins.
3. `--set` values are typed as TOML where the field takes that type; bare words are strings; `none` unsets.
4. Flags replace sections coherently: `--questions` takes the preset's world, sources, held-out file and corpus away.
5. An unknown preset, section, field or flag names the nearest; a bad value names where it came from, field and value.
6. The digest ignores where a run is written; differences are told field by field.
7. Paths mean the same from any working directory, and in every checkout where they lie in the project.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.config import RunConfig
from seeker.errors import ConfigError
from seeker.fields import field_annotations, typed_value
from seeker.nearest import nearest
from seeker.presets import (
    config_digest,
    describe_differences,
    load_config,
    locate,
    preset_names,
    project_root,
    resolve_paths,
)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads(name: str) -> None:
    config = load_config(name)
    assert config.preset == name
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_the_presets_that_must_exist() -> None:
    assert {"laptop", "qwen2.5-3b-hotpotqa"} <= set(preset_names())


def test_the_flame_example_has_its_reported_numbers() -> None:
    config = load_config("qwen2.5-3b-hotpotqa")
    rollout = config.rollout
    assert (config.steps, rollout.prompts_per_step, rollout.group_size) == (100, 70, 5)
    assert (config.cluster.rollouts, config.cluster.trainers) == (14, 2)
    assert rollout.prompts_per_step == config.cluster.rollouts * rollout.prompts_per_task
    assert (rollout.max_searches, rollout.top_k, rollout.max_turn_tokens, rollout.max_observation_tokens) == (
        4,
        3,
        500,
        500,
    )
    assert (config.optimizer.learning_rate, config.objective.kl_coefficient, rollout.temperature) == (1e-6, 1e-3, 1.0)


def test_later_layers_win() -> None:
    base = load_config("laptop")
    config = load_config("laptop", ["rollout.group_size=6"], group_size=4, steps=3, rollouts=None)
    assert (config.rollout.group_size, config.steps) == (6, 3)
    assert config.cluster.rollouts == base.cluster.rollouts


@pytest.mark.parametrize(
    ("override", "section", "field", "value"),
    [
        ("rollout.temperature=0.7", "rollout", "temperature", 0.7),
        ("optimizer.learning_rate=1e-6", "optimizer", "learning_rate", 1e-6),
        ("reward.shuffle=true", "reward", "shuffle", True),
        ("policy.path=123", "policy", "path", "123"),
        ("policy.attention=eager", "policy", "attention", "eager"),
        ("index.stemmer=none", "index", "stemmer", "none"),
        ("questions.num_train=none", "questions", "num_train", None),
        ("cluster.endpoint=http://127.0.0.1:8080", "cluster", "endpoint", "http://127.0.0.1:8080"),
        ('prompt.user="{question}\\n"', "prompt", "user", "{question}\n"),
        ("prompt.system = two = words ", "prompt", "system", "two = words"),
    ],
)
def test_override_values_are_typed(override: str, section: str, field: str, value: object) -> None:
    assert getattr(getattr(load_config("laptop", [override]), section), field) == value


@given(st.text(st.characters(codec="utf-8")))
def test_a_text_field_keeps_any_bare_text(text: str) -> None:
    value = typed_value(text, str)
    assert isinstance(value, str)
    assert value == text or text.strip()[:1] in ("'", '"')


def test_questions_replace_the_world() -> None:
    config = load_config("laptop", questions=["a.jsonl=0.5", "hub:hotpotqa/hotpot_qa:distractor:train"])
    assert config.questions.world_seed is None
    assert [(source.path, source.share) for source in config.questions.sources] == [
        ("a.jsonl", 0.5),
        ("hub:hotpotqa/hotpot_qa:distractor:train", 1.0),
    ]


def test_questions_take_the_presets_heldout_file_and_corpus_away(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text(
        '[policy]\npath="p"\n[corpus]\npath="c.jsonl"\n'
        '[questions]\nheldout="h.jsonl"\nsources=[{path="s.jsonl"}]\nheldout_share=0.1\n'
    )
    kept = load_config(preset)
    assert (kept.questions.heldout, kept.corpus.path) == ("h.jsonl", "c.jsonl")
    assert load_config(preset, heldout="other.jsonl").questions.heldout == "other.jsonl"
    config = load_config(preset, questions=["a.jsonl"], skip_bad_records=True)
    assert (config.questions.heldout, config.corpus.path) == (None, None)
    assert (config.questions.heldout_share, config.questions.skip_bad_records) == (0.1, True)
    whole = load_config(preset, questions=["a.jsonl"], heldout="b.jsonl", corpus="d.jsonl")
    assert (whole.questions.heldout, whole.corpus.path) == ("b.jsonl", "d.jsonl")


@pytest.mark.parametrize("flag", ["heldout", "corpus"])
def test_a_generated_world_brings_its_own_corpus_and_heldout(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag} goes with --questions"):
        load_config("laptop", **{flag: "x.jsonl"})


@pytest.mark.parametrize(
    ("preset", "overrides", "flags", "message"),
    [
        ("labtop", [], {}, "unknown preset 'labtop', did you mean 'laptop'?"),
        (
            "laptop",
            ["rollout.grop_size=4"],
            {},
            "unknown field 'rollout.grop_size', did you mean 'rollout.group_size'?",
        ),
        ("laptop", ["rolout.group_size=4"], {}, "did you mean 'rollout.group_size'?"),
        ("laptop", ["group_size=4"], {}, "did you mean 'rollout.group_size'?"),
        ("laptop", ["rollout.group_size"], {}, "expected section.field=value"),
        ("laptop", [], {"grup_size": 4}, "unknown flag 'grup_size', did you mean 'group_size'?"),
        (
            "laptop",
            ["rollout.group_size=one"],
            {},
            "--set rollout.group_size=one: field 'rollout.group_size': value 'one'",
        ),
        ("laptop", [], {"group_size": 1}, "--group-size: field 'rollout.group_size': value 1: input should be greater"),
        ("laptop", ["policy.attention=eagr"], {}, "input should be 'eager' or 'sdpa'"),
        ("laptop", ["questions.world_seed=none"], {}, "name either questions.sources or questions.world_seed"),
        ("missing/there.toml", [], {}, "no such file"),
    ],
)
def test_refusals_name_the_nearest(preset: str, overrides: list[str], flags: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(preset, overrides, **flags)
    assert message in str(caught.value)


def test_a_preset_with_unknown_names_is_refused_line_by_line(tmp_path: Path) -> None:
    preset = tmp_path / "bad.toml"
    preset.write_text('stps=3\n[policy]\npath="p"\n[questions]\nsources=[{path="a", shar=2}]\n[rollot]\ntop_k=2\n')
    with pytest.raises(ConfigError) as caught:
        load_config(preset)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(str(preset)) for line in lines)
    assert "unknown section 'rollot', did you mean 'rollout'?" in str(caught.value)
    assert "unknown field 'stps', did you mean 'steps'?" in str(caught.value)
    assert "unknown field 'questions.sources.0.shar', did you mean 'questions.sources.0.share'?" in str(caught.value)


def test_broken_toml_names_file_and_place(tmp_path: Path) -> None:
    preset = tmp_path / "bad.toml"
    preset.write_text("steps = = 3")
    with pytest.raises(ConfigError, match=r"bad.toml: not valid TOML: .*line 1"):
        load_config(preset)


def test_digest_and_differences() -> None:
    config = load_config("laptop")
    assert config_digest(config) == config_digest(load_config("laptop", out="elsewhere"))
    other = load_config("laptop", group_size=4)
    assert config_digest(config) != config_digest(other)
    assert describe_differences(config, config) == []
    assert describe_differences(config, other) == [f"rollout.group_size: {config.rollout.group_size} -> 4"]


def test_every_leaf_field_can_be_set() -> None:
    names = dict(field_annotations())
    assert "rollout.group_size" in names
    assert "steps" in names
    assert "rollout" not in names


def test_paths_mean_the_same_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "q.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    shipped = load_config("laptop", model="deployments/presets")
    assert shipped.policy.path == "deployments/presets"
    assert locate(shipped.policy.path) == str(project_root() / "deployments/presets")
    assert load_config("laptop", model=str(project_root() / "deployments/presets")) == shipped
    mine = load_config("laptop", model="policy", questions=["q.jsonl", "missing.jsonl"])
    assert mine.policy.path == str(tmp_path / "policy")
    assert [source.path for source in mine.questions.sources] == [str(tmp_path / "q.jsonl"), "missing.jsonl"]
    assert load_config("laptop", model="hub:Qwen/Qwen2.5-3B").policy.path == "hub:Qwen/Qwen2.5-3B"
    assert resolve_paths(mine) == mine


@pytest.mark.parametrize(
    ("name", "candidates", "expected"),
    [
        ("trian", ["train", "export"], ", did you mean 'train'?"),
        ("top-k", ["rollout.top_k", "steps"], ", did you mean 'rollout.top_k'?"),
        ("xyz", ["train"], ""),
    ],
)
def test_nearest(name: str, candidates: list[str], expected: str) -> None:
    assert nearest(name, candidates) == expected
