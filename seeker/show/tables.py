"""The rows that every view of a run shows: terminal, page and Prefect artifact alike."""

from __future__ import annotations

from collections.abc import Sequence

from seeker.runs import Json
from seeker.show.reading import RunView

EVALUATION_COLUMNS = ("version", "questions", "mode", "exact match (95 %)", "F1", "searches", "number")
KIND_COLUMNS = ("kind", "first exact match", "last exact match", "number")


def config_facts(view: RunView) -> list[tuple[str, str]]:
    """Name and value of what identifies the run and its protocol."""
    config, rollout = view.config, view.config.rollout
    origin = (
        f"generated world {config.questions.world_seed}"
        if config.questions.world_seed is not None
        else ", ".join(source.path for source in config.questions.sources)
    )
    return [
        ("state", view.state),
        ("steps", f"{view.step} of {config.steps}"),
        ("preset", config.preset or "none"),
        ("policy", config.policy.path),
        ("questions", origin),
        (
            "step",
            f"{rollout.prompts_per_step} questions × {rollout.group_size} trajectories, "
            f"learning rate {config.optimizer.learning_rate:g}, KL {config.objective.kl_coefficient:g}",
        ),
        (
            "protocol",
            f"{rollout.max_searches} searches, top {rollout.top_k}, temperature {rollout.temperature:g}; tokens per "
            f"turn {rollout.max_turn_tokens}, observation {rollout.max_observation_tokens}, "
            f"trajectory {rollout.max_trajectory_tokens}",
        ),
        ("cluster", f"{config.cluster.rollouts} rollout and {config.cluster.trainers} trainer executors"),
        ("seed", f"{config.seed}, lineage {view.lineage}, configuration {view.config_digest[:12]}"),
        ("folder", str(view.root)),
    ]


def phase_rows(view: RunView) -> list[tuple[str, float, float]]:
    """Phase, mean seconds per step, share of the step."""
    seconds = view.phase_seconds()
    total = sum(seconds.values()) or 1.0
    return [(phase, value, value / total) for phase, value in seconds.items()]


def evaluation_rows(evaluations: Sequence[Json]) -> list[list[str]]:
    """The values of `EVALUATION_COLUMNS`, one row an evaluation."""
    ordered = sorted(evaluations, key=lambda each: (each["set"], each["mode"], each["policy_version"]))
    return [
        [
            str(each["policy_version"]),
            str(each["set"]),
            str(each["mode"]),
            share_with_interval(each),
            f"{each['f1']:.3f}",
            f"{each['searches']:.2f}",
            str(each["n"]),
        ]
        for each in ordered
    ]


def kind_rows(first: Json, last: Json) -> list[list[str]]:
    """The values of `KIND_COLUMNS`, one row a kind of question."""
    before, after = first.get("kinds", {}), last.get("kinds", {})
    return [
        [
            kind or "(none)",
            f"{before[kind]['exact_match']:.3f}" if kind in before else "–",
            share_with_interval(told),
            str(told["n"]),
        ]
        for kind, told in sorted(after.items())
    ]


def share_with_interval(scores: Json) -> str:
    """``0.620 [0.551, 0.684]``: exact match with its 95 % interval."""
    low, high = scores["exact_match_interval"]
    return f"{scores['exact_match']:.3f} [{low:.3f}, {high:.3f}]"
