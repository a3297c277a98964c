from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gradwire import errors
from gradwire_lab.testbed.registry import clean, dead_and_living, enter, forget, registry_folder

pytestmark = pytest.mark.usefixtures("folder")


def test_an_entry_lives_as_long_as_its_testbed(folder: Path) -> None:
    entry = enter()
    assert dead_and_living() == ([], [entry.path])
    assert clean() == ["no leftovers found", f"kept: {entry.path}, whose testbed is running"]
    entry.leave()
    assert dead_and_living() == ([], [])
    assert not list(folder.iterdir())


def test_forgetting_twice_does_no_harm(folder: Path) -> None:
    entry = enter()
    forget(entry.path)
    entry.leave()
    assert not list(folder.iterdir())


def test_the_folder_stays_for_the_others() -> None:
    one, other = enter(), enter()
    assert one.mark != other.mark
    one.leave()
    assert dead_and_living() == ([], [other.path])
    other.leave()


def test_many_come_and_go_at_once(folder: Path) -> None:
    failures: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(30):
                enter().leave()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not list(folder.iterdir())


def test_what_has_a_strange_name_is_not_ours() -> None:
    entry = enter()
    stranger = registry_folder() / "notes.txt"
    stranger.touch()
    entry.leave()
    assert clean() == ["no leftovers found"]
    assert stranger.exists()


def test_a_folder_that_others_may_write_is_refused() -> None:
    registry_folder().mkdir()
    registry_folder().chmod(0o777)
    with pytest.raises(errors.TestbedError, match="private to this user"):
        enter()
    with pytest.raises(errors.TestbedError, match="private to this user"):
        clean()


def test_an_entry_that_cannot_be_removed_is_dead_all_the_same() -> None:
    entry = enter()
    registry_folder().chmod(0o777)
    with pytest.raises(errors.TestbedError, match="private to this user"):
        entry.leave()
    registry_folder().chmod(0o700)
    assert dead_and_living() == ([entry.path], [])


def test_a_link_in_its_place_is_not_followed(folder: Path) -> None:
    (folder / "elsewhere").mkdir(mode=0o700)
    registry_folder().symlink_to(folder / "elsewhere")
    with pytest.raises(errors.TestbedError, match=r"cannot be written .*; set TMPDIR"):
        enter()
    assert not list((folder / "elsewhere").iterdir())
