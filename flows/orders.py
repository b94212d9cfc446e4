"""What is ordered of `train` and `pipeline`: which run, under which configuration.

A run that is there goes on under its stored configuration; a preset or a configuration begins a new one, or says again
what the run was begun with, and is refused where it differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.names import run_id_for
from seeker.config import RunConfig
from seeker.errors import ConfigError
from seeker.nearest import nearest
from seeker.presets import change_config, load_config, preset_names
from seeker.runs import load_run


@dataclass(frozen=True, slots=True)
class Order:
    """A preset or a configuration, and what is put over it.

    Examples: ``Order(preset="laptop", run_id="demo")`` begins `runs/demo`, or goes on with it; ``Order(run_id="demo",
    steps=80)`` goes on with it to 80 steps.
    """

    preset: str | None = None
    run_id: str | None = None  # also the path of a run directory, for a run that is there
    steps: int | None = None
    overrides: tuple[str, ...] = ()  # as after `--set`: ``rollout.group_size=4``
    config: RunConfig | None = None

    def resolve(self) -> tuple[RunConfig, str]:
        """The configuration and the run's id."""
        if self.preset and self.config is not None:
            raise ConfigError("a preset and a configuration were given: give one of them")
        root = self._existing()
        if self.preset or self.config is not None:
            config = self._named()
            if root is not None and self.steps is None and self.preset:
                config = config.model_copy(update={"steps": load_run(root).config.steps})
            return config, run_id_for(config, self.run_id)
        if root is None:
            raise ConfigError(self._nothing())
        run = load_run(root)
        config = change_config(run.config, self.overrides, steps=self.steps)
        return config.model_copy(update={"out": str(root)}), run.run_id

    def _named(self) -> RunConfig:
        if self.config is None:
            return load_config(str(self.preset), self.overrides, steps=self.steps)
        return change_config(self.config, self.overrides, steps=self.steps)

    def _existing(self) -> Path | None:
        """The directory of the run that was named, when it is there."""
        if not self.run_id:
            return None
        places = (Path("runs") / self.run_id, Path(self.run_id))
        return next((place for place in places if (place / "run.json").is_file()), None)

    def _nothing(self) -> str:
        presets = f"name a preset to begin one ({', '.join(preset_names())})"
        if not self.run_id:
            return f"neither a run nor a preset was named; {presets}"
        return f"run {self.run_id!r}: no such run{nearest(self.run_id, _run_names())}; {presets}"


def _run_names() -> Sequence[str]:
    folder = Path("runs")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
