"""When a run is evaluated and checkpointed."""

from __future__ import annotations

from seeker.config import RunConfig
from tasks.evaluation import Mode


def is_checkpoint_due(config: RunConfig, version: int) -> bool:
    """Every so many steps and at the end; the start is in the policy folder."""
    return version > 0 and (version % config.checkpoint.every == 0 or version == config.steps)


def modes_due(config: RunConfig, version: int) -> list[Mode]:
    """Greedy at the start, every so many steps and at the end; at both ends also sampled."""
    settings = config.evaluation
    at_end = version in (0, config.steps)
    greedy = at_end or (settings.every > 0 and version % settings.every == 0)
    return (["greedy"] if greedy else []) + (["sampled"] if at_end and settings.sampled else [])
