import os
from pathlib import Path

import pytest

from gradwire.errors import JobError
from gradwire.files import cache_folder, check_folder_new, check_writable, write_files


def test_the_cache_is_where_the_desktop_s_rules_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert cache_folder() == Path("/some/cache/gradwire")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache" / "gradwire"


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    write_files({folder / "one": b"1", tmp_path / "two": b"2"})
    assert (folder / "one").read_bytes() == b"1"
    assert (tmp_path / "two").read_bytes() == b"2"
    (folder / "blocked").mkdir()
    with pytest.raises(JobError, match=r"the results cannot be written to .*/b: "):
        write_files({folder / "blocked": b"x", folder / "one": b"new"})
    assert sorted(path.name for path in folder.iterdir()) == ["blocked", "one"]
    assert (folder / "one").read_bytes() == b"1"


def test_what_can_be_written_is_known_before_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_writable("--json", tmp_path / "new" / "folder" / "line.json", overwrite=False)
    check_writable("--json", tmp_path / "file", overwrite=True)
    for path, reason in (("file/below", "cannot be written: .*file: Not a directory"), ("", "is a folder")):
        with pytest.raises(JobError, match=f"--json .*{reason}; name"):
            check_writable("--json", tmp_path / path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_older_result_stays_unless_it_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "record.json").touch()
    with pytest.raises(
        JobError, match=r"--json .*record\.json exists already; name another file, or say --ov"
    ):
        check_writable("--json", tmp_path / "record.json", overwrite=False)
    names = ("record.json", "picture.png")
    with pytest.raises(
        JobError, match=r"--out .* holds an older result \(record\.json\); name another folder"
    ):
        check_folder_new("--out", tmp_path, names, overwrite=False)
    check_folder_new("--out", tmp_path, names, overwrite=True)
    check_folder_new("--out", tmp_path / "new", names, overwrite=False)


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (Path("/dev/null"), Path("/dev/stdout"), tmp_path / "pipe", tmp_path / "link"):
        with pytest.raises(JobError, match=r"--json .* is no ordinary file"):
            check_writable("--json", path, overwrite=True)


def test_a_file_is_on_the_disk_before_its_name_and_then_the_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        seen.append(f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")
        sync(file)

    def replaced(source: Path, target: Path) -> None:
        seen.append(f"name {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_files({tmp_path / "one": b"1", tmp_path / "two": b"2"})
    parts = [f"sync .{name}.{os.getpid()}" for name in ("one", "two")]
    assert seen == [*parts, "name one", "name two", f"sync {tmp_path.name}"]
