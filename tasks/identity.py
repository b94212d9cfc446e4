"""Digests that say what a run was made of: policy, prompt, corpus, index and code."""

from __future__ import annotations

import hashlib
from pathlib import Path

from seeker.config import RunConfig
from seeker.presets import locate, project_root
from seeker.prompt import prompt_digest
from seeker.runs import Json


def run_digests(config: RunConfig, prepared: Json) -> Json:
    """Example: ``{"policy": "9f86…", "prompt": "2c62…", "corpus": "…", "index": "…", "code": "…"}``."""
    return {
        "policy": policy_digest(config.policy.path),
        "prompt": prompt_digest(config.prompt),
        "corpus": file_digest(Path(prepared["corpus"])),
        "train": file_digest(Path(prepared["train"])),
        "heldout": file_digest(Path(prepared["heldout"])),
        "index": Path(prepared["index"]).name,  # content-addressed
        "code": code_digest(),
    }


def policy_digest(path: str) -> str | None:
    """Digest of the policy folder's files; None for a policy that is named, not kept here."""
    folder = Path(locate(path))
    return _digest(sorted(folder.iterdir()), folder) if folder.is_dir() else None


def file_digest(path: Path) -> str:
    return _digest([path], path.parent)


def code_digest() -> str:
    """Digest of the sources that a run executes."""
    root = project_root()
    return _digest(sorted(path for part in ("seeker", "tasks", "flows") for path in (root / part).rglob("*.py")), root)


def _digest(paths: list[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file():
            digest.update(str(path.relative_to(root)).encode())
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
