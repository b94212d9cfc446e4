"""Pinned: executors run the driver's very code, wherever they are.

1.  The archive's bytes and digest depend on names and contents alone; compiled files and hidden ones are not in it.
2.  A member that leads out of the directory is refused, and so is a file that is data rather than code.
3.  Seeker's package and the target's travel; an installed package does not; a script's class is refused.
4.  Where the tree is not on the node, it is unpacked and used; the archive is put once, however many services.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path

import pytest

from seeker.cluster import archive, shipping
from seeker.cluster.client import Cluster, open_cluster
from seeker.cluster.objects import FlightObjects
from seeker.errors import ConfigError
from tests.cluster.conftest import object_keys
from tests.cluster.served import served_cluster, settings_of

SOURCE = """
import os
import seeker
class Where:
    def __init__(self, config, context):
        pass
    def about(self):
        return {"file": __file__, "seeker": seeker.__file__, "cwd": os.getcwd()}
"""


def _tree(root: Path) -> str:
    package = root / "elsewhere"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "services.py").write_text(SOURCE)
    (package / "data.json").write_text("{}")
    (package / ".hidden").write_text("x")
    (package / "__pycache__" / "services.pyc").write_text(str(root))
    return str(root)


def test_the_name_is_the_content(tmp_path: Path) -> None:
    one, two = _tree(tmp_path / "one"), _tree(tmp_path / "two")
    os.utime(Path(two) / "elsewhere" / "services.py", (1, 1))
    digest = archive.tree_digest(["elsewhere"], [one])
    assert digest == archive.tree_digest(["elsewhere"], [two])
    packed, packed_digest = archive.pack(["elsewhere"], [one])
    assert packed_digest == digest
    assert packed == archive.pack(["elsewhere"], [two])[0]
    (tmp_path / "three").mkdir()
    archive.unpack(packed, str(tmp_path / "three"))
    assert archive.tree_digest(["elsewhere"], [str(tmp_path / "three")]) == digest
    names = {path.name for path in (tmp_path / "three").rglob("*") if path.is_file()}
    assert names == {"__init__.py", "services.py", "data.json"}
    (Path(two) / "elsewhere" / "data.json").write_text("[]")
    assert archive.tree_digest(["elsewhere"], [two]) != digest
    assert archive.tree_digest(["elsewhere", "missing"], [one]) is None


def test_what_an_archive_may_not_hold(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        made.addfile(tarfile.TarInfo("../outside.py"))
    with pytest.raises(ValueError, match="not a plain file under its root"):
        archive.unpack(buffer.getvalue(), str(tmp_path))
    root = Path(_tree(tmp_path / "large"))
    (root / "elsewhere" / "model.bin").write_bytes(bytes(archive.MAX_FILE_BYTES + 1))
    with pytest.raises(ValueError, match=r"model\.bin has 16777217 bytes"):
        archive.pack(["elsewhere"], [str(root)])


def test_what_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_tree(tmp_path))
    code = shipping.code_of("elsewhere.services:Where")
    assert code.packages == ("elsewhere", "seeker")
    assert str(tmp_path) in code.roots
    assert "elsewhere.services" not in sys.modules
    assert shipping.code_of("numpy:array").packages == ("seeker",)
    assert shipping.code_of("not_here:X").packages == ("seeker",)
    with pytest.raises(ConfigError, match="cannot import a script"):
        shipping.code_of("__main__:X")


def test_a_tree_that_is_edited_meanwhile(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_tree(tmp_path))
    code = shipping.code_of("elsewhere.services:Where")
    (tmp_path / "elsewhere" / "data.json").write_text("[1]")
    objects = FlightObjects(cluster.describe()["cache_endpoint"])
    assert not shipping.ship(code, objects)
    assert shipping.ship(shipping.code_of("elsewhere.services:Where"), objects)
    assert objects.prefixes == {shipping.code_of("elsewhere.services:Where").prefix}
    objects.close()


@pytest.mark.drill
def test_a_node_without_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The roots that executors are told of do not exist, as on another machine."""
    monkeypatch.syspath_prepend(_tree(tmp_path / "driver"))
    plain = shipping.Code.to_setup
    monkeypatch.setattr(
        shipping.Code, "to_setup", lambda code, *rest: {**plain(code, *rest), "roots": [str(tmp_path / "gone")]}
    )
    with served_cluster() as served, open_cluster(settings_of(served, code_root=str(tmp_path / "gone"))) as cluster:
        target = "elsewhere.services:Where"
        services = [cluster.start(name, target, {}, resources="mem=64m") for name in "ab"]
        told = [service.call("about", deadline_s=60).result() for service in services]
        assert told[0]["file"] == told[1]["file"]
        assert not told[0]["file"].startswith(str(tmp_path))
        assert Path(told[0]["seeker"]).parents[1] == Path(told[0]["file"]).parents[1]
        archives = [key for key in object_keys(served["cache_endpoint"]) if key.startswith("seeker-code/")]
        assert len(archives) == 1
