"""Libraries that ship without type hints, named once as `Any`, so that the rest of the code checks strictly."""

from __future__ import annotations

from importlib import import_module
from typing import Any

arrow: Any = import_module("pyarrow")
flight: Any = import_module("pyarrow.flight")
bson: Any = import_module("bson")
