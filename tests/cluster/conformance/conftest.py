"""One cluster for the suite, the stock client pointed at it, and an application of our own on it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import flamepy
import pytest
from flamepy.runner import Runner

from tests.cluster.conformance import plain_service, workloads
from tests.cluster.conformance.target import Target, open_target, register_template, reset_sdk, write_context

# The nodes of a cluster have no `tests` package: what a test hands to a Runner travels by value.
cloudpickle.register_pickle_by_value(workloads)

_ENVIRONMENT = ("HOME", "FLAME_ENDPOINT", "FLAME_CACHE_ENDPOINT", "FLAME_CACHE_STORAGE")


@pytest.fixture(autouse=True)
def _no_named_cluster() -> None:
    """In place of the one above: this suite is there to use a named cluster."""


@pytest.fixture(scope="package")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with open_target(str(tmp_path_factory.mktemp("logs"))) as opened:
        yield opened


@pytest.fixture(scope="package", autouse=True)
def stock_client(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """flamepy as a user has it, in a home of its own and an empty project.

    Its Runner template gives idle executors back at once, not after the minute of `flmrun`: a cluster with few slots
    would spend the suite waiting.
    """
    saved = {name: os.environ.get(name) for name in _ENVIRONMENT}
    directory = os.getcwd()
    home = tmp_path_factory.mktemp("home")
    os.environ["HOME"] = str(home)
    os.environ["FLAME_ENDPOINT"], os.environ["FLAME_CACHE_ENDPOINT"] = target.endpoint, target.cache_endpoint
    os.environ.pop("FLAME_CACHE_STORAGE", None)
    os.chdir(tmp_path_factory.mktemp("project"))
    reset_sdk()
    template = register_template()
    write_context(home, target, template)
    reset_sdk()
    yield
    flamepy.unregister_application(template)
    reset_sdk()
    os.chdir(directory)
    for name, value in saved.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(scope="package")
def plain(target: Target, stock_client: None) -> Iterator[str]:
    """An application that runs `plain_service.py`."""
    name = f"conformance-{uuid.uuid4().hex[:8]}"
    source = Path(plain_service.__file__).read_text(encoding="utf-8")
    flamepy.register_application(name, target.service(source))
    yield name
    for session in flamepy.list_sessions():
        if session.application == name:
            session.close()
    flamepy.unregister_application(name)


@pytest.fixture
def session(plain: str) -> Iterator[flamepy.Session]:
    """A session of its own for a test that counts."""
    opened = flamepy.create_session(plain, common_data=b"<", max_instances=1)
    yield opened
    opened.close()


@pytest.fixture(scope="package")
def shared(plain: str) -> flamepy.Session:
    """The session of all tests that do not count."""
    return flamepy.create_session(plain, common_data=b"<", max_instances=2)


@pytest.fixture(scope="package")
def runner(stock_client: None) -> Iterator[Runner]:
    """One Runner for the tests that do not look at how it comes and goes."""
    with Runner(f"conformance-runner-{uuid.uuid4().hex[:8]}") as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """A name that nothing else on the cluster has."""
    return f"conformance-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def two_slots() -> None:
    needs_slots(2)


@pytest.fixture
def four_slots() -> None:
    needs_slots(4)


@pytest.fixture
def eight_slots() -> None:
    needs_slots(8)


@pytest.fixture
def same_machine(target: Target) -> None:
    if not target.shares_files:
        pytest.skip("the cluster's nodes do not see this machine's files")


def needs_slots(count: int) -> None:
    """Skip what would wait for ever on a small cluster."""
    slots = sum(node.status.capacity.cpu for node in flamepy.list_nodes())
    if slots < count:
        pytest.skip(f"needs {count} slots, the cluster has {slots}")
