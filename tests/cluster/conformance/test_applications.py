"""Applications.

1.  Every attribute comes back as it was registered; the application is enabled, its id is its name.
2.  What was not given is absent, but for the shim (host), 1,000,000 instances and a release delay of 60 s.
3.  A dict of attributes is as good as `ApplicationAttributes`.
4.  Unknown names are None; the list holds what was registered, and the Runner's template.
5.  Names are 1 to 253 of A-Z a-z 0-9 . _ -, do not begin with . or -, and hold no two dots in a row.
6.  A working directory is absolute; a schema is JSON Schema; an empty schema is none.
7.  Unregistering an unknown name fails; so does one with open sessions. Once they are closed they go with it.
8.  Registering a name again is refused or harmless; after unregistering, the name is free for other attributes.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import flamepy
import pytest
from flamepy.core.types import ApplicationAttributes, ApplicationSchema, ApplicationState, Shim


def test_all_attributes_are_kept(name: str) -> None:  # 1
    attributes = ApplicationAttributes(
        shim=Shim.HOST,
        image="registry.example/image:1",
        description="what it does",
        labels=["a", "b"],
        command="/bin/true",
        arguments=["--flag", "value"],
        environments={"A": "1", "B": "two words"},
        working_directory="/tmp",
        max_instances=7,
        delay_release=11,
        schema=ApplicationSchema(
            input='{"type": "string"}', output='{"type": "integer"}', common_data='{"type": "object"}'
        ),
        url="file:///tmp/package.tar.gz",
        installer="python",
    )
    flamepy.register_application(name, attributes)
    kept = flamepy.get_application(name)
    for field in ApplicationAttributes.__dataclass_fields__:
        assert getattr(kept, field) == getattr(attributes, field), field
    assert (kept.id, kept.name, kept.state) == (name, name, ApplicationState.ENABLED)
    assert abs(kept.creation_time - datetime.now(kept.creation_time.tzinfo)) < timedelta(hours=12)
    flamepy.unregister_application(name)


def test_defaults(name: str) -> None:  # 2, 3
    flamepy.register_application(name, {"command": "/bin/true"})
    kept = flamepy.get_application(name)
    assert (kept.shim, kept.max_instances, kept.delay_release) == (Shim.HOST, 1_000_000, 60)
    assert (kept.command, kept.labels, kept.arguments, kept.environments) == ("/bin/true", [], [], {})
    absent = ("image", "description", "working_directory", "schema", "url", "installer")
    assert [getattr(kept, field) for field in absent] == [None] * len(absent)
    flamepy.unregister_application(name)


def test_lookup(name: str) -> None:  # 4
    assert flamepy.get_application(name) is None
    flamepy.register_application(name, {"command": "/bin/true"})
    listed = {each.name: each for each in flamepy.list_applications()}
    assert listed[name].command == "/bin/true"
    assert listed["flmrun"].arguments[-2:] == ["-m", "flamepy.runner.runpy"]
    flamepy.unregister_application(name)
    assert flamepy.get_application(name) is None
    assert name not in [each.name for each in flamepy.list_applications()]


@pytest.mark.parametrize("bad", ["", "-x", ".x", "a..b", "a/b", "a b", "ä", "x" * 254])
def test_bad_names(bad: str) -> None:  # 5
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.register_application(bad, {"command": "/bin/true"})
    assert caught.value.code == flamepy.FlameErrorCode.INTERNAL
    assert bad not in [each.name for each in flamepy.list_applications()]


def test_good_names(name: str) -> None:  # 5
    for good in (f"{name}.a_b-C", f"9{name}", f"{name}-{'x' * 253}"[:253]):
        flamepy.register_application(good, {"command": "/bin/true"})
        assert flamepy.get_application(good).name == good
        flamepy.unregister_application(good)


@pytest.mark.parametrize("field", ["input", "output", "common_data"])
def test_a_schema_is_json(name: str, field: str) -> None:  # 6
    schema = ApplicationSchema(**{field: "{not json"})
    with pytest.raises(flamepy.FlameError, match="schema"):
        flamepy.register_application(name, ApplicationAttributes(command="/bin/true", schema=schema))
    assert flamepy.get_application(name) is None


def test_working_directories_and_empty_schemas(name: str) -> None:  # 6
    with pytest.raises(flamepy.FlameError, match="absolute"):
        flamepy.register_application(name, {"command": "/bin/true", "working_directory": "relative"})
    assert flamepy.get_application(name) is None
    schema = ApplicationSchema(input=" ", output="")
    flamepy.register_application(name, ApplicationAttributes(command="/bin/true", schema=schema))
    assert flamepy.get_application(name).schema is None
    flamepy.unregister_application(name)


def test_unregistering(name: str) -> None:  # 7
    with pytest.raises(flamepy.FlameError) as caught:
        flamepy.unregister_application(name)
    assert caught.value.code == flamepy.FlameErrorCode.INTERNAL
    flamepy.register_application(name, {"command": "/bin/true"})
    session = flamepy.create_session(name)
    with pytest.raises(flamepy.FlameError, match="open sessions"):
        flamepy.unregister_application(name)
    assert flamepy.get_application(name) is not None
    session.close()
    flamepy.unregister_application(name)
    with pytest.raises(flamepy.FlameError):
        flamepy.get_session(session.id)
    assert session.id not in [each.id for each in flamepy.list_sessions()]


def _refusal(name: str) -> str | None:
    try:
        flamepy.register_application(name, {"command": "/bin/true"})
    except flamepy.FlameError as error:
        return error.message
    return None


def test_registering_again(name: str) -> None:  # 8
    flamepy.register_application(name, {"command": "/bin/true"})
    refusal = _refusal(name)
    assert refusal is None or "already exists" in refusal
    assert flamepy.get_application(name).command == "/bin/true"
    flamepy.unregister_application(name)
    flamepy.register_application(name, {"command": "/bin/false", "max_instances": 3})
    kept = flamepy.get_application(name)
    assert (kept.command, kept.max_instances) == ("/bin/false", 3)
    flamepy.unregister_application(name)
