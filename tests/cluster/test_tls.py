"""A cluster behind TLS: `https` and `grpcs` endpoints with a certificate authority of one's own.

1. Calls and objects go through; the authority comes from settings or from a context of flame.yaml.
2. Without the authority nothing connects, and the error names the address.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import pytest

from seeker.cluster.client import Cluster, ClusterSettings, open_cluster
from seeker.errors import ClusterError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@dataclass(frozen=True)
class Tls:
    endpoint: str
    cache_endpoint: str
    ca_file: str


@pytest.fixture(scope="module")
def tls(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    """The package's cluster, behind relays that end the encryption."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    line = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    alternative = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run([*line.split(), "-addext", alternative], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    listeners = [_relay(context, each) for each in (cluster.endpoint, cluster.describe()["cache_endpoint"])]
    ports = [each.getsockname()[1] for each in listeners]
    yield Tls(f"https://localhost:{ports[0]}", f"grpcs://localhost:{ports[1]}", str(certificate))
    for listener in listeners:
        listener.close()


def _relay(context: ssl.SSLContext, endpoint: str) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    target = (urlparse(endpoint).hostname, urlparse(endpoint).port)

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(near,), daemon=True).start()

    def serve(plain: socket.socket) -> None:
        try:
            near = context.wrap_socket(plain, server_side=True)
        except (ssl.SSLError, OSError):  # a client that does not trust us
            plain.close()
            return
        far = socket.create_connection(target)
        threading.Thread(target=_copy, args=(far, near), daemon=True).start()
        _copy(near, far)

    threading.Thread(target=accept, daemon=True).start()
    return listener


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for each in (source, sink):
        each.close()


@pytest.mark.parametrize("by_context", [False, True])
def test_a_cluster_behind_tls(tls: Tls, by_context: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ClusterSettings(tls.endpoint, tls.cache_endpoint, tls.ca_file)
    if by_context:
        (tmp_path / ".flame").mkdir()
        part = f"tls: {{ca_file: '{tls.ca_file}'}}"
        (tmp_path / ".flame" / "flame.yaml").write_text(
            f"contexts:\n  - name: safe\n    cluster: {{endpoint: '{tls.endpoint}', {part}}}\n"
            f"    cache: {{endpoint: '{tls.cache_endpoint}'}}\n"
        )
        monkeypatch.setenv("HOME", str(tmp_path))
        settings = ClusterSettings(context="safe")
    with open_cluster(settings) as cluster:
        assert cluster.endpoint == tls.endpoint
        handle = cluster.objects.put("tls/s", b"safe")
        assert bytes(cluster.objects.get(handle)) == b"safe"
        cluster.objects.delete("tls/s")
        if not by_context:
            service = cluster.start("x", "tests.cluster.services:Echo", {})
            assert service.call("echo", 5, deadline_s=60).result() == 5


def test_an_unknown_authority(tls: Tls) -> None:
    settings = ClusterSettings(tls.endpoint, tls.cache_endpoint, connect_deadline_s=1.0)
    with pytest.raises(ClusterError, match=tls.endpoint):
        open_cluster(settings)
