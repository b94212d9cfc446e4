"""Artifacts on a server.

1. Told again within a flow run, an artifact is changed in place: one row a key, the newest content.
2. Another flow run takes the key over: still one row, on its page.
"""

from __future__ import annotations

from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.runtime import flow_run

from tasks.artifacts import ArtifactText, put_artifacts

pytestmark = pytest.mark.usefixtures("prefect_server")


@task
def tell(text: str) -> None:
    put_artifacts([ArtifactText("run-demo-card", "markdown", text, "what it is")])


@flow
def tells(*texts: str) -> str:
    for text in texts:
        tell(text)
    return str(flow_run.id)


def test_one_row_a_key() -> None:
    first = tells("a", "b")
    assert [(each.data, str(each.flow_run_id)) for each in stored()] == [("b", first)]
    second = tells("c", "d")
    assert [(each.data, str(each.flow_run_id)) for each in stored()] == [("d", second)]
    with get_client(sync_client=True) as client:
        latest = client.read_latest_artifacts()
    assert [each.data for each in latest if each.key == "run-demo-card"] == ["d"]


def stored() -> list[Any]:
    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["run-demo-card"])))
