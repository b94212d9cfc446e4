"""Finding and losing a cluster.

1.  An empty address is refused; a dead one after ten seconds of waiting (drill).
2.  `~/.flame/flame.yaml` names contexts, the environment overrides it; what is missing is told.
3.  A context's endpoints are enough for the whole client.
4.  Several connections live side by side, each closes by itself.
5.  `python -m flamepy.runner.e2e`, the engine's own check, passes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import flamepy
import pytest
from flamepy.core import cache
from flamepy.core.types import FlameContext, FlameErrorCode

from tests.cluster.conformance.target import Target
from tests.cluster.conformance.waiting import LIMIT_S


def test_an_empty_address() -> None:  # 1
    with pytest.raises(flamepy.FlameError, match="address cannot be empty") as caught:
        flamepy.connect("")
    assert caught.value.code == FlameErrorCode.INVALID_CONFIG


@pytest.mark.drill
def test_a_dead_address() -> None:  # 1
    start = time.monotonic()
    with pytest.raises(flamepy.FlameError, match="timeout connecting") as caught:
        flamepy.connect("http://127.0.0.1:1")
    assert caught.value.code == FlameErrorCode.INVALID_CONFIG
    assert time.monotonic() - start < 20


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("FLAME_ENDPOINT", "FLAME_CACHE_ENDPOINT", "FLAME_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".flame").mkdir()
    return tmp_path


def _write(home: Path, text: str) -> None:
    (home / ".flame" / "flame.yaml").write_text(text)


def test_contexts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # 2
    assert FlameContext().endpoint == "http://127.0.0.1:8080"
    assert (FlameContext().cache_endpoint, FlameContext().runner.template) == ("grpc://127.0.0.1:9090", "flmrun")
    _write(home, "contexts: []\n")
    with pytest.raises(flamepy.FlameError, match="current-context is not set"):
        FlameContext()
    _write(home, "current-context: a\ncontexts:\n- {name: b}\n")
    with pytest.raises(flamepy.FlameError, match="context <a> not found") as caught:
        FlameContext()
    assert caught.value.code == FlameErrorCode.INVALID_CONFIG
    _write(home, "current-context: b\ncontexts:\n- {name: b, cluster: {endpoint: 'http://there:1'}}\n")
    assert FlameContext().endpoint == "http://there:1"
    monkeypatch.setenv("FLAME_ENDPOINT", "http://elsewhere:2")
    assert FlameContext().endpoint == "http://elsewhere:2"


def test_a_client_by_its_file(target: Target, home: Path, plain: str, monkeypatch: pytest.MonkeyPatch) -> None:  # 3
    endpoints = f"cluster: {{endpoint: '{target.endpoint}'}}\n  cache: {{endpoint: '{target.cache_endpoint}'}}"
    _write(home, f"current-context: here\ncontexts:\n- name: here\n  {endpoints}\n")
    kept = flamepy.core.client.ConnectionInstance._connection
    flamepy.core.client.ConnectionInstance._connection = None
    cache._context_cache = None
    try:
        assert flamepy.get_application(plain).name == plain
        ref = flamepy.put_object(f"{plain}/file", 1)
        assert flamepy.get_object(ref) == 1
        cache.delete_objects(ref.key)
    finally:
        flamepy.core.client.ConnectionInstance._connection.close()
        flamepy.core.client.ConnectionInstance._connection = kept
        cache._context_cache = None


def test_several_connections(target: Target, plain: str, shared: flamepy.Session) -> None:  # 4
    first, second = flamepy.connect(target.endpoint), flamepy.connect(target.endpoint)
    names = {application.name for application in first.list_applications()}
    assert plain in names
    first.close()
    assert plain in {application.name for application in second.list_applications()}
    second.close()
    assert shared.invoke(b"still") == b"<still"


def test_runner_e2e(target: Target, tmp_path: Path) -> None:  # 5
    start = time.monotonic()
    line = [sys.executable, "-m", "flamepy.runner.e2e"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    print(f"flamepy.runner.e2e: {time.monotonic() - start:.1f} s")  # the embedded cluster: 4 s or less, quiet
    assert done.returncode == 0, done.stderr
    assert "Flame Runner cluster e2e passed" in done.stdout
