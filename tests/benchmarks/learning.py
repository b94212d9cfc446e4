"""What the laptop preset learns: three seeds of two starting policies, and controls with shuffled rewards.

`make learning` runs `seeker train` for each (half an hour on two quiet cores, the second policy included) into
`runs/learning/` and prints one table. A run that is finished already is only read, so the command can be repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path("runs/learning")
SECOND_POLICY = ROOT / "second-policy"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the table. Example: ``Trial("seed-1", ("--seed", "1"))``."""

    name: str
    flags: tuple[str, ...]

    @property
    def path(self) -> Path:
        return ROOT / self.name


SECOND = ("--model", str(SECOND_POLICY))
CONTROL = ("--set", "reward.shuffle=true", "--set", "evaluation.num_questions=600")
TRIALS = (
    *(Trial(f"seed-{seed}", ("--seed", str(seed))) for seed in range(3)),
    *(Trial(f"second-seed-{seed}", ("--seed", str(seed), *SECOND)) for seed in range(3)),
    *(Trial(f"control-{seed}", ("--seed", str(seed), *CONTROL)) for seed in range(2)),
)


def main() -> int:
    """Run what is missing, print the table. Returns 1 when a claim of the README does not hold."""
    if not SECOND_POLICY.is_dir():
        _run([sys.executable, "-m", "flows.warm_start", "--seed", "2", "--out", str(SECOND_POLICY)])
    for trial in TRIALS:
        if not (trial.path / "export").is_dir():
            _run(["seeker", "train", "--preset", "laptop", "--out", str(trial.path), *trial.flags])
    console = Console(highlight=False, width=110)
    console.print(_table())
    broken = [text for trial in TRIALS for text in _broken_claims(trial)]
    console.print("\n".join(broken) or "all claims hold")
    return bool(broken)


def _run(command: list[str]) -> None:
    if command[0] == "seeker":
        command = [str(Path(sys.executable).with_name("seeker")), *command[1:]]
    subprocess.run(command, check=True)


def _evaluations(trial: Trial, mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last evaluation on the run's held-out questions."""
    paths = sorted((trial.path / "evaluations").glob(f"*-heldout-{mode}.json"))
    return json.loads(paths[0].read_text()), json.loads(paths[-1].read_text())


def _table() -> Table:
    table = Table("run", "n", "greedy", "sampled", "searches", "training s", title="exact match, start → end")
    for trial in TRIALS:
        greedy, sampled = _evaluations(trial, "greedy"), _evaluations(trial, "sampled")
        table.add_row(
            trial.name,
            str(greedy[0]["n"]),
            f"{greedy[0]['exact_match']:.3f} → {greedy[1]['exact_match']:.3f}",
            f"{sampled[0]['exact_match']:.3f} → {sampled[1]['exact_match']:.3f}",
            f"{greedy[0]['searches']:.2f} → {greedy[1]['searches']:.2f}",
            f"{_training_seconds(trial):.0f}",
        )
    return table


def _training_seconds(trial: Trial) -> float:
    lines = (trial.path / "metrics.jsonl").read_text().splitlines()
    return sum(json.loads(line).get("seconds/step", 0.0) for line in lines)


def _broken_claims(trial: Trial) -> list[str]:
    start, end = (evaluation["exact_match"] for evaluation in _evaluations(trial, "greedy"))
    if trial.name.startswith("control"):
        return [f"{trial.name}: {end - start:+.3f} with shuffled rewards"] if end - start > 0.05 else []
    return [f"{trial.name}: greedy exact match {end:.3f} is below 0.5"] if end < 0.5 else []


if __name__ == "__main__":
    sys.exit(main())
