"""Named clusters: the contexts of ``~/.flame/flame.yaml``, the file that flamepy itself reads.

contexts:
  - name: lab
    cluster: {endpoint: "https://lab:8080", tls: {ca_file: /etc/flame/ca.crt}}
    cache: {endpoint: "grpcs://lab:9090", tls: {ca_file: /etc/flame/ca.crt}}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlparse

from seeker.errors import ConfigError

CACHE_PORT = 9090
_SCHEMES = {"cluster": ("http", "https"), "cache": ("grpc", "grpcs", "grpc+tls")}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a cluster is, and who said so.

    Example: ``Address("https://lab:8080", "grpcs://lab:9090", "/ca.crt", "/ca.crt", "context 'lab'")``.
    """

    endpoint: str
    cache_endpoint: str
    ca_file: str | None = None
    cache_ca_file: str | None = None
    source: str = ""


def checked_address(
    endpoint: str | None, cache_endpoint: str | None, ca_files: tuple[str | None, str | None], source: str
) -> Address:
    """Both endpoints, checked. Without a cache endpoint the cache is expected on the cluster's host, port 9090.

    Example: ``checked_address("http://lab:8080", None, (None, None), "x").cache_endpoint == "grpc://lab:9090"``.
    """
    if not endpoint:
        raise ConfigError(
            f"{source}: the cache endpoint {cache_endpoint!r} has no cluster endpoint beside it; name both, or neither "
            "to use the embedded cluster"
        )
    parsed = _parsed(endpoint, "cluster", source)
    if not cache_endpoint:
        host = f"[{parsed.hostname}]" if ":" in (parsed.hostname or "") else parsed.hostname
        cache_endpoint = f"{'grpcs' if parsed.scheme == 'https' else 'grpc'}://{host}:{CACHE_PORT}"
    _parsed(cache_endpoint, "cache", source)
    for path in filter(None, ca_files):
        if not Path(path).is_file():
            raise ConfigError(f"{source}: ca_file {path!r}: no such file; name the certificate authority's PEM file")
    return Address(endpoint, cache_endpoint, *ca_files, source)


def _parsed(endpoint: str, part: str, source: str) -> Any:
    try:
        parsed = urlparse(endpoint)
        known = parsed.scheme in _SCHEMES[part] and bool(parsed.hostname) and parsed.port != 0
    except ValueError:  # a port that is no number
        known = False
    if not known:
        example = "http://HOST:8080 or https://HOST:8080" if part == "cluster" else "grpc://HOST:9090 or grpcs://…"
        raise ConfigError(f"{source}: {part}.endpoint {endpoint!r}: expected {example}")
    return urlparse(endpoint)


def flame_file() -> Path:
    """The one place where flamepy looks; HOME moves it."""
    return Path.home() / ".flame" / "flame.yaml"


def read_context(name: str, path: Path | None = None) -> Address:
    """The address of one context. Every fault is a `ConfigError` with file, field, value and remedy."""
    path = path or flame_file()
    contexts = _contexts(path)
    if name not in contexts:
        known = ", ".join(contexts) or "none"
        raise ConfigError(f"{path}: contexts: no context is named {name!r} (there are: {known})")
    return _address(contexts[name], f"{path}: context {name!r}")


def _contexts(path: Path) -> dict[str, dict[str, Any]]:
    listed: Any = _loaded(path).get("contexts")
    if not isinstance(listed, list):
        raise ConfigError(f"{path}: contexts: expected a list of contexts, found {listed!r}; see `flmctl` for its form")
    contexts: dict[str, dict[str, Any]] = {}
    each: Any
    for place, each in enumerate(cast("list[Any]", listed)):
        name: Any = cast("dict[str, Any]", each).get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{path}: contexts[{place}].name: expected a name, found {name!r}")
        contexts[name] = each
    return contexts


def _loaded(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data: Any = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; write it, or name the cluster by its endpoints instead") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); check its permissions and encoding") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping with 'contexts', found {type(data).__name__}")
    return cast("dict[str, Any]", data)


def _address(context: dict[str, Any], place: str) -> Address:
    endpoint, ca_file = _part(context, "cluster", place)
    cache_endpoint, cache_ca_file = _part(context, "cache", place)
    if endpoint is None:
        raise ConfigError(f"{place}: cluster.endpoint: missing; expected http://HOST:8080 or https://HOST:8080")
    return checked_address(endpoint, cache_endpoint, (ca_file, cache_ca_file or ca_file), place)


def _part(context: dict[str, Any], part: str, place: str) -> tuple[str | None, str | None]:
    """Endpoint and CA file of ``cluster`` or ``cache``."""
    section = _mapping(context, part, place)
    tls = _mapping(section, "tls", f"{place}: {part}")
    return _text(section, "endpoint", f"{place}: {part}"), _text(tls, "ca_file", f"{place}: {part}.tls")


def _mapping(values: dict[str, Any], field: str, place: str) -> dict[str, Any]:
    value: Any = values.get(field)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{place}: {field}: expected a mapping, found {value!r}")
    return cast("dict[str, Any]", value or {})


def _text(values: dict[str, Any], field: str, place: str) -> str | None:
    value = values.get(field)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{place}: {field}: expected a text, found {value!r}")
    return value or None
