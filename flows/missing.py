"""Which evaluations of a run are missing: those that were due, and that of its latest version.

A stored evaluation counts when it is of the same policy (by digest), questions and protocol; so a version that a later
lineage replaced counts as missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flows.due import modes_due
from seeker.errors import RunDirectoryError, SeekerError
from seeker.questions import read_questions
from seeker.runs import Json, RunDirectory, load_run, published_manifest, read_latest
from seeker.runs.state import read_state
from tasks.evaluation import (
    Candidate,
    Mode,
    QuestionSet,
    evaluation_identity,
    evaluation_path,
    is_final,
    stored_evaluation,
)


def run_folders(folder: Path) -> list[Path]:
    """The run directories in `folder`, by name."""
    return sorted(path.parent for path in folder.glob("*/run.json"))


@dataclass(frozen=True, slots=True)
class Missing:
    """What is to be evaluated, in order, and why that cannot be told of other versions."""

    wanted: tuple[tuple[Candidate, Mode], ...] = ()
    damaged: tuple[SeekerError, ...] = ()


def find_missing(root: Path) -> Missing:
    """Nothing while the run is being written, since the loop evaluates itself."""
    run = load_run(root)
    latest = read_latest(run)
    if latest is None or "prepared" not in run.describe() or read_state(root).state == "running":
        return Missing()
    wanted = [
        (version, mode) for version in range(latest.policy_version + 1) for mode in modes_due(run.config, version)
    ]
    if (latest.policy_version, "greedy") not in wanted:
        wanted.append((latest.policy_version, "greedy"))
    found: list[tuple[Candidate, Mode]] = []
    damaged: dict[int, SeekerError] = {}
    for version, mode in wanted:
        try:
            candidate = _candidate(run, version)
        except RunDirectoryError as error:
            damaged[version] = error
            continue
        if not _is_done(run, candidate, mode):
            found.append((candidate, mode))
    return Missing(tuple(found), tuple(damaged.values()))


def heldout_of(run: RunDirectory, prepared: Json) -> QuestionSet:
    """The questions that the run itself is evaluated on."""
    return QuestionSet("heldout", tuple(read_questions(prepared["heldout"])[: run.config.evaluation.num_questions]))


def _candidate(run: RunDirectory, version: int) -> Candidate:
    return Candidate(version, published_manifest(run, version), str(run.policy_folder.resolve()))


def _is_done(run: RunDirectory, candidate: Candidate, mode: Mode) -> bool:
    told = run.describe()
    if not Path(told["prepared"]["heldout"]).is_file():  # to be prepared again, but only for what is missing for sure
        return evaluation_path(run.root, candidate.version, "heldout", mode).is_file()
    questions = heldout_of(run, told["prepared"])
    identity = evaluation_identity(run.config, told["digests"], candidate, questions, mode)
    stored = stored_evaluation(run.root, identity)
    return stored is not None and is_final(stored)
