"""What a finished run says at its end: before and after, and what that does and does not mean."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

from seeker.config import RunConfig
from seeker.runs import Json, load_run, read_evaluations, read_metrics

SMALL_POLICY = 10_000_000  # parameters; below this a policy reads the generated world and little else


def summary_lines(root: Path, exported: Json) -> list[str]:
    """Lines for the terminal."""
    run = load_run(root)
    lines = ["", f"run {run.run_id}: {exported['policy_version']} steps, in {root}"]
    for mode in ("greedy", "sampled"):
        lines += _before_and_after(read_evaluations(run), mode)
    lines += [f"exported policy: {exported['path']} ({exported['compared_tokens']} greedy tokens compared)"]
    lines += _steps_without_effect(read_metrics(root))
    notice = low_score_notice(run.config, exported["path"])
    return lines + ([notice] if notice else [])


def _steps_without_effect(rows: list[Json]) -> list[str]:
    idle = [row for row in rows if row.get("groups/kept") == 0]
    if not idle:
        return []
    return [
        f"note: in {len(idle)} of {sum('groups/kept' in row for row in rows)} steps every group's trajectories had "
        "equal rewards, so there was nothing to learn from"
    ]


def low_score_notice(config: RunConfig, policy: str) -> str | None:
    """Why an exact match near zero is what to expect, where the facts say so."""
    size = count_parameters(Path(policy))
    if size is None or size >= SMALL_POLICY or config.questions.world_seed is not None:
        return None
    return (
        f"note: this policy has {size / 1e6:.1f} million parameters and was taught to read the generated world only. "
        "On real text an exact match near zero is expected: the run shows that the pipeline works on these questions. "
        "For answers use a language model of a billion parameters or more, for example the preset "
        "qwen2.5-3b-hotpotqa on GPUs (with --trainers 1)."
    )


def count_parameters(folder: Path) -> int | None:
    """Parameters in a policy folder's safetensors files, from their headers; None where there are none."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return sum(_parameters_in(path) for path in files) if files else None


def _parameters_in(path: Path) -> int:
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _before_and_after(evaluations: list[Json], mode: str) -> list[str]:
    chosen = [each for each in evaluations if each["set"] == "heldout" and each["mode"] == mode]
    if not chosen:
        return []
    first = min(chosen, key=lambda each: each["policy_version"])
    last = max(chosen, key=lambda each: each["policy_version"])
    lines = [
        f"{mode} on {last['n']} held-out questions: exact match {_share(first)} -> {_share(last)}, "
        f"f1 {first['f1']:.3f} -> {last['f1']:.3f}, searches {first['searches']:.2f} -> {last['searches']:.2f}"
    ]
    if mode == "greedy":
        for kind, after in last["kinds"].items():
            before = first["kinds"].get(kind, {}).get("exact_match", 0.0)
            lines.append(f"  {kind}: {before:.3f} -> {after['exact_match']:.3f} ({after['n']} questions)")
    return lines


def _share(evaluation: Json) -> str:
    low, high = evaluation["exact_match_interval"]
    return f"{evaluation['exact_match']:.3f} (95 % {low:.3f} to {high:.3f})"
