"""Memory and open files of a process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """Example: ``Usage(resident_bytes=150 * 2**20, num_open=31)``."""

    resident_bytes: int
    num_open: int


def usage_of(pid: int) -> Usage:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd")))
