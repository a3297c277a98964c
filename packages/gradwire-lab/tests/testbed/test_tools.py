from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gradwire import errors
from gradwire.doctor.finding import Finding
from gradwire_lab.testbed import namespaces, tools


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    (folder / name).chmod(0o755)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let there be no programs but those in this folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "_SYSTEM_FOLDERS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("missing", "package"),
    [("bridge", "iproute2"), ("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")],
)
def test_a_missing_program_is_named_with_its_package(only: Path, missing: str, package: str) -> None:
    for name in {"bridge", "ip", "tc", "unshare"} - {missing}:
        program(only, name, "exit 0")
    with pytest.raises(errors.TestbedError, match=f"needs the program '{missing}'; install {package}"):
        namespaces.private_area()


def test_programs_are_found_where_an_ordinary_path_does_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "ip", "exit 0")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(tools, "_SYSTEM_FOLDERS", str(tmp_path))
    assert tools.find_tool("ip") == str(tmp_path / "ip")


def test_a_kernel_that_forbids_namespaces_is_told_in_a_sentence(only: Path) -> None:
    for name in ("bridge", "ip", "tc"):
        program(only, name, "exit 0")
    program(only, "unshare", 'echo "unshare: unshare failed: Operation not permitted" >&2; exit 1')
    with pytest.raises(
        errors.TestbedError, match=r"unshare failed: Operation not permitted.*run as root"
    ) as caught:
        namespaces.private_area()
    assert "\n" not in str(caught.value)


def test_root_without_privileges_gets_a_user_namespace(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("bridge", "ip", "tc"):
        program(only, name, "exit 0")
    program(only, "unshare", 'test "$1" = --user')
    assert namespaces.private_area()[1:4] == ["--user", "--map-current-user", "--keep-caps"]
    program(only, "unshare", "exit 0")
    assert "--user" not in namespaces.private_area()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "--user" in namespaces.private_area()


def test_an_unshare_that_hangs_is_given_up(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_PROBE_TIMEOUT_S", 0.1)
    for name in ("bridge", "ip", "tc"):
        program(only, name, "exit 0")
    program(only, "unshare", "exec /bin/sleep 20")
    with pytest.raises(errors.TestbedError, match=r"unshare did not end within 0.1 s"):
        namespaces.private_area()


def test_the_area_names_what_it_must_keep_apart(only: Path) -> None:
    for name in ("bridge", "ip", "tc", "unshare"):
        program(only, name, "exit 0")
    words = namespaces.private_area()
    assert subprocess.run([*words, "true"], check=False, timeout=10).returncode == 0
    assert {"--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"} <= set(words)


def test_the_doctor_says_whether_there_can_be_testbeds(only: Path) -> None:
    for name in ("bridge", "ip", "unshare"):
        program(only, name, "exit 0")
    missing = "a testbed needs the program 'tc'; install iproute2"
    assert [*tools.check()] == [
        Finding("testbeds", "ok", f"not available ({missing}); training does not need them")
    ]
    program(only, "tc", "exit 0")
    assert [*tools.check()] == [Finding("testbeds", "ok", "bridge, ip, tc, unshare are installed")]
