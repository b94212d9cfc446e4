"""What the drills did, for the table at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts over all runs."""

    runs: int = 0
    resumes: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    lost: int = 0  # rollout calls that were under way when their flow or executor died, and were done again
    kept: int = 0  # rollout calls that were finished before a death, and were taken up
    repeated: int = 0  # rollout calls that were finished and done again all the same
    random: int = 0  # of the kills
    formed_again: int = 0  # trainer gangs that were lost, rebuilt and replayed within a flow run

    def lines(self) -> list[str]:
        kills = ", ".join(f"{name} {number}" for name, number in sorted(self.kills.items()))
        return [
            f"runs {self.runs}, killed {self.kills.total()} times ({kills}), resumed {self.resumes} times",
            f"rollout calls: {self.lost} lost under way and done again, {self.kept} finished ones taken up, "
            f"{self.repeated} finished ones repeated",
            f"trainers rebuilt beside a living flow: {self.formed_again}",
        ]


tally = Tally()
