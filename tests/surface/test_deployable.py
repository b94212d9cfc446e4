"""Flows as a deployment runs them.

1. A worker loads a flow from its file and takes plain JSON: a preset's name, a whole configuration, or a request.
2. The form of the UI has a described field for each parameter.
"""

from __future__ import annotations

from typing import Any

import pytest
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from seeker.presets import load_config, project_root

CONFIG = load_config("laptop").model_dump(mode="json")


@pytest.mark.parametrize(
    ("name", "parameters", "kind"),
    [
        ("prepare", {"config": CONFIG}, "config"),
        ("train", {"config": CONFIG, "run_id": "demo"}, "config"),
        ("train", {"preset": "laptop", "run_id": "demo", "steps": 3, "overrides": ["rollout.top_k=1"]}, "preset"),
        ("pipeline", {"config": CONFIG}, "config"),
        ("pipeline", {"preset": "laptop"}, "preset"),
        ("evaluate", {"request": {"run": "runs/demo"}}, "request"),
        ("export", {"request": {"run": "runs/demo"}}, "request"),
    ],
)
def test_a_flow_loaded_from_its_file_takes_json(name: str, parameters: dict[str, Any], kind: str) -> None:
    validated = load_flow(name).validate_parameters(parameters)
    assert type(validated[kind]).__name__ in ("RunConfig", "EvaluateRequest", "ExportRequest", "str")


@pytest.mark.parametrize("name", ["prepare", "train", "pipeline"])
def test_the_form_describes_every_parameter(name: str) -> None:
    properties = parameter_schema(load_flow(name)).properties
    assert next(iter(properties)) == "preset"
    assert [field for field, told in properties.items() if not told.get("description")] == []


def load_flow(name: str) -> Any:
    return load_flow_from_entrypoint(f"{project_root()}/flows/{name}.py:{name}")
