"""Which cluster is meant.

1. Settings win over a context, a context over FLAME_ENDPOINT, and without any of them the embedded cluster is meant.
2. The first source that names a part decides the whole address: endpoints of two clusters never mix.
3. Without a cache endpoint the cache is on the cluster's host, port 9090; a cache endpoint alone is refused.
4. A context brings endpoints and certificates; HOME says where its file is.
5. What is wrong with flame.yaml is told with file, field, value and remedy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from seeker.cluster.named import Address, read_context
from seeker.cluster.settings import ClusterSettings
from seeker.errors import ConfigError

FILE = """
current-context: home
contexts:
  - name: home
    cluster: {endpoint: "http://home:8080"}
  - name: lab
    cluster: {endpoint: "https://lab:8443", tls: {ca_file: "CA"}}
    cache: {endpoint: "grpcs://store:9443"}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("FLAME_ENDPOINT", "FLAME_CACHE_ENDPOINT", "FLAME_CA_FILE", "SEEKER_CLUSTER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".flame").mkdir()
    (tmp_path / "ca.crt").write_text("certificate")
    (tmp_path / ".flame" / "flame.yaml").write_text(FILE.replace("CA", str(tmp_path / "ca.crt")))
    return tmp_path


def _endpoints(address: Address | None) -> tuple[str, str] | None:
    return address and (address.endpoint, address.cache_endpoint)


def test_order_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ClusterSettings().address() is None
    monkeypatch.setenv("FLAME_ENDPOINT", "http://env:1")
    monkeypatch.setenv("FLAME_CACHE_ENDPOINT", "grpc://env:2")
    assert _endpoints(ClusterSettings().address()) == ("http://env:1", "grpc://env:2")
    monkeypatch.setenv("SEEKER_CLUSTER_CONTEXT", "home")
    assert _endpoints(ClusterSettings().address()) == ("http://home:8080", "grpc://home:9090")
    assert _endpoints(ClusterSettings(context="lab").address()) == ("https://lab:8443", "grpcs://store:9443")
    assert _endpoints(ClusterSettings("http://set:3").address()) == ("http://set:3", "grpc://set:9090")


@pytest.mark.parametrize(
    ("endpoint", "cache"),
    [
        ("http://10.0.0.1:8080", "grpc://10.0.0.1:9090"),
        ("https://lab", "grpcs://lab:9090"),
        ("http://[::1]:80", "grpc://[::1]:9090"),
    ],
)
def test_the_cache_is_beside_the_cluster(endpoint: str, cache: str) -> None:
    assert _endpoints(ClusterSettings(endpoint).address()) == (endpoint, cache)


def test_certificates(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = ClusterSettings(context="lab").address()
    assert lab is not None
    assert (lab.ca_file, lab.cache_ca_file) == (str(home / "ca.crt"),) * 2
    (home / "other.crt").write_text("certificate")
    other = str(home / "other.crt")
    mine = ClusterSettings(context="lab", ca_file=other).address()
    assert mine is not None
    assert (mine.ca_file, mine.cache_ca_file) == (other, other)
    monkeypatch.setenv("FLAME_CA_FILE", other)
    filled = ClusterSettings(context="home").address()
    assert filled is not None
    assert filled.ca_file == other
    monkeypatch.setenv("FLAME_CA_FILE", "/none.crt")
    with pytest.raises(ConfigError, match=r"ca_file '/none.crt': no such file; name"):
        ClusterSettings("https://lab:1").address()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (ClusterSettings(cache_endpoint="grpc://a:1"), "the cache endpoint 'grpc://a:1' has no cluster endpoint"),
        (
            ClusterSettings("lab:8080"),
            r"cluster settings \(.*\): cluster.endpoint 'lab:8080': expected http://HOST:8080",
        ),
        (ClusterSettings("http://lab:eighty"), "cluster.endpoint 'http://lab:eighty'"),
        (ClusterSettings("http://lab:1", "http://lab:2"), "cache.endpoint 'http://lab:2': expected grpc://HOST:9090"),
        (ClusterSettings(context="lap"), r"flame.yaml: contexts: no context is named 'lap' \(there are: home, lab\)"),
    ],
)
def test_what_is_wrong_is_told(settings: ClusterSettings, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        settings.address()


def test_a_cache_endpoint_alone_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAME_CACHE_ENDPOINT", "grpc://env:2")
    with pytest.raises(ConfigError, match=r"environment \(FLAME_ENDPOINT, FLAME_CACHE_ENDPOINT\).*name both"):
        ClusterSettings().address()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("contexts: [", "is not YAML"),
        ("- a", "expected a mapping with 'contexts', found list"),
        ("contexts: 3", "contexts: expected a list of contexts, found 3"),
        ("contexts: [3]", r"contexts\[0\].name: expected a name, found None"),
        ("contexts: [{name: x}]", "context 'x': cluster.endpoint: missing"),
        ("contexts: [{name: x, cluster: 5}]", "context 'x': cluster: expected a mapping, found 5"),
        ("contexts: [{name: x, cluster: {endpoint: 5}}]", "context 'x': cluster: endpoint: expected a text, found 5"),
        ("contexts: [{name: x, cluster: {endpoint: 'ftp://a'}}]", "context 'x': cluster.endpoint 'ftp://a': expected"),
        ("contexts: [{name: x, cluster: {endpoint: 'http://a', tls: on}}]", "cluster: tls: expected a mapping"),
        (
            "contexts: [{name: x, cluster: {endpoint: 'https://a', tls: {ca_file: /none}}}]",
            "ca_file '/none': no such file",
        ),
    ],
)
def test_faults_of_the_file(home: Path, text: str, expected: str) -> None:
    path = home / ".flame" / "flame.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=expected) as error:
        read_context("x")
    assert str(path) in str(error.value)


def test_a_missing_file(home: Path) -> None:
    (home / ".flame" / "flame.yaml").unlink()
    with pytest.raises(ConfigError, match=r"flame.yaml: no such file; write it, or name"):
        read_context("x")
