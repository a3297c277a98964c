"""What a record says of the machine, also where the machine says little of itself."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import pytest

from gradwire import machine
from gradwire.version import version


def test_a_machine_has_one_identity_that_does_not_show_its_name() -> None:
    found = machine.machine_id()
    assert found == machine.machine_id()
    assert len(found) == 16
    assert int(found, 16) >= 0
    assert platform.node() not in found


def test_another_machine_has_another_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine.machine_id()
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_words: "another\nmodel name : Abacus\n")
    assert machine.machine_id() != here
    assert machine.describe_machine()["processor"] == "Abacus"


def test_without_the_files_of_linux_the_platform_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_args: object, **_words: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(platform, "processor", lambda: "told")
    monkeypatch.setattr(platform, "node", lambda: "one")
    one = machine.machine_id()
    monkeypatch.setattr(platform, "node", lambda: "two")
    assert machine.machine_id() != one
    assert machine.describe_machine()["processor"] == "told"


def test_a_source_tree_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert version() == "0+source"


def test_stolen_seconds_are_the_eighth_count_of_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert machine.stolen_s(tmp_path) == 2.5
