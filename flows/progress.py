"""One line a step with an estimate of what is left: live in a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from seeker.config import RunConfig
from seeker.runs import Json

WINDOW = 10  # steps that the estimate looks back


def outlive_readers() -> None:
    """Let this process go on when nobody reads its output any more, as when a flow run's worker has died.

    Rich ends a process that prints into a broken pipe, also where Prefect logs through it.
    """
    Console.on_broken_pipe = _go_quiet  # type: ignore[method-assign]


def _go_quiet(console: Console) -> None:
    console.quiet = True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, console.file.fileno())
    os.close(nowhere)


class StepProgress:
    """Progress of a training run.

    Example line: ``step 12/30  exact match 0.610  form 0.98  searches 1.90  step 5.1 s  about 1 min 20 s left``.
    """

    def __init__(self, run_id: str, first: int, steps: int, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._steps = steps
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(run_id, total=steps, completed=first, left="")

    def __enter__(self) -> StepProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, step: int) -> None:
        self._bar.update(self._task, description=f"step {step + 1}")

    def evaluating(self, version: int) -> None:
        self._bar.update(self._task, description=f"evaluating version {version}")

    def end(self, step: int, metrics: Json) -> None:
        self._seconds.append(metrics["seconds/step"])
        left = self._left(step + 1)
        self._bar.update(self._task, advance=1, left=left)
        self.say([f"{step_line(step, self._steps, metrics)}  {left}".rstrip()])

    def note(self, evaluation: Json) -> None:
        self.say([evaluation_line(evaluation)])

    def say(self, lines: Sequence[str]) -> None:
        """Print lines above the bar."""
        for line in lines:
            self._bar.console.print(line, markup=False)

    def _left(self, done: int) -> str:
        return describe_left(sum(self._seconds) / len(self._seconds) * (self._steps - done))


def print_evaluations(evaluations: Sequence[Json]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for evaluation in evaluations:
        console.print(evaluation_line(evaluation))


def start_lines(config: RunConfig, template: str) -> list[str]:
    """The limits that cut a trajectory, and how the prompt reads."""
    rollout = config.rollout
    return [
        f"limits: {rollout.max_turn_tokens} tokens a turn, {rollout.max_observation_tokens} an observation, "
        f"{rollout.max_trajectory_tokens} a trajectory; {rollout.max_searches} searches of {rollout.top_k} passages",
        template,
    ]


def step_line(step: int, steps: int, metrics: Json) -> str:
    void = f"  void {metrics['groups/void']}" if metrics["groups/void"] else ""
    return (
        f"step {step + 1}/{steps}  exact match {metrics['reward/exact_match']:.3f}"
        f"  form {metrics['format/valid_share']:.2f}  searches {metrics['search_r1/search_calls_per_sample']:.2f}"
        f"  groups {metrics['groups/kept']}+{metrics['groups/dropped']}{void}"
        f"  step {metrics['seconds/step']:.1f} s (rollout {metrics['seconds/rollout']:.1f},"
        f" update {metrics['seconds/update']:.1f})"
    )


def evaluation_line(evaluation: Json) -> str:
    low, high = evaluation["exact_match_interval"]
    return (
        f"evaluation of version {evaluation['policy_version']}, {evaluation['mode']}, {evaluation['n']} questions:"
        f" exact match {evaluation['exact_match']:.3f} ({low:.3f} to {high:.3f})  f1 {evaluation['f1']:.3f}"
        f"  searches {evaluation['searches']:.2f}"
    )


def describe_left(seconds: float) -> str:
    """``about 1 min 20 s left``."""
    if seconds <= 0:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"about {minutes // 60} h {minutes % 60} min left"
    return f"about {minutes} min {rest} s left" if minutes else f"about {rest} s left"
