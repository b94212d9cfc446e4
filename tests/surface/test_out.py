"""What commands refuse about the folders they write, before anything is started.

1. A run directory that cannot be written, is foreign, holds another configuration or more steps than asked for is
   refused, and nothing is left in it.
2. An export goes into a new or empty folder; only a run's own `export` is replaced, and only when all went well.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from seeker.config import RunConfig
from seeker.errors import ConfigError, LockedError, RunDirectoryError
from seeker.presets import load_config
from seeker.runs import FileRef, Latest, check_out, open_run, writer_lock
from seeker.runs.commits import replace_latest
from tasks.exporting import check_folder, draft_folder


def config(**flags: int) -> RunConfig:
    return load_config("laptop", **flags)


def test_a_new_folder_is_looked_at_and_not_left_behind(tmp_path: Path) -> None:
    check_out(tmp_path / "new", config())
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_place_of_the_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        check_out(tmp_path / "file", config())


def test_a_foreign_folder_keeps_only_what_was_in_it(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunDirectoryError, match=r"thesis\.tex"):
        check_out(tmp_path, config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_another_configuration_or_fewer_steps_than_are_done(tmp_path: Path) -> None:
    run = open_run(tmp_path, config(steps=5), "demo")
    replace_latest(run, Latest(3, 4, 0, FileRef("policy/000004.json", ""), None))
    check_out(tmp_path, config(steps=4))
    check_out(tmp_path, config(steps=9))
    with pytest.raises(RunDirectoryError, match=r"rollout\.group_size: 8 -> 4"):
        check_out(tmp_path, config(steps=5, group_size=4))
    with pytest.raises(RunDirectoryError, match="4 are committed already, 3 were asked for"):
        check_out(tmp_path, config(steps=3))


def test_a_run_that_is_being_written(tmp_path: Path) -> None:
    with writer_lock(tmp_path), pytest.raises(LockedError):
        check_out(tmp_path, config())


def test_an_export_spares_other_folders(tmp_path: Path) -> None:
    check_folder(tmp_path, may_replace=False)
    (tmp_path / "config.json").write_text("{}")
    check_folder(tmp_path, may_replace=True)
    with pytest.raises(ConfigError, match="not empty"):
        check_folder(tmp_path, may_replace=False)
    with pytest.raises(ConfigError, match="is a file"):
        check_folder(tmp_path / "config.json", may_replace=False)


def test_a_failed_export_leaves_the_earlier_one(tmp_path: Path) -> None:
    out = tmp_path / "export"
    write_export(out, "first")
    with pytest.raises(ValueError, match="differs"):
        fail_export(out)
    assert (out / "weights").read_text() == "first"
    write_export(out, "second")
    assert (out / "weights").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def write_export(out: Path, text: str) -> None:
    with draft_folder(out) as draft:
        draft.mkdir()
        (draft / "weights").write_text(text)


def fail_export(out: Path) -> None:
    with draft_folder(out) as draft:
        draft.mkdir()
        raise ValueError("differs")
