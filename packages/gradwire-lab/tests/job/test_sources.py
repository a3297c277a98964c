"""Where the files of a data set are found, and what is said where they are not."""

import hashlib
from pathlib import Path
from types import MappingProxyType

import pytest

from gradwire.errors import DataError
from gradwire_lab.job import data as sources
from gradwire_lab.job.data import NAMES, SOURCES, Source, at_hand, find, find_cifar10
from support.idx_files import write


@pytest.mark.parametrize("place", [".", "mnist"])
def test_files_are_found_in_the_folder_or_below(tmp_path: Path, place: str) -> None:
    folder = write(tmp_path / place)
    found = find("mnist", tmp_path)
    assert found is not None
    assert found.resolve() == folder.resolve()


def test_the_variable_names_the_folder_and_the_option_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a"), write(tmp_path / "b" / "fashion-mnist")
    monkeypatch.setenv("GRADWIRE_DATA", str(tmp_path / "b"))
    assert find("fashion") == tmp_path / "b" / "fashion-mnist"
    assert find("fashion", tmp_path / "a") == tmp_path / "a"


def test_missing_files_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / NAMES[3]).unlink()
    with pytest.raises(DataError, match=f"MNIST is incomplete in .*; put {NAMES[3]} into"):
        find("mnist", tmp_path)


def test_what_is_missing_is_downloaded_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = write(tmp_path / "served")
    md5 = [hashlib.md5((served / name).read_bytes()).hexdigest() for name in NAMES]
    source = Source("MNIST", "mnist", f"{served.as_uri()}/", (md5[0], md5[1], md5[2], md5[3]))
    monkeypatch.setattr(sources, "SOURCES", MappingProxyType({"mnist": source}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    folder = find("mnist")
    assert folder == tmp_path / "cache" / "gradwire" / "mnist"
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(NAMES)
    (served / NAMES[0]).unlink()
    assert find("mnist") == folder, "what is there is not fetched again"


def test_without_a_network_the_error_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("MNIST", "mnist", "http://127.0.0.1:9/", SOURCES["mnist"].md5)
    monkeypatch.setattr(sources, "SOURCES", MappingProxyType({"mnist": source}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    with pytest.raises(DataError, match=f"cannot download .*put {', '.join(NAMES)} of MNIST into a folder"):
        find("mnist")


def test_the_folder_of_cifar_10_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in (str(tmp_path / "data"), "data"):  # a relative one, too
        monkeypatch.setenv("GRADWIRE_DATA", variable)
        assert find_cifar10() is None
        (tmp_path / "data" / "cifar10").mkdir(parents=True)
        assert find_cifar10() == tmp_path / "data" / "cifar10"
        assert find_cifar10(Path("named")) == tmp_path / "named"
        (tmp_path / "data" / "cifar10").rmdir()
        (tmp_path / "data").rmdir()
    monkeypatch.delenv("GRADWIRE_DATA")
    (tmp_path / "cifar10").mkdir()
    assert find_cifar10() is None


def test_digits_are_at_hand_unless_the_variable_names_mnist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    assert at_hand() == "digits"
    monkeypatch.setenv("GRADWIRE_DATA", str(tmp_path))
    assert at_hand() == "digits"
    for name in NAMES:
        (tmp_path / name).touch()
    assert at_hand() == "mnist"
