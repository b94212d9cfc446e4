"""How a Runner comes and goes.

1.  It packs the working directory, uploads it beside its objects and registers an application made from the template.
2.  Modules of the package are importable on the nodes, flat and under `src`; what is excluded does not travel.
3.  A missing pyproject.toml is made up, with the dependencies; a package's own is kept.
4.  `close` ends its sessions, its application, its objects and the local package; so does leaving the block.
5.  A name in use is refused when asked to, else shared; who only shares it cleans nothing up.
6.  With a task that runs, closing leaves the application behind; a second closing later clears it away.
7.  `python_version` reaches the application's environment.
8.  Packages may lie in a directory or on a web server that the nodes see; the template is named in flame.yaml.
9.  A file is uploaded under a key or a prefix, in pieces of a megabyte that become one object.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import flamepy
import pyarrow.flight as flight
import pytest
from flamepy.core import cache
from flamepy.core.cache import ObjectRef
from flamepy.runner import Runner

from tests.cluster.conformance import workloads
from tests.cluster.conformance.target import Target, write_context
from tests.cluster.conformance.waiting import value_of, wait_until


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_bytes(ref: ObjectRef) -> bytes:
    """A raw file of the cache. (The SDK's `download_object` looks for columns in Flight's chunks and fails.)"""
    reader = cache._get_flight_client(ref.endpoint).do_get(flight.Ticket(f"{ref.key}:0".encode()))
    return reader.read_all().column("data")[0].as_py()


def packed(name: str, endpoint: str) -> dict[str, bytes]:
    """Files of a Runner's package by path."""
    archive = io.BytesIO(read_bytes(ObjectRef(endpoint, f"{name}/pkg/{name}.tar.gz")))
    with tarfile.open(fileobj=archive) as opened:
        return {each.name: opened.extractfile(each).read() for each in opened if each.isfile()}


def test_what_is_registered_and_left(target: Target, name: str, project: Path) -> None:  # 1, 3, 4, 7
    (project / "data.txt").write_text("data")
    for excluded in (".venv/lib.py", "__pycache__/x.pyc", "dist/old.tar.gz", "x.pyc"):
        (project / excluded).parent.mkdir(exist_ok=True)
        (project / excluded).write_text("not this")
    runner = Runner(name, dependencies=["somewhere>=1", "elsewhere"], python_version="3.12")
    template, made = flamepy.get_application(flamepy.FlameContext().runner.template), flamepy.get_application(name)
    kept = ("command", "arguments", "installer", "delay_release", "max_instances", "shim")
    assert [getattr(made, field) for field in kept] == [getattr(template, field) for field in kept]
    assert made.environments == {**template.environments, "FLAME_PYTHON_VERSION": "3.12"}
    assert made.url.endswith(f"/{name}/pkg/{name}.tar.gz")
    files = packed(name, target.cache_endpoint)
    assert set(files) == {"data.txt", "pyproject.toml"}
    assert b'"elsewhere"' in files["pyproject.toml"]
    assert (project / "dist" / f"{name}.tar.gz").exists()
    ref = runner.put_object("x")
    service = runner.service(workloads.add)
    runner.close()
    assert flamepy.get_application(name) is None
    assert not (project / "dist" / f"{name}.tar.gz").exists()
    for gone in (ref, ObjectRef(ref.endpoint, f"{name}/pkg/{name}.tar.gz")):
        with pytest.raises(KeyError):
            cache.get_object(gone)
    with pytest.raises(flamepy.FlameError):
        flamepy.get_session(service._session.id)
    runner.close()  # again, to no effect


def test_modules_of_the_package(name: str, project: Path) -> None:  # 2, 3
    (project / "flat_of_ours.py").write_text("COLOUR = 'green'\n")
    (project / "src").mkdir()
    (project / "src" / "deep_of_ours.py").write_text("SIZE = 4\n")
    own = f'[project]\nname = "{name}"\nversion = "1"\n[tool.setuptools]\npy-modules = []\n'
    (project / "pyproject.toml").write_text(own)

    def look() -> tuple[str, int]:
        import deep_of_ours
        import flat_of_ours

        return flat_of_ours.COLOUR, deep_of_ours.SIZE

    with Runner(name, dependencies=["ignored"]) as runner:
        assert packed(name, flamepy.FlameContext().cache_endpoint)["pyproject.toml"].decode() == own
        service = runner.service(look, autoscale=False)
        assert value_of(service()) == ("green", 4)


def test_a_name_in_use(name: str, project: Path) -> None:  # 5
    with Runner(name) as first:
        with pytest.raises(flamepy.FlameError) as caught:
            Runner(name, fail_if_exists=True)
        assert caught.value.code == flamepy.FlameErrorCode.ALREADY_EXISTS
        ref = first.put_object("kept")
        with Runner(name) as second:
            session = second.service(workloads.add)._session
        assert flamepy.get_application(name) is not None
        assert cache.get_object(ref) == "kept"
        assert flamepy.get_session(session.id).state == flamepy.SessionState.OPEN
        session.close()
    assert flamepy.get_application(name) is None


def test_closing_while_a_task_runs(name: str, project: Path) -> None:  # 6
    with Runner(name) as runner:
        service = runner.service(workloads.nap, autoscale=False)
        future = service(1.0)._future
        wait_until(lambda: flamepy.get_session(service._session.id).running == 1, "the task runs")
    assert flamepy.get_application(name) is not None
    value_of(future)
    service.close()
    flamepy.unregister_application(name)
    cache.delete_objects(f"{name}/*")


class _Store(BaseHTTPRequestHandler):
    """A web server for packages: PUT, GET, DELETE."""

    files: dict[str, bytes]

    def _reply(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.files[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(201)

    def do_GET(self) -> None:
        self._reply(200 if self.path in self.files else 404, self.files.get(self.path, b""))

    def do_DELETE(self) -> None:
        self._reply(204 if self.files.pop(self.path, None) is not None else 404)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def web(same_machine: None) -> Iterator[tuple[str, dict[str, bytes]]]:
    files: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Store", (_Store,), {"files": files}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/packages", files
    server.shutdown()
    server.server_close()


def _answer_of_package() -> int:
    import package_of_ours

    return package_of_ours.ANSWER


@pytest.fixture
def packaged(project: Path) -> Path:
    (project / "package_of_ours.py").write_text("ANSWER = 42\n")
    (project / "own.secret").write_text("not this")
    return project


def _run_packaged(name: str) -> str:
    """The url of a package that was used."""
    with Runner(name) as runner:
        import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        try:
            service = runner.service(_answer_of_package, autoscale=False)
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        assert value_of(service()) == 42
        return flamepy.get_application(name).url


def test_packages_on_the_web(
    target: Target, name: str, packaged: Path, web: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:  # 8
    url, files = web
    base = flamepy.FlameContext().runner.template
    home = packaged / "dist"  # a directory that no package holds
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    write_context(home, target, base, f"{{storage: '{url}', excludes: ['*.secret']}}")
    assert _run_packaged(name) == f"{url}/{name}.tar.gz"
    assert files == {}  # deleted on close


def test_packages_in_a_directory(
    target: Target, name: str, packaged: Path, same_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:  # 8
    home = packaged / "dist"
    home.mkdir()
    (home / "store").mkdir()
    monkeypatch.setenv("HOME", str(home))
    template = f"{name}-template"
    base = flamepy.get_application(flamepy.FlameContext().runner.template)
    environments = {**base.environments, "PLAIN_TEMPLATE": "ours"}
    fields = {field: getattr(base, field) for field in ("command", "arguments", "installer")}
    flamepy.register_application(template, {**fields, "environments": environments, "delay_release": 5})
    write_context(home, target, template, f"{{storage: 'file://{home}/store'}}")
    assert _run_packaged(name) == f"file://{home}/store/{name}.tar.gz"
    assert os.listdir(home / "store") == []
    with Runner(name):
        made = flamepy.get_application(name)
        assert (made.environments, made.delay_release) == (environments, 5)
    flamepy.unregister_application(template)


def test_uploads(name: str, tmp_path: Path) -> None:  # 9
    path = tmp_path / "file.bin"
    path.write_bytes(bytes(range(256)) * 10_000)
    named = cache.upload_object(f"{name}/pkg/file.bin", str(path))
    assert (named.key, named.version) == (f"{name}/pkg/file.bin", 1)
    assert cache.upload_object(f"{name}/pkg/file.bin", str(path)).version == 2
    free = cache.upload_object(f"{name}/pkg", str(path))
    assert free.key.startswith(f"{name}/pkg/")
    assert read_bytes(named) == read_bytes(free) == path.read_bytes()
    try:
        cache.download_object(named, str(tmp_path / "back.bin"))
        assert (tmp_path / "back.bin").read_bytes() == path.read_bytes()
    except ValueError as error:
        assert "has no attribute 'column'" in str(error)  # noqa: PT017 (the released SDK's own fault)
    with pytest.raises(FileNotFoundError):
        cache.upload_object(f"{name}/pkg/none", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="Invalid key"):
        cache.upload_object(f"{name}/*", str(path))
    cache.delete_objects(f"{name}/*")
