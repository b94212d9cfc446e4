"""A copy of a run directory.

1. It goes on by itself: nothing that the other one made after the copy is believed, and both end alike.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.flows.whole import copy_inputs, outcome, run_flow

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.mark.drill
def test_a_copy_goes_on_by_itself(uninterrupted: Path, tmp_path: Path) -> None:
    def die(method: str, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if method == "publish" and args[0] == 2:
            raise RuntimeError("the process is gone")

    copy_inputs(uninterrupted.parent, tmp_path)
    with pytest.raises(Exception, match="gone"):
        run_flow(tmp_path, die)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    first, _ = run_flow(tmp_path)
    second, cluster = run_flow(tmp_path, out=str(tmp_path / "copy"))
    assert second.name == "copy"
    assert "update" in [method for method, _, _ in cluster.services["trainer-tiny"].calls]
    assert outcome(first) == outcome(second) == outcome(uninterrupted)
