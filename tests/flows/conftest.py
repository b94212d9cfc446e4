"""Shared by the tests of the flows."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, prefect_server: None) -> Path:
    """The run directory of a run without trouble, on the scripted cluster."""
    from tests.flows.whole import run_flow

    return run_flow(tmp_path_factory.mktemp("whole"))[0]
