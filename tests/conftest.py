"""Shared by all test packages: Prefect against a private, ephemeral server, started once and only where it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Before torch is imported anywhere: two thread pools on two busy cores cost five times the seconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """Flows run against a temporary database, without heartbeats (each would cost a flow run a second)."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    with (
        prefect_test_harness(server_startup_timeout=120),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        yield
