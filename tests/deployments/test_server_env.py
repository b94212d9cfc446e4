"""`deployments/server.env`, the one place of the server's settings.

1. Prefect takes every value in it, and uses it.
2. A line that is neither a setting nor a comment is refused with its number.
3. Commands and `seeker serve` read it; a user's own variables win.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.environment import prepare_environment
from flows.serving.place import Place
from flows.serving.supervisor import child_environ
from flows.settings import server_settings
from seeker.errors import ConfigError

SHOW = """
from prefect.settings import get_current_settings
s = get_current_settings()
print(s.server.services.task_run_recorder.batch_size, sorted(s.server.services.db_vacuum.enabled_vacuum_types),
      s.server.events.retention_period.days, s.flows.heartbeat_frequency, s.server.analytics_enabled,
      s.server.logs.stream_out_enabled, s.server.logs.stream_publishing_enabled)
"""


def test_prefect_takes_every_value(tmp_path: Path) -> None:
    environ = {**os.environ, **server_settings(), "PREFECT_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SHOW], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "100 ['events', 'flow_runs', 'orphans'] 7 30 False True True", done.stderr


def test_a_line_that_is_no_setting(tmp_path: Path) -> None:
    path = tmp_path / "server.env"
    path.write_text("# fine\nA_B=1=2\n\nexport X=1\n")
    with pytest.raises(ConfigError, match=r"server\.env:4: .*export X=1"):
        server_settings(path)


def test_a_users_own_variables_win() -> None:
    name = "PREFECT_WORKER_QUERY_SECONDS"
    environ = {name: "9", "PREFECT_PROFILE": "cloud"}
    assert prepare_environment(environ) is not None
    assert environ[name] == "9"
    assert environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert "PREFECT_PROFILE" not in environ


def test_the_environment_of_what_is_served() -> None:
    given = {
        "PREFECT_API_URL": "http://elsewhere/api",
        "PREFECT_WORKER_QUERY_SECONDS": "9",
        "PREFECT_API_KEY": "secret",
    }
    told = child_environ(given, Place(Path("/home/x")), 4300)
    assert told["PREFECT_API_URL"] == "http://127.0.0.1:4300/api"
    assert (told["PREFECT_WORKER_QUERY_SECONDS"], told["PREFECT_HOME"]) == ("9", "/home/x")
    assert "PREFECT_API_KEY" not in told
    assert told["SEEKER_REPORTS_URL"].endswith(":4300/reports")
    secured = child_environ({"PREFECT_SERVER_API_AUTH_STRING": "admin:pw"}, Place(Path("/home/x")), 4300)
    assert secured["PREFECT_API_AUTH_STRING"] == "admin:pw"
    assert "SEEKER_REPORTS_URL" not in secured
