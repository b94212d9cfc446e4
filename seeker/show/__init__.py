"""Looking at a run: `reading` takes it from its directory, the others draw it (terminal, page, picture)."""

from __future__ import annotations
