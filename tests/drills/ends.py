"""What a run came to, and whether what its directory says about itself is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seeker.runs import (
    committed_manifests,
    current_writer,
    load_run,
    published_manifest,
    read_evaluations,
    read_latest,
    read_state,
    writer_lock,
)

# Where the anchor lies depends on where a run was resumed; the rest are times.
DEPENDS_ON_THE_WAY = ("seconds", "publish/bytes", "publish/changed_fraction")
TIMES = ("rollout/retrieval_s", "rollout/sampler_busy_share", "rollout/tokens_per_s")


def outcome(root: Path) -> dict[str, Any]:
    """What must be equal however a run came to its end, down to the bytes of batches and of the last full state."""
    run = load_run(root)
    latest = read_latest(run)
    assert latest is not None
    versions = range(latest.policy_version + 1)
    return {
        "rows": [_comparable(row) for row in rows_of(root)],
        "evaluations": sorted(map(_comparable, read_evaluations(run)), key=lambda each: each["policy_version"]),
        "batches": [manifest["batch"]["sha256"] for manifest in committed_manifests(run)],
        "policies": [published_manifest(run, version)["digest"] for version in versions],
        "state": (run.checkpoint_path(latest.policy_version) / "state.safetensors").read_bytes(),
    }


def rows_of(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Which parts differ, with the first difference; short, since the parts are large."""
    told: list[str] = []
    for name, part in expected.items():
        if found[name] == part:
            continue
        if isinstance(part, list) and len(part) == len(found[name]):
            at = next(i for i, pair in enumerate(zip(part, found[name], strict=True)) if pair[0] != pair[1])
            told.append(f"{name}[{at}]: {str(found[name][at])[:1500]}, expected {str(part[at])[:1500]}")
        else:
            told.append(f"{name}: {len(found[name])} long, expected {len(part)}")
    return told


def check_order(root: Path, steps: int) -> None:
    """No step is missing or double; nothing was abandoned; nothing is half-written, locked or untrue."""
    run = load_run(root)
    assert [row["step"] for row in rows_of(root)] == list(range(-1, steps))
    assert [manifest["step"] for manifest in committed_manifests(run)] == list(range(steps))
    evaluated = [(each["policy_version"], each["mode"]) for each in read_evaluations(run)]
    assert len(set(evaluated)) == len(evaluated)
    assert (run.lineage, (root / "lineages").exists(), (root / "damaged").exists()) == (0, False, False)
    assert [str(path) for path in root.rglob("*.tmp")] == []
    assert current_writer(root) is None
    with writer_lock(root):
        pass
    assert read_state(root).state == "completed"


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith(DEPENDS_ON_THE_WAY) and name not in TIMES}
