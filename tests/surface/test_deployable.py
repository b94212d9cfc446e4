"""Flows as a deployment runs them.

1. A worker loads a flow from its file and validates plain JSON against its one pydantic model.
"""

from __future__ import annotations

from typing import Any

import pytest
from prefect.flows import load_flow_from_entrypoint

from seeker.presets import load_config, project_root

CONFIG = load_config("laptop").model_dump(mode="json")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("prepare", {"config": CONFIG}),
        ("train", {"config": CONFIG, "run_id": "demo"}),
        ("pipeline", {"config": CONFIG}),
        ("evaluate", {"request": {"run": "runs/demo"}}),
        ("export", {"request": {"run": "runs/demo"}}),
    ],
)
def test_a_flow_loaded_from_its_file_takes_json(name: str, parameters: dict[str, Any]) -> None:
    flow: Any = load_flow_from_entrypoint(f"{project_root()}/flows/{name}.py:{name}")
    validated = flow.validate_parameters(parameters)
    assert type(next(iter(validated.values()))).__name__.endswith(("Config", "Request"))
