"""The cluster that the suite runs against, and what of it the tests may count on.

Without `FLAME_ENDPOINT` the embedded cluster is started. With it (and `FLAME_CACHE_ENDPOINT`) the tests use that
cluster and import nothing of Seeker. `FLAME_CONFORMANCE_PYTHON` names an interpreter with flamepy on its nodes, or is
`flmrun` to run services by the cluster's Runner template. Without it a cluster on this machine uses the interpreter of
this process, one elsewhere its template.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import flamepy
from flamepy.core import cache as sdk_cache
from flamepy.core.client import ConnectionInstance
from flamepy.core.types import ApplicationAttributes

DEFAULT_CACHE_ENDPOINT = "grpc://127.0.0.1:9090"
TEMPLATE = "flmrun"
RUNNER_MODULE = ["-m", "flamepy.runner.runpy"]


@dataclass(frozen=True)
class Target:
    """Example: ``Target("http://127.0.0.1:8080", "grpc://127.0.0.1:9090", "/venv/bin/python", False)``."""

    endpoint: str
    cache_endpoint: str
    python: str | None  # of services that are not run by the cluster's Runner template
    is_embedded: bool

    @property
    def shares_files(self) -> bool:
        """Whether its nodes see this machine's files and loopback servers."""
        return _is_loopback(self.endpoint)

    def service(self, source: str, *arguments: str, **attributes: object) -> ApplicationAttributes:
        """An application that runs `source`, a script that serves flamepy's service interface."""
        attributes.setdefault("delay_release", 3)
        if self.python is not None:
            command = {"command": self.python, "arguments": ["-c", source, *arguments]}
            return ApplicationAttributes(**command, **attributes)
        template = flamepy.get_application(TEMPLATE)
        assert template.arguments[-2:] == RUNNER_MODULE, template.arguments
        environments = {**template.environments, **(attributes.pop("environments", None) or {})}
        return ApplicationAttributes(
            command=template.command,
            arguments=[*template.arguments[:-2], "-c", source, *arguments],
            environments=environments,
            installer=template.installer,
            **attributes,
        )


@contextmanager
def open_target(log_dir: str) -> Iterator[Target]:
    endpoint = os.environ.get("FLAME_ENDPOINT")
    if endpoint:
        python = os.environ.get("FLAME_CONFORMANCE_PYTHON") or (sys.executable if _is_loopback(endpoint) else TEMPLATE)
        cache_endpoint = os.environ.get("FLAME_CACHE_ENDPOINT") or DEFAULT_CACHE_ENDPOINT
        yield Target(endpoint, cache_endpoint, None if python == TEMPLATE else python, False)
        return
    from seeker.cluster.client import ClusterSettings, open_cluster

    settings = ClusterSettings(log_dir=log_dir, run_id="conformance")
    with open_cluster(settings) as cluster:
        cache_endpoint = cluster.describe()["cache_endpoint"]
        yield Target(cluster.endpoint, cache_endpoint, settings.executor_python(), True)


def reset_sdk() -> None:
    """Forget every process-wide object of flamepy: connection, cache context, clients, values read."""
    connection, ConnectionInstance._connection = ConnectionInstance._connection, None
    if connection is not None:
        connection._channel.close()  # ends the streams that its threads follow
        connection._executor.shutdown(wait=True, cancel_futures=True)
    sdk_cache._context_cache = None
    for client in sdk_cache._client_pool.values():
        client.close()
    sdk_cache._client_pool.clear()
    sdk_cache._object_cache.clear()


def register_template() -> str:
    """The name of a copy of the Runner's template whose idle executors are released after five seconds."""
    template = flamepy.get_application(TEMPLATE)
    name = f"conformance-template-{uuid.uuid4().hex[:8]}"
    kept = ("shim", "command", "arguments", "environments", "working_directory", "installer")
    attributes = {field: getattr(template, field) for field in kept}
    flamepy.register_application(name, ApplicationAttributes(delay_release=5, **attributes))
    return name


def write_context(home: Path, target: Target, template: str, package: str = "{}") -> None:
    """A flame.yaml that names the cluster, a Runner template and where packages go."""
    (home / ".flame").mkdir()
    (home / ".flame" / "flame.yaml").write_text(
        f"current-context: here\ncontexts:\n- name: here\n  cluster: {{endpoint: '{target.endpoint}'}}\n"
        f"  cache: {{endpoint: '{target.cache_endpoint}'}}\n  package: {package}\n  runner: {{template: {template}}}\n",
        encoding="utf-8",
    )


def _is_loopback(endpoint: str) -> bool:
    return urlparse(endpoint).hostname in ("127.0.0.1", "localhost", "::1")
