import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from gradwire.errors import JobError, SpecError
from gradwire.files import (
    MOST_TEXT_NBYTES,
    cache_folder,
    check_folder_new,
    check_replaceable,
    check_writable,
    open_ordinary,
    read_text,
    replace_file,
    write_files,
)
from support.project import ROOT


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
    for names in (("blocked", "one"), ("one", "blocked")):
        with pytest.raises(JobError, match=r"the results cannot be written to .*/b: blocked is a folder"):
            write_files({folder / name: b"new" for name in names})
    assert sorted(path.name for path in folder.iterdir()) == ["blocked", "one"]
    assert (folder / "one").read_bytes() == b"1"


def test_what_can_be_written_is_known_before_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_writable("--json", tmp_path / "new" / "folder" / "line.json", overwrite=False)
    check_writable("--json", tmp_path / "file", overwrite=True)
    for path, reason in (("file/below", "cannot be written: .*file: Not a directory"), ("", "is a folder")):
        with pytest.raises(JobError, match=f"--json .*{reason}; pass a"):
            check_writable("--json", tmp_path / path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_older_result_stays_unless_it_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "record.json").touch()
    with pytest.raises(
        JobError, match=r"--json .*record\.json already exists; pass another file, or --overw"
    ):
        check_writable("--json", tmp_path / "record.json", overwrite=False)
    names = ("record.json", "picture.png")
    with pytest.raises(
        JobError, match=r"--out .* contains an older result \(record\.json\); pass another fol"
    ):
        check_folder_new("--out", tmp_path, names, overwrite=False)
    check_folder_new("--out", tmp_path, names, overwrite=True)
    check_folder_new("--out", tmp_path / "new", names, overwrite=False)


def test_a_file_replaces_only_what_its_reader_reads(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        if path.read_text() != "mine":
            raise SpecError("it is another's")

    (tmp_path / "mine").write_text("mine")
    (tmp_path / "other").write_text("other")
    (tmp_path / "empty").touch()
    for name in ("mine", "empty", "new"):
        check_replaceable(tmp_path / name, overwrite=False, read=read)
    with pytest.raises(OSError, match="the file has other content; pass another file, or overwrite=True"):
        check_replaceable(tmp_path / "other", overwrite=False, read=read)
    check_replaceable(tmp_path / "other", overwrite=True, read=read)
    with pytest.raises(IsADirectoryError):
        check_replaceable(tmp_path, overwrite=True, read=read)


def test_a_function_may_write_a_file_and_read_it_again(tmp_path: Path) -> None:
    def write(file: BinaryIO) -> None:
        file.write(b"12")
        file.seek(0)
        file.write(file.read()[::-1])

    write_files({tmp_path / "one": write})
    assert (tmp_path / "one").read_bytes() == b"1221"


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (Path("/dev/null"), Path("/dev/stdout"), tmp_path / "pipe", tmp_path / "link"):
        with pytest.raises(JobError, match=r"expected a regular file for --json, got"):
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
    assert seen[2:] == ["name one", "name two", f"sync {tmp_path.name}"]
    assert len(set(seen[:2])) == 2
    assert all(each.startswith("sync .gradwire-") for each in seen[:2])


def _write(path: Path, content: bytes) -> None:
    write_files({path: content})


WRITERS = pytest.mark.parametrize("write", [_write, replace_file])


@WRITERS
@pytest.mark.parametrize("planted", ["link", "dangling link", "file"])
def test_what_has_a_temporary_name_already_is_neither_followed_nor_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str, write: Callable[[Path, bytes], None]
) -> None:
    other, path = tmp_path / "other", tmp_path / "out" / "record.json"
    path.parent.mkdir()
    guesses = [f".record.json.{os.getpid()}", f"record.{os.getpid()}"]
    if planted != "dangling link":
        other.write_text("mine")
    monkeypatch.setattr(secrets, "token_hex", lambda _=None: "known")  # a planter can't know a name but so
    for name in (".gradwire-known", *guesses):
        place = path.parent / name
        place.write_text("mine") if planted == "file" else place.symlink_to(other)
    with pytest.raises((JobError, FileExistsError), match="File exists"):
        write(path, b"secret")
    monkeypatch.undo()
    write(path, b"secret")
    assert path.read_bytes() == b"secret"
    assert not path.is_symlink()
    assert sorted(each.name for each in path.parent.iterdir()) == sorted(
        [".gradwire-known", *guesses, "record.json"]
    )
    assert other.read_text() == "mine" if planted != "dangling link" else not other.exists()


@WRITERS
def test_of_writers_at_once_all_succeed_and_one_whole_file_stays(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    path, contents = tmp_path / "record.json", [bytes([number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as writers:
        for _ in range(20):
            list(writers.map(write, [path] * 8, contents))
            assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


@WRITERS
@pytest.mark.parametrize("call", ["fsync", "replace", "fdopen"])
def test_a_failure_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, write: Callable[[Path, bytes], None]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    if write is replace_file and call == "fsync":
        return  # which it doesn't call
    with pytest.raises((JobError, OSError), match="No space left"):
        write(tmp_path / "record.json", b"x")
    assert not list(tmp_path.iterdir())


def test_a_new_file_has_the_mode_that_others_get(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode
    for write in (_write, replace_file):
        write(tmp_path / "record.json", b"x")
        assert (tmp_path / "record.json").stat().st_mode == usual


def test_a_late_writer_makes_no_folder_anew(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "gone" / "notes.json", b"x")
    assert not (tmp_path / "gone").exists()


def test_nothing_else_in_the_package_renames_a_file_of_its_own() -> None:
    renames = ("os.replace(", "os.rename(", ".rename(", "shutil.move(")
    found = {
        path.as_posix().rpartition("src/")[2]
        for path in ROOT.glob("packages/*/src/**/*.py")
        if any(each in path.read_text() for each in renames)
    }
    found.remove("gradwire/script/lifeline.py")  # a folder that it removes
    assert found == {"gradwire/files.py", "gradwire_lab/job/data.py"}, "write by write_files or replace_file"


@pytest.mark.parametrize("read", [read_text, open_ordinary])
def test_only_ordinary_files_are_read_and_pipes_keep_nobody_waiting(read: object, tmp_path: Path) -> None:
    assert callable(read)
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", "/dev/null"):
        with pytest.raises(OSError, match="it is a pipe or a device, not a regular file"):
            read(path)
    for path, reason in (
        (tmp_path, "Is a directory"),
        ("a\0b", "not a valid file name"),
        ("\ud800", "not a valid file name"),
    ):
        with pytest.raises(OSError, match=reason):
            read(path)


def test_a_text_is_read_whole_or_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("grüße\n")
    assert read_text(tmp_path / "text") == "grüße\n"
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MOST_TEXT_NBYTES + 1)
    with pytest.raises(OSError, match="larger than 268435456 bytes"):
        read_text(tmp_path / "large")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        read_text(tmp_path / "bytes")
