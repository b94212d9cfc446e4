"""One served Prefect for all drills of this folder, and the table that they end with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deployments.served import ServedPrefect, serving
from tests.drills.tally import tally


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPrefect]:
    with serving(tmp_path_factory.mktemp("serve"), ["tests.drills.serve"]) as served:
        served.forget_triggers()
        yield served


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if tally.runs:
        terminalreporter.section("kill drill")
        for line in tally.lines():
            terminalreporter.write_line(line)
