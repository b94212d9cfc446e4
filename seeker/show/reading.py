"""What the views of a run show, read from its directory, whether the run is finished or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seeker.config import RunConfig
from seeker.errors import RunDirectoryError
from seeker.nearest import nearest
from seeker.program import resume_command
from seeker.runs import Json, Latest, RunDirectory, load_run, metric_rows, read_evaluations, read_latest, read_state

PHASES = ("rollout", "advantage", "update", "publish", "orchestration")


@dataclass(frozen=True, slots=True)
class RunView:
    """One run at one moment.

    `rows` are the metrics, one row a step; the row of step -1 holds the evaluation of the starting policy.
    Example: ``RunView(run_id="laptop-3", state="finished", step=30, config_digest="9f86d0…", …)``.
    """

    root: Path
    run_id: str
    state: str
    step: int  # committed steps
    config: RunConfig
    config_digest: str
    lineage: int
    rows: Sequence[Json]
    evaluations: Sequence[Json]
    events: Counter[str]

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Policy versions and values of one metric, where it was measured.

        A step's trajectories come from the version before it; an evaluation is of the version that the step made.
        """
        shift = 1 if name.startswith("eval") else 0
        rows = [row for row in self.rows if name in row]
        return [row["step"] + shift for row in rows], [float(row[name]) for row in rows]

    def phase_seconds(self) -> dict[str, float]:
        """Mean seconds of each phase over the steps."""
        found: dict[str, float] = {}
        for phase in PHASES:
            values = self.curve(f"seconds/{phase}")[1]
            if values:
                found[phase] = sum(values) / len(values)
        return found


def find_run(text: str | Path) -> Path:
    """The run directory of a path or of the id of a run in `runs/`; names the nearest where there is none."""
    for root in (Path(text), Path("runs") / text):
        if (root / "run.json").is_file():
            return root
    folder = Path("runs")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if Path(text).exists():
        raise RunDirectoryError(f"{text}: not a run directory (it holds no run.json)")
    raise RunDirectoryError(f"{text}: no such run{nearest(Path(text).name, names)}; runs: {', '.join(names) or 'none'}")


def read_run(root: Path) -> RunView:
    """Everything a view shows except trajectories. Takes no lock and changes nothing."""
    run = load_run(root)
    latest = read_latest(run)
    return RunView(
        root=root,
        run_id=run.run_id,
        state=_state(run, latest),
        step=0 if latest is None else latest.next_step,
        config=run.config,
        config_digest=run.describe()["config_digest"],
        lineage=run.lineage,
        rows=metric_rows(run),
        evaluations=read_evaluations(run),
        events=Counter(entry["event"] for entry in run.events.read()),
    )


def first_and_last(evaluations: Sequence[Json], mode: str) -> tuple[Json, Json] | None:
    """The held-out evaluations of the lowest and the highest policy version in one mode; None when there are none."""
    found = [each for each in evaluations if each["set"] == "heldout" and each["mode"] == mode]
    found.sort(key=_version)
    return (found[0], found[-1]) if found else None


def _version(evaluation: Any) -> int:
    return int(evaluation["policy_version"])


def _state(run: RunDirectory, latest: Latest | None) -> str:
    told = read_state(run.root)
    if told.state == "running":
        return f"running (process {told.pid})"
    done = 0 if latest is None else latest.next_step
    if done >= run.config.steps:
        return "finished"
    why = f"{told.state}: {told.reason}" if told.state in ("failed", "cancelled", "died") else "stopped before its end"
    return f"{why}; go on with: {resume_command(run.root)}"
