"""What is said of a named cluster that does not answer.

1. The error names the address, who named it, and what to do about that: variables, a setting, a context, a directory.
2. Old exports in a shell: where the project's shared cluster runs elsewhere, or does not run, the error says so.
3. An object cache that does not answer is told as such.
4. A cluster at an IPv6 address is reached.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from seeker.cluster.client import Cluster
from seeker.cluster.frontend import FrontendClient
from seeker.cluster.reaching import check_reachable
from seeker.cluster.settings import ClusterSettings
from seeker.errors import UnreachableError
from tests.cluster.conftest import name_no_cluster

DEAD, DEAD_CACHE = "http://127.0.0.1:9", "grpc://127.0.0.1:9"
UNSET = "unset FLAME_ENDPOINT FLAME_CACHE_ENDPOINT"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_no_cluster(tmp_path, monkeypatch)


def refusal(**settings: Any) -> UnreachableError:
    with pytest.raises(UnreachableError) as caught:
        check_reachable(ClusterSettings(connect_deadline_s=0.2, **settings))
    assert str(caught.value) == f"{caught.value.what}: {caught.value.remedy}"
    return caught.value


@contextmanager
def shared_cluster(endpoint: str) -> Iterator[None]:
    """What a running cluster leaves in its directory: its state, and a lock that is held."""
    directory = Path(".seeker-cluster")
    directory.mkdir()
    facts = {"pid": 4711, "host": socket.gethostname(), "endpoint": endpoint, "cache_endpoint": DEAD_CACHE}
    (directory / "state.json").write_text(json.dumps(facts))
    lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def test_old_exports_of_a_stopped_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAME_ENDPOINT", DEAD)
    error = refusal()
    assert error.what == (
        f"no cluster answered at {DEAD} within 0.2 s; it is named by environment (FLAME_ENDPOINT, FLAME_CACHE_ENDPOINT)"
    )
    assert error.remedy.startswith(f"none is running in .seeker-cluster either; `{UNSET}` for the embedded one")
    with shared_cluster("http://127.0.0.1:4242"):
        told = refusal().remedy
    assert told.startswith('the one of .seeker-cluster runs at http://127.0.0.1:4242; `eval "$(')
    assert 'seeker cluster start --env)"` names it' in told
    assert UNSET in told


def test_a_shared_cluster_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAME_ENDPOINT", DEAD)
    with shared_cluster(DEAD):
        assert "that is the cluster of .seeker-cluster (process 4711)" in refusal().remedy


def test_a_state_that_is_no_state_is_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAME_ENDPOINT", DEAD)
    with shared_cluster(DEAD):
        Path(".seeker-cluster/state.json").write_text("{")
        assert "none is running" in refusal().remedy


def test_who_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = refusal(endpoint=DEAD)
    assert "named by cluster settings (cluster.endpoint," in setting.what
    assert "--set cluster.endpoint=…" in setting.remedy
    (tmp_path / ".flame").mkdir()
    (tmp_path / ".flame/flame.yaml").write_text(f"contexts: [{{name: lab, cluster: {{endpoint: '{DEAD}'}}}}]")
    assert "flame.yaml: context 'lab' (cluster.context)" in refusal(context="lab").what
    monkeypatch.setenv("SEEKER_CLUSTER_CONTEXT", "lab")
    assert "flame.yaml: context 'lab' (SEEKER_CLUSTER_CONTEXT)" in refusal().what


def test_a_cache_that_does_not_answer(cluster: Cluster) -> None:
    what = refusal(endpoint=cluster.endpoint, cache_endpoint=DEAD_CACHE).what
    assert what.startswith(f"the cluster at {cluster.endpoint} answers, its object cache at {DEAD_CACHE} does not")
    check_reachable(ClusterSettings(cluster.endpoint, cluster.describe()["cache_endpoint"]))
    check_reachable(ClusterSettings())


def test_an_ipv6_address() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    try:
        port = server.add_insecure_port("[::1]:0")
    except RuntimeError:
        pytest.skip("this machine has no IPv6")
    server.start()
    FrontendClient(f"http://[::1]:{port}", None, 10).close()
    server.stop(None)
